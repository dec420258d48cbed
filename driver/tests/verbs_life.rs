//! How ends over verbs are joined and parted, on a device that is data: nothing leaks, whatever fails.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod fake;
mod verbs_common;

use std::collections::BTreeSet;

use fake::{Live, Which};
use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR, IBV_MTU_1024, IBV_QPS_ERR, IBV_QPS_RTS,
    ibv_async_event,
};
use scalerpc_core::post::WcStatus;
use scalerpc_core::wire::Placement;
use scalerpc_driver::Fabric;
use scalerpc_driver::verbs::{
    Mtu, Refusal, ServerOptions, SetupError, VerbsClient, VerbsError, VerbsServer,
};
use verbs_common::{
    Heard, assert_clean, client_options, connect, fake, geometry, listen, pair, server_options,
    until_gone, wr_id, write,
};

#[test]
fn each_call_of_listening_may_fail_and_nothing_leaks() {
    let fake = fake();
    let mut failed = BTreeSet::new();
    for k in 1.. {
        fake.calls();
        fake.fail(Which::Nth(k), libc::ENOSPC);
        let listened = listen(&fake);
        fake.heal();
        let calls = fake.count();
        match listened {
            Ok(server) if calls >= k => {
                // What had failed was an optional question, or the end of something.
                drop(server);
            }
            Ok(server) => {
                drop(server);
                assert_clean(&fake);
                break;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("ENOSPC") || text.contains("no GID"), "{text}");
                failed.insert(fake.calls().swap_remove(k - 1).verb);
            }
        }
        assert_clean(&fake);
    }
    for verb in [
        "ibv_open_device",
        "ibv_alloc_pd",
        "ibv_create_cq",
        "ibv_create_qp",
        "ibv_reg_mr",
    ] {
        assert!(failed.contains(verb), "{failed:?}");
    }
}

#[test]
fn each_call_of_connecting_may_fail_at_either_end_and_nothing_leaks() {
    let fake = fake();
    let mut server = listen(&fake).unwrap();
    let mut heard = Heard::default();
    let before = fake.live();
    let (mut by_client, mut by_server, mut opened, mut gone) = (0, 0, 0, 0);
    for k in 1.. {
        fake.calls();
        fake.fail(Which::Nth(k), libc::ENOSPC);
        let connected = connect(&fake, &server, 2);
        fake.heal();
        let is_over = connected.is_ok() && fake.count() < k;
        match &connected {
            Ok(_) => opened += 2,
            Err(refused @ SetupError::Refused { reason, .. }) => {
                assert_eq!(*reason, Refusal::Device);
                assert!(refused.to_string().contains("(ENOSPC"), "{refused}");
                let error = server.last_error().unwrap();
                assert!(matches!(error, VerbsError::Failed { .. }), "{error}");
                assert!(error.to_string().contains("peer 127.0.0.1:"), "{error}");
                by_server += 1;
            }
            Err(_) => by_client += 1,
        }
        drop(connected);
        gone = opened;
        heard.until(&mut server, "the end of what was begun", |heard, server| {
            heard.gone.len() == gone
                && server.counters().seats_free == 8
                && server.counters().links_open == 0
        });
        assert_eq!(fake.live(), before, "call {k}");
        assert_eq!(fake.net().misuse, Vec::<String>::new(), "call {k}");

        // The next one works.
        let client = connect(&fake, &server, 8).unwrap();
        opened += 8;
        heard.until(&mut server, "connections", |heard, _| {
            heard.opened.len() == opened
        });
        drop(client);
        heard.until(&mut server, "their end", |heard, server| {
            heard.gone.len() == opened && server.counters().seats_free == 8
        });
        if is_over {
            break;
        }
    }
    assert!(by_client > 8 && by_server > 6, "{by_client} {by_server}");
    assert!(gone > 0);
    drop(server);
    assert_clean(&fake);
}

