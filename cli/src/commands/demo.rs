//! `scalerpc demo`: servers, client processes and a load, all started here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::{Args, ValueEnum};
use scalerpc::{Clock, Counters};
use scalerpc_cli::meta::tree::{LoadReport, Tree};
use serde::Serialize;

use super::{Outcome, Verdict};
use crate::fleet::{Fleet, Lost};
use crate::hosting::Host;
use crate::measured::{Load, Served};
use crate::options::{self, LoadArgs, MappingChoice, ServerArgs, VerbsArgs};
use crate::output::{Output, note, readable};
use crate::place::Place;
use crate::report::{self, LostJson, Part, PartJson};
use crate::rounds::{Rounds, Watch};
use crate::sys;
use crate::worker::Plan;

/// Client processes, unless there are fewer clients.
const PROCESSES: i64 = 4;
/// Time for a client process that is stopped at the end to go on.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Longest time for the servers to take in all connections.
const OPEN_NS: u64 = 30_000_000_000;
/// Memory that a client needs for its load, besides that for its connection.
const CLIENT_LOAD_BYTES: u64 = 8 << 10;

/// Which mappings are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mappings {
    /// Groups of connections share two pools of blocks in turn
    Virtual,
    /// Every connection has blocks of its own
    Static,
    /// Both under the same load, in turn, side by side
    Both,
}

impl Mappings {
    fn choices(self) -> &'static [MappingChoice] {
        match self {
            Self::Virtual => &[MappingChoice::Virtual],
            Self::Static => &[MappingChoice::Static],
            Self::Both => &[MappingChoice::Virtual, MappingChoice::Static],
        }
    }
}

/// Run a metadata server and its clients, check every answer, and report
///
/// A directory tree is loaded into a metadata server. Client processes connect over shared memory and
/// ask for it: stat, readdir, mknod and rmnod, by real paths. Every answer is checked. The report shows
/// throughput, latencies, and what the protocol did; for both mappings, in turns of half a second, so
/// that they can be compared.
///
/// While it runs, try `kill -9 PID` or `kill -STOP PID` with one of the client processes, whose ids are
/// printed: the others go on. Ctrl-C ends it with a report of what has been done so far.
#[derive(Args, Clone, Debug)]
#[command(after_help = DEMO_HELP)]
pub(crate) struct Demo {
    /// The directory whose tree is served; it is only read
    #[arg(long, value_name = "DIR", default_value = options::TREE)]
    tree: PathBuf,
    /// Connections in all
    #[arg(long, value_name = "N", default_value_t = 400)]
    clients: u32,
    /// Client processes that share them [default: 4, or as many as there are clients]
    #[arg(long, value_name = "M")]
    processes: Option<i64>,
    /// Calls that each connection has outstanding, a power of two
    #[arg(long, value_name = "N", default_value_t = Plan::WINDOW)]
    window: u32,
    /// How connections are given blocks
    #[arg(long, value_enum, default_value_t = Mappings::Both)]
    mapping: Mappings,
    /// Print one JSON object instead of tables
    ///
    /// Its fields are those of the first mapping; those of the static mapping are under `static`.
    #[arg(long)]
    json: bool,
    /// Over RDMA: the clients reach the server through the device, even on this host
    #[arg(long)]
    verbs: bool,
    #[command(flatten)]
    selection: VerbsArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    server: ServerArgs,
}

const DEMO_HELP: &str = "\
Examples:
  scalerpc demo
  scalerpc demo --tree /etc --clients 2000 --processes 8 --seconds 10
  scalerpc demo --mapping virtual --mix stat=90,readdir=10 --slice-us 200
  scalerpc demo --verbs --clients 300
  scalerpc demo --json | tail -n1 | jq .throughput_ops

Exit codes:
  0  all answers are right; a client process that somebody else has killed is
     reported, and no failure
  1  an answer is wrong, a call failed, or a client process crashed
  2  it could not begin";

