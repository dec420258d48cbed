//! Connections come and go, and processes end or stop at bad moments.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::io::Read;

use rustix::process::Signal;
use scalerpc_core::memory::Memory;
use scalerpc_core::post::{ReadWr, WrId, WrKind};
use scalerpc_core::wire::LINE;
use scalerpc_driver::shm::{SetupError, ShmClient, ShmServer};
use scalerpc_driver::{Fabric, PostError};
use shm_common::raw::RawClient;
use shm_common::*;

/// Not a test of its own: plays a role in a child process, if there is one to play.
#[test]
fn child_process() {
    let Some((role, path)) = role() else { return };
    match role.as_str() {
        "client" => {
            let client = connect(&path, 2);
            say("ready");
            // Ends without goodbye when the parent closes the pipe.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            std::mem::forget(client);
            std::process::exit(0);
        }
        "closes its socket" => {
            let mut client = connect(&path, 1);
            close_socket();
            say("ready");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            client.private().store(0, 77);
            client
                .post_write(&write_wr(0, 0, client.geometry().endpoint(0), 8))
                .unwrap();
            say("written");
            sleep_forever();
        }
        "writer" => {
            let mut client = connect(&path, 1);
            let end = client.geometry().block_end(0, 0, 0);
            say("ready");
            let mut wr = write_wr(0, 0, end - LINE, LINE);
            wr.epoch = Some(1);
            let outcome = loop {
                if let Err(error) = client.post_write(&wr) {
                    break error;
                }
            };
            say(&format!("stopped by {outcome:?}"));
            sleep_forever();
        }
        "forks" => {
            let _client = connect(&path, 2);
            let orphan = fork(|| {
                // SAFETY: it touches no memory.
                unsafe { libc::sleep(2 * PATIENCE.as_secs() as u32) };
            });
            say(&format!("forked {orphan}"));
            sleep_forever();
        }
        "drops in a fork" => {
            let mut client = Some(connect(&path, 2));
            wait_for_end(fork(|| drop(client.take())));
            say("dropped");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            let client = client.as_mut().unwrap();
            client.private().store(0, 77);
            let wr = write_wr(0, 0, client.geometry().endpoint(0), 8);
            client.post_write(&wr).unwrap();
            say("written");
            sleep_forever();
        }
        "server drops in a fork" => {
            let mut server = Some(serve(&path, 4));
            wait_for_end(fork(|| drop(server.take())));
            say("dropped");
            sleep_forever();
        }
        "server" => {
            let _server = serve(&path, 4);
            say("ready");
            sleep_forever();
        }
        _ => panic!("no such role: {role}"),
    }
}

/// Runs something in a fork of this process, which then ends at once; returns its id.
fn fork(what: impl FnOnce()) -> i32 {
    // SAFETY: the child has this thread alone, and runs `what` and `_exit`: what it is given takes no lock that
    // another thread may have held.
    let id = unsafe { libc::fork() };
    assert!(id >= 0);
    if id == 0 {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_err();
        // SAFETY: it touches no memory, and runs nothing of this process's.
        unsafe { libc::_exit(panicked.into()) };
    }
    id
}

fn wait_for_end(id: i32) {
    let id = rustix::process::Pid::from_raw(id);
    let ended = rustix::process::waitpid(id, rustix::process::WaitOptions::empty()).unwrap();
    assert_eq!(ended.unwrap().1.exit_status(), Some(0));
}

/// Closes the only Unix socket of this process, as a program does that closes everything it inherited.
fn close_socket() {
    let mut closed = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let fd: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        if fd > 2 && target.to_str().unwrap().starts_with("socket:") {
            // SAFETY: the number is of an open descriptor; that its owner is not asked is the point, and
            // nothing else opens descriptors in this process.
            unsafe { rustix::io::close(fd) };
            closed += 1;
        }
    }
    assert_eq!(closed, 1);
}

#[test]
fn a_goodbye_fences_at_once_and_the_seats_come_back() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let client = connect(&path, 4);
    let seats: Vec<u32> = opened(&mut server, 4)
        .iter()
        .map(|opened| opened.seat)
        .collect();
    // A connection that is not gone keeps its seat.
    server.release(seats[0]);
    let refused = ShmClient::connect(&path, 1, client_options()).unwrap_err();
    assert!(
        matches!(
            refused,
            SetupError::Busy {
                wanted: 1,
                free: 0,
                ..
            }
        ),
        "{refused}"
    );
    drop(client);
    assert_eq!(gone(&mut server, 4), seats);
    let refused = ShmClient::connect(&path, 1, client_options()).unwrap_err();
    assert!(
        matches!(refused, SetupError::Busy { free: 0, .. }),
        "not released yet: {refused}"
    );
    server.release(seats[2]);
    server.release(seats[2]);
    let refused = ShmClient::connect(&path, 2, client_options()).unwrap_err();
    assert!(
        matches!(
            refused,
            SetupError::Busy {
                wanted: 2,
                free: 1,
                ..
            }
        ),
        "{refused}"
    );
    let client = connect(&path, 1);
    assert_eq!(client.seat(0), seats[2]);
    assert_eq!(opened(&mut server, 1)[0].owner, client.owner(0));
    assert_eq!(server.counters().refused, 3);
    assert_eq!(server.counters().violations, 0);
}

