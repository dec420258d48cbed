//! Coverage marks: paths that a run must have taken, or it shows nothing about them.

use std::collections::BTreeMap;

use crate::world::Report;

/// Seeds after which every path must have been taken.
pub const SEEDS_FOR_MARKS: u64 = 300;

/// What the world itself marks.
const MARKED: &[&str] = &[
    "answer to a connection that ended",
    "batch of several READs",
    "call answered",
    "call answered later",
    "call cancelled",
    "call failed",
    "chain of READs posted in part",
    "client died",
    "client stopped for a while",
    "client stopped for ever",
    "completions together",
    "connected",
    "connection failed",
    "lie: another's demand byte",
    "lie: entry with one hostile number",
    "lie: nonsense at another's places",
    "lie: nonsense at its own places",
    "lie: request with a hostile head",
    "lone caller",
    "post refused",
    "priority set",
    "quiet message of its own",
    "revocation pending",
    "switch event to a client in Warmup",
    "WRITE refused, tenancy revoked",
];

/// How often each path was taken.
#[derive(Clone, Debug)]
pub struct Marks {
    times: BTreeMap<&'static str, u64>,
    /// The longest wait for an answer in a calm time, in 1/1000 of the bound.
    pub longest_wait: u64,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            times: MARKED.iter().map(|mark| (*mark, 0)).collect(),
            longest_wait: 0,
        }
    }
}

impl Marks {
    /// Counts the paths that a seed took.
    pub fn add(&mut self, report: &Report) {
        let counters = report.counters;
        for (mark, times) in [
            ("call staged", counters.staged_calls),
            (
                "call written straight into the zone",
                counters.direct_writes,
            ),
            ("connection ended: failure", counters.failures),
            ("connection ended: violation", counters.violations),
            ("fetch outlasted its tenancy", counters.guests),
            ("connection moved to a group of its class", counters.moves),
            ("groups merged", counters.merges),
            ("stall: queue or send area full", counters.stalls),
            ("switch", counters.switches),
            ("switch event on an answer", counters.switch_events_ridden),
            ("switch event on its own", counters.switch_events_extra),
            ("zone freed: fence", counters.zones_fenced),
            ("zone freed: quiet message", counters.zones_quiet),
            ("zone freed: revocation", counters.zones_revoked),
        ] {
            *self.times.entry(mark).or_default() += times;
        }
        for (mark, times) in &report.marks {
            *self.times.entry(mark).or_default() += times;
        }
        self.longest_wait = self.longest_wait.max(report.longest_wait);
    }

    /// Adds what other seeds took.
    pub fn merge(&mut self, other: &Self) {
        for (mark, times) in other.all() {
            *self.times.entry(mark).or_default() += times;
        }
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }

    /// Every mark, and how often it was reached.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.times.iter().map(|(mark, times)| (*mark, *times))
    }

    /// Marks that were never reached.
    pub fn missing(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.all()
            .filter(|(_, times)| *times == 0)
            .map(|(mark, _)| mark)
    }
}
