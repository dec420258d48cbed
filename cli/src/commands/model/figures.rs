//! The model as figures.

use std::error::Error;
use std::fs;
use std::path::Path;

use scalerpc_cli::chart::{Chart, Line, Point, Sheet};

use super::{Data, OfNic, Series};
use crate::report::grouped;

/// Where the x axes have labels, so far as there are so many clients.
const LABELS: [u32; 9] = [10, 40, 100, 400, 1_000, 4_000, 10_000, 100_000, 1_000_000];

/// Writes the data and all figures to a directory.
pub(super) fn write(dir: &Path, data: &Data, json: &str) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("model.json"), format!("{json}\n"))?;
    for (name, sheet) in sheets(data) {
        fs::write(dir.join(format!("model-{name}.svg")), sheet.render()?)?;
    }
    Ok(())
}

fn sheets(data: &Data) -> [(&'static str, Sheet); 3] {
    let sheet = |title: &str, panel: &dyn Fn(&OfNic) -> (Chart, Option<Line>)| Sheet {
        title: format!("{title} (a model, not a measurement)"),
        panels: data.nics.iter().map(panel).collect(),
    };
    [
        (
            "verbs",
            sheet("Raw verbs by clients", &|nic| {
                let lines = lines(&nic.verbs, |it| it.rate_mops);
                let chart = chart(nic, "verbs (millions/s)", lines, data);
                (chart, seen_on(nic))
            }),
        ),
        (
            "pcie",
            sheet("PCIe reads by clients", &|nic| {
                let mut all = lines(&nic.verbs, |it| it.pcie_reads);
                // A server reads for what comes in, for what goes out, and for its switches.
                all.extend(
                    lines(&nic.servers, |it| it.pcie_reads)
                        .into_iter()
                        .map(|line| Line {
                            name: format!("call, {}", line.name),
                            ..line
                        }),
                );
                (chart(nic, "PCIe reads per operation", all, data), None)
            }),
        ),
        (
            "calls",
            sheet("Servers of three designs by clients", &|nic| {
                let lines = lines(&nic.servers, |it| it.rate_mops);
                (chart(nic, "calls (millions/s)", lines, data), None)
            }),
        ),
    ]
}

fn lines<T>(all: &[Series<T>], of: impl Fn(&T) -> f64) -> Vec<Line> {
    all.iter()
        .map(|it| Line {
            name: it.what.to_owned(),
            points: it
                .clients
                .iter()
                .zip(&it.reached)
                .map(|(clients, reached)| exact(f64::from(*clients), of(reached)))
                .collect(),
        })
        .collect()
}

fn exact(x: f64, y: f64) -> Point {
    Point {
        x,
        y,
        low: y,
        high: y,
    }
}

fn chart(nic: &OfNic, y: &str, lines: Vec<Line>, data: &Data) -> Chart {
    let clients = data.nics.first().and_then(|it| it.verbs.first());
    let clients = clients.map_or(&[][..], |it| &it.clients);
    let (first, last) = (clients.first(), clients.last());
    let mut at: Vec<u32> = LABELS
        .into_iter()
        .filter(|it| first < Some(it) && Some(it) < last)
        .collect();
    at.extend(last);
    if let Some(first) = first {
        at.insert(0, *first);
    }
    Chart {
        title: nic.name.to_owned(),
        x: "clients".to_owned(),
        y: y.to_owned(),
        y_is_ratio: false,
        x_at: at.iter().map(|it| f64::from(*it)).collect(),
        x_labels: at.iter().map(|it| grouped(u64::from(*it))).collect(),
        lines,
    }
}

/// The published rates, on the NIC that they were measured on.
fn seen_on(nic: &OfNic) -> Option<Line> {
    (nic.nic == "small").then(|| Line {
        name: "published, outbound WRITE".to_owned(),
        points: vec![exact(10.0, 20.0), exact(800.0, 2.0)],
    })
}
