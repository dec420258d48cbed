//! Whose turn it is: demand, warmup, slices and the context switch.

use super::quarantine::LOOKS;
use super::records::{ConnState, NONE};
use super::{Action, NO_TENANCY, ServerEngine, Tenancy};
use crate::geometry::Mapping;
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::post::{ReadWr, WrId, WrKind};
use crate::store::Store;
use crate::wire::{Entry, LINE, Violation};

/// Lines of the demand map that are looked at in one round while nobody is served.
const SCAN_IDLE: u64 = 16;
/// Time for each line while somebody is served, so that seats without demand cost the served ones
/// little: a thousand seats are seen within a tenth of the default slice.
const SCAN_INTERVAL_NS: u64 = 500;

/// The parts of a round before the visits, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Scan,
    Quarantine,
    Join,
    Warm,
    Turn,
}

impl<S: Store> ServerEngine<S> {
    /// Everything but serving requests. `None` when it is done for this round.
    #[inline(never)]
    pub(super) fn house<M: Memory>(&mut self, exposed: &M, private: &M) -> Option<Action> {
        if self.closing.head != NONE {
            return Some(self.take_closing());
        }
        if self.geometry.mapping() == Mapping::Static {
            self.unsettled = false;
            self.house_at_ns = self.now_ns.saturating_add(SCAN_INTERVAL_NS);
            return None;
        }
        loop {
            let (action, next) = match self.step {
                Step::Scan => {
                    self.looks_left = LOOKS.min(self.quarantined);
                    self.scan(exposed);
                    (None, Step::Quarantine)
                }
                Step::Quarantine => (self.watch_quarantine(exposed, private), Step::Join),
                Step::Join => (self.warm(self.processing), Step::Warm),
                Step::Warm => {
                    let pool = 1 - self.processing;
                    let mut action = self.warm(pool);
                    if action.is_none() && self.choose() {
                        action = self.warm(pool);
                    }
                    (action, Step::Turn)
                }
                Step::Turn => {
                    self.turn();
                    self.unsettled = false;
                    self.step = Step::Scan;
                    self.house_at_ns = self.next_house_ns();
                    return None;
                }
            };
            if action.is_some() {
                return action;
            }
            self.step = next;
        }
    }

    /// Until when rounds may go by in which nothing but requests is looked at: 0 if the next one may not. So a served
    /// call does not pay for what a round finds only now and then.
    ///
    /// What else happens than that time passes sets `house_at_ns` to 0: [`ServerEngine::stir`].
    fn next_house_ns(&self) -> u64 {
        let current = &self.tenancies[self.processing as usize];
        let next = &self.tenancies[(1 - self.processing) as usize];
        let waits = |it: &Tenancy| {
            it.group != NONE && self.memory.groups[it.group as usize].wait_head != NONE
        };
        let led = self.config.led;
        // A next group that is still being fetched may be given up, and one without anybody is; unless a scheduler
        // decides, by orders.
        let chosen = match next.group {
            _ if led => !self.led.is_pending(),
            NONE => self.ready.head == NONE,
            _ => next.active > 0,
        };
        let calm = current.active > 0
            && chosen
            && !self.draining
            && self.together.is_none()
            && self.closing.head == NONE
            && self.quarantined == 0
            && self.fetch_seat == NONE
            && !waits(current)
            && !waits(next);
        if !calm {
            return 0;
        }
        let scan_ns = self.scanned_ns.saturating_add(SCAN_INTERVAL_NS);
        if led {
            return scan_ns;
        }
        // Of the time that passes no more is charged than that.
        let left_ns = |limit_ns: u64| limit_ns.saturating_sub(self.idle_ns);
        let idle_ns = match next.active {
            0 => self.config.rest_after_ns.map_or(u64::MAX, left_ns),
            _ => left_ns(self.config.idle_switch_ns),
        };
        let turn_ns = idle_ns.min(self.slice_left_ns);
        scan_ns.min(self.now_ns.saturating_add(turn_ns))
    }

    /// Something has happened that the next round has to look at.
    #[inline]
    pub(super) fn stir(&mut self) {
        self.house_at_ns = 0;
    }

    fn take_closing(&mut self) -> Action {
        let seat = self.closing.head;
        let conn = &self.memory.conns[seat as usize];
        let (next, why) = (conn.next, conn.violation);
        self.closing.head = next;
        if next == NONE {
            self.closing.tail = NONE;
        }
        Action::Close { seat, why }
    }

