//! Several shards of one server: who is where, and how links end that are in more than one.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::os::fd::AsFd;

use rustix::fs::SealFlags;
use scalerpc_core::memory::Memory;
use scalerpc_driver::shm::{SHARDS_MAX, SetupError, ShmClient, ShmServer, guard};
use scalerpc_driver::{Fabric, FabricEvent, PostError};
use shm_common::raw::{self, RawClient};
use shm_common::*;

/// Takes what has come, and releases what is gone. Returns how many connections were opened.
fn look(shard: &mut ShmServer) -> usize {
    let mut opened = 0;
    while let Some(event) = shard.poll_event() {
        match event {
            FabricEvent::Opened(_) => opened += 1,
            FabricEvent::Gone { connection } => shard.release(connection),
        }
    }
    opened
}

fn wait_for_seats(shards: &mut [ShmServer], free: u32) {
    wait_for("the seats", || {
        shards.iter_mut().for_each(|shard| {
            look(shard);
        });
        let all: u32 = shards.iter().map(|it| it.counters().seats_free).sum();
        (all == free).then_some(())
    });
}

#[test]
fn connections_are_spread_evenly_and_write_to_their_own_shard() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 4, 8);
    let mut client = connect(&path, 10);
    let geometry = *client.geometry();
    let mut seats: Vec<Vec<_>> = Vec::new();
    for shard in &mut shards {
        let of_link = (0..10).filter(|&it| client.shard(it) == seats.len() as u32);
        let count = of_link.count();
        assert!((2..=3).contains(&count), "{count} of 10");
        seats.push(opened(shard, count));
        assert_eq!(shard.poll_event(), None);
        assert_eq!(shard.counters().seats_free, 8 - count as u32);
    }
    for connection in 0..10 {
        let number = u64::from(connection) + 100;
        let (shard, seat) = (client.shard(connection), client.seat(connection));
        let opened = seats[shard as usize].iter().find(|it| it.seat == seat);
        let opened = opened.unwrap();
        assert_eq!(opened.owner, client.owner(connection));
        client.private().store(0, number);
        let wr = write_wr(connection, 0, geometry.endpoint(seat), 8);
        client.post_write(&wr).unwrap();
        let shard = &mut shards[shard as usize];
        let word = shard.exposed().load(geometry.endpoint(seat));
        assert_eq!(word, number);
        // And back, to this connection's own memory.
        shard.private().store(0, number + 1);
        shard
            .post_write(&write_wr(seat, 0, opened.ring_at, 8))
            .unwrap();
        assert_eq!(client.exposed().load(geometry.ring(connection)), number + 1);
        // The end of the shard is the end of what can be reached.
        let last = geometry.server_exposed_bytes() - 8;
        client
            .post_write(&write_wr(connection, 0, last, 8))
            .unwrap();
    }
    for (shard, seats) in shards.iter().zip(&seats) {
        let bytes = geometry.server_exposed_bytes();
        let written = words(shard.exposed(), 0, bytes - 8);
        let written = written.iter().filter(|&&word| word != 0).count();
        assert_eq!(written, seats.len(), "nothing of others");
    }
    let past = geometry.server_exposed_bytes();
    client.post_write(&write_wr(0, 0, past, 8)).unwrap();
    let refused = client.post_write(&write_wr(1, 0, 0, 8));
    assert_eq!(refused, Err(PostError::Down), "who reaches too far is out");
}

#[test]
fn a_link_may_have_the_seats_of_all_shards() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 3, 4);
    let few = connect(&path, 2);
    let error = ShmClient::connect(&path, 11, client_options()).unwrap_err();
    let told = matches!(
        error,
        SetupError::Busy {
            wanted: 11,
            free: 10,
            ..
        }
    );
    assert!(told, "{error}");
    let many = connect(&path, 10);
    wait_for_seats(&mut shards, 0);
    drop(few);
    wait_for_seats(&mut shards, 2);
    drop(many);
    wait_for_seats(&mut shards, 12);
    for _ in 0..3 {
        let alone: Vec<_> = (0..12).map(|_| connect(&path, 1)).collect();
        for shard in &mut shards {
            assert_eq!(opened(shard, 4).len(), 4, "links of one are spread, too");
        }
        drop(alone);
        wait_for_seats(&mut shards, 12);
    }
}