#[test]
fn a_seat_is_clean_and_has_a_new_owner_when_it_is_given_out_again() {
    let (_dir, path) = place();
    let mut server = serve(&path, 1);
    let geometry = *server.geometry();
    let mut owners = std::collections::HashSet::new();
    for _ in 0..20 {
        let mut client = connect(&path, 1);
        assert!(owners.insert(client.owner(0)));
        assert_eq!(opened(&mut server, 1)[0].seat, 0);
        assert_eq!(words(server.exposed(), geometry.endpoint(0), LINE), [0; 8]);
        assert_eq!(
            server.exposed().load_byte_acquire(geometry.demand_byte(0)),
            0
        );
        fill(client.private(), 0, 2 * LINE, 1);
        client
            .post_write(&write_wr(0, 0, geometry.endpoint(0), LINE))
            .unwrap();
        client
            .post_write(&write_wr(0, 0, geometry.demand_byte(0), 1))
            .unwrap();
        assert_eq!(
            server.exposed().load_byte_acquire(geometry.demand_byte(0)),
            1
        );
        drop(client);
        gone_and_released(&mut server, 1);
    }
}

#[test]
fn a_killed_client_is_gone_and_reading_its_memory_harms_nobody() {
    let (_dir, path) = place();
    let mut server = serve(&path, 8);
    let mut bystander = connect(&path, 1);
    let bystander_seat = opened(&mut server, 1)[0].seat;
    for _ in 0..5 {
        let mut process = child("client", &path);
        process.expect("ready");
        let seats = opened(&mut server, 2);
        assert_eq!(
            server.peer_process(seats[0].seat),
            Some(process.pid().as_raw_nonzero().get())
        );
        // It dies in the middle of READs.
        let mut wr = ReadWr {
            connection: seats[0].seat,
            remote: seats[0].staging_at,
            stride: LINE,
            count: 4,
            first_call: 1,
            pool: 0,
            zone: 0,
            wr_id: WrId::new(WrKind::Read, 0, seats[0].seat, 0),
        };
        server.post_read(&wr).unwrap();
        process.signal(Signal::KILL);
        wait_for("the end", || {
            let outcome = server.post_read(&wr);
            completions(&mut server);
            (outcome == Err(PostError::Down)).then_some(())
        });
        process.wait();
        wr.connection = bystander_seat;
        wr.remote = 0;
        server.post_read(&wr).unwrap();
        completions(&mut server);
        let mut ended = [seats[0].seat, seats[1].seat];
        ended.sort_unstable();
        assert_eq!(gone(&mut server, 2), ended);
        server.release(seats[0].seat);
        assert!(revoke(&mut server, seats[1].seat, 3), "still mapped");
        server.release(seats[1].seat);
        wait_for("the memory", || {
            (server.memory_report().client_bytes < 4096 * 4).then_some(())
        });
    }
    bystander
        .post_write(&write_wr(
            0,
            0,
            bystander.geometry().endpoint(bystander_seat),
            8,
        ))
        .unwrap();
    assert_eq!(bystander.poll_event(), None);
}

#[test]
fn a_client_that_exits_without_goodbye_is_gone() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut process = child("client", &path);
    process.expect("ready");
    opened(&mut server, 2);
    process.close_stdin();
    assert!(process.wait().success());
    assert_eq!(gone(&mut server, 2), [0, 1]);
}

/// A fork keeps a copy of the socket, and says nothing about the process that the seats were given to.
#[test]
fn a_killed_client_is_gone_though_a_fork_of_it_lives() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut process = child("forks", &path);
    let orphan = process.line("forked ").parse().unwrap();
    let orphan = Orphan(rustix::process::Pid::from_raw(orphan).unwrap());
    opened(&mut server, 2);
    assert_quiet(&mut server, "both live");
    process.kill();
    assert_eq!(gone(&mut server, 2), [0, 1]);
    assert!(rustix::process::test_kill_process(orphan.0).is_ok());
}

/// A process of nobody's, killed on drop.
struct Orphan(rustix::process::Pid);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::KILL);
    }
}

