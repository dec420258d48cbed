//! Work requests and their accounting.
//!
//! The engines say what is to be posted; a back end posts it. Local addresses are offsets in this
//! side's memory, remote addresses offsets in the peer's exposed memory.

use crate::geometry::Geometry;
use crate::mutant::{self, Bug};
use crate::wire::LINE;

/// Messages after the present one whose lines are fetched ahead by who writes them: see `Memory::prefetch_write`.
///
/// Stores leave a processor in their order, so one whose line is at the other end holds up all after it, for longer than a
/// call takes. More ahead, and lines are taken away that the other end has still to read, or reads ahead.
pub const WRITE_AHEAD: u64 = 1;
/// Messages ahead whose lines are fetched by who reads them; 1 is the next one. A line takes longer to come than a call
/// takes.
pub const READ_AHEAD: u64 = 2;
/// Lines of a message that are fetched ahead. Longer ones are for what the processor does by itself.
const LINES_AHEAD: usize = 8;

/// Fetches the lines of a message that ends at `end`, if it has as many bytes as the last one, which had `len`.
// Most messages are one line, and need no loop.
#[inline(always)]
pub fn fetch_ahead(end: usize, len: usize, mut fetch: impl FnMut(usize)) {
    fetch(end.wrapping_sub(LINE));
    if len > LINE {
        let lines = 2..=(len / LINE).min(LINES_AHEAD);
        lines.for_each(|nth| fetch(end.wrapping_sub(nth * LINE)));
    }
}

/// What a work request was for; part of its [`WrId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrKind {
    /// A WRITE from private memory.
    Write,
    /// A READ into a zone.
    Read,
}

/// The 64 bits that travel with a work request and come back in its completion:
/// `kind 1 | generation 11 | seat 20 | sequence 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WrId(pub u64);

impl WrId {
    const GENERATION_BITS: u32 = 11;

    /// Packs the parts. Of `generation` the low 11 bits are kept.
    pub fn new(kind: WrKind, generation: u32, seat: u32, sequence: u32) -> Self {
        debug_assert!(seat < crate::geometry::CLIENTS_MAX);
        let kind = match kind {
            WrKind::Write => 0,
            WrKind::Read => 1u64 << 63,
        };
        let generation = u64::from(generation & ((1 << Self::GENERATION_BITS) - 1)) << 52;
        Self(kind | generation | u64::from(seat) << 32 | u64::from(sequence))
    }

    /// What it was for.
    pub fn kind(self) -> WrKind {
        if self.0 >> 63 == 0 {
            WrKind::Write
        } else {
            WrKind::Read
        }
    }

    /// The connection's seat.
    pub fn seat(self) -> u32 {
        (self.0 >> 32) as u32 & (crate::geometry::CLIENTS_MAX - 1)
    }

    /// The place in the order of the connection's work requests, modulo 2^32.
    pub fn sequence(self) -> u32 {
        self.0 as u32
    }

    /// True if it was posted by the given generation of the seat.
    pub fn is_of(self, generation: u32) -> bool {
        let mask = (1 << Self::GENERATION_BITS) - 1;
        (self.0 >> 52) as u32 & mask == generation & mask
    }
}

/// A one-sided WRITE from private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a work request does nothing until it is posted"]
pub struct WriteWr {
    /// Seat (server) or number (client) of the connection.
    pub connection: u32,
    /// Offset of the source in private memory.
    pub local: usize,
    /// Offset of the target in the peer's exposed memory.
    pub remote: usize,
    /// Bytes: whole lines of a message, 8 for a word, or 1 for a byte of the demand map.
    pub len: usize,
    /// A client's WRITE into a zone names the tenancy that entitles it; a back end that can revoke
    /// tenancies refuses the WRITE after a revocation.
    pub epoch: Option<u64>,
    /// Whether a completion is wanted.
    pub signaled: bool,
    /// Comes back in the completion.
    pub wr_id: WrId,
}

impl WriteWr {
    /// True for the byte of the demand map, the only WRITE of a single byte: a server that is asleep has to be woken
    /// after it, and after no other WRITE. See [`ServerEngine::rests`](crate::ServerEngine::rests).
    #[inline]
    pub fn wakes(&self) -> bool {
        self.len == 1
    }
}

/// A one-sided READ of a staged batch into the blocks of a zone, each message right-aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a work request does nothing until it is posted"]
pub struct ReadWr {
    /// Seat of the connection.
    pub connection: u32,
    /// Offset of the batch in the client's exposed memory.
    pub remote: usize,
    /// Bytes from one staged message to the next.
    pub stride: usize,
    /// Staged messages, at least 1.
    pub count: u32,
    /// Number of the first staged call.
    pub first_call: u64,
    /// Pool of the zone.
    pub pool: u32,
    /// The zone.
    pub zone: u32,
    /// Comes back in the completion. READs are always signaled.
    pub wr_id: WrId,
}

impl ReadWr {
    /// The scatter list: offsets in the server's exposed memory, each of `stride` bytes.
    pub fn targets(&self, geometry: &Geometry) -> impl Iterator<Item = usize> {
        let (geometry, wr) = (*geometry, *self);
        (0..u64::from(wr.count))
            .map(move |i| geometry.block_end(wr.pool, wr.zone, wr.first_call + i) - wr.stride)
    }
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// Done.
    Success,
    /// Not done: the connection had failed before.
    Flushed,
    /// The connection failed at this one.
    Failed {
        /// The back end's code (`ibv_wc_status` for verbs).
        status: u32,
        /// The vendor's code, or zero.
        vendor_err: u32,
    },
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of the work request that completed; unsignaled ones before it on the connection are done too.
    pub wr_id: WrId,
    /// How it ended.
    pub status: WcStatus,
}

