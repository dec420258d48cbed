//! The scalerpc command: demo, server, client and benchmark

pub mod meta;
