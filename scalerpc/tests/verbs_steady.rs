//! Rule R9 over real queue pairs: the steady state allocates nothing, and makes no system call but those of the device's
//! driver. That of soft-RoCE posts by `write(2)`, which the experiment lets pass.
#![allow(clippy::unwrap_used, clippy::panic)]

mod strict;

use scalerpc::ClientSet;
use scalerpc::verbs::{ClientOptions, ServerOptions};
use strict::CONNECTIONS;

const CALLS: u64 = 4_000;

#[test]
#[ignore = "what the test below starts"]
fn the_experiment_itself() {
    if let Some(breach) = strict::mode() {
        let server = strict::builder()
            .listen_verbs("10.77.0.1:0", &ServerOptions::default())
            .unwrap();
        let address = server.fabric().local_addr();
        let options = ClientOptions::default();
        let set = ClientSet::connect_verbs(address, CONNECTIONS, &options).unwrap();
        strict::experiment(server, set, CALLS, breach);
    }
}

#[test]
#[ignore = "needs soft-RoCE"]
fn calls_over_three_groups_neither_allocate_nor_call_the_kernel() {
    let run = |mode| strict::run("the_experiment_itself", mode);
    assert_eq!(
        run("clean"),
        Some(0),
        "3: a thread was killed at a system call; 4: allocations"
    );
    assert_eq!(run("allocation"), Some(4));
    assert_eq!(run("system call"), Some(3));
}
