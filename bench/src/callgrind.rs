//! Counts instructions: this program runs once more, under Callgrind.
//!
//! What is counted are the functions of [`rig`](crate::rig) whose names begin with `counted_`, with all that they call,
//! from when it entered `counting_begins`. They run in one thread and by a clock of their own, so the same program
//! counts the same, whatever else the machine does.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::rig::Scenario;

/// What a run has come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Calls that were answered.
    pub(crate) calls: u64,
    /// Rounds of the server.
    pub(crate) rounds: u64,
    /// Tenancies that have ended: connections that were told that their slice is over.
    pub(crate) tenancies: u64,
    /// Context switches.
    pub(crate) switches: u64,
    /// Bytes of the server's memory that do not depend on the number of seats, but for what groups take.
    pub(crate) bytes_fixed: u64,
    /// Bytes for each further seat.
    pub(crate) bytes_per_client: u64,
}

/// Instructions by function, without `counted_`.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub(crate) done: Done,
    by_function: BTreeMap<String, u64>,
}

impl Counts {
    /// Instructions of `counted_` and this name, with all that it called.
    pub(crate) fn of(&self, function: &str) -> f64 {
        self.by_function.get(function).copied().unwrap_or(0) as f64
    }
}

/// Runs a scenario under Callgrind.
pub(crate) fn count(scenario: &Scenario) -> Result<Counts, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("counts");
    let mut command = Command::new("valgrind");
    command
        // The thread that admits clients must have its turn while this one waits.
        .args(["--tool=callgrind", "--fair-sched=yes"])
        .arg("--zero-before=*counting_begins*")
        // Names and places in full, so that a line says by itself what it is about.
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(["counted", &serde_json::to_string(scenario)?]);
    let output = command.output().map_err(|error| {
        format!("valgrind could not be started: {error}; install it (Debian: valgrind)")
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {said}", output.status).into());
    }
    Ok(Counts {
        done: serde_json::from_slice(&output.stdout)?,
        by_function: parse(&std::fs::read_to_string(&out)?),
    })
}

/// Adds up what a profile says of each function that counts: `fn=` begins what is about one, and each line of costs
/// there, `place instructions`, is its own or, after `calls=`, of all that was called.
fn parse(profile: &str) -> BTreeMap<String, u64> {
    let mut by_function = BTreeMap::new();
    let mut function = None;
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            let counted = name.split_once("counted_").map(|(_, name)| name);
            let name =
                counted.map(|name| name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
            function = name.and_then(|mut parts| parts.next());
        } else if let (Some(function), Some((place, cost))) = (function, line.split_once(' ')) {
            let place_is_a_number = place
                .trim_start_matches("0x")
                .chars()
                .all(|c| c.is_ascii_hexdigit());
            if let (true, Ok(cost)) = (place_is_a_number, cost.parse::<u64>()) {
                *by_function.entry(function.to_owned()).or_insert(0) += cost;
            }
        }
    }
    by_function
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_costs_what_it_does_and_what_it_calls() {
        let profile = "events: Instructions\n\
            fn=main\n10 5\ncfn=bench::counted_serve\ncalls=2 20\n11 900\n\n\
            fn=bench::counted_serve\n20 30\nfi=other.rs\n7 4\nfe=mine.rs\n+0 1\ncfn=poll\ncalls=2 40\n21 866\n\n\
            fn=bench::rig::counted_send::h0123456789abcdef\n0 12\n\n\
            fn=poll\n40 866\ntotals: 917\n";
        let counts = parse(profile);
        assert_eq!(counts.get("serve"), Some(&900));
        assert_eq!(counts.get("send"), Some(&12));
        assert_eq!(counts.len(), 2);
    }
}
