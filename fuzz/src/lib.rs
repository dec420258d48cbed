//! What the targets run. The bodies belong to the tests of the crates that they fuzz, where the same
//! code runs as plain tests.

#[path = "../../cli/tests/fuzz/bodies/mod.rs"]
pub mod cli;
#[path = "../../core-nostd/tests/fuzz/bodies/mod.rs"]
pub mod core;
#[path = "../../driver/tests/fuzz/shm/mod.rs"]
pub mod driver;