/// What a back end can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work requests that a connection may have outstanding, at least 4.
    pub sq_depth: u32,
    /// Most elements of a scatter list, at least 1.
    pub sge_max: u32,
    /// A WRITE of up to so many bytes has read its source when the post returns.
    pub inline_max: usize,
    /// Tenancies can be revoked without ending the connection.
    pub can_revoke: bool,
    /// How bytes are placed at either end.
    pub placement: crate::wire::Placement,
}

impl Limits {
    /// True if a send queue holds the READs of a full window, and a WRITE besides.
    pub fn suffice(&self, geometry: &Geometry) -> bool {
        self.sge_max > 0
            && self.sq_depth >= 4
            && self.sq_depth > geometry.window().div_ceil(self.sge_max)
    }
}

/// Counts the work requests of one connection (rule R11).
///
/// A completion is asked for at least every half of the depth, so a full queue always holds a work
/// request that will report.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendQueue {
    posted: u32,
    retired: u32,
    signaled: u32,
    depth: u32,
}

impl SendQueue {
    /// An empty queue for `depth` work requests.
    pub fn new(depth: u32) -> Self {
        debug_assert!(depth >= 4);
        Self {
            posted: 0,
            retired: 0,
            signaled: 0,
            depth,
        }
    }

    /// True if `n` more can be posted now.
    #[inline]
    pub fn has_room(&self, n: u32) -> bool {
        let more = u32::from(mutant::is(Bug::QueueOverfilled));
        self.outstanding() + n <= self.depth + more
    }

    /// Posted, and not known to be done.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.retired)
    }

    /// Sequence number of the last one that was posted.
    pub fn last(&self) -> u32 {
        self.posted
    }

    /// Sequence number of the last one that was signaled.
    #[inline]
    pub(crate) fn last_signaled(&self) -> u32 {
        self.signaled
    }

    /// The last one was not posted after all; before it `signaled` was the last that was signaled.
    pub(crate) fn take_back(&mut self, signaled: u32) {
        self.posted = self.posted.wrapping_sub(1);
        self.signaled = signaled;
    }

    /// Counts one more; returns its sequence number and whether it has to be signaled.
    #[inline]
    pub fn post(&mut self, want_signal: bool) -> (u32, bool) {
        debug_assert!(self.has_room(1), "posted past the depth of the send queue");
        self.posted = self.posted.wrapping_add(1);
        let due = self.posted.wrapping_sub(self.signaled) >= self.depth / 2;
        let signaled = want_signal || (due && !mutant::is(Bug::SignalsTooSeldom));
        if signaled {
            self.signaled = self.posted;
        }
        (self.posted, signaled)
    }

    /// True if a completion is due: the last signaled work request is not known to be done.
    #[inline]
    pub fn reports(&self) -> bool {
        !self.is_done(self.signaled)
    }

    /// Everything up to `sequence` is done. A sequence number that is not outstanding is ignored.
    #[inline]
    pub fn retire(&mut self, mut sequence: u32) {
        if mutant::is(Bug::RetiredTooMany) && sequence != self.posted {
            sequence = sequence.wrapping_add(1);
        }
        let done = sequence.wrapping_sub(self.retired);
        if done <= self.outstanding() {
            self.retired = sequence;
        }
    }

    /// True if the work request with this sequence number, posted before, is known to be done.
    #[inline]
    pub fn is_done(&self, sequence: u32) -> bool {
        // Outstanding ones lie in (retired, posted]; the difference of an older one wraps around.
        let ahead = sequence.wrapping_sub(self.retired);
        ahead == 0 || ahead > self.outstanding()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wr_id_round_trips_at_the_extremes() {
        for kind in [WrKind::Write, WrKind::Read] {
            for generation in [0, 1, 2047, 2048, u32::MAX] {
                for seat in [0, 1, crate::geometry::CLIENTS_MAX - 1] {
                    for sequence in [0, 1, u32::MAX] {
                        let id = WrId::new(kind, generation, seat, sequence);
                        assert_eq!(id.kind(), kind);
                        assert_eq!(id.seat(), seat);
                        assert_eq!(id.sequence(), sequence);
                        assert!(id.is_of(generation));
                        assert!(!id.is_of(generation.wrapping_add(1)));
                    }
                }
            }
        }
    }

    #[test]
    fn a_send_queue_counts_across_the_wrap_and_always_signals() {
        for start in [0, u32::MAX - 2] {
            let mut queue = SendQueue {
                posted: start,
                retired: start,
                signaled: start,
                depth: 8,
            };
            let mut reported = start;
            for _ in 0..100 {
                while queue.has_room(1) {
                    let (sequence, signaled) = queue.post(false);
                    assert!(!queue.is_done(sequence));
                    if signaled {
                        reported = sequence;
                    }
                }
                assert_eq!(queue.outstanding(), 8);
                let before = queue.retired;
                queue.retire(reported);
                assert!(
                    queue.outstanding() <= 4,
                    "a full queue holds a signaled request"
                );
                assert!(queue.is_done(reported) && queue.is_done(before));
                queue.retire(before);
                assert_eq!(queue.retired, reported, "an old completion changes nothing");
            }
        }
    }
}
