//! What every back end does for the engines.

use std::task::Waker;
use std::time::Duration;

use scalerpc_core::memory::Region;
use scalerpc_core::post::{Completion, Limits, ReadWr, WriteWr};
use scalerpc_core::wire::Placement;

/// Why a work request was not posted. Nothing of it has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The send queue is full. The engines count, so this means that they counted wrong or that the
    /// device holds fewer than it promised; try again after a completion.
    #[error("the send queue is full")]
    QueueFull,
    /// The tenancy that the WRITE names has been revoked.
    #[error("the tenancy was revoked")]
    Revoked,
    /// The connection is down.
    #[error("the connection is down")]
    Down,
}

/// A tenancy to be revoked, and the outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revocation {
    /// Seat of the connection.
    pub seat: u32,
    /// The tenancy; earlier ones are meant too.
    pub epoch: u64,
    /// The client can write no more under it. If false, a WRITE was under way: ask again.
    pub done: bool,
}

/// A connection that a client opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its seat, free until now.
    pub seat: u32,
    /// The nonce that its messages carry, in both directions.
    pub owner: u64,
    /// Offset of its response ring in the client's exposed memory.
    pub ring_at: usize,
    /// Offset of its staging area in the client's exposed memory.
    pub staging_at: usize,
    /// How the bytes of a message are placed: what both ends agreed on.
    pub placement: Placement,
}

/// News about connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// Server: a client has connected. Its endpoint entry and its byte of the demand map are zero, and
    /// it may be writing already.
    Opened(Opened),
    /// The connection is down and fenced: nothing that the peer does reaches this side any more, and
    /// all completions of its work requests have been given out. Server: the seat stays taken until
    /// [`Fabric::release`].
    Gone {
        /// Seat (server) or number (client) of the connection.
        connection: u32,
    },
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// There was something to do already.
    NotAtAll,
    /// Somebody woke this end, or a signal came.
    Woken,
    /// Its time was over.
    TimedOut,
}

/// One end of a back end: memory, work requests, completions, peers.
///
/// All calls come from one thread, and none of them blocks but [`sleep`](Fabric::sleep). A server has one `Fabric` for all its
/// connections, named by seat; a client has one per link to a server, its connections numbered from 0.
///
/// # Safety
///
/// The caller of an engine lends out bytes of this memory as slices, so an implementation promises:
///
/// - [`exposed`](Fabric::exposed) and [`private`](Fabric::private) always give the same two regions, which
///   do not overlap and stay valid for as long as the implementation lives.
/// - Nothing but the caller writes to private memory, and nothing but posted work requests of the peer's end
///   (and a READ that was posted here) to exposed memory. What a peer does that breaks the protocol is outside
///   of Rust's model, as is what a device does: see *Trust* in `DESIGN.md`.
/// - A work request reads and writes only the ranges that it names.
pub unsafe trait Fabric {
    /// What this back end can do; constant.
    fn limits(&self) -> Limits;

    /// The memory that the peer reads and writes.
    fn exposed(&self) -> &Region;

    /// The memory that only this side touches, and from which WRITEs are posted.
    fn private(&self) -> &Region;

    /// Posts a WRITE.
    ///
    /// Up to [`Limits::inline_max`] bytes the source is free when this returns, else when the WRITE is
    /// known to be done. WRITEs of one connection land in order, and the bytes of each as
    /// [`Limits::placement`] says.
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing has been posted then.
    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError>;

    /// A hint: a WRITE of some `len` bytes is likely soon, which ends before `end` in the peer's memory. Where it is a copy,
    /// its lines can be [fetched ahead](scalerpc_core::post::fetch_ahead).
    #[inline]
    fn will_write(&self, connection: u32, end: usize, len: usize) {
        let _ = (connection, end, len);
    }

    /// Posts a READ (servers only).
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing has been posted then.
    fn post_read(&mut self, wr: &ReadWr) -> Result<(), PostError>;

    /// Posts what has been collected. A back end may keep work requests until the end of a round, so as to ring each
    /// doorbell once.
    ///
    /// Returns a connection of which not everything could be posted, and there may be more: it is to be called until
    /// it returns `None`. Such a connection is down; what was posted before may complete.
    fn flush(&mut self) -> Option<u32> {
        None
    }

    /// Takes one completion.
    fn poll_completion(&mut self) -> Option<Completion>;

    /// Takes one piece of news.
    fn poll_event(&mut self) -> Option<FabricEvent>;

    /// Makes sure that clients can write no more to zones of these tenancies, without ending their
    /// connections, and says of each whether that is so. Only if [`Limits::can_revoke`].
    fn revoke_all(&mut self, revocations: &mut [Revocation]);

    /// Begins to end a connection; [`FabricEvent::Gone`] follows once it is fenced. A second call does
    /// nothing.
    fn close(&mut self, connection: u32);

    /// True if [`sleep`](Self::sleep) ends as soon as the peer has done what wakes this end: written a byte of the
    /// demand map to a server ([`WriteWr::wakes`]), or anything to a client. If not, who waits takes naps.
    fn can_sleep(&self) -> bool {
        false
    }

    /// Sleeps until this end is woken, or `timeout` is over. `found` says, of exposed memory, whether there is
    /// something to do: it is asked once more after the peers can see that this end sleeps, so that none of them is missed.
    /// It may come back for no reason.
    fn sleep(&mut self, timeout: Duration, found: &dyn Fn(&Region) -> bool) -> Slept {
        if found(self.exposed()) {
            return Slept::NotAtAll;
        }
        std::thread::sleep(timeout);
        Slept::TimedOut
    }

    /// Wakes this end from any thread, if it sleeps. What it is to see is to be stored before.
    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    /// Bytes of this process's memory that the back end keeps for each connection that there may be.
    fn bytes_per_connection(&self) -> usize {
        0
    }

    /// Server: nothing refers to the seat of a connection that is gone; it may be given out again.
    fn release(&mut self, seat: u32);
}
