//! Slices that keep step with other servers': see [`together`](crate::together).
//!
//! With a common clock, a slice ends when a beat ends, and a group goes first in its own beat, if it has demand.
//! Otherwise turns are as they are without one: a group without demand is skipped, and nobody waits for nobody
//! (rule R7). A group that waits at the head of the queue is passed over by at most a rotation's beats of groups that
//! go first; then it has a slice that it need not yield. So every wait is bounded (rule R8), whatever the clock shows.

use super::priority::Class;
use super::records::{ConnState, NONE};
use super::{ServerEngine, Tenancy};
use crate::mutant::{self, Bug};
use crate::store::Store;
use crate::together::{Beat, SliceClock};

/// A slice that would be shorter than this part of a beat goes on through the next beat.
const SHORTEST_PART: u64 = 4;

/// The beat of a connection or a group, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnBeat(u16);

impl OwnBeat {
    /// Any.
    pub(super) const NONE: Self = Self(u16::MAX);

    fn is(self, beat: u16) -> bool {
        self.0 == beat && self != Self::NONE
    }
}

impl Default for OwnBeat {
    fn default() -> Self {
        Self::NONE
    }
}

/// A common clock, and what it has led to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    clock: SliceClock,
    /// The beat that was the present one when it was last looked at.
    beat: Beat,
    slice_ends_ns: u64,
    /// Groups that went before the one at the head of the queue, since that is there.
    passed_over: u16,
    /// By pool: its group has waited long enough, and keeps its slice.
    keeps: [bool; 2],
}

impl Together {
    fn own_beat(&self, ahead: u64) -> u16 {
        let beats = u64::from(self.clock.rotation().beats());
        // Below `beats`, which is a u16.
        (self.beat.number.wrapping_add(ahead) % beats) as u16
    }

    /// So much of a beat is worth a switch.
    fn shortest_ns(&self) -> u64 {
        self.clock.rotation().beat_ns() / SHORTEST_PART
    }

    /// The longest slice: what is left of a beat, and the next one. While the clock is brought back, beats are longer by
    /// an eighth at most.
    fn longest_ns(&self) -> u64 {
        let beat_ns = self.clock.rotation().beat_ns();
        2 * beat_ns + beat_ns / 4
    }

    fn look(&mut self, now_ns: u64) {
        if now_ns >= self.beat.ends_ns {
            self.beat = self.clock.beat(now_ns);
        }
    }
}

impl<S: Store> ServerEngine<S> {
    /// Slices end with the beats of this clock from now on; with `None`, when they have lasted long enough.
    ///
    /// The clock is that of [`TimeServer::clock`](crate::together::TimeServer::clock) or
    /// [`Follower::clock`](crate::together::Follower::clock), and its local times are those that
    /// [`next_action`](Self::next_action) is given. It is to be told whenever it was adjusted. The slice that is under
    /// way is never made longer by that.
    ///
    /// An engine that a scheduler leads has its turns from there: it takes no clock.
    pub fn set_slice_clock(&mut self, clock: Option<&SliceClock>) {
        self.stir();
        self.together = clock.filter(|_| !self.config.led).map(|clock| {
            let beat = clock.beat(self.now_ns);
            let before = self
                .together
                .filter(|it| it.clock.rotation() == clock.rotation());
            match before {
                Some(before) => Together {
                    clock: *clock,
                    beat,
                    ..before
                },
                None => Together {
                    clock: *clock,
                    beat,
                    slice_ends_ns: beat.ends_ns,
                    passed_over: 0,
                    keeps: [false; 2],
                },
            }
        });
    }

    /// The common clock, if there is one.
    pub fn slice_clock(&self) -> Option<&SliceClock> {
        self.together.as_ref().map(|it| &it.clock)
    }

    /// Gives a connection a beat of the rotation: it is served together with others of the same beat, and in that
    /// beat first. A client that calls several servers has the same beat at all of them, say
    /// [`Rotation::beat_of`](crate::together::Rotation::beat_of) its key. `None`: any beat, as before. It holds until
    /// the connection ends. A beat that the rotation does not have never comes.
    ///
    /// The connection is moved to a group of that beat at once if it is quiet, else when its group's slice has
    /// ended; and not before there is room in one. Its class is fixed to [`Class::Normal`] meanwhile.
    ///
    /// False if there is no such connection.
    pub fn set_beat(&mut self, seat: u32, beat: Option<u16>) -> bool {
        if !self.pin(seat, beat.map(|_| Class::Normal)) {
            return false;
        }
        let conn = &self.memory.conns[seat as usize];
        let (group, quiet) = (conn.group, conn.state == ConnState::Idle && !conn.waiting);
        let rating = &mut self.memory.members[seat as usize].rating;
        let beat = beat.map_or(OwnBeat::NONE, OwnBeat);
        if group == NONE {
            rating.beat = beat;
            return true;
        }
        // It is counted as a misfit, or not, only while it is out of its group.
        self.leave_group(seat);
        let rating = &mut self.memory.members[seat as usize].rating;
        rating.beat = beat;
        let class = rating.class;
        let into = match quiet {
            true => self.group_with_room(class, beat),
            false => None,
        };
        self.counters.moves += u64::from(into.is_some_and(|into| into != group));
        self.add_member(into.unwrap_or(group), seat);
        true
    }

    /// The beat of a connection, if it has one.
    pub fn beat_of(&self, seat: u32) -> Option<u16> {
        let rating = &self.memory.members.get(seat as usize)?.rating;
        (rating.beat != OwnBeat::NONE).then_some(rating.beat.0)
    }