#[test]
fn an_end_with_work_outstanding_is_flushed_before_it_is_destroyed() {
    let fake = fake();
    let (mut server, mut client, mut heard) = pair(&fake, 2);
    fake.net().hold = true;
    for sequence in 1..=8 {
        // Some inline, some not; one of them wants no completion, and ends in one all the same.
        let mut wr = write(0, sequence, 64 * sequence as usize);
        wr.signaled = sequence != 3;
        client.post_write(&wr).unwrap();
    }
    assert_eq!(client.flush(), None);
    assert_eq!(client.poll_completion(), None);
    fake.calls();
    client.close(0);
    let (completions, gone) = until_gone(&mut client, 1);
    assert_eq!(gone, [0]);
    let ids: Vec<_> = completions.iter().map(|it| it.wr_id).collect();
    assert_eq!(ids, (1..=8).map(|it| wr_id(0, it)).collect::<Vec<_>>());
    assert!(completions.iter().all(|it| it.status == WcStatus::Flushed));
    // Once it is in ERR, and before any other call about it.
    let calls = fake.calls();
    let place = |verb, detail| {
        let is_it = |call: &fake::Call| call.verb == verb && detail == Some(call.detail);
        calls.iter().position(is_it)
    };
    assert_eq!(
        place("ibv_modify_qp", Some(u64::from(IBV_QPS_ERR.0))),
        Some(0)
    );
    assert!(calls.iter().any(|call| call.verb == "ibv_destroy_qp"));
    // The server hears of it, and keeps the other one.
    heard.until(&mut server, "the end", |heard, _| heard.gone.len() == 1);
    assert_eq!(heard.gone, [heard.opened[0].seat]);
    fake.net().hold = false;
    client.post_write(&write(1, 1, 64)).unwrap();
    assert_eq!(client.flush(), None);
    assert_eq!(client.poll_completion().unwrap().status, WcStatus::Success);
    // Dropping flushes, too.
    fake.net().hold = true;
    client.post_write(&write(1, 2, 256)).unwrap();
    assert_eq!(client.flush(), None);
    drop(client);
    drop(server);
    assert_clean(&fake);
}

#[test]
fn a_thousand_connections_that_vanish_with_work_under_way_leave_nothing_behind() {
    let fake = fake();
    let mut server = listen(&fake).unwrap();
    let mut heard = Heard::default();
    let before = fake.live();
    for round in 1..=500 {
        let mut client = connect(&fake, &server, 2).unwrap();
        heard.until(&mut server, "connections", |heard, _| {
            heard.opened.len() == 2 * round
        });
        client.post_write(&write(0, 1, 256)).unwrap();
        let seat = heard.opened.last().unwrap().seat;
        fake.net().hold = round % 2 == 0;
        server.post_write(&write(seat, round as u32, 256)).unwrap();
        assert_eq!((client.flush(), server.flush()), (None, None));
        fake.net().hold = false;
        drop(client);
        heard.until(&mut server, "their end", |heard, _| {
            heard.gone.len() == 2 * round
        });
    }
    assert_eq!(server.counters().seats_free, 8);
    assert_eq!(fake.live(), before);
    drop(server);
    assert_clean(&fake);
}

#[test]
fn a_server_that_goes_ends_the_connections_of_its_clients() {
    let fake = fake();
    let (server, mut client, _) = pair(&fake, 3);
    drop(server);
    let (_, mut gone) = until_gone(&mut client, 3);
    gone.sort_unstable();
    assert_eq!(gone, [0, 1, 2]);
    assert!(client.post_write(&write(1, 1, 64)).is_err());
    drop(client);
    assert_clean(&fake);
}

#[test]
fn a_server_may_end_one_connection_of_a_client() {
    let fake = fake();
    let (mut server, mut client, mut heard) = pair(&fake, 3);
    let seat = client.seat(1);
    server.close(seat);
    server.close(seat);
    assert!(server.post_write(&write(seat, 1, 64)).is_err());
    let (_, gone) = until_gone(&mut client, 1);
    assert_eq!(gone, [1]);
    heard.until(&mut server, "its end", |heard, _| heard.gone == [seat]);
    client.post_write(&write(2, 1, 64)).unwrap();
    assert_eq!(client.flush(), None);
    assert_eq!(client.poll_completion().unwrap().status, WcStatus::Success);
    drop((client, server));
    assert_clean(&fake);
}

