//! Peers that do not play by the rules harm themselves alone.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use scalerpc_core::memory::Memory;
use scalerpc_driver::shm::{
    ClientOptions, Refusal, ServerOptions, SetupError, ShmClient, ShmServer, Step, VERSION,
};
use scalerpc_driver::{Fabric, FabricEvent};
use shm_common::raw::{self, RawClient, memfd};
use shm_common::*;

const VERSION_DIFFERS: u32 = 1;
const BUSY: u32 = 2;
const BAD_REQUEST: u32 = 3;
const BAD_MEMORY: u32 = 4;
const BROKE_PROTOCOL: u32 = 6;

/// A client as far as the offer.
fn offered(path: &Path, connections: u32) -> OwnedFd {
    let socket = raw::dial(path);
    assert!(raw::send(&socket, &raw::hello(connections), &[]));
    let (bytes, fds) = raw::receive(&socket);
    assert_eq!((raw::u32_at(&bytes, 12), fds.len()), (raw::OFFER, 1));
    socket
}

/// The server has all its seats and takes a good client.
fn assert_sound(server: &mut ShmServer, path: &Path) {
    wait_for("the seats", || {
        while let Some(FabricEvent::Gone { connection }) = server.poll_event() {
            server.release(connection);
        }
        (server.counters().seats_free == server.geometry().clients_max()).then_some(())
    });
    let client = connect(path, 1);
    let seat = wait_for("the good client", || match server.poll_event()? {
        FabricEvent::Opened(opened) => Some(opened.seat),
        FabricEvent::Gone { .. } => None,
    });
    drop(client);
    assert_eq!(gone(server, 1), [seat]);
    server.release(seat);
}

#[test]
fn other_versions_are_told_apart() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    for version in [0, VERSION + 1, u32::MAX] {
        // Whatever the rest of their Hello looks like.
        for body in [&[][..], &[1, 0, 0, 0, 0, 0, 0, 0], &[9; 40]] {
            let socket = raw::dial(&path);
            assert!(raw::send(
                &socket,
                &raw::packet(version, raw::HELLO, body),
                &[]
            ));
            assert_eq!(raw::refusal(&socket), (VERSION_DIFFERS, VERSION));
            raw::expect_end(&socket);
        }
    }
    assert_eq!(server.counters().refused, 9);
    assert_eq!(
        server.counters().violations,
        0,
        "an old client is no attack"
    );
    assert_sound(&mut server, &path);
}

#[test]
fn impossible_numbers_of_connections_are_refused() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    for (connections, answer) in [
        (0, (BAD_REQUEST, 0)),
        (5, (BUSY, 4)),
        (1 << 31, (BUSY, 4)),
        (u32::MAX, (BUSY, 4)),
    ] {
        let socket = raw::dial(&path);
        assert!(raw::send(&socket, &raw::hello(connections), &[]));
        assert_eq!(raw::refusal(&socket), answer, "{connections}");
    }
    assert_sound(&mut server, &path);
}

#[test]
fn malformed_hellos_are_refused() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let good = raw::hello(1);
    let mut bad_magic = good.clone();
    bad_magic[0] ^= 1;
    let long = [&good[..], &[0; 200]].concat();
    let big = vec![0x53; 60_000];
    let cases: [(&[u8], usize); 9] = [
        (&good[..1], 0),
        (&good[..15], 0),
        (&good[..23], 0),
        (&bad_magic, 0),
        (&long, 0),
        (&big, 0),
        (&raw::region(1), 0),
        (&good, 1),
        (&good, 3),
    ];
    for (number, (bytes, fds)) in cases.into_iter().enumerate() {
        let socket = raw::dial(&path);
        let fds: Vec<BorrowedFd<'_>> = (0..fds).map(|_| pipe.0.as_fd()).collect();
        assert!(raw::send(&socket, bytes, &fds));
        assert_eq!(raw::refusal(&socket).0, BROKE_PROTOCOL, "case {number}");
        raw::expect_end(&socket);
    }
    assert_eq!(server.counters().violations, 9);
    assert_sound(&mut server, &path);
}

