//! The server engine: connection grouping, virtualized mapping, warmup, and the context switch.
//!
//! ```text
//!              demand seen            READ posted           READs done
//!   Idle ───────────────▶ (waiting) ─────────────▶ Fetching ─────────▶ Active
//!    ▲                                                                   │ switch event sent
//!    └────────────── quiet message, revocation or fence ◀──── Leaving ◀──┘
//! ```
//!
//! A caller drives it from one thread: [`ServerEngine::next_action`] until it says
//! [`Action::Idle`], posting what it asks for and running the handler for each [`Action::Call`];
//! completions and news about connections go in between.

mod api;
mod census;
mod groups;
mod priority;
mod quarantine;
mod records;
mod schedule;
mod serve;

pub use api::{Action, Call, Counters, OpenConn, ServerConfig};
pub use census::{Census, PoolView, ZoneView};
pub use priority::{AVERAGED, Class, ENTER_OCTAVES, Grouping, LEAVE_OCTAVES, Priority};
pub use quarantine::REVOKE_BACKOFF_MAX;
pub use records::{
    Active, Conn, ConnState, Group, Member, SendSlot, ServerMemory, ServerSizes, Zone, ZoneState,
};

use crate::geometry::{Geometry, Mapping};
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::post::{Completion, Limits, SendQueue, WcStatus, WrKind};
use crate::store::Store;
use crate::wire::{self, Violation};
use priority::SCORES;
use records::NONE;
use schedule::Step;

/// Of a slice, one such part is the most that is charged for the time between two actions.
const SLICE_PARTS: u64 = 4;

/// One pool's tenancy.
#[derive(Clone, Copy, Debug)]
struct Tenancy {
    /// NONE: nobody's.
    group: u32,
    epoch: u64,
    active: usize,
    /// Connections whose staged calls are being fetched.
    fetching: u32,
    chosen_ns: u64,
}

const NO_TENANCY: Tenancy = Tenancy {
    group: NONE,
    epoch: 0,
    active: 0,
    fetching: 0,
    chosen_ns: 0,
};

/// A list of records that are linked through their `next`.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

const EMPTY: Queue = Queue {
    head: NONE,
    tail: NONE,
};

/// See the [module](self).
pub struct ServerEngine<S: Store> {
    geometry: Geometry,
    config: ServerConfig,
    limits: Limits,
    memory: ServerMemory<S>,
    counters: Counters,
    /// By pool.
    tenancies: [Tenancy; 2],
    free_zones: [usize; 2],
    quarantined: usize,
    quarantine_cursor: usize,
    /// The pool that is being processed; the other one is in warmup.
    processing: u32,
    last_epoch: u64,
    slice_left_ns: u64,
    /// Time since a request was last taken.
    idle_ns: u64,
    now_ns: u64,
    /// The processing pool's group is being told that its slice is over.
    draining: bool,
    /// Calls that the connection now being drained may still have taken.
    drain_budget: u32,
    /// How long the drain has lasted.
    drained_ns: u64,
    /// Calls that may be handed out in one round.
    round_calls: u32,
    /// Calls handed out since time was last told.
    calls_since: u32,
    looks_left: usize,
    cursor: usize,
    visits_left: usize,
    burst_left: u32,
    calls_left: u32,
    step: Step,
    scan_at: u32,
    scanned_ns: u64,
    /// The connection whose batch takes more READs, or NONE.
    fetch_seat: u32,
    /// Groups with demand, in turn.
    ready: Queue,
    /// Connections to be fenced.
    closing: Queue,
    free_slots: u32,
    free_slot: u32,
    /// By class: the group in which there was room last.
    fill_group: [u32; 3],
    /// Connections by score, how many that are, and the median.
    scores: [u32; SCORES],
    rated: u32,
    median: Option<u8>,
    /// A tick has 2^this nanoseconds: at most a slice, and more than half of one.
    tick_shift: u32,
}

