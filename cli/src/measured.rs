//! What a load came to, on the clients' side and on the server's.

use std::time::Duration;

use scalerpc::{Counters, ServerBytes};

use crate::messages::{Latencies, METHODS, Report};

/// Problems that are told in words.
const EXAMPLES_MAX: usize = 8;

/// What the clients saw of one server.
pub(crate) struct Load {
    /// By method, in the order of [`scalerpc_cli::meta::wire::Method::ALL`].
    pub(crate) methods: [Latencies; METHODS],
    /// Answers that were wrong.
    pub(crate) wrong_answers: u64,
    /// Calls that ended without an answer.
    pub(crate) errors: u64,
    /// The first of both, in words.
    pub(crate) examples: Vec<String>,
    /// Calls that ended while a round lasted: what throughput is computed from.
    in_time: u64,
    /// How long the rounds lasted in all.
    ns: u64,
    /// Throughput of each round, in calls per second.
    pub(crate) rounds: Vec<u64>,
    round_in_time: u64,
}

impl Load {
    /// Nothing yet; `None` only if the bounds of the histograms are not possible.
    pub(crate) fn new() -> Option<Self> {
        let none = Latencies::new()?;
        Some(Self {
            methods: std::array::from_fn(|_| none.clone()),
            wrong_answers: 0,
            errors: 0,
            examples: Vec::new(),
            in_time: 0,
            ns: 0,
            rounds: Vec::new(),
            round_in_time: 0,
        })
    }

    /// Adds what a client process reports.
    pub(crate) fn add(&mut self, report: &Report) {
        for (latencies, tally) in self.methods.iter_mut().zip(&report.methods) {
            latencies.add(tally);
        }
        self.wrong_answers += report.wrong_answers;
        self.errors += report.errors;
        self.round_in_time += report.in_time;
        let room = EXAMPLES_MAX - self.examples.len();
        self.examples
            .extend(report.examples.iter().take(room).cloned());
    }

    /// A round is over that lasted so long.
    pub(crate) fn end_round(&mut self, ns: u64) {
        let calls = std::mem::take(&mut self.round_in_time);
        self.in_time += calls;
        self.ns += ns;
        self.rounds.push(per_second(calls, ns));
    }

    /// Calls that were answered.
    pub(crate) fn operations(&self) -> u64 {
        self.methods.iter().map(Latencies::count).sum()
    }

    /// Calls per second while the rounds lasted.
    pub(crate) fn throughput(&self) -> u64 {
        per_second(self.in_time, self.ns)
    }

    /// How long the rounds lasted in all.
    pub(crate) fn seconds(&self) -> f64 {
        self.ns as f64 / 1e9
    }

    /// Latencies of all methods together.
    pub(crate) fn all(&self) -> Latencies {
        let mut methods = self.methods.iter();
        // There is at least one method.
        let mut all = methods
            .next()
            .cloned()
            .unwrap_or_else(|| self.methods[0].clone());
        methods.for_each(|latencies| all.merge(latencies));
        all
    }
}

/// Calls per second.
pub(crate) fn per_second(calls: u64, ns: u64) -> u64 {
    let rate = u128::from(calls) * 1_000_000_000 / u128::from(ns.max(1));
    rate.try_into().unwrap_or(u64::MAX)
}

/// What happened at a server.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// Counters since all clients were there; slices of the rounds only.
    pub(crate) counters: Counters,
    /// Groups at the start.
    pub(crate) groups: u64,
    /// What its memory comes to.
    pub(crate) bytes: ServerBytes,
    /// All of it, whole pages.
    pub(crate) all_bytes: usize,
    /// How long a group was served while others waited, at the end.
    pub(crate) time_slice: Duration,
    /// Bytes of a page.
    pub(crate) page_size: usize,
    /// The pages, and why they are no better.
    pub(crate) backing: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_counts_what_ended_in_time() {
        let mut load = Load::new().unwrap();
        load.round_in_time = 500;
        load.end_round(250_000_000);
        load.round_in_time = 100;
        load.end_round(250_000_000);
        assert_eq!(load.throughput(), 1200);
        assert_eq!(load.rounds, [2000, 400]);
        assert_eq!(per_second(1, 0), 1_000_000_000);
    }
}
