//! Length of a slice times size of a group.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use scalerpc::{Grouping, Mapping};
use serde::Serialize;

use crate::measure::{Summary, interleave, ratios, summary};
use crate::report::Output;
use crate::stage::{Load, Stage, builder};
use scalerpc_cli::chart::{Chart, Line, Point};

/// Throughput of slices of 10 us to 10 ms and groups of 5 to 160, relative to static mapping
#[derive(Args)]
pub(crate) struct Sweep {
    /// Connections, all of which call all the time
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(2..=2_000))]
    clients: u32,
    /// Calls that each of them has outstanding
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16))]
    calls: u32,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Data {
    clients: u32,
    calls: u32,
    rounds: usize,
    round_ms: u64,
    cells: Vec<Cell>,
}

#[derive(Serialize)]
struct Cell {
    group_size: u32,
    slice_us: u64,
    /// Throughput over that of static mapping.
    ratio: Summary,
}

impl Sweep {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let (groups, slices, rounds, round_ms): (&[u32], &[u64], _, _) = match self.output.quick {
            true => (&[5, 40], &[100, 1_000], 2, 5),
            false => (
                &[5, 10, 20, 40, 80, 160],
                &[10, 30, 100, 300, 1_000, 3_000, 10_000],
                10,
                60,
            ),
        };
        let mut cells = Vec::new();
        for &group_size in groups {
            for &slice_us in slices {
                cells.push(self.cell(group_size, slice_us, rounds, round_ms)?);
            }
        }
        let data = Data {
            clients: self.clients,
            calls: self.calls,
            rounds,
            round_ms,
            cells,
        };
        let (table, chart) = (data.table(groups, slices), data.chart(groups, slices));
        self.output
            .write("sweep", &table, &data, &[("sweep", chart.render()?)])
    }

    fn cell(
        &self,
        group_size: u32,
        slice_us: u64,
        rounds: usize,
        round_ms: u64,
    ) -> Result<Cell, Box<dyn Error>> {
        let load = Load {
            hot_every: 1,
            hot_calls: self.calls,
            cold_pause: Duration::ZERO,
        };
        let grouped = builder(self.clients)
            .group_size(group_size)
            .grouping(Grouping::Arrival)
            .time_slice(Duration::from_micros(slice_us));
        let sides = vec![builder(self.clients).mapping(Mapping::Static), grouped];
        let mut stage = Stage::echo(sides, self.clients, load)?;
        let time = Duration::from_millis(round_ms);
        let samples = interleave(rounds, 2, |side| stage.run(side, time))?;
        let ratio = summary(&ratios(&samples[1], &samples[0])).ok_or("nothing was answered")?;
        Ok(Cell {
            group_size,
            slice_us,
            ratio,
        })
    }
}

impl Data {
    fn of_group(&self, group_size: u32) -> impl Iterator<Item = &Cell> {
        self.cells
            .iter()
            .filter(move |cell| cell.group_size == group_size)
    }

    fn table(&self, groups: &[u32], slices: &[u64]) -> String {
        let mut table = format!(
            "throughput relative to static mapping, {} clients: medians of {} rounds\n\ngroup",
            self.clients, self.rounds
        );
        for slice in slices {
            let _ = write!(table, "{:>10}", format!("{slice} us"));
        }
        for &group in groups {
            let _ = write!(table, "\n{group:>5}");
            for cell in self.of_group(group) {
                let _ = write!(table, "{:>10.2}", cell.ratio.median);
            }
        }
        table
    }

    fn chart(&self, groups: &[u32], slices: &[u64]) -> Chart {
        let lines = groups.iter().map(|&group| Line {
            name: format!("groups of {group}"),
            points: self
                .of_group(group)
                .map(|it| point(it.slice_us as f64, &it.ratio))
                .collect(),
        });
        Chart {
            title: format!(
                "Slices and groups over shared memory, {} clients",
                self.clients
            ),
            x: "slice (us)".into(),
            y: "throughput / static mapping".into(),
            y_is_ratio: true,
            x_at: slices.iter().map(|&it| it as f64).collect(),
            x_labels: slices.iter().map(u64::to_string).collect(),
            lines: lines.collect(),
        }
    }
}

/// A summary in a chart.
pub(crate) fn point(x: f64, summary: &Summary) -> Point {
    Point {
        x,
        y: summary.median,
        low: summary.low,
        high: summary.high,
    }
}
