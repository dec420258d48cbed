//! What a run against the peers gives: rows, goals, and what could not be measured.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write;

use plotters::style::RGBColor;
use serde::Serialize;

use crate::cpus::Distance;
use crate::figure::{Figure, Series, Spot};
use crate::measure::{Summary, summary};
use crate::peers::{Load, Peer, SIZES};
use crate::plan::{CONNECTIONS, Goal, Quantity, Side, WINDOW};

/// So many quiet samples make a median; with fewer all of them count, and it is said.
const QUIET_ENOUGH: usize = 3;

/// The rate of a side in a round, and whether it had two cores for itself.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) rate_ops: f64,
    pub(crate) quiet: bool,
}

/// By side, its turn in each round.
pub(crate) type Turns = HashMap<Side, Vec<Turn>>;

/// As JSON.
#[derive(Serialize)]
pub(crate) struct Results {
    /// The processors' own name.
    pub(crate) machine: String,
    /// Between the two cores in the rounds that count.
    pub(crate) distance: Distance,
    pub(crate) rounds: u32,
    pub(crate) turn_ms: u64,
    /// Rounds in which the processors were not two cores at that distance, or others had them.
    pub(crate) rounds_lost: u32,
    /// From one processor to the other and back over two cache lines, before and after each round.
    pub(crate) ping_pong_ns: Option<Summary>,
    pub(crate) rows: Vec<Row>,
    pub(crate) goals: Vec<Judged>,
    pub(crate) missing: Vec<Missing>,
    pub(crate) limits: Vec<Limit>,
}

#[derive(Serialize)]
pub(crate) struct Row {
    #[serde(serialize_with = "id")]
    peer: Peer,
    #[serde(flatten)]
    load: Load,
    /// Answers in a second, and their quartiles.
    rate_ops: f64,
    low_ops: f64,
    high_ops: f64,
    /// From a request to its answer: with so many outstanding all the time, that follows from the rate.
    rtt_ns: f64,
    /// The rate over that of the floor in the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_floor: Option<f64>,
    /// Samples that count, and whether they were quiet.
    samples: usize,
    quiet: bool,
}

#[derive(Serialize)]
pub(crate) struct Judged {
    id: &'static str,
    what: &'static str,
    /// Of the ratios in each round: their median and quartiles.
    value: f64,
    low: f64,
    high: f64,
    goal: f64,
    met: bool,
    quiet: bool,
}

/// A peer that could not be measured.
#[derive(Serialize)]
pub(crate) struct Missing {
    #[serde(serialize_with = "id")]
    peer: Peer,
    why: String,
    loads: Vec<String>,
}

/// A peer that is not measured with all connections that others have.
#[derive(Serialize)]
pub(crate) struct Limit {
    #[serde(serialize_with = "id")]
    pub(crate) peer: Peer,
    pub(crate) connections_max: u32,
}

fn id<S: serde::Serializer>(peer: &Peer, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(peer.id())
}

/// The median of those that count, and how many do: the quiet ones, or all if they are too few.
fn counted(all: &[Turn]) -> Option<(Summary, usize, bool)> {
    let of = |turns: &mut dyn Iterator<Item = &Turn>| turns.map(|it| it.rate_ops).collect();
    let mut samples: Vec<f64> = of(&mut all.iter().filter(|it| it.quiet));
    let quiet = samples.len() >= QUIET_ENOUGH;
    if !quiet {
        samples = of(&mut all.iter());
    }
    Some((summary(&samples)?, samples.len(), quiet))
}

/// The ratios of two sides, round by round; quiet if both were.
fn ratios(of: &[Turn], to: &[Turn]) -> Vec<Turn> {
    let both = of.iter().zip(to);
    both.map(|(of, to)| Turn {
        rate_ops: of.rate_ops / to.rate_ops,
        quiet: of.quiet && to.quiet,
    })
    .collect()
}

impl Row {
    /// `None` without a turn.
    pub(crate) fn new(side: Side, turns: &Turns) -> Option<Self> {
        let of_side = turns.get(&side)?;
        let (Summary { median, low, high }, samples, quiet) = counted(of_side)?;
        let floor = Side {
            peer: Peer::Floor,
            ..side
        };
        let of_floor = turns.get(&floor).map(|floor| ratios(of_side, floor));
        Some(Self {
            peer: side.peer,
            load: side.load,
            rate_ops: median,
            low_ops: low,
            high_ops: high,
            rtt_ns: rtt_ns(side.load, median),
            of_floor: of_floor.and_then(|it| Some(counted(&it)?.0.median)),
            samples,
            quiet,
        })
    }
}

