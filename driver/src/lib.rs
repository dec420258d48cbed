//! Back ends of ScaleRPC: how work requests are posted and completions polled.
//!
//! A back end implements [`Fabric`] for each end of its connections. The `shm` back end joins processes on one
//! host and needs nothing but Linux.

pub mod fabric;
pub mod shm;
pub mod store;

pub use fabric::{Fabric, FabricEvent, Opened, PostError, Revocation};