/// A fork drops what it inherits when it returns from its own work. The goodbye would let others have zones to
/// which the client still writes.
#[test]
fn what_a_fork_drops_goes_on_in_the_process_that_made_it() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut process = child("drops in a fork", &path);
    process.expect("dropped");
    opened(&mut server, 2);
    assert_quiet(&mut server, "the client lives");
    process.close_stdin();
    process.expect("written");
    let written = server.exposed().load(server.geometry().endpoint(0));
    assert_eq!(written, 77);
    drop((server, process));

    let mut process = child("server drops in a fork", &path);
    process.expect("dropped");
    let mut client = connect(&path, 1);
    assert_quiet(&mut client, "the server lives");
}

#[test]
fn the_end_of_a_socket_is_not_the_end_of_its_process() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut process = child("closes its socket", &path);
    process.expect("ready");
    let seat = opened(&mut server, 1)[0].seat;
    wait_for("the end of the socket", || {
        (server.post_write(&write_wr(seat, 0, 0, 8)) == Err(PostError::Down)).then_some(())
    });
    assert_quiet(&mut server, "the process still has the memory");
    process.close_stdin();
    process.expect("written");
    assert_eq!(
        server.exposed().load(server.geometry().endpoint(0)),
        77,
        "and can write"
    );
    assert_quiet(&mut server, "and still has");
    process.kill();
    assert_eq!(gone(&mut server, 1), [seat]);
}

#[test]
fn a_stopped_client_delays_nobody_and_can_be_closed() {
    let (_dir, path) = place();
    let mut server = serve(&path, 8);
    let mut process = child("client", &path);
    process.expect("ready");
    let stopped = opened(&mut server, 2);
    process.signal(Signal::STOP);
    assert!(revoke(&mut server, stopped[0].seat, 5), "without its help");
    server
        .post_write(&write_wr(stopped[0].seat, 0, stopped[0].ring_at, LINE))
        .unwrap();
    for _ in 0..3 {
        drop(connect(&path, 1));
        opened(&mut server, 1);
        gone_and_released(&mut server, 1);
    }
    assert_eq!(server.poll_event(), None, "stopped is not gone");
    server.close(stopped[1].seat);
    server.close(stopped[0].seat);
    gone_and_released(&mut server, 2);
    assert_eq!(server.counters().seats_free, 8);
    process.signal(Signal::CONT);
}

#[test]
fn a_revocation_stops_a_writing_process() {
    let (_dir, path) = place();
    let mut server = serve(&path, 1);
    let mut process = child("writer", &path);
    process.expect("ready");
    let seat = opened(&mut server, 1)[0].seat;
    wait_for("the revocation", || {
        (revoke(&mut server, seat, 1)).then_some(())
    });
    let end = server.geometry().block_end(0, 0, 0);
    // From here on nothing is written, not even what was under way.
    fill(server.exposed(), end - LINE, LINE, 500);
    process.expect("stopped by Revoked");
    assert_eq!(server.exposed().load(end - LINE), 500);
    assert_eq!(
        words(server.exposed(), end - LINE, LINE),
        (500..508).collect::<Vec<_>>()
    );
}

#[test]
fn a_write_under_way_holds_up_the_end_of_its_link() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let raw = RawClient::connect(&path, server.geometry(), 3);
    opened(&mut server, 3);
    let (memory, at) = raw.guard(1);
    memory.store(at, 1);
    assert!(!revoke(&mut server, raw.seats[1], 1));
    assert!(revoke(&mut server, raw.seats[0], 1));
    server.close(raw.seats[0]);
    assert_quiet(&mut server, "a WRITE is under way");
    memory.store_release(at, 0);
    assert_eq!(gone(&mut server, 3), raw.seats);
    let ended = raw.guard(2);
    assert_eq!(
        ended.0.load(ended.1 + LINE),
        u64::MAX,
        "all its connections have ended"
    );
}

#[test]
fn a_closed_client_writes_no_more_and_learns_of_it() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut client = connect(&path, 2);
    let seats = opened(&mut server, 2);
    let endpoint = client.geometry().endpoint(seats[1].seat);
    client.private().store(0, 1);
    client.post_write(&write_wr(1, 0, endpoint, 8)).unwrap();
    server.close(seats[0].seat);
    assert_eq!(gone(&mut server, 2).len(), 2);
    client.private().store(0, 2);
    assert_eq!(
        client.post_write(&write_wr(1, 0, endpoint, 8)),
        Err(PostError::Down)
    );
    assert_eq!(server.exposed().load(endpoint), 1);
    assert_eq!(gone(&mut client, 2), [0, 1]);
    assert_eq!(client.poll_event(), None);
    seats.iter().for_each(|opened| server.release(opened.seat));
    // The same client comes back.
    let client = connect(&path, 4);
    assert_eq!(opened(&mut server, 4).len(), 4);
    drop(client);
}

