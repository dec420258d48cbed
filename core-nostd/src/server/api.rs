//! What goes in and out of the engine.

use super::priority::Grouping;
use super::slice::AdaptiveSlice;
use crate::post::{ReadWr, WriteWr};
use crate::wire::{Placement, Violation};

/// What a server may be tuned with. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// How long a group is served while others wait; with `adaptive_slice`, at first. The paper's evaluation uses
    /// 100 us.
    pub time_slice_ns: u64,
    /// Slices follow what a switch costs.
    pub adaptive_slice: Option<AdaptiveSlice>,
    /// A group from which nothing has come for this long yields to one that is ready, before its
    /// slice is over.
    pub idle_switch_ns: u64,
    /// A client that has not answered its switch event for this long has its tenancy revoked, where
    /// the back end can do that.
    pub revoke_after_ns: u64,
    /// Where it cannot, a client that has not answered for this long is fenced, which ends its
    /// connection. If it was told only for the sake of rest, the time begins when somebody lacks a zone.
    pub fence_after_ns: u64,
    /// When nothing has come from the group that is served for this long, and no other has demand, it is drained all
    /// the same, so that the server [rests](super::ServerEngine::rests) and its caller may sleep. `None`: never.
    pub rest_after_ns: Option<u64>,
    /// Most calls that are taken from one connection before the next one is looked at, at least 1.
    pub burst: u32,
    /// How connections are put into groups.
    pub grouping: Grouping,
    /// A [`Scheduler`](crate::Scheduler) says whose turn it is, for this engine and others like it.
    pub led: bool,
    /// Calls that may be in flight, that is handed out and not answered, over all connections. One more is
    /// answered with [`Status::BUSY`](crate::wire::Status::BUSY), and does not run. A handler that answers at once never has more than one.
    pub calls_in_flight_max: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            time_slice_ns: 100_000,
            adaptive_slice: None,
            idle_switch_ns: 10_000,
            revoke_after_ns: 200_000,
            fence_after_ns: 1_000_000_000,
            rest_after_ns: None,
            burst: 8,
            grouping: Grouping::Priority,
            led: false,
            calls_in_flight_max: u32::MAX,
        }
    }
}

/// A connection that the back end has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenConn {
    /// Its seat; free.
    pub seat: u32,
    /// The nonce of its messages.
    pub owner: u64,
    /// Offset of its response ring in the client's exposed memory.
    pub ring_at: usize,
    /// Offset of its staging area there.
    pub staging_at: usize,
    /// How the bytes of a message are placed at both of its ends: in order if both devices say so.
    pub placement: Placement,
}

/// A request that was taken: run the handler, then [`ServerEngine::reply`](super::ServerEngine::reply).
///
/// The request's bytes belong to the server until the caller asks for the next action: who answers later
/// copies them first. Those of the response buffer belong to it until the reply.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a call that was taken has to be answered"]
pub struct Call {
    /// Seat of the connection.
    pub seat: u32,
    /// The call's number.
    pub number: u64,
    /// What to run.
    pub method: u16,
    /// Offset of the request's payload in exposed memory.
    pub request_at: usize,
    /// Its bytes.
    pub request_len: usize,
    /// Offset, in private memory, where the response's payload goes; there is room for the
    /// geometry's `response_max_bytes`.
    pub response_at: usize,
    /// When its budget is used up, on the caller's clock; `u64::MAX`: it has none. Who runs it later looks at this
    /// first, and answers with [`Status::DEADLINE_EXCEEDED`](crate::wire::Status::DEADLINE_EXCEEDED) if nobody waits any more.
    pub deadline_ns: u64,
    pub(super) generation: u16,
    pub(super) client_slot: u32,
    pub(super) send_slot: u32,
}

/// What [`next_quick`](super::ServerEngine::next_quick) has found.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a call that is not run is lost"]
pub enum Quick {
    /// Run the handler.
    Call(Call),
    /// Nothing now, as [`Action::Idle`].
    Idle,
    /// Something else: [`next_other`](super::ServerEngine::next_other) says what.
    Other,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an action that is not carried out is lost"]
pub enum Action {
    /// Run the handler.
    Call(Call),
    /// Post a WRITE.
    Write(WriteWr),
    /// Post a READ.
    Read(ReadWr),
    /// Revoke the connection's tenancies up to this epoch; then
    /// [`revoked`](super::ServerEngine::revoked).
    Revoke {
        /// Seat of the connection.
        seat: u32,
        /// The last tenancy that is revoked.
        epoch: u64,
    },
    /// Fence the connection and end it; then, once that is done,
    /// [`gone`](super::ServerEngine::gone).
    Close {
        /// Seat of the connection.
        seat: u32,
        /// What it did, if it did something.
        why: Option<Violation>,
    },
    /// Nothing now. A round is over: let others have the core, and come back.
    Idle,
}
