//! Full fences that reach other processes (`membarrier(2)`).

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use scalerpc_core::{Memory, Region};

use super::guard::ClientFence;

/// The heavy side of an asymmetric fence: the server's for the guards, the client's before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReachingFence {
    expedited: bool,
}

impl ReachingFence {
    /// The server's. Asks the kernel what it can do, tries it, and registers this process, so that the fences of
    /// clients reach it.
    pub(super) fn probe() -> Self {
        let offered = membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED);
        let expedited = offered
            && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        Self { expedited }
    }

    /// The client's. `None` if this process cannot reach a server that counts on being reached.
    pub(super) fn to_server(server_is_expedited: bool) -> Option<Self> {
        let this = Self {
            expedited: server_is_expedited,
        };
        let works = !server_is_expedited || membarrier(MembarrierCommand::GlobalExpedited).is_ok();
        works.then_some(this)
    }

    /// True if it reaches other processes that have registered.
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
