//! Nothing is left of connections that have gone. One test, as it counts what the whole process has.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::path::Path;

use scalerpc_core::memory::Memory;
use scalerpc_driver::shm::ShmServer;
use scalerpc_driver::{Fabric, FabricEvent};
use shm_common::raw::{self, RawClient};
use shm_common::*;

/// Not a test of its own: plays a role in a child process, if there is one to play.
#[test]
fn child_process() {
    let Some((_, path)) = role() else { return };
    let mut client = connect(&path, 3);
    client
        .post_write(&write_wr(
            0,
            0,
            client.geometry().demand_byte(client.seat(0)),
            1,
        ))
        .unwrap();
    say("ready");
    sleep_forever();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Mappings of memfds.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// The client's memory is unmapped by the control thread, after the last release.
fn assert_baseline(server: &ShmServer, what: &str, baseline: (usize, usize)) {
    wait_for(what, || {
        let free = server.counters().seats_free == server.geometry().clients_max();
        (free && (descriptors(), mappings()) == baseline).then_some(())
    });
    assert_eq!(server.memory_report().client_bytes, 0, "{what}");
    assert_eq!(server.counters().links_open, 0, "{what}");
}

fn with_request_under_way(server: &mut ShmServer, path: &Path) {
    let mut client = connect(path, 2);
    let opened = opened(server, 2);
    client.private().store(0, 9);
    client
        .post_write(&write_wr(
            1,
            0,
            client.geometry().endpoint(opened[1].seat),
            8,
        ))
        .unwrap();
    let mut wr = write_wr(opened[0].seat, 0, opened[0].ring_at, 64);
    wr.signaled = true;
    server.post_write(&wr).unwrap();
    drop(client);
    assert_eq!(completions(server).len(), 1);
    gone_and_released(server, 2);
}

/// What is told to a shard that is gone is not kept for it.
fn shards_that_are_dropped(path: &Path) {
    for told in [false, true] {
        let before = (descriptors(), mappings());
        let mut shards = serve_shards(path, 3, 8);
        let with_shards = (descriptors(), mappings());
        let clients: Vec<_> = (0..4).map(|_| connect(path, 3)).collect();
        wait_for("the links", || {
            (shards[0].counters().links_open == 4).then_some(())
        });
        if told {
            for shard in &mut shards {
                opened(shard, 4);
            }
        }
        drop(shards.remove(1));
        wait_for("the seats", || {
            // All of them look: a link ends when each has ended its own connections.
            for shard in &mut shards {
                while let Some(event) = shard.poll_event() {
                    if let FabricEvent::Gone { connection } = event {
                        shard.release(connection);
                    }
                }
            }
            let free = shards.iter().map(|shard| shard.counters().seats_free);
            (free.sum::<u32>() == 16).then_some(())
        });
        wait_for("the links' ends", || {
            let bytes = shards[0].memory_report().client_bytes;
            ((bytes, shards[0].counters().links_open) == (0, 0)).then_some(())
        });
        drop(clients);
        // One for the send slots of the shard that is gone.
        let expected = (with_shards.0 - 1, with_shards.1 - 1);
        wait_for("what the links had", || {
            ((descriptors(), mappings()) == expected).then_some(())
        });
        drop(shards);
        assert_eq!((descriptors(), mappings()), before);
    }
}

#[test]
fn a_thousand_links_of_every_fate_leave_nothing() {
    if role().is_some() {
        return;
    }
    let (_dir, path) = place();
    let before = (descriptors(), mappings());
    let mut server = serve(&path, 8);
    let geometry = *server.geometry();
    let baseline = (descriptors(), mappings());
    for _ in 0..1000 {
        with_request_under_way(&mut server, &path);
    }
    assert_baseline(&server, "links that say goodbye", baseline);
    for _ in 0..100 {
        let client = connect(&path, 1);
        let seat = opened(&mut server, 1)[0].seat;
        server.close(seat);
        gone_and_released(&mut server, 1);
        drop(client);
    }
    assert_baseline(&server, "links that are closed", baseline);
    for fate in 0..300 {
        let socket = raw::dial(&path);
        if fate % 3 > 0 {
            raw::send(&socket, &raw::hello(fate % 12), &[]);
        }
        if fate % 3 > 1 {
            let file = tempfile::tempfile().unwrap();
            let fd = std::os::fd::AsFd::as_fd(&file);
            raw::send(&socket, &raw::region(1), &[fd, fd, fd]);
        }
    }
    assert_baseline(&server, "handshakes that end early", baseline);
    for _ in 0..20 {
        let mut process = child("client", &path);
        process.expect("ready");
        opened(&mut server, 3);
        process.kill();
        drop(process);
        gone_and_released(&mut server, 3);
    }
    assert_baseline(&server, "clients that are killed", baseline);
    for _ in 0..20 {
        let raw = RawClient::connect(&path, &geometry, 2);
        let seats = opened(&mut server, 2);
        drop(raw);
        wait_for("the end of the socket", || {
            server
                .post_write(&write_wr(seats[0].seat, 0, 0, 8))
                .is_err()
                .then_some(())
        });
        server.close(seats[1].seat);
        gone_and_released(&mut server, 2);
    }
    assert_baseline(&server, "links without goodbye that are closed", baseline);
    // Descriptors follow links, not connections.
    let few = connect(&path, 1);
    let with_few = descriptors();
    drop(few);
    opened(&mut server, 1);
    gone_and_released(&mut server, 1);
    assert_baseline(&server, "one", baseline);
    let many = connect(&path, 8);
    assert_eq!(descriptors(), with_few);
    drop(server);
    drop(many);
    assert_eq!((descriptors(), mappings()), before, "the server itself");
    shards_that_are_dropped(&path);
}
