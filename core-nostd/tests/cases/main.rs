//! The core's tests: the field cases that need no fabric, and the protocol's rules R1 to R16 as far as
//! two engines and their memory show them.
#![allow(clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod queues;
mod seats;
