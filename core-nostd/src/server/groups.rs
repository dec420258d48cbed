//! Groups: who belongs to which, who in them waits, and whose turn is next.

use super::priority::Rating;
use super::records::{Group, Member, NONE};
use super::{Queue, ServerEngine};
use crate::mutant::{self, Bug};
use crate::store::Store;

impl<S: Store> ServerEngine<S> {
    /// Puts a new connection into a group that is not full, or into a new one.
    pub(super) fn join_group(&mut self, seat: u32) {
        let Rating { class, beat, .. } = self.memory.members[seat as usize].rating;
        let group = self.group_with_room(class, beat).or_else(|| {
            // There are more groups than full ones of the default size can be: one is not full.
            let size = self.geometry.group_size();
            let count = self.memory.groups.len() as u32;
            (0..count).find(|&group| self.memory.groups[group as usize].len < size)
        });
        let Some(group) = group else { return };
        self.add_member(group, seat);
    }

    pub(super) fn add_member(&mut self, group: u32, seat: u32) {
        let record = &mut self.memory.groups[group as usize];
        if record.len == 0 {
            self.counters.groups += 1;
        }
        record.len += 1;
        let next = record.members;
        record.members = seat;
        self.memory.conns[seat as usize].group = group;
        let member = &mut self.memory.members[seat as usize];
        record.misfits += u32::from(member.rating.is_misfit(record));
        member.prev = NONE;
        member.next = next;
        if next != NONE {
            self.memory.members[next as usize].prev = seat;
        }
    }

    /// Takes a connection out of its group.
    pub(super) fn leave_group(&mut self, seat: u32) {
        let group = core::mem::replace(&mut self.memory.conns[seat as usize].group, NONE);
        let Member {
            prev, next, rating, ..
        } = self.memory.members[seat as usize];
        if next != NONE {
            self.memory.members[next as usize].prev = prev;
        }
        let record = &mut self.memory.groups[group as usize];
        record.len -= 1;
        record.misfits -= u32::from(rating.is_misfit(record));
        if record.len == 0 {
            self.counters.groups -= 1;
        }
        match prev {
            NONE => record.members = next,
            prev => self.memory.members[prev as usize].next = next,
        }
    }

    /// A connection has demand and no zone: it waits in its group, and its group for its turn.
    pub(super) fn wait(&mut self, seat: u32) {
        self.stir();
        let conn = &mut self.memory.conns[seat as usize];
        debug_assert!(!conn.waiting);
        conn.waiting = true;
        conn.next = NONE;
        let group = conn.group;
        let record = &mut self.memory.groups[group as usize];
        let tail = record.wait_tail;
        record.wait_tail = seat;
        match tail {
            NONE => record.wait_head = seat,
            tail => self.memory.conns[tail as usize].next = seat,
        }
        self.queue_group(group);
    }

    /// Puts a group that has waiting connections at the end of the queue of groups.
    pub(super) fn queue_group(&mut self, group: u32) {
        let is_next = self.is_next(group);
        let record = &mut self.memory.groups[group as usize];
        if record.queued || record.wait_head == NONE || is_next {
            return;
        }
        record.queued = true;
        record.since_ns = self.now_ns;
        record.next = NONE;
        if mutant::is(Bug::LastComeFirstServed) && self.ready.head != NONE {
            record.next = self.ready.head;
            self.ready.head = group;
            return;
        }
        let tail = self.ready.tail;
        self.ready.tail = group;
        match tail {
            NONE => self.ready.head = group,
            tail => self.memory.groups[tail as usize].next = group,
        }
    }

    /// Puts a group that was taken from the queue of groups back to where its age belongs.
    pub(super) fn queue_by_age(&mut self, group: u32) {
        let Group {
            queued,
            wait_head,
            since_ns,
            ..
        } = self.memory.groups[group as usize];
        if queued || wait_head == NONE {
            return;
        }
        let (mut prev, mut at) = (NONE, self.ready.head);
        while at != NONE && self.memory.groups[at as usize].since_ns <= since_ns {
            (prev, at) = (at, self.memory.groups[at as usize].next);
        }
        let record = &mut self.memory.groups[group as usize];
        record.queued = true;
        record.next = at;
        match prev {
            NONE => self.ready.head = group,
            prev => self.memory.groups[prev as usize].next = group,
        }
        if at == NONE {
            self.ready.tail = group;
        }
    }

