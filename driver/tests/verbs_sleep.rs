//! A server that sleeps is woken by what it waits for, and by nothing else; on a device that is data.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod fake;
mod verbs_common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fake::Which;
use rdma_core_sys::IBV_QPS_ERR;
use scalerpc_core::Memory;
use scalerpc_core::post::{Completion, WcStatus, WriteWr};
use scalerpc_core::wire::LINE;
use scalerpc_driver::verbs::{VerbsClient, VerbsServer};
use scalerpc_driver::{Fabric, FabricEvent, Slept};
use verbs_common::{
    Heard, PATIENCE, assert_clean, connect, fake, geometry, listen, pair, wr_id, write,
};

/// Longer than any wake-up takes, so who sleeps for so long was not woken.
const LONG: Duration = PATIENCE;
const SHORT: Duration = Duration::from_millis(30);

/// Until nothing that has happened before ends a sleep.
fn calm_down(server: &mut VerbsServer) {
    let slept = (0..100).map(|_| {
        while server.poll_completion().is_some() {}
        server.sleep(Duration::from_millis(1), &|_| false)
    });
    let slept: Vec<_> = slept
        .take_while(|slept| *slept != Slept::TimedOut)
        .collect();
    assert!(slept.len() < 100, "it never sleeps: {slept:?}");
}

/// Sleeps in one thread while another one does something, over and over.
fn while_asleep(
    fake: &fake::Fake,
    server: &mut VerbsServer,
    time: Duration,
    mut act: impl FnMut(),
) -> Slept {
    calm_down(server);
    fake.net().armed.clear();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeping = scope.spawn(|| {
            let slept = server.sleep(time, &|_| false);
            // Ordering: the flag carries nothing.
            over.store(true, Ordering::Relaxed);
            slept
        });
        // Its last look may come later; it has to be told of all that comes from here on.
        let until = Instant::now() + LONG / 2;
        while fake.net().armed.len() < 2 && Instant::now() < until {
            std::thread::yield_now();
        }
        while !over.load(Ordering::Relaxed) {
            act();
            std::thread::sleep(Duration::from_millis(1));
        }
        sleeping.join().unwrap()
    })
}

/// A client's WRITE of a byte of the demand map, for seat 0.
fn demand(sequence: u32) -> WriteWr {
    WriteWr {
        remote: geometry().demand_byte(0),
        ..write(0, sequence, 1)
    }
}

fn post(client: &mut VerbsClient, wr: &WriteWr) {
    client.post_write(wr).unwrap();
    assert_eq!(client.flush(), None);
}

/// Posts, and takes the completion that is due.
fn carry_out(client: &mut VerbsClient, wr: &WriteWr) {
    post(client, wr);
    let done = Completion {
        wr_id: wr.wr_id,
        status: WcStatus::Success,
    };
    assert_eq!(client.poll_completion(), Some(done));
}

#[test]
fn a_server_is_woken_by_a_demand_byte_and_by_no_other_write() {
    let fake = fake();
    let (mut server, mut client, _) = pair(&fake, 1);
    assert!(server.can_sleep());
    let others = [LINE, 8, 2 * LINE].map(|len| write(0, 1, len));
    let slept = while_asleep(&fake, &mut server, SHORT, || {
        others.iter().for_each(|wr| carry_out(&mut client, wr));
    });
    assert_eq!(slept, Slept::TimedOut);
    let slept = while_asleep(&fake, &mut server, LONG, || {
        if server_has_receives(&fake) {
            carry_out(&mut client, &demand(1));
        }
    });
    assert_eq!(slept, Slept::Woken);
    drop((server, client));
    assert_clean(&fake);
}

/// True if a demand byte would be carried out at once.
fn server_has_receives(fake: &fake::Fake) -> bool {
    fake.net().qps.values().any(|qp| !qp.receives.is_empty())
}

