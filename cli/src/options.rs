//! Options that several commands have, and how they become what the library wants.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use scalerpc::{
    Geometry, GeometryConfig, GeometryError, Mapping, PagePolicy, Server, ServerBuilder,
};
use scalerpc_cli::meta::load::{Mix, OWN_NODES};
use scalerpc_cli::meta::service::{MetaService, NODE_LIMIT_MAX};
use scalerpc_cli::meta::tree::{LoadReport, Tree};

use crate::output::{note, readable};
use crate::report::{self, grouped};
use crate::sys;

/// The tree that is served unless another is named.
pub(crate) const TREE: &str = "/usr";
/// Largest request of the metadata service: the longest path in a Debian `/usr` has some 200 bytes, and
/// a longer one is passed over. Every connection has a window of such blocks on both sides.
pub(crate) const REQUEST_MAX_BYTES: u32 = 512;
/// Largest response: some 80 names on a page of a directory. A client has a ring of them for each
/// connection, which at this size comes to 17 KiB with the default window.
pub(crate) const RESPONSE_MAX_BYTES: u32 = 2048;
/// Most client processes: each costs the server a thread to hear it, and some file descriptors.
const PROCESSES_MAX: i64 = 512;
/// Longest load: a day.
const SECONDS_MAX: f64 = 86_400.0;

/// How connections are given blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MappingChoice {
    /// Groups of connections share two pools of blocks in turn
    Virtual,
    /// Every connection has blocks of its own
    Static,
}

impl MappingChoice {
    pub(crate) fn mapping(self) -> Mapping {
        match self {
            Self::Virtual => Mapping::Virtual,
            Self::Static => Mapping::Static,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Virtual => "virtual",
            Self::Static => "static",
        }
    }
}

/// What the server does while there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitChoice {
    /// Polls, and never gives its core away
    Poll,
    /// Polls, and gives its core to whoever else wants it
    Yield,
    /// Polls for a while, then sleeps until it is woken
    Sleep,
}

/// What a server is made from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Connections that are served together
    #[arg(long, value_name = "N", default_value_t = 40)]
    group: u32,
    /// How long a group is served while others wait, in microseconds [default: it follows what a switch
    /// costs, from 50 to 10000]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    slice_us: Option<u64>,
    /// Threads that serve, each with its part of the connections; more than one only over shared memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,
    /// Hugepages: demand them, take them if they are there, or leave them alone
    #[arg(long, value_name = "require|prefer|never", default_value_t = PagePolicy::Prefer)]
    pub(crate) pages: PagePolicy,
}

impl ServerArgs {
    /// What the sizes come to; `clients_option` is where the number of clients was given.
    ///
    /// # Errors
    ///
    /// Where they are not possible; the text names the option.
    pub(crate) fn geometry(
        &self,
        mapping: MappingChoice,
        clients: u32,
        window: u32,
        clients_option: &str,
    ) -> Result<Geometry, String> {
        Geometry::new(GeometryConfig {
            clients_max: clients,
            group_size: self.group,
            window,
            request_max_bytes: REQUEST_MAX_BYTES,
            response_max_bytes: RESPONSE_MAX_BYTES,
            mapping: mapping.mapping(),
        })
        .map_err(|error| geometry_error(&error, clients_option))
    }

    /// A builder with these options.
    pub(crate) fn builder(
        &self,
        mapping: MappingChoice,
        clients: u32,
        window: u32,
    ) -> ServerBuilder {
        let builder = Server::builder()
            .clients_max(clients)
            .group_size(self.group)
            .window(window)
            .request_max_bytes(REQUEST_MAX_BYTES)
            .response_max_bytes(RESPONSE_MAX_BYTES)
            .mapping(mapping.mapping())
            .page_policy(self.pages);
        let builder = match self.workers {
            1 => builder,
            workers => builder.workers(workers),
        };
        match self.slice_us {
            Some(slice_us) => builder.time_slice(Duration::from_micros(slice_us)),
            None => builder,
        }
    }

    pub(crate) fn group(&self) -> u32 {
        self.group
    }
}

/// The load.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// How long the load lasts, in seconds; fractions are fine
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// How often each method is called
    #[arg(long, value_name = "METHOD=WEIGHT,...", default_value_t = Mix::default())]
    pub(crate) mix: Mix,
    /// Equal seeds give equal requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Which RDMA device, port and GID to use.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "RDMA")]
pub(crate) struct VerbsArgs {
    /// The device, such as mlx5_0; by default the first that has a usable port
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The device's port; by default the first that is active
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    port: Option<u8>,
    /// Index in the port's table of GIDs; by default a RoCE v2 one that can be routed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=255))]
    gid_index: Option<u32>,
    /// Largest payload of a packet, 256 to 4096; by default the port's
    #[arg(long, value_name = "BYTES", value_parser = mtu)]
    mtu: Option<u32>,
}