impl<S: Store> ServerEngine<S> {
    /// An engine without connections. The arrays are reset.
    ///
    /// `None` if an array has not the length of [`ServerSizes::of`], or if `limits` do not let a
    /// connection fetch a full window and answer at the same time: see [`Limits::suffice`].
    pub fn new(
        geometry: Geometry,
        mut config: ServerConfig,
        limits: Limits,
        mut memory: ServerMemory<S>,
    ) -> Option<Self> {
        config.burst = config.burst.max(1);
        let sizes = ServerSizes::of(&geometry);
        let lengths_fit = memory.conns.len() == sizes.seats
            && memory.members.len() == sizes.seats
            && memory.demand_seen.len() == sizes.seats
            && memory.zones.len() == sizes.zones
            && memory.free_zones.len() == sizes.zones
            && memory.active.len() == sizes.zones
            && memory.quarantine.len() == sizes.zones
            && memory.groups.len() == sizes.groups
            && memory.send_slots.len() == sizes.send_slots;
        if !lengths_fit || !limits.suffice(&geometry) {
            return None;
        }
        memory.conns.fill(Conn::default());
        memory.members.fill(Member::default());
        memory.demand_seen.fill(0);
        memory.zones.fill(Zone::default());
        memory.groups.fill(Group::default());
        let zones = geometry.zones();
        for (i, zone) in memory.free_zones.iter_mut().enumerate() {
            // The lowest zone of a pool is given out first.
            let (pool, place) = (i as u32 / zones, i as u32 % zones);
            *zone = pool * zones + (zones - 1 - place);
        }
        let slots = geometry.send_slots();
        for (i, slot) in memory.send_slots.iter_mut().enumerate() {
            let next = i as u32 + 1;
            *slot = SendSlot {
                next: if next == slots { NONE } else { next },
                sequence: 0,
            };
        }
        Some(Self {
            geometry,
            config,
            limits,
            memory,
            counters: Counters::default(),
            tenancies: [NO_TENANCY; 2],
            free_zones: [zones as usize; 2],
            quarantined: 0,
            quarantine_cursor: 0,
            processing: 0,
            last_epoch: 0,
            slice_left_ns: 0,
            idle_ns: 0,
            now_ns: 0,
            draining: false,
            drain_budget: 0,
            drained_ns: 0,
            round_calls: serve::ROUND_CALLS,
            calls_since: 0,
            looks_left: 0,
            cursor: 0,
            visits_left: 0,
            burst_left: config.burst,
            calls_left: 0,
            step: Step::Scan,
            scan_at: 0,
            scanned_ns: 0,
            fetch_seat: NONE,
            ready: EMPTY,
            closing: EMPTY,
            free_slots: slots,
            free_slot: 0,
            fill_group: [0; 3],
            scores: [0; SCORES],
            rated: 0,
            median: None,
            tick_shift: config.time_slice_ns.max(1).ilog2(),
        })
    }

