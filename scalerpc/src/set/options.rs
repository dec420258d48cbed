//! Calls with options, and calls that are taken back.

use std::time::Duration;

use scalerpc_core::client::{Cancelled, ClientState};
use scalerpc_driver::Fabric;

use super::{CallId, ClientSet};
use crate::error::CallError;
use crate::wait::nanoseconds;

/// What [`ClientSet::call_with`] may be told of a call. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// How long the call is of use, from now: if the server comes to it later, it does not run, and ends with
    /// [`CallError::DeadlineExceeded`]. One that has begun is not stopped.
    ///
    /// The clocks of two hosts differ, so the server counts by its own, from when it learnt of the call. The time on the
    /// way counts for nobody. A request with a deadline is 32 bytes longer.
    pub deadline: Option<Duration>,
}

impl CallOptions {
    /// With a deadline.
    pub const fn within(deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
        }
    }
}

impl<F: Fabric> ClientSet<F> {
    /// As [`call_async`](Self::call_async), with options.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn call_with(
        &mut self,
        connection: u32,
        method: u16,
        request: &[u8],
        options: &CallOptions,
    ) -> Result<CallId, CallError> {
        let Some(deadline) = options.deadline else {
            return self.call_async(connection, method, request);
        };
        let budget_ns = nanoseconds(deadline);
        let now_ns = self.clock.now_ns();
        let mut accepted = self.accept_within(connection, method, request, budget_ns, now_ns);
        if accepted.is_err() && self.waits_for_slot(connection) {
            // It may have come meanwhile.
            self.take_completions();
            accepted = self.accept_within(connection, method, request, budget_ns, now_ns);
        }
        let id = accepted?;
        if self.engines[connection as usize].state() == ClientState::Process {
            self.post(connection);
        }
        self.list(connection);
        Ok(id)
    }

    fn accept_within(
        &mut self,
        connection: u32,
        method: u16,
        request: &[u8],
        budget_ns: u64,
        now_ns: u64,
    ) -> Result<CallId, CallError> {
        let (engine, private) = (
            &mut self.engines[connection as usize],
            self.fabric.private(),
        );
        let number = engine.call_within(method, request, 0, budget_ns, now_ns, private)?;
        Ok(CallId(number))
    }

    /// The answer to a call is not wanted any more: its completion will not come out. What becomes of the call itself
    /// is in [`Cancelled`]: one that was not yet sent never runs, and its place in the window comes back when the server
    /// has been told; one that is with the server may run, and keeps its place until it is answered.
    ///
    /// The completion of a call that has [`Ended`](Cancelled::Ended) may be waiting to be taken.
    pub fn cancel(&mut self, connection: u32, call: CallId) -> Cancelled {
        self.engines[connection as usize].cancel(call.0)
    }
}
