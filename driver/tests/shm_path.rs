//! Who owns a path, and what errors say.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use rustix::process::Signal;
use scalerpc_driver::Fabric;
use scalerpc_driver::shm::{SetupError, ShmClient, ShmServer};
use shm_common::*;

/// Not a test of its own: plays a role in a child process, if there is one to play.
#[test]
fn child_process() {
    let Some((role, path)) = role() else { return };
    match role.as_str() {
        "server" => {
            let _server = serve(&path, 4);
            say("ready");
            sleep_forever();
        }
        // Starts when told, so that many do at once.
        "racer" => {
            say("ready");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            let server = ShmServer::listen(&path, geometry(4), server_options());
            match &server {
                Ok(_) => say("outcome won"),
                Err(SetupError::AlreadyInUse { .. }) => say("outcome lost"),
                Err(error) => say(&format!("outcome {error}")),
            }
            sleep_forever();
        }
        _ => panic!("no such role: {role}"),
    }
}

fn listen(path: &Path) -> Result<ShmServer, SetupError> {
    ShmServer::listen(path, geometry(4), server_options())
}

#[test]
fn a_second_server_is_told_and_the_first_is_undisturbed() {
    let (_dir, path) = place();
    let mut server = serve(&path, 4);
    let mut client = connect(&path, 1);
    for _ in 0..3 {
        let error = listen(&path).unwrap_err();
        assert!(matches!(error, SetupError::AlreadyInUse { .. }), "{error}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    // Even without the lock file, which somebody may have tidied up.
    std::fs::remove_file(path.with_extension("lock")).unwrap();
    let error = listen(&path).unwrap_err();
    assert!(matches!(error, SetupError::AlreadyInUse { .. }), "{error}");
    assert!(path.exists());
    assert_eq!(client.poll_event(), None);
    let _another = connect(&path, 1);
    opened(&mut server, 2);
    assert_eq!(server.counters().violations, 0);
}

#[test]
fn a_dropped_server_leaves_nothing_and_the_path_can_be_used_again() {
    let (dir, path) = place();
    for _ in 0..3 {
        let server = serve(&path, 4);
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        let lock = std::fs::symlink_metadata(path.with_extension("lock")).unwrap();
        assert_eq!(lock.permissions().mode() & 0o777, 0o600);
        drop(server);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_killed_server_s_path_is_taken_over() {
    let (_dir, path) = place();
    for _ in 0..3 {
        let mut process = child("server", &path);
        process.expect("ready");
        process.kill();
        assert!(path.exists(), "a leftover");
        let error = ShmClient::connect(&path, 1, client_options()).unwrap_err();
        assert!(matches!(error, SetupError::NoServer { .. }), "{error}");
        let server = listen(&path).unwrap();
        drop(connect(&path, 1));
        drop(server);
    }
}

#[test]
fn a_stopped_server_keeps_its_path() {
    let (_dir, path) = place();
    let mut process = child("server", &path);
    process.expect("ready");
    process.signal(Signal::STOP);
    let error = listen(&path).unwrap_err();
    assert!(matches!(error, SetupError::AlreadyInUse { .. }), "{error}");
    process.signal(Signal::CONT);
    let _client = connect(&path, 1);
}

#[test]
fn of_many_starters_one_wins() {
    let (_dir, path) = place();
    let mut old = child("server", &path);
    old.expect("ready");
    old.kill();
    let mut racers: Vec<_> = (0..16).map(|_| child("racer", &path)).collect();
    racers.iter_mut().for_each(|racer| racer.expect("ready"));
    racers.iter_mut().for_each(Process::close_stdin);
    let outcomes: Vec<_> = racers
        .iter_mut()
        .map(|racer| racer.line("outcome "))
        .collect();
    assert_eq!(
        outcomes.iter().filter(|outcome| *outcome == "won").count(),
        1,
        "{outcomes:?}"
    );
    assert_eq!(
        outcomes.iter().filter(|outcome| *outcome == "lost").count(),
        15,
        "{outcomes:?}"
    );
    let _client = connect(&path, 1);
}

#[test]
fn starters_and_enders_in_turn_never_share_the_path() {
    let (_dir, path) = place();
    let alive = std::sync::atomic::AtomicU32::new(0);
    let wins = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                use std::sync::atomic::Ordering::SeqCst;
                for _ in 0..100 {
                    match listen(&path) {
                        Ok(server) => {
                            assert_eq!(alive.fetch_add(1, SeqCst), 0, "two at once");
                            assert!(path.exists());
                            wins.fetch_add(1, SeqCst);
                            alive.fetch_sub(1, SeqCst);
                            drop(server);
                        }
                        Err(SetupError::AlreadyInUse { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert!(wins.into_inner() >= 4);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let (_dir, path) = place();
    std::fs::write(&path, "precious").unwrap();
    let error = listen(&path).unwrap_err();
    assert!(matches!(error, SetupError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    assert!(!path.with_extension("lock").exists(), "no lock is left");
    let error = ShmClient::connect(&path, 1, client_options()).unwrap_err();
    assert!(matches!(error, SetupError::NoServer { .. }), "{error}");
    let directory = path.parent().unwrap();
    let error = listen(directory).unwrap_err();
    assert!(matches!(error, SetupError::NotASocket { .. }), "{error}");
    std::fs::remove_file(directory.with_extension("lock")).unwrap_err();
}

#[test]
fn another_program_s_socket_is_left_alone() {
    let (dir, path) = place();
    let stream = UnixListener::bind(&path).unwrap();
    let error = listen(&path).unwrap_err();
    assert!(matches!(error, SetupError::AlreadyInUse { .. }), "{error}");
    let error = ShmClient::connect(&path, 1, client_options()).unwrap_err();
    assert!(matches!(error, SetupError::NoServer { .. }), "{error}");
    stream.local_addr().unwrap();
    let datagram = dir.path().join("d");
    let _datagram = UnixDatagram::bind(&datagram).unwrap();
    let error = listen(&datagram).unwrap_err();
    assert!(matches!(error, SetupError::AlreadyInUse { .. }), "{error}");
}

#[test]
fn a_replaced_socket_file_is_not_removed() {
    let (_dir, path) = place();
    let server = serve(&path, 4);
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    let inode = std::fs::symlink_metadata(&path).unwrap().ino();
    drop(server);
    assert_eq!(std::fs::symlink_metadata(&path).unwrap().ino(), inode);
}

#[test]
fn a_path_that_is_too_long_says_how_long_it_may_be() {
    let (dir, _) = place();
    let base = dir.path().as_os_str().as_bytes().len() + 1;
    let longest = dir.path().join("s".repeat(107 - base));
    let server = listen(&longest).unwrap();
    drop(connect(&longest, 1));
    drop(server);
    let long = dir.path().join("s".repeat(108 - base));
    for error in [
        listen(&long).unwrap_err(),
        ShmClient::connect(&long, 1, client_options()).unwrap_err(),
    ] {
        assert!(
            matches!(
                error,
                SetupError::PathTooLong {
                    bytes: 108,
                    max: 107,
                    ..
                }
            ),
            "{error}"
        );
    }
    let error = listen(Path::new("")).unwrap_err();
    assert!(matches!(error, SetupError::BadRequest { .. }), "{error}");
}

#[test]
fn a_directory_that_cannot_be_written_to_is_named() {
    let (dir, _) = place();
    let missing = dir.path().join("missing/s");
    let error = listen(&missing).unwrap_err();
    assert!(matches!(error, SetupError::NotWritable { .. }), "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
    // Read-only even for root.
    let error = listen(Path::new("/proc/s")).unwrap_err();
    assert!(matches!(error, SetupError::NotWritable { .. }), "{error}");
}

#[test]
fn nobody_listening_says_so() {
    let (_dir, path) = place();
    let error = ShmClient::connect(&path, 1, client_options()).unwrap_err();
    assert!(matches!(error, SetupError::NoServer { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("nobody listens at") && text.contains("start a server"),
        "{text}"
    );
    let error = ShmClient::connect(&path, 0, client_options()).unwrap_err();
    assert!(matches!(error, SetupError::BadRequest { .. }), "{error}");
}
