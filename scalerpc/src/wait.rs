//! Time, and what to do while there is nothing to do.

use std::time::{Duration, Instant};

use scalerpc_driver::Slept;

/// A monotonic clock in nanoseconds, as the engines want it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that begins at zero now.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Nanoseconds since the start.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::start()
    }
}

/// A time as the engines want it; more than fits is the most that does.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// What an end does while there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It polls, and never gives its core away: for cores that nobody else wants.
    Poll,
    /// It polls, and gives its core to whoever else wants it.
    Yield,
    /// It polls for a while and then sleeps until it is woken, so that an idle process takes less than a hundredth of
    /// a core. Whoever has something for it wakes it, but for two who take naps, and so may be late by the length of one: a
    /// server with static mapping by a millisecond, and over RDMA a waiting client by a quarter of the time that it has
    /// waited.
    #[default]
    Sleep,
}

/// The longest sleep. A wake-up is never lost among those who keep to the protocol, but over shared memory whoever may write
/// to an end's memory could write over the word that says that it is asleep.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(100);
/// A server that sleeps does so when nothing has come for this long: some twenty times what it costs to wake it.
pub(crate) const REST_AFTER: Duration = Duration::from_millis(1);
/// The longest nap where nobody wakes this end.
pub(crate) const NAP_MAX: Duration = Duration::from_millis(1);

/// How an end has slept. All numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounters {
    /// Sleeps and naps.
    pub sleeps: u64,
    /// Sleeps that nobody ended in a tenth of a second, which is the longest, though there was something to do by then:
    /// lost wake-ups, or a peer that was held up before it could wake this end.
    pub woken_by_timeout: u64,
}

impl WaitCounters {
    /// Counts a sleep of at most `timeout`; `missed` says whether there was something to do when it was over. True if
    /// the end has slept.
    pub(crate) fn count(
        &mut self,
        slept: Slept,
        timeout: Duration,
        missed: impl FnOnce() -> bool,
    ) -> bool {
        if slept == Slept::NotAtAll {
            return false;
        }
        self.sleeps += 1;
        let late = slept == Slept::TimedOut && timeout == SLEEP_MAX;
        self.woken_by_timeout += u64::from(late && missed());
        true
    }
}

/// Waits a little longer each time: first with the core's pause instruction, then by giving the core to
/// whoever else wants it. More processes than cores then share them instead of spinning against
/// each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    rounds: u32,
}

impl Backoff {
    /// Rounds of pausing before the core is yielded: some microseconds, more than a round trip takes.
    const SPINS: u32 = 128;

    /// Nothing was found: waits.
    #[inline]
    pub fn idle(&mut self) {
        if self.rounds < Self::SPINS {
            self.rounds += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    /// As [`idle`](Self::idle), but the core is never yielded.
    #[inline]
    pub(crate) fn spin(&mut self) {
        self.rounds = self.rounds.saturating_add(1).min(Self::SPINS);
        std::hint::spin_loop();
    }

    /// True once the core is being yielded.
    #[inline]
    pub fn is_long(&self) -> bool {
        self.rounds >= Self::SPINS
    }

    /// Something was found: the next wait is short again.
    #[inline]
    pub fn busy(&mut self) {
        self.rounds = 0;
    }
}
