//! `scalerpc serve`, `call` and `bench`: separate processes at one socket.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod process;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use process::{Done, Place, Running, call, command, eventually, is_alive, number};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, listen, recv,
    send, socket,
};
use rustix::process::Signal;

fn bench(socket: &Path, args: &[&str]) -> Running {
    let mut command = command(["bench", "--json", "--socket"]);
    command.arg(socket).args(args);
    Running::start(command)
}

fn serve(socket: &Path, tree: &Path) -> Done {
    let mut command = command(["serve", "--socket"]);
    command.arg(socket).arg("--tree").arg(tree);
    Running::start(command).wait()
}

#[test]
fn calls_get_the_answers_of_the_tree() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &["--json"]);

    let done = call(&socket, ["stat", "a/file-7"]);
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(
        done.stdout.contains("kind      file") && done.stdout.contains("7 bytes"),
        "{done:?}"
    );
    let json = call(&socket, ["--json", "stat", "/a//./file-7"]).json();
    assert_eq!(number(&json, "size"), 7, "a path needs no normal form");

    // All pages of it.
    let json = call(&socket, ["--json", "readdir", "c"]).json();
    assert_eq!(json["entries"].as_array().unwrap().len(), 320);
    let done = call(&socket, ["readdir", "/"]);
    assert_eq!(done.stdout, "d a\nd c\nd empty\n");
    assert_eq!(call(&socket, ["readdir", "empty"]).stdout, "");

    call(&socket, ["stat", "new"]).fails(1, &["stat /new: not found"]);
    assert_eq!(call(&socket, ["mknod", "new"]).code(), 0);
    call(&socket, ["mknod", "new"]).fails(1, &["mknod /new: exists"]);
    assert_eq!(call(&socket, ["stat", "new"]).code(), 0);
    assert_eq!(call(&socket, ["rmnod", "new"]).code(), 0);
    call(&socket, ["rmnod", "new"]).fails(1, &["not found"]);
    call(&socket, ["rmnod", "a"]).fails(1, &["is a directory"]);
    call(&socket, ["readdir", "a/file-7"]).fails(1, &["not a directory"]);
    call(&socket, ["stat", "a/file-7/x"]).fails(1, &["not a directory"]);
    call(&socket, ["stat", "../etc"]).fails(1, &["bad request"]);

    server.signal(Signal::TERM);
    let done = server.wait();
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(number(&done.json(), "calls") > 10, "{done:?}");
}

#[test]
fn methods_and_requests_that_cannot_be() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &[]);
    call(&socket, ["open", "a"]).fails(2, &["no method 'open'", "stat, readdir, mknod or rmnod"]);
    call(&socket, ["stat"]).fails(2, &["a PATH is missing"]);
    call(&socket, ["stat", "a", "--text", "b"]).fails(2, &["takes a PATH"]);
    call(&socket, ["5", "a"]).fails(2, &["--hex or --text"]);
    call(&socket, ["5", "--hex", "abc"]).fails(2, &["--hex abc"]);
    call(&socket, ["65536"]).fails(2, &["0 to 65535"]);
    call(&socket, ["77", "--text", "hello"]).fails(1, &["method 77", "no such method", "1 (stat)"]);
    let long = "x/".repeat(600);
    call(&socket, ["stat", &long]).fails(2, &["too long", "512 bytes"]);
    call(&socket, ["1", "--text", &long]).fails(2, &["larger than the 512 bytes"]);
    // The server takes it, and says what it thinks of it.
    let done = call(&socket, ["1", "--hex", "ff"]);
    assert_eq!((done.code(), &*done.stdout), (0, "1 bytes\n06\n"));
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), 0);
}

