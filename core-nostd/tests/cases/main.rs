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
mod pool_table;
mod priority;
mod queues;
mod seats;
mod server_table;
mod tables;
mod wire;
mod zone_table;
