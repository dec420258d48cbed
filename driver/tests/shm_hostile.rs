//! Peers that do not play by the rules harm themselves alone.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use scalerpc_core::memory::Memory;
use scalerpc_driver::shm::{
    ClientOptions, Refusal, ServerOptions, SetupError, ShmClient, ShmServer, Step, VERSION,
};
use scalerpc_driver::{Fabric, FabricEvent};
use shm_common::raw::{self, RawClient};
use shm_common::*;

const VERSION_DIFFERS: u32 = 1;
const BUSY: u32 = 2;
const BAD_REQUEST: u32 = 3;
const BAD_MEMORY: u32 = 4;
const BROKE_PROTOCOL: u32 = 6;

fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

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
    // The next descriptor is the lowest that is free; the limit is one more than the highest number.
    let probe = rustix::io::dup(std::io::stdin()).unwrap();
    let next = std::os::fd::AsRawFd::as_raw_fd(&probe) as u64;
    drop(probe);
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

/// A server that says what it is told to.
fn fake_server(path: &Path) -> OwnedFd {
    let listener = raw::socket();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    listener
}

fn hasty(timeout_ms: u64) -> ClientOptions {
    ClientOptions {
        timeout: Duration::from_millis(timeout_ms),
        ..client_options()
    }
}

#[test]
fn a_server_that_stops_at_any_step_is_given_up() {
    let (_dir, path) = place();
    let listener = fake_server(&path);
    // The first one fills the backlog, and waits for the offer.
    let error = ShmClient::connect(&path, 1, hasty(100)).unwrap_err();
    assert!(
        matches!(
            error,
            SetupError::Timeout {
                step: Step::Offer,
                ..
            }
        ),
        "{error}"
    );
    let pid = std::process::id();
    assert!(
        error.to_string().contains(&format!("process {pid}")),
        "{error}"
    );
    let error = std::iter::repeat_with(|| ShmClient::connect(&path, 1, hasty(100)).unwrap_err())
        .find(|error| {
            !matches!(
                error,
                SetupError::Timeout {
                    step: Step::Offer,
                    ..
                }
            )
        })
        .unwrap();
    assert!(
        matches!(
            error,
            SetupError::Timeout {
                step: Step::Connect,
                ..
            }
        ),
        "{error}"
    );
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    let listener = fake_server(&path);
    let client = std::thread::spawn({
        let path = path.clone();
        move || ShmClient::connect(&path, 2, hasty(1000)).unwrap_err()
    });
    let socket = rustix::net::accept(&listener).unwrap();
    let geometry = geometry(4);
    let bytes = geometry.server_exposed_bytes();
    let memory = memfd(
        bytes.next_multiple_of(4096),
        SealFlags::SHRINK | SealFlags::GROW,
    );
    raw::receive(&socket);
    assert!(raw::send(
        &socket,
        &raw::offer(&geometry, 2, bytes as u64),
        &[memory.as_fd()]
    ));
    let (region, fds) = raw::receive(&socket);
    assert_eq!((raw::u32_at(&region, 12), fds.len()), (raw::REGION, 1));
    // Half of a welcome.
    let seat = [[1u32, 1].map(u32::to_le_bytes).concat(), vec![5; 8]].concat();
    let body = [[0u32, 1].map(u32::to_le_bytes).concat(), seat].concat();
    assert!(raw::send(
        &socket,
        &raw::packet(VERSION, raw::WELCOME, &body),
        &[]
    ));
    let error = client.join().unwrap();
    assert!(
        matches!(
            error,
            SetupError::Timeout {
                step: Step::Welcome,
                ..
            }
        ),
        "{error}"
    );
}

/// What a client makes of an answer to its Hello for one connection.
fn answered(bytes: &[u8], fds: &[BorrowedFd<'_>]) -> SetupError {
    let (_dir, path) = place();
    let listener = fake_server(&path);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| ShmClient::connect(&path, 1, client_options()).unwrap_err());
        let socket = rustix::net::accept(&listener).unwrap();
        raw::receive(&socket);
        assert!(raw::send(&socket, bytes, fds));
        // If the client goes on, it gets nothing.
        drop(socket);
        client.join().unwrap()
    })
}