#[test]
fn memory_has_the_least_rights_and_queue_pairs_what_both_ends_can() {
    let fake = fake();
    let server = listen(&fake).unwrap();
    let mut options = client_options();
    options.selection.mtu = Some(Mtu::Bytes1024);
    let client = VerbsClient::connect_with(&fake.host(), server.local_addr(), 2, &options).unwrap();
    let net = fake.net();
    let write = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    assert_eq!(
        net.registered,
        [write, 0, write | IBV_ACCESS_REMOTE_READ, 0],
        "server exposed and private, client exposed and private"
    );
    let pairs: Vec<_> = net.qps.values().collect();
    assert_eq!(pairs.len(), 4);
    let mut numbers = BTreeSet::new();
    for pair in pairs {
        assert_eq!(pair.state, IBV_QPS_RTS);
        assert_eq!(pair.attr.path_mtu, IBV_MTU_1024);
        let peer = &net.qps[&pair.peer];
        assert_eq!(pair.psn, (peer.psn.1, peer.psn.0));
        assert!(pair.psn.0 < 1 << 24 && pair.psn.1 < 1 << 24);
        numbers.extend([pair.psn.0, pair.psn.1]);
        let reads = pair.access & IBV_ACCESS_REMOTE_READ != 0;
        // 7 is for ever: only clients wait so, for a server that cannot receive yet. And a timer that is not 655 ms.
        assert!(pair.attr.retry_cnt < 7);
        assert_eq!(pair.attr.rnr_retry, if reads { 7 } else { 6 });
        assert!(pair.attr.timeout > 0 && pair.attr.min_rnr_timer > 0);
        assert_eq!(pair.receives.len(), if reads { 0 } else { 2 });
        assert_eq!(pair.attr.max_dest_rd_atomic, if reads { 16 } else { 1 });
        assert_eq!(pair.attr.max_rd_atomic, if reads { 1 } else { 16 });
    }
    assert_eq!(numbers.len(), 4, "first packets have random numbers");
    drop(net);
    drop((client, server));
    assert_clean(&fake);
}

#[test]
fn the_order_of_bytes_is_relied_on_only_where_both_devices_promise_it() {
    let fake = fake();
    fake.net().in_order = true;
    let server = listen(&fake).unwrap();
    let client = connect(&fake, &server, 1).unwrap();
    assert_eq!(server.limits().placement, Placement::InOrder);
    assert_eq!(client.limits().placement, Placement::InOrder);

    // With a client that cannot promise it, messages carry checksums, at both ends.
    fake.net().in_order = false;
    let other = connect(&fake, &server, 1).unwrap();
    assert_eq!(other.limits().placement, Placement::AnyOrder);
    let (mut server, mut heard) = (server, Heard::default());
    heard.until(&mut server, "both", |heard, _| heard.opened.len() == 2);
    let agreed: Vec<_> = heard.opened.iter().map(|it| it.placement).collect();
    assert_eq!(agreed, [Placement::InOrder, Placement::AnyOrder]);
    drop((client, other, server));

    fake.net().in_order = true;
    let options = ServerOptions {
        checksums: true,
        ..server_options()
    };
    let server =
        VerbsServer::listen_with(&fake.host(), "127.0.0.1:0", geometry(), &options).unwrap();
    for in_order in [true, false] {
        fake.net().in_order = in_order;
        let client = connect(&fake, &server, 1).unwrap();
        assert_eq!(server.limits().placement, Placement::AnyOrder);
        assert_eq!(client.limits().placement, Placement::AnyOrder);
    }
    drop(server);
    assert_clean(&fake);
}

#[test]
fn what_a_device_says_is_heard() {
    let fake = fake();
    let (mut server, client, mut heard) = pair(&fake, 4);
    let event = |event_type| ibv_async_event {
        event_type,
        ..Default::default()
    };
    // Queue pairs outlast a port that goes down.
    fake.raise(event(IBV_EVENT_PORT_ERR));
    heard.until(&mut server, "the event", |_, server| {
        server.counters().port_events > 0
    });
    assert_eq!(heard.gone, []);
    fake.raise(event(IBV_EVENT_DEVICE_FATAL));
    heard.until(&mut server, "the end of all", |heard, _| {
        heard.gone.len() == 4
    });
    assert_eq!(server.counters().device_events, 1);
    drop((client, server));
    assert_eq!(fake.live(), Live::default());
}

#[test]
fn a_device_that_does_not_even_take_a_queue_pair_to_err_is_survived() {
    let fake = fake();
    let (mut server, client, mut heard) = pair(&fake, 2);
    fake.fail(Which::All("ibv_modify_qp"), libc::EIO);
    drop(client);
    heard.until(&mut server, "the end", |heard, _| heard.gone.len() == 2);
    assert_eq!(server.counters().seats_free, 8);
    fake.heal();
    let client = connect(&fake, &server, 8).unwrap();
    drop((client, server));
    assert_clean(&fake);
}
