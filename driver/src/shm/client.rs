//! The client's end.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scalerpc_core::post::{Completion, Limits, ReadWr, WcStatus, WrId, WriteWr, fetch_ahead};
use scalerpc_core::{Geometry, Memory, Region};
use scalerpc_hugepage::PagePolicy;

use super::asleep::{self, WriterFence};
use super::dial::{self, Dialed};
use super::error::SetupError;
use super::fence::ReachingFence;
use super::futex;
use super::guard::{self, ClientFence};
use super::handshake::{self, FROM_CLIENT_MAX_BYTES, Grant};
use super::limits;
use super::link::{asleep_at, guard_at};
use super::socket::{self, Incoming};
use super::transfer::{self, Completions, REMOTE_ACCESS_ERROR};
use crate::fabric::{Fabric, FabricEvent, PostError, Revocation, Slept};
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
    /// Where each connection's shard begins in the server's memory, and what a WRITE may reach from there.
    bases: Box<[usize]>,
    shard_bytes: usize,
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
    /// `None`: this end cannot be woken.
    sleep_fence: Option<ReachingFence>,
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
            layout,
            grants,
            own,
            private,
            server,
            socket,
            pidfd,
            fence,
            sleep_fence,
        } = dial::dial(path.as_ref(), connections, &options)?;
        let pending = grants.iter().map(|_| 0).collect();
        Ok(Self {
            geometry,
            limits: limits(&geometry),
            bases: grants
                .iter()
                .map(|grant| layout.base(grant.shard))
                .collect(),
            shard_bytes: layout.len(),
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
            sleep_fence,
            state: State::Up,
            process: std::process::id(),
        })
    }

    /// The geometry of the server, or of each of its shards.
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

    /// The seat of a connection, in its shard of the server.
    ///
    /// # Panics
    ///
    /// If there is no connection of that number.
    pub fn seat(&self, connection: u32) -> u32 {
        self.grants[connection as usize].seat
    }

    /// The shard of the server that a connection belongs to.
    ///
    /// # Panics
    ///
    /// If there is no connection of that number.
    pub fn shard(&self, connection: u32) -> u32 {
        self.grants[connection as usize].shard
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

    /// A byte of the demand map of the shard that begins there has been written: its thread may be asleep.
    #[cold]
    fn wake_server(&self, base: usize) {
        let (server, at) = (self.server.region(), base + self.geometry.server_asleep());
        if asleep::must_wake(server, at, WriterFence::Full) {
            futex::wake(server, at);
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

    #[inline(always)]
    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        let base = self.bases.get(wr.connection as usize);
        let Some(&base) = base.filter(|_| self.state == State::Up) else {
            return Err(PostError::Down);
        };
        if wr.signaled && self.completions.is_full() {
            return Err(PostError::QueueFull);
        }
        let to = self.server.region();
        if !transfer::write_fits(self.shard_bytes, wr.remote, wr.len) {
            return self.fail(wr.connection, wr.wr_id);
        }
        // No overflow: the handshake has checked that every shard is inside of the mapping.
        let remote = base + wr.remote;
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
        transfer::write(to, remote, self.private.region(), wr.local, wr.len);
        guard::end_write(guard, at);
        if wr.wakes() {
            self.wake_server(base);
        }
        if wr.signaled {
            self.complete(wr.connection, wr.wr_id, WcStatus::Success);
        }
        Ok(())
    }

    #[inline(always)]
    fn will_write(&self, connection: u32, end: usize, len: usize) {
        if let Some(&base) = self.bases.get(connection as usize) {
            let to = self.server.region();
            fetch_ahead(base.wrapping_add(end), len, |line| to.prefetch_write(line));
        }
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

    fn can_sleep(&self) -> bool {
        self.sleep_fence.is_some() && self.state == State::Up
    }

    /// Costs a system call that makes the server's process pass a fence, and the sleep itself.
    fn sleep(&mut self, timeout: Duration, found: &dyn Fn(&Region) -> bool) -> Slept {
        let own = self.own.region();
        let at = asleep_at(&self.geometry, self.connections());
        let Some(fence) = self.sleep_fence.filter(|_| !self.completions.is_waiting()) else {
            return Slept::NotAtAll;
        };
        asleep::announce(own, at);
        // Ordering: full, and it reaches the server; partner is the fence of `must_wake` in the server's `post_write`.
        let passed = fence.pass(own);
        let slept = match !passed || found(self.own.reachable()) {
            true => Slept::NotAtAll,
            false if futex::sleep(own, at, timeout) => Slept::TimedOut,
            false => Slept::Woken,
        };
        asleep::withdraw(own, at);
        slept
    }
}

impl Drop for ShmClient {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.say_bye();
        }
    }
}
