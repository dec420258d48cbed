//! The words that the scheduler and the workers share.

use super::{Order, Report, Scheduler, Task, Wish};
use crate::geometry::CLIENTS_MAX;
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::server::ServerEngine;
use crate::store::Store;
use crate::wire::LINE;

/// In a worker's line: what it has carried out and its flags; then its wish.
const STATE_AT: usize = 0;
const WISH_AT: usize = 8;

/// In an order: its sequence number, a bit for a switch, the group.
const SEQUENCE_SHIFT: u32 = 32;
const SWITCH: u64 = 1 << 31;
/// In an order and in a wish: a group; in a wish, one more than it.
const GROUP_BITS: u32 = 24;
const GROUP_MASK: u64 = (1 << GROUP_BITS) - 1;
const _: () = assert!(
    2 * (CLIENTS_MAX as u64) + 5 < GROUP_MASK,
    "every group of every geometry has a number, and so has one more"
);

/// In a state, below the sequence number.
const READY: u64 = 1;
const COMING: u64 = 2;
const FULL: u64 = 4;
const DONE: u64 = 8;

/// Times of wishes are in units of 2^6 ns, and what the group leaves of a word: right for ages up to nine hours.
const TIME_SHIFT: u32 = 6;

/// How long ago a time of a wish was, in units of 2^6 ns; 0 if it is yet to come, as it may be by the other
/// thread's reading of the clock.
pub(super) fn age(since_ns: u64, now_ns: u64) -> u64 {
    let age = (now_ns >> TIME_SHIFT).wrapping_sub(since_ns >> TIME_SHIFT) << GROUP_BITS;
    // The highest of its bits is a sign.
    u64::try_from((age as i64) >> GROUP_BITS).unwrap_or(0)
}

impl Order {
    fn pack(self) -> u64 {
        let task = match self.task {
            Task::Switch => SWITCH,
            Task::Next(group) => u64::from(group) & GROUP_MASK,
        };
        u64::from(self.sequence) << SEQUENCE_SHIFT | task
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        let task = match word & SWITCH {
            0 => Task::Next((word & GROUP_MASK) as u32),
            _ => Task::Switch,
        };
        Self {
            sequence: (word >> SEQUENCE_SHIFT) as u32,
            task,
        }
    }
}

impl Report {
    /// The state, and the wish: 0 if there is none.
    #[inline]
    fn pack(self) -> (u64, u64) {
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let state = u64::from(self.acknowledged) << SEQUENCE_SHIFT
            | flag(self.ready, READY)
            | flag(self.coming, COMING)
            | flag(self.full, FULL)
            | flag(self.done, DONE);
        let wish = self.wish.map_or(0, |wish| {
            (wish.since_ns >> TIME_SHIFT) << GROUP_BITS | (u64::from(wish.group) + 1)
        });
        (state, wish)
    }

    fn unpack(state: u64, wish: u64) -> Self {
        let group = (wish & GROUP_MASK) as u32;
        Self {
            acknowledged: (state >> SEQUENCE_SHIFT) as u32,
            wish: group.checked_sub(1).map(|group| Wish {
                group,
                since_ns: (wish >> GROUP_BITS) << TIME_SHIFT,
            }),
            ready: state & READY != 0,
            coming: state & COMING != 0,
            full: state & FULL != 0,
            done: state & DONE != 0,
        }
    }
}

/// The scheduler's end of the board: a line for the order, and a line for each worker.
#[derive(Debug)]
pub struct Board<'a, M: Memory> {
    memory: &'a M,
    workers: usize,
}

impl<'a, M: Memory> Board<'a, M> {
    /// Bytes of a board, a multiple of a cache line.
    pub const fn bytes(workers: usize) -> usize {
        LINE * (1 + workers)
    }

    /// A board for so many workers, in zeroed memory that nothing else uses.
    ///
    /// `None` if `memory` is shorter than [`bytes`](Board::bytes).
    pub fn new(memory: &'a M, workers: usize) -> Option<Self> {
        (memory.len() >= Self::bytes(workers)).then_some(Self { memory, workers })
    }

    /// Gives an order to all workers. Every worker has carried out the one before.
    pub fn give(&self, order: Order) {
        // Ordering: release; pairs with the acquire in `Follower::follow`. What any worker did before it
        // acknowledged the orders before is visible to whoever sees this one.
        self.memory.store_release(0, order.pack());
    }

    /// What a worker has reported.
    pub fn report(&self, worker: usize) -> Report {
        let at = line(worker);
        // Ordering: acquire; pairs with the release in `Follower::follow`. What the worker did before it carried
        // out the order is visible; and its wish is not older than its state.
        let state = self.memory.load_acquire(at + STATE_AT);
        Report::unpack(state, self.memory.load(at + WISH_AT))
    }

    /// One look of the scheduler: the order that it gives, if it is time for one.
    pub fn attend(&self, scheduler: &mut Scheduler, now_ns: u64) -> Option<Order> {
        let reports = (0..self.workers).map(|worker| self.report(worker));
        let order = scheduler.step(now_ns, reports)?;
        self.give(order);
        Some(order)
    }
}

/// Offset of a worker's line.
const fn line(worker: usize) -> usize {
    LINE * (1 + worker)
}

/// A worker's end of the board.
#[derive(Debug)]
pub struct Follower {
    at: usize,
    /// What its line holds.
    state: u64,
    wish: u64,
}

impl Follower {
    /// The end of worker `worker`, from 0, whose line is zeroed.
    pub const fn new(worker: usize) -> Self {
        Self {
            at: line(worker),
            state: 0,
            wish: 0,
        }
    }

    /// One look of the worker: its engine hears the order, and what has changed there is reported. Once per round,
    /// when the engine is [`Idle`](crate::server::Action::Idle).
    ///
    /// # Panics
    ///
    /// If `board` is shorter than [`Board::bytes`] for the number of workers, as memory does.
    #[inline]
    pub fn follow<S: Store, M: Memory>(&mut self, engine: &mut ServerEngine<S>, board: &M) {
        // Ordering: acquire; pairs with the release in `Board::give`.
        engine.obey(Order::unpack(board.load_acquire(0)));
        let (state, wish) = engine.report().pack();
        if state != self.state || wish != self.wish {
            self.publish(state, wish, board);
        }
    }

    /// True if the last order on the board is carried out and reported: nobody waits for this worker.
    pub fn is_settled<M: Memory>(&self, board: &M) -> bool {
        // Ordering: acquire, as in `follow`.
        self.state >> SEQUENCE_SHIFT == board.load_acquire(0) >> SEQUENCE_SHIFT
    }

    fn publish<M: Memory>(&mut self, state: u64, wish: u64, board: &M) {
        if wish != self.wish && !mutant::is(Bug::WishNotReported) {
            board.store(self.at + WISH_AT, wish);
            self.wish = wish;
        }
        // Ordering: release; pairs with the acquire in `Board::report`: the wish, and all that this worker did before
        // it carried out the order, come before.
        board.store_release(self.at + STATE_AT, state);
        self.state = state;
    }
}
