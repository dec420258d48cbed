//! What the parent and its client processes tell each other: one JSON object a line, over a pair of
//! sockets. It is some hundred bytes a few times a second, and no call waits for it.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use scalerpc_cli::meta::wire::Method;

/// Number of methods.
pub(crate) const METHODS: usize = Method::ALL.len();

/// Longest latency that is told apart from longer ones: a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Significant digits of a latency: it is off by at most 0.1 %.
const DIGITS: u8 = 3;

/// An order to a client process. Times are on the clock that parent and children share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Connect to all targets.
    Connect {
        /// Where they listen, if that was not known before.
        addresses: Vec<String>,
    },
    /// Load one target until then, take the answers that are still out, and say so.
    Load {
        /// Which server.
        target: usize,
        /// The end.
        until_ns: u64,
    },
    /// Remove the nodes that this process created on that target, until then at the latest.
    CleanUp {
        /// Which server.
        target: usize,
        /// The end.
        until_ns: u64,
    },
    /// End.
    Exit,
}

/// News from a client process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum News {
    /// All connections are up.
    Connected,
    /// It cannot go on.
    Failed(String),
    /// What happened since the last report.
    Report(Box<Report>),
}

/// What happened on a target since the last report.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Which server.
    pub(crate) target: usize,
    /// By method, in the order of [`Method::ALL`].
    pub(crate) methods: [Tally; METHODS],
    /// Calls whose answer was in before the end of the order.
    pub(crate) in_time: u64,
    /// Answers that were wrong.
    pub(crate) wrong_answers: u64,
    /// Calls that ended without an answer.
    pub(crate) errors: u64,
    /// The first of both, in words.
    pub(crate) examples: Vec<String>,
    /// Connections that are still up.
    pub(crate) connections: u32,
    /// The order has been carried out.
    pub(crate) done: bool,
}

/// Calls of one method, with their latencies.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Calls that were answered.
    pub(crate) calls: u64,
    /// Longest latency, exactly.
    pub(crate) max_ns: u64,
    /// Latencies that occurred, rounded, and how often.
    pub(crate) latencies: Vec<(u64, u64)>,
}

/// Latencies of one method.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    max_ns: u64,
}

impl Latencies {
    /// None yet; `None` only if the constants above are not possible.
    pub(crate) fn new() -> Option<Self> {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS).ok()?;
        Some(Self {
            histogram,
            max_ns: 0,
        })
    }

    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.max_ns = self.max_ns.max(ns);
        self.histogram.saturating_record(ns);
    }

    /// Calls recorded.
    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency that this share of the calls does not exceed, 0 if there are none.
    pub(crate) fn quantile_ns(&self, quantile: f64) -> u64 {
        // A value stands for a small range of them, which may end above the largest that occurred.
        self.histogram.value_at_quantile(quantile).min(self.max_ns)
    }

    /// Takes everything out, for a report.
    pub(crate) fn take(&mut self) -> Tally {
        let recorded = self.histogram.iter_recorded();
        let tally = Tally {
            calls: self.histogram.len(),
            max_ns: self.max_ns,
            latencies: recorded
                .map(|step| (step.value_iterated_to(), step.count_at_value()))
                .collect(),
        };
        self.histogram.reset();
        self.max_ns = 0;
        tally
    }

    /// Adds what another process reports.
    pub(crate) fn add(&mut self, tally: &Tally) {
        self.max_ns = self.max_ns.max(tally.max_ns);
        for &(value, count) in &tally.latencies {
            self.histogram.saturating_record_n(value, count);
        }
    }

    /// Adds other latencies.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.max_ns = self.max_ns.max(other.max_ns);
        for step in other.histogram.iter_recorded() {
            self.histogram
                .saturating_record_n(step.value_iterated_to(), step.count_at_value());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_survive_the_way_to_the_parent() {
        let mut child = Latencies::new().unwrap();
        for ns in (0..10_000_u64).map(|n| n * 37) {
            child.record(ns);
        }
        let tally = child.take();
        assert_eq!(child.count(), 0);
        let text = serde_json::to_string(&tally).unwrap();
        let mut parent = Latencies::new().unwrap();
        parent.add(&serde_json::from_str(&text).unwrap());
        assert_eq!((parent.count(), parent.max_ns()), (10_000, 9_999 * 37));
        let median = parent.quantile_ns(0.5) as f64;
        assert!((median / (5_000.0 * 37.0) - 1.0).abs() < 0.002, "{median}");
        assert_eq!(parent.quantile_ns(1.0), 9_999 * 37);
        let mut both = Latencies::new().unwrap();
        both.merge(&parent);
        both.merge(&parent);
        assert_eq!((both.count(), both.max_ns()), (20_000, 9_999 * 37));
    }

    #[test]
    fn latencies_beyond_every_bound_are_kept() {
        let mut latencies = Latencies::new().unwrap();
        latencies.record(0);
        latencies.record(u64::MAX);
        assert_eq!((latencies.count(), latencies.max_ns()), (2, u64::MAX));
    }
}
