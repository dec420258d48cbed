//! Calls of a file system's metadata server, as of Octopus, by clients.

mod tree;
mod work;

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use scalerpc::Mapping;
use scalerpc_cli::chart::{Chart, Line, Point, Sheet};
use scalerpc_cli::nic::{self, Design, Metadata, SMALL};
use serde::Serialize;

use super::sweep::point;
use crate::measure::{Summary, interleave, ratios, summary};
use crate::report::Output;
use crate::stage::{Load, Stage};

/// The published numbers are for so many clients, relative to the fewest.
const PUBLISHED_CLIENTS: u32 = 120;
const MAPPINGS: [Mapping; 2] = [Mapping::Virtual, Mapping::Static];

/// Stat, ReadDir and Mknod of a metadata server with 40 to 400 clients, relative to 40: shared memory, a model, and published
#[derive(Args)]
pub(crate) struct Octopus {
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Data {
    rounds: usize,
    round_ms: u64,
    /// What `model` and `published` are of.
    notes: [&'static str; 3],
    calls: Vec<Call>,
}

#[derive(Serialize)]
struct Call {
    call: &'static str,
    cells: Vec<Cell>,
}

/// Rates with so many clients over those with the fewest.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    clients: u32,
    /// Shared memory, measured.
    shm_virtual: Summary,
    shm_static: Summary,
    /// The model of a NIC.
    model_virtual: f64,
    model_static: f64,
    /// What the paper says of its server with static mapping.
    published_static: Option<f64>,
}

const NOTES: [&str; 3] = [
    "shm: measured over shared memory, calls for each second of processor time of a thread that both ends share; each client makes one call after the other, and checks the answer",
    "model: a model of a NIC with a small cache, see `scalerpc model`; no measurement",
    "published: Octopus on a ConnectX-3, from 40 to 120 clients (ScaleRPC, EuroSys 2019, section 1)",
];

impl Octopus {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let (counts, rounds, round_ms): (&[u32], _, _) = match self.output.quick {
            true => (&[40, 120], 2, 10),
            false => (&[40, 80, 120, 200, 400], 15, 20),
        };
        let mut calls = Vec::new();
        for call in Metadata::ALL {
            calls.push(Call {
                call: call.name(),
                cells: cells(call, counts, rounds, round_ms)?,
            });
        }
        let data = Data {
            rounds,
            round_ms,
            notes: NOTES,
            calls,
        };
        let figure = ("octopus", data.sheet().render()?);
        self.output
            .write("octopus", &data.table(), &data, &[figure])
    }
}

fn cells(
    call: Metadata,
    counts: &[u32],
    rounds: usize,
    round_ms: u64,
) -> Result<Vec<Cell>, Box<dyn Error>> {
    let sides: Vec<(Mapping, u32)> = MAPPINGS
        .iter()
        .flat_map(|mapping| counts.iter().map(|clients| (*mapping, *clients)))
        .collect();
    let load = Load {
        hot_every: 1,
        hot_calls: 1,
        cold_pause: Duration::ZERO,
    };
    let (plans, work) = work::make(call, &sides)?;
    let mut stage = Stage::new(plans, work::REQUEST_MAX_BYTES, load, work)?;
    // One call at a time from each client: with a thread for each end their waits for each other would be measured.
    stage.make_alone()?;
    let time = Duration::from_millis(round_ms);
    let samples = interleave(rounds, sides.len(), |side| stage.run(side, time))?;
    // Of each mapping the side with the fewest clients comes first.
    let (grouped, own) = samples.split_at(counts.len());
    let gain = |of: &[Vec<f64>], at: usize| {
        summary(&ratios(&of[at], &of[0])).ok_or("a round had no answer")
    };
    let modelled = |design, clients| nic::octopus(&SMALL, call, design, clients).rate_mops;
    let designs = [
        Design::Grouped {
            group_size: 40,
            time_slice_ns: 100_000.0,
        },
        Design::Static,
    ];
    let first = designs.map(|design| modelled(design, counts[0]));
    let mut cells = Vec::new();
    for (at, &clients) in counts.iter().enumerate() {
        cells.push(Cell {
            clients,
            shm_virtual: gain(grouped, at)?,
            shm_static: gain(own, at)?,
            model_virtual: modelled(designs[0], clients) / first[0],
            model_static: modelled(designs[1], clients) / first[1],
            published_static: (clients == PUBLISHED_CLIENTS)
                .then(|| 1.0 - call.published_fall_percent() / 100.0),
        });
    }
    Ok(cells)
}

impl Data {
    fn table(&self) -> String {
        let fewest = self.calls.iter().flat_map(|call| &call.cells).next();
        let mut table = format!(
            "rate over that with {} clients; shared memory: medians of {} rounds\n\n\
             {:<8}{:>8}{:>11}{:>9}{:>13}{:>9}{:>13}\n{:<8}{:>8}{:>11}{:>9}{:>13}{:>9}{:>13}",
            fewest.map_or(0, |cell| cell.clients),
            self.rounds,
            "",
            "",
            "shared",
            "memory",
            "model of",
            "a NIC",
            "published",
            "call",
            "clients",
            "virtual",
            "static",
            "virtual",
            "static",
            "static",
        );
        for Call { call, cells } in &self.calls {
            for it in cells {
                let published = it
                    .published_static
                    .map_or(String::new(), |it| format!("{it:.2}"));
                let _ = write!(
                    table,
                    "\n{call:<8}{:>8}{:>11.2}{:>9.2}{:>13.2}{:>9.2}{published:>13}",
                    it.clients,
                    it.shm_virtual.median,
                    it.shm_static.median,
                    it.model_virtual,
                    it.model_static,
                );
            }
        }
        let table: Vec<&str> = table.lines().map(str::trim_end).collect();
        table.join("\n")
    }

    fn sheet(&self) -> Sheet {
        Sheet {
            title: "A metadata server by clients, relative to the fewest".into(),
            panels: self.calls.iter().map(Call::panel).collect(),
        }
    }
}

impl Call {
    fn panel(&self) -> (Chart, Option<Line>) {
        let exact = |y| Summary {
            median: y,
            low: y,
            high: y,
        };
        let line = |name: &str, of: &dyn Fn(&Cell) -> Summary| Line {
            name: name.into(),
            points: self
                .cells
                .iter()
                .map(|it| point(it.clients.into(), &of(it)))
                .collect(),
        };
        let published: Vec<Point> = self
            .cells
            .iter()
            .filter_map(|it| {
                it.published_static
                    .map(|y| point(it.clients.into(), &exact(y)))
            })
            .collect();
        let chart = Chart {
            title: self.call.into(),
            x: "clients".into(),
            y: "rate / rate with the fewest clients".into(),
            y_is_ratio: true,
            x_at: self.cells.iter().map(|it| it.clients.into()).collect(),
            x_labels: self.cells.iter().map(|it| it.clients.to_string()).collect(),
            lines: vec![
                line("shared memory, virtual", &|it| it.shm_virtual),
                line("shared memory, static", &|it| it.shm_static),
                line("model of a NIC, virtual", &|it| exact(it.model_virtual)),
                line("model of a NIC, static", &|it| exact(it.model_static)),
            ],
        };
        let others = (!published.is_empty()).then(|| Line {
            name: "published, static".into(),
            points: published,
        });
        (chart, others)
    }
}
