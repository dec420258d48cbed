//! `--workers`: servers of several threads.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod process;

use process::{Place, Running, call, command, number};
use rustix::process::Signal;

#[test]
fn clients_of_all_workers_see_one_tree() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &["--workers", "3", "--json"]);
    // One connection after the other, each with the next worker: what one creates the others see.
    for number in 0..6 {
        let path = format!("new-{number}");
        assert_eq!(call(&socket, ["mknod", &path]).code(), 0);
        call(&socket, ["mknod", &path]).fails(1, &["exists"]);
        assert_eq!(call(&socket, ["stat", &path]).code(), 0);
    }
    server.signal(Signal::TERM);
    let done = server.wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let json = done.json();
    assert_eq!(number(&json, "workers"), 3);
    assert_eq!(number(&json, "connections_opened"), 18);
    assert!(number(&json, "calls") >= 18, "{json}");
    assert!(!socket.exists());
}

#[test]
fn top_shows_the_worker_that_is_asked_for() {
    let place = Place::new();
    let socket = place.path("socket");
    let _server = place.serve(&socket, &["--workers", "3"]);
    let top = |worker: &str| {
        let mut command = command(["top", "--json", "--count", "1", "--interval", "0.05"]);
        command.args(["--worker", worker, "--socket"]).arg(&socket);
        Running::start(command).wait()
    };
    for worker in ["2", "0", "1"] {
        let done = top(worker);
        assert_eq!(done.code(), 0, "{done:?}");
        let shown = done.json();
        assert_eq!(number(&shown, "server.worker").to_string(), worker);
        assert_eq!(number(&shown, "server.workers"), 3);
    }
    top("3").fails(2, &["there is no worker 3", "has 3"]);
}

#[test]
fn each_worker_is_counted() {
    let place = Place::new();
    let socket = place.path("socket");
    let server = place.serve(&socket, &["--workers", "2", "--group", "8"]);
    let mut bench = command(["bench", "--json", "--clients", "40", "--seconds", "0.5"]);
    bench.arg("--socket").arg(&socket);
    let done = Running::start(bench).wait();
    assert_eq!(done.code(), 0, "{done:?}");
    server.signal(Signal::INT);
    let done = server.wait();
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.stderr.contains("2 workers"), "{done:?}");
    let of_worker = |index: usize| {
        let begin = format!("worker {index} ");
        let line = done.stdout.lines().find(|line| line.starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("{done:?}"));
        let calls = line.split_whitespace().nth(2).unwrap().replace(',', "");
        let connections = line.split_whitespace().nth(5).unwrap();
        (calls.parse().unwrap(), connections.to_owned())
    };
    let workers: [(u64, String); 2] = [of_worker(0), of_worker(1)];
    assert!(workers.iter().all(|(calls, _)| *calls > 0), "{done:?}");
    // The load's, and one that asks what the server is first.
    let mut connections = workers.map(|(_, connections)| connections);
    connections.sort();
    assert_eq!(connections, ["20", "21"]);
}

#[test]
fn a_demo_with_workers_has_no_wrong_answer() {
    let place = Place::new();
    for mapping in ["virtual", "static"] {
        let mut demo = command(["demo", "--json", "--workers", "2", "--group", "10"]);
        demo.args(["--clients", "60", "--processes", "2", "--seconds", "0.5"]);
        demo.args(["--mapping", mapping, "--tree"])
            .arg(place.tree());
        let done = Running::start(demo).wait();
        assert_eq!(done.code(), 0, "{done:?}");
        let json = done.json();
        assert_eq!(number(&json, "workers"), 2);
        assert_eq!(number(&json, "wrong_answers"), 0);
        assert_eq!(number(&json, "errors"), 0);
        assert!(number(&json, "operations") > 0, "{json}");
        // Of all workers together.
        assert_eq!(
            number(&json, "calls"),
            number(&json, "operations"),
            "{json}"
        );
    }
}

#[test]
fn numbers_of_workers_that_cannot_be() {
    let place = Place::new();
    let socket = place.path("socket");
    for workers in ["0", "65", "two"] {
        let mut command = command(["serve", "--workers", workers, "--socket"]);
        command.arg(&socket);
        Running::start(command).wait().fails(2, &["--workers"]);
    }
}