#[test]
fn unusable_memory_is_refused() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let bytes = raw::client_bytes(server.geometry(), 1);
    let page = 4096;
    let whole = bytes.next_multiple_of(page);
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    let (pipe, _end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    let cases = [
        ("unsealed", memfd(whole, SealFlags::empty())),
        ("may shrink", memfd(whole, SealFlags::GROW)),
        ("may grow", memfd(whole, SealFlags::SHRINK)),
        ("too small", memfd(whole - page, fixed)),
        ("empty", memfd(0, fixed)),
        ("no whole pages", memfd(bytes - 1, fixed)),
        ("not writable", memfd(whole, fixed | SealFlags::WRITE)),
        ("no more seals", memfd(whole, fixed | SealFlags::SEAL)),
        ("a pipe", pipe),
        ("a file", file),
        ("a socket", raw::socket()),
    ];
    for (what, fd) in &cases {
        let socket = offered(&path, 1);
        assert!(raw::send(
            &socket,
            &raw::region(bytes as u64),
            &[fd.as_fd()]
        ));
        assert_eq!(raw::refusal(&socket), (BAD_MEMORY, 0), "{what}");
    }
    let good = memfd(whole, fixed);
    for declared in [0, bytes as u64 - 1, bytes as u64 + 1, 1 << 63, u64::MAX] {
        let socket = offered(&path, 1);
        assert!(raw::send(&socket, &raw::region(declared), &[good.as_fd()]));
        assert_eq!(raw::refusal(&socket).0, BAD_MEMORY, "{declared}");
    }
    for fds in [&[][..], &[good.as_fd(), good.as_fd()], &[good.as_fd(); 5]] {
        let socket = offered(&path, 1);
        assert!(raw::send(&socket, &raw::region(bytes as u64), fds));
        assert_eq!(
            raw::refusal(&socket).0,
            BROKE_PROTOCOL,
            "{} descriptors",
            fds.len()
        );
    }
    let socket = offered(&path, 1);
    let old = raw::packet(VERSION + 1, raw::REGION, &(bytes as u64).to_le_bytes());
    assert!(raw::send(&socket, &old, &[good.as_fd()]));
    assert_eq!(raw::refusal(&socket).0, BROKE_PROTOCOL);
    assert_eq!(server.counters().violations, cases.len() as u64 + 5 + 3 + 1);
    assert_sound(&mut server, &path);
}

#[test]
fn memory_cannot_be_cut_short_or_emptied_once_it_is_taken() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let raw = RawClient::connect(&path, server.geometry(), 1);
    let opened = opened(&mut server, 1)[0];
    let fd = raw.memory.fd();
    assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(fd, 1 << 30), Err(Errno::PERM));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(fd, hole, 0, 4096), Err(Errno::PERM));
    let seals = rustix::fs::fcntl_get_seals(fd).unwrap();
    let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    assert!(seals.contains(wanted), "{seals:?}");
    server
        .post_write(&write_wr(opened.seat, 0, opened.ring_at, 64))
        .unwrap();
    // The server's own memory is sealed against clients as well.
    let socket = raw::dial(&path);
    assert!(raw::send(&socket, &raw::hello(1), &[]));
    let (_, fds) = raw::receive(&socket);
    assert_eq!(rustix::fs::ftruncate(&fds[0], 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&fds[0], 1 << 30), Err(Errno::PERM));
    let size = rustix::fs::fstat(&fds[0]).unwrap().st_size;
    assert_eq!(
        size as usize,
        server
            .geometry()
            .server_exposed_bytes()
            .next_multiple_of(4096)
    );
}

#[test]
fn talking_after_the_welcome_ends_that_link_alone() {
    let (_dir, path) = place();
    let mut server = serve(&path, 8);
    let mut bystander = connect(&path, 1);
    let raws: Vec<RawClient> = [&b"x"[..], &raw::hello(1), &[7; 5000], &raw::region(1)]
        .map(|bytes| {
            let raw = RawClient::connect(&path, server.geometry(), 1);
            assert!(raw::send(&raw.socket, bytes, &[]));
            raw
        })
        .into();
    opened(&mut server, 5);
    wait_for("the violations", || {
        (server.counters().violations == 4).then_some(())
    });
    for raw in &raws {
        raw::expect_end(&raw.socket);
    }
    assert_quiet(&mut server, "their process lives, so they are not fenced");
    for raw in &raws {
        server.close(raw.seats[0]);
    }
    gone_and_released(&mut server, 4);
    assert_eq!(bystander.poll_event(), None);
}

#[test]
fn handshakes_that_are_not_finished_are_given_up() {
    let (_dir, path) = place();
    let options = ServerOptions {
        handshake_timeout: Duration::from_millis(300),
        handshakes_max: 4,
        ..server_options()
    };
    let mut server = ShmServer::listen(&path, geometry(4), options).unwrap();
    // More than the server deals with at once, all silent; half of them hold a seat.
    let silent: Vec<OwnedFd> = (0..3).map(|_| raw::dial(&path)).collect();
    let holding = offered(&path, 4);
    let error = {
        let options = ClientOptions {
            timeout: Duration::from_millis(50),
            ..client_options()
        };
        ShmClient::connect(&path, 1, options).unwrap_err()
    };
    assert!(
        matches!(
            error,
            SetupError::Timeout {
                step: Step::Offer,
                ..
            }
        ),
        "no handshake is free: {error}"
    );
    let client = connect(&path, 4);
    opened(&mut server, 4);
    raw::expect_end(&holding);
    silent.iter().for_each(raw::expect_end);
    drop(client);
    gone_and_released(&mut server, 4);
    assert!(server.counters().abandoned >= 4, "{:?}", server.counters());
    assert_sound(&mut server, &path);
}

#[test]
fn a_silent_client_delays_nobody() {
    let (_dir, path) = place();
    let options = ServerOptions {
        handshake_timeout: PATIENCE,
        ..server_options()
    };
    let mut server = ShmServer::listen(&path, geometry(8), options).unwrap();
    let _silent: Vec<OwnedFd> = (0..10).map(|_| raw::dial(&path)).collect();
    let _holding = offered(&path, 2);
    let _client = connect(&path, 6);
    opened(&mut server, 6);
}

