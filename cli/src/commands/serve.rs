//! `scalerpc serve`: a metadata server for other processes.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use scalerpc::{Backoff, Clock};
use serde::Serialize;

use super::{Outcome, Verdict};
use crate::hosting::Hosted;
use crate::measured::Served;
use crate::options::{self, MappingChoice, ServerArgs, WaitChoice};
use crate::output::{Output, note, readable};
use crate::place::PlaceArgs;
use crate::report::{self, ServedJson};
use crate::sys;
use crate::worker::Plan;

/// It is silent for so long before it sleeps.
const REST_AFTER: Duration = Duration::from_millis(1);
/// The longest sleep: a signal may wake another thread.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Serve a directory tree's metadata at a Unix socket, or over RDMA
///
/// The tree is loaded into memory once. Clients are `scalerpc call` and `scalerpc bench`, or programs
/// that use the library. What clients create or remove happens in memory only; the directory itself is
/// only read. Ctrl-C or SIGTERM ends the server: the socket is removed, and its counters are printed.
///
/// While clients call the server polls, which takes a whole core. When nothing has come for a millisecond it sleeps
/// until it is woken: `--wait` chooses otherwise.
#[derive(Args, Clone, Debug)]
#[command(after_help = SERVE_HELP)]
pub(crate) struct Serve {
    #[command(flatten)]
    place: PlaceArgs,
    /// The directory whose tree is served
    #[arg(long, value_name = "DIR", default_value = options::TREE)]
    tree: PathBuf,
    /// Seats for connections
    #[arg(long, value_name = "N", default_value_t = 1024)]
    clients_max: u32,
    /// Calls that a connection may have outstanding, a power of two
    #[arg(long, value_name = "N", default_value_t = Plan::WINDOW)]
    window: u32,
    /// How connections are given blocks
    #[arg(long, value_enum, default_value_t = MappingChoice::Virtual)]
    mapping: MappingChoice,
    /// What the server does while there is nothing to do
    #[arg(long, value_enum, default_value_t = WaitChoice::Sleep)]
    wait: WaitChoice,
    /// Print the counters as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

const SERVE_HELP: &str = "\
Examples:
  scalerpc serve --socket /tmp/meta.sock
  scalerpc serve --socket /tmp/meta.sock --tree /etc --clients-max 4000
  scalerpc serve --socket /tmp/meta.sock --workers 4
  scalerpc serve --verbs 10.0.0.1:7471 --device mlx5_0

A socket that a server left behind when it was killed is taken over.

Exit codes:
  0  it was ended by Ctrl-C or SIGTERM
  1  the counters could not be written
  2  it could not begin, for example because a live server is there";

#[derive(Serialize)]
struct ServeJson {
    mapping: &'static str,
    workers: u32,
    connections_opened: u64,
    #[serde(flatten)]
    served: ServedJson,
}

impl Serve {
    pub(crate) fn run(&self) -> Outcome {
        let (clients, window) = (self.clients_max, self.window);
        let geometry = self
            .server
            .geometry(self.mapping, clients, window, "--clients-max")?;
        let needed = options::server_memory(&geometry);
        options::check_memory(needed, "--clients-max, --group or --window")?;
        let stop = sys::stop_flag().map_err(|error| format!("signal handlers: {error}"))?;
        let (tree, loaded) = options::load_tree(&self.tree)?;
        let service = options::service(&tree, self.clients_max)?;
        let builder = self
            .server
            .builder(self.mapping, self.clients_max, self.window);
        let place = self.place.place();
        let clock = Clock::start();
        let mut hosted = place.host(builder, self.server.workers, service, clock)?;
        let shown = match hosted.server.address() {
            Some(address) => address.to_string(),
            None => place.to_string(),
        };
        let tree = readable(self.tree.as_os_str().as_encoded_bytes());
        note(options::tree_line(&tree, &loaded));
        note(format_args!(
            "serving at {}, process {}, {} mapping, {} seats, {}; Ctrl-C ends it",
            shown,
            std::process::id(),
            self.mapping.name(),
            report::grouped(self.clients_max.into()),
            report::workers(self.server.workers),
        ));
        let rest_after = (self.wait == WaitChoice::Sleep).then_some(REST_AFTER);
        hosted.server.set_rest_after(rest_after);
        let mut backoff = Backoff::default();
        let mut groups = 0;
        // Ordering: the flag carries nothing else.
        while !stop.load(Ordering::Relaxed) {
            let now_ns = clock.now_ns();
            if hosted.poll(now_ns) > 0 {
                backoff.busy();
                continue;
            }
            match self.wait {
                WaitChoice::Sleep if hosted.server.wait(now_ns, SLEEP_MAX) => backoff.busy(),
                WaitChoice::Sleep | WaitChoice::Yield => backoff.idle(),
                WaitChoice::Poll => std::hint::spin_loop(),
            }
            groups = groups.max(hosted.server.counters().groups);
        }
        self.finish(hosted, groups)
    }

    fn finish(&self, hosted: Hosted, groups: u64) -> Outcome {
        let Hosted { server, service } = hosted;
        let memory = server.memory();
        let counters = server.counters();
        let workers = server.workers();
        let served = Served {
            counters,
            groups: groups.max(counters.groups),
            bytes: server.bytes(),
            all_bytes: memory.bytes,
            time_slice: server.time_slice(),
            page_size: memory.backing.page_bytes(),
            backing: memory.backing.to_string(),
        };
        // Frees the path, and tells the clients, before anything is written that could block.
        drop(server);
        let mut output = Output::new();
        if self.json {
            let json = ServeJson {
                mapping: self.mapping.name(),
                workers: self.server.workers,
                connections_opened: counters.opened,
                served: ServedJson::from(&served),
            };
            output.line(serde_json::to_string(&json).map_err(|error| error.to_string())?);
        } else {
            output.line(format!(
                "{:<34}{:>16}",
                "the server's counters",
                self.mapping.name()
            ));
            for line in report::server_table(&[&served]) {
                output.line(line);
            }
            for (index, counters) in workers.iter().enumerate() {
                output.line(report::worker(index, counters));
            }
            let service = service.counters();
            let calls: u64 = service.requests.iter().sum();
            report::pages(&served)
                .iter()
                .for_each(|line| output.line(line));
            output.line(format!(
                "{} connections were opened; {} calls, {} malformed, {} of unknown methods",
                report::grouped(counters.opened),
                report::grouped(calls + service.unknown_methods),
                report::grouped(service.bad_requests),
                report::grouped(service.unknown_methods),
            ));
        }
        let wrote = output.finish();
        if let Err(error) = &wrote {
            note(format_args!(
                "scalerpc: the counters could not be written: {error}"
            ));
        }
        Ok(Verdict::good_if(wrote.is_ok()))
    }
}
