//! Rule R9: the steady state allocates nothing and makes no system call, on either side.
#![allow(clippy::unwrap_used, clippy::panic)]

mod strict;

use scalerpc::ClientSet;
use strict::CONNECTIONS;

const CALLS: u64 = 100_000;

/// Does nothing unless the tests below start it.
#[test]
fn the_experiment_itself() {
    if let Some(breach) = strict::mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let server = strict::builder().listen(&path).unwrap();
        let set = ClientSet::connect(&path, CONNECTIONS).unwrap();
        drop(dir);
        strict::experiment(server, set, CALLS, breach);
    }
}

fn run(mode: &str) -> Option<i32> {
    strict::run("the_experiment_itself", mode)
}

#[test]
fn a_hundred_thousand_calls_over_three_groups_neither_allocate_nor_call_the_kernel() {
    assert_eq!(
        run("clean"),
        Some(0),
        "3: a thread was killed at a system call; 4: allocations"
    );
}

#[test]
fn the_experiment_notices_system_calls_and_allocations() {
    assert_eq!(run("system call"), Some(3));
    assert_eq!(run("allocation"), Some(4));
}
