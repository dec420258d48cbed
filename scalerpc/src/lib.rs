//! RPC over RDMA reliable connections that does not slow down as clients are added.
//!
//! A [`Server`] is polled from one core, [`Workers`] from several; a [`Client`] is one connection to it, a [`ClientSet`] many
//! connections that one thread polls. Without any RDMA hardware the two ends share memory on one host.
//!
//! See the README for a picture and an example, and `DESIGN.md` for the protocol and its rules.

mod client;
mod connect;
mod connector;
mod error;
pub mod observe;
mod server;
mod set;
mod slow_pool;
pub mod together;
mod wait;
mod workers;

pub use client::Client;
pub use connector::Connector;
pub use error::{CallError, SetupError};
pub use scalerpc_core::client::{Cancelled, ClientCounters, ClientState};
pub use scalerpc_core::server::{AdaptiveSlice, Class, Counters, Grouping, Limit, Priority};
pub use scalerpc_core::wire::{Status, Violation};
pub use scalerpc_core::{Geometry, GeometryConfig, GeometryError, Mapping, SlowConfig};
pub use scalerpc_driver::shm::{ClientOptions, MemoryReport};
#[cfg(feature = "verbs")]
pub use scalerpc_driver::verbs;
pub use scalerpc_hugepage::{Backing, PagePolicy};
pub use server::{
    Eviction, Handler, Later, Postponed, Reply, Request, Server, ServerBuilder, ServerBytes,
};
pub use set::{Accepted, CallId, CallOptions, ClientSet, Completion};
pub use slow_pool::{SlowPool, SlowPoolCounters, SlowPoolOptions};
pub use wait::{Backoff, Clock, Wait, WaitCounters};
pub use workers::{SchedulerHandle, Worker, Workers};

/// The example of the README, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct ReadmeDoctests;
