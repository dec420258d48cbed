//! Priorities: how much a connection asks for, and with whom it is served.
//!
//! The priority of a connection is `P = T / S`: its throughput over the mean size of its requests (section 3.4 of
//! the paper). Whoever makes many small calls gains most by being served together with others like it, in a small
//! group with a long slice. Here
//!
//! - `T` is the calls that were taken in a tenancy, by the time since the end of the one before; `S` is the mean
//!   size of their requests. Both are moving averages over tenancies, of which the latest makes up
//!   1/[`AVERAGED`].
//! - Only the octave of `P` counts, its *score*. A connection whose score is [`ENTER_OCTAVES`] above the median
//!   of all connections is in class [`Class::High`], one that is as far below in [`Class::Low`]. It is back in
//!   [`Class::Normal`] when the distance has shrunk to [`LEAVE_OCTAVES`]. So a connection that turns hot and
//!   cold by itself is not moved to and fro: `P` falls by two octaves in no fewer than ten tenancies.
//!
//! Connections are rated when a tenancy of theirs ends, and moved when they are quiet and their group's slice
//! has ended.

use super::ServerEngine;
use super::beats::OwnBeat;
use super::records::{ConnState, Group, NONE};
use crate::mutant::{self, Bug};
use crate::store::Store;

/// Tenancies that a moving average is made of, roughly.
pub const AVERAGED: u8 = 8;
/// Octaves above or below the median at which a connection changes its class.
pub const ENTER_OCTAVES: u8 = 3;
/// Octaves at which it is an ordinary one again.
pub const LEAVE_OCTAVES: u8 = 1;
/// Connections that are moved at one switch, at most.
const MOVES: u32 = 8;
/// Scores are octaves of a 64-bit number.
pub(super) const SCORES: usize = 64;
/// One call in a tick, as a throughput.
const CALL_SHIFT: u32 = 16;
/// Requests below this size count as this size.
const SIZE_MIN_BYTES: u32 = 32;

/// How connections are put into groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// By priority: see the module's documentation.
    #[default]
    Priority,
    /// In the order in which they come.
    Arrival,
}

/// With whom a connection is served, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Few or large calls: groups of the default size, with half of a slice.
    Low,
    /// Groups of the default size, and slices of the default length.
    #[default]
    Normal,
    /// Many small calls: groups of half of the default size, with two slices.
    High,
}

impl Class {
    /// Connections in a full group of this class, where a group of default size has `group_size`.
    pub const fn group_size(self, group_size: u32) -> u32 {
        match self {
            Self::Low | Self::Normal => group_size,
            Self::High => group_size.div_ceil(2),
        }
    }

    /// Length of its slices, where the default is `time_slice_ns`.
    pub const fn slice_ns(self, time_slice_ns: u64) -> u64 {
        match self {
            Self::Low => time_slice_ns.div_ceil(2),
            Self::Normal => time_slice_ns,
            Self::High => time_slice_ns.saturating_mul(2),
        }
    }
}

/// What an operator says of a connection; it holds until the connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    /// The measured priority is multiplied by 2 to this power.
    pub weight_log2: i8,
    /// The class, whatever is measured.
    pub class: Option<Class>,
}