#[test]
fn demand_before_a_sleep_is_found_at_the_last_look() {
    let fake = fake();
    let (mut server, mut client, _) = pair(&fake, 1);
    calm_down(&mut server);
    let at = geometry().demand_byte(0);
    for round in 1..100_u8 {
        let found = |exposed: &scalerpc_core::Region| exposed.load_byte_acquire(at) == round;
        client.private().store_byte_release(0, round);
        carry_out(&mut client, &demand(round.into()));
        assert_eq!(server.sleep(LONG, &found), Slept::NotAtAll);
        // It has been taken, and is no news to the next sleep.
        let slept = server.sleep(Duration::from_millis(1), &|_| false);
        assert_eq!(slept, Slept::TimedOut, "round {round}");
    }
}

#[test]
fn receives_are_had_again_by_a_server_that_polls_and_nobody_is_lost_while_it_does_not() {
    let fake = fake();
    let (mut server, mut client, mut heard) = pair(&fake, 1);
    // More than there are receives: the others wait at the client.
    for sequence in 1..=10 {
        post(&mut client, &demand(sequence));
    }
    let waiting = |fake: &fake::Fake| -> usize {
        let net = fake.net();
        net.qps.values().map(|qp| qp.outstanding.len()).sum()
    };
    assert!((1..10).contains(&waiting(&fake)));
    assert!(!server_has_receives(&fake));
    heard.until(&mut server, "all of them", |_, _| waiting(&fake) == 0);
    for sequence in 1..=10 {
        let done = client.poll_completion().unwrap();
        assert_eq!(
            (done.wr_id, done.status),
            (wr_id(0, sequence), WcStatus::Success)
        );
    }
    heard.until(&mut server, "its receives", |_, _| {
        server_has_receives(&fake)
    });
    assert_eq!(heard.completions, [], "none is the engine's");
    drop((server, client));
    assert_clean(&fake);
}

#[test]
fn a_server_is_woken_by_its_waker_even_if_that_came_first() {
    let fake = fake();
    let mut server = listen(&fake).unwrap();
    let waker = server.waker();
    let slept = while_asleep(&fake, &mut server, LONG, || waker.wake_by_ref());
    assert_eq!(slept, Slept::Woken);
    calm_down(&mut server);
    waker.wake();
    assert_eq!(server.sleep(LONG, &|_| false), Slept::Woken);
    assert_eq!(server.sleep(SHORT, &|_| false), Slept::TimedOut, "once");
}

#[test]
fn a_server_is_woken_by_connections_that_come_go_and_fail() {
    let fake = fake();
    let mut server = listen(&fake).unwrap();
    let mut heard = Heard::default();
    let address = server.local_addr();
    let mut clients = Vec::new();
    let slept = while_asleep(&fake, &mut server, LONG, || {
        if clients.is_empty() {
            fake.enter();
            let options = verbs_common::client_options();
            let client = VerbsClient::connect_with(&fake.host(), address, 2, &options);
            clients.push(client.unwrap());
        }
    });
    assert_ne!(slept, Slept::TimedOut);
    assert_eq!(
        server.sleep(LONG, &|_| false),
        Slept::NotAtAll,
        "there is news"
    );
    heard.until(&mut server, "connections", |heard, _| {
        heard.opened.len() == 2
    });
    let slept = while_asleep(&fake, &mut server, LONG, || clients[0].close(0));
    assert_ne!(slept, Slept::TimedOut);
    heard.until(&mut server, "an end", |heard, _| heard.gone == [0]);
    // A WRITE of the server's that ends while it sleeps, and badly.
    fake.net().hold = true;
    let answer = WriteWr {
        remote: heard.opened[1].ring_at,
        ..write(1, 1, LINE)
    };
    server.post_write(&answer).unwrap();
    server.flush();
    let slept = while_asleep(&fake, &mut server, LONG, || {
        let mut net = fake.net();
        net.hold = false;
        net.status = Some(12);
        let numbers: Vec<_> = net.qps.keys().copied().collect();
        numbers.into_iter().for_each(|number| net.run(number));
        net.status = None;
    });
    assert_ne!(slept, Slept::TimedOut);
    heard.until(&mut server, "the other end", |heard, _| {
        heard.gone.len() == 2
    });
    drop((server, clients));
    assert_clean(&fake);
}

