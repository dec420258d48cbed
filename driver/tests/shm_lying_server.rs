//! Servers that lie: what a client makes of them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::SealFlags;
use scalerpc_driver::shm::{ClientOptions, SHARDS_MAX, SetupError, ShmClient, Step, VERSION};
use shm_common::raw::{self, memfd};
use shm_common::*;

const BUSY: u32 = 2;
const VERSION_DIFFERS: u32 = 1;

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
    let seat = [[1u32, 0].map(u32::to_le_bytes).concat(), vec![5; 8]].concat();
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
        text.contains(&format!("version {VERSION} of")) && text.contains("version 7"),
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
    let (total, whole) = (bytes as u64, bytes.next_multiple_of(4096) as u64);
    let of_shards =
        |shards, stride, bytes| raw::offer_of_shards(&geometry, 1, (shards, stride), bytes);
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
        ("no shards", &of_shards(0, whole, total), 1),
        (
            "too many shards",
            &of_shards(SHARDS_MAX + 1, whole, total),
            1,
        ),
        (
            "shards that overlap",
            &of_shards(2, total - 64, 2 * total - 64),
            1,
        ),
        (
            "shards off a line",
            &of_shards(2, total + 8, 2 * total + 8),
            1,
        ),
        ("shards that do not fit", &of_shards(64, 1 << 58, total), 1),
        ("shards past the end", &of_shards(2, whole, total), 1),
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
    let mut other_shard = welcome(0, &[(0, 1), (1, 1)]);
    other_shard[16 + 8 + 4] = 1;
    for (what, packet) in [
        ("no seats", welcome(0, &[])),
        ("a shard that does not exist", other_shard),
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
