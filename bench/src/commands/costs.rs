//! How costs grow: with connections, with the size of a group, and with seats.

use std::error::Error;
use std::fmt::Write;

use clap::Args;
use scalerpc_cli::chart::{Chart, Line, Point};
use serde::Serialize;

use crate::callgrind::count;
use crate::report::Output;
use crate::rig::Scenario;

/// Instructions, by Callgrind, of an idle poll, a switch and the search for demand, as there are more connections
#[derive(Args)]
pub(crate) struct Costs {
    #[command(flatten)]
    output: Output,
}

/// Size of the group whose pools are part of the memory that does not grow: the default.
const GROUP: u32 = 40;

#[derive(Serialize)]
struct Data {
    /// Bytes of the server's memory for each connection, and without any; messages of 32 bytes.
    bytes_per_connection: u64,
    bytes_fixed: u64,
    curves: Vec<Curve>,
}

/// A cost that grows.
#[derive(Serialize)]
struct Curve {
    name: &'static str,
    what: &'static str,
    of: &'static str,
    /// Number of `of`, and instructions.
    points: Vec<(u32, f64)>,
    fit: Fit,
}

/// `base + each * x`, and by how much of the measured value it is off at most.
#[derive(Clone, Copy, Debug, Serialize)]
struct Fit {
    base: f64,
    each: f64,
    off: f64,
}

impl Fit {
    /// The line with the smallest squares of relative deviations: a small count has as much say as a large one.
    fn of(points: &[(u32, f64)]) -> Self {
        let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &(x, y) in points {
            let (x, weight) = (f64::from(x), 1.0 / (y * y));
            w += weight;
            wx += weight * x;
            wy += weight * y;
            wxx += weight * x * x;
            wxy += weight * x * y;
        }
        let each = (w * wxy - wx * wy) / (w * wxx - wx * wx);
        let base = (wy - each * wx) / w;
        let off = points
            .iter()
            .map(|&(x, y)| (base + each * f64::from(x) - y).abs() / y);
        Self {
            base,
            each,
            off: off.fold(0.0, f64::max),
        }
    }
}

impl Costs {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let quick = self.output.quick;
        let (groups, seats): (&[u32], &[u32]) = match quick {
            true => (&[2, 10], &[100, 1_000]),
            false => (
                &[1, 5, 10, 20, 40, 80, 160],
                &[100, 300, 1_000, 3_000, 10_000],
            ),
        };
        let bytes = count(&Scenario::new(GROUP, 0))?.done;
        let data = Data {
            bytes_per_connection: bytes.bytes_per_client,
            bytes_fixed: bytes.bytes_fixed,
            curves: vec![idle(groups)?, switch(groups)?, demand(seats)?],
        };
        let mut figures = Vec::new();
        for curve in &data.curves {
            figures.push((curve.name, curve.chart().render()?));
        }
        self.output.write("costs", &data.table(), &data, &figures)
    }
}

fn curve(
    (name, what, of): (&'static str, &'static str, &'static str),
    xs: &[u32],
    measure: impl Fn(u32) -> Result<f64, Box<dyn Error>>,
) -> Result<Curve, Box<dyn Error>> {
    let points: Result<Vec<_>, _> = xs.iter().map(|&x| Ok((x, measure(x)?))).collect();
    let points = points.map_err(|error: Box<dyn Error>| error)?;
    Ok(Curve {
        name,
        what,
        of,
        fit: Fit::of(&points),
        points,
    })
}

/// All of them have a zone, and are silent.
fn idle(groups: &[u32]) -> Result<Curve, Box<dyn Error>> {
    let what = (
        "costs-idle",
        "an idle round of the server",
        "connections that are served",
    );
    curve(what, groups, |connections| {
        let counts = count(&Scenario {
            rounds: 1_000,
            ..Scenario::new(connections, 0)
        })?;
        Ok(counts.of("serve") / counts.done.rounds as f64)
    })
}

/// Two groups that have calls all the time.
fn switch(groups: &[u32]) -> Result<Curve, Box<dyn Error>> {
    let what = (
        "costs-switch",
        "a switch, at the server, with the calls of a slice",
        "connections in the group",
    );
    curve(what, groups, |size| {
        let counts = count(&Scenario {
            groups: 2,
            ..Scenario::new(2 * size, 1)
        })?;
        Ok(counts.of("serve") / counts.done.switches as f64)
    })
}

/// Nobody is served, and nobody has demand: whole passes over the demand map.
fn demand(seats: &[u32]) -> Result<Curve, Box<dyn Error>> {
    /// Seats that are looked at in a round while nobody is served: 16 lines of the map.
    const SEATS_PER_ROUND: u32 = 1_024;
    let what = (
        "costs-demand",
        "a look at everybody for demand",
        "connections",
    );
    curve(what, seats, |seats| {
        let counts = count(&Scenario {
            strangers: true,
            rounds: 100 * seats.div_ceil(SEATS_PER_ROUND),
            ..Scenario::new(seats, 0)
        })?;
        Ok(counts.of("serve") / 100.0)
    })
}

impl Data {
    fn table(&self) -> String {
        let mut table = format!(
            "memory of the server, groups of {GROUP}, messages of 32 bytes: {} bytes, and {} for each connection\n",
            self.bytes_fixed, self.bytes_per_connection
        );
        for curve in &self.curves {
            let Fit { base, each, off } = curve.fit;
            let _ = write!(
                table,
                "\ninstructions of {}: {base:.0} + {each:.2} n, off by {:.1} % at most\n",
                curve.what,
                100.0 * off
            );
            for (n, instructions) in &curve.points {
                let _ = writeln!(table, "{n:>8} {:<28}{instructions:>12.0}", curve.of);
            }
        }
        table
    }
}

impl Curve {
    fn chart(&self) -> Chart {
        let point = |x: u32, y| Point {
            x: x.into(),
            y,
            low: y,
            high: y,
        };
        let fit = |&(x, _): &(u32, f64)| point(x, self.fit.base + self.fit.each * f64::from(x));
        let line = |name: String, points| Line { name, points };
        let counted = self.points.iter().map(|&(x, y)| point(x, y));
        Chart {
            title: format!("Instructions of {}", self.what),
            x: self.of.into(),
            y: "instructions".into(),
            y_is_ratio: false,
            x_at: self.points.iter().map(|&(x, _)| x.into()).collect(),
            x_labels: self.points.iter().map(|(x, _)| x.to_string()).collect(),
            lines: vec![
                line("counted".into(), counted.collect()),
                line(
                    format!("{:.0} + {:.2} n", self.fit.base, self.fit.each),
                    self.points.iter().map(fit).collect(),
                ),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_finds_a_line_and_says_how_far_off_it_is() {
        let exact = Fit::of(&[(1, 107.0), (10, 170.0), (100, 800.0)]);
        assert!((exact.base - 100.0).abs() < 1e-6 && (exact.each - 7.0).abs() < 1e-6);
        assert!(exact.off < 1e-9);
        let bent = Fit::of(&[(1, 107.0), (10, 200.0), (100, 800.0)]);
        assert!(bent.off > 0.01 && bent.off < 0.2, "{bent:?}");
    }
}
