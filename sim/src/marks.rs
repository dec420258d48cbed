//! Coverage marks: paths that a run must have taken, or it shows nothing about them.

use std::collections::BTreeMap;

use crate::world::Report;

/// How often each path was taken.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    times: BTreeMap<&'static str, u64>,
}

impl Marks {
    /// Counts the paths that a seed took.
    pub fn add(&mut self, report: &Report) {
        let counters = report.counters;
        for (mark, times) in [
            (
                "call: written straight into the zone",
                counters.direct_writes,
            ),
            ("call: staged", counters.staged_calls),
            ("call: answered", report.answered),
            ("call: failed", report.failed),
            ("call: cancelled", report.cancelled),
            ("switch", counters.switches),
            ("switch event: on an answer", counters.switch_events_ridden),
            (
                "switch event: in a WRITE of its own",
                counters.switch_events_extra,
            ),
            ("zone freed: quiet message", counters.zones_quiet),
            ("zone freed: revocation", counters.zones_revoked),
            ("zone freed: fence", counters.zones_fenced),
            ("WRITE refused: revoked tenancy", report.refused),
            ("connection ended: violation", counters.violations),
            ("connection ended: failure", counters.failures),
            ("fetch outlasted its tenancy", counters.guests),
            ("groups merged", counters.merges),
            ("stall: queue or send area full", counters.stalls),
        ] {
            *self.times.entry(mark).or_default() += times;
        }
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
