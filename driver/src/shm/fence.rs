//! Full fences that reach other processes (`membarrier(2)`).

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use scalerpc_core::{Memory, Region};

use super::guard::ClientFence;

/// The server's side of the fence of the guards.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerFence {
    expedited: bool,
}

impl ServerFence {
    /// Asks the kernel what it can do, and tries it.
    pub(super) fn probe() -> Self {
        let offered = membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED);
        let expedited = offered && membarrier(MembarrierCommand::GlobalExpedited).is_ok();
        Self { expedited }
    }

    /// True if it reaches clients that have registered.
    pub(super) fn is_expedited(self) -> bool {
        self.expedited
    }

    /// Passes the fence. False if it could not be passed: nothing may be concluded then.
    #[must_use]
    pub(super) fn pass(self, memory: &Region) -> bool {
        memory.fence_full();
        !self.expedited || membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }
}

/// The client's side: registers this process, if the server's fence will reach it.
pub(super) fn client_fence(server_is_expedited: bool) -> ClientFence {
    let registered =
        server_is_expedited && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
    if registered {
        ClientFence::Light
    } else {
        ClientFence::Full
    }
}
