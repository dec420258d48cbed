//! Calls that are waited for.

use std::time::{Duration, Instant};

use scalerpc_driver::Fabric;

use super::{CallId, ClientSet, Ended, Stashed};
use crate::error::CallError;
use crate::wait::Backoff;

/// How often a call that waits asks whether the server still lives. It has given its core away by then, and
/// while others want that, so many polls take seconds.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// What is due after a fruitless poll.
enum Due {
    Nothing,
    /// To ask whether the server lives.
    Check,
    /// To give up.
    End,
}

/// Waits between polls, and keeps the time.
struct Patience {
    timeout: Duration,
    backoff: Backoff,
    /// When the clock was looked at first, and when the server was last asked for.
    since: Option<(Instant, Instant)>,
}

impl Patience {
    fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            backoff: Backoff::default(),
            since: None,
        }
    }

    fn wait(&mut self) -> Due {
        self.backoff.idle();
        // Most calls end before the clock is looked at.
        if !self.backoff.is_long() {
            return Due::Nothing;
        }
        let now = Instant::now();
        let (begun, checked) = self.since.get_or_insert((now, now));
        if now.duration_since(*begun) >= self.timeout {
            return Due::End;
        }
        if now.duration_since(*checked) >= CHECK_EVERY {
            *checked = now;
            return Due::Check;
        }
        Due::Nothing
    }
}

impl<F: Fabric> ClientSet<F> {
    /// Makes a call and waits for its answer, at most for `timeout`. Completions of other calls that
    /// come meanwhile are kept for [`poll_completion`](Self::poll_completion).
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

    /// As [`call_async`](Self::call_async); where only the completion of an earlier WRITE is missing, it waits.
    fn call_soon(
        &mut self,
        connection: u32,
        method: u16,
        request: &[u8],
        timeout: Duration,
    ) -> Result<CallId, CallError> {
        let mut patience = Patience::new(timeout);
        loop {
            let accepted = self.call_async(connection, method, request);
            let waits = accepted == Err(CallError::WindowFull) && self.waits_for_slot(connection);
            if !waits {
                return accepted;
            }
            match self.poll_ended() {
                Some(ended) => self.put_aside(ended),
                None => match patience.wait() {
                    Due::Nothing => {}
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
        let mut patience = Patience::new(timeout);
        loop {
            match self.poll_ended() {
                Some(ended) if ended.connection == connection && ended.call == call => {
                    return ended.result;
                }
                Some(ended) => self.put_aside(ended),
                None => match patience.wait() {
                    Due::Nothing => {}
                    Due::Check => self.take_events(),
                    Due::End if self.cancel(connection, call) => return Err(CallError::TimedOut),
                    // It has ended, and its completion is the next to come.
                    Due::End => {}
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