/// The whole report, for programs.
#[derive(Serialize)]
struct DemoJson {
    clients: u32,
    processes: u32,
    window: u32,
    workers: u32,
    tree: TreeJson,
    pids: Vec<i32>,
    lost_processes: Vec<LostJson>,
    interrupted: bool,
    #[serde(flatten)]
    first: PartJson,
    #[serde(rename = "static")]
    static_mapping: Option<PartJson>,
    /// Throughput with virtual mapping by that with static mapping.
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct TreeJson {
    dir: String,
    entries: usize,
    dirs: usize,
    skipped: u64,
}

impl Demo {
    pub(crate) fn run(&self) -> Outcome {
        self.check()?;
        let wanted = PROCESSES.min(self.clients.into());
        let processes = options::check_processes(self.processes.unwrap_or(wanted), self.clients)?;
        let stop = sys::stop_flag().map_err(|error| format!("signal handlers: {error}"))?;
        let (tree, loaded) = options::load_tree(&self.tree)?;
        let dir = tempfile::Builder::new().prefix("scalerpc-demo-").tempdir();
        let dir = dir.map_err(|error| {
            format!("a directory for sockets: {error}; TMPDIR may name another place for it")
        })?;
        let plan = self.plan(&tree, dir.path());
        // Before any thread is started: the client processes share the tree by being forked.
        let mut fleet = Fleet::start(&plan, self.clients, processes, 0)?;
        let mut shown = Shown::start(self, &plan, &tree)?;
        fleet.connect(std::mem::take(&mut shown.addresses))?;
        shown.wait_until_open(self.clients, plan.clock)?;
        // Whatever happens from here on, nothing is left behind.
        drop(dir);
        note(format_args!(
            "client processes: {}",
            fleet
                .pids()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        ));
        let mut loads = self.loads()?;
        let names: Vec<_> = self
            .mapping
            .choices()
            .iter()
            .map(|choice| choice.name())
            .collect();
        let rounds = Rounds {
            names: &names,
            each: self.load.seconds,
            stop: &stop,
            clock: plan.clock,
        };
        rounds.run(&mut fleet, &mut loads, &mut shown)?;
        fleet.wait_for_late(PATIENCE_NS, &mut |report| {
            if let Some(load) = loads.get_mut(report.target) {
                load.add(report);
            }
        });
        // Before the client processes say goodbye, so that connections which are gone were lost.
        shown.count()?;
        fleet.finish();
        let parts = names.iter().zip(loads).zip(shown.served);
        let parts = parts.map(|((name, load), served)| Part {
            name,
            load,
            served: Some(served),
        });
        let interrupted = stop.load(Ordering::Relaxed);
        self.finish(
            &fleet,
            processes,
            &loaded,
            &parts.collect::<Vec<_>>(),
            interrupted,
        )
    }

    /// Says no before any process is started or memory is taken.
    fn check(&self) -> Result<(), String> {
        let mut needed = 0;
        for choice in self.mapping.choices() {
            let geometry = self
                .server
                .geometry(*choice, self.clients, self.window, "--clients")?;
            let each = geometry.client_exposed_bytes() + geometry.client_private_bytes();
            let all = (each as u64 + CLIENT_LOAD_BYTES).saturating_mul(self.clients.into());
            needed = options::server_memory(&geometry)
                .saturating_add(all)
                .saturating_add(needed);
        }
        options::check_memory(
            needed,
            "--clients, --group or --window, or one mapping at a time",
        )
    }

    fn plan(&self, tree: &Arc<Tree>, dir: &Path) -> Plan {
        let targets = self.mapping.choices().iter();
        Plan {
            targets: targets.map(|choice| self.place(dir, *choice)).collect(),
            tree: Arc::clone(tree),
            mix: self.load.mix,
            seed: self.load.seed,
            window: Some(self.window),
            pages: self.server.pages,
            clock: Clock::start(),
        }
    }

    fn place(&self, dir: &Path, choice: MappingChoice) -> Place {
        match self.verbs || self.selection.is_given() {
            false => Place::Shm(dir.join(choice.name())),
            true => Place::Verbs {
                // The clients are told the port; only the set-up goes through it.
                address: "127.0.0.1:0".to_owned(),
                selection: self.selection.clone(),
            },
        }
    }