#[test]
fn what_is_left_of_a_connection_is_not_taken_for_its_successors() {
    let fake = fake();
    let (mut server, client, mut heard) = pair(&fake, 8);
    drop(client);
    heard.until(&mut server, "their end", |heard, _| heard.gone.len() == 8);
    for round in 2..14 {
        let mut client = connect(&fake, &server, 8).unwrap();
        heard.until(&mut server, "connections", |heard, _| {
            heard.opened.len() == 8 * round
        });
        carry_out(&mut client, &demand(1));
        drop(client);
        let until = Instant::now() + PATIENCE;
        let failed = |qp: &fake::net::Qp| qp.state == IBV_QPS_ERR;
        while !fake.net().qps.values().all(failed) && Instant::now() < until {
            std::thread::yield_now();
        }
        // As few looks as can be: every fourth takes what is there.
        let gone = loop {
            match server.poll_event() {
                Some(FabricEvent::Gone { connection }) => break connection,
                _ => while server.poll_completion().is_some() {},
            }
            std::thread::sleep(Duration::from_millis(5));
            assert!(Instant::now() < until, "nobody goes");
        };
        let left: usize = fake.net().cqs.values().map(|it| it.1.len()).sum();
        assert_eq!(
            left, 0,
            "nothing is in a queue when the seat is free, round {round}"
        );
        server.release(gone);
        heard.gone.push(gone);
        heard.until(&mut server, "their end", |heard, _| {
            heard.gone.len() == 8 * round
        });
    }
    drop(server);
    assert_clean(&fake);
}

#[test]
fn what_comes_before_the_server_has_heard_of_a_connection_wakes_it_and_is_replaced() {
    let fake = fake();
    let mut server = listen(&fake).unwrap();
    let mut client = connect(&fake, &server, 1).unwrap();
    carry_out(&mut client, &demand(1));
    carry_out(&mut client, &demand(2));
    assert!(!server_has_receives(&fake));
    // It takes them, and does not know yet whose they are.
    assert_eq!(server.sleep(LONG, &|_| false), Slept::NotAtAll);
    let mut heard = Heard::default();
    heard.until(&mut server, "the connection", |heard, _| {
        heard.opened.len() == 1
    });
    carry_out(&mut client, &demand(3));
    carry_out(&mut client, &demand(4));
    drop((server, client));
    assert_clean(&fake);
}

#[test]
fn a_connection_whose_receive_the_device_does_not_take_ends() {
    let fake = fake();
    let (mut server, mut client, mut heard) = pair(&fake, 2);
    fake.fail(Which::All("ibv_post_recv"), libc::ENOMEM);
    carry_out(&mut client, &demand(1));
    heard.until(&mut server, "its end", |heard, _| heard.gone == [0]);
    let failure = server.last_failure().unwrap().to_string();
    assert!(
        failure.contains("connection 0") && failure.contains("ENOMEM"),
        "{failure}"
    );
    fake.heal();
    drop((server, client));
    assert_clean(&fake);
}

#[test]
fn a_device_that_tells_of_nothing_lets_nobody_sleep() {
    let fake = fake();
    let mut server = listen(&fake).unwrap();
    fake.fail(Which::All("ibv_req_notify_cq"), libc::EIO);
    assert_eq!(server.sleep(LONG, &|_| false), Slept::NotAtAll);
}

#[test]
fn who_finds_something_at_the_last_look_does_not_sleep() {
    let fake = fake();
    let (mut server, _client, heard) = pair(&fake, 1);
    assert_eq!(server.sleep(LONG, &|_| true), Slept::NotAtAll);
    // A completion, which stays to be taken.
    let answer = WriteWr {
        remote: heard.opened[0].ring_at,
        ..write(0, 1, LINE)
    };
    server.post_write(&answer).unwrap();
    server.flush();
    assert_eq!(server.sleep(LONG, &|_| false), Slept::NotAtAll);
    assert_eq!(server.poll_completion().unwrap().wr_id, wr_id(0, 1));
    assert!(!matches!(
        server.poll_event(),
        Some(FabricEvent::Gone { .. })
    ));
}
