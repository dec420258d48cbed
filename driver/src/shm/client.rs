//! The client's end.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scalerpc_core::post::{Completion, Limits, ReadWr, WcStatus, WrId, WriteWr};
use scalerpc_core::{Geometry, Memory, Region};
use scalerpc_hugepage::PagePolicy;

use super::dial::{self, Dialed};
use super::error::SetupError;
use super::guard::{self, ClientFence};
use super::handshake::{self, FROM_CLIENT_MAX_BYTES, Grant};
use super::limits;
use super::link::guard_at;
use super::socket::{self, Incoming};
use super::transfer::{self, Completions, REMOTE_ACCESS_ERROR};
use crate::fabric::{Fabric, FabricEvent, PostError, Revocation};
use crate::mapping::Mapping;

/// What a client can be told.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Pages of the client's memory.
    pub page_policy: PagePolicy,
    /// NUMA node of the client's memory; `None` for the kernel's choice.
    pub numa_node: Option<u32>,
    /// Time for the whole of connecting.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            page_policy: PagePolicy::Prefer,
            numa_node: None,
            timeout: Duration::from_secs(5),
        }
    }
}

/// How a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// This end has said Bye; the server has not answered yet.
    Closing,
    /// Over; the connections from `next` on have not been told.
    Over {
        next: u32,
    },
}

/// One link of a client process to a server, with any number of connections.
///
/// Dropping it says goodbye to the server. A child of `fork` must not use what it inherits of it, but may drop it.
#[derive(Debug)]
pub struct ShmClient {
    geometry: Geometry,
    limits: Limits,
    grants: Box<[Grant]>,
    /// Completions that have not been taken, by connection.
    pending: Box<[u32]>,
    own: Mapping,
    private: Mapping,
    server: Mapping,
    completions: Completions,
    socket: OwnedFd,
    /// Readable once the server's process is gone.
    pidfd: Option<OwnedFd>,
    fence: ClientFence,
    state: State,
    /// Only this process can say that it writes no more; a fork of it cannot.
    process: u32,
}

impl ShmClient {
    /// Opens a link with `connections` connections to the server at `path`.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names the step that failed and what helps.
    pub fn connect(
        path: impl AsRef<Path>,
        connections: u32,
        options: ClientOptions,
    ) -> Result<Self, SetupError> {
        let Dialed {
            geometry,
            grants,
            own,
            private,
            server,
            socket,
            pidfd,
            fence,
        } = dial::dial(path.as_ref(), connections, &options)?;
        let pending = grants.iter().map(|_| 0).collect();
        Ok(Self {
            geometry,
            limits: limits(&geometry),
            pending,
            own,
            private,
            server,
            // Between two polls a connection posts at most one signaled WRITE for every half of its send
            // queue, which holds two windows.
            completions: Completions::new(4 * grants.len()),
            grants,
            socket,
            pidfd,
            fence,
            state: State::Up,
            process: std::process::id(),
        })
    }

    /// The server's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Connections of this link.
    pub fn connections(&self) -> u32 {
        self.grants.len() as u32
    }

    /// The nonce that the messages of a connection carry.
    ///
    /// # Panics
    ///
    /// If there is no connection of that number.
    pub fn owner(&self, connection: u32) -> u64 {
        self.grants[connection as usize].owner
    }

    /// The seat of a connection at the server.
    ///
    /// # Panics
    ///
    /// If there is no connection of that number.
    pub fn seat(&self, connection: u32) -> u32 {
        self.grants[connection as usize].seat
    }

    #[inline]
    fn complete(&mut self, connection: u32, wr_id: WrId, status: WcStatus) {
        if let Some(pending) = self.pending.get_mut(connection as usize) {
            *pending += 1;
            self.completions.push(wr_id, status);
        }
    }

    #[cold]
    fn fail(&mut self, connection: u32, wr_id: WrId) -> Result<(), PostError> {
        if self.completions.is_full() {
            return Err(PostError::QueueFull);
        }
        self.complete(connection, wr_id, REMOTE_ACCESS_ERROR);
        self.say_bye();
        Ok(())
    }

