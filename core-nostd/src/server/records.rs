//! The fixed records that the server keeps: connections, zones, groups.

use super::admission::Bucket;
use super::beats::OwnBeat;
use super::priority::{Class, Rating};
use crate::mutant::{self, Bug};
use crate::post::SendQueue;
use crate::store::Store;
use crate::wire::{Placement, Violation};

/// No index.
pub(super) const NONE: u32 = u32::MAX;

/// What a connection is doing, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ConnState {
    /// The seat is free.
    #[default]
    Free,
    /// Open, without a zone.
    Idle,
    /// It has a zone, and READs of its staged batch are under way.
    Fetching,
    /// It is served.
    Active,
    /// Its tenancy is over; its zone is in quarantine.
    Leaving,
    /// It is being fenced, after a violation or an error, and is not served.
    Closing,
}

/// One connection's control record: two cache lines, the first for the data path.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Conn {
    /// The call that is taken next.
    pub(super) next_call: u64,
    pub(super) owner: u64,
    /// The position in the response ring that is written next.
    pub(super) ring_next: u64,
    /// Offset of the response ring in the client's exposed memory.
    pub(super) ring_at: usize,
    pub(super) sq: SendQueue,
    /// Index over both pools, or NONE.
    pub(super) zone: u32,
    /// Send slots whose WRITEs are not known to be done, oldest first.
    pub(super) slot_head: u32,
    pub(super) slot_tail: u32,
    pub(super) state: ConnState,
    /// The client has been told its zone in this tenancy.
    pub(super) told_zone: bool,
    /// It is in its group's queue of connections with demand.
    pub(super) waiting: bool,
    /// How the bytes of a message are placed, at either end.
    pub(super) placement: Placement,

    // Second line: once per tenancy or less.
    /// The last tenancy that the client was told of.
    pub(super) told_epoch: u64,
    /// Number of the last endpoint entry that was accepted.
    pub(super) entry: u64,
    pub(super) staging_at: usize,
    pub(super) staged_at: usize,
    pub(super) staged_stride: u32,
    pub(super) staged_count: u16,
    /// Staged calls for which READs were posted; then, those of them that are yet to be taken.
    pub(super) staged_asked: u16,
    pub(super) reads_pending: u16,
    /// Calls that were handed out and not answered: each has a place in the send queue.
    pub(super) answers_owed: u16,
    pub(super) group: u32,
    /// Request bytes that were taken in this tenancy.
    pub(super) tenancy_bytes: u32,
    /// Next in the group's queue, or in the list of connections to close.
    pub(super) next: u32,
    pub(super) generation: u16,
    /// The bucket of its member record counts.
    pub(super) limited: bool,
    /// Why it is being closed, if the peer is to blame.
    pub(super) violation: Option<Violation>,
    /// When its demand was seen.
    pub(super) demand_at: u32,
}

const _: () = assert!(
    size_of::<Conn>() == 128,
    "a control record is two cache lines (rule R10)"
);

impl Conn {
    /// True if `n` work requests can be posted besides the answers that are owed (rule R11).
    #[inline]
    pub(super) fn has_room(&self, n: u32) -> bool {
        let owed = match mutant::is(Bug::AnswersOwedIgnored) {
            true => 0,
            false => u32::from(self.answers_owed),
        };
        self.sq.has_room(n + owed)
    }
}

impl Default for Conn {
    fn default() -> Self {
        Self {
            next_call: 1,
            owner: 0,
            ring_next: 1,
            ring_at: 0,
            sq: SendQueue::default(),
            zone: NONE,
            slot_head: NONE,
            slot_tail: NONE,
            state: ConnState::Free,
            told_zone: false,
            waiting: false,
            placement: Placement::InOrder,
            reads_pending: 0,
            answers_owed: 0,
            told_epoch: 0,
            entry: 0,
            staging_at: 0,
            staged_at: 0,
            staged_stride: 0,
            staged_count: 0,
            staged_asked: 0,
            group: NONE,
            tenancy_bytes: 0,
            next: NONE,
            generation: 0,
            limited: false,
            violation: None,
            demand_at: 0,
        }
    }
}

/// Who may write to a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ZoneState {
    /// Nobody; it may be given out.
    #[default]
    Free,
    /// The connection that it was given to.
    Mapped,
    /// Its former tenant, perhaps: it is given out again only after that one's quiet message, a
    /// revocation or a fence (rule R4).
    Quarantined,
}

/// The record of a zone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zone {
    pub(super) conn: u32,
    pub(super) state: ZoneState,
    /// The switch event could not be sent yet: the send queue was full.
    pub(super) event_owed: bool,
    /// Its tenant was told only for the sake of rest, and nobody has lacked a zone since: no fence is due.
    pub(super) spared: bool,
    pub(super) epoch: u64,
    /// Revocations that were asked for.
    pub(super) tries: u8,
    /// When it was given out; in quarantine, when it came there, or when the last revocation was tried.
    pub(super) since_ns: u64,
    /// When it entered quarantine.
    pub(super) held_ns: u64,
}