    /// Looks at a part of the demand map.
    fn scan<M: Memory>(&mut self, exposed: &M) {
        let busy = self.tenancies[self.processing as usize].active > 0;
        let due = self.now_ns.saturating_sub(self.scanned_ns) / SCAN_INTERVAL_NS;
        let lines = if busy { due } else { SCAN_IDLE };
        if lines == 0 {
            return;
        }
        self.scanned_ns = self.now_ns;
        let seats = self.geometry.clients_max();
        let end = lines
            .saturating_mul(LINE as u64)
            .saturating_add(self.scan_at.into())
            .min(seats.into()) as u32;
        let mut seat = self.scan_at;
        while seat < end {
            let seen = &self.memory.demand_seen[seat as usize..end as usize];
            let Some(i) = exposed.first_changed(self.geometry.demand_byte(seat), seen) else {
                break;
            };
            self.accept_entry(seat + i as u32, exposed);
            seat += i as u32 + 1;
        }
        self.scan_at = if end == seats { 0 } else { end };
    }

    /// Time for one pass over the demand map.
    pub(super) fn scan_bound_ns(&self) -> u64 {
        u64::from(self.geometry.clients_max()).div_ceil(LINE as u64) * SCAN_INTERVAL_NS
    }

    /// A client's byte of the demand map has changed: takes its endpoint entry, if there is a new one.
    fn accept_entry<M: Memory>(&mut self, seat: u32, exposed: &M) {
        if mutant::is(Bug::DemandSeenEarly) {
            let byte = exposed.load_byte_acquire(self.geometry.demand_byte(seat));
            self.memory.demand_seen[seat as usize] = byte;
        }
        let conn = &self.memory.conns[seat as usize];
        if conn.waiting || !matches!(conn.state, ConnState::Idle | ConnState::Leaving) {
            return;
        }
        // Ordering: pairs with the release of the byte, which the client writes after its entry.
        let _ = exposed.load_byte_acquire(self.geometry.demand_byte(seat));
        let at = self.geometry.endpoint(seat);
        let number = conn.entry + 1;
        let Some(entry) = Entry::observe(exposed, at, conn.owner, number, conn.placement) else {
            return;
        };
        if let Err(why) = self.check_entry(seat, &entry) {
            self.evict(seat, why);
            return;
        }
        let conn = &mut self.memory.conns[seat as usize];
        if !mutant::is(Bug::EntryTwice) {
            conn.entry = number;
        }
        conn.staged_at = entry.staged_at as usize;
        conn.staged_stride = entry.stride;
        // At most a window, which `WINDOW_MAX` keeps below 2^16.
        conn.staged_count = entry.count as u16;
        self.memory.members[seat as usize].accepted_ns = self.now_ns;
        self.memory.demand_seen[seat as usize] = number as u8;
        if self.memory.conns[seat as usize].state == ConnState::Leaving {
            // The entry is the quiet message too.
            self.counters.zones_quiet += 1;
            self.free_zone(self.memory.conns[seat as usize].zone);
        }
        self.note_demand(seat);
        self.wait(seat);
    }

    /// Every number of an entry is a peer's (rule R12).
    fn check_entry(&self, seat: u32, entry: &Entry) -> Result<(), Violation> {
        let conn = &self.memory.conns[seat as usize];
        let owed = conn.zone != NONE && self.memory.zones[conn.zone as usize].event_owed;
        let quiet = entry.quiet_epoch == conn.told_epoch || mutant::is(Bug::EntryQuietIgnored);
        if !quiet || owed {
            return Err(Violation::Mapping);
        }
        let counted =
            (1..=self.geometry.window()).contains(&entry.count) || mutant::is(Bug::CountIgnored);
        let next = entry.first_call == conn.next_call || mutant::is(Bug::FirstCallIgnored);
        if !next || !counted {
            return Err(Violation::Calls);
        }
        let stride = entry.stride as usize;
        let odd = stride == 0 || stride % LINE != 0 || stride > self.geometry.request_block_bytes();
        if odd && !mutant::is(Bug::StrideIgnored) {
            return Err(Violation::Staging);
        }
        let start = conn.staging_at as u64;
        let end = start + self.geometry.staging_bytes() as u64;
        if mutant::is(Bug::StagedAtIgnored) {
            return Ok(());
        }
        let bytes = stride as u64 * u64::from(entry.count);
        let staged_end = entry
            .staged_at
            .checked_add(bytes)
            .ok_or(Violation::Staging)?;
        if entry.staged_at < start || staged_end > end || entry.staged_at % LINE as u64 != 0 {
            return Err(Violation::Staging);
        }
        Ok(())
    }

