//! Work requests and completions over verbs, on a device that is data.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod fake;
mod verbs_common;

use rdma_core_sys::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR};
use scalerpc_core::Memory;
use scalerpc_core::post::{ReadWr, WcStatus, WrId, WrKind};
use scalerpc_driver::verbs::{Errno, Unposted, VerbsServer, Why};
use scalerpc_driver::{Fabric, PostError};
use verbs_common::{
    Heard, assert_clean, connect, fake, geometry, listen, pair, until_gone, wr_id, write,
};

#[test]
fn a_round_rings_one_doorbell_for_each_queue_pair() {
    let fake = fake();
    let (server, mut client, _) = pair(&fake, 3);
    fake.net().chains = 0;
    for sequence in 1..=5 {
        for connection in 0..3 {
            client.post_write(&write(connection, sequence, 64)).unwrap();
        }
    }
    assert_eq!(
        fake.net().chains,
        0,
        "nothing goes out before the round is over"
    );
    assert_eq!(client.flush(), None);
    assert_eq!(fake.net().chains, 3);
    let mut completions: Vec<_> = std::iter::from_fn(|| client.poll_completion()).collect();
    assert_eq!(completions.len(), 15);
    // In order on each connection.
    completions.sort_by_key(|it| it.wr_id.seat());
    let ids: Vec<_> = completions.iter().map(|it| it.wr_id).collect();
    let expected = (0..3).flat_map(|connection| (1..=5).map(move |it| wr_id(connection, it)));
    assert_eq!(ids, expected.collect::<Vec<_>>());
    assert_eq!(client.flush(), None);
    assert_eq!(fake.net().chains, 3, "an empty round rings none");
    drop((client, server));
    assert_clean(&fake);
}

#[test]
fn more_work_than_a_batch_holds_goes_out_early() {
    let fake = fake();
    let (server, mut client, _) = pair(&fake, 8);
    let mut done = 0;
    for sequence in 1..=200 {
        for connection in 0..8 {
            client.post_write(&write(connection, sequence, 64)).unwrap();
        }
        if sequence % 10 == 0 {
            assert_eq!(client.flush(), None);
            done += std::iter::from_fn(|| client.poll_completion()).count();
        }
    }
    assert_eq!(done, 1600);
    drop((client, server));
    assert_clean(&fake);
}

/// What the server finds where [`write`] writes to.
fn found(server: &VerbsServer, words: usize) -> Vec<u64> {
    let at = write(0, 0, 8).remote;
    (0..words)
        .map(|word| server.exposed().load(at + 8 * word))
        .collect()
}

#[test]
fn what_goes_inline_may_be_overwritten_at_once() {
    for (device, expected) in [(0, 0), (60, 55), (102, 55), (110, 110), (4096, 220)] {
        let fake = fake();
        fake.net().inline_max = device;
        let (server, mut client, _) = pair(&fake, 1);
        let inline = client.limits().inline_max;
        assert_eq!(inline, expected, "a device with {device}");
        assert_eq!(server.limits().inline_max, expected);
        // The largest that goes inline, in whole words, and the one after it.
        for (sequence, len) in [(1, inline / 8 * 8), (2, inline / 8 * 8 + 8)] {
            if len == 0 {
                continue;
            }
            let words = len / 8;
            let fill = |value: u64| {
                (0..words).for_each(|word| client.private().store(8 * word, value + word as u64));
            };
            fill(1000 * u64::from(sequence));
            let expected: Vec<u64> = (0..words as u64)
                .map(|word| 1000 * u64::from(sequence) + word)
                .collect();
            client.post_write(&write(0, sequence, len)).unwrap();
            if len <= inline {
                (0..words).for_each(|word| client.private().store(8 * word, 7));
            }
            assert_eq!(client.flush(), None);
            assert_eq!(client.poll_completion().unwrap().status, WcStatus::Success);
            assert_eq!(found(&server, words), expected);
        }
        // A byte of the demand map.
        client.private().store(0, 0x2a);
        let mut byte = write(0, 3, 1);
        byte.remote = geometry().demand_byte(5);
        client.post_write(&byte).unwrap();
        assert_eq!(client.flush(), None);
        assert_eq!(server.exposed().load_byte_acquire(5), 0x2a);
        assert_eq!(server.exposed().load_byte_acquire(6), 0);
        drop((client, server));
        assert_clean(&fake);
    }
}