/// Not a test of its own: plays a role in a child process, if there is one to play.
#[test]
fn child_process() {
    let Some((room, path)) = role() else { return };
    let _server = serve(&path, 4);
    // The limit is one more than the highest number that may be in use, so gaps below have to be filled:
    // what starts the tests may have left some.
    let names = std::fs::read_dir("/proc/self/fd").unwrap();
    let in_use = names.map(|name| {
        name.unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse::<i32>()
            .unwrap()
    });
    let highest = in_use.max().unwrap();
    let next = loop {
        let filler = rustix::io::dup(std::io::stdin()).unwrap();
        if filler.as_raw_fd() > highest {
            break filler.as_raw_fd() as u64;
        }
        std::mem::forget(filler);
    };
    let limit = rustix::process::Rlimit {
        current: Some(next + room.parse::<u64>().unwrap()),
        maximum: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    say("ready");
    sleep_forever();
}

fn assert_out_of_resources(error: &SetupError) {
    let refused = matches!(
        error,
        SetupError::Refused {
            reason: Refusal::Resources,
            ..
        }
    );
    assert!(refused, "{error}");
}

#[test]
fn a_server_out_of_descriptors_says_so_or_lets_clients_wait() {
    let (_dir, path) = place();
    for room in 0..6 {
        let mut process = child(&room.to_string(), &path);
        process.expect("ready");
        let timeout = if room == 0 {
            Duration::from_millis(300)
        } else {
            PATIENCE
        };
        let outcome = ShmClient::connect(
            &path,
            1,
            ClientOptions {
                timeout,
                ..client_options()
            },
        );
        match (room, outcome) {
            // The backlog cannot be taken from.
            (
                0,
                Err(SetupError::Timeout {
                    step: Step::Offer, ..
                }),
            ) => {}
            // No room for the pidfd, for the memory, or to ask the kernel about the memory.
            (1..=3, Err(error)) => assert_out_of_resources(&error),
            (4 | 5, Ok(mut client)) => {
                assert_eq!(client.poll_event(), None);
                let error = ShmClient::connect(&path, 1, client_options()).unwrap_err();
                assert_out_of_resources(&error);
                // The first is undisturbed.
                assert_eq!(client.poll_event(), None);
            }
            (room, outcome) => panic!("room for {room}: {outcome:?}"),
        }
        process.kill();
    }
}

/// A packet that may be nearly right.
fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![0u32..8, any::<u32>()];
    let versions = prop_oneof![8 => Just(VERSION), 1 => any::<u32>()];
    let body = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..100),
        any::<u64>().prop_map(|number| number.to_le_bytes().to_vec()),
        (0u64..6).prop_map(|number| number.to_le_bytes().to_vec()),
    ];
    prop_oneof![
        1 => proptest::collection::vec(any::<u8>(), 0..100),
        8 => (versions, kinds, body).prop_map(|(version, kind, body)| {
            raw::packet(version, kind, &body)
        }),
        4 => (0u32..6).prop_map(raw::hello),
        1 => Just(raw::bye()),
    ]
}

#[test]
fn no_sequence_of_packets_harms_a_server() {
    let (_dir, path) = place();
    let options = ServerOptions {
        handshake_timeout: Duration::from_millis(200),
        ..server_options()
    };
    let server = ShmServer::listen(&path, geometry(4), options).unwrap();
    let bytes = raw::client_bytes(server.geometry(), 1);
    let whole = bytes.next_multiple_of(4096);
    let good = || memfd(whole, SealFlags::SHRINK | SealFlags::GROW);
    let server = std::cell::RefCell::new(server);
    let packet = prop_oneof![8 => any_packet(), 3 => Just(raw::region(bytes as u64))];
    let step = (packet, 0usize..3, any::<bool>());
    let config = ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..Default::default()
    };
    proptest!(config, |(well in 0u8..3, steps in proptest::collection::vec(step, 0..5))| {
        let mut server = server.borrow_mut();
        let socket = raw::dial(&path);
        // Some begin well.
        if well > 0 {
            raw::send(&socket, &raw::hello(1), &[]);
        }
        if well > 1 {
            raw::send(&socket, &raw::region(bytes as u64), &[good().as_fd()]);
        }
        for (bytes, fds, right) in steps {
            let fd = if right { good() } else { memfd(4096, SealFlags::empty()) };
            raw::send(&socket, &bytes, &vec![fd.as_fd(); fds]);
        }
        // Whatever it has become, it goes. (This process lives on, so a link that was opened goes only when
        // it is closed or has said goodbye.)
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
        raw::expect_end_or(&socket, || {
            while let Some(event) = server.poll_event() {
                match event {
                    FabricEvent::Opened(opened) => server.close(opened.seat),
                    FabricEvent::Gone { connection } => server.release(connection),
                }
            }
        });
        prop_assert!(server.exposed().len() > 0);
    });
    let mut server = server.into_inner();
    assert_sound(&mut server, &path);
    let counters = server.counters();
    assert!(
        counters.refused > 0 && counters.abandoned > 0,
        "{counters:?}"
    );
}
