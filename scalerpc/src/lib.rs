//! RPC over RDMA reliable connections that does not slow down as clients are added.
//!
//! A [`Server`] is polled from one core; a [`Client`] is one connection to it, a [`ClientSet`] many
//! connections that one thread polls. Without any RDMA hardware the two ends share memory on one host.
//!
//! See the README for a picture and an example, and `DESIGN.md` for the protocol and its rules.

mod client;
mod connect;
mod connector;
mod error;
mod server;
mod set;
mod wait;

pub use client::Client;
pub use connector::Connector;
pub use error::{CallError, SetupError};
pub use scalerpc_core::client::{ClientCounters, ClientState};
pub use scalerpc_core::server::{Class, Counters, Grouping, Priority};
pub use scalerpc_core::wire::{Status, Violation};
pub use scalerpc_core::{Geometry, GeometryConfig, GeometryError, Mapping};
pub use scalerpc_driver::shm::{ClientOptions, MemoryReport};
#[cfg(feature = "verbs")]
pub use scalerpc_driver::verbs;
pub use scalerpc_hugepage::{Backing, PagePolicy};
pub use server::{Eviction, Handler, Reply, Request, Server, ServerBuilder, ServerBytes};
pub use set::{Accepted, CallId, ClientSet, Completion};
pub use wait::{Backoff, Clock};

/// The example of the README, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct ReadmeDoctests;