    fn loads(&self) -> Result<Vec<Load>, String> {
        let choices = self.mapping.choices().iter();
        choices
            .map(|_| Load::new().ok_or_else(|| "no histogram".to_owned()))
            .collect()
    }

    fn finish(
        &self,
        fleet: &Fleet,
        processes: u32,
        loaded: &LoadReport,
        parts: &[Part],
        interrupted: bool,
    ) -> Outcome {
        let lost = fleet.lost();
        let mut output = Output::new();
        if self.json {
            let json = self.json(fleet, processes, loaded, parts, interrupted);
            let text = serde_json::to_string(&json).map_err(|error| error.to_string())?;
            output.line(text);
        } else {
            let tree = readable(self.tree.as_os_str().as_encoded_bytes());
            output.line(options::tree_line(&tree, loaded));
            output.line(format!(
                "load     {} clients in {processes} processes, {} calls outstanding each",
                report::grouped(self.clients.into()),
                self.window,
            ));
            output.line(format!("         {}", self.load.mix));
            let served = parts.first().and_then(|part| part.served.as_ref());
            let slice = served.map(|served| served.time_slice).unwrap_or_default();
            output.line(format!(
                "server   {}; groups of {}, slices of {} us at the end",
                report::workers(self.server.workers),
                self.server.group(),
                slice.as_micros(),
            ));
            tables(parts, &mut output);
            summary(parts, &lost, interrupted, &mut output);
        }
        for failure in fleet.failures() {
            note(format_args!("a client process reported: {failure}"));
        }
        let wrong = parts
            .iter()
            .any(|part| part.load.wrong_answers + part.load.errors > 0);
        let crashed = lost.iter().any(Lost::is_failure);
        let wrote = output.finish();
        if let Err(error) = &wrote {
            note(format_args!(
                "scalerpc: the report could not be written: {error}"
            ));
        }
        Ok(Verdict::good_if(!wrong && !crashed && wrote.is_ok()))
    }

