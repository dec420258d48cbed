//! Instructions of what a call consists of.

use std::error::Error;
use std::fmt::Write;

use clap::Args;
use serde::Serialize;

use crate::callgrind::{Counts as Counted, count};
use crate::rig::Scenario;

/// Instructions that a call, an idle poll and a switch take, by Callgrind
#[derive(Args)]
pub(crate) struct Counts {
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    what: String,
    instructions: f64,
}

impl Counts {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let rows = rows()?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
            return Ok(());
        }
        let mut table = String::new();
        for row in &rows {
            writeln!(table, "{:>10.1}  {}", row.instructions, row.what)?;
        }
        print!("{table}");
        Ok(())
    }
}

fn rows() -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    let mut add = |what: &str, of: &str, instructions: f64| {
        rows.push(Row {
            what: format!("{what}: {of}"),
            instructions: (instructions * 10.0).round() / 10.0,
        });
    };
    for (what, scenario) in [
        ("32 B, 1 connection, 1 call at a time", Scenario::new(1, 1)),
        (
            "32 B, 1 connection, 16 calls at a time",
            Scenario::new(1, 16),
        ),
        (
            "32 B, 64 connections, 16 calls at a time each",
            Scenario::new(64, 16),
        ),
        (
            "4 KiB, 1 connection, 16 calls at a time",
            Scenario {
                bytes: 4096,
                ..Scenario::new(1, 16)
            },
        ),
    ] {
        let counts = count(&scenario)?;
        for (of, function) in [
            ("client sends", "send"),
            ("server polls, runs an echo, responds", "serve"),
            ("client receives", "receive"),
        ] {
            add(what, of, counts.of(function) / counts.done.calls as f64);
        }
    }
    let idle =
        |connections| -> Result<Counted, Box<dyn Error>> { count(&Scenario::new(connections, 0)) };
    let round = |counts: &Counted, function| counts.of(function) / counts.done.rounds as f64;
    let (one, many) = (idle(1)?, idle(41)?);
    let server = [round(&one, "serve"), round(&many, "serve")];
    add(
        "idle poll of a server with a zone given out",
        "round",
        server[0],
    );
    add(
        "idle poll of a server with a zone given out",
        "each further zone",
        (server[1] - server[0]) / 40.0,
    );
    let client = [round(&one, "receive"), round(&many, "receive")];
    add("idle poll of clients", "round", client[0]);
    add(
        "idle poll of clients",
        "each further connection",
        (client[1] - client[0]) / 40.0,
    );
    let switch = count(&Scenario {
        groups: 2,
        ..Scenario::new(32, 1)
    })?;
    for (of, function) in [
        ("clients send", "send"),
        ("server", "serve"),
        ("clients receive", "receive"),
    ] {
        add(
            "tenancy of a connection in a group of 16 that all have a call",
            of,
            switch.of(function) / switch.done.tenancies as f64,
        );
    }
    Ok(rows)
}