#[test]
fn a_read_scatters_a_batch_over_its_blocks() {
    let fake = fake();
    let (mut server, client, heard) = pair(&fake, 2);
    let geometry = geometry();
    let (seat, staging) = (heard.opened[1].seat, heard.opened[1].staging_at);
    assert_eq!(seat, client.seat(1));
    for word in 0..24 {
        client.exposed().store(staging + 8 * word, word as u64);
    }
    let read = ReadWr {
        connection: seat,
        remote: staging,
        stride: 64,
        count: 3,
        first_call: 3,
        pool: 1,
        zone: 2,
        wr_id: WrId::new(WrKind::Read, 5, seat, 1),
    };
    server.post_read(&read).unwrap();
    assert_eq!(server.flush(), None);
    let completion = server.poll_completion().unwrap();
    assert_eq!(
        (completion.wr_id, completion.status),
        (read.wr_id, WcStatus::Success)
    );
    for (call, first) in [(3, 0), (4, 8), (5, 16)] {
        let at = geometry.block_end(1, 2, call) - 64;
        for word in 0..8 {
            assert_eq!(server.exposed().load(at + 8 * word), first + word as u64);
        }
    }
    // What would be no scatter list, or reach beyond the client's memory, is refused.
    let beyond = geometry.client_exposed_bytes() * 2 - 64;
    for wrong in [
        ReadWr { count: 0, ..read },
        ReadWr { stride: 0, ..read },
        ReadWr { count: 33, ..read },
        ReadWr {
            remote: beyond,
            ..read
        },
        ReadWr {
            remote: usize::MAX,
            ..read
        },
        ReadWr {
            connection: 7,
            ..read
        },
    ] {
        assert_eq!(server.post_read(&wrong), Err(PostError::Down), "{wrong:?}");
    }
    for wrong in [
        (0, 0),
        (8, usize::MAX - 4),
        (1 << 40, 0),
        (64, geometry.server_exposed_bytes()),
    ] {
        let mut it = write(0, 1, wrong.0);
        if wrong.1 > 0 {
            it.remote = wrong.1;
        }
        let mut client = connect(&fake, &server, 1).unwrap();
        assert_eq!(client.post_write(&it), Err(PostError::Down), "{it:?}");
        assert_eq!(client.flush(), None);
    }
    drop((client, server));
    assert_clean(&fake);
}

#[test]
fn every_status_ends_the_connection_and_says_what_it_was() {
    for status in 1..=IBV_WC_GENERAL_ERR.0 {
        let fake = fake();
        let (mut server, mut client, mut heard) = pair(&fake, 2);
        fake.net().status = Some(status);
        for sequence in 1..=3 {
            client.post_write(&write(0, sequence, 256)).unwrap();
        }
        assert_eq!(client.flush(), None);
        let (completions, gone) = until_gone(&mut client, 1);
        assert_eq!(gone, [0]);
        let vendor_err = fake::net::VENDOR_ERR;
        let expected = match status {
            it if it == IBV_WC_WR_FLUSH_ERR.0 => WcStatus::Flushed,
            status => WcStatus::Failed { status, vendor_err },
        };
        let statuses: Vec<_> = completions.iter().map(|it| it.status).collect();
        assert_eq!(statuses, [expected, WcStatus::Flushed, WcStatus::Flushed]);
        let failure = client.last_failure().unwrap();
        let kind = WrKind::Write;
        assert_eq!(failure.connection, 0);
        assert_eq!(
            failure.why,
            Why::Completion {
                status,
                vendor_err,
                kind
            }
        );
        assert!(
            failure.to_string().contains("connection 0: a WRITE failed"),
            "{failure}"
        );
        // The server is told; the other connection goes on.
        heard.until(&mut server, "the end", |heard, _| heard.gone.len() == 1);
        client.post_write(&write(1, 1, 256)).unwrap();
        assert_eq!(client.flush(), None);
        assert_eq!(client.poll_completion().unwrap().status, WcStatus::Success);
        drop((client, server));
        assert_clean(&fake);
    }
    assert_eq!(IBV_WC_SUCCESS.0, 0);
}

