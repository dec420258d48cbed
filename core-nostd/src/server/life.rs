//! Connections come, go, and are ended.

use super::records::{Conn, ConnState, Member, NONE, Zone, ZoneState};
use super::{OpenConn, ServerEngine};
use crate::geometry::Mapping;
use crate::mutant::{self, Bug};
use crate::post::SendQueue;
use crate::store::Store;
use crate::wire::Violation;

impl<S: Store> ServerEngine<S> {
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
        self.stir();
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
    pub(super) fn deactivate(&mut self, seat: u32, pool: u32) {
        let first = pool as usize * self.geometry.zones() as usize;
        let tenancy = &mut self.tenancies[pool as usize];
        let list = &mut self.memory.active[first..first + tenancy.active];
        // From the back: that is where a drain takes them.
        if let Some(at) = list.iter().rposition(|other| other.seat == seat) {
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
        self.stir();
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
    pub(super) fn evict(&mut self, seat: u32, why: Violation) {
        self.counters.violations += 1;
        self.close(seat);
        self.memory.conns[seat as usize].violation = Some(why);
    }

    /// Something about the connection failed at this end: a post that the back end refused.
    pub fn failed(&mut self, seat: u32) {
        if self.left(seat) {
            self.counters.failures += 1;
        }
    }

    /// The peer has left already, which is no failure: its link is down, and [`gone`](Self::gone) follows.
    /// True if that is news.
    pub fn left(&mut self, seat: u32) -> bool {
        let conn = self.memory.conns.get(seat as usize);
        let open =
            conn.is_some_and(|conn| !matches!(conn.state, ConnState::Free | ConnState::Closing));
        if open {
            self.close(seat);
        }
        open
    }
}