#[test]
fn a_load_on_a_server_and_its_clean_end() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &["--json", "--group", "4"]);
    for _ in 0..2 {
        let done = bench(&socket, &["--clients", "30", "--seconds", "0.6"]).wait();
        assert_eq!(done.code(), 0, "{done:?}");
        let json = done.json();
        assert_eq!(
            number(&json, "wrong_answers") + number(&json, "errors"),
            0,
            "{json}"
        );
        assert!(number(&json, "operations") > 0, "{json}");
        assert_eq!(
            (number(&json, "clients"), number(&json, "processes")),
            (30, 2)
        );
    }
    // What the clients have created is gone.
    assert_eq!(
        call(&socket, ["readdir", "/"]).stdout,
        "d a\nd c\nd empty\n"
    );
    let tree = place.tree();
    let done = bench(
        &socket,
        &["--seconds", "0.3", "--tree", tree.to_str().unwrap()],
    )
    .wait();
    assert_eq!(done.code(), 0, "{done:?}");

    server.signal(Signal::INT);
    let done = server.wait();
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(!socket.exists(), "the socket is removed");
    let json = done.json();
    assert!(number(&json, "switches") > 0, "{json}");
    assert_eq!(number(&json, "violations"), 0, "{json}");
}

#[test]
fn a_load_needs_to_know_what_the_server_must_answer() {
    let place = Place::new();
    let socket = place.path("socket");
    let _server = place.serve(&socket, &[]);
    assert_eq!(call(&socket, ["mknod", "mine"]).code(), 0);
    bench(&socket, &[]).wait().fails(2, &["/mine", "by hand"]);
    assert_eq!(call(&socket, ["rmnod", "mine"]).code(), 0);
    assert_eq!(call(&socket, ["rmnod", "a/file-3"]).code(), 0);
    bench(&socket, &[]).wait().fails(2, &["/a were removed"]);
}

#[test]
fn another_tree_than_the_servers_is_noticed() {
    let place = Place::new();
    let socket = place.path("socket");
    let _server = place.serve(&socket, &[]);
    let other = place.tree().join("a");
    let done = bench(
        &socket,
        &["--seconds", "0.3", "--tree", other.to_str().unwrap()],
    )
    .wait();
    assert_eq!(done.code(), 1, "{done:?}");
    let json = done.json();
    assert!(number(&json, "wrong_answers") > 0, "{json}");
    assert!(!json["examples"].as_array().unwrap().is_empty(), "{json}");
    assert_eq!(
        json["lost_processes"].as_array().unwrap().len(),
        0,
        "{json}"
    );
}

#[test]
fn more_than_a_server_has() {
    let place = Place::new();
    let socket = place.path("socket");
    let _server = place.serve(&socket, &["--clients-max", "4", "--window", "2"]);
    let done = bench(&socket, &["--clients", "5", "--processes", "1"]).wait();
    done.fails(2, &["free seats", "5 were wanted"]);
    bench(&socket, &["--clients", "2", "--window", "4"])
        .wait()
        .fails(2, &["--window 4"]);
    eventually("the seats are free again", || {
        bench(&socket, &["--clients", "4", "--seconds", "0.1"])
            .wait()
            .code()
            == 0
    });
}

#[test]
fn a_path_that_a_live_server_has_is_refused_and_the_server_undisturbed() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &[]);
    serve(&socket, &place.tree()).fails(2, &["in use by a live server", "another path"]);
    assert_eq!(call(&socket, ["stat", "a"]).code(), 0);
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), 0);
}

#[test]
fn a_path_that_a_killed_server_left_is_taken_over() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &[]);
    server.signal(Signal::KILL);
    eventually("it is dead", || !is_alive(server.pid()));
    assert!(socket.exists(), "nobody has removed the socket");
    call(&socket, ["stat", "a"]).fails(2, &["nobody listens at"]);
    let server = place.serve(&socket, &[]);
    assert_eq!(call(&socket, ["stat", "a"]).code(), 0);
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), 0);
}