#[test]
fn a_client_that_closes_one_connection_sees_all_of_them_go() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut client = connect(&path, 2);
    opened(&mut server, 2);
    client.close(1);
    assert_eq!(
        client.post_write(&write_wr(0, 0, 0, 8)),
        Err(PostError::Down)
    );
    let seats = gone(&mut server, 2);
    assert_quiet(&mut client, "the server has not let go yet");
    seats.iter().for_each(|&seat| server.release(seat));
    assert_eq!(gone(&mut client, 2), [0, 1]);
}

#[test]
fn clients_see_a_server_end() {
    let (_dir, path) = place();
    let server = serve(&path, 4);
    let mut clients = [connect(&path, 1), connect(&path, 2)];
    clients
        .iter_mut()
        .for_each(|client| assert_eq!(client.poll_event(), None));
    drop(server);
    assert_eq!(gone(&mut clients[0], 1), [0]);
    assert_eq!(gone(&mut clients[1], 2), [0, 1]);
    assert_eq!(
        clients[0].post_write(&write_wr(0, 0, 0, 8)),
        Err(PostError::Down)
    );
}

#[test]
fn clients_see_a_server_being_killed_and_can_still_touch_its_memory() {
    let (_dir, path) = place();
    let mut process = child("server", &path);
    process.expect("ready");
    let mut client = connect(&path, 2);
    assert_eq!(client.poll_event(), None);
    process.signal(Signal::STOP);
    client.post_write(&write_wr(0, 0, 0, 8)).unwrap();
    assert_eq!(client.poll_event(), None, "stopped is not gone");
    process.kill();
    client.post_write(&write_wr(0, 0, 0, 8)).unwrap();
    assert_eq!(gone(&mut client, 2), [0, 1]);
}

#[test]
fn many_clients_connect_at_once() {
    let (_dir, path) = place();
    let mut server = serve(&path, 240 + 8);
    let threads: Vec<_> = (0..240)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || connect(&path, 1))
        })
        .collect();
    let seats: std::collections::HashSet<u32> = opened(&mut server, 240)
        .iter()
        .map(|opened| opened.seat)
        .collect();
    assert_eq!(seats.len(), 240);
    let clients: Vec<ShmClient> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let connected: std::collections::HashSet<u32> =
        clients.iter().map(|client| client.seat(0)).collect();
    assert_eq!(connected, seats);
    assert_eq!(server.counters().links_open, 240);
}

#[test]
fn more_clients_than_seats_either_connect_or_are_told() {
    let (_dir, path) = place();
    let mut server = serve(&path, 100);
    let clients: Vec<ShmClient> = (0..100).map(|_| connect(&path, 1)).collect();
    opened(&mut server, 100);
    let threads: Vec<_> = (0..32)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || ShmClient::connect(&path, 1, client_options()).err())
        })
        .collect();
    for thread in threads {
        let error = thread.join().unwrap();
        assert!(
            matches!(error, Some(SetupError::Busy { free: 0, .. })),
            "{error:?}"
        );
    }
    let report = server.memory_report();
    drop(clients);
    gone_and_released(&mut server, 100);
    assert_eq!(server.counters().seats_free, 100);
    let _again = connect(&path, 100);
    assert_eq!(server.memory_report().exposed_bytes, report.exposed_bytes);
}

#[test]
fn one_link_carries_thousands_of_connections() {
    let (_dir, path) = place();
    let geometry = geometry(3000);
    let mut server = ShmServer::listen(&path, geometry, server_options()).unwrap();
    let client = connect(&path, 2999);
    let opened = opened(&mut server, 2999);
    for (connection, opened) in (0..).zip(&opened) {
        assert_eq!(
            (opened.seat, opened.owner),
            (client.seat(connection), client.owner(connection))
        );
    }
    drop(client);
    gone_and_released(&mut server, 2999);
    assert_eq!(server.counters().seats_free, 3000);
}

#[test]
fn the_number_of_links_is_bounded() {
    let (_dir, path) = place();
    let options = scalerpc_driver::shm::ServerOptions {
        links_max: 2,
        ..server_options()
    };
    let mut server = ShmServer::listen(&path, geometry(8), options).unwrap();
    let first = connect(&path, 1);
    let _second = connect(&path, 1);
    let error = ShmClient::connect(&path, 1, client_options()).unwrap_err();
    assert!(
        matches!(error, SetupError::TooManyLinks { max: 2, .. }),
        "{error}"
    );
    drop(first);
    opened(&mut server, 2);
    gone_and_released(&mut server, 1);
    let _third = wait_for("a free link", || {
        ShmClient::connect(&path, 1, client_options()).ok()
    });
}