#[test]
fn clients_check_what_a_server_says() {
    let refusal = |version, reason: u32, detail: u32| {
        let body = [reason.to_le_bytes(), detail.to_le_bytes()].concat();
        // A later version may say more.
        raw::packet(version, raw::REFUSAL, &[&body[..], &[1; 9]].concat())
    };
    let error = answered(&refusal(7, VERSION_DIFFERS, 7), &[]);
    assert!(matches!(
        error,
        SetupError::VersionMismatch {
            ours: VERSION,
            theirs: 7,
            ..
        }
    ));
    let text = error.to_string();
    assert!(
        text.contains("version 1 of") && text.contains("version 7"),
        "{text}"
    );
    let error = answered(&refusal(7, BUSY, 3), &[]);
    assert!(
        matches!(
            error,
            SetupError::Busy {
                wanted: 1,
                free: 3,
                ..
            }
        ),
        "{error}"
    );
    let error = answered(&refusal(VERSION, 99, 3), &[]);
    assert!(error.to_string().contains("reason 99, unknown"), "{error}");

    let geometry = geometry(4);
    let bytes = geometry.server_exposed_bytes();
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let memory = memfd(bytes.next_multiple_of(4096), sealed);
    let offer = raw::offer(&geometry, 1, bytes as u64);
    let mut other_version = offer.clone();
    other_version[8] = 9;
    let error = answered(&other_version, &[memory.as_fd()]);
    assert!(
        matches!(error, SetupError::VersionMismatch { theirs: 9, .. }),
        "{error}"
    );
    let mut bad_window = offer.clone();
    bad_window[16 + 8] = 3;
    let mut bad_mapping = offer.clone();
    bad_mapping[16 + 20] = 2;
    let huge = [&offer[..16], &[0xff; 32], &offer[48..]].concat();
    for (what, bytes, fds) in [
        ("nothing", &b"?"[..], 0),
        ("short", &offer[..offer.len() - 1], 1),
        ("long", &[&offer[..], &[0]].concat(), 1),
        ("too long", &vec![0; 20_000], 1),
        ("no memory", &offer, 0),
        ("two memories", &offer, 2),
        ("a geometry that cannot be", &bad_window, 1),
        ("a mapping that does not exist", &bad_mapping, 1),
        ("huge numbers", &huge, 1),
        (
            "more connections than wanted",
            &raw::offer(&geometry, 2, bytes as u64),
            1,
        ),
        (
            "other bytes",
            &raw::offer(&geometry, 1, bytes as u64 + 1),
            1,
        ),
        (
            "out of turn",
            &raw::packet(VERSION, raw::WELCOME, &[0; 8]),
            0,
        ),
    ] {
        let fds = vec![memory.as_fd(); fds];
        let error = answered(bytes, &fds);
        assert!(
            matches!(
                error,
                SetupError::Protocol {
                    step: Step::Offer,
                    ..
                }
            ),
            "{what}: {error}"
        );
    }
    for fd in [
        memfd(bytes.next_multiple_of(4096), SealFlags::empty()),
        memfd(4096, sealed),
        raw::socket(),
    ] {
        let error = answered(&offer, &[fd.as_fd()]);
        assert!(matches!(error, SetupError::PeerMemory { .. }), "{error}");
    }
    let error = answered(&offer, &[memory.as_fd()]);
    assert!(
        matches!(
            error,
            SetupError::Protocol {
                step: Step::Welcome,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn clients_check_their_seats() {
    let (_dir, path) = place();
    let geometry = geometry(4);
    let bytes = geometry.server_exposed_bytes();
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let memory = memfd(bytes.next_multiple_of(4096), sealed);
    let listener = fake_server(&path);
    let welcome = |first: u32, seats: &[(u32, u64)]| {
        let mut body = [first, seats.len() as u32].map(u32::to_le_bytes).concat();
        for (seat, owner) in seats {
            body.extend([seat.to_le_bytes(), [0; 4]].concat());
            body.extend(owner.to_le_bytes());
        }
        raw::packet(VERSION, raw::WELCOME, &body)
    };
    for (what, packet) in [
        ("no seats", welcome(0, &[])),
        ("a seat that does not exist", welcome(0, &[(4, 1), (0, 1)])),
        ("no owner", welcome(0, &[(0, 1), (1, 0)])),
        ("too many", welcome(0, &[(0, 1), (1, 1), (2, 1)])),
        ("not from the first", welcome(1, &[(0, 1), (1, 1)])),
        (
            "a count that lies",
            welcome(0, &[(0, 1), (1, 1)])[..40].to_vec(),
        ),
    ] {
        let error = std::thread::scope(|scope| {
            let client = scope.spawn(|| ShmClient::connect(&path, 2, client_options()));
            let socket = rustix::net::accept(&listener).unwrap();
            raw::receive(&socket);
            let offer = raw::offer(&geometry, 2, bytes as u64);
            assert!(raw::send(&socket, &offer, &[memory.as_fd()]));
            raw::receive(&socket);
            assert!(raw::send(&socket, &packet, &[]));
            // The socket stays open: the packet alone is enough.
            client.join().unwrap().unwrap_err()
        });
        let told = matches!(&error, SetupError::Protocol { step: Step::Welcome, what, .. }
            if what.contains("seats"));
        assert!(told, "{what}: {error}");
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