/// A connection that is served, and the word that says that its next call is there: what has to be known
/// to see that there is nothing new.
#[derive(Clone, Copy, Debug, Default)]
pub struct Active {
    pub(super) seat: u32,
    /// Offset of the `valid` word in exposed memory.
    pub(super) awaited_at: usize,
    pub(super) awaited: u64,
}

/// What is not looked at for every call: a connection as a member of its group, for when a tenancy ends; and what its
/// calls are judged by, if they have budgets or limits. One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Member {
    pub(super) prev: u32,
    pub(super) next: u32,
    /// The low half of the number of the first call that is not part of the rating.
    pub(super) rated_call: u32,
    pub(super) rating: Rating,
    /// When the last endpoint entry was accepted.
    pub(super) accepted_ns: u64,
    pub(super) bucket: Bucket,
}

const _: () = assert!(
    size_of::<Member>() == 64,
    "a member record is one cache line (rule R10)"
);

impl Member {
    pub(super) fn new(tick: u32) -> Self {
        Self {
            prev: NONE,
            next: NONE,
            rated_call: 1,
            rating: Rating::new(tick),
            accepted_ns: 0,
            bucket: Bucket::default(),
        }
    }
}

impl Default for Member {
    fn default() -> Self {
        Self::new(0)
    }
}

/// The record of a group.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub(super) class: Class,
    pub(super) beat: OwnBeat,
    /// Members of another class or beat.
    pub(super) misfits: u32,
    pub(super) len: u32,
    pub(super) members: u32,
    /// Connections with demand, in the order in which it was seen.
    pub(super) wait_head: u32,
    pub(super) wait_tail: u32,
    /// Next in the queue of groups with demand.
    pub(super) next: u32,
    pub(super) queued: bool,
    /// Since when it is queued.
    pub(super) since_ns: u64,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            class: Class::Normal,
            beat: OwnBeat::NONE,
            misfits: 0,
            len: 0,
            members: NONE,
            wait_head: NONE,
            wait_tail: NONE,
            next: NONE,
            queued: false,
            since_ns: 0,
        }
    }
}

/// The record of a send slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendSlot {
    pub(super) next: u32,
    pub(super) sequence: u32,
}

/// The arrays of a [`ServerEngine`](super::ServerEngine); the lengths are those of
/// [`ServerSizes::of`].
pub struct ServerMemory<S: Store> {
    /// One record per seat.
    pub conns: S::Array<Conn>,
    /// One record per seat.
    pub members: S::Array<Member>,
    /// The demand map as last seen, a byte per seat.
    pub demand_seen: S::Array<u8>,
    /// One record per zone of every pool.
    pub zones: S::Array<Zone>,
    /// Per pool, the free zones.
    pub free_zones: S::Array<u32>,
    /// Per pool, the connections that are served.
    pub active: S::Array<Active>,
    /// Zones in quarantine.
    pub quarantine: S::Array<u32>,
    /// One record per group.
    pub groups: S::Array<Group>,
    /// One record per send slot.
    pub send_slots: S::Array<SendSlot>,
}

/// Lengths of the arrays of [`ServerMemory`], and what they come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSizes {
    /// Of `conns`, `members` and `demand_seen`.
    pub seats: usize,
    /// Of `zones`, `free_zones`, `active` and `quarantine`.
    pub zones: usize,
    /// Of `groups`.
    pub groups: usize,
    /// Of `send_slots`.
    pub send_slots: usize,
}

impl ServerSizes {
    /// Bytes of the control records that each seat costs.
    pub const BYTES_PER_CLIENT: usize = size_of::<Conn>() + size_of::<Member>() + 1;
    /// Bytes of the records that each zone costs.
    pub const BYTES_PER_ZONE: usize =
        size_of::<Zone>() + size_of::<Active>() + 2 * size_of::<u32>();
    /// Bytes of the record of a group.
    pub const BYTES_PER_GROUP: usize = size_of::<Group>();

    /// The lengths for a geometry.
    pub fn of(geometry: &crate::Geometry) -> Self {
        let seats = geometry.clients_max() as usize;
        Self {
            seats,
            zones: geometry.pools() as usize * geometry.zones() as usize,
            // Full groups of class High have half of the default size; besides, one of each class is not full.
            groups: 2 * (seats / geometry.group_size() as usize) + 4,
            send_slots: geometry.send_slots() as usize,
        }
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.seats * Self::BYTES_PER_CLIENT
            + self.zones * Self::BYTES_PER_ZONE
            + self.groups * Self::BYTES_PER_GROUP
            + self.send_slots * size_of::<SendSlot>()
    }
}