/// By Little's law.
fn rtt_ns(load: Load, rate_ops: f64) -> f64 {
    f64::from(load.outstanding()) * 1e9 / rate_ops
}

impl Judged {
    /// `None` if a side of the goal is not among those that took turns.
    pub(crate) fn new(goal: &Goal, turns: &Turns) -> Option<Self> {
        let (of, to) = (turns.get(&goal.of)?, turns.get(&goal.to)?);
        let ratios = match goal.quantity {
            Quantity::Rate => ratios(of, to),
            Quantity::RoundTrip => ratios(to, of),
        };
        let (Summary { median, low, high }, _, quiet) = counted(&ratios)?;
        Some(Self {
            id: goal.id,
            what: goal.what,
            value: median,
            low,
            high,
            goal: goal.bound,
            met: match goal.quantity {
                Quantity::Rate => median >= goal.bound,
                Quantity::RoundTrip => median <= goal.bound,
            },
            quiet,
        })
    }
}

impl Results {
    /// Each reason is said once.
    pub(crate) fn miss(&mut self, side: Side, why: String) {
        let load = side.load.to_string();
        let mut known = self.missing.iter_mut();
        match known.find(|it| it.peer == side.peer && it.why == why) {
            Some(known) => known.loads.push(load),
            None => self.missing.push(Missing {
                peer: side.peer,
                why,
                loads: vec![load],
            }),
        }
    }

    /// What a reader sees.
    pub(crate) fn table(&self) -> String {
        let mut table = format!(
            "{}; medians and quartiles of {} rounds of {} ms",
            self.machine, self.rounds, self.turn_ms
        );
        let mut load = None;
        for row in &self.rows {
            if load != Some(row.load) {
                load = Some(row.load);
                let _ = write!(table, "\n\n{}", heading(row.load));
            }
            row.write(&mut table);
        }
        if !self.goals.is_empty() {
            let _ = write!(
                table,
                "\n\n{:<70}{:>6}{:>20}",
                "goals: ratios", "goal", "measured"
            );
        }
        for goal in &self.goals {
            goal.write(&mut table);
        }
        table.push('\n');
        for it in &self.missing {
            let (peer, loads) = (it.peer.id(), it.loads.join(", "));
            let _ = write!(table, "\nmissing: {peer} ({loads}): {}", it.why);
        }
        for it in &self.limits {
            let _ = write!(
                table,
                "\nlimit: {} is measured with {} connections at most",
                it.peer.id(),
                it.connections_max
            );
        }
        let how_far = match self.distance {
            Distance::Near => "near each other",
            Distance::Far => "far from each other",
        };
        let _ = write!(
            table,
            "\nrounds lost, because there were no two cores {how_far}: {}",
            self.rounds_lost
        );
        if let Some(Summary { median, low, high }) = self.ping_pong_ns {
            let _ = write!(
                table,
                "; ping-pong over two cache lines: {median:.0} ns ({low:.0} to {high:.0})"
            );
        }
        table
    }

    /// Those that the rows are enough for, by the names of their files.
    pub(crate) fn figures(&self) -> Result<Vec<(String, String)>, Box<dyn Error>> {
        let sizes = SIZES.map(f64::from).to_vec();
        let connections = CONNECTIONS.map(f64::from).to_vec();
        let us = |row: &Row, rate| rtt_ns(row.load, rate) / 1e3;
        let million = |_: &Row, rate: f64| rate / 1e6;
        let mut figures = Vec::new();
        for (name, title, x, y, x_at, of, value) in [
            (
                "peers-round-trip",
                "Round trip, one call at a time",
                "bytes of a request, and of its answer",
                "microseconds",
                sizes.clone(),
                (|load| load.window == 1 && load.connections == 1) as fn(Load) -> bool,
                &us as &dyn Fn(&Row, f64) -> f64,
            ),
            (
                "peers-rate",
                "Calls per second, one connection, 16 outstanding",
                "bytes of a request, and of its answer",
                "million calls per second",
                sizes,
                |load| load.window == WINDOW && load.connections == 1,
                &million,
            ),
            (
                "peers-connections",
                "Calls per second, 32 bytes, 16 outstanding per connection",
                "connections",
                "million calls per second",
                connections,
                |load| load.window == WINDOW && load.size == SIZES[0],
                &million,
            ),
        ] {
            let is_size = name != "peers-connections";
            let x_of = |load: Load| f64::from(if is_size { load.size } else { load.connections });
            let series: Vec<Series> = Peer::ALL
                .into_iter()
                .map(|peer| self.series(peer, &x_at, of, x_of, value))
                .filter(|it| !it.spots.is_empty())
                .collect();
            if series.iter().any(|it| it.spots.len() > 1) {
                let figure = Figure {
                    title: title.into(),
                    x: x.into(),
                    y: y.into(),
                    x_at,
                    series,
                };
                figures.push((name.into(), figure.render()?));
            }
        }
        Ok(figures)
    }