    /// Gives zones of `pool` to connections of the group that has it, and fetches their staged calls.
    fn warm(&mut self, pool: u32) -> Option<Action> {
        if self.fetch_seat != NONE {
            return Some(self.fetch(self.fetch_seat));
        }
        let group = self.tenancies[pool as usize].group;
        if group == NONE || (self.draining && pool == self.processing) {
            return None;
        }
        if self.free_zones[pool as usize] == 0 {
            if mutant::is(Bug::WaiterForgotten) {
                self.take_waiting(group);
            }
            if pool == self.processing {
                // Those who cannot join the present slice wait for the group's next one. (A switch comes
                // after this, in any round, so it finds the group queued.)
                self.queue_group(group);
            }
            if self.lacks_zones(pool) {
                self.spare_no_more();
            }
            return None;
        }
        let seat = self.take_waiting(group)?;
        let conn = &self.memory.conns[seat as usize];
        if !conn.has_room(u32::from(conn.staged_count).div_ceil(self.limits.sge_max)) {
            self.counters.stalls += 1;
            self.wait(seat);
            return None;
        }
        self.take_zone(pool, seat)?;
        self.tenancies[pool as usize].fetching += 1;
        let conn = &mut self.memory.conns[seat as usize];
        conn.state = ConnState::Fetching;
        conn.told_zone = false;
        conn.staged_asked = 0;
        Some(self.fetch(seat))
    }

    /// The next READ of a connection's staged batch: as many messages as a scatter list holds.
    fn fetch(&mut self, seat: u32) -> Action {
        let (pool, zone) = self.place(self.memory.conns[seat as usize].zone);
        // Who joins the present slice costs no switch.
        if pool != self.processing {
            self.slice.note_switching();
        }
        let conn = &mut self.memory.conns[seat as usize];
        let count = u32::from(conn.staged_count - conn.staged_asked).min(self.limits.sge_max);
        let (sequence, _) = conn.sq.post(true);
        let read = ReadWr {
            connection: seat,
            remote: match mutant::is(Bug::SecondReadMisplaced) {
                true => conn.staged_at,
                false => conn.staged_at + conn.staged_asked as usize * conn.staged_stride as usize,
            },
            stride: conn.staged_stride as usize,
            count,
            first_call: conn.next_call + u64::from(conn.staged_asked),
            pool,
            zone,
            wr_id: WrId::new(WrKind::Read, conn.generation.into(), seat, sequence),
        };
        conn.staged_asked += count as u16;
        conn.reads_pending += 1;
        let more = conn.staged_asked < conn.staged_count;
        self.fetch_seat = if more { seat } else { NONE };
        self.counters.warmup_reads += 1;
        Action::Read(read)
    }

    /// A READ is done. When it was the last one of its batch, the connection is served, if its
    /// tenancy still lasts.
    pub(super) fn fetched(&mut self, seat: u32) {
        let conn = &self.memory.conns[seat as usize];
        let (zone, whole) = (conn.zone, conn.staged_asked == conn.staged_count);
        let done = (conn.reads_pending == 0 && whole) || mutant::is(Bug::FirstReadSuffices);
        if conn.state != ConnState::Fetching || !done {
            return;
        }
        let pool = self.place(zone).0 as usize;
        if self.in_tenancy(zone) {
            self.tenancies[pool].fetching -= 1;
        } else if mutant::is(Bug::LateFetchForgotten) {
            return;
        } else if mutant::is(Bug::LateFetchAnew) {
            self.free_zone(zone);
            self.memory.conns[seat as usize].state = ConnState::Idle;
            self.wait(seat);
            return;
        } else {
            self.admit_late(seat, zone);
        }
        let at = pool * self.geometry.zones() as usize + self.tenancies[pool].active;
        let first = self.tenancies[pool].active == 0;
        self.tenancies[pool].active += 1;
        self.memory.active[at] = self.awaiting(seat);
        if self.draining && pool == self.processing as usize && !first {
            // The last one may be in the middle of its drain.
            self.memory.active.swap(at - 1, at);
        }
        self.memory.conns[seat as usize].state = ConnState::Active;
        self.unsettled = true;
        self.stir();
        self.note_served(seat);
    }

