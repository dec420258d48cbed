//! Who sleeps is woken by what it waits for, and by nothing else.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scalerpc_core::wire::LINE;
use scalerpc_driver::{Fabric, Slept};
use shm_common::*;

/// Longer than any wake-up takes, so who sleeps for so long was not woken.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(30);

/// Sleeps in one thread while another one does something over and over.
fn while_asleep<S: Fabric + Send>(sleeper: &mut S, time: Duration, mut act: impl FnMut()) -> Slept {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeping = scope.spawn(|| {
            let slept = sleeper.sleep(time, &|_| false);
            // Ordering: the flag carries nothing.
            over.store(true, Ordering::Relaxed);
            slept
        });
        while !over.load(Ordering::Relaxed) {
            act();
            std::thread::sleep(Duration::from_millis(1));
        }
        sleeping.join().unwrap()
    })
}

#[test]
fn a_server_is_woken_by_a_demand_byte_and_by_no_other_write() {
    let (_dir, path) = place();
    let mut server = serve(&path, 8);
    let mut client = connect(&path, 1);
    let seat = opened(&mut server, 1)[0].seat;
    let geometry = *client.geometry();
    let entry = write_wr(0, 0, geometry.endpoint(seat), LINE);
    let slept = while_asleep(&mut server, SHORT, || client.post_write(&entry).unwrap());
    assert_eq!(slept, Slept::TimedOut);
    let byte = write_wr(0, 0, geometry.demand_byte(seat), 1);
    let slept = while_asleep(&mut server, LONG, || client.post_write(&byte).unwrap());
    assert_eq!(slept, Slept::Woken);
}

#[test]
fn a_shard_is_woken_by_its_own_clients_and_by_the_end_of_a_link() {
    let (_dir, path) = place();
    let mut shards = serve_shards(&path, 2, 8);
    let mut client = connect(&path, 2);
    let seats: Vec<_> = shards.iter_mut().map(|it| opened(it, 1)[0].seat).collect();
    let of = |shard: u32| (0..2).find(|&it| client.shard(it) == shard).unwrap();
    let bytes = [0, 1].map(|shard| {
        let at = client.geometry().demand_byte(seats[shard as usize]);
        write_wr(of(shard), 0, at, 1)
    });
    let slept = while_asleep(&mut shards[1], SHORT, || {
        client.post_write(&bytes[0]).unwrap();
    });
    assert_eq!(slept, Slept::TimedOut);
    let slept = while_asleep(&mut shards[1], LONG, || {
        client.post_write(&bytes[1]).unwrap();
    });
    assert_eq!(slept, Slept::Woken);
    let (first, second) = shards.split_at_mut(1);
    let slept = while_asleep(&mut second[0], LONG, || first[0].close(seats[0]));
    assert_ne!(slept, Slept::TimedOut);
}

#[test]
fn a_client_is_woken_by_what_the_server_writes() {
    let (_dir, path) = place();
    let mut server = serve(&path, 8);
    let mut client = connect(&path, 1);
    let open = opened(&mut server, 1)[0];
    assert!(client.can_sleep());
    let slept = while_asleep(&mut client, SHORT, || ());
    assert_eq!(slept, Slept::TimedOut);
    let answer = write_wr(open.seat, 0, open.ring_at, 2 * LINE);
    let slept = while_asleep(&mut client, LONG, || server.post_write(&answer).unwrap());
    assert_eq!(slept, Slept::Woken);
}

#[test]
fn a_server_is_woken_by_its_waker_and_by_who_comes() {
    let (_dir, path) = place();
    let mut server = serve(&path, 8);
    let waker = server.waker();
    let slept = while_asleep(&mut server, LONG, || waker.wake_by_ref());
    assert_eq!(slept, Slept::Woken);
    let mut clients = Vec::new();
    let slept = while_asleep(&mut server, LONG, || {
        if clients.is_empty() {
            clients.push(connect(&path, 1));
        }
    });
    assert_ne!(slept, Slept::TimedOut);
    assert_eq!(
        server.sleep(LONG, &|_| false),
        Slept::NotAtAll,
        "there is news"
    );
}

#[test]
fn who_finds_something_at_the_last_look_does_not_sleep() {
    let (_dir, path) = place();
    let mut server = serve(&path, 8);
    let mut client = connect(&path, 1);
    opened(&mut server, 1);
    assert_eq!(server.sleep(LONG, &|_| true), Slept::NotAtAll);
    assert_eq!(client.sleep(LONG, &|_| true), Slept::NotAtAll);
}