#[test]
fn a_chain_that_is_posted_in_part_is_accounted_up_to_the_request_that_failed() {
    for (at, errno) in [(0, libc::ENOMEM), (2, libc::EINVAL), (4, libc::ENOMEM)] {
        let fake = fake();
        let (server, mut client, _) = pair(&fake, 2);
        for sequence in 1..=5 {
            client.post_write(&write(0, sequence, 256)).unwrap();
        }
        fake.net().refuse = Some((at, errno));
        assert_eq!(client.flush(), Some(0), "which connection it was");
        assert_eq!(client.flush(), None, "once");
        let failure = client.last_failure().unwrap();
        let unposted = Unposted {
            errno: Errno(errno),
            posted: at,
            unposted: 5 - at,
        };
        assert_eq!((failure.connection, failure.why), (0, Why::Post(unposted)));
        assert_eq!(client.post_write(&write(0, 6, 64)), Err(PostError::Down));
        client.close(0);
        let (completions, gone) = until_gone(&mut client, 1);
        assert_eq!(gone, [0]);
        // Those before it were posted, and are done; of the others nothing has happened.
        let ids: Vec<_> = completions.iter().map(|it| it.wr_id).collect();
        assert_eq!(ids, (1..=at).map(|it| wr_id(0, it)).collect::<Vec<_>>());
        client.post_write(&write(1, 1, 64)).unwrap();
        assert_eq!(client.flush(), None);
        assert_eq!(client.poll_completion().unwrap().wr_id, wr_id(1, 1));
        drop((client, server));
        assert_clean(&fake);
    }
}

#[test]
fn a_connection_that_ends_takes_its_part_of_the_round_along_and_no_other() {
    let fake = fake();
    let (mut server, client, mut heard) = pair(&fake, 3);
    let seats: Vec<u32> = heard.opened.iter().map(|it| it.seat).collect();
    for sequence in 1..=2 {
        for &seat in &seats {
            let mut it = write(seat, sequence, 64);
            it.remote = 0;
            server.post_write(&it).unwrap();
        }
    }
    server.close(seats[1]);
    assert_eq!(server.flush(), None);
    heard.until(&mut server, "its end", |heard, _| heard.gone == [seats[1]]);
    let ids: Vec<_> = heard.completions.iter().map(|it| it.wr_id.seat()).collect();
    assert_eq!(ids, [seats[0], seats[0], seats[2], seats[2]]);
    drop((client, server));
    assert_clean(&fake);
}

#[test]
fn the_queues_hold_all_that_all_connections_may_have_outstanding() {
    let fake = fake();
    let mut server = listen(&fake).unwrap();
    let depth = server.limits().sq_depth;
    let mut client = connect(&fake, &server, 8).unwrap();
    let mut heard = Heard::default();
    heard.until(&mut server, "connections", |heard, _| {
        heard.opened.len() == 8
    });
    fake.net().hold = true;
    for sequence in 1..=depth {
        for seat in 0..8 {
            for end in [true, false] {
                let mut it = write(seat, sequence, 256);
                it.signaled = false;
                it.remote = 0;
                match end {
                    true => client.post_write(&it).unwrap(),
                    false => server.post_write(&it).unwrap(),
                }
            }
        }
    }
    assert_eq!((client.flush(), server.flush()), (None, None));
    // All of them fail at once.
    (0..8).for_each(|connection| client.close(connection));
    let (completions, _) = until_gone(&mut client, 8);
    assert_eq!(completions.len(), 8 * depth as usize);
    heard.until(&mut server, "the end", |heard, _| heard.gone.len() == 8);
    assert_eq!(heard.completions.len(), 8 * depth as usize);
    drop((client, server));
    assert_clean(&fake);
}
