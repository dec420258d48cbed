//! `scalerpc bench`: a load on a server that runs already.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use scalerpc::{Clock, PagePolicy};
use scalerpc_cli::meta::tree::{LoadReport, Tree};
use serde::Serialize;

use super::{Outcome, Verdict};
use crate::fleet::{Fleet, Lost};
use crate::measured::Load;
use crate::messages::Order;
use crate::options::{self, LoadArgs};
use crate::output::{Output, note};
use crate::place::PlaceArgs;
use crate::remote::Remote;
use crate::report::{LostJson, Part, PartJson, grouped};
use crate::rounds::{Rounds, Unwatched};
use crate::sys;
use crate::worker::Plan;

/// Time for a client process that is stopped at the end to go on.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Longest time for the clients to remove what they created.
const CLEAN_UP_NS: u64 = 10_000_000_000;

/// Put a running server under load, check every answer, and report
///
/// First the tree is learned from the server itself, call by call, unless --tree says where the same
/// tree is on this machine. Then client processes do what `scalerpc demo` does. At the end they remove
/// what they created.
#[derive(Args, Clone, Debug)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct Bench {
    #[command(flatten)]
    place: PlaceArgs,
    /// The directory that the server serves; it must not have changed since the server was started
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Connections in all
    #[arg(long, value_name = "N", default_value_t = 100)]
    clients: u32,
    /// Client processes that share them [default: 2, or as many as there are clients]
    #[arg(long, value_name = "M")]
    processes: Option<i64>,
    /// Calls that each connection has outstanding [default: 4, or the server's window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Hugepages for the clients' memory: require, prefer or never
    #[arg(long, value_name = "POLICY", default_value_t = PagePolicy::Prefer)]
    pages: PagePolicy,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

const BENCH_HELP: &str = "\
Examples:
  scalerpc bench --socket /tmp/meta.sock
  scalerpc bench --socket /tmp/meta.sock --clients 400 --seconds 10 --json
  scalerpc bench --socket /tmp/meta.sock --clients 1 --window 1 --mix stat=1
  scalerpc bench --verbs 10.0.0.1:7471

Exit codes:
  0  all answers are right; a client process that somebody else has killed is
     reported, and no failure
  1  an answer is wrong, a call failed, or a client process crashed
  2  it could not begin";

#[derive(Serialize)]
struct BenchJson {
    clients: u32,
    processes: u32,
    pids: Vec<i32>,
    lost_processes: Vec<LostJson>,
    interrupted: bool,
    #[serde(flatten)]
    part: PartJson,
}

impl Bench {
    pub(crate) fn run(&self) -> Outcome {
        if self.clients == 0 {
            return Err("--clients 0: must be at least 1".into());
        }
        let wanted = 2.min(self.clients.into());
        let processes = options::check_processes(self.processes.unwrap_or(wanted), self.clients)?;
        let stop = sys::stop_flag().map_err(|error| format!("signal handlers: {error}"))?;
        let (tree, loaded) = self.tree()?;
        let clock = Clock::start();
        let plan = Plan {
            targets: vec![self.place.place()],
            tree: Arc::clone(&tree),
            mix: self.load.mix,
            seed: self.load.seed,
            window: self.window,
            pages: self.pages,
            clock,
        };
        // Two that were never told apart by the server would take each other's nodes for their own.
        let first_client = RandomState::new().hash_one(std::process::id()) as u32;
        let mut fleet = Fleet::start(&plan, self.clients, processes, first_client)?;
        fleet.connect(Vec::new())?;
        note(format_args!(
            "client processes: {}",
            fleet
                .pids()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        ));
        let mut loads = [Load::new().ok_or("no histogram")?];
        let rounds = Rounds {
            names: &["bench"],
            each: self.load.seconds,
            stop: &stop,
            clock,
        };
        rounds.run(&mut fleet, &mut loads, &mut Unwatched)?;
        let [mut load] = loads;
        // After a wrong answer nobody knows what is there, and to remove it could go on for ever.
        if load.wrong_answers == 0 {
            let until_ns = clock.now_ns() + CLEAN_UP_NS;
            let order = Order::CleanUp {
                target: 0,
                until_ns,
            };
            fleet.carry_out(order, until_ns, &mut |report| load.add(report), &mut || {});
        }
        fleet.wait_for_late(PATIENCE_NS, &mut |report| load.add(report));
        fleet.finish();
        let part = Part {
            name: "bench",
            load,
            served: None,
        };
        let interrupted = stop.load(Ordering::Relaxed);
        self.finish(&fleet, processes, &loaded, &part, interrupted)
    }

    fn tree(&self) -> Result<(Arc<Tree>, LoadReport), String> {
        if let Some(dir) = &self.tree {
            return options::load_tree(dir);
        }
        let place = self.place.place();
        let client = place.client()?;
        let mut remote = Remote::new(client);
        let loaded = Tree::load_from(&mut remote, Path::new(""), None);
        let (tree, report) =
            loaded.map_err(|error| format!("the tree of the server at {place}: {error}"))?;
        options::tell_skipped(&report);
        if let Some(path) = remote.changed(&tree).map_err(|error| error.to_string())? {
            return Err(format!(
                "the server at {place}: {path}, so what it must answer cannot be told; start it again"
            ));
        }
        Ok((Arc::new(tree), report))
    }

    fn finish(
        &self,
        fleet: &Fleet,
        processes: u32,
        loaded: &LoadReport,
        part: &Part,
        interrupted: bool,
    ) -> Outcome {
        let lost = fleet.lost();
        let mut output = Output::new();
        if self.json {
            let json = BenchJson {
                clients: self.clients,
                processes,
                pids: fleet.pids(),
                lost_processes: lost.iter().map(LostJson::from).collect(),
                interrupted,
                part: part.json(),
            };
            output.line(serde_json::to_string(&json).map_err(|error| error.to_string())?);
        } else {
            output.line(options::tree_line(&self.place.place().to_string(), loaded));
            output.line(format!(
                "load     {} clients in {processes} processes, {:.1} s",
                grouped(self.clients.into()),
                part.load.seconds(),
            ));
            output.line(format!("         {}", self.load.mix));
            output.line("");
            part.table().iter().for_each(|line| output.line(line));
            output.line("");
            if interrupted {
                output.line("interrupted: this is what was done until then");
            }
            lost.iter().for_each(|lost| output.line(lost.to_string()));
            part.load
                .examples
                .iter()
                .for_each(|example| output.line(format!("  {example}")));
            output.line(format!(
                "{} answers checked, {} wrong; {} calls without an answer",
                grouped(part.load.operations()),
                grouped(part.load.wrong_answers),
                grouped(part.load.errors),
            ));
        }
        for failure in fleet.failures() {
            note(format_args!("a client process reported: {failure}"));
        }
        let load = &part.load;
        let bad = load.wrong_answers + load.errors > 0 || lost.iter().any(Lost::is_failure);
        let wrote = output.finish();
        if let Err(error) = &wrote {
            note(format_args!(
                "scalerpc: the report could not be written: {error}"
            ));
        }
        Ok(Verdict::good_if(!bad && wrote.is_ok()))
    }
}
