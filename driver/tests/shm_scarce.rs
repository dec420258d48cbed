//! A client that has no descriptor left at any step of its handshake.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use scalerpc_driver::shm::ShmClient;
use scalerpc_driver::{Fabric, FabricEvent};
use shm_common::*;

/// Enough for every attempt.
const SEATS: u32 = 64;

/// Not a test of its own: plays a role in a child process, if there is one to play.
#[test]
fn child_process() {
    let Some((_, path)) = role() else { return };
    let next = fill_gaps();
    let baseline = holdings();
    for room in 0..16 {
        let before = getrlimit(Resource::Nofile);
        let scarce = Rlimit {
            current: Some(next + room),
            maximum: before.maximum,
        };
        setrlimit(Resource::Nofile, scarce).unwrap();
        let outcome = ShmClient::connect(&path, 2, client_options());
        setrlimit(Resource::Nofile, before).unwrap();
        match outcome {
            Ok(client) => {
                drop(client);
                say(&format!("room needed {room}"));
                return;
            }
            Err(error) => say(&format!("error {error}")),
        }
        assert_eq!(holdings(), baseline, "with room for {room}");
        // What failed has spoilt nothing.
        drop(connect(&path, 2));
        assert_eq!(holdings(), baseline, "after room for {room}");
    }
    panic!("no room is enough");
}

/// Uses up the numbers below the highest one that is in use; returns the next one after it.
fn fill_gaps() -> u64 {
    let names = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = names.map(|name| name.unwrap().file_name().into_string().unwrap());
    let highest: i32 = numbers.map(|it| it.parse().unwrap()).max().unwrap();
    loop {
        let filler = rustix::io::dup(std::io::stdin()).unwrap();
        let number = filler.as_raw_fd();
        if number > highest {
            return number as u64;
        }
        std::mem::forget(filler);
    }
}

/// Descriptors, and mappings of memfds.
fn holdings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.lines().filter(|line| line.contains("memfd:")).count();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (descriptors, mappings)
}

#[test]
fn a_client_out_of_descriptors_says_so_and_keeps_nothing() {
    if role().is_some() {
        return;
    }
    let (_dir, path) = place();
    let mut server = serve(&path, SEATS);
    let mut process = child("dials", &path);
    let mut errors = Vec::new();
    loop {
        let line = process.line("");
        println!("{line}");
        if let Some(error) = line.strip_prefix("error ") {
            errors.push(error.to_owned());
        } else if let Some(room) = line.strip_prefix("room needed ") {
            assert_eq!(room.parse::<usize>().unwrap(), errors.len());
            break;
        }
    }
    assert!(process.wait().success());
    assert!(errors.len() >= 5, "{errors:?}");
    for error in &errors {
        assert!(error.contains("os error 24"), "{error}");
    }
    // The server saw links come and go, and has all its seats.
    wait_for("all seats", || {
        if let Some(FabricEvent::Gone { connection }) = server.poll_event() {
            server.release(connection);
        }
        (server.counters().seats_free == SEATS && server.counters().links_open == 0).then_some(())
    });
}