#[test]
fn paths_that_cannot_be_a_socket() {
    let place = Place::new();
    let tree = place.tree();
    let long = place.path(&"s".repeat(200));
    serve(&long, &tree).fails(2, &["a socket's path has at most"]);
    call(&long, ["stat", "a"]).fails(2, &["a socket's path has at most"]);
    serve(Path::new("/no/such/dir/socket"), &tree).fails(2, &["must exist and be writable"]);
    serve(Path::new("/proc/socket"), &tree).fails(2, &["must exist and be writable"]);
    let file = tree.join("a/file-5");
    serve(&file, &tree).fails(2, &["is not a socket"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"xxxxx", "it was left alone");
    let odd = place
        .path("odd")
        .join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    serve(&odd, &tree).fails(2, &["must exist and be writable"]);
}

#[test]
fn no_server() {
    let place = Place::new();
    let socket = place.path("socket");
    call(&socket, ["stat", "a"]).fails(2, &["nobody listens at", "start a server there"]);
    bench(&socket, &[])
        .wait()
        .fails(2, &["nobody listens at", "start a server there"]);
    let file = place.tree().join("a/file-5");
    call(&file, ["stat", "a"]).fails(2, &["nobody listens at"]);
}

#[test]
fn the_death_of_the_server_ends_a_load_with_errors() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &[]);
    let load = bench(&socket, &["--clients", "12", "--seconds", "100"]);
    load.clients();
    std::thread::sleep(Duration::from_millis(500));
    server.signal(Signal::KILL);
    let done = load.wait();
    assert_eq!(done.code(), 1, "{done:?}");
    let json = done.json();
    assert!(number(&json, "errors") > 0, "{json}");
    assert_eq!(number(&json, "wrong_answers"), 0, "{json}");
    let example = json["examples"][0].as_str().unwrap();
    assert!(example.contains("connection"), "{json}");
    // It has noticed, and did not go on to the end.
    assert!(json["seconds"].as_f64().unwrap() < 50.0, "{json}");
}

/// The first bytes of every packet, in all versions, and what a refusal has after them.
fn refusal(version: u32, reason: u32) -> Vec<u8> {
    const REFUSAL: u32 = 2;
    let mut packet = b"ScaleRPC".to_vec();
    for word in [version, REFUSAL, reason, version] {
        packet.extend(word.to_le_bytes());
    }
    packet
}

#[test]
fn a_server_of_another_version_is_told_apart() {
    let place = Place::new();
    let path = place.path("socket");
    let listener: OwnedFd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    let thread = std::thread::spawn(move || {
        const VERSION_DIFFERS: u32 = 1;
        for packet in [
            refusal(77, VERSION_DIFFERS),
            b"HTTP/1.1 400 Bad Request".to_vec(),
        ] {
            let client = accept(&listener).unwrap();
            recv(&client, &mut [0; 256][..], RecvFlags::empty()).unwrap();
            send(&client, &packet, SendFlags::empty()).unwrap();
        }
    });
    call(&path, ["stat", "a"]).fails(2, &["version 77", "build both from the same release"]);
    call(&path, ["stat", "a"]).fails(2, &["broke the protocol"]);
    thread.join().unwrap();
}

#[test]
fn a_client_of_another_version_is_refused_and_nobody_is_disturbed() {
    let place = Place::new();
    let path = place.path("socket");
    let server = place.serve(&path, &[]);
    let client: OwnedFd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    const HELLO: u32 = 1;
    let mut packet = b"ScaleRPC".to_vec();
    for word in [77, HELLO, 1, 0_u32] {
        packet.extend(word.to_le_bytes());
    }
    send(&client, &packet, SendFlags::empty()).unwrap();
    let mut answer = [0; 256];
    let (len, _) = recv(&client, &mut answer[..], RecvFlags::empty()).unwrap();
    assert!(len >= 24, "a refusal");
    assert_eq!(
        answer[12..20],
        [2, 0, 0, 0, 1, 0, 0, 0],
        "a refusal: the version differs"
    );
    assert_eq!(call(&path, ["stat", "a"]).code(), 0);
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), 0);
}
