//! The core's tests: the field cases that need no fabric, and the protocol's rules R1 to R16 as far as
//! two engines and their memory show them.
// Clippy knows tests by their attribute, and not the helpers between them.
#![allow(clippy::panic, clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod fairness;
mod geometry;
mod groups;
mod hostile;
mod hostile_server;
mod limits;
mod memory;
mod observe;
mod options;
mod pool_table;
mod priority;
mod queues;
mod rest;
mod scheduler;
mod seats;
mod server_table;
mod slice;
mod slow;
mod tables;
mod team;
mod together;
mod wire;
mod zone_table;
