//! The back end for processes on one host: shared memory, and a Unix socket to set it up.
//!
//! A WRITE is a copy that its initiator makes into the peer's memory, its last word a release store; a READ
//! is a copy out of it. So both are done when the post returns. Nothing on the data path allocates, or
//! makes a system call but to wake an end that sleeps ([`asleep`]).
//!
//! - [`ShmServer`] has a control thread, which admits clients and watches their processes. There may be several for
//!   one path, each for a thread of its own: shards.
//! - [`ShmClient`] is a *link*: a socket and one piece of memory, with any number of connections.
//!
//! # When a client is fenced
//!
//! A connection is gone when its client can write no more. The proof is one of:
//!
//! - the library in the client said Bye, its last act on the link;
//! - the client's process is gone, says its pidfd;
//! - the server closed the connection, and the [`guard`] of each connection of the link shows that no
//!   WRITE is under way.
//!
//! That its socket has ended proves nothing: the process may live on and have the memory mapped.
//!
//! # Trust
//!
//! The socket is for the user who started the server (mode 0600). A client can neither crash a server by
//! what it sends, nor by cutting its memory short, nor by ending or stopping at any instruction. But all
//! clients map the server's exposed memory, so a client that means harm can write over another's blocks: the
//! back end keeps apart what goes wrong, not what is an attack.

mod admit;
pub mod asleep;
mod client;
mod control;
mod dial;
mod error;
mod fence;
mod futex;
pub mod guard;
mod handshake;
mod link;
mod path;
mod server;
mod shards;
mod socket;
mod sys;
mod transfer;

use std::time::Duration;

use scalerpc_core::Geometry;
use scalerpc_core::post::Limits;
use scalerpc_core::wire::Placement;
use scalerpc_hugepage::{Builder, MemoryError};

// The fuzzing targets, which compile the packets once more, have it in the same place.
use crate::fields;
use crate::mapping::Mapping;

pub use client::{ClientOptions, ShmClient};
pub use error::{Refusal, SetupError, Step};
pub use handshake::VERSION;
pub use server::{MemoryReport, ServerCounters, ServerOptions, ShmServer};
pub use shards::SHARDS_MAX;

/// Elements of a scatter list. A copy has no limit; this is what common devices have.
const SGE_MAX: u32 = 32;

/// Longer than anybody waits, and not too long for a clock.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

fn limits(geometry: &Geometry) -> Limits {
    Limits {
        // A window in each direction of a switch, and some control messages. There is no queue: what is
        // posted is done.
        sq_depth: 2 * geometry.window() + 8,
        sge_max: SGE_MAX,
        inline_max: usize::MAX,
        can_revoke: true,
        placement: Placement::InOrder,
    }
}

/// Makes memory for this end, of which the peer's READs and WRITEs may reach so much.
fn own_memory(builder: Builder, bytes: usize, reachable: usize) -> Result<Mapping, SetupError> {
    let memory = builder.build()?;
    // The builder rounds up, so the view always fits.
    Mapping::new(memory, bytes, reachable).ok_or(SetupError::Memory(MemoryError::ZeroBytes))
}
