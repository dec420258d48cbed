//! Bytes get where they belong: WRITEs both ways, READs, completions, revocation.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use scalerpc_core::memory::Memory;
use scalerpc_core::post::{Completion, ReadWr, WcStatus, WrId, WrKind};
use scalerpc_core::wire::LINE;
use scalerpc_driver::shm::guard::{self, ClientFence::Full};
use scalerpc_driver::{Fabric, PostError};
use shm_common::*;

#[test]
fn a_client_writes_lines_words_and_bytes_to_the_server() {
    let (_dir, path) = place();
    let mut server = serve(&path, 8);
    let mut client = connect(&path, 3);
    let seats = opened(&mut server, 3);
    let geometry = *client.geometry();
    assert_eq!(geometry, *server.geometry());
    for (connection, opened) in (0..).zip(&seats) {
        assert_eq!(
            (opened.seat, opened.owner),
            (client.seat(connection), client.owner(connection))
        );
        assert_ne!(opened.owner, 0);
        assert_eq!(opened.ring_at, geometry.ring(connection));
        assert_eq!(opened.staging_at, geometry.staging(connection));
        let seat = opened.seat;
        let image = geometry.entry_image(connection);
        let first = 100 * (1 + u64::from(connection));
        fill(client.private(), image, LINE, first);
        let line = geometry.endpoint(seat);
        client
            .post_write(&write_wr(connection, image, line, LINE))
            .unwrap();
        assert_eq!(
            words(server.exposed(), line, LINE),
            (first..first + 8).collect::<Vec<_>>()
        );
        client.private().store(image + LINE, 7);
        client
            .post_write(&write_wr(connection, image + LINE, line + 8, 8))
            .unwrap();
        assert_eq!(server.exposed().load(line + 8), 7);
        assert_eq!(
            server.exposed().load(line + 16),
            first + 2,
            "a word is only a word"
        );
        client.private().store_byte_release(image + LINE + 8, 1);
        let demand = geometry.demand_byte(seat);
        client
            .post_write(&write_wr(connection, image + LINE + 8, demand, 1))
            .unwrap();
        assert_eq!(server.exposed().load_byte_acquire(demand), 1);
    }
    let others = (3..8).map(|seat| {
        server
            .exposed()
            .load_byte_acquire(geometry.demand_byte(seat))
    });
    assert_eq!(others.sum::<u8>(), 0, "nobody else's byte");
}

#[test]
fn a_server_writes_to_the_ring_of_the_connection() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let client = connect(&path, 2);
    let seats = opened(&mut server, 2);
    for opened in &seats {
        fill(server.private(), 0, 3 * LINE, 40 + opened.ring_at as u64);
        let wr = write_wr(opened.seat, 0, opened.ring_at, 3 * LINE);
        server.post_write(&wr).unwrap();
    }
    for opened in &seats {
        let first = 40 + opened.ring_at as u64;
        let got = words(client.exposed(), opened.ring_at, 3 * LINE);
        assert_eq!(got, (first..first + 24).collect::<Vec<_>>());
        assert_eq!(
            client.exposed().load(opened.ring_at + 3 * LINE),
            0,
            "and no further"
        );
    }
}

#[test]
fn a_read_puts_each_message_at_the_end_of_its_block() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let client = connect(&path, 2);
    let opened = opened(&mut server, 2)[1];
    let geometry = *client.geometry();
    let stride = 2 * LINE;
    fill(client.exposed(), opened.staging_at, 3 * stride, 1000);
    let wr_id = WrId::new(WrKind::Read, 5, opened.seat, 9);
    let wr = ReadWr {
        connection: opened.seat,
        remote: opened.staging_at,
        stride,
        count: 3,
        first_call: 6,
        pool: 1,
        zone: 2,
        wr_id,
    };
    server.post_read(&wr).unwrap();
    for i in 0..3 {
        let end = geometry.block_end(1, 2, 6 + i);
        let first = 1000 + 16 * i;
        let got = words(server.exposed(), end - stride, stride);
        assert_eq!(got, (first..first + 16).collect::<Vec<_>>(), "message {i}");
        assert_eq!(
            server.exposed().load(end - stride - 8),
            0,
            "nothing before message {i}"
        );
    }
    let done = Completion {
        wr_id,
        status: WcStatus::Success,
    };
    assert_eq!(completions(&mut server), [done]);
}

