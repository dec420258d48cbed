//! `scalerpc model`: what connections cost a NIC that this machine need not have.

mod figures;
mod table;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use scalerpc_cli::nic::{
    self, Design, HOST, Host, LARGE, LOAD, Load, Nic, Parameter, Point, SMALL, Served, Verb, Verbs,
};
use serde::Serialize;

use super::{Outcome, Verdict};
use crate::output::{Output, note};

/// Most clients: beyond that the model's caches take seconds.
const CLIENTS_MAX: u32 = 1_000_000;
/// Unless others are asked for.
const CLIENTS: &str = "10,20,40,80,120,200,400,800,1200,2000,5000,10000";

/// What everything that the command says begins with.
const NOTICE: &str = "a model, not a measurement: no NIC is needed for it";

/// Model what connections cost a NIC: raw verbs, PCIe reads, and servers of three designs
///
/// Caches of a NIC are played: what an operation needs and is not there is read over PCIe. Some parameters are fitted to
/// published measurements, so it shows how rates change with the number of clients, not what a given machine reaches. The
/// parameters, their sources and the published numbers are printed, too.
#[derive(Args, Clone, Debug)]
#[command(after_help = MODEL_HELP)]
pub(crate) struct Model {
    /// Numbers of clients, which grow
    #[arg(long, value_name = "N,...", default_value = CLIENTS, value_parser = clients)]
    clients: Clients,
    /// Which NIC: with a small cache, like a ConnectX-3, with a large one, like a ConnectX-5, or each in turn
    #[arg(long, value_enum, value_name = "small|large|both", default_value_t = NicChoice::Both)]
    nic: NicChoice,
    /// Connections that this protocol serves together
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    group: u32,
    /// How long a group is served, in microseconds
    #[arg(long, value_name = "US", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    slice_us: u32,
    /// Threads that serve
    #[arg(long, value_name = "N", default_value_t = HOST.threads, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    threads: u32,
    /// Calls that each client has outstanding
    #[arg(long, value_name = "N", default_value_t = LOAD.window as u32, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    window: u32,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Write model.json and the figures, as SVG, to this directory, too; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const MODEL_HELP: &str = "\
Examples:
  scalerpc model
  scalerpc model --nic small --clients 40,120,400
  scalerpc model --json --out /tmp/figures

Exit codes:
  0  all is well
  1  output or a file could not be written
  2  bad usage";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NicChoice {
    Small,
    Large,
    Both,
}

impl NicChoice {
    fn nics(self) -> &'static [(&'static str, Nic)] {
        const NICS: [(&str, Nic); 2] = [("small", SMALL), ("large", LARGE)];
        match self {
            Self::Small => &NICS[..1],
            Self::Large => &NICS[1..],
            Self::Both => &NICS,
        }
    }
}

/// Numbers of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clients(Vec<u32>);

fn clients(text: &str) -> Result<Clients, String> {
    let mut all: Vec<u32> = Vec::new();
    for part in text.split(',') {
        let number = part.trim().parse().ok();
        let Some(number) = number.filter(|it| (1..=CLIENTS_MAX).contains(it)) else {
            return Err(format!("'{part}' is not a number from 1 to {CLIENTS_MAX}"));
        };
        if all.last().is_some_and(|last| *last >= number) {
            return Err(format!("{number} is not above the number before it"));
        }
        all.push(number);
    }
    if all.len() < 2 {
        return Err("give two numbers or more, such as 40,400".to_owned());
    }
    Ok(Clients(all))
}

/// What is modelled, by its name.
const VERBS: [(&str, Verb); 3] = [
    ("outbound WRITE", Verb::OutboundWrite),
    ("inbound WRITE", Verb::InboundWrite),
    ("UD SEND", Verb::DatagramSend),
];

/// Everything that the model says.
#[derive(Serialize)]
struct Data {
    /// That it is a model.
    notice: &'static str,
    group: u32,
    slice_us: u32,
    nics: Vec<OfNic>,
    parameters: Vec<Parameter>,
    published: Vec<Point>,
    sources: [&'static str; 2],
}

#[derive(Serialize)]
struct OfNic {
    nic: &'static str,
    name: &'static str,
    verbs: Vec<Series<Verbs>>,
    servers: Vec<Series<Served>>,
}

/// One thing with each number of clients.
#[derive(Serialize)]
struct Series<T> {
    what: &'static str,
    clients: Vec<u32>,
    reached: Vec<T>,
}

impl Model {
    pub(crate) fn run(&self) -> Outcome {
        let data = self.data();
        let json = serde_json::to_string(&data).map_err(|error| error.to_string())?;
        let mut good = true;
        if let Some(dir) = &self.out {
            let pretty = serde_json::to_string_pretty(&data).map_err(|error| error.to_string())?;
            if let Err(error) = figures::write(dir, &data, &pretty) {
                note(format_args!("scalerpc: --out {}: {error}", dir.display()));
                good = false;
            }
        }
        let mut output = Output::new();
        if self.json {
            output.line(json);
        } else {
            table::lines(&data)
                .iter()
                .for_each(|line| output.line(line));
        }
        if let Err(error) = output.finish() {
            note(format_args!(
                "scalerpc: output could not be written: {error}"
            ));
            good = false;
        }
        Ok(Verdict::good_if(good))
    }

    fn data(&self) -> Data {
        let host = Host {
            threads: self.threads,
            ..HOST
        };
        let load = Load {
            window: self.window as usize,
            ..LOAD
        };
        let nics = self.nic.nics();
        let bare: Vec<Nic> = nics.iter().map(|(_, nic)| *nic).collect();
        Data {
            notice: NOTICE,
            group: self.group,
            slice_us: self.slice_us,
            nics: nics
                .iter()
                .map(|(short, nic)| self.of_nic(short, nic, &host, &load))
                .collect(),
            parameters: nic::parameters(&bare, &host, &load),
            published: nic::points(),
            sources: nic::SOURCES,
        }
    }

    fn of_nic(&self, short: &'static str, nic: &Nic, host: &Host, load: &Load) -> OfNic {
        let designs = [
            (
                "ScaleRPC",
                Design::Grouped {
                    group_size: self.group,
                    time_slice_ns: f64::from(self.slice_us) * 1e3,
                },
            ),
            ("static RC", Design::Static),
            ("UD", Design::Datagrams),
        ];
        let verbs = VERBS.map(|(what, verb)| self.series(what, |n| nic::raw(nic, verb, n)));
        let servers = designs
            .map(|(what, design)| self.series(what, |n| nic::serve(nic, host, load, design, n)));
        OfNic {
            nic: short,
            name: nic.name,
            verbs: verbs.into(),
            servers: servers.into(),
        }
    }

    fn series<T>(&self, what: &'static str, of: impl Fn(u32) -> T) -> Series<T> {
        Series {
            what,
            clients: self.clients.0.clone(),
            reached: self.clients.0.iter().map(|n| of(*n)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CLIENTS, Clients, clients};

    #[test]
    fn numbers_of_clients_grow_and_there_are_two() {
        assert_eq!(clients("1, 40,400"), Ok(Clients(vec![1, 40, 400])));
        assert_eq!(clients(CLIENTS).unwrap().0.last(), Some(&10_000));
        for (text, said) in [
            ("", "''"),
            ("40", "two numbers"),
            ("40,40", "40 is not above"),
            ("400,40", "40 is not above"),
            ("0,40", "'0'"),
            ("40,1000001", "'1000001'"),
            ("40,many", "'many'"),
            ("40,", "''"),
        ] {
            let error = clients(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
