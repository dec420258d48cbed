//! The scalerpc command: demo, server, client and benchmark

pub mod chart;
pub mod meta;
pub mod nic;