#[test]
fn a_read_of_what_the_client_did_not_give_ends_its_link_alone() {
    let (_dir, path) = place();
    let good = |geometry: &scalerpc_core::Geometry, opened: &scalerpc_driver::Opened| ReadWr {
        connection: opened.seat,
        remote: opened.staging_at,
        stride: LINE,
        count: geometry.window(),
        first_call: 1,
        pool: 0,
        zone: 0,
        wr_id: WrId::new(WrKind::Read, 0, opened.seat, 1),
    };
    let mut server = serve(&path, 16);
    let geometry = *server.geometry();
    let _bystander = connect(&path, 1);
    let bystander = opened(&mut server, 1)[0];
    let end = geometry.client_exposed_bytes();
    assert_eq!(geometry.request_block_bytes(), 5 * LINE);
    let bad: [fn(&mut ReadWr, usize); 10] = [
        |wr, _| (wr.stride, wr.count) = (6 * LINE, 1),
        |wr, _| wr.count += 1,
        |wr, end| wr.remote = end - LINE,
        |wr, end| wr.remote = end,
        |wr, _| wr.remote = usize::MAX - 7,
        |wr, _| wr.remote += 4,
        |wr, _| wr.stride = LINE - 4,
        |wr, _| wr.stride = 1 << 20,
        |wr, _| wr.stride = usize::MAX - 7,
        |wr, _| wr.count = u32::MAX,
    ];
    for (case, spoil) in bad.iter().enumerate() {
        let mut client = connect(&path, 1);
        let opened = opened(&mut server, 1)[0];
        let mut wr = good(&geometry, &opened);
        server.post_read(&wr).unwrap();
        assert_eq!(
            completions(&mut server)[0].status,
            WcStatus::Success,
            "case {case}"
        );
        spoil(&mut wr, end);
        server.post_read(&wr).unwrap();
        assert_eq!(server.post_read(&wr), Err(PostError::Down), "case {case}");
        assert_eq!(server.poll_event(), None, "completions come before Gone");
        let status = completions(&mut server)[0].status;
        assert!(
            matches!(status, WcStatus::Failed { .. }),
            "case {case}: {status:?}"
        );
        gone_and_released(&mut server, 1);
        assert_eq!(gone(&mut client, 1), [0]);
        server.post_read(&good(&geometry, &bystander)).unwrap();
        assert_eq!(
            completions(&mut server)[0].status,
            WcStatus::Success,
            "the other lives on"
        );
    }
}

#[test]
fn a_write_past_the_peer_s_memory_is_not_made() {
    let (_dir, path) = place();
    let mut server = serve(&path, 16);
    let mut client = connect(&path, 1);
    let opened = opened(&mut server, 1)[0];
    let own_end = client.exposed().len();
    assert_eq!(own_end, client.geometry().client_exposed_bytes());
    // Behind the reachable part are the guards, which are in the same mapping.
    server
        .post_write(&write_wr(opened.seat, 0, own_end, 8))
        .unwrap();
    assert!(matches!(
        completions(&mut server)[0].status,
        WcStatus::Failed { .. }
    ));
    let server_end = server.exposed().len();
    for (remote, len) in [
        (server_end, 8),
        (server_end, 1),
        (usize::MAX - 7, 64),
        (4, 8),
        (0, 12),
    ] {
        let mut client = connect(&path, 1);
        client.post_write(&write_wr(0, 0, remote, len)).unwrap();
        assert!(matches!(
            completions(&mut client)[0].status,
            WcStatus::Failed { .. }
        ));
        assert_eq!(
            client.post_write(&write_wr(0, 0, 0, 8)),
            Err(PostError::Down)
        );
    }
    assert_eq!(
        client.post_write(&write_wr(0, 0, 0, 8)),
        Err(PostError::Down),
        "it was closed"
    );
}

#[test]
fn completions_come_for_signaled_work_only_and_a_full_queue_pushes_back() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut client = connect(&path, 1);
    let opened = opened(&mut server, 1)[0];
    let mut wr = write_wr(opened.seat, 0, opened.ring_at, LINE);
    server.post_write(&wr).unwrap();
    assert_eq!(completions(&mut server), []);
    wr.signaled = true;
    let mut posted = 0;
    while server.post_write(&wr).is_ok() {
        posted += 1;
        assert!(posted < 1 << 20, "bounded");
    }
    assert_eq!(server.post_write(&wr), Err(PostError::QueueFull));
    wr.signaled = false;
    server.post_write(&wr).unwrap();
    assert_eq!(completions(&mut server).len(), posted);
    wr.signaled = true;
    server.post_write(&wr).unwrap();
    // A client that leaves is gone only after its completions have been taken.
    client.close(0);
    wait_for("the end", || (server.counters().fenced == 1).then_some(()));
    assert_eq!(server.poll_event(), None);
    assert_eq!(completions(&mut server).len(), 1);
    assert_eq!(gone(&mut server, 1), [opened.seat]);
}

