//! What the data threads and the control thread of a server share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bell::Bell;

/// A number that any thread may change, and any may read. It orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one data thread is told by the control thread, and the seats of its connections. No lock is taken on the
/// data path: `news_waiting` says when there is a reason to.
#[derive(Debug)]
pub(crate) struct Shard<N> {
    state: Mutex<ShardState<N>>,
    news_waiting: AtomicBool,
}

#[derive(Debug)]
struct ShardState<N> {
    news: VecDeque<N>,
    free_seats: Vec<u32>,
    closed: bool,
}

impl<N> Shard<N> {
    pub(crate) fn new(clients_max: u32) -> Self {
        Self {
            state: Mutex::new(ShardState {
                news: VecDeque::new(),
                // Low seats first: their demand bytes share cache lines.
                free_seats: (0..clients_max).rev().collect(),
                closed: false,
            }),
            news_waiting: AtomicBool::new(false),
        }
    }

    /// # Errors
    ///
    /// The news, if the shard is closed.
    pub(crate) fn tell(&self, news: N) -> Result<(), N> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(news);
        }
        state.news.push_back(news);
        // Inside of the lock, as is the store of false: the flag and the queue agree whenever it is free.
        self.news_waiting.store(true, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news_waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn take_news(&self) -> Option<N> {
        let mut state = lock(&self.state);
        let news = state.news.pop_front();
        self.news_waiting
            .store(!state.news.is_empty(), Ordering::Relaxed);
        news
    }

    /// From now on there are no news, and no seats. Returns the news that have not been taken.
    pub(crate) fn close(&self) -> VecDeque<N> {
        let mut state = lock(&self.state);
        state.closed = true;
        state.free_seats.clear();
        self.news_waiting.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.news)
    }

    /// Takes `count` free seats.
    ///
    /// # Errors
    ///
    /// If there are fewer, how many.
    pub(crate) fn take_seats(&self, count: u32) -> Result<Vec<u32>, u32> {
        let free = &mut lock(&self.state).free_seats;
        let free_count = free.len();
        match free_count.checked_sub(count as usize) {
            Some(rest) => {
                let mut seats = free.split_off(rest);
                seats.reverse();
                Ok(seats)
            }
            None => Err(free_count as u32),
        }
    }

    pub(crate) fn give_back(&self, seats: impl IntoIterator<Item = u32>) {
        let mut state = lock(&self.state);
        if !state.closed {
            state.free_seats.extend(seats);
        }
    }

    pub(crate) fn free_seats(&self) -> u32 {
        lock(&self.state).free_seats.len() as u32
    }
}

/// What the control thread and all data threads hold.
#[derive(Debug)]
pub(crate) struct Shared<O, C> {
    orders: Mutex<Vec<O>>,
    stop: AtomicBool,
    /// Wakes the control thread.
    pub(crate) wake: Bell,
    pub(crate) counts: C,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nobody leaves these half changed, so a panic elsewhere says nothing about them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<O, C: Default> Shared<O, C> {
    pub(crate) fn new(wake: Bell) -> Self {
        Self {
            orders: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
            wake,
            counts: C::default(),
        }
    }

    pub(crate) fn order(&self, order: O) {
        lock(&self.orders).push(order);
        self.wake.ring();
    }

    pub(crate) fn take_orders(&self) -> Vec<O> {
        std::mem::take(&mut *lock(&self.orders))
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake.ring();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
