//! Few hot clients among many cold ones.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use scalerpc::{Grouping, ServerBuilder};
use serde::Serialize;

use super::sweep::point;
use crate::measure::{Summary, interleave, ratios, summary};
use crate::model::{self, Prices};
use crate::report::Output;
use crate::stage::{Load, Stage, builder};
use scalerpc_cli::chart::{Chart, Line};

/// Throughput with groups by priority, relative to groups by arrival, with few hot clients among many cold ones
#[derive(Args)]
pub(crate) struct Skew {
    /// Connections
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(40..=2_000))]
    clients: u32,
    /// Calls that a hot one has outstanding
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    calls: u32,
    /// How long a cold one pauses after an answer, in microseconds
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    pause_us: u64,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Data {
    clients: u32,
    calls: u32,
    pause_us: u64,
    rounds: usize,
    round_ms: u64,
    model: Prices,
    loads: Vec<Skewed>,
}

#[derive(Serialize)]
struct Skewed {
    hot: u32,
    /// Throughput with groups by priority over that by arrival, over shared memory.
    gain: Summary,
    /// The same in the model.
    model_gain: f64,
}

impl Skew {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        // One hot client of so many.
        let (every, rounds, round_ms, model_ms): (&[u32], _, _, _) = match self.output.quick {
            true => (&[40, 10], 2, 10, 5),
            false => (&[40, 20, 10, 5], 20, 100, 60),
        };
        let mut loads = Vec::new();
        for &hot_every in every {
            let load = Load {
                hot_every,
                hot_calls: self.calls,
                cold_pause: Duration::from_micros(self.pause_us),
            };
            loads.push(self.skewed(load, rounds, round_ms, model_ms)?);
        }
        let data = Data {
            clients: self.clients,
            calls: self.calls,
            pause_us: self.pause_us,
            rounds,
            round_ms,
            model: Prices::default(),
            loads,
        };
        let figure = ("skew", data.chart().render()?);
        self.output.write("skew", &data.table(), &data, &[figure])
    }

    fn side(&self, grouping: Grouping) -> ServerBuilder {
        builder(self.clients)
            .grouping(grouping)
            .time_slice(Duration::from_micros(200))
    }

    fn skewed(
        &self,
        load: Load,
        rounds: usize,
        round_ms: u64,
        model_ms: u64,
    ) -> Result<Skewed, Box<dyn Error>> {
        let both = [Grouping::Arrival, Grouping::Priority];
        let sides = both.map(|grouping| self.side(grouping));
        let mut stage = Stage::echo(sides.into(), self.clients, load)?;
        let time = Duration::from_millis(round_ms);
        // Members are moved after some tenancies: that is not part of the result.
        for side in 0..both.len() {
            stage.run(side, 3 * time)?;
        }
        let samples = interleave(rounds, both.len(), |side| stage.run(side, time))?;
        let gain = summary(&ratios(&samples[1], &samples[0])).ok_or("nothing was answered")?;
        let modelled = |grouping| {
            let time_ns = model_ms * 1_000_000;
            let side = self.side(grouping);
            model::throughput(side, self.clients, load, Prices::default(), time_ns)
        };
        Ok(Skewed {
            hot: self.clients.div_ceil(load.hot_every),
            gain,
            model_gain: modelled(both[1])? / modelled(both[0])?,
        })
    }
}

impl Data {
    fn table(&self) -> String {
        let mut table = format!(
            "gain of groups by priority over groups by arrival, {} clients: median of {} rounds, and quartiles\n\n\
             {:>5}{:>15}{:>16}{:>20}",
            self.clients, self.rounds, "hot", "shared memory", "", "model of a NIC"
        );
        for it in &self.loads {
            let quartiles = format!("{:.2} to {:.2}", it.gain.low, it.gain.high);
            let _ = write!(
                table,
                "\n{:>5}{:>15.2}{quartiles:>16}{:>20.2}",
                it.hot, it.gain.median, it.model_gain
            );
        }
        table
    }

    fn chart(&self) -> Chart {
        let measured = self.loads.iter().map(|it| point(it.hot.into(), &it.gain));
        let modelled = self.loads.iter().map(|it| {
            let exact = Summary {
                median: it.model_gain,
                low: it.model_gain,
                high: it.model_gain,
            };
            point(it.hot.into(), &exact)
        });
        let line = |name: &str, points| Line {
            name: name.into(),
            points,
        };
        Chart {
            title: format!(
                "Groups by priority, with few hot clients of {}",
                self.clients
            ),
            x: "hot clients".into(),
            y: "throughput / groups by arrival".into(),
            y_is_ratio: true,
            x_at: self.loads.iter().map(|it| it.hot.into()).collect(),
            x_labels: self.loads.iter().map(|it| it.hot.to_string()).collect(),
            lines: vec![
                line("shared memory, measured", measured.collect()),
                line("a NIC, model in virtual time", modelled.collect()),
            ],
        }
    }
}