    /// Takes a group out of the queue of groups, if it is there.
    pub(super) fn unqueue(&mut self, group: u32) {
        if !self.memory.groups[group as usize].queued {
            return;
        }
        let (mut prev, mut at) = (NONE, self.ready.head);
        while at != NONE && at != group {
            (prev, at) = (at, self.memory.groups[at as usize].next);
        }
        let record = &mut self.memory.groups[group as usize];
        record.queued = false;
        let next = record.next;
        if self.ready.tail == group {
            self.ready.tail = prev;
        }
        match prev {
            NONE => self.ready.head = next,
            prev => self.memory.groups[prev as usize].next = next,
        }
    }

    /// The first waiting connection of a group.
    pub(super) fn take_waiting(&mut self, group: u32) -> Option<u32> {
        let record = &mut self.memory.groups[group as usize];
        let seat = record.wait_head;
        if seat == NONE {
            return None;
        }
        let conn = &mut self.memory.conns[seat as usize];
        conn.waiting = false;
        record.wait_head = conn.next;
        if record.wait_head == NONE {
            record.wait_tail = NONE;
        }
        Some(seat)
    }

    /// Takes a connection out of the middle of its group's queue.
    pub(super) fn unwait(&mut self, seat: u32) {
        let group = self.memory.conns[seat as usize].group;
        let (mut prev, mut at) = (NONE, self.memory.groups[group as usize].wait_head);
        while at != NONE && at != seat {
            (prev, at) = (at, self.memory.conns[at as usize].next);
        }
        if at == NONE {
            return;
        }
        let conn = &mut self.memory.conns[seat as usize];
        let next = conn.next;
        conn.waiting = false;
        let record = &mut self.memory.groups[group as usize];
        if record.wait_tail == seat {
            record.wait_tail = prev;
        }
        match prev {
            NONE => record.wait_head = next,
            prev => self.memory.conns[prev as usize].next = next,
        }
    }

    /// The group whose turn is next. Groups that have lost their demand are skipped.
    pub(super) fn take_ready(&mut self) -> Option<u32> {
        while self.ready.head != NONE {
            let group = self.ready.head;
            let record = &mut self.memory.groups[group as usize];
            record.queued = false;
            self.ready.head = record.next;
            if self.ready.head == NONE {
                self.ready = Queue {
                    head: NONE,
                    tail: NONE,
                };
            }
            if self.memory.groups[group as usize].wait_head != NONE {
                return Some(group);
            }
        }
        None
    }

    /// Looks at the group whose slice has just ended, which is when its members are quiet: those that have
    /// another class are moved. If the rest is small, and fits with another group of its class into one of at
    /// most 1.5 times the size, they become one (section 3.4 of the paper; lazily). The other may be served: who
    /// joins it has no demand yet. No group is ever split: nothing makes one larger than that.
    pub(super) fn merge_step(&mut self, from: u32) {
        self.regroup(from);
        let count = self.memory.groups.len() as u32;
        if !self.may_merge(from) {
            return;
        }
        let Group {
            len, class, beat, ..
        } = self.memory.groups[from as usize];
        let size = class.group_size(self.geometry.group_size());
        let into = (0..count).find(|&into| {
            let other = &self.memory.groups[into as usize];
            let fits = other.len > 0 && other.len + len <= size + size / 2;
            into != from && other.class == class && other.beat == beat && fits
        });
        if let Some(into) = into {
            while self.memory.groups[from as usize].len > 0 {
                let seat = self.memory.groups[from as usize].members;
                self.leave_group(seat);
                self.add_member(into, seat);
            }
            self.counters.merges += 1;
        }
    }

    /// Small (below half of its size), without demand, and not served.
    fn may_merge(&self, group: u32) -> bool {
        let Group {
            len,
            wait_head,
            class,
            ..
        } = self.memory.groups[group as usize];
        let size = class.group_size(self.geometry.group_size());
        len > 0
            && !mutant::is(Bug::NeverMerged)
            && len < size.div_ceil(2)
            && wait_head == NONE
            && !self.is_served(group)
    }

    fn is_served(&self, group: u32) -> bool {
        self.tenancies.iter().any(|tenancy| tenancy.group == group)
    }
}
