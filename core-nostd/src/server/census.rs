//! A count of everything that there is a fixed number of, and of every list, and views of single zones and
//! pools: for tests.

use super::ServerEngine;
use super::priority::Class;
use super::records::{ConnState, NONE, ZoneState};
use crate::geometry::Mapping;
use crate::store::Store;

/// Where everything is that a server has a fixed number of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Send slots that are free.
    pub slots_free: u32,
    /// Send slots whose WRITE is not known to be done.
    pub slots_held: u32,
    /// The most of those that one connection holds.
    pub slots_held_max: u32,
    /// Calls of connections that are not being closed that were handed out and not answered.
    pub answers_owed: u32,
    /// Connections that wait for a zone.
    pub waiting: u32,
    /// The group that is served is being told that its slice is over.
    pub draining: bool,
    /// The earliest time at which a zone now in quarantine was put there, or was to be revoked; without those whose tenants
    /// were told for the sake of rest, as long as nobody lacks a zone.
    pub quarantined_since_ns: Option<u64>,
}

/// A zone as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneView {
    /// Who may write to it.
    pub state: ZoneState,
    /// Seat of the connection that has it, or had it last.
    pub seat: u32,
    /// The tenancy of that connection.
    pub epoch: u64,
    /// That connection is still to be told that its tenancy is over.
    pub event_owed: bool,
    /// Revocations of that tenancy that were asked for.
    pub tries: u8,
}

/// A pool as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// It is the pool that is processed; else it is the one in warmup.
    pub processing: bool,
    /// The group that has it, unless it is nobody's.
    pub group: Option<u32>,
    /// Its tenancy, unless it is nobody's.
    pub epoch: Option<u64>,
    /// Connections of that tenancy whose batch was fetched.
    pub active: usize,
    /// Connections of that tenancy whose batch is being fetched.
    pub fetching: u32,
    /// Zones that may be given out.
    pub free: usize,
}

impl<S: Store> ServerEngine<S> {
    /// A zone, by its index over both pools.
    pub fn zone(&self, zone: u32) -> Option<ZoneView> {
        let record = self.memory.zones.get(zone as usize)?;
        Some(ZoneView {
            state: record.state,
            seat: record.conn,
            epoch: record.epoch,
            event_owed: record.event_owed,
            tries: record.tries,
        })
    }

    /// A pool.
    pub fn pool(&self, pool: u32) -> Option<PoolView> {
        let tenancy = self.tenancies.get(pool as usize)?;
        Some(PoolView {
            processing: pool == self.processing,
            group: (tenancy.group != NONE).then_some(tenancy.group),
            epoch: (tenancy.group != NONE).then_some(tenancy.epoch),
            active: tenancy.active,
            fetching: tenancy.fetching,
            free: self.free_zones[pool as usize],
        })
    }

