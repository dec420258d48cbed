//! The back end over RDMA verbs: reliable connections between hosts, set up over TCP.
//!
//! - [`VerbsServer`] has a control thread, which admits clients, watches their streams, and makes and destroys queue
//!   pairs. The data path neither locks nor makes a system call of its own (a device's driver may).
//! - [`VerbsClient`] is a *link*: one stream, one piece of memory, and a queue pair for each of any number of
//!   connections.
//!
//! Work requests are collected in a round and posted by [`flush`](crate::Fabric::flush), one chain for each queue pair.
//! Real queue pairs cannot be told to refuse some WRITEs: a client that keeps its zone is fenced, which ends that
//! connection.
//!
//! # Trust
//!
//! All clients of a server have the one key to its pools: a client that means harm can write over another's blocks. What
//! it writes is checked before it is used. Whoever can reach the server's TCP port can become a client.

mod admit;
mod asleep;
mod batch;
mod client;
mod context;
mod control;
mod device;
mod dial;
mod errno;
mod error;
mod events;
mod failure;
mod gid;
mod lanes;
mod mtu;
mod near;
mod nic;
mod packet;
mod plan;
mod probe;
mod qp;
mod resources;
mod server;
mod setup;
mod shared;
mod tcp;

use std::time::Duration;

pub use client::{ClientOptions, VerbsClient};
pub use context::Context;
pub use device::{Capabilities, Host, LinkLayer, OpenDevice, Port, Selection, Skipped};
pub use errno::Errno;
pub use error::{NoDevice, Place, Step, VerbsError};
pub use failure::{Failure, Unposted, Why};
pub use gid::{Gid, GidKind};
pub use mtu::{Mtu, ParseMtuError};
pub use packet::VERSION;
pub use probe::{Ended, Trial};
pub use server::{Report, ServerCounters, ServerOptions, VerbsServer};
pub use setup::{JoinStep, Refusal, SetupError};

/// Longer than anybody waits, and not too long for a clock.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long an end that is dropped waits for its queue pairs to be flushed.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// When a peer that does not acknowledge is given up: after about [`window`](Self::window).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReliabilityOptions {
    /// Time for an acknowledgement, 4.096 us times 2 to this: 1 to 31.
    pub timeout: u8,
    /// How often a packet is sent again: 0 to 6. (Of 7, some devices make "for ever".)
    pub retries: u8,
}

impl Default for ReliabilityOptions {
    /// 134 ms and 6 retries: a second. That a peer's process has ended is known sooner, from its stream.
    fn default() -> Self {
        Self {
            timeout: 15,
            retries: 6,
        }
    }
}

impl ReliabilityOptions {
    /// How long a peer may be silent. A device may wait up to four times as long.
    #[must_use]
    pub fn window(&self) -> Duration {
        let once = Duration::from_nanos(4096 << self.timeout.min(31));
        once * (u32::from(self.retries) + 1)
    }
}
