//! Shows that the checks notice bugs: each deliberate bug of the core has to break a rule.
//!
//! Only with `--cfg scalerpc_mutant`; see [`Bug`].

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use scalerpc_core::mutant::{self, Bug};

use crate::play::Cast;

/// Seeds that are played before a bug counts as not noticed.
pub const SEEDS_MAX: u64 = 2_000;

/// How a bug was noticed.
#[derive(Debug)]
pub struct Caught {
    /// Which bug.
    pub name: &'static str,
    /// Seeds that were played, the last one included.
    pub seeds: u64,
    /// What the last one said, or `None`: the bug was not noticed.
    pub why: Option<String>,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.why.as_deref().unwrap_or("NOT NOTICED");
        // What the engines say of themselves is long, and follows.
        let why = why.split(": Counters").next().unwrap_or(why);
        write!(
            f,
            "{:<24} {:>5} seeds {:>6.1} s  {why:.100}",
            self.name,
            self.seeds,
            self.took.as_secs_f64()
        )
    }
}

/// Plays seeds from `first` with each bug whose name contains `filter`, until one breaks a rule.
pub fn run(first: u64, filter: &str, mut report: impl FnMut(&Caught)) -> Vec<Caught> {
    let noise = std::panic::take_hook();
    // A bug may end in a panic, which is as good as a broken rule.
    std::panic::set_hook(Box::new(|_| {}));
    let bugs = Bug::ALL.iter().filter(|bug| bug.name().contains(filter));
    let mut all = Vec::new();
    for bug in bugs {
        mutant::choose(Some(*bug));
        let caught = hunt(*bug, first);
        report(&caught);
        all.push(caught);
    }
    mutant::choose(None);
    std::panic::set_hook(noise);
    all
}

/// Who plays: the bugs of led engines and of the scheduler show only where there is one.
fn cast(bug: Bug) -> Cast {
    match bug {
        Bug::AcknowledgementNotAwaited
        | Bug::ReadyNotAwaited
        | Bug::LedSliceIgnored
        | Bug::LedHungFetchAwaited
        | Bug::WishNotReported
        | Bug::OrderTwice
        | Bug::ReplacedGroupForgotten => Cast::Team,
        _ => Cast::One,
    }
}

fn hunt(bug: Bug, first: u64) -> Caught {
    let start = Instant::now();
    let cast = cast(bug);
    let mut marks = cast.marks();
    let mut caught = Caught {
        name: bug.name(),
        seeds: 0,
        why: None,
        took: Duration::ZERO,
    };
    for seed in first..first + SEEDS_MAX {
        caught.seeds += 1;
        match cast.run_caught(seed) {
            Ok(report) => marks.add(&report),
            Err(broken) => caught.why = broken.lines().next().map(str::to_owned),
        }
        if caught.seeds == cast.seeds_for_marks() {
            let missing: BTreeSet<_> = marks.missing().collect();
            if !missing.is_empty() {
                caught.why = Some(format!("coverage: never reached: {missing:?}"));
            }
        }
        if caught.why.is_some() {
            break;
        }
    }
    caught.took = start.elapsed();
    caught
}
