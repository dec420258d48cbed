//! The ScaleRPC protocol as a sans-I/O engine.
//!
//! Nothing here allocates, reads a clock, does I/O or panics on a peer's bytes. Time comes in as an
//! argument (nanoseconds on any monotonic clock), completions come in as events, and what is to be
//! posted comes out as actions. Memory that a peer can reach is seen only through [`Memory`].
//!
//! The protocol follows ScaleRPC (EuroSys 2019); `DESIGN.md` lists what differs and why.
#![no_std]
#![deny(unsafe_code)]

pub mod answers;
pub mod client;
pub mod geometry;
pub mod histogram;
pub mod memory;
#[cfg(not(scalerpc_mutant))]
mod mutant;
#[cfg(scalerpc_mutant)]
pub mod mutant;
pub mod post;
pub mod scheduler;
pub mod server;
pub mod slow;
pub mod store;
pub mod together;
pub mod wire;

pub use client::ClientEngine;
pub use geometry::{Geometry, GeometryConfig, GeometryError, Mapping};
pub use histogram::Histogram;
pub use memory::Memory;
#[cfg(target_has_atomic = "64")]
pub use memory::Region;
pub use scheduler::Scheduler;
pub use server::ServerEngine;
pub use slow::{SlowConfig, SlowMethods};
pub use store::{Borrowed, Store};
