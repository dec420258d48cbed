//! How long a slice is: fixed, or chosen so that switches take a stated share of the time.
//!
//! What a switch costs is measured in rounds, the stretches between two times that come in. A round in which
//! something was done for a switch (READs of the next group, the drain, the time until the first call of the new
//! tenancy) costs what it took beyond its calls, at what a call takes in the rounds without. The sum from one switch
//! to the next is a sample; the cost is a moving average of samples, none of which counts for more than twice the
//! average, so that a thread that did not run for a while hardly counts.
//!
//! With cost `c` and share `s`, slices of `w = c (1 - s) / s` would do. The present one grows by an eighth at a
//! switch while it is below `w`, and shrinks by an eighth while it is above [`SLACK`] times `w`: a step is smaller
//! than that band, so under constant load the length comes to rest.

use super::ServerEngine;
use crate::mutant::{self, Bug};
use crate::store::Store;

/// Samples that a moving average is made of, roughly.
const AVERAGED: u64 = 8;
/// A slice changes by one such part of itself.
const STEP_PARTS: u64 = 8;
/// As a fraction: how much longer than it had to be a slice may be.
const SLACK: (u64, u64) = (3, 2);
/// Shares are in so many parts.
const SHARE_PARTS: u64 = 1_000;
/// What a call takes is kept in so many parts of a nanosecond.
const CALL_PARTS: u64 = 16;
/// A sample may exceed twice the average by so much, so that the average leaves zero.
const LEAST_ROOM: u64 = 64;
/// Calls whose time is averaged before it counts.
const CALLS_MEASURED: u64 = 256;

/// Slices whose length follows what a switch costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveSlice {
    /// Shortest slice, at least 1.
    pub min_ns: u64,
    /// Longest slice, at least `min_ns`.
    pub max_ns: u64,
    /// Of the time, what switches are to take at most, in 1/1000: 1 to 999.
    pub share_permille: u32,
}

impl Default for AdaptiveSlice {
    fn default() -> Self {
        Self {
            min_ns: 50_000,
            max_ns: 10_000_000,
            share_permille: 50,
        }
    }
}

impl AdaptiveSlice {
    /// With numbers that can be used instead of those that cannot.
    fn checked(self) -> Self {
        let min_ns = self.min_ns.max(1);
        Self {
            min_ns,
            max_ns: self.max_ns.max(min_ns),
            share_permille: self.share_permille.clamp(1, SHARE_PARTS as u32 - 1),
        }
    }

    /// The shortest slice with which switches of this cost take no more than their share.
    fn wanted_ns(&self, cost_ns: u64) -> u64 {
        let share = u64::from(self.share_permille);
        cost_ns.saturating_mul(SHARE_PARTS - share) / share
    }
}

/// The present length of a slice, and what it follows from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    /// Length of the slices of class Normal.
    pub(super) ns: u64,
    adaptive: Option<AdaptiveSlice>,
    /// Moving averages: of a switch, and of a call in 1/`CALL_PARTS` ns.
    cost_ns: u64,
    call_parts: u64,
    /// Since the last switch.
    spent_ns: u64,
    /// Time and number of calls in rounds without anything of a switch, until they make an average.
    plain_ns: u64,
    plain_calls: u64,
    /// Something was done for a switch in this round.
    switching: bool,
    /// No call of the new tenancy was taken yet.
    first_awaited: bool,
}

impl Slice {
    pub(super) fn new(first_ns: u64, adaptive: Option<AdaptiveSlice>) -> Self {
        let adaptive = adaptive.map(AdaptiveSlice::checked);
        let ns = match adaptive {
            Some(it) => first_ns.clamp(it.min_ns, it.max_ns),
            None => first_ns,
        };
        Self {
            ns,
            adaptive,
            cost_ns: 0,
            call_parts: 0,
            spent_ns: 0,
            plain_ns: 0,
            plain_calls: 0,
            switching: false,
            first_awaited: false,
        }
    }

    /// Longest slice that there will ever be.
    pub(super) fn max_ns(&self) -> u64 {
        self.adaptive.map_or(self.ns, |it| it.max_ns)
    }

    /// Shortest slice that there will ever be.
    pub(super) fn min_ns(&self) -> u64 {
        self.adaptive.map_or(self.ns, |it| it.min_ns)
    }

    /// The present round has work of a switch.
    #[inline]
    pub(super) fn note_switching(&mut self) {
        self.switching = true;
    }

    /// A round of `calls` calls has ended that took `passed_ns`.
    #[inline]
    pub(super) fn pass(&mut self, passed_ns: u64, calls: u32) {
        if self.adaptive.is_none() {
            return;
        }
        let calls = u64::from(calls);
        if self.switching || self.first_awaited {
            let calls_ns = calls.saturating_mul(self.call_parts) / CALL_PARTS;
            self.spent_ns = self
                .spent_ns
                .saturating_add(passed_ns.saturating_sub(calls_ns));
            self.switching = false;
        } else if calls > 0 {
            self.plain_ns = self.plain_ns.saturating_add(passed_ns);
            self.plain_calls += calls;
            if self.plain_calls >= CALLS_MEASURED {
                let sample = self.plain_ns.saturating_mul(CALL_PARTS) / self.plain_calls;
                self.call_parts = average(self.call_parts, sample);
                (self.plain_ns, self.plain_calls) = (0, 0);
            }
        }
        self.first_awaited &= calls == 0;
    }

    /// The pools have swapped: what this switch cost is known, and the slice follows.
    pub(super) fn switched(&mut self) {
        let Some(adaptive) = self.adaptive else {
            return;
        };
        self.cost_ns = average(self.cost_ns, core::mem::take(&mut self.spent_ns));
        self.first_awaited = true;
        let wanted_ns = adaptive.wanted_ns(self.cost_ns);
        let step_ns = (self.ns / STEP_PARTS).max(1);
        let longest_ns = wanted_ns.saturating_mul(SLACK.0) / SLACK.1;
        if self.ns < wanted_ns {
            self.ns = self.ns.saturating_add(step_ns);
        } else if self.ns > longest_ns && !mutant::is(Bug::SliceNeverShorter) {
            self.ns -= step_ns.min(self.ns);
        }
        if !mutant::is(Bug::SliceUnbounded) {
            self.ns = self.ns.clamp(adaptive.min_ns, adaptive.max_ns);
        }
    }
}

/// A moving average; the first samples count in full.
fn average(old: u64, sample: u64) -> u64 {
    if old == 0 {
        return sample;
    }
    let sample = sample.min(old.saturating_mul(2).saturating_add(LEAST_ROOM));
    // Rounded, so that it comes to rest at a constant sample from either side.
    (old.saturating_mul(AVERAGED - 1).saturating_add(sample) + AVERAGED / 2) / AVERAGED
}

impl<S: Store> ServerEngine<S> {
    /// How long a group of class Normal is served while others wait, as things are now.
    pub fn time_slice_ns(&self) -> u64 {
        self.slice.ns
    }

    /// The bounds of [`time_slice_ns`](Self::time_slice_ns): equal, unless it is adaptive.
    pub fn time_slice_bounds_ns(&self) -> (u64, u64) {
        (self.slice.min_ns(), self.slice.max_ns())
    }

    /// What a switch costs, as measured: 0 if it was not, because slices are not adaptive or there was no switch.
    pub fn switch_cost_ns(&self) -> u64 {
        self.slice.cost_ns
    }
}
