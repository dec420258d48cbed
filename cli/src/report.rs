//! The report of a load: tables for people, one JSON object for programs.

use serde::Serialize;

use scalerpc::Counters;
use scalerpc_cli::meta::wire::Method;

use crate::fleet::Lost;
use crate::measured::{Load, Served};
use crate::messages::Latencies;

/// One server's part of a report.
pub(crate) struct Part {
    /// Its mapping, or what else distinguishes it.
    pub(crate) name: &'static str,
    /// What the clients saw.
    pub(crate) load: Load,
    /// What the server counted, where this process knows it.
    pub(crate) served: Option<Served>,
}

/// Quantiles in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct LatencyJson {
    p50: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

impl LatencyJson {
    fn of(latencies: &Latencies) -> Self {
        Self {
            p50: latencies.quantile_ns(0.5),
            p99: latencies.quantile_ns(0.99),
            p999: latencies.quantile_ns(0.999),
            max: latencies.max_ns(),
        }
    }
}

#[derive(Serialize)]
struct OperationJson {
    operations: u64,
    throughput_ops: u64,
    latency_ns: LatencyJson,
}

#[derive(Serialize)]
struct OperationsJson {
    stat: OperationJson,
    readdir: OperationJson,
    mknod: OperationJson,
    rmnod: OperationJson,
}

#[derive(Serialize)]
struct ServerBytesJson {
    fixed: usize,
    per_client: usize,
    per_group: usize,
    all: usize,
}

/// What happened at a server, for programs.
#[derive(Serialize)]
pub(crate) struct ServedJson {
    groups: u64,
    calls: u64,
    slices: u64,
    switches: u64,
    warmup_reads: u64,
    staged_calls: u64,
    direct_writes: u64,
    switch_events_ridden: u64,
    switch_events_extra: u64,
    quarantined_zones: u64,
    zones_quiet: u64,
    zones_revoked: u64,
    zones_fenced: u64,
    fenced: u64,
    violations: u64,
    failures: u64,
    guests: u64,
    moves: u64,
    stalls: u64,
    server_bytes: ServerBytesJson,
    page_size: usize,
    backing: String,
}

/// One server's part, for programs.
#[derive(Serialize)]
pub(crate) struct PartJson {
    mapping: &'static str,
    seconds: f64,
    operations: u64,
    wrong_answers: u64,
    errors: u64,
    throughput_ops: u64,
    latency_ns: LatencyJson,
    per_operation: OperationsJson,
    rounds_ops: Vec<u64>,
    examples: Vec<String>,
    #[serde(flatten)]
    served: Option<ServedJson>,
}

/// A client process that was lost, for programs.
#[derive(Serialize)]
pub(crate) struct LostJson {
    pid: i32,
    connections: u32,
    what: String,
}

impl From<&Lost> for LostJson {
    fn from(lost: &Lost) -> Self {
        Self {
            pid: lost.pid,
            connections: lost.connections,
            what: lost.to_string(),
        }
    }
}

impl Part {
    pub(crate) fn json(&self) -> PartJson {
        let load = &self.load;
        let operation = |method: Method| {
            let latencies = &load.methods[method as usize - 1];
            OperationJson {
                operations: latencies.count(),
                throughput_ops: self.throughput_of(latencies),
                latency_ns: LatencyJson::of(latencies),
            }
        };
        PartJson {
            mapping: self.name,
            seconds: load.seconds(),
            operations: load.operations(),
            wrong_answers: load.wrong_answers,
            errors: load.errors,
            throughput_ops: load.throughput(),
            latency_ns: LatencyJson::of(&load.all()),
            per_operation: OperationsJson {
                stat: operation(Method::Stat),
                readdir: operation(Method::ReadDir),
                mknod: operation(Method::Mknod),
                rmnod: operation(Method::Rmnod),
            },
            rounds_ops: load.rounds.clone(),
            examples: load.examples.clone(),
            served: self.served.as_ref().map(ServedJson::from),
        }
    }

    /// A method's share of the throughput.
    fn throughput_of(&self, latencies: &Latencies) -> u64 {
        let share = u128::from(self.load.throughput()) * u128::from(latencies.count());
        (share / u128::from(self.load.operations().max(1))) as u64
    }

    /// The table of operations.
    pub(crate) fn table(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "  {:<9}{:>13}{:>12}{:>10}{:>10}{:>10}{:>10}",
            "operation", "calls", "calls/s", "p50", "p99", "p99.9", "max"
        )];
        for method in Method::ALL {
            let latencies = &self.load.methods[method as usize - 1];
            lines.push(self.row(method.name(), latencies));
        }
        lines.push(self.row("all", &self.load.all()));
        lines
    }

    fn row(&self, name: &str, latencies: &Latencies) -> String {
        if latencies.count() == 0 {
            return format!(
                "  {name:<9}{:>13}{:>12}{:>10}{:>10}{:>10}{:>10}",
                0, 0, "-", "-", "-", "-"
            );
        }
        let LatencyJson {
            p50,
            p99,
            p999,
            max,
        } = LatencyJson::of(latencies);
        format!(
            "  {name:<9}{:>13}{:>12}{:>10}{:>10}{:>10}{:>10}",
            grouped(latencies.count()),
            grouped(self.throughput_of(latencies)),
            duration(p50),
            duration(p99),
            duration(p999),
            duration(max),
        )
    }
}

