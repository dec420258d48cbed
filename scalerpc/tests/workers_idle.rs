//! Idle workers leave the cores alone. One test: it measures the whole process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod usage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scalerpc::{ClientSet, Server, Wait};
use usage::{echo, load};

/// How long idleness is looked at.
const IDLE: Duration = Duration::from_secs(1);
const WORKERS: u32 = 3;

/// What idle workers take of a core, between calls over all connections.
fn idle(wait: Wait) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let builder = Server::builder()
        .workers(WORKERS)
        .clients_max(48)
        .wait(wait);
    let mut workers = builder.group_size(6).listen_workers(&path).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            workers.run(&stop, |_| echo);
            workers
        });
        let mut clients = ClientSet::connect(&path, 24).unwrap();
        let call_all = |clients: &mut ClientSet| {
            for connection in 0..24 {
                let answer = clients.call(connection, 1, b"again", Duration::from_secs(60));
                assert_eq!(answer.unwrap(), b"again");
            }
        };
        call_all(&mut clients);
        let idle = load(|| std::thread::sleep(IDLE));
        call_all(&mut clients);
        stop.store(true, Ordering::Relaxed);
        let workers = running.join().unwrap();
        for worker in workers.workers() {
            let sleeps = worker.server().wait_counters().sleeps;
            assert_eq!(sleeps > 0, wait == Wait::Sleep, "{wait:?}");
        }
        idle
    })
}

#[test]
fn idle_workers_take_naps() {
    let (naps, polls) = (idle(Wait::Sleep), idle(Wait::Yield));
    println!("{WORKERS} idle workers: {naps:.4} of a core with naps, {polls:.4} without");
    // Who polls takes what the rest of the machine leaves it.
    assert!(naps < polls / 2.0, "{naps:.4} of a core, {polls:.4}");
}
