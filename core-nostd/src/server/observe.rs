//! What can be seen of an engine while it runs: distributions, and views of its groups and connections.
//!
//! Distributions grow when a slice or a tenancy ends, never with a call, and know only the times that come in.

use super::ServerEngine;
use super::priority::Class;
use super::records::{ConnState, NONE, ZoneState};
use crate::histogram::Histogram;
use crate::store::Store;

/// A connection's wait is kept in units of 2^this nanoseconds, about a microsecond, in 32 bits.
const WAIT_SHIFT: u32 = 10;

/// Distributions since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histograms {
    /// A slice with calls, from its beginning to that of the next one: its drain is part of it.
    pub slice_ns: Histogram,
    /// Time that a drain was charged with, at a switch that had one.
    pub drain_ns: Histogram,
    /// From when a connection's demand was seen to when it was served, in steps of 1,024 ns.
    pub wait_ns: Histogram,
    /// From a batch's first READ to its last completion.
    pub fetch_ns: Histogram,
    /// From when a zone entered quarantine to when it was free.
    pub quarantine_ns: Histogram,
    /// Calls taken in a slice with calls.
    pub calls_per_slice: Histogram,
}

impl Histograms {
    /// Names, with the unit where there is one, in the order of [`all`](Self::all).
    pub const NAMES: [&'static str; 6] = [
        "slice_ns",
        "drain_ns",
        "wait_ns",
        "fetch_ns",
        "quarantine_ns",
        "calls_per_slice",
    ];

    /// All of them.
    pub fn all(&self) -> [&Histogram; 6] {
        [
            &self.slice_ns,
            &self.drain_ns,
            &self.wait_ns,
            &self.fetch_ns,
            &self.quarantine_ns,
            &self.calls_per_slice,
        ]
    }

    /// All of them, to be changed.
    pub fn all_mut(&mut self) -> [&mut Histogram; 6] {
        [
            &mut self.slice_ns,
            &mut self.drain_ns,
            &mut self.wait_ns,
            &mut self.fetch_ns,
            &mut self.quarantine_ns,
            &mut self.calls_per_slice,
        ]
    }
}

/// What the engine keeps for its distributions.
#[derive(Debug, Default)]
pub(super) struct Observed {
    histograms: Histograms,
    slice_since_ns: u64,
    /// Calls taken before the slice.
    slice_calls: u64,
}

/// A group as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its class.
    pub class: Class,
    /// Connections in it, at least one.
    pub members: u32,
    /// Some of them wait.
    pub has_demand: bool,
}

/// A connection as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnView {
    /// What it is doing.
    pub state: ConnState,
    /// The zone that it holds, if any, as an index over both pools.
    pub zone: Option<u32>,
    /// Its group; with static mapping there is none.
    pub group: Option<u32>,
    /// With whom it is served.
    pub class: Class,
    /// The octave of its priority, once it was measured.
    pub score: Option<u8>,
    /// Calls that were taken from it.
    pub calls: u64,
    /// Of those, the ones that are not answered yet.
    pub answers_owed: u16,
    /// For how long it has had demand without being served; `None` if it has none.
    pub waited_ns: Option<u64>,
    /// The longest wait that came to an end, in all its life; up to 1/8 too high.
    pub worst_wait_ns: u64,
}

/// A zone in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineView {
    /// Its index over both pools.
    pub zone: u32,
    /// Seat of the connection that may still write to it.
    pub seat: u32,
    /// The tenancy of that connection.
    pub epoch: u64,
    /// For how long.
    pub age_ns: u64,
    /// Revocations that were asked for.
    pub tries: u8,
    /// That connection is still to be told that its tenancy is over.
    pub event_owed: bool,
}

impl<S: Store> ServerEngine<S> {
    /// Distributions of what happened so far.
    pub fn histograms(&self) -> &Histograms {
        &self.observed.histograms
    }

    /// The time that the engine was told last.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The group that is served is being told that its slice is over.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Records of groups that there are, most of them empty as a rule.
    pub fn groups_max(&self) -> u32 {
        self.memory.groups.len() as u32
    }

    /// A group, unless it is empty.
    pub fn group(&self, group: u32) -> Option<GroupView> {
        let record = self.memory.groups.get(group as usize)?;
        (record.len > 0).then_some(GroupView {
            class: record.class,
            members: record.len,
            has_demand: record.wait_head != NONE,
        })
    }