    fn series(
        &self,
        peer: Peer,
        x_at: &[f64],
        of: fn(Load) -> bool,
        x: impl Fn(Load) -> f64,
        value: &dyn Fn(&Row, f64) -> f64,
    ) -> Series {
        let mut spots: Vec<Spot> = Vec::new();
        for row in &self.rows {
            let x = x(row.load);
            let again = spots.iter().any(|it| it.x == x);
            if row.peer == peer && of(row.load) && x_at.contains(&x) && !again {
                let [y, one, other] =
                    [row.rate_ops, row.low_ops, row.high_ops].map(|it| value(row, it));
                spots.push(Spot {
                    x,
                    y,
                    low: one.min(other),
                    high: one.max(other),
                });
            }
        }
        spots.sort_by(|a, b| a.x.total_cmp(&b.x));
        Series {
            name: peer.name(),
            color: color(peer),
            bold: peer == Peer::Ours,
            spots,
        }
    }
}

/// Those of Okabe and Ito, which the colour-blind can tell apart, and grey.
fn color(peer: Peer) -> RGBColor {
    match peer {
        Peer::Floor => RGBColor(0, 0, 0),
        Peer::Stream => RGBColor(140, 140, 140),
        Peer::Ours => RGBColor(213, 94, 0),
        Peer::Static => RGBColor(230, 159, 0),
        Peer::Ucx => RGBColor(0, 114, 178),
        Peer::Iceoryx2 => RGBColor(0, 158, 115),
        Peer::Rtrb => RGBColor(204, 121, 167),
        Peer::Fabric => RGBColor(86, 180, 233),
    }
}

fn heading(load: Load) -> String {
    let Load {
        size,
        window,
        connections,
    } = load;
    let what = format!("{size} B, window {window}, connections {connections}");
    format!(
        "{what:<42}{:>9}{:>17}{:>12}{:>10}",
        "M/s", "quartiles", "round trip", "/ floor"
    )
}

impl Row {
    fn write(&self, table: &mut String) {
        let quartiles = format!("{:.2} to {:.2}", self.low_ops / 1e6, self.high_ops / 1e6);
        let rtt = match self.rtt_ns < 10_000.0 {
            true => format!("{:.0} ns", self.rtt_ns),
            false => format!("{:.0} us", self.rtt_ns / 1e3),
        };
        let of_floor = self.of_floor.map(|it| format!("{it:>10.2}"));
        let of_floor = of_floor.unwrap_or_default();
        let _ = write!(
            table,
            "\n  {:<9}{:<31}{:>9.2}{quartiles:>17}{rtt:>12}{of_floor}{}",
            self.peer.id(),
            self.peer.name(),
            self.rate_ops / 1e6,
            busy(self.quiet)
        );
    }
}

impl Judged {
    fn write(&self, table: &mut String) {
        let quartiles = format!("({:.2} to {:.2})", self.low, self.high);
        let _ = write!(
            table,
            "\n  {:<18}{:<50}{:>6.2}{:>7.2} {quartiles:<16} {}{}",
            self.id,
            self.what,
            self.goal,
            self.value,
            if self.met { "met" } else { "MISSED" },
            busy(self.quiet)
        );
    }
}

fn busy(quiet: bool) -> &'static str {
    if quiet { "" } else { "  (busy: no measure)" }
}
