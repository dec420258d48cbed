//! Calls that are waited for.

use std::time::{Duration, Instant};

use scalerpc_core::client::Cancelled;
use scalerpc_core::{Memory, Region};
use scalerpc_driver::{Fabric, Slept};

use super::{Busy, CallId, CallOptions, ClientSet, Ended, Stashed};
use crate::error::CallError;
use crate::wait::{Backoff, NAP_MAX, SLEEP_MAX, Wait, WaitCounters};

/// How often a call that waits asks whether the server still lives. It has given its core away by then, and
/// while others want that, so many polls take seconds.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// A call that waits polls for this long before it sleeps: about what it costs to be woken.
const AWAKE: Duration = Duration::from_micros(50);
/// Where nobody wakes this end, of the time that it has waited a nap is such a part.
const NAP_PART: u32 = 4;

/// What is due after a fruitless poll.
enum Due {
    Nothing,
    /// To sleep for so long, or to take a nap of so long where nobody wakes this end.
    Sleep(Duration, Duration),
    /// To ask whether the server lives.
    Check,
    /// To give up.
    End,
}

/// Waits between polls, and keeps the time.
struct Patience {
    timeout: Duration,
    wait: Wait,
    backoff: Backoff,
    /// When the clock was looked at first, and when the server was last asked for.
    since: Option<(Instant, Instant)>,
}

impl Patience {
    fn new(timeout: Duration, wait: Wait) -> Self {
        Self {
            timeout,
            wait,
            backoff: Backoff::default(),
            since: None,
        }
    }

    fn wait(&mut self) -> Due {
        match self.wait {
            Wait::Poll => self.backoff.spin(),
            Wait::Yield | Wait::Sleep => self.backoff.idle(),
        }
        // Most calls end before the clock is looked at.
        if !self.backoff.is_long() {
            return Due::Nothing;
        }
        let now = Instant::now();
        let (begun, checked) = self.since.get_or_insert((now, now));
        let waited = now.duration_since(*begun);
        if waited >= self.timeout {
            return Due::End;
        }
        if now.duration_since(*checked) >= CHECK_EVERY {
            *checked = now;
            return Due::Check;
        }
        if self.wait == Wait::Sleep && waited >= AWAKE {
            let left = self.timeout - waited;
            return Due::Sleep(left, left.min(waited / NAP_PART));
        }
        Due::Nothing
    }
}

impl<F: Fabric> ClientSet<F> {
    /// What [`call`](Self::call) does while it waits for its answer. Default [`Wait::Sleep`].
    pub fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// For callers that poll by themselves, after a [`poll_completion`](Self::poll_completion) that found nothing: sleeps
    /// until something has come for any connection, at most for `timeout` or 100 ms. Where the back end can wake nobody it
    /// takes a nap of at most 1 ms. It may come back earlier, for no reason.
    pub fn wait(&mut self, timeout: Duration) {
        self.sleep(timeout, timeout);
    }

    /// How it has slept.
    pub fn wait_counters(&self) -> WaitCounters {
        self.waits
    }

    /// Sleeps, or takes a nap where nobody wakes this end.
    #[cold]
    fn sleep(&mut self, timeout: Duration, nap: Duration) {
        let timeout = timeout.min(SLEEP_MAX);
        let busy = &self.busy;
        let found = |exposed: &Region| {
            let news = |it: &Busy| exposed.load_acquire(it.awaited_at) == it.awaited;
            busy.iter().any(|it| it.post || news(it))
        };
        let slept = if self.fabric.can_sleep() {
            self.fabric.sleep(timeout, &found)
        } else {
            std::thread::sleep(timeout.min(nap).min(NAP_MAX));
            Slept::Woken
        };
        self.waits
            .count(slept, timeout, || found(self.fabric.exposed()));
    }

    /// Makes a call and waits for its answer, at most for `timeout`, which is its deadline, too: see
    /// [`CallOptions::deadline`]. Completions of other calls that come meanwhile are kept for
    /// [`poll_completion`](Self::poll_completion).
    ///
    /// # Errors
    ///
    /// [`CallError`] says how the call ended, and whether it may have run.
    pub fn call(
        &mut self,
        connection: u32,
        method: u16,
        request: &[u8],
        timeout: Duration,
    ) -> Result<&[u8], CallError> {
        let id = self.call_soon(connection, method, request, timeout)?;
        let (at, len) = self.wait_for(connection, id, timeout)?;
        Ok(self.bytes(at, len))
    }

    /// As [`call_with`](Self::call_with); where only the completion of an earlier WRITE is missing, it waits.
    fn call_soon(
        &mut self,
        connection: u32,
        method: u16,
        request: &[u8],
        timeout: Duration,
    ) -> Result<CallId, CallError> {
        let mut patience = Patience::new(timeout, self.wait);
        loop {
            let options = CallOptions::within(timeout);
            let accepted = self.call_with(connection, method, request, &options);
            let waits = accepted == Err(CallError::WindowFull) && self.waits_for_slot(connection);
            if !waits {
                return accepted;
            }
            match self.poll_ended() {
                Some(ended) => self.put_aside(ended),
                None => match patience.wait() {
                    Due::Nothing => {}
                    Due::Sleep(time, nap) => self.sleep(time, nap),
                    Due::Check => self.take_events(),
                    Due::End => return accepted,
                },
            }
        }
    }

    fn wait_for(
        &mut self,
        connection: u32,
        call: CallId,
        timeout: Duration,
    ) -> Result<(usize, usize), CallError> {
        let mut patience = Patience::new(timeout, self.wait);
        loop {
            match self.poll_ended() {
                Some(ended) if ended.connection == connection && ended.call == call => {
                    return ended.result;
                }
                Some(ended) => self.put_aside(ended),
                None => match patience.wait() {
                    Due::Nothing => {}
                    Due::Sleep(time, nap) => self.sleep(time, nap),
                    Due::Check => self.take_events(),
                    Due::End => match self.cancel(connection, call) {
                        Cancelled::NeverRuns => return Err(CallError::DeadlineExceeded),
                        Cancelled::MayRun => return Err(CallError::TimedOut),
                        // Its completion is the next to come.
                        Cancelled::Ended => {}
                    },
                },
            }
        }
    }

    fn put_aside(&mut self, ended: Ended) {
        let Ended {
            connection,
            call,
            result,
        } = ended;
        let result = result.map(|(at, len)| self.bytes(at, len).to_vec());
        self.stash.push_back(Stashed {
            connection,
            call,
            result,
        });
    }
}
