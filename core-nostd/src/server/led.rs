//! Led mode: a scheduler says whose turn it is, and the engine says what it has seen.

use super::records::NONE;
use super::{NO_TENANCY, ServerEngine};
use crate::geometry::Mapping;
use crate::mutant::{self, Bug};
use crate::scheduler::{Order, Report, Task, Wish};
use crate::store::Store;

/// What a led engine knows of its orders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Led {
    /// The last order.
    order: Order,
    /// It is not carried out.
    pending: bool,
    /// Number of the last one that is.
    carried_out: u32,
    /// The group that has the pool in warmup has it by an order.
    ordered: bool,
}

impl Led {
    pub(super) const NEW: Self = Self {
        order: Order::NONE,
        pending: false,
        carried_out: 0,
        ordered: false,
    };

    /// True if an order is to be carried out.
    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }
}

impl<S: Store> ServerEngine<S> {
    /// Hears an order of the scheduler, which is carried out in the next rounds; one that was heard before is
    /// nothing new. A group that this engine does not have stands for one that it has.
    ///
    /// False, and nothing happens, if it cannot be carried out: the order before is not, or there is nothing
    /// to switch to. A [`Scheduler`](crate::scheduler::Scheduler) gives no such order.
    #[inline]
    pub fn obey(&mut self, order: Order) -> bool {
        if order.sequence == self.led.order.sequence && !mutant::is(Bug::OrderTwice) {
            return true;
        }
        self.accept(order)
    }

    fn accept(&mut self, order: Order) -> bool {
        if order == Order::NONE {
            return true;
        }
        if self.geometry.mapping() == Mapping::Static {
            // Everybody has a turn at any time.
            self.led.order = order;
            self.carried_out();
            return true;
        }
        let aimless = order.task == Task::Switch && !self.led.ordered;
        if self.led.pending || (aimless && !mutant::is(Bug::OrderTwice)) {
            return false;
        }
        self.led.order = order;
        self.led.pending = true;
        self.stir();
        true
    }

    /// What the scheduler wants to know, as it is now.
    #[inline]
    pub fn report(&mut self) -> Report {
        let served = &self.tenancies[self.processing as usize];
        let next = self.tenancies[1 - self.processing as usize];
        let idle = self.idle_ns >= self.config.idle_switch_ns;
        let waits = |group| self.memory.groups[group as usize].wait_head != NONE;
        let mut report = Report {
            acknowledged: self.led.carried_out,
            wish: None,
            ready: next.active > 0,
            coming: next.group != NONE && (next.fetching > 0 || waits(next.group)),
            full: self.free_zones[1 - self.processing as usize] == 0,
            done: served.active == 0 || self.slice_left_ns == 0 || idle,
        };
        report.wish = match self.wish() {
            // The fetch was so late that its pool was nobody's.
            None if !self.led.ordered && (report.ready || report.coming) => Some(Wish {
                group: next.group,
                since_ns: next.chosen_ns,
            }),
            wish => wish,
        };
        report
    }

    /// The group that waits longest: the first in the queue that has not lost its demand.
    #[inline]
    fn wish(&mut self) -> Option<Wish> {
        while self.ready.head != NONE {
            let group = self.ready.head;
            let record = &self.memory.groups[group as usize];
            if record.wait_head != NONE {
                let since_ns = record.since_ns;
                return Some(Wish { group, since_ns });
            }
            self.unqueue(group);
        }
        None
    }

    /// True if the group has the pool in warmup, in led mode: then its members need no other turn.
    #[inline]
    pub(super) fn is_next(&self, group: u32) -> bool {
        self.config.led && self.tenancies[1 - self.processing as usize].group == group
    }

    /// Carries out an order that says which group is next. True if one has become so.
    pub(super) fn choose_ordered(&mut self) -> bool {
        let Task::Next(group) = self.led.order.task else {
            return false;
        };
        if !self.led.pending {
            return false;
        }
        self.carried_out();
        self.led.ordered = true;
        let pool = 1 - self.processing as usize;
        let group = group % self.memory.groups.len() as u32;
        self.unqueue(group);
        let old = self.tenancies[pool];
        if old.group == group {
            return true;
        }
        if old.active > 0 {
            // Who is ready is served with the other group, as its guest.
            self.tenancies[pool].group = group;
            self.tenancies[pool].chosen_ns = self.now_ns;
        } else {
            self.tenancies[pool] = NO_TENANCY;
            self.begin_tenancy(pool, group);
        }
        if old.group != NONE && !mutant::is(Bug::ReplacedGroupForgotten) {
            // Where no zone is free it must not lose its turn.
            match old.fetching == 0 && self.free_zones[pool] == 0 {
                true => self.queue_by_age(old.group),
                false => self.queue_group(old.group),
            }
        }
        true
    }

    /// Carries out the order to switch: first those who are served are told, then the pools are swapped.
    pub(super) fn turn_ordered(&mut self) {
        if !self.led.pending || self.led.order.task != Task::Switch {
            return;
        }
        if !self.draining {
            self.begin_drain();
        }
        if self.tenancies[self.processing as usize].active == 0 {
            self.switch();
            self.led.ordered = false;
            self.carried_out();
        }
    }

    fn carried_out(&mut self) {
        self.led.pending = false;
        self.led.carried_out = self.led.order.sequence;
    }
}