    /// Turns of others that a group may have to wait for, for each group that is before it, and their length.
    pub(super) fn common_bound(&self, slice_ns: u64) -> (u64, u64) {
        self.together.as_ref().map_or((1, slice_ns), |together| {
            let rotation = together.clock.rotation();
            let turns = u64::from(rotation.beats()) + 1;
            (turns, together.longest_ns().max(slice_ns))
        })
    }

    /// The group that the pool in warmup goes to.
    pub(super) fn take_next(&mut self) -> Option<u32> {
        let now_ns = self.now_ns;
        let pool = (1 - self.processing) as usize;
        let current = self.tenancies[self.processing as usize].group;
        let Some(together) = self.together.as_mut() else {
            return self.take_ready();
        };
        together.look(now_ns);
        let beats = together.clock.rotation().beats();
        let waited = together.passed_over >= beats && !mutant::is(Bug::BeatAlwaysFirst);
        together.keeps[pool] = waited;
        let together = *together;
        let left_ns = together.beat.ends_ns.saturating_sub(now_ns);
        let owner = |ahead| {
            let beat = together.own_beat(ahead);
            self.find_ready(|group| group.beat.is(beat))
        };
        let first = if waited || mutant::is(Bug::BeatIgnored) {
            None
        } else if self.is_own_beat(current, 0) || left_ns < together.shortest_ns() {
            owner(1)
        } else {
            owner(0).or_else(|| owner(1))
        };
        let head = self.ready.head;
        let passed_over = match first {
            Some(group) if group != head => together.passed_over.saturating_add(1),
            _ => 0,
        };
        self.counters.beats_first += u64::from(passed_over > 0);
        if let Some(together) = &mut self.together {
            together.passed_over = passed_over;
        }
        match first {
            Some(group) => {
                self.unqueue(group);
                Some(group)
            }
            None => self.take_ready(),
        }
    }

    /// The first group in the queue that has waiting connections and is as wanted.
    fn find_ready(&self, wanted: impl Fn(&super::Group) -> bool) -> Option<u32> {
        let mut at = self.ready.head;
        while at != NONE {
            let group = &self.memory.groups[at as usize];
            if group.wait_head != NONE && wanted(group) {
                return Some(at);
            }
            at = group.next;
        }
        None
    }

    /// True if the beat that comes so many after the present one is this group's.
    fn is_own_beat(&self, group: u32, ahead: u64) -> bool {
        let Some(together) = self.together.as_ref().filter(|_| group != NONE) else {
            return false;
        };
        self.memory.groups[group as usize]
            .beat
            .is(together.own_beat(ahead))
    }

    /// The slice of the group that is served is over.
    #[inline]
    pub(super) fn slice_is_over(&mut self, current: &Tenancy, next: &Tenancy) -> bool {
        let now_ns = self.now_ns;
        let processing = self.processing as usize;
        let Some(together) = &mut self.together else {
            return self.slice_left_ns == 0;
        };
        together.look(now_ns);
        let over = now_ns >= together.slice_ends_ns && !mutant::is(Bug::CommonSliceEndless);
        let keeps = together.keeps[processing];
        if over || keeps || next.active == 0 || self.is_own_beat(current.group, 0) {
            return over;
        }
        // Who goes first in this beat need not wait for its end. If its demand came after another group had got the
        // pool in warmup, that one has a short slice in between.
        self.is_own_beat(next.group, 0) || self.owner_waits()
    }

    /// A group whose beat it is waits for a pool, and enough of the beat is left for it.
    fn owner_waits(&self) -> bool {
        let Some(together) = &self.together else {
            return false;
        };
        let left_ns = together.beat.ends_ns.saturating_sub(self.now_ns);
        let beat = together.own_beat(0);
        left_ns >= together.shortest_ns() && self.find_ready(|it| it.beat.is(beat)).is_some()
    }

    /// A group from which nothing has come for so long yields. In its own beat that is no less than a quarter of it: its
    /// clients may be waiting for servers where that beat begins a little later.
    pub(super) fn idle_limit_ns(&self, current: u32) -> u64 {
        let idle_ns = self.config.idle_switch_ns;
        match &self.together {
            Some(together) if self.is_own_beat(current, 0) => idle_ns.max(together.shortest_ns()),
            _ => idle_ns,
        }
    }

    /// The slice that is over is not followed by another one of the same group, because the next group's batches are
    /// on their way: it would last until the next beat ends.
    pub(super) fn awaits(&self, next: &Tenancy) -> bool {
        self.together.is_some() && next.group != NONE
    }

    /// A slice begins: it ends with the present beat, or with the next one if that is the group's own, or if the
    /// present one is all but over.
    pub(super) fn begin_common_slice(&mut self) {
        let now_ns = self.now_ns;
        let Some(together) = &mut self.together else {
            return;
        };
        together.look(now_ns);
        let Together { clock, beat, .. } = *together;
        let short = beat.ends_ns.saturating_sub(now_ns) < together.shortest_ns();
        let group = self.tenancies[self.processing as usize].group;
        let early = self.is_own_beat(group, 1) && !self.is_own_beat(group, 0);
        let ends_ns = match short || early {
            true => clock.beat_ends_ns(beat.number.saturating_add(1)),
            false => beat.ends_ns,
        };
        if let Some(together) = &mut self.together {
            let longest_ns = together.longest_ns();
            together.slice_ends_ns = ends_ns.min(now_ns.saturating_add(longest_ns));
        }
    }
}
