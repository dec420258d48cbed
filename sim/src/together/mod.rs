//! Several servers, and what it is worth that their slices keep step.
//!
//! A client's operation is one call to each server, and is done when all have answered. The servers' clocks differ by
//! seconds and drift by up to 100 ppm; messages about time take 1 to 4 us each way, some much longer, and some are
//! lost. Everything else has a fixed cost, see [`Costs`].

mod farm;
mod hosts;

use std::fmt;

use farm::Farm;
pub use farm::{Load, Mode, Outcome};
use hosts::Hosts;

use crate::oracle::Broken;

/// Servers that an operation needs.
pub const SERVERS: usize = 4;
/// In which the clocks settle, before the servers start.
const SETTLE_NS: u64 = 2_500_000_000;

/// How long things take. One thread runs a server, and does one thing at a time.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A call: to take it, to run the handler, and to post the answer.
    pub handler_ns: u64,
    /// A READ, or a switch event of its own, is posted.
    pub post_ns: u64,
    /// A round in which there is nothing to do.
    pub round_ns: u64,
    /// A WRITE, from the post until its bytes are there and its completion can be polled.
    pub write_ns: u64,
    /// A READ: there and back.
    pub read_ns: u64,
    /// From when an answer has arrived until the client has posted what follows from it.
    pub client_ns: u64,
}

impl Default for Costs {
    /// Between the figures that are published for RC verbs within a rack (1 to 2 us for a WRITE, 2 to 3 for a READ) and
    /// what a simple handler takes.
    fn default() -> Self {
        Self {
            handler_ns: 300,
            post_ns: 100,
            round_ns: 100,
            write_ns: 1_000,
            read_ns: 2_000,
            client_ns: 200,
        }
    }
}

/// The loads of the table.
pub const LOADS: &[(&str, Load)] = &{
    let base = Load {
        clients: 32,
        group_size: 8,
        depth: 1,
        think_ns: 0,
        slice_ns: 100_000,
        idle_switch_ns: 10_000,
    };
    let patient = u64::MAX;
    [
        ("4 groups", base),
        ("4 groups, 4 operations at once", Load { depth: 4, ..base }),
        (
            "4 groups, whole slices",
            Load {
                idle_switch_ns: patient,
                ..base
            },
        ),
        (
            "4 groups, 4 at once, whole slices",
            Load {
                depth: 4,
                idle_switch_ns: patient,
                ..base
            },
        ),
        (
            "10 groups",
            Load {
                clients: 80,
                ..base
            },
        ),
        (
            "10 groups, whole slices",
            Load {
                clients: 80,
                idle_switch_ns: patient,
                ..base
            },
        ),
        (
            "4 groups, pause of 300 us",
            Load {
                think_ns: 300_000,
                ..base
            },
        ),
        ("1 group", Load { clients: 8, ..base }),
    ]
};

/// What one load came to, apart and together.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    /// For which virtual time each was measured.
    pub ns: u64,
    /// Each server by itself, with the same groups everywhere.
    pub apart: Outcome,
    /// Each server by itself, with groups as they come.
    pub mixed: Outcome,
    /// Three follow the first.
    pub together: Outcome,
}

impl Compared {
    /// Operations together per operation apart, the same groups everywhere, in 1/1000.
    pub fn gain(&self) -> u64 {
        self.together.operations * 1_000 / self.apart.operations.max(1)
    }

    /// Operations together per operation apart, groups as they come, in 1/1000.
    pub fn gain_mixed(&self) -> u64 {
        self.together.operations * 1_000 / self.mixed.operations.max(1)
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |it: &Outcome| it.operations * 1_000_000 / (self.ns / 1_000).max(1) / 1_000;
        let part = |gain: u64| format!("{}.{:02}", gain / 1_000, gain % 1_000 / 10);
        write!(
            f,
            "{} | {} | {} | {} | {} | {}.{:02}",
            rate(&self.mixed),
            rate(&self.apart),
            rate(&self.together),
            part(self.gain_mixed()),
            part(self.gain()),
            self.together.off_ns / 1_000,
            self.together.off_ns % 1_000 / 10,
        )
    }
}

/// Runs a load for so long of virtual time, after a fifth of it to warm up.
///
/// # Errors
///
/// A rule that was broken, or beats that are further apart than the followers say.
pub fn run(load: Load, costs: Costs, mode: Mode, ns: u64, seed: u64) -> Result<Outcome, Broken> {
    let settle_ns = match mode {
        Mode::Together => SETTLE_NS,
        Mode::Apart | Mode::Mixed => 0,
    };
    let hosts = Hosts::settled(SERVERS, load.rotation()?, settle_ns, seed)?;
    let mut farm = Farm::new(load, costs, mode, hosts, seed)?;
    farm.run(ns / 5)?;
    farm.run(ns)
}

/// Runs a load apart and together, with the same seed.
///
/// # Errors
///
/// As [`run`].
pub fn compare(load: Load, costs: Costs, ns: u64, seed: u64) -> Result<Compared, Broken> {
    Ok(Compared {
        ns,
        apart: run(load, costs, Mode::Apart, ns, seed)?,
        mixed: run(load, costs, Mode::Mixed, ns, seed)?,
        together: run(load, costs, Mode::Together, ns, seed)?,
    })
}