    /// Ends the link from this side: nothing is written after the Bye.
    fn say_bye(&mut self) {
        if self.state == State::Up {
            self.state = State::Closing;
            // A server that does not take it sees the end of the stream, and fences this process when it
            // exits.
            let _ = socket::send(&self.socket, &handshake::bye(), None);
        }
    }

    /// Asks the socket and the server's process how the link stands; one system call if all is well.
    fn look(&mut self) {
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let process = self.pidfd.as_ref().map_or(self.socket.as_fd(), AsFd::as_fd);
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(process, PollFlags::IN),
        ];
        // An error is EINTR: the next call asks again.
        if !matches!(poll(&mut fds, Some(&none)), Ok(1..)) {
            return;
        }
        let server_is_gone = self.pidfd.is_some() && !fds[1].revents().is_empty();
        if server_is_gone || self.has_ended() {
            // The server may have closed this link and live on: it learns that this end is quiet.
            self.say_bye();
            self.state = State::Over { next: 0 };
        }
    }

    /// Takes what the server has sent; true if that was the end.
    fn has_ended(&self) -> bool {
        let mut buffer = [0; FROM_CLIENT_MAX_BYTES];
        // What a server sends now is a Bye, or something that the protocol does not allow: both end it.
        !matches!(
            socket::receive(&self.socket, &mut buffer),
            Incoming::Nothing
        )
    }
}

// SAFETY: the two regions are views of mappings that the struct owns and never exchanges; the server's end
// writes by the work requests of its engine, and this end's copies are checked against the mapping's length.
unsafe impl Fabric for ShmClient {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn exposed(&self) -> &Region {
        self.own.reachable()
    }

    fn private(&self) -> &Region {
        self.private.region()
    }

    #[inline]
    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        if self.state != State::Up || wr.connection >= self.connections() {
            return Err(PostError::Down);
        }
        if wr.signaled && self.completions.is_full() {
            return Err(PostError::QueueFull);
        }
        let to = self.server.region();
        if !transfer::write_fits(to.len(), wr.remote, wr.len) {
            return self.fail(wr.connection, wr.wr_id);
        }
        let at = guard_at(&self.geometry, self.connections(), wr.connection);
        let guard = self.own.region();
        if !guard::begin_write(guard, at, wr.epoch.unwrap_or(guard::ENDED), self.fence) {
            let ended = guard::revoked(guard, at) == guard::ENDED;
            return Err(if ended {
                PostError::Down
            } else {
                PostError::Revoked
            });
        }
        transfer::write(to, wr.remote, self.private.region(), wr.local, wr.len);
        guard::end_write(guard, at);
        if wr.signaled {
            self.complete(wr.connection, wr.wr_id, WcStatus::Success);
        }
        Ok(())
    }

    /// Only servers read: this is always [`PostError::Down`].
    fn post_read(&mut self, _: &ReadWr) -> Result<(), PostError> {
        debug_assert!(false, "a client posts no READ");
        Err(PostError::Down)
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.completions.take()?;
        if let Some(pending) = self.pending.get_mut(completion.wr_id.seat() as usize) {
            *pending = pending.saturating_sub(1);
        }
        Some(completion)
    }

    /// Costs a system call while the link is up, so call it now and then, and when waiting.
    fn poll_event(&mut self) -> Option<FabricEvent> {
        if !matches!(self.state, State::Over { .. }) {
            self.look();
        }
        let State::Over { next } = self.state else {
            return None;
        };
        if *self.pending.get(next as usize)? > 0 {
            // First the completions are taken.
            return None;
        }
        self.state = State::Over { next: next + 1 };
        Some(FabricEvent::Gone { connection: next })
    }

    /// A client revokes nothing.
    fn revoke_all(&mut self, _: &mut [Revocation]) {}

    /// Ends the whole link: all its connections go once the server has let go of them.
    fn close(&mut self, connection: u32) {
        if connection < self.connections() {
            self.say_bye();
        }
    }

    fn release(&mut self, _: u32) {}
}

impl Drop for ShmClient {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.say_bye();
        }
    }
}
