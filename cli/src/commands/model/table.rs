//! The model as text, 80 columns wide.

use std::fmt::Write;

use super::{Data, OfNic, Series};
use crate::report::grouped;

pub(super) fn lines(data: &Data) -> Vec<String> {
    let mut lines = vec![data.notice.to_owned()];
    for nic in &data.nics {
        lines.push(String::new());
        lines.push(format!("NIC with a {}", nic.name));
        rates(
            &mut lines,
            "raw verbs: millions in a second (M/s), and PCIe reads for each",
            &nic.verbs,
            |it| (it.rate_mops, it.pcie_reads),
        );
        rates(
            &mut lines,
            &format!(
                "servers: calls, and PCIe reads for each (groups of {}, slices of {} us)",
                data.group, data.slice_us
            ),
            &nic.servers,
            |it| (it.rate_mops, it.pcie_reads),
        );
    }
    parameters(&mut lines, data);
    published(&mut lines, data);
    lines
}

/// A table with two columns for each series.
fn rates<T>(
    lines: &mut Vec<String>,
    title: &str,
    all: &[Series<T>],
    of: impl Fn(&T) -> (f64, f64),
) {
    let mut names = format!("{:>8}", "");
    let mut units = format!("{:>8}", "clients");
    for it in all {
        let _ = write!(names, "{:>23}", it.what);
        let _ = write!(units, "{:>14}{:>9}", "M/s", "reads");
    }
    lines.extend([String::new(), title.to_owned(), names, units]);
    let Some(first) = all.first() else {
        return;
    };
    for (at, clients) in first.clients.iter().enumerate() {
        let mut line = format!("{:>8}", grouped(u64::from(*clients)));
        for it in all {
            let (rate, reads) = of(&it.reached[at]);
            let _ = write!(line, "{rate:>14.2}{reads:>9.2}");
        }
        lines.push(line);
    }
}

fn parameters(lines: &mut Vec<String>, data: &Data) {
    lines.push(String::new());
    let mut head = format!("{:<33}", "parameters");
    for OfNic { nic, .. } in &data.nics {
        let _ = write!(head, "{nic:>8}");
    }
    lines.push(format!("{head}  source"));
    let width = 8 * data.nics.len();
    for it in &data.parameters {
        let mut values = String::new();
        for value in &it.values {
            let _ = write!(values, "{:>8}", number(*value));
        }
        lines.push(format!("{:<33}{values:>width$}  {}", it.name, it.source));
    }
}

fn published(lines: &mut Vec<String>, data: &Data) {
    lines.push(String::new());
    let head = format!(
        "{:<47}{:>10}{:>8}",
        "what it is held to", "published", "model"
    );
    lines.push(format!("{head}  source"));
    for it in &data.published {
        let (published, model) = (number(it.published), format!("{:.2}", it.model));
        lines.push(format!(
            "{:<47}{published:>10}{model:>8}  {}",
            it.what, it.source
        ));
    }
    lines.extend(data.sources.iter().map(ToString::to_string));
}

/// A number without digits that say nothing.
fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        grouped(value as u64)
    } else {
        format!("{value}")
    }
}
