//! Coverage marks: paths that a run must have taken, or it shows nothing about them.

use std::collections::BTreeMap;

use scalerpc_core::server::Counters;

use crate::world::Report;

/// Seeds after which every path must have been taken.
pub const SEEDS_FOR_MARKS: u64 = 300;
/// The same for teams.
pub const TEAM_SEEDS_FOR_MARKS: u64 = 120;

/// What the world itself marks.
const MARKED: &[&str] = &[
    "answer to a connection that ended",
    "beat set",
    "batch of several READs",
    "call answered",
    "call answered later",
    "call cancelled",
    "call cancelled before it was sent",
    "call failed",
    "chain of READs posted in part",
    "client died",
    "client stopped for a while",
    "client stopped for ever",
    "common clock jumped",
    "completions together",
    "connected",
    "connection failed",
    "deferred call of a connection that ended",
    "deferred call waits for a send slot",
    "group replaced: its fetch hangs",
    "lie: another's demand byte",
    "lie: entry with one hostile number",
    "lie: nonsense at another's places",
    "lie: nonsense at its own places",
    "lie: request with a hostile head",
    "limit set",
    "lone caller",
    "post refused",
    "priority set",
    "quiet message of its own",
    "revocation pending",
    "slice made longer",
    "slice made shorter",
    "switch event to a client in Warmup",
    "the server slept",
    "the server was woken by demand",
    "the server woke up because a zone was due",
    "time: another time server",
    "time: answer lost",
    "time: answer too slow",
    "time: answer to an earlier request",
    "time: answer that cannot be",
    "time: clock adjusted",
    "time: follower alone",
    "WRITE refused, tenancy revoked",
];

/// What a team of workers marks, of which each is a world besides.
const MARKED_BY_TEAM: &[&str] = &[
    "all clients of one worker",
    "fetch outlasted its tenancy",
    "group replaced: it hangs",
    "group replaced: nobody wants it any more",
    "lone caller among workers",
    "order of a group",
    "order to switch",
    "served by several workers at once",
    "worker stopped for a while",
];

/// What counters say of paths.
pub(crate) fn counted(counters: &Counters) -> [(&'static str, u64); 19] {
    [
        ("call staged", counters.staged_calls),
        (
            "call written straight into the zone",
            counters.direct_writes,
        ),
        ("call not run: budget used up", counters.calls_late),
        ("call not run: busy", counters.calls_busy),
        ("call not run: cancelled", counters.calls_cancelled),
        ("connection ended: failure", counters.failures),
        ("connection ended: violation", counters.violations),
        ("fetch outlasted its tenancy", counters.guests),
        ("connection moved to a group of its class", counters.moves),
        ("group drained for the sake of rest", counters.rests),
        ("group went first in its beat", counters.beats_first),
        ("groups merged", counters.merges),
        ("stall: queue or send area full", counters.stalls),
        ("switch", counters.switches),
        ("switch event on an answer", counters.switch_events_ridden),
        ("switch event on its own", counters.switch_events_extra),
        ("zone freed: fence", counters.zones_fenced),
        ("zone freed: quiet message", counters.zones_quiet),
        ("zone freed: revocation", counters.zones_revoked),
    ]
}

/// How often each path was taken.
#[derive(Clone, Debug)]
pub struct Marks {
    times: BTreeMap<&'static str, u64>,
    /// The paths that must be taken; all that are known if there is no list.
    required: Option<&'static [&'static str]>,
    /// The longest wait for an answer in a calm time, in 1/1000 of the bound.
    pub longest_wait: u64,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            times: MARKED.iter().map(|mark| (*mark, 0)).collect(),
            required: None,
            longest_wait: 0,
        }
    }
}

impl Marks {
    /// Of teams of workers.
    pub fn of_teams() -> Self {
        Self {
            times: MARKED_BY_TEAM.iter().map(|mark| (*mark, 0)).collect(),
            required: Some(MARKED_BY_TEAM),
            ..Self::default()
        }
    }

    /// Counts the paths that a seed took.
    pub fn add(&mut self, report: &Report) {
        for (mark, times) in counted(&report.counters) {
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
            .filter(|(mark, _)| self.required.is_none_or(|required| required.contains(mark)))
            .map(|(mark, _)| mark)
    }
}