impl From<&Served> for ServedJson {
    fn from(served: &Served) -> Self {
        let counters = served.counters;
        Self {
            groups: served.groups,
            calls: counters.calls,
            slices: counters.slices,
            switches: counters.switches,
            warmup_reads: counters.warmup_reads,
            staged_calls: counters.staged_calls,
            direct_writes: counters.direct_writes,
            switch_events_ridden: counters.switch_events_ridden,
            switch_events_extra: counters.switch_events_extra,
            quarantined_zones: counters.quarantined_zones,
            zones_quiet: counters.zones_quiet,
            zones_revoked: counters.zones_revoked,
            zones_fenced: counters.zones_fenced,
            fenced: counters.gone,
            violations: counters.violations,
            failures: counters.failures,
            guests: counters.guests,
            moves: counters.moves,
            stalls: counters.stalls,
            server_bytes: ServerBytesJson {
                fixed: served.bytes.fixed,
                per_client: served.bytes.per_client,
                per_group: served.bytes.per_group,
                all: served.all_bytes,
            },
            page_size: served.page_size,
            backing: served.backing.clone(),
        }
    }
}

/// How many threads serve.
pub(crate) fn workers(workers: u32) -> String {
    match workers {
        1 => "one thread".to_owned(),
        workers => format!("{workers} workers"),
    }
}

/// A worker in a line.
pub(crate) fn worker(index: usize, counters: &Counters) -> String {
    format!(
        "worker {index:<3}{} calls over {} connections, {} context switches",
        grouped(counters.calls),
        grouped(counters.opened),
        grouped(counters.switches),
    )
}

/// The server's counters, a column for each part.
pub(crate) fn server_table(parts: &[&Served]) -> Vec<String> {
    type Row = (&'static str, fn(&Served) -> String);
    let rows: [Row; 18] = [
        ("groups", |s| grouped(s.groups)),
        ("time slices", |s| grouped(s.counters.slices)),
        ("context switches", |s| grouped(s.counters.switches)),
        ("requests written into the pool", |s| {
            grouped(s.counters.direct_writes)
        }),
        ("requests fetched in warmup", |s| {
            grouped(s.counters.staged_calls)
        }),
        ("  warmup READs for them", |s| {
            grouped(s.counters.warmup_reads)
        }),
        ("switch events on a response", |s| {
            grouped(s.counters.switch_events_ridden)
        }),
        ("switch events of their own", |s| {
            grouped(s.counters.switch_events_extra)
        }),
        ("zones put into quarantine", |s| {
            grouped(s.counters.quarantined_zones)
        }),
        ("  freed by a quiet message", |s| {
            grouped(s.counters.zones_quiet)
        }),
        ("  freed by revocation", |s| {
            grouped(s.counters.zones_revoked)
        }),
        ("zones of clients that are gone", |s| {
            grouped(s.counters.zones_fenced)
        }),
        ("connections fenced", |s| grouped(s.counters.gone)),
        ("protocol violations", |s| grouped(s.counters.violations)),
        ("waits for a full queue", |s| grouped(s.counters.stalls)),
        ("memory, fixed", |s| bytes(s.bytes.fixed)),
        ("memory, for each client", |s| {
            format!("{} B", s.bytes.per_client)
        }),
        ("  of that in shared pages", |s| bytes(s.all_bytes)),
    ];
    rows.iter()
        .map(|(name, value)| {
            let mut line = format!("  {name:<32}");
            for part in parts {
                line.push_str(&format!("{:>16}", value(part)));
            }
            line
        })
        .collect()
}

/// The pages of the server's memory, in lines that fit a terminal.
pub(crate) fn pages(served: &Served) -> Vec<String> {
    let lines = wrapped(&format!("pages: {}", served.backing), 78);
    lines.iter().map(|line| format!("  {line}")).collect()
}

/// Breaks a text at spaces; a word that is longer than `width` stays whole.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number with its digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Nanoseconds with three significant digits.
pub(crate) fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..999_500 => (ns as f64 / 1e3, "us"),
        999_500..999_500_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let decimals = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// A time since 1970 as a date, in UTC.
pub(crate) fn date(ns: i64) -> String {
    let seconds = ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years begin in March here, so that the leap day is the last one; 400 of them are an era.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!(
        "{:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        era * 400 + year + next,
        second / 3_600,
        second / 60 % 60,
        second % 60,
    )
}

/// Bytes in a unit that suits them.
pub(crate) fn bytes(bytes: usize) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1000, 1_234_567].map(grouped)[..]
        );
        let durations = [
            999,
            1_000,
            12_345,
            999_499,
            999_600,
            123_456_789,
            2_500_000_000,
        ];
        assert_eq!(
            durations.map(duration),
            [
                "999 ns", "1.00 us", "12.3 us", "999 us", "1.00 ms", "123 ms", "2.50 s"
            ]
        );
        assert_eq!(
            wrapped("a bc def ghijklm n", 6),
            ["a bc", "def", "ghijklm", "n"]
        );
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400 * 1_000_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_779_294_449_999_999_999), "2026-05-20 16:27:29 UTC");
        assert_eq!(date(-1), "1969-12-31 23:59:59 UTC");
        assert_eq!(bytes(900), "900 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }
}
