//! What a server says of itself while it runs: to its own process, and to any client that asks.
//!
//! Methods from [`METHODS_RESERVED`] on belong to the library. A handler never sees them. Of those there is
//! [`SNAPSHOT`], which a server answers unless [`ServerBuilder::observable`](crate::ServerBuilder::observable) says
//! otherwise; a client that calls another one, or one that this server does not answer, gets
//! [`Status::UNKNOWN_METHOD`](crate::Status::UNKNOWN_METHOD).
//!
//! A snapshot comes in pages, each the response to a call, and none larger than a response or 4 KiB. A page is taken
//! within one round, and rounds pass between pages: the parts of a snapshot are some microseconds apart. A
//! [`SnapshotReader`] says which page to ask for, and checks what comes:
//!
//! ```no_run
//! use scalerpc::observe::{SNAPSHOT, SnapshotReader};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = scalerpc::Client::connect("/tmp/meta.sock")?;
//! let mut reader = SnapshotReader::new();
//! while let Some(request) = reader.request() {
//!     reader.take(client.call(SNAPSHOT, &request)?)?;
//! }
//! let snapshot = reader.finish();
//! println!("{} connections", snapshot.counters.connections);
//! # Ok(())
//! # }
//! ```
//!
//! On the wire everything is little-endian. A request is `version u16, section u8, 0 u8, cursor u32`, a page `version
//! u16, section u8, bytes of an item u8, next cursor u32`, followed by items. Later versions of the library add
//! counters at the end of their section, and fields at the end of an item, and a reader passes over what it does not
//! know; any other change has another version.
//!
//! # Events and metrics
//!
//! With the feature `metrics` `Server::publish_metrics` gives the same numbers to the program's recorder. With the feature
//! `tracing` the program's subscriber hears of what happens in `Server::poll`. All events have the target `scalerpc::server`:
//!
//! | level | message | fields |
//! |---|---|---|
//! | debug | connection opened | `seat` |
//! | debug | connection gone | `seat` |
//! | warn | connection evicted | `seat`, `why`: what the peer did, or that its connection failed |
//! | warn | slow round | `round_ns`, `slice_ns`: a round that did something, or the pause after it, took longer than a slice; at most one event a second |
//! | trace | context switch | `switches`: in all, `epoch`, `group`: those that are served now |

mod page;
mod reader;

use std::time::Duration;

use scalerpc_core::Mapping;
pub use scalerpc_core::histogram::{BUCKETS, Histogram};
pub use scalerpc_core::server::{
    ConnState, ConnView, GroupView, Histograms, PoolView, QuarantineView,
};

use crate::server::Eviction;
use crate::{Counters, Grouping};

pub(crate) use page::{Source, WorkerPlace, write_page};
pub use reader::{SnapshotError, SnapshotReader};

/// Methods from here on belong to the library.
pub const METHODS_RESERVED: u16 = 0xFF00;
/// The method that asks for a page of a snapshot.
pub const SNAPSHOT: u16 = 0xFF00;
/// The version of what is asked and answered.
pub const VERSION: u16 = 1;
/// No response, and no page, needs more room than this.
pub(crate) const PAGE_MAX_BYTES: usize = 4096;

/// A server as it was made, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerView {
    /// Its clock, in nanoseconds; where it began is the server's own affair.
    pub now_ns: u64,
    /// Seats for connections.
    pub clients_max: u32,
    /// Connections that are served together.
    pub group_size: u32,
    /// Calls that a connection may have outstanding.
    pub window: u32,
    /// Zones of a pool.
    pub zones: u32,
    /// Records of groups.
    pub groups_max: u32,
    /// How connections are given blocks.
    pub mapping: Mapping,
    /// How connections are put into groups.
    pub grouping: Grouping,
    /// How long a group is served while others wait.
    pub time_slice: Duration,
    /// The group that is served is being told that its slice is over.
    pub draining: bool,
    /// The engine that this is about, of so many; each serves connections of its own.
    pub worker: u16,
    /// Engines of the server.
    pub workers: u16,
    /// The seat of who asked; `None` if the server itself did.
    pub asked_by: Option<u32>,
    /// The peer that was evicted last, if one was.
    pub last_eviction: Option<Eviction>,
}

/// Everything that can be seen of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// How it was made.
    pub server: ServerView,
    /// What happened so far.
    pub counters: Counters,
    /// The pools: two, or with static mapping one.
    pub pools: Vec<PoolView>,
    /// Groups with members, by number.
    pub groups: Vec<(u32, GroupView)>,
    /// Zones in quarantine.
    pub quarantine: Vec<QuarantineView>,
    /// Connections, by seat.
    pub connections: Vec<(u32, ConnView)>,
    /// Distributions.
    pub histograms: Box<Histograms>,
}
