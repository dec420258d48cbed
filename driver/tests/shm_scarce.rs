//! Ends that have no descriptor left at any step of their beginning.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use scalerpc_driver::shm::{ShmClient, ShmServer};
use scalerpc_driver::{Fabric, FabricEvent};
use shm_common::*;

/// Enough for every attempt.
const SEATS: u32 = 64;

/// Not a test of its own: plays a role in a child process, if there is one to play.
#[test]
fn child_process() {
    let Some((role, path)) = role() else { return };
    match role.as_str() {
        "dials" => try_with_more_and_more(&path, || {
            let client = ShmClient::connect(&path, 2, client_options());
            client.map(drop).map_err(|error| error.to_string())
        }),
        "listens" => try_with_more_and_more(&path, || {
            let server = ShmServer::listen(&path, geometry(SEATS), server_options());
            server.map(drop).map_err(|error| error.to_string())
        }),
        other => panic!("no such role: {other}"),
    }
}

/// Tries with room for no descriptor, for one, and so on, until that is enough. Says each error.
fn try_with_more_and_more(path: &Path, attempt: impl Fn() -> Result<(), String>) {
    let next = fill_gaps();
    let holdings = || holdings(path);
    let baseline = holdings();
    for room in 0..32 {
        let before = getrlimit(Resource::Nofile);
        let scarce = Rlimit {
            current: Some(next + room),
            maximum: before.maximum,
        };
        setrlimit(Resource::Nofile, scarce).unwrap();
        let outcome = attempt();
        setrlimit(Resource::Nofile, before).unwrap();
        match outcome {
            Ok(()) => return say(&format!("room needed {room}")),
            Err(error) => say(&format!("error {error}")),
        }
        assert_eq!(holdings(), baseline, "with room for {room}");
        // What failed has spoilt nothing.
        attempt().unwrap();
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

/// Descriptors, mappings of memfds, and files beside the path.
fn holdings(path: &Path) -> [usize; 3] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.lines().filter(|line| line.contains("memfd:")).count();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    [descriptors, mappings, files]
}

#[test]
fn a_client_out_of_descriptors_says_so_and_keeps_nothing() {
    if role().is_some() {
        return;
    }
    let (_dir, path) = place();
    let mut server = serve(&path, SEATS);
    let errors = errors_of("dials", &path);
    assert!(errors.len() >= 5, "{errors:?}");
    // The server saw links come and go, and has all its seats.
    wait_for("all seats", || {
        if let Some(FabricEvent::Gone { connection }) = server.poll_event() {
            server.release(connection);
        }
        (server.counters().seats_free == SEATS && server.counters().links_open == 0).then_some(())
    });
}

#[test]
fn a_server_that_cannot_begin_for_want_of_descriptors_leaves_nothing() {
    if role().is_some() {
        return;
    }
    let (_dir, path) = place();
    let errors = errors_of("listens", &path);
    assert!(errors.len() >= 5, "{errors:?}");
}

/// What a child says on its way; each error names the shortage.
fn errors_of(role: &str, path: &Path) -> Vec<String> {
    let mut process = child(role, path);
    let mut errors = Vec::new();
    loop {
        let line = process.line("");
        if let Some(error) = line.strip_prefix("error ") {
            assert!(error.contains("os error 24"), "{error}");
            errors.push(error.to_owned());
        } else if let Some(room) = line.strip_prefix("room needed ") {
            assert_eq!(room.parse::<usize>().unwrap(), errors.len());
            assert!(process.wait().success());
            return errors;
        }
    }
}