#[test]
fn clients_that_come_one_after_the_other_are_spread() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 3, 4);
    for number in 0..6 {
        let client = connect(&path, 1);
        assert_eq!(client.shard(0), number % 3);
        drop(client);
        wait_for_seats(&mut shards, 12);
    }
}

#[test]
fn numbers_of_shards_that_cannot_be_are_refused() {
    let (_dir, path) = place();
    for shards in [0, SHARDS_MAX + 1, u32::MAX] {
        let refused = ShmServer::listen_shards(&path, geometry(4), shards, server_options());
        let error = refused.unwrap_err();
        assert!(matches!(error, SetupError::BadRequest { .. }), "{error}");
        assert!(!path.exists());
    }
    assert_eq!(serve_shards(&path, SHARDS_MAX, 1).len(), 64);
}

#[test]
fn a_connection_that_is_closed_takes_its_link_along_in_all_shards() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 2, 4);
    let mut client = connect(&path, 4);
    let other = connect(&path, 2);
    let seats: Vec<_> = shards.iter_mut().map(|it| opened(it, 3)).collect();
    shards[0].close(seats[0][0].seat);
    // The other shard learns it, whether it looks or not.
    let to_gone = write_wr(seats[1][0].seat, 0, seats[1][0].ring_at, 8);
    assert_eq!(shards[1].post_write(&to_gone), Err(PostError::Down));
    wait_for("the other shard", || {
        assert_eq!(look(&mut shards[1]), 0);
        (shards[1].counters().seats_free == 3).then_some(())
    });
    assert_eq!(gone(&mut client, 4), [0, 1, 2, 3]);
    // Only when the first shard has let go of it, too, is the link forgotten.
    let bytes = shards[0].memory_report().client_bytes;
    assert_eq!(shards[0].counters().links_open, 1);
    assert_quiet(&mut shards[1], "the other link lives");
    assert_eq!(shards[1].memory_report().client_bytes, bytes);
    gone_and_released(&mut shards[0], 2);
    wait_for("the memory", || {
        (shards[0].memory_report().client_bytes < bytes).then_some(())
    });
    drop(other);
    wait_for_seats(&mut shards, 8);
}

#[test]
fn a_link_is_fenced_only_when_each_shard_has_ended_its_own_connections() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 2, 4);
    let raw = RawClient::connect(&path, &geometry(4), 2);
    let seats: Vec<_> = shards.iter_mut().map(|it| opened(it, 1)).collect();
    shards[0].close(seats[0][0].seat);
    raw::expect_end(&raw.socket);
    // The client says nothing. The guard of the other shard's connection lets it write still.
    let guards: Vec<_> = (0..2).map(|it| raw.guard(it)).collect();
    let ended = |it: usize| guard::revoked(&guards[it].0, guards[it].1) == guard::ENDED;
    let first = usize::from(!ended(0));
    assert!(ended(first) && !ended(1 - first));
    assert_quiet(
        &mut shards[0],
        "nothing says that the client writes no more",
    );
    look(&mut shards[1]);
    assert!(ended(1 - first));
    wait_for_seats(&mut shards, 8);
}

#[test]
fn tenancies_are_revoked_in_one_shard() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 2, 4);
    let mut client = connect(&path, 2);
    let seats: Vec<_> = shards.iter_mut().map(|it| opened(it, 1)[0].seat).collect();
    assert_eq!(seats, [0, 0], "both are the first of their shard");
    assert!(revoke(&mut shards[1], 0, 7));
    for connection in 0..2 {
        let mut wr = write_wr(connection, 0, 0, 8);
        wr.epoch = Some(7);
        let revoked = client.shard(connection) == 1;
        let expected = if revoked {
            Err(PostError::Revoked)
        } else {
            Ok(())
        };
        assert_eq!(client.post_write(&wr), expected, "{connection}");
    }
    let revocations: Vec<_> = shards.iter().map(|it| it.counters().revocations).collect();
    assert_eq!(revocations, [0, 1]);
}

