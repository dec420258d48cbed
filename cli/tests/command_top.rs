//! `scalerpc top` at a real server.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod process;

use std::path::Path;

use process::{Place, Running, call, command, eventually, is_alive, number, run};
use rustix::process::Signal;
use serde_json::Value;

fn top(socket: &Path, args: &[&str]) -> Running {
    let mut command = command(["top", "--socket"]);
    command.arg(socket).args(args);
    Running::start(command)
}

fn objects(stdout: &str) -> Vec<Value> {
    let lines = stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn two_objects_say_what_the_server_did_meanwhile() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &["--group", "8", "--clients-max", "64"]);
    let mut load = command(["bench", "--clients", "30", "--seconds", "100", "--socket"]);
    load.arg(&socket);
    let load = Running::start(load);
    load.clients();
    eventually("all are connected", || {
        let done = top(&socket, &["--json", "--count", "1", "--interval", "0.05"]).wait();
        number(&objects(&done.stdout)[0], "counters.connections") > 30
    });
    let done = top(&socket, &["--json", "--count", "2", "--interval", "0.5"]).wait();
    assert_eq!((done.code(), &*done.stderr), (0, ""), "{done:?}");
    let objects = objects(&done.stdout);
    let [first, second] = &objects[..] else {
        panic!("{done:?}");
    };
    for json in [first, second] {
        // The bench itself has a connection to see what is there, and this command one.
        let connections = json["connections"].as_array().unwrap();
        assert_eq!(
            connections.len() as u64,
            number(json, "counters.connections")
        );
        assert!(connections.len() >= 31, "{json}");
        assert_eq!(
            connections.iter().filter(|it| it["this"] == true).count(),
            1
        );
        assert!(json["rates"]["calls"].as_f64().unwrap() > 0.0, "{json}");
        assert!(json["rates"]["switches"].as_f64().unwrap() > 0.0, "{json}");
        assert!(
            number(json, "histograms.slice_ns.recent.count") > 0,
            "{json}"
        );
        assert!(number(json, "histograms.wait_ns.recent.max") > 0, "{json}");
        assert_eq!(number(json, "server.clients_max"), 64);
        assert_eq!(json["pools"].as_array().unwrap().len(), 2);
        let members = json["groups"].as_array().unwrap().iter();
        let members: u64 = members.map(|group| number(group, "members")).sum();
        assert!(members >= 31, "{json}");
    }
    assert!(number(second, "counters.calls") > number(first, "counters.calls"));
    assert!(number(second, "counters.slices") > number(first, "counters.slices"));
    drop(load);
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), 0);
}

#[test]
fn without_a_terminal_it_is_text() {
    let place = Place::new();
    let socket = place.path("socket");
    let _server = place.serve(&socket, &[]);
    let done = top(&socket, &["--count", "2", "--interval", "0.05"]).wait();
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(!done.stdout.contains('\u{1b}'), "no escape codes: {done:?}");
    assert_eq!(done.stdout.matches("scalerpc top  ").count(), 2, "{done:?}");
    assert!(done.stdout.contains("connections 1 of 1,024"), "{done:?}");
    assert!(done.stdout.contains("this 0"), "{done:?}");
}

#[test]
fn the_death_of_the_server_ends_it_with_a_message() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &[]);
    let watching = top(&socket, &["--json", "--interval", "0.1"]);
    // It has a seat before the server is killed.
    eventually("it is connected", || {
        let done = top(&socket, &["--json", "--count", "1", "--interval", "0.05"]).wait();
        number(&objects(&done.stdout)[0], "counters.opened") >= 2
            && number(&objects(&done.stdout)[0], "counters.connections") >= 2
    });
    server.signal(Signal::KILL);
    eventually("it is dead", || !is_alive(server.pid()));
    let done = watching.wait();
    assert_eq!(done.code(), 1, "{done:?}");
    assert!(done.stderr.contains("went away"), "{done:?}");
    assert!(!done.stderr.contains("panicked"), "{done:?}");
    // What was printed is whole.
    objects(&done.stdout);
}

#[test]
fn a_reader_that_has_seen_enough_ends_it() {
    let place = Place::new();
    let socket = place.path("socket");
    let _server = place.serve(&socket, &[]);
    let script = format!(
        "{} top --socket {} --json --interval 0.05 | head -1",
        env!("CARGO_BIN_EXE_scalerpc"),
        socket.display()
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(objects(&String::from_utf8(output.stdout).unwrap()).len(), 1);
}

#[test]
fn what_cannot_be_shown() {
    let place = Place::new();
    let socket = place.path("socket");
    top(&socket, &[])
        .wait()
        .fails(2, &["nobody listens at", "start a server there"]);
    for interval in ["0", "-1", "nan", "1e9", "soon"] {
        let interval = format!("--interval={interval}");
        run(["top", "--socket", "/tmp/x", &interval]).fails(2, &["--interval"]);
    }
    run(["top", "--socket", "/tmp/x", "--count", "0"]).fails(2, &["--count"]);
    run(["top"]).fails(2, &["--socket"]);
    // Methods of the library are not the service's.
    let _server = place.serve(&socket, &[]);
    call(&socket, ["65535"]).fails(1, &["method 65535", "no such method"]);
}