    /// A connection, or `None` if the seat is free.
    pub fn conn(&self, seat: u32) -> Option<ConnView> {
        let conn = self.memory.conns.get(seat as usize)?;
        let class = self.class(seat)?;
        let waits = conn.waiting || conn.state == ConnState::Fetching;
        Some(ConnView {
            state: conn.state,
            zone: (conn.zone != NONE).then_some(conn.zone),
            group: (conn.group != NONE).then_some(conn.group),
            class,
            score: self.score(seat),
            calls: conn.next_call - 1,
            answers_owed: conn.answers_owed,
            waited_ns: waits.then(|| self.waited_ns(seat)),
            worst_wait_ns: match self.memory.members[seat as usize].rating.worst_wait {
                0 => 0,
                bucket => Histogram::bucket_max(bucket),
            },
        })
    }

    /// A zone in quarantine, by its place in the list of those; the order has no meaning.
    pub fn quarantined(&self, place: u32) -> Option<QuarantineView> {
        let held = &self.memory.quarantine[..self.quarantined];
        let zone = *held.get(place as usize)?;
        let record = &self.memory.zones[zone as usize];
        debug_assert_eq!(record.state, ZoneState::Quarantined);
        Some(QuarantineView {
            zone,
            seat: record.conn,
            epoch: record.epoch,
            age_ns: self.now_ns.saturating_sub(record.held_ns),
            tries: record.tries,
            event_owed: record.event_owed,
        })
    }

    /// Demand of a connection was seen.
    pub(super) fn note_demand(&mut self, seat: u32) {
        self.memory.conns[seat as usize].demand_at = (self.now_ns >> WAIT_SHIFT) as u32;
    }

    fn waited_ns(&self, seat: u32) -> u64 {
        let now = (self.now_ns >> WAIT_SHIFT) as u32;
        let since = self.memory.conns[seat as usize].demand_at;
        u64::from(now.wrapping_sub(since)) << WAIT_SHIFT
    }

    /// A connection's batch is there: it is served from now on.
    pub(super) fn note_served(&mut self, seat: u32) {
        let waited_ns = self.waited_ns(seat);
        let conn = &self.memory.conns[seat as usize];
        let rating = &mut self.memory.members[seat as usize].rating;
        rating.worst_wait = rating.worst_wait.max(Histogram::bucket_of(waited_ns));
        let begun_ns = self.memory.zones[conn.zone as usize].since_ns;
        let histograms = &mut self.observed.histograms;
        histograms.wait_ns.record(waited_ns);
        let fetched_ns = self.now_ns.saturating_sub(begun_ns);
        histograms.fetch_ns.record(fetched_ns);
    }

    /// A zone in quarantine is free.
    pub(super) fn note_release(&mut self, zone: u32) {
        let held_ns = self.memory.zones[zone as usize].held_ns;
        let age_ns = self.now_ns.saturating_sub(held_ns);
        self.observed.histograms.quarantine_ns.record(age_ns);
    }

    /// The pools are about to swap.
    pub(super) fn note_switch(&mut self) {
        // A led engine may be told to switch from a pool that nobody has.
        let served = &self.tenancies[self.processing as usize];
        if self.draining && served.group != NONE {
            self.observed.histograms.drain_ns.record(self.drained_ns);
        }
    }

    /// A slice begins, which ends the one before it.
    pub(super) fn note_slice(&mut self) {
        let Observed {
            histograms,
            slice_since_ns,
            slice_calls,
        } = &mut self.observed;
        let calls = self.counters.calls - *slice_calls;
        // Without demand slices go on and on, and would drown the others.
        if calls > 0 {
            let slice_ns = self.now_ns.saturating_sub(*slice_since_ns);
            histograms.slice_ns.record(slice_ns);
            histograms.calls_per_slice.record(calls);
        }
        *slice_since_ns = self.now_ns;
        *slice_calls = self.counters.calls;
    }

    /// What the distributions must add up to, for [`census`](Self::census).
    pub(super) fn count_observed(&self) -> Result<(), &'static str> {
        let Histograms {
            drain_ns,
            wait_ns,
            quarantine_ns,
            calls_per_slice,
            ..
        } = self.histograms();
        let counters = self.counters();
        if quarantine_ns.count() + counters.quarantined_now != counters.quarantined_zones {
            return Err("zones that left quarantine are not those in its distribution");
        }
        if calls_per_slice.sum() > counters.calls || drain_ns.count() > counters.switches {
            return Err("there are more slices or drains in the distributions than there were");
        }
        if wait_ns.count() > counters.warmup_reads {
            return Err("more connections were served than fetched");
        }
        Ok(())
    }
}