#[test]
fn shards_go_on_without_one_that_is_dropped() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 3, 4);
    let mut everywhere = connect(&path, 3);
    let mut alone: Vec<_> = (0..3).map(|_| connect(&path, 1)).collect();
    for shard in &mut shards {
        opened(shard, 2);
    }
    let last = shards.pop().unwrap();
    drop(last);
    // Each has to look before the link can end.
    let mut ended = [0, 0];
    wait_for("the link's end", || {
        for (shard, ended) in shards.iter_mut().zip(&mut ended) {
            if let Some(FabricEvent::Gone { connection }) = shard.poll_event() {
                shard.release(connection);
                *ended += 1;
            }
        }
        (ended == [1, 1]).then_some(())
    });
    assert_eq!(gone(&mut everywhere, 3), [0, 1, 2]);
    alone.retain_mut(|client| {
        let in_last = client.shard(0) == 2;
        if in_last {
            gone(client, 1);
        }
        !in_last
    });
    assert_eq!(alone.len(), 2);
    for client in &mut alone {
        assert_quiet(client, "its shard is there");
    }
    // What is left is all that there is.
    let error = ShmClient::connect(&path, 7, client_options()).unwrap_err();
    assert!(matches!(error, SetupError::Busy { free: 6, .. }), "{error}");
    let new = connect(&path, 6);
    assert!((0..6).all(|connection| new.shard(connection) < 2));
    let seats: Vec<_> = shards.iter_mut().map(|it| opened(it, 3)).collect();
    drop(shards.remove(0));
    wait_for_gone_all(&mut shards[0], &seats[1]);
    drop(shards);
    assert!(!path.exists(), "the last shard frees the path");
    for client in &mut alone {
        gone(client, 1);
    }
    assert_eq!(serve_shards(&path, 1, 1).len(), 1);
}

#[test]
fn a_shard_that_is_dropped_lets_go_of_links_that_are_gone() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 2, 4);
    let clients = [connect(&path, 2), connect(&path, 2)];
    let seats: Vec<_> = shards.iter_mut().map(|it| opened(it, 2)).collect();
    drop(clients);
    wait_for("the links' ends", || {
        (shards[0].counters().links_open == 0).then_some(())
    });
    // Of one it knows that it is gone, of the other the news waits.
    assert!(matches!(
        shards[1].poll_event(),
        Some(FabricEvent::Gone { connection }) if connection == seats[1][0].seat
    ));
    drop(shards.pop());
    wait_for_seats(&mut shards, 4);
    wait_for("the memory", || {
        (shards[0].memory_report().client_bytes == 0).then_some(())
    });
}

#[test]
fn a_link_that_arrives_as_its_shard_is_dropped_ends() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 2, 4);
    let socket = raw::dial(&path);
    assert!(raw::send(&socket, &raw::hello(2), &[]));
    let (bytes, _) = raw::receive(&socket);
    assert_eq!(raw::u32_at(&bytes, 12), raw::OFFER);
    // It has seats in both now.
    shards.pop();
    let bytes = raw::client_bytes(&geometry(4), 2);
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let memory = raw::memfd(bytes.next_multiple_of(4096), sealed);
    assert!(raw::send(
        &socket,
        &raw::region(bytes as u64),
        &[memory.as_fd()]
    ));
    let mut opened = 0;
    raw::expect_end_or(&socket, || opened += look(&mut shards[0]));
    assert_eq!(opened, 1, "it was opened in the other shard");
    wait_for_seats(&mut shards, 4);
    wait_for("the memory", || {
        (shards[0].memory_report().client_bytes == 0).then_some(())
    });
}

/// The connections of that link go.
fn wait_for_gone_all(shard: &mut ShmServer, link: &[scalerpc_driver::Opened]) {
    let mut wanted: Vec<_> = link.iter().map(|it| it.seat).collect();
    wanted.sort_unstable();
    assert_eq!(gone(shard, wanted.len()), wanted);
}
