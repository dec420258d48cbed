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

mod admission;
mod api;
mod beats;
mod census;
mod counters;
mod defer;
mod groups;
mod led;
mod life;
mod observe;
mod priority;
mod quarantine;
mod records;
mod rest;
mod schedule;
mod serve;
mod slice;

pub use admission::Limit;
pub use api::{Action, Call, OpenConn, Quick, ServerConfig};
pub use census::{Census, PoolView, ZoneView};
pub use counters::Counters;
pub use defer::{Deferred, Resumed};
pub use observe::{ConnView, GroupView, Histograms, QuarantineView};
pub use priority::{AVERAGED, Class, ENTER_OCTAVES, Grouping, LEAVE_OCTAVES, Priority};
pub use quarantine::REVOKE_BACKOFF_MAX;
pub use records::{
    Active, Conn, ConnState, Group, Member, SendSlot, ServerMemory, ServerSizes, Zone, ZoneState,
};
pub use slice::AdaptiveSlice;

use crate::geometry::Geometry;
use crate::memory::Memory;
use crate::post::{Completion, Limits, WcStatus, WrKind};
use crate::store::Store;
use crate::wire;
use observe::Observed;
use priority::SCORES;
use records::NONE;
use schedule::Step;
use slice::Slice;

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
    slice: Slice,
    slice_left_ns: u64,
    /// Time in rounds without a request, since one was last taken. However long a round with requests takes, its
    /// group is not idle.
    idle_ns: u64,
    now_ns: u64,
    /// The processing pool's group is being told that its slice is over.
    draining: bool,
    /// Nobody else wants its place: it is told so that the server may rest.
    draining_to_rest: bool,
    /// Some tenants are spared a fence until somebody lacks a zone.
    spares: bool,
    /// Calls that the connection now being drained may still have taken.
    drain_budget: u32,
    /// How long the drain has lasted.
    drained_ns: u64,
    /// Calls that may be handed out in one round.
    round_calls: u32,
    /// How many calls had been handed out when time was last told.
    calls_told: u64,
    /// Calls handed out and not answered.
    in_flight: u32,
    /// Since the last turn a call was taken, or could not be, or somebody joined: it is too early to rest.
    unsettled: bool,
    looks_left: usize,
    cursor: usize,
    visits_left: usize,
    burst_left: u32,
    calls_left: u32,
    step: Step,
    /// Until then there is nothing to do but to serve, unless something happens: see `next_house_ns`.
    house_at_ns: u64,
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
    /// Slices keep step with other servers'.
    together: Option<beats::Together>,
    /// A tick has 2^this nanoseconds: at most the shortest slice, and more than half of it.
    tick_shift: u32,
    led: led::Led,
    observed: Observed,
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
        let slice = Slice::new(config.time_slice_ns, config.adaptive_slice);
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
            slice,
            slice_left_ns: 0,
            idle_ns: 0,
            now_ns: 0,
            draining: false,
            draining_to_rest: false,
            spares: false,
            drain_budget: 0,
            drained_ns: 0,
            round_calls: serve::ROUND_CALLS,
            calls_told: 0,
            in_flight: 0,
            unsettled: false,
            looks_left: 0,
            cursor: 0,
            visits_left: 0,
            burst_left: config.burst,
            calls_left: 0,
            step: Step::Scan,
            house_at_ns: 0,
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
            together: None,
            tick_shift: slice.min_ns().max(1).ilog2(),
            led: led::Led::NEW,
            observed: Observed::default(),
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
    /// most a window of calls. With a common clock, a rotation's beats of groups may go before each of these groups, and
    /// slices may last for more than two beats. Before that its demand is found, in one pass over the demand map.
    pub fn wait_bound_ns(&self, groups: u32, handler_ns: u64) -> u64 {
        let zones = u64::from(self.geometry.zones());
        let round = zones.saturating_mul(self.config.burst.into());
        let calls = zones * u64::from(self.geometry.window())
            + round.min(serve::ROUND_CALLS.into())
            // The round in which the demand is found.
            + u64::from(serve::ROUND_CALLS);
        let slice_ns = match self.config.grouping {
            Grouping::Priority => Class::High.slice_ns(self.slice.max_ns()),
            Grouping::Arrival => self.slice.max_ns(),
        };
        let (turns, slice_ns) = self.common_bound(slice_ns);
        let turn = slice_ns.saturating_add(calls.saturating_mul(handler_ns));
        turn.saturating_mul(groups.into())
            .saturating_mul(turns)
            .saturating_add(self.scan_bound_ns())
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
        let part_ns = self.slice.ns / SLICE_PARTS + 1;
        let calls = (self.counters.calls - self.calls_told) as u32;
        self.calls_told = self.counters.calls;
        let charged_ns = match calls {
            0 => {
                let charged_ns = passed_ns.min(part_ns);
                self.idle_ns = self.idle_ns.saturating_add(charged_ns);
                charged_ns
            }
            calls => {
                self.adapt_round(calls, passed_ns, part_ns);
                passed_ns
            }
        };
        self.slice.pass(charged_ns, calls);
        self.slice_left_ns = self.slice_left_ns.saturating_sub(charged_ns);
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
        if self.drained_ns < self.slice.ns {
            self.geometry.window()
        } else {
            1
        }
    }

    /// The next thing to do; `now_ns` is the time on the caller's monotonic clock.
    ///
    /// Who has the four parts apart has calls quicker: [`begin_round`](Self::begin_round), [`next_house`](Self::next_house)
    /// where that says so, [`next_quick`](Self::next_quick), and [`next_other`](Self::next_other) where that says so.
    #[inline]
    pub fn next_action<M: Memory>(&mut self, now_ns: u64, exposed: &M, private: &M) -> Action {
        if self.begin_round(now_ns) {
            if let Some(action) = self.next_house(exposed, private) {
                return action;
            }
        }
        match self.next_quick(exposed) {
            Quick::Call(call) => Action::Call(call),
            Quick::Idle => Action::Idle,
            Quick::Other => self.next_other(exposed, private),
        }
    }

    /// Time goes on. True if a round begins, and first comes what is not requests.
    #[inline(always)]
    pub fn begin_round(&mut self, now_ns: u64) -> bool {
        self.pass(now_ns);
        if self.visits_left > 0 {
            return false;
        }
        if self.now_ns >= self.house_at_ns {
            return true;
        }
        self.unsettled = false;
        self.begin_visits();
        false
    }

    /// What comes before requests in a round, if anything is left of that.
    #[inline]
    pub fn next_house<M: Memory>(&mut self, exposed: &M, private: &M) -> Option<Action> {
        let action = self.house(exposed, private);
        if action.is_none() {
            self.begin_visits();
        }
        action
    }

    /// What [`next_quick`](Self::next_quick) leaves.
    #[inline(never)]
    pub fn next_other<M: Memory>(&mut self, exposed: &M, private: &M) -> Action {
        self.visit(exposed, private).unwrap_or(Action::Idle)
    }
}
