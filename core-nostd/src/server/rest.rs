//! Rest: when a server has nothing to look for until somebody wakes it, so that its caller may sleep.
//!
//! A connection that has a zone writes its calls straight there, and nothing else tells of them. So a server rests only
//! while no connection has one: whoever wants something of it then writes its endpoint entry and its byte of the demand
//! map, and only the WRITE of that byte has to wake it. The path of the direct WRITEs costs nothing more.

use super::ServerEngine;
use super::records::{ConnState, NONE, ZoneState};
use crate::geometry::Mapping;
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::store::Store;
use crate::wire::Entry;

impl<S: Store> ServerEngine<S> {
    /// From now on, [`ServerConfig::rest_after_ns`](super::ServerConfig::rest_after_ns).
    pub fn set_rest_after_ns(&mut self, rest_after_ns: Option<u64>) {
        self.config.rest_after_ns = rest_after_ns;
        self.stir();
    }

    /// True if a group may be drained for the sake of rest. Connections that have a zone for life write there
    /// whenever they like, and an engine that a scheduler leads has to hear its orders, whoever else is silent.
    ///
    /// Where tenancies cannot be revoked, a client that is not polled while it has nothing to do is not fenced for that:
    /// it keeps its zone, in quarantine, until somebody lacks one, and is due only
    /// [`fence_after_ns`](super::ServerConfig::fence_after_ns) later.
    pub fn can_rest(&self) -> bool {
        !self.config.led && self.geometry.mapping() == Mapping::Virtual
    }

    /// True if nobody is served, and nobody is about to be: until a byte of the demand map changes, a connection comes or
    /// goes, a work request completes, or [`next_due_ns`](Self::next_due_ns), there is nothing to do. To be asked
    /// after a round in which nothing was done. Never of an engine that a scheduler leads.
    pub fn rests(&self) -> bool {
        let [one, other] = &self.tenancies;
        !self.config.led && one.active + other.active == 0 && !self.is_busy() && !self.zones_busy()
    }

    /// The time at which a zone in quarantine is to be looked at again, if there is one.
    pub fn next_due_ns(&self) -> Option<u64> {
        if mutant::is(Bug::RestForgetsDue) {
            return None;
        }
        let held = self.memory.quarantine[..self.quarantined].iter();
        let zones = held.map(|&zone| &self.memory.zones[zone as usize]);
        // The fence of a connection that is being closed is not ours to wait for: news tells of it.
        let zones = zones.filter(|it| {
            !it.spared && self.memory.conns[it.conn as usize].state != ConnState::Closing
        });
        let config = &self.config;
        let due = zones.map(|it| {
            let after_ns = match self.limits.can_revoke {
                true => config.revoke_after_ns.saturating_mul(1 << it.tries),
                false => config.fence_after_ns,
            };
            it.since_ns.saturating_add(after_ns)
        });
        due.min()
    }

    /// True if a connection has written an endpoint entry that would be taken: for a caller that is about to sleep, who
    /// has said so and then looks once more. It looks at the whole demand map.
    pub fn has_demand<M: Memory>(&self, exposed: &M) -> bool {
        let mut seat = 0;
        loop {
            let seen = &self.memory.demand_seen[seat as usize..];
            let at = self.geometry.demand_byte(seat);
            let Some(i) = exposed.first_changed(at, seen) else {
                return false;
            };
            seat += i as u32;
            let conn = &self.memory.conns[seat as usize];
            // Anybody may have changed the byte, and the client may have gone before its entry was taken.
            if matches!(conn.state, ConnState::Idle | ConnState::Leaving) && !conn.waiting {
                // Ordering: pairs with the release of the byte, which the client writes after its entry.
                let _ = exposed.load_byte_acquire(self.geometry.demand_byte(seat));
                let (at, number) = (self.geometry.endpoint(seat), conn.entry + 1);
                if Entry::observe(exposed, at, conn.owner, number, conn.placement).is_some() {
                    return true;
                }
            }
            seat += 1;
            if seat == self.geometry.clients_max() {
                return false;
            }
        }
    }

    /// True if nothing has come from the group that is served for so long that it may be drained, and nobody waits.
    pub fn is_silent(&self) -> bool {
        let after_ns = self.config.rest_after_ns;
        after_ns.is_some_and(|after_ns| self.idle_ns >= after_ns)
            && !self.unsettled
            && !self.is_busy()
            && !mutant::is(Bug::RestlessServer)
    }

    /// True if a connection waits for a zone, or its staged calls are being fetched, or one is to be closed.
    fn is_busy(&self) -> bool {
        let waits =
            |group: u32| group != NONE && self.memory.groups[group as usize].wait_head != NONE;
        let waited = self.ready.head != NONE || self.tenancies.iter().any(|it| waits(it.group));
        (waited && !mutant::is(Bug::RestsWhileWaiting))
            || self.tenancies.iter().any(|it| it.fetching > 0)
            || self.fetch_seat != NONE
            || self.closing.head != NONE
    }

    /// True if a zone belongs to a fetch that has outlasted its tenancy, or its tenant is still to be told that its
    /// tenancy is over.
    fn zones_busy(&self) -> bool {
        if self.geometry.mapping() == Mapping::Static {
            return false;
        }
        let [free, free_too] = self.free_zones;
        if free + free_too == self.memory.zones.len() {
            return false;
        }
        self.memory.zones.iter().any(|zone| {
            let busy = match zone.state {
                ZoneState::Free => false,
                ZoneState::Mapped => true,
                ZoneState::Quarantined => zone.event_owed,
            };
            busy && self.memory.conns[zone.conn as usize].state != ConnState::Closing
        })
    }
}