    fn json(
        &self,
        fleet: &Fleet,
        processes: u32,
        loaded: &LoadReport,
        parts: &[Part],
        interrupted: bool,
    ) -> Option<DemoJson> {
        let first = parts.first()?;
        let of_static = parts
            .iter()
            .find(|part| part.name == MappingChoice::Static.name());
        Some(DemoJson {
            clients: self.clients,
            processes,
            window: self.window,
            workers: self.server.workers,
            tree: TreeJson {
                dir: readable(self.tree.as_os_str().as_encoded_bytes()),
                entries: loaded.entries,
                dirs: loaded.dirs,
                skipped: loaded.skipped,
            },
            pids: fleet.pids(),
            lost_processes: fleet.lost().iter().map(LostJson::from).collect(),
            interrupted,
            first: first.json(),
            static_mapping: of_static.map(Part::json),
            ratio: ratio(parts),
        })
    }
}

/// Throughput of the first part by that of the second.
fn ratio(parts: &[Part]) -> Option<f64> {
    match parts {
        [first, second] if second.load.throughput() > 0 => {
            Some(first.load.throughput() as f64 / second.load.throughput() as f64)
        }
        _ => None,
    }
}

fn tables(parts: &[Part], output: &mut Output) {
    for part in parts {
        output.line("");
        output.line(format!(
            "{} mapping, {:.1} s",
            part.name,
            part.load.seconds()
        ));
        for line in part.table() {
            output.line(line);
        }
    }
    let served: Vec<_> = parts
        .iter()
        .filter_map(|part| part.served.as_ref())
        .collect();
    output.line("");
    let mut heading = format!("{:<34}", "the server's side");
    for part in parts {
        heading.push_str(&format!("{:>16}", part.name));
    }
    output.line(heading);
    for line in report::server_table(&served) {
        output.line(line);
    }
    if let Some(served) = served.first() {
        report::pages(served)
            .iter()
            .for_each(|line| output.line(line));
    }
}

fn summary(parts: &[Part], lost: &[Lost], interrupted: bool, output: &mut Output) {
    output.line("");
    if let Some(ratio) = ratio(parts) {
        output.line(format!(
            "throughput of virtual by static mapping: {ratio:.2}"
        ));
    }
    if interrupted {
        output.line("interrupted: this is what was done until then");
    }
    for lost in lost {
        output.line(lost.to_string());
    }
    let (mut calls, mut wrong, mut errors) = (0, 0, 0);
    for load in parts.iter().map(|part| &part.load) {
        calls += load.operations();
        wrong += load.wrong_answers;
        errors += load.errors;
        for example in &load.examples {
            output.line(format!("  {example}"));
        }
    }
    output.line(format!(
        "{} answers checked, {} wrong; {} calls without an answer",
        report::grouped(calls),
        report::grouped(wrong),
        report::grouped(errors),
    ));
}

/// The servers that are shown, and what they count.
struct Shown {
    host: Host,
    /// Where the servers listen, if clients cannot know.
    addresses: Vec<String>,
    served: Vec<Served>,
    /// Counters when all clients were there.
    start: Vec<Counters>,
    /// Slices at the start of the present round, and in all rounds so far: a server that has no load
    /// while it is the other's turn goes on counting them.
    slices_before: u64,
    slices: Vec<u64>,
}

impl Shown {
    fn start(demo: &Demo, plan: &Plan, tree: &Arc<Tree>) -> Result<Self, String> {
        let mut servers = Vec::new();
        let mut served = Vec::new();
        let mut addresses = Vec::new();
        for (choice, place) in demo.mapping.choices().iter().zip(&plan.targets) {
            let builder = demo.server.builder(*choice, demo.clients, demo.window);
            let service = options::service(tree, demo.clients)?;
            let hosted = place.host(builder, demo.server.workers, service, plan.clock)?;
            let server = &hosted.server;
            addresses.extend(server.address().map(|address| address.to_string()));
            let memory = server.memory();
            served.push(Served {
                counters: Counters::default(),
                groups: 0,
                bytes: server.bytes(),
                all_bytes: memory.bytes,
                time_slice: server.time_slice(),
                page_size: memory.backing.page_bytes(),
                backing: memory.backing.to_string(),
            });
            servers.push(hosted);
        }
        let host = Host::start(servers, plan.clock)
            .map_err(|error| format!("a thread for the servers: {error}"))?;
        Ok(Self {
            host,
            addresses,
            start: Vec::new(),
            slices_before: 0,
            slices: vec![0; served.len()],
            served,
        })
    }

    /// The clients are connected; the servers may not have seen all of them yet.
    fn wait_until_open(&mut self, clients: u32, clock: Clock) -> Result<(), String> {
        let until_ns = clock.now_ns() + OPEN_NS;
        for target in 0..self.served.len() {
            let counters = loop {
                let counters = self.host.counters(target)?;
                if counters.opened >= clients.into() {
                    break counters;
                }
                if clock.now_ns() > until_ns {
                    return Err(format!(
                        "the server took in only {} of {clients} connections",
                        counters.opened
                    ));
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            self.served[target].groups = counters.groups;
            self.start.push(counters);
        }
        Ok(())
    }

    /// Takes the counters of everything since the start.
    fn count(&mut self) -> Result<(), String> {
        for (target, served) in self.served.iter_mut().enumerate() {
            let end = self.host.counters(target)?;
            served.counters = end.since(&self.start[target]);
            served.counters.slices = self.slices[target];
            served.time_slice = self.host.time_slice(target)?;
        }
        Ok(())
    }
}

impl Watch for Shown {
    fn begin(&mut self, target: usize) -> Result<(), String> {
        self.host.activate(target);
        self.slices_before = self.host.counters(target)?.slices;
        Ok(())
    }

    fn end(&mut self, target: usize) -> Result<(), String> {
        self.slices[target] += self.host.counters(target)?.slices - self.slices_before;
        Ok(())
    }
}