/// What a connection's priority is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rating {
    /// `T`, in 2^-16 calls in a tick.
    throughput: u32,
    /// `S`.
    size_bytes: u32,
    /// When the last tenancy ended, or the connection came.
    tick: u32,
    /// Tenancies that were counted, up to `AVERAGED`: before that nothing follows from them.
    tenancies: u8,
    score: u8,
    pub(super) class: Class,
    priority: Priority,
    /// The bucket of the longest wait: see `observe`. (Here there was a byte to spare.)
    pub(super) worst_wait: u8,
    pub(super) beat: OwnBeat,
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Rating {
    /// Of a connection that comes at `tick`.
    pub(super) fn new(tick: u32) -> Self {
        Self {
            tick,
            ..Self::default()
        }
    }

    /// It belongs to a group of another class or beat.
    pub(super) fn is_misfit(&self, group: &Group) -> bool {
        self.class != group.class || self.beat != group.beat
    }

    fn is_rated(&self) -> bool {
        self.tenancies > 0
    }

    /// Counts what was taken in a tenancy that ends at `tick`.
    fn count(&mut self, tick: u32, calls: u32, bytes: u32) {
        let ticks = u64::from(tick.wrapping_sub(self.tick).max(1));
        self.tick = tick;
        let throughput = (u64::from(calls) << CALL_SHIFT) / ticks;
        let size = bytes.checked_div(calls).unwrap_or(self.size_bytes);
        self.tenancies = (self.tenancies + 1).min(AVERAGED);
        let of = u64::from(self.tenancies);
        let average =
            |old: u32, new: u32| saturated((u64::from(old) * (of - 1) + u64::from(new)) / of);
        self.throughput = average(self.throughput, saturated(throughput));
        self.size_bytes = average(self.size_bytes, size.max(SIZE_MIN_BYTES));
    }

    /// The octave of `P`.
    fn measure(&self) -> u8 {
        let priority = (u64::from(self.throughput) << 16) / u64::from(self.size_bytes.max(1));
        let octave = priority.max(1).ilog2() as i32 + i32::from(self.priority.weight_log2);
        octave.clamp(0, SCORES as i32 - 1) as u8
    }

    /// The class by its score, the median of all scores, and the class until now.
    fn classify(&self, median: Option<u8>) -> Class {
        if let Some(class) = self.priority.class {
            return class;
        }
        let Some(median) = median.filter(|_| self.tenancies == AVERAGED) else {
            return self.class;
        };
        let octaves = |class| match self.class == class {
            true => LEAVE_OCTAVES + 1,
            false => ENTER_OCTAVES,
        };
        if self.score >= median.saturating_add(octaves(Class::High)) {
            Class::High
        } else if self.score.saturating_add(octaves(Class::Low)) <= median {
            Class::Low
        } else {
            Class::Normal
        }
    }
}

impl<S: Store> ServerEngine<S> {
    /// Gives a connection a weight, or a class of its own. It is moved when its group's next slice has ended.
    ///
    /// False if there is no such connection.
    pub fn set_priority(&mut self, seat: u32, priority: Priority) -> bool {
        let open = |conn: &super::Conn| conn.state != ConnState::Free;
        if !self.memory.conns.get(seat as usize).is_some_and(open) {
            return false;
        }
        self.memory.members[seat as usize].rating.priority = priority;
        self.reclassify(seat);
        true
    }

    /// Fixes the class of a connection, or leaves it to what is measured.
    pub(super) fn pin(&mut self, seat: u32, class: Option<Class>) -> bool {
        let member = self.memory.members.get(seat as usize);
        let priority = member.map(|member| member.rating.priority);
        priority.is_some_and(|it| self.set_priority(seat, Priority { class, ..it }))
    }

    /// The class of a connection, or `None` if the seat is free.
    pub fn class(&self, seat: u32) -> Option<Class> {
        let conn = self.memory.conns.get(seat as usize)?;
        (conn.state != ConnState::Free).then(|| self.memory.members[seat as usize].rating.class)
    }

    /// The octave of a connection's priority, once it was measured.
    pub(super) fn score(&self, seat: u32) -> Option<u8> {
        let rating = &self.memory.members[seat as usize].rating;
        rating.is_rated().then_some(rating.score)
    }

    /// The class of a group, or what stands for that of none.
    pub(super) fn class_of(&self, group: u32) -> Class {
        match group {
            NONE => Class::Normal,
            group => self.memory.groups[group as usize].class,
        }
    }

    /// A tenancy of the connection ends: its priority is measured anew.
    pub(super) fn rate(&mut self, seat: u32) {
        if self.config.grouping == Grouping::Arrival {
            return;
        }
        let tick = self.tick();
        let conn = &mut self.memory.conns[seat as usize];
        let member = &mut self.memory.members[seat as usize];
        let calls = (conn.next_call as u32).wrapping_sub(member.rated_call);
        let bytes = core::mem::take(&mut conn.tenancy_bytes);
        member.rated_call = conn.next_call as u32;
        let rating = &mut member.rating;
        if rating.is_rated() {
            self.scores[usize::from(rating.score)] -= 1;
            self.rated -= 1;
        }
        rating.count(tick, calls, bytes);
        rating.score = rating.measure();
        self.scores[usize::from(rating.score)] += 1;
        self.rated += 1;
        self.reclassify(seat);
    }

