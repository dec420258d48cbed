//! Time, and what to do while there is nothing to do.

use std::time::Instant;

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