impl VerbsArgs {
    /// True if any of them was given: then RDMA is wanted.
    pub(crate) fn is_given(&self) -> bool {
        let Self {
            device,
            port,
            gid_index,
            mtu,
        } = self;
        device.is_some() || port.is_some() || gid_index.is_some() || mtu.is_some()
    }

    /// What the library wants.
    #[cfg(feature = "verbs")]
    pub(crate) fn selection(&self) -> scalerpc_driver::verbs::Selection {
        scalerpc_driver::verbs::Selection {
            device: self.device.clone(),
            port: self.port,
            gid_index: self.gid_index,
            mtu: self.mtu.and_then(scalerpc_driver::verbs::Mtu::from_bytes),
        }
    }
}

fn mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("must be 256, 512, 1024, 2048 or 4096".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    // Written so that what is no number fails as well.
    if !(0.01..=SECONDS_MAX).contains(&seconds) {
        return Err(format!("must be from 0.01 to {SECONDS_MAX}"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Says which option is wrong where the library names a number.
fn geometry_error(error: &GeometryError, clients_option: &str) -> String {
    match *error {
        GeometryError::OutOfRange {
            field,
            value,
            min,
            max,
        } => {
            let option = match field {
                "clients_max" => clients_option,
                "group_size" => "--group",
                "window" => "--window",
                field => field,
            };
            format!("{option} {value}: must be from {min} to {max}")
        }
        GeometryError::WindowNotPowerOfTwo { value } => {
            let above = value.next_power_of_two();
            format!(
                "--window {value}: must be a power of two, such as {} or {above}",
                above / 2
            )
        }
        GeometryError::TooLarge => {
            format!("{error}: choose a smaller {clients_option}, --group or --window")
        }
    }
}

/// Bytes that a server of this geometry takes at once.
pub(crate) fn server_memory(geometry: &Geometry) -> u64 {
    (geometry.server_exposed_bytes() as u64).saturating_add(geometry.server_private_bytes() as u64)
}

/// Says no before the machine runs out of memory; `smaller` names what could be less.
pub(crate) fn check_memory(needed: u64, smaller: &str) -> Result<(), String> {
    match sys::available_memory() {
        Some(available) if needed > available => Err(format!(
            "{} of memory would be needed, and {} are available: choose a smaller {smaller}",
            report::bytes(needed as usize),
            report::bytes(available as usize),
        )),
        _ => Ok(()),
    }
}

/// Checks what clap cannot: that the processes all have something to do.
pub(crate) fn check_processes(processes: i64, clients: u32) -> Result<u32, String> {
    if !(1..=PROCESSES_MAX).contains(&processes) {
        return Err(format!(
            "--processes {processes}: must be from 1 to {PROCESSES_MAX}"
        ));
    }
    match u32::try_from(processes) {
        Ok(processes) if processes <= clients => Ok(processes),
        _ => Err(format!(
            "--processes {processes}: with --clients {clients} at most {clients} of them would have a \
             connection; use fewer processes or more clients"
        )),
    }
}

/// Loads a tree, and says what was left out.
pub(crate) fn load_tree(dir: &Path) -> Result<(Arc<Tree>, LoadReport), String> {
    let loaded = Tree::load(dir, None);
    let (tree, report) = loaded.map_err(|error| format!("--tree {error}"))?;
    tell_skipped(&report);
    Ok((Arc::new(tree), report))
}

/// Names the first entries that are missing from the tree.
pub(crate) fn tell_skipped(report: &LoadReport) {
    if report.skipped == 0 {
        return;
    }
    note(format_args!(
        "{} entries were left out:",
        grouped(report.skipped)
    ));
    for (path, why) in &report.skipped_examples {
        let path = readable(path.as_os_str().as_encoded_bytes());
        note(format_args!("  {path}: {why}"));
    }
    let more = report.skipped - report.skipped_examples.len() as u64;
    if more > 0 {
        note(format_args!("  and {} more", grouped(more)));
    }
}

/// A metadata service for a tree, with room for all the nodes that so many clients keep.
pub(crate) fn service(tree: &Arc<Tree>, clients: u32) -> Result<MetaService, String> {
    let nodes = clients.saturating_mul(OWN_NODES as u32).min(NODE_LIMIT_MAX);
    MetaService::new(Arc::clone(tree), nodes).map_err(|error| error.to_string())
}

/// A tree in a line.
pub(crate) fn tree_line(shown: &str, report: &LoadReport) -> String {
    let mut line = format!(
        "tree     {}: {} entries, {} of them directories",
        shown,
        grouped(report.entries as u64),
        grouped(report.dirs as u64),
    );
    if report.skipped > 0 {
        line.push_str(&format!("; {} left out", grouped(report.skipped)));
    }
    line
}
