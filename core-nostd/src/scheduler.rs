//! Whose turn it is, where several workers serve: one scheduler, and a board that it shares with them.
//!
//! Each worker has a [`ServerEngine`] of its own, in led mode ([`ServerConfig::led`]), with its own seats, zones
//! and memory. All have the same geometry. Group g of the server is made of the groups g of its workers, and all
//! serve the same group at the same time, so that only one group's connections are hot in the NIC. Which one
//! that is, and when it changes, is all that they share:
//!
//! ```text
//!   scheduler ── order: "group g is next", "switch" ──▶ every worker
//!   scheduler ◀── what was carried out, the oldest wish, ready, done ── each worker
//! ```
//!
//! - *Next*: the group gets the pool in warmup, and each worker fetches what its part of it has staged. A worker
//!   that has nothing of it has an empty tenancy, which members join later. Another group may be made next in its
//!   place while nobody of it is ready.
//! - *Switch*: each worker ends its group's slice, and then swaps its pools.
//!
//! One order is under way at a time: the next one is given when all workers have carried it out. So a worker
//! whose thread does not run holds up the others' switches, for as long as it does not run; what is served goes
//! on being served meanwhile. (It may be running a handler for its old group: nobody else can know that.)
//!
//! [`ServerEngine`]: crate::ServerEngine
//! [`ServerConfig::led`]: crate::server::ServerConfig::led

mod board;

pub use board::{Board, Follower};

use crate::mutant::{self, Bug};

/// What the workers are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// This group is next.
    Next(u32),
    /// The group that is next is served from now on.
    Switch,
}

/// An order of the scheduler to all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its number; it wraps.
    pub sequence: u32,
    /// What is to be done.
    pub task: Task,
}

impl Order {
    /// What stands where there was no order yet.
    pub const NONE: Self = Self {
        sequence: 0,
        task: Task::Next(0),
    };
}

/// A group that has demand, and is neither served nor next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Which group.
    pub group: u32,
    /// Since when, on the clock of all workers.
    pub since_ns: u64,
}

/// What a worker says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of the last order that was carried out.
    pub acknowledged: u32,
    /// Its oldest wish.
    pub wish: Option<Wish>,
    /// Somebody of the group that is next can be served.
    pub ready: bool,
    /// Somebody of it may become ready: it is being fetched, or waits for a zone.
    pub coming: bool,
    /// The pool in warmup has no free zone.
    pub full: bool,
    /// The group that is served has had its slice here, or nothing has come from it for
    /// [`idle_switch_ns`](crate::server::ServerConfig::idle_switch_ns), or nobody of it is here.
    pub done: bool,
}

/// Decides whose turn it is.
///
/// - No group takes a turn but one with a wish, and none loses its turn while no other has one (rule R7).
/// - The oldest wish is the next group (rule R8; [`wait_bound_ns`](Scheduler::wait_bound_ns)).
/// - A group of which nobody becomes ready within a slice yields to one with a wish (rule R6). It is enough
///   that one worker has somebody who is ready: a fetch that hangs elsewhere holds nobody up.
/// - A slice is over when it is over in each worker that serves somebody, so it is that of the highest class that
///   the group has anywhere. Once it is over it stays so: who comes then does not wait for another one.
#[derive(Clone, Copy, Debug)]
pub struct Scheduler {
    time_slice_ns: u64,
    /// The last one.
    order: Order,
    /// The group that is next, and since when.
    next: Option<Wish>,
}

/// What all reports come to.
struct Summary {
    ready: bool,
    coming: bool,
    done: bool,
    /// The oldest wish.
    oldest: Option<Wish>,
    /// The oldest wish of a worker that has a zone for it, and not for the group that is next.
    instead: Option<Wish>,
}

/// The older one of two wishes; of two of the same age, the first.
fn older(one: Option<Wish>, other: Option<Wish>, now_ns: u64) -> Option<Wish> {
    match (one, other) {
        (Some(a), Some(b)) => {
            let is_older = board::age(b.since_ns, now_ns) > board::age(a.since_ns, now_ns);
            Some(if is_older { b } else { a })
        }
        (one, other) => one.or(other),
    }
}

impl Scheduler {
    /// A scheduler that has given no order; `time_slice_ns` is that of its workers.
    pub fn new(time_slice_ns: u64) -> Self {
        Self {
            time_slice_ns,
            order: Order::NONE,
            next: None,
        }
    }

    /// The last order, or [`Order::NONE`].
    pub fn order(&self) -> Order {
        self.order
    }

    /// The next order, if it is time for one. `reports`: one of each worker, always of all.
    ///
    /// `now_ns` is the time on the workers' clock.
    pub fn step(
        &mut self,
        now_ns: u64,
        reports: impl IntoIterator<Item = Report>,
    ) -> Option<Order> {
        let all = self.sum_up(now_ns, reports)?;
        if self.order.task == Task::Switch {
            self.next = None;
        }
        let Some(next) = self.next else {
            return all.oldest.map(|wish| self.make_next(wish.group, now_ns));
        };
        if all.ready || mutant::is(Bug::ReadyNotAwaited) {
            let done = all.done || mutant::is(Bug::LedSliceIgnored);
            return done.then(|| self.give(Task::Switch));
        }
        let waited_ns = now_ns.saturating_sub(next.since_ns);
        let hangs = waited_ns >= self.time_slice_ns && !mutant::is(Bug::LedHungFetchAwaited);
        let wish = all.instead.filter(|_| !all.coming || hangs)?;
        Some(self.make_next(wish.group, now_ns))
    }

    /// `None` if the last order is not carried out by all.
    fn sum_up(&self, now_ns: u64, reports: impl IntoIterator<Item = Report>) -> Option<Summary> {
        let next = self.next.map(|next| next.group);
        let mut all = Summary {
            ready: false,
            coming: false,
            done: true,
            oldest: None,
            instead: None,
        };
        for report in reports {
            let sequence = self.order.sequence;
            if report.acknowledged != sequence && !mutant::is(Bug::AcknowledgementNotAwaited) {
                return None;
            }
            all.ready |= report.ready;
            all.coming |= report.coming;
            all.done &= report.done;
            all.oldest = older(all.oldest, report.wish, now_ns);
            let other = report
                .wish
                .filter(|it| Some(it.group) != next && !report.full);
            all.instead = older(all.instead, other, now_ns);
        }
        Some(all)
    }

    fn make_next(&mut self, group: u32, now_ns: u64) -> Order {
        self.next = Some(Wish {
            group,
            since_ns: now_ns,
        });
        self.give(Task::Next(group))
    }

    fn give(&mut self, task: Task) -> Order {
        self.order = Order {
            sequence: self.order.sequence.wrapping_add(1),
            task,
        };
        self.order
    }

    /// Longest time for which a connection with demand waits before its group is served, if `groups` groups of
    /// the server have demand (rule R8).
    ///
    /// `turn_ns` is the longest turn of a group in any worker: the engine's
    /// [`wait_bound_ns`](crate::server::ServerEngine::wait_bound_ns) for one group. `look_ns` is the longest time
    /// from one look at the board to the next, of the scheduler and of any worker. A turn takes four looks
    /// besides: the switch is acknowledged, the next group named, its first member ready, and the switch
    /// ordered. Each group with demand has one turn; and the one that is next when the demand comes may have
    /// lost its own.
    pub fn wait_bound_ns(groups: u32, turn_ns: u64, look_ns: u64) -> u64 {
        turn_ns
            .saturating_add(look_ns.saturating_mul(4))
            .saturating_mul(u64::from(groups) + 1)
    }
}