    /// A connection ends: its score counts no more.
    pub(super) fn unrate(&mut self, seat: u32) {
        let rating = &self.memory.members[seat as usize].rating;
        if rating.is_rated() {
            self.scores[usize::from(rating.score)] -= 1;
            self.rated -= 1;
        }
    }

    fn reclassify(&mut self, seat: u32) {
        let rating = &mut self.memory.members[seat as usize].rating;
        let class = rating.classify(self.median);
        if class == rating.class {
            return;
        }
        let was = *rating;
        rating.class = class;
        let group = self.memory.conns[seat as usize].group;
        if group != NONE {
            let group = &mut self.memory.groups[group as usize];
            group.misfits -= u32::from(was.is_misfit(group));
            group.misfits += u32::from(rating.is_misfit(group));
        }
    }

    /// The score that half of the rated connections do not exceed.
    fn find_median(&mut self) {
        let mut below = 0;
        let at = self.scores.iter().position(|&count| {
            below += count;
            2 * below >= self.rated
        });
        self.median = at.filter(|_| self.rated > 0).map(|at| at as u8);
    }

    /// The time, in units of about a slice.
    pub(super) fn tick(&self) -> u32 {
        (self.now_ns >> self.tick_shift) as u32
    }

    /// Moves quiet members of a group whose slice has ended to groups of their own class: a few at once.
    pub(super) fn regroup(&mut self, from: u32) {
        if self.config.grouping == Grouping::Priority {
            self.find_median();
        }
        let mut seat = self.memory.groups[from as usize].members;
        let mut moves = 0;
        while seat != NONE && moves < MOVES && self.memory.groups[from as usize].misfits > 0 {
            let next = self.memory.members[seat as usize].next;
            let Rating { class, beat, .. } = self.memory.members[seat as usize].rating;
            let group = &self.memory.groups[from as usize];
            let reclassed = class != group.class && self.config.grouping == Grouping::Priority;
            if (reclassed || beat != group.beat) && self.is_quiet(seat) {
                let Some(into) = self.group_with_room(class, beat) else {
                    return;
                };
                self.leave_group(seat);
                self.add_member(into, seat);
                self.counters.moves += 1;
                moves += 1;
            }
            seat = next;
        }
    }

    /// Nothing of the connection is queued by its group.
    fn is_quiet(&self, seat: u32) -> bool {
        let conn = &self.memory.conns[seat as usize];
        let quiet = !conn.waiting && matches!(conn.state, ConnState::Idle | ConnState::Leaving);
        quiet || mutant::is(Bug::MovedWhileWaiting)
    }

    /// A group of this class and beat that is not full, or an empty one, which becomes that.
    pub(super) fn group_with_room(&mut self, class: Class, beat: OwnBeat) -> Option<u32> {
        let count = self.memory.groups.len() as u32;
        let size = class.group_size(self.geometry.group_size());
        let has_room = |group: &u32| {
            let group = &self.memory.groups[*group as usize];
            let fits = group.class == class && group.beat == beat;
            fits && group.len > 0 && group.len < size
        };
        // Other groups lose members, so the search goes around; it begins at the last hit.
        let start = self.fill_group[class as usize];
        let found = (0..count).map(|i| (start + i) % count).find(has_room);
        let group = match found {
            Some(group) => group,
            None => {
                let is_empty = |group: &u32| {
                    let group = &self.memory.groups[*group as usize];
                    group.len == 0 && !group.queued
                };
                let group = (0..count).find(is_empty)?;
                self.memory.groups[group as usize].class = class;
                self.memory.groups[group as usize].beat = beat;
                group
            }
        };
        self.fill_group[class as usize] = group;
        Some(group)
    }
}