    /// The fetch took longer than its tenancy. The connection is served in the present one, as a guest:
    /// to fetch once more could take as long again, and so for ever. The client was not told of the
    /// zone yet, so it may have a new epoch.
    fn admit_late(&mut self, seat: u32, zone: u32) {
        let pool = self.place(zone).0 as usize;
        if self.tenancies[pool].group == NONE {
            let group = self.memory.conns[seat as usize].group;
            // This is the pool in warmup: the one that is processed keeps its group (see `turn`). So epochs
            // grow in the order in which tenancies are served.
            debug_assert_ne!(pool, self.processing as usize);
            self.begin_tenancy(pool, group);
        }
        self.memory.zones[zone as usize].epoch = self.tenancies[pool].epoch;
        self.counters.guests += 1;
    }

    pub(super) fn begin_tenancy(&mut self, pool: usize, group: u32) {
        self.last_epoch += u64::from(!mutant::is(Bug::EpochReused) || self.last_epoch == 0);
        self.tenancies[pool] = Tenancy {
            group,
            epoch: self.last_epoch,
            active: 0,
            fetching: 0,
            chosen_ns: self.now_ns,
        };
    }

    /// True if the zone was given out in its pool's present tenancy.
    pub(super) fn in_tenancy(&self, zone: u32) -> bool {
        let tenancy = &self.tenancies[self.place(zone).0 as usize];
        tenancy.group != NONE && self.memory.zones[zone as usize].epoch == tenancy.epoch
    }

    /// Gives the pool in warmup to the group whose turn is next, if it has none or one that is stuck.
    fn choose(&mut self) -> bool {
        if self.config.led {
            return self.choose_ordered();
        }
        let pool = (1 - self.processing) as usize;
        let next = &self.tenancies[pool];
        if next.group != NONE {
            // Nobody of it could be mapped, or its fetches hang: others must not wait for that. Where no
            // zone is free nobody else could be mapped either, and it must not lose its turn.
            let hangs = self.now_ns.saturating_sub(next.chosen_ns) >= self.slice.ns;
            let hangs = hangs && !mutant::is(Bug::HungFetchAwaited);
            let unmapped = next.fetching == 0 && self.free_zones[pool] > 0;
            let stuck = next.active == 0 && (unmapped || hangs);
            if !stuck || self.fetch_seat != NONE || self.ready.head == NONE {
                return false;
            }
            let group = next.group;
            self.tenancies[pool] = NO_TENANCY;
            self.queue_group(group);
        }
        let group = self.take_next();
        if let Some(group) = group {
            self.begin_tenancy(pool, group);
        }
        group.is_some()
    }

    /// Ends the slice when it is over, or when its group has nothing to do, and another one is ready.
    fn turn(&mut self) {
        if self.config.led {
            return self.turn_ordered();
        }
        let current = self.tenancies[self.processing as usize];
        let next = self.tenancies[(1 - self.processing) as usize];
        let over = self.slice_is_over(&current, &next) && !mutant::is(Bug::SliceEndless);
        if self.draining || (current.active == 0 && next.active > 0) {
            // The next group may have lost its demand during the drain. Then another is waited for.
            if current.active == 0 && next.group != NONE {
                self.switch();
            }
        } else if next.active > 0 {
            if over || self.idle_ns >= self.idle_limit_ns(current.group) {
                self.begin_drain();
            }
        } else if over && current.group != NONE && mutant::is(Bug::IdleGroupsServed) {
            self.begin_drain();
        } else if current.active > 0 && self.can_rest() && self.is_silent() {
            self.counters.rests += 1;
            self.begin_drain();
            self.draining_to_rest = true;
        } else if over && current.group != NONE && !self.awaits(&next) {
            self.begin_slice();
        }
    }

    /// The group that is processed is told that its slice is over.
    pub(super) fn begin_drain(&mut self) {
        self.draining = true;
        self.draining_to_rest = false;
        self.drained_ns = 0;
        self.drain_budget = self.drain_calls();
    }

    fn begin_slice(&mut self) {
        self.note_slice();
        self.counters.slices += 1;
        let class = self.class_of(self.tenancies[self.processing as usize].group);
        self.slice_left_ns = class.slice_ns(self.slice.ns);
        self.begin_common_slice();
    }

    /// The pools swap their roles. Nobody is served in the one that was processed any more.
    pub(super) fn switch(&mut self) {
        self.note_switch();
        let old = self.tenancies[self.processing as usize].group;
        self.tenancies[self.processing as usize] = NO_TENANCY;
        self.processing = 1 - self.processing;
        self.draining = false;
        self.cursor = 0;
        self.idle_ns = 0;
        self.slice.switched();
        self.begin_slice();
        if old != NONE {
            self.counters.switches += 1;
            self.merge_step(old);
        }
    }
}
