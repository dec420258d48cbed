//! One connection.

use std::time::Duration;

use scalerpc_core::Geometry;
use scalerpc_core::client::{Cancelled, ClientCounters, ClientState};
use scalerpc_driver::Fabric;
use scalerpc_driver::shm::ShmClient;

use crate::error::CallError;
use crate::set::{Accepted, CallId, CallOptions, ClientSet, Completion};
use crate::wait::{Wait, WaitCounters};

/// One connection to a server.
///
/// It may go from thread to thread, but two cannot use it at once:
///
/// ```compile_fail,E0499
/// fn both(client: &mut scalerpc::Client) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| client.call(1, b"from one thread").is_ok());
///         scope.spawn(|| client.call(1, b"from another one").is_ok());
///     });
/// }
/// ```
pub struct Client<F: Fabric = ShmClient> {
    set: ClientSet<F>,
    timeout: Duration,
}

impl<F: Fabric> Client<F> {
    /// The first connection of a set; that is all of it, as a rule.
    pub fn over(set: ClientSet<F>) -> Self {
        Self {
            set,
            timeout: Duration::from_secs(5),
        }
    }

    /// How long [`call`](Self::call) waits; it is the deadline of its calls, too. Default 5 s.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// What [`call`](Self::call) does while it waits. Default [`Wait::Sleep`].
    pub fn set_wait(&mut self, wait: Wait) {
        self.set.set_wait(wait);
    }

    /// How it has slept.
    pub fn wait_counters(&self) -> WaitCounters {
        self.set.wait_counters()
    }

    /// Makes a call and waits for its answer, whose bytes are read in place.
    ///
    /// # Errors
    ///
    /// [`CallError`] says how the call ended, and whether it may have run.
    pub fn call(&mut self, method: u16, request: &[u8]) -> Result<&[u8], CallError> {
        self.set.call(0, method, request, self.timeout)
    }

    /// As [`ClientSet::call_async`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn call_async(&mut self, method: u16, request: &[u8]) -> Result<CallId, CallError> {
        self.set.call_async(0, method, request)
    }

    /// As [`ClientSet::call_with`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn call_with(
        &mut self,
        method: u16,
        request: &[u8],
        options: &CallOptions,
    ) -> Result<CallId, CallError> {
        self.set.call_with(0, method, request, options)
    }

    /// As [`ClientSet::call_batch`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn call_batch<'a>(
        &mut self,
        calls: impl IntoIterator<Item = (u16, &'a [u8])>,
    ) -> Result<Accepted, CallError> {
        self.set.call_batch(0, calls)
    }

    /// As [`ClientSet::poll_completion`].
    pub fn poll_completion(&mut self) -> Option<Completion<'_>> {
        self.set.poll_completion()
    }

    /// As [`ClientSet::cancel`].
    pub fn cancel(&mut self, call: CallId) -> Cancelled {
        self.set.cancel(0, call)
    }

    /// Calls that have not ended.
    pub fn outstanding(&self) -> u32 {
        self.set.outstanding(0)
    }

    /// The state.
    pub fn state(&self) -> ClientState {
        self.set.state(0)
    }

    /// What happened so far.
    pub fn counters(&self) -> ClientCounters {
        self.set.counters(0)
    }

    /// The back end.
    pub fn fabric(&self) -> &F {
        self.set.fabric()
    }

    /// The server's sizes.
    pub fn geometry(&self) -> &Geometry {
        self.set.geometry()
    }
}
