//! Which methods are slow: learned from their runs, and forgotten again.
//!
//! After the paper, where a call that outlives its slice is remembered by type and runs on a separate thread the
//! next time. Beyond it, a method can be forgiven:
//!
//! ```text
//!            an overrun                      an overrun: the wait begins anew
//!   fast ────────────────▶ slow ◀──────────────────────┐
//!    ▲                       │─────────────────────────┘
//!    └───────────────────────┘
//!      a wait without an overrun, and at least one fast run in it
//! ```
//!
//! - *No forgiveness without a fast run.* Calls of a slow method run elsewhere, and what they take there is noted, too.
//!   So a method that is always slow is never tried on the server's thread again; nor is one that nobody calls.
//! - *The wait doubles with each relapse*, up to a maximum. A relapse is an overrun within one more wait after the
//!   earliest forgiveness. So a method that overruns every now and then holds the server's thread up at ever longer
//!   intervals, as long as these are not longer than the maximum; and one that had a bad day starts anew.

/// Methods that are remembered. When there are more, the one whose last overrun is longest ago is forgotten.
pub const REMEMBERED: usize = 32;

/// What counts as slow, and for how long. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowConfig {
    /// A run that took longer is an overrun. The paper's measure is the time slice, and its evaluation's is 100 us.
    pub slow_after_ns: u64,
    /// The first wait: so long after an overrun may a method be forgiven.
    pub forgive_after_ns: u64,
    /// The longest wait, after relapses.
    pub forgive_max_ns: u64,
}

impl Default for SlowConfig {
    fn default() -> Self {
        Self {
            slow_after_ns: 100_000,
            forgive_after_ns: 1_000_000_000,
            forgive_max_ns: 64_000_000_000,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Record {
    method: u16,
    /// Since the last overrun there was a run that was none.
    fast_since: bool,
    overrun_ns: u64,
    wait_ns: u64,
}

impl Record {
    fn is_slow(&self, now_ns: u64) -> bool {
        !self.fast_since || now_ns.saturating_sub(self.overrun_ns) < self.wait_ns
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct SlowMethods {
    config: SlowConfig,
    records: [Record; REMEMBERED],
    len: usize,
}

impl SlowMethods {
    /// No method is slow yet.
    pub fn new(config: SlowConfig) -> Self {
        let unused = Record {
            method: 0,
            fast_since: false,
            overrun_ns: 0,
            wait_ns: 0,
        };
        Self {
            config,
            records: [unused; REMEMBERED],
            len: 0,
        }
    }

    /// What counts as slow.
    pub fn config(&self) -> &SlowConfig {
        &self.config
    }

    /// True if calls of the method should not run on the server's thread now.
    #[inline]
    pub fn is_slow(&self, method: u16, now_ns: u64) -> bool {
        let known = self.records[..self.len].iter();
        let mut found = known.filter(|record| record.method == method);
        found.next().is_some_and(|record| record.is_slow(now_ns))
    }

    /// A run of the method, on any thread, has taken so long and ended just now.
    #[inline]
    pub fn note(&mut self, method: u16, took_ns: u64, now_ns: u64) {
        if took_ns > self.config.slow_after_ns {
            self.overrun(method, now_ns);
        } else if let Some(record) = self.record(method) {
            record.fast_since = true;
        }
    }

    #[inline]
    fn record(&mut self, method: u16) -> Option<&mut Record> {
        let mut known = self.records[..self.len].iter_mut();
        known.find(|record| record.method == method)
    }

    fn overrun(&mut self, method: u16, now_ns: u64) {
        let config = self.config;
        let wait_ns = match self.record(method) {
            Some(record) if record.is_slow(now_ns) => record.wait_ns,
            Some(record) => {
                let since_ns = now_ns.saturating_sub(record.overrun_ns);
                let relapse = since_ns < record.wait_ns.saturating_mul(2);
                match relapse {
                    true => record.wait_ns.saturating_mul(2).min(config.forgive_max_ns),
                    false => config.forgive_after_ns,
                }
            }
            None => config.forgive_after_ns,
        };
        let record = Record {
            method,
            fast_since: false,
            overrun_ns: now_ns,
            wait_ns,
        };
        if let Some(known) = self.record(method) {
            *known = record;
        } else if let Some(unused) = self.records.get_mut(self.len) {
            *unused = record;
            self.len += 1;
        } else if let Some(oldest) = self.records.iter_mut().min_by_key(|it| it.overrun_ns) {
            *oldest = record;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: SlowConfig = SlowConfig {
        slow_after_ns: 100,
        forgive_after_ns: 1_000,
        forgive_max_ns: 4_000,
    };

    #[test]
    fn one_overrun_makes_a_method_slow_and_no_other() {
        let mut slow = SlowMethods::new(CONFIG);
        slow.note(7, 100, 0);
        assert!(!slow.is_slow(7, 0), "as long as a slice is not longer");
        slow.note(7, 101, 10);
        assert!(slow.is_slow(7, 10) && !slow.is_slow(6, 10));
    }

    #[test]
    fn a_method_without_a_fast_run_is_never_forgiven() {
        let mut slow = SlowMethods::new(CONFIG);
        slow.note(7, 101, 0);
        assert!(slow.is_slow(7, u64::MAX));
        for now_ns in (500..100_000).step_by(500) {
            slow.note(7, 101, now_ns);
            assert!(slow.is_slow(7, now_ns + 10_000));
        }
    }

    #[test]
    fn a_fast_run_counts_once_the_wait_is_over_and_an_overrun_begins_it_anew() {
        let mut slow = SlowMethods::new(CONFIG);
        slow.note(7, 101, 0);
        slow.note(7, 5, 10);
        assert!(slow.is_slow(7, 999) && !slow.is_slow(7, 1_000));
        slow.note(7, 101, 900);
        assert!(slow.is_slow(7, 1_000));
        slow.note(7, 5, 1_000);
        assert!(slow.is_slow(7, 1_899) && !slow.is_slow(7, 1_900));
    }

    /// Time from an overrun to forgiveness.
    fn wait(slow: &mut SlowMethods, overrun_ns: u64) -> u64 {
        slow.note(7, 101, overrun_ns);
        slow.note(7, 5, overrun_ns);
        let mut waits = (0..100).map(|at| at * 500);
        waits
            .find(|wait| !slow.is_slow(7, overrun_ns + wait))
            .unwrap()
    }

    #[test]
    fn the_wait_doubles_with_each_relapse_up_to_the_maximum_and_starts_anew_after_a_good_time() {
        let mut slow = SlowMethods::new(CONFIG);
        assert_eq!(wait(&mut slow, 0), 1_000);
        assert_eq!(wait(&mut slow, 1_999), 2_000);
        assert_eq!(wait(&mut slow, 5_000), 4_000);
        assert_eq!(wait(&mut slow, 10_000), 4_000, "the maximum");
        assert_eq!(
            wait(&mut slow, 18_000),
            1_000,
            "twice the wait is long enough"
        );
    }

    #[test]
    fn when_there_are_too_many_the_one_that_overran_longest_ago_is_forgotten() {
        let mut slow = SlowMethods::new(CONFIG);
        for method in 0..REMEMBERED as u16 {
            slow.note(method, 101, u64::from(method));
        }
        slow.note(0, 101, 1_000);
        slow.note(999, 101, 1_001);
        assert!(slow.is_slow(0, 1_001) && slow.is_slow(999, 1_001));
        assert!(!slow.is_slow(1, 1_001) && slow.is_slow(2, 1_001));
    }
}
