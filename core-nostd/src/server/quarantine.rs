//! Zones: given out, taken back, and held until nobody writes to them (rule R4).

use super::records::{ConnState, NONE, Zone, ZoneState};
use super::{Action, ServerEngine};
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::store::Store;
use crate::wire::ENTRY_QUIET_AT;

/// Zones in quarantine that are looked at in one round.
pub(super) const LOOKS: usize = 8;
/// A revocation that found a WRITE under way is tried again after twice the time, up to 2^so many times.
pub const REVOKE_BACKOFF_MAX: u8 = 10;

impl<S: Store> ServerEngine<S> {
    /// Takes a free zone of `pool` for a connection, for the pool's present tenancy.
    pub(super) fn take_zone(&mut self, pool: u32, seat: u32) -> Option<u32> {
        let free = &mut self.free_zones[pool as usize];
        if *free == 0 {
            return None;
        }
        *free -= 1;
        let at = pool as usize * self.geometry.zones() as usize + *free;
        let zone = self.memory.free_zones[at];
        let record = &mut self.memory.zones[zone as usize];
        debug_assert_eq!(record.state, ZoneState::Free);
        *record = Zone {
            conn: seat,
            state: ZoneState::Mapped,
            epoch: self.tenancies[pool as usize].epoch,
            since_ns: self.now_ns,
            ..Zone::default()
        };
        self.memory.conns[seat as usize].zone = zone;
        Some(zone)
    }

    /// The zone has no writer any more: its connection loses it, and it may be given out.
    pub(super) fn free_zone(&mut self, zone: u32) {
        self.stir();
        if self.memory.zones[zone as usize].state == ZoneState::Quarantined {
            self.note_release(zone);
        }
        let record = &mut self.memory.zones[zone as usize];
        debug_assert_ne!(record.state, ZoneState::Free);
        if record.state == ZoneState::Quarantined {
            let held = &mut self.memory.quarantine[..self.quarantined];
            if let Some(at) = held.iter().position(|&other| other == zone) {
                held.swap(at, self.quarantined - 1);
                self.quarantined -= 1;
            }
        }
        record.state = ZoneState::Free;
        let conn = &mut self.memory.conns[record.conn as usize];
        conn.zone = NONE;
        if conn.state == ConnState::Leaving {
            conn.state = ConnState::Idle;
        }
        let (zones, pool) = (self.geometry.zones(), self.place(zone).0 as usize);
        let at = pool * zones as usize + self.free_zones[pool];
        self.memory.free_zones[at] = zone;
        self.free_zones[pool] += 1;
    }

    /// The tenancy of an active connection is over. `told`: its switch event is on its way.
    pub(super) fn quarantine(&mut self, seat: u32, told: bool) {
        self.stir();
        let zone = self.memory.conns[seat as usize].zone;
        // Who can be revoked keeps its connection anyway.
        let spared = self.draining_to_rest && !self.limits.can_revoke;
        self.spares |= spared;
        let conn = &mut self.memory.conns[seat as usize];
        conn.state = ConnState::Leaving;
        let record = &mut self.memory.zones[zone as usize];
        record.state = ZoneState::Quarantined;
        record.event_owed = !told;
        record.spared = spared;
        record.since_ns = self.now_ns;
        record.held_ns = self.now_ns;
        conn.told_epoch = record.epoch;
        self.memory.quarantine[self.quarantined] = zone;
        self.quarantined += 1;
        self.counters.quarantined_zones += 1;
        self.deactivate(seat, self.place(zone).0);
        self.rate(seat);
    }

    /// Looks at some of the zones in quarantine.
    pub(super) fn watch_quarantine<M: Memory>(
        &mut self,
        exposed: &M,
        private: &M,
    ) -> Option<Action> {
        while self.looks_left > 0 && self.quarantined > 0 {
            self.looks_left -= 1;
            if self.quarantine_cursor >= self.quarantined {
                self.quarantine_cursor = 0;
            }
            let zone = self.memory.quarantine[self.quarantine_cursor];
            self.quarantine_cursor += 1;
            let Zone {
                conn: seat,
                event_owed,
                spared,
                epoch,
                since_ns,
                tries,
                ..
            } = self.memory.zones[zone as usize];
            if self.memory.conns[seat as usize].state == ConnState::Closing {
                // Its fence is under way, and `gone` will bring the zone back.
                continue;
            }
            if event_owed {
                if let Some(write) = self.switch_event(seat, private) {
                    self.memory.zones[zone as usize].event_owed = false;
                    self.memory.zones[zone as usize].since_ns = self.now_ns;
                    return Some(Action::Write(write));
                }
                if mutant::is(Bug::OwedEventForgotten) {
                    self.memory.zones[zone as usize].event_owed = false;
                }
                if self.now_ns.saturating_sub(since_ns) >= self.config.fence_after_ns {
                    self.failed(seat);
                }
                continue;
            }
            // Ordering: pairs with the release of the quiet word, which the client writes after all
            // its WRITEs to the zone.
            let quiet = exposed.load_acquire(self.geometry.endpoint(seat) + ENTRY_QUIET_AT);
            let any = mutant::is(Bug::QuietOfAnyTenancy) && quiet != 0;
            if quiet == epoch || any || mutant::is(Bug::QuietNotAwaited) {
                self.counters.zones_quiet += 1;
                self.free_zone(zone);
                continue;
            }
            let waited_ns = self.now_ns.saturating_sub(since_ns);
            if self.limits.can_revoke
                && waited_ns >= self.config.revoke_after_ns.saturating_mul(1 << tries)
                && !mutant::is(Bug::RevocationForgotten)
            {
                let record = &mut self.memory.zones[zone as usize];
                record.since_ns = self.now_ns;
                record.tries = (tries + 1).min(REVOKE_BACKOFF_MAX);
                if mutant::is(Bug::RevocationNotAwaited) {
                    self.free_zone(zone);
                }
                return Some(Action::Revoke { seat, epoch });
            }
            let silent = !self.limits.can_revoke && waited_ns >= self.config.fence_after_ns;
            if silent && !spared && !mutant::is(Bug::FenceForgotten) {
                self.failed(seat);
            }
        }
        None
    }

    /// True if somebody could use a zone of this pool, which has a group and no free zone.
    pub(super) fn lacks_zones(&self, pool: u32) -> bool {
        let group = self.tenancies[pool as usize].group;
        // In warmup it is the next group, too, that cannot come before this one has a zone or yields.
        self.memory.groups[group as usize].wait_head != NONE
            || (pool != self.processing && self.ready.head != NONE)
    }

    /// Tenants that were told for the sake of rest have as long to answer as any, from now on.
    #[cold]
    pub(super) fn spare_no_more(&mut self) {
        if !self.spares {
            return;
        }
        self.spares = false;
        for &zone in &self.memory.quarantine[..self.quarantined] {
            let record = &mut self.memory.zones[zone as usize];
            if record.spared {
                record.spared = false;
                record.since_ns = self.now_ns;
            }
        }
    }

    /// The tenancy that [`Action::Revoke`] named is revoked: its zone has no writer any more.
    pub fn revoked(&mut self, seat: u32, epoch: u64) {
        let Some(conn) = self.memory.conns.get(seat as usize) else {
            return;
        };
        let zone = conn.zone;
        if conn.state != ConnState::Leaving || zone == NONE {
            return;
        }
        let record = &self.memory.zones[zone as usize];
        if record.state == ZoneState::Quarantined && record.epoch <= epoch {
            self.counters.zones_revoked += 1;
            self.free_zone(zone);
        }
    }
}