    /// The geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Times and bursts.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        Counters {
            quarantined_now: self.quarantined as u64,
            ..self.counters
        }
    }

    /// The state of a seat, and the zone that it holds, if any, as an index over both pools.
    pub fn seat(&self, seat: u32) -> Option<(ConnState, Option<u32>)> {
        let conn = self.memory.conns.get(seat as usize)?;
        Some((conn.state, (conn.zone != NONE).then_some(conn.zone)))
    }

    /// Longest time for which a connection with demand waits before its group is served, if `groups`
    /// groups have demand and a handler takes at most `handler_ns` (rule R8): every group before it
    /// has a slice; the round in which that ends; and one drain, in which each of its zones gives at
    /// most a window of calls. Before that its demand is found, in one pass over the demand map.
    pub fn wait_bound_ns(&self, groups: u32, handler_ns: u64) -> u64 {
        let zones = u64::from(self.geometry.zones());
        let round = zones.saturating_mul(self.config.burst.into());
        let calls = zones * u64::from(self.geometry.window())
            + round.min(serve::ROUND_CALLS.into())
            // The round in which the demand is found.
            + u64::from(serve::ROUND_CALLS);
        let slice_ns = match self.config.grouping {
            Grouping::Priority => Class::High.slice_ns(self.config.time_slice_ns),
            Grouping::Arrival => self.config.time_slice_ns,
        };
        let turn = slice_ns.saturating_add(calls.saturating_mul(handler_ns));
        turn.saturating_mul(groups.into())
            .saturating_add(self.scan_bound_ns())
    }

    /// A client has connected.
    ///
    /// False, and nothing happens, if the seat is taken or does not exist.
    pub fn open(&mut self, open: OpenConn) -> bool {
        let depth = self.limits.sq_depth;
        let Some(conn) = self.memory.conns.get_mut(open.seat as usize) else {
            return false;
        };
        if conn.state != ConnState::Free {
            return false;
        }
        *conn = Conn {
            owner: open.owner,
            ring_at: open.ring_at,
            staging_at: open.staging_at,
            placement: open.placement,
            sq: SendQueue::new(depth),
            state: ConnState::Idle,
            generation: conn.generation.wrapping_add(1),
            ..Conn::default()
        };
        self.memory.demand_seen[open.seat as usize] = 0;
        self.counters.opened += 1;
        self.counters.connections += 1;
        match self.geometry.mapping() {
            Mapping::Virtual => {
                self.memory.members[open.seat as usize] = Member::new(self.tick());
                self.join_group(open.seat);
            }
            Mapping::Static => self.map_for_life(open.seat),
        }
        true
    }

    /// Static mapping: the zone with the seat's number belongs to the connection while it lives.
    fn map_for_life(&mut self, seat: u32) {
        let conn = &mut self.memory.conns[seat as usize];
        conn.zone = seat;
        conn.state = ConnState::Active;
        conn.told_zone = true;
        let tenancy = &mut self.tenancies[0];
        tenancy.group = 0;
        tenancy.epoch = 1;
        let at = tenancy.active;
        tenancy.active += 1;
        self.memory.zones[seat as usize] = Zone {
            conn: seat,
            state: ZoneState::Mapped,
            epoch: 1,
            ..Zone::default()
        };
        self.memory.active[at] = self.awaiting(seat);
    }

    /// What is awaited from a connection that has a zone.
    #[inline]
    fn awaiting(&self, seat: u32) -> Active {
        let conn = &self.memory.conns[seat as usize];
        let (pool, zone) = self.place(conn.zone);
        let end = self.geometry.block_end(pool, zone, conn.next_call);
        Active {
            seat,
            awaited_at: end - 8,
            awaited: wire::last_word(conn.owner, conn.next_call),
        }
    }

    /// The pool of a zone, and its number there.
    #[inline]
    fn place(&self, zone: u32) -> (u32, u32) {
        let zones = self.geometry.zones();
        if zone < zones {
            (0, zone)
        } else {
            (1, zone - zones)
        }
    }

    /// The connection is down and fenced, and all its completions have been given. Its seat is free
    /// when this returns, and its zone may be given out again.
    pub fn gone(&mut self, seat: u32) {
        let Some(conn) = self.memory.conns.get(seat as usize) else {
            return;
        };
        if conn.state == ConnState::Free {
            return;
        }
        let (zone, sq_sequence) = (conn.zone, conn.sq.last());
        self.detach(seat);
        if !mutant::is(Bug::SendSlotLost) {
            self.retire(seat, sq_sequence);
        }
        if zone != NONE {
            self.counters.zones_fenced += 1;
            match self.geometry.mapping() {
                Mapping::Virtual => self.free_zone(zone),
                Mapping::Static => self.memory.zones[zone as usize].state = ZoneState::Free,
            }
        }
        if self.geometry.mapping() == Mapping::Virtual {
            self.unrate(seat);
            self.leave_group(seat);
        }
        let conn = &mut self.memory.conns[seat as usize];
        *conn = Conn {
            generation: conn.generation,
            ..Conn::default()
        };
        self.counters.gone += 1;
        self.counters.connections -= 1;
    }

    /// Takes a connection out of every list that would have it served.
    fn detach(&mut self, seat: u32) {
        let conn = &self.memory.conns[seat as usize];
        let (state, zone, waiting) = (conn.state, conn.zone, conn.waiting);
        if waiting {
            self.unwait(seat);
        }
        if state == ConnState::Active {
            self.deactivate(seat, self.place(zone).0);
        }
        if state == ConnState::Fetching {
            if self.in_tenancy(zone) {
                self.tenancies[self.place(zone).0 as usize].fetching -= 1;
            }
            if self.fetch_seat == seat {
                self.fetch_seat = NONE;
            }
        }
        if state == ConnState::Closing {
            self.unlink_closing(seat);
        }
    }

    /// Removes a connection from the list of those that are served in `pool`.
    fn deactivate(&mut self, seat: u32, pool: u32) {
        let first = pool as usize * self.geometry.zones() as usize;
        let tenancy = &mut self.tenancies[pool as usize];
        let list = &mut self.memory.active[first..first + tenancy.active];
        if let Some(at) = list.iter().position(|other| other.seat == seat) {
            // The last one may be in the middle of its drain, and the cursor at any: both keep their place.
            list[at..].rotate_left(1);
            tenancy.active -= 1;
            let was_last = at == tenancy.active;
            if pool == self.processing {
                self.cursor -= usize::from(at < self.cursor);
                if was_last {
                    self.drain_budget = self.drain_calls();
                }
            }
        }
    }

    /// Ends a connection: it is served no more, and the caller is asked to fence it.
    fn close(&mut self, seat: u32) {
        self.detach(seat);
        let conn = &mut self.memory.conns[seat as usize];
        conn.state = ConnState::Closing;
        conn.next = NONE;
        let zone = conn.zone;
        if mutant::is(Bug::FenceNotAwaited) && zone != NONE && self.geometry.pools() > 1 {
            self.free_zone(zone);
        }
        let tail = self.closing.tail;
        self.closing.tail = seat;
        match tail {
            NONE => self.closing.head = seat,
            tail => self.memory.conns[tail as usize].next = seat,
        }
    }

    fn unlink_closing(&mut self, seat: u32) {
        let (mut prev, mut at) = (NONE, self.closing.head);
        while at != NONE {
            let next = self.memory.conns[at as usize].next;
            if at == seat {
                match prev {
                    NONE => self.closing.head = next,
                    prev => self.memory.conns[prev as usize].next = next,
                }
                if self.closing.tail == seat {
                    self.closing.tail = prev;
                }
                return;
            }
            (prev, at) = (at, next);
        }
    }

    /// The peer broke the protocol: it is evicted, and it alone (rule R12).
    fn evict(&mut self, seat: u32, why: Violation) {
        self.counters.violations += 1;
        self.close(seat);
        self.memory.conns[seat as usize].violation = Some(why);
    }

    /// Something about the connection failed at this end: a post that the back end refused.
    pub fn failed(&mut self, seat: u32) {
        let Some(conn) = self.memory.conns.get(seat as usize) else {
            return;
        };
        if !matches!(conn.state, ConnState::Free | ConnState::Closing) {
            self.counters.failures += 1;
            self.close(seat);
        }
    }

    /// A work request completed.
    pub fn completed(&mut self, completion: Completion) {
        let wr_id = completion.wr_id;
        let seat = wr_id.seat();
        let Some(conn) = self.memory.conns.get_mut(seat as usize) else {
            return;
        };
        if conn.state == ConnState::Free || !wr_id.is_of(conn.generation.into()) {
            return;
        }
        if wr_id.kind() == WrKind::Read {
            conn.reads_pending = conn.reads_pending.saturating_sub(1);
        }
        self.retire(seat, wr_id.sequence());
        if completion.status != WcStatus::Success {
            self.failed(seat);
        } else if wr_id.kind() == WrKind::Read {
            self.fetched(seat);
        }
    }

    /// Everything that the connection posted up to `sequence` is done: its send slots are free.
    fn retire(&mut self, seat: u32, sequence: u32) {
        let conn = &mut self.memory.conns[seat as usize];
        conn.sq.retire(sequence);
        while conn.slot_head != NONE {
            let at = conn.slot_head;
            let slot = &mut self.memory.send_slots[at as usize];
            if !conn.sq.is_done(slot.sequence) {
                return;
            }
            conn.slot_head = slot.next;
            slot.next = self.free_slot;
            self.free_slot = at;
            self.free_slots += 1;
        }
        conn.slot_tail = NONE;
    }

    /// Time goes on. If no call was handed out since it was last told, the caller's thread may not have
    /// been running: then at most a part of the slice is charged to the group that is served.
    #[inline]
    fn pass(&mut self, now_ns: u64) {
        if now_ns == self.now_ns {
            return;
        }
        let passed_ns = now_ns.saturating_sub(self.now_ns);
        let part_ns = self.config.time_slice_ns / SLICE_PARTS + 1;
        let charged_ns = match self.calls_since {
            0 => passed_ns.min(part_ns),
            calls => {
                self.adapt_round(calls, passed_ns, part_ns);
                passed_ns
            }
        };
        self.calls_since = 0;
        self.slice_left_ns = self.slice_left_ns.saturating_sub(charged_ns);
        self.idle_ns = self.idle_ns.saturating_add(charged_ns);
        if self.draining {
            self.drained_ns = self.drained_ns.saturating_add(charged_ns);
        }
        self.now_ns = now_ns;
    }

    /// A round takes about a part of a slice at most, however long the handlers take.
    #[inline]
    fn adapt_round(&mut self, calls: u32, passed_ns: u64, part_ns: u64) {
        if passed_ns > part_ns {
            self.round_calls = (self.round_calls / 2).max(1);
        } else if calls >= self.round_calls && passed_ns < part_ns / 2 {
            self.round_calls = (self.round_calls * 2).min(serve::ROUND_CALLS);
        }
    }

    /// Calls that a connection may have taken in a drain: a window, but when the drain has lasted a slice,
    /// one.
    fn drain_calls(&self) -> u32 {
        if self.drained_ns < self.config.time_slice_ns {
            self.geometry.window()
        } else {
            1
        }
    }

    /// The next thing to do; `now_ns` is the time on the caller's monotonic clock.
    #[inline]
    pub fn next_action<M: Memory>(&mut self, now_ns: u64, exposed: &M, private: &M) -> Action {
        self.pass(now_ns);
        if self.visits_left == 0 {
            if let Some(action) = self.house(exposed, private) {
                return action;
            }
            self.begin_visits();
        }
        if let Some(action) = self.visit(exposed, private) {
            return action;
        }
        Action::Idle
    }
}
