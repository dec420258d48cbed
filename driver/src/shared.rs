//! What the data thread and the control thread of a server share.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

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

/// What both threads hold. No lock is taken on the data path: `news_waiting` says when there is a reason
/// to.
#[derive(Debug)]
pub(crate) struct Shared<N, O, C> {
    news: Mutex<VecDeque<N>>,
    news_waiting: AtomicBool,
    free_seats: Mutex<Vec<u32>>,
    orders: Mutex<Vec<O>>,
    stop: AtomicBool,
    /// Wakes the control thread.
    pub(crate) wake: OwnedFd,
    pub(crate) counts: C,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nobody leaves these half changed, so a panic elsewhere says nothing about them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<N, O, C: Default> Shared<N, O, C> {
    pub(crate) fn new(wake: OwnedFd, clients_max: u32) -> Self {
        Self {
            news: Mutex::new(VecDeque::new()),
            news_waiting: AtomicBool::new(false),
            // Low seats first: their demand bytes share cache lines.
            free_seats: Mutex::new((0..clients_max).rev().collect()),
            orders: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
            wake,
            counts: C::default(),
        }
    }

    pub(crate) fn tell(&self, news: N) {
        let mut queue = lock(&self.news);
        queue.push_back(news);
        // Inside of the lock, as is the store of false: the flag and the queue agree whenever it is free.
        self.news_waiting.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news_waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn take_news(&self) -> Option<N> {
        let mut queue = lock(&self.news);
        let news = queue.pop_front();
        self.news_waiting
            .store(!queue.is_empty(), Ordering::Relaxed);
        news
    }

    pub(crate) fn order(&self, order: O) {
        lock(&self.orders).push(order);
        self.wake();
    }

    pub(crate) fn take_orders(&self) -> Vec<O> {
        std::mem::take(&mut *lock(&self.orders))
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The control thread is awake.
    pub(crate) fn drain_wake(&self) {
        let mut count = [0; 8];
        while rustix::io::read(&self.wake, &mut count) == Err(Errno::INTR) {}
    }

    fn wake(&self) {
        // Non-blocking; a full counter (EAGAIN) wakes as well.
        while rustix::io::write(&self.wake, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Takes `count` free seats.
    ///
    /// # Errors
    ///
    /// If there are fewer, how many.
    pub(crate) fn take_seats(&self, count: u32) -> Result<Vec<u32>, u32> {
        let mut free = lock(&self.free_seats);
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
        lock(&self.free_seats).extend(seats);
    }

    pub(crate) fn free_seats(&self) -> u32 {
        lock(&self.free_seats).len() as u32
    }
}