#[test]
fn a_revoked_tenancy_writes_no_more_and_a_later_one_does() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut client = connect(&path, 2);
    let opened = opened(&mut server, 2);
    let geometry = *client.geometry();
    let end = geometry.block_end(0, 0, 1);
    let post = |client: &mut scalerpc_driver::shm::ShmClient, connection, epoch, mark| {
        fill(client.private(), 0, LINE, mark);
        let mut wr = write_wr(connection, 0, end - LINE, LINE);
        wr.epoch = epoch;
        client.post_write(&wr)
    };
    post(&mut client, 1, Some(1), 100).unwrap();
    assert!(revoke(&mut server, opened[1].seat, 1));
    assert_eq!(post(&mut client, 1, Some(1), 200), Err(PostError::Revoked));
    assert_eq!(
        server.exposed().load(end - LINE),
        100,
        "nothing was written"
    );
    post(&mut client, 1, Some(2), 300).unwrap();
    assert_eq!(server.exposed().load(end - LINE), 300);
    post(&mut client, 1, None, 400).unwrap();
    post(&mut client, 0, Some(1), 500).unwrap();
    assert_eq!(
        server.exposed().load(end - LINE),
        500,
        "the other connection was not revoked"
    );
    // Revocations never fall back.
    assert!(revoke(&mut server, opened[1].seat, 7));
    assert!(revoke(&mut server, opened[1].seat, 3));
    assert_eq!(post(&mut client, 1, Some(7), 600), Err(PostError::Revoked));
    // All tenancies that can be, but not the connection.
    assert!(revoke(&mut server, opened[1].seat, u64::MAX));
    assert_eq!(
        post(&mut client, 1, Some(u64::MAX - 1), 700),
        Err(PostError::Revoked)
    );
    post(&mut client, 1, None, 800).unwrap();
    assert_eq!(server.exposed().load(end - LINE), 800);
    assert_eq!(server.counters().revocations, 4);
}

/// A plain memory, to look at a guard in the middle of a WRITE.
struct Cells(Vec<std::cell::Cell<u64>>);

impl Memory for Cells {
    fn len(&self) -> usize {
        self.0.len() * 8
    }
    fn load(&self, at: usize) -> u64 {
        self.0[at / 8].get()
    }
    fn load_acquire(&self, at: usize) -> u64 {
        self.load(at)
    }
    fn store(&self, at: usize, word: u64) {
        self.0[at / 8].set(word);
    }
    fn store_release(&self, at: usize, word: u64) {
        self.store(at, word);
    }
    fn load_byte_acquire(&self, _: usize) -> u8 {
        unreachable!("guards are words")
    }
    fn store_byte_release(&self, _: usize, _: u8) {
        unreachable!("guards are words")
    }
    fn fence_release(&self) {}
    fn fence_full(&self) {}
}

#[test]
fn a_write_under_way_holds_a_revocation_up() {
    let memory = Cells(vec![Default::default(); guard::GUARD_BYTES / 8 + 8]);
    let at = LINE;
    assert!(guard::begin_write(&memory, at, 3, Full));
    guard::raise(&memory, at, 3);
    assert!(!guard::is_quiet(&memory, at), "pending");
    guard::end_write(&memory, at);
    assert!(guard::is_quiet(&memory, at));
    assert!(!guard::begin_write(&memory, at, 3, Full));
    assert!(
        guard::is_quiet(&memory, at),
        "a refused WRITE is over at once"
    );
    assert!(guard::begin_write(&memory, at, 4, Full));
    assert_eq!(guard::revoked(&memory, at), 3);
    guard::end_write(&memory, at);
    guard::raise(&memory, at, guard::ENDED);
    assert!(guard::is_quiet(&memory, at));
    assert!(!guard::begin_write(&memory, at, guard::ENDED, Full));
    assert!(
        memory.0[..LINE / 8].iter().all(|cell| cell.get() == 0),
        "nothing before it"
    );
}
