//! Back ends of ScaleRPC: how work requests are posted and completions polled.
//!
//! A back end implements [`Fabric`] for each end of its connections. The `shm` back end joins processes on one
//! host and needs nothing but Linux. The feature `verbs` adds what opens RDMA devices.

mod bell;
pub mod board;
mod door;
pub mod fabric;
mod fields;
pub mod host;
mod mapping;
mod shared;
pub mod shm;
pub mod store;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use fabric::{Fabric, FabricEvent, Opened, PostError, Revocation, Slept};