    /// Sizes of the groups of a class.
    pub fn group_sizes(&self, class: Class) -> impl Iterator<Item = u32> + '_ {
        let groups = self.memory.groups.iter();
        let of_class = groups.filter(move |group| group.class == class && group.len > 0);
        of_class.map(|group| group.len)
    }

    /// Counts, in time that grows with everything there is.
    ///
    /// # Errors
    ///
    /// What does not add up: the engine has a bug then.
    pub fn census(&self) -> Result<Census, &'static str> {
        let mut census = Census {
            draining: self.draining,
            ..Census::default()
        };
        self.count_slots(&mut census)?;
        if self.geometry.mapping() == Mapping::Virtual {
            self.count_zones(&mut census)?;
            self.count_served()?;
            census.waiting = self.count_waiting()?;
            self.count_members()?;
            self.count_observed()?;
        }
        Ok(census)
    }

    fn count_slots(&self, census: &mut Census) -> Result<(), &'static str> {
        let all = self.geometry.send_slots();
        let length = |mut at: u32| {
            let mut length = 0;
            while at != NONE && length <= all {
                length += 1;
                at = self.memory.send_slots[at as usize].next;
            }
            length
        };
        census.slots_free = length(self.free_slot);
        if census.slots_free != self.free_slots {
            return Err("the list of free send slots has another length than was counted");
        }
        for conn in self.memory.conns.iter() {
            let held = length(conn.slot_head);
            census.slots_held += held;
            census.slots_held_max = census.slots_held_max.max(held);
            if conn.state != ConnState::Closing {
                census.answers_owed += u32::from(conn.answers_owed);
            }
        }
        Ok(())
    }

    fn count_zones(&self, census: &mut Census) -> Result<(), &'static str> {
        let (mut free, mut quarantined) = (0, 0);
        for (index, zone) in (0..).zip(self.memory.zones.iter()) {
            let conn = &self.memory.conns[zone.conn as usize];
            let held = conn.zone == index;
            let right = match zone.state {
                ZoneState::Free => {
                    free += 1;
                    !held || conn.state == ConnState::Free
                }
                ZoneState::Mapped => {
                    let states = [ConnState::Fetching, ConnState::Active, ConnState::Closing];
                    held && states.contains(&conn.state)
                }
                ZoneState::Quarantined => {
                    quarantined += 1;
                    if conn.state == ConnState::Leaving && !zone.spared {
                        let since_ns = census.quarantined_since_ns.unwrap_or(u64::MAX);
                        census.quarantined_since_ns = Some(since_ns.min(zone.since_ns));
                    }
                    held && matches!(conn.state, ConnState::Leaving | ConnState::Closing)
                }
            };
            if !right {
                return Err("a zone and its connection disagree");
            }
        }
        if free != self.free_zones[0] + self.free_zones[1] || quarantined != self.quarantined {
            return Err("free, mapped and quarantined zones do not add up");
        }
        let zones = self.geometry.zones() as usize;
        for pool in 0..2 {
            let list = &self.memory.free_zones[pool * zones..][..self.free_zones[pool]];
            let is_free = |zone: &u32| self.memory.zones[*zone as usize].state == ZoneState::Free;
            if !list.iter().all(is_free) {
                return Err("a zone that is not free is in the list of free ones");
            }
        }
        Ok(())
    }

    fn count_served(&self) -> Result<(), &'static str> {
        let zones = self.geometry.zones() as usize;
        let in_state = |state| {
            self.memory
                .conns
                .iter()
                .filter(move |conn| conn.state == state)
        };
        let [served, next] =
            [self.processing, 1 - self.processing].map(|pool| self.tenancies[pool as usize]);
        if served.group != NONE && next.group != NONE && served.epoch >= next.epoch {
            return Err("R4: a tenancy has a later epoch than the one that follows it");
        }
        let mut listed = 0;
        for (pool, tenancy) in self.tenancies.iter().enumerate() {
            listed += tenancy.active;
            for active in &self.memory.active[pool * zones..][..tenancy.active] {
                let conn = &self.memory.conns[active.seat as usize];
                if conn.state != ConnState::Active || self.place(conn.zone).0 as usize != pool {
                    return Err("a connection is in the list of served ones, but not served");
                }
            }
            let fetching = in_state(ConnState::Fetching)
                .filter(|conn| self.place(conn.zone).0 as usize == pool)
                .filter(|conn| self.in_tenancy(conn.zone))
                .count();
            if fetching != tenancy.fetching as usize {
                return Err("fetches of a tenancy do not add up");
            }
        }
        if in_state(ConnState::Active).count() != listed {
            return Err("a connection is served, but not in the list of served ones");
        }
        Ok(())
    }

    fn count_members(&self) -> Result<(), &'static str> {
        let mut listed = 0;
        for (index, group) in (0..).zip(self.memory.groups.iter()) {
            let (mut len, mut misfits, mut at) = (0, 0, group.members);
            while at != NONE && len <= group.len {
                let member = &self.memory.members[at as usize];
                if self.memory.conns[at as usize].group != index {
                    return Err("a connection is a member of two groups");
                }
                len += 1;
                misfits += u32::from(member.rating.is_misfit(group));
                at = member.next;
            }
            if len != group.len || misfits != group.misfits {
                return Err("the members of a group do not add up");
            }
            if len > self.geometry.zones() {
                return Err("a group has more members than a pool has zones");
            }
            listed += u64::from(len);
        }
        match listed == self.counters.connections {
            true => Ok(()),
            false => Err("a connection is in no group"),
        }
    }

    fn count_waiting(&self) -> Result<u32, &'static str> {
        let mut listed = 0;
        for (index, group) in (0..).zip(self.memory.groups.iter()) {
            let mut at = group.wait_head;
            while at != NONE && listed <= self.memory.conns.len() {
                let conn = &self.memory.conns[at as usize];
                if !conn.waiting || conn.group != index {
                    return Err("a connection is in a queue that is not its own");
                }
                listed += 1;
                at = conn.next;
            }
            let has_turn = self.tenancies.iter().any(|tenancy| tenancy.group == index);
            if group.wait_head != NONE && !group.queued && !has_turn {
                return Err("R8: a group with demand is not in the queue of groups");
            }
        }
        let waiting = self.memory.conns.iter().filter(|conn| conn.waiting);
        if waiting.count() != listed {
            return Err("a connection waits, but is in no queue");
        }
        Ok(listed as u32)
    }
}
