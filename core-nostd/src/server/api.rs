//! What goes in and out of the engine.

use super::priority::Grouping;
use crate::post::{ReadWr, WriteWr};
use crate::wire::{Placement, Violation};

/// What a server may be tuned with. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// How long a group is served while others wait. The paper's evaluation uses 100 us.
    pub time_slice_ns: u64,
    /// A group from which nothing has come for this long yields to one that is ready, before its
    /// slice is over.
    pub idle_switch_ns: u64,
    /// A client that has not answered its switch event for this long has its tenancy revoked, where
    /// the back end can do that.
    pub revoke_after_ns: u64,
    /// Where it cannot, a client that has not answered for this long is fenced, which ends its
    /// connection.
    pub fence_after_ns: u64,
    /// Most calls that are taken from one connection before the next one is looked at, at least 1.
    pub burst: u32,
    /// How connections are put into groups.
    pub grouping: Grouping,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            time_slice_ns: 100_000,
            idle_switch_ns: 10_000,
            revoke_after_ns: 200_000,
            fence_after_ns: 1_000_000_000,
            burst: 8,
            grouping: Grouping::Priority,
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
    pub(super) generation: u16,
    pub(super) client_slot: u32,
    pub(super) send_slot: u32,
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

/// What happened so far. All numbers only grow, except for the gauges at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests taken.
    pub calls: u64,
    /// Of those, the ones that came by a WRITE straight into the pool.
    pub direct_writes: u64,
    /// Of those, the ones that were fetched from a staging area.
    pub staged_calls: u64,
    /// READs of staged batches.
    pub warmup_reads: u64,
    /// Slices begun: at a switch, and when a group goes on because no other has demand.
    pub slices: u64,
    /// Context switches: a pool was taken from one group and the other pool given to the next.
    pub switches: u64,
    /// Switch events that rode on a response.
    pub switch_events_ridden: u64,
    /// Switch events that took a WRITE of their own.
    pub switch_events_extra: u64,
    /// Zones that entered quarantine.
    pub quarantined_zones: u64,
    /// Zones that a quiet message freed.
    pub zones_quiet: u64,
    /// Zones that a revocation freed.
    pub zones_revoked: u64,
    /// Zones that came back because their client was gone.
    pub zones_fenced: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections that ended.
    pub gone: u64,
    /// Connections that were ended because of what the peer sent.
    pub violations: u64,
    /// Connections that were ended because a work request failed, or the deadline for a fence had come.
    pub failures: u64,
    /// Connections served in another group's slice, because their fetch outlasted their own.
    pub guests: u64,
    /// Connections moved to a group of their class.
    pub moves: u64,
    /// Groups merged.
    pub merges: u64,
    /// Looks at a connection that were in vain because its send queue or the send area was full.
    pub stalls: u64,
    /// Gauge: connections open.
    pub connections: u64,
    /// Gauge: groups with members.
    pub groups: u64,
    /// Gauge: zones in quarantine.
    pub quarantined_now: u64,
}
