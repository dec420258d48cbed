//! `scalerpc demo`: loads of every size, client processes that are killed and stopped.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod process;

use std::process::Stdio;
use std::time::Duration;

use process::{Place, Running, command, eventually, is_alive, number, run, send};
use rustix::process::Signal;
use serde_json::Value;

/// What holds for every report without a fault.
#[track_caller]
fn assert_all_right(json: &Value) {
    assert_eq!(number(json, "wrong_answers"), 0, "{json}");
    assert_eq!(number(json, "errors"), 0, "{json}");
    assert!(number(json, "operations") > 0, "{json}");
    assert_eq!(number(json, "violations"), 0, "{json}");
    // A post to a process that has just died may fail before the server hears of its end.
    let (failures, fenced) = (number(json, "failures"), number(json, "fenced"));
    assert!(failures <= fenced, "{json}");
    let methods = ["stat", "readdir", "mknod", "rmnod"];
    let of = |name: &str| number(json, &format!("per_operation.{name}.operations"));
    assert_eq!(
        methods.map(of).iter().sum::<u64>(),
        number(json, "operations"),
        "{json}"
    );
    let latency = ["p50", "p99", "p999", "max"].map(|q| number(json, &format!("latency_ns.{q}")));
    assert!(latency[0] > 0 && latency.is_sorted(), "{json}");
}

#[test]
fn a_report_has_every_field_and_no_wrong_answer() {
    let place = Place::new();
    let done = place
        .demo(&["--clients", "30", "--processes", "2", "--seconds", "0.4"])
        .wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let json = done.json();
    assert_eq!(
        (number(&json, "clients"), number(&json, "processes")),
        (30, 2)
    );
    assert_eq!(json["mapping"], "virtual");
    assert_eq!(json["static"]["mapping"], "static");
    assert_eq!(json["lost_processes"], Value::Array(vec![]));
    let fields = [
        "groups",
        "throughput_ops",
        "slices",
        "switches",
        "warmup_reads",
        "direct_writes",
        "switch_events_ridden",
        "switch_events_extra",
        "quarantined_zones",
        "fenced",
        "server_bytes.fixed",
        "server_bytes.per_client",
        "page_size",
    ];
    for part in [&json, &json["static"]] {
        assert_all_right(part);
        for field in fields {
            number(part, field);
        }
        assert_eq!(number(part, "fenced"), 0, "{json}");
        // Every call that the clients saw answered was taken by the server, once.
        assert_eq!(number(part, "calls"), number(part, "operations"), "{json}");
        assert!(number(part, "throughput_ops") > 0, "{json}");
    }
    assert!(json["ratio"].as_f64().unwrap() > 0.0, "{json}");
    assert_eq!(number(&json, "groups"), 1, "{json}");
    assert_eq!(number(&json["static"], "warmup_reads"), 0, "{json}");
}

#[test]
fn one_client_is_served_without_any_switch() {
    let place = Place::new();
    let done = place.demo(&["--clients", "1", "--seconds", "0.5"]).wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let json = done.json();
    assert_all_right(&json);
    assert_eq!(number(&json, "processes"), 1);
    assert_eq!(number(&json, "switches"), 0, "{json}");
    assert_eq!(number(&json, "switch_events_extra"), 0, "{json}");
    assert!(
        number(&json, "direct_writes") > number(&json, "staged_calls"),
        "{json}"
    );
}

#[test]
fn four_hundred_clients_are_served_in_ten_groups() {
    let place = Place::new();
    let args = ["--clients", "400", "--processes", "4", "--seconds", "1"];
    let done = place.demo(&args).wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let json = done.json();
    assert_all_right(&json);
    assert_all_right(&json["static"]);
    assert!(number(&json, "groups") >= 10, "{json}");
    assert!(number(&json, "switches") > 0, "{json}");
    assert!(number(&json, "warmup_reads") > 0, "{json}");
    assert!(number(&json, "direct_writes") > 0, "{json}");
    let events = number(&json, "switch_events_ridden") + number(&json, "switch_events_extra");
    assert!(events > 0, "{json}");
}

/// An endpoint line of 64 bytes and a byte of the demand map.
const ENDPOINT_BYTES: u64 = 64 + 1;

#[test]
fn more_clients_cost_an_endpoint_line_and_a_record_each() {
    let place = Place::new();
    let bytes = |clients: &str| {
        let args = [
            "--clients",
            clients,
            "--mapping",
            "virtual",
            "--seconds",
            "0.5",
        ];
        let done = place.demo(&args).wait();
        assert_eq!(done.code(), 0, "{done:?}");
        let json = done.json();
        assert_all_right(&json);
        assert_eq!(json["static"], Value::Null);
        ["fixed", "per_client", "per_group"].map(|part| number(&json["server_bytes"], part))
    };
    let few = bytes("400");
    let many = bytes("2000");
    assert_eq!(few, many);
    let record = many[1] - ENDPOINT_BYTES;
    // A fixed record: some cache lines, and nothing of the size of a block (512 bytes and more).
    assert!((1..=256).contains(&record), "{many:?}");
}

#[test]
fn the_others_go_on_when_a_client_process_is_killed() {
    let place = Place::new();
    let demo = place.demo(&["--clients", "200", "--seconds", "2"]);
    let clients = demo.clients();
    assert_eq!(clients.len(), 4);
    std::thread::sleep(Duration::from_millis(700));
    send(clients[1], Signal::KILL);
    let done = demo.wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let json = done.json();
    let lost = json["lost_processes"].as_array().unwrap();
    assert_eq!(lost.len(), 1, "{json}");
    assert_eq!(lost[0]["pid"], clients[1]);
    assert_eq!(lost[0]["connections"], 50);
    assert!(
        lost[0]["what"].as_str().unwrap().contains("SIGKILL"),
        "{json}"
    );
    for part in [&json, &json["static"]] {
        assert_all_right(part);
        // Each of the servers had all its connections.
        assert_eq!(number(part, "fenced"), 50, "{json}");
        // The rounds after its death are not empty.
        let rounds = part["rounds_ops"].as_array().unwrap();
        assert!(rounds.last().unwrap().as_u64().unwrap() > 0, "{json}");
    }
}

#[test]
fn a_client_process_that_is_stopped_for_a_while_goes_on() {
    let place = Place::new();
    let demo = place.demo(&["--clients", "200", "--seconds", "2.5"]);
    let clients = demo.clients();
    std::thread::sleep(Duration::from_millis(600));
    send(clients[2], Signal::STOP);
    std::thread::sleep(Duration::from_millis(1500));
    send(clients[2], Signal::CONT);
    let done = demo.wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let json = done.json();
    assert_eq!(json["lost_processes"], Value::Array(vec![]), "{json}");
    assert_all_right(&json);
    assert_all_right(&json["static"]);
    assert_eq!(number(&json, "fenced"), 0, "{json}");
}

#[test]
fn a_client_process_that_stays_stopped_is_named_and_ended() {
    let place = Place::new();
    let demo = place.demo(&["--clients", "8", "--seconds", "0.5"]);
    let clients = demo.clients();
    send(clients[0], Signal::STOP);
    let done = demo.wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let json = done.json();
    assert_eq!(json["lost_processes"][0]["pid"], clients[0], "{json}");
    assert!(
        json["lost_processes"][0]["what"]
            .as_str()
            .unwrap()
            .contains("stopped"),
        "{json}"
    );
    assert_eq!(
        number(&json, "wrong_answers") + number(&json, "errors"),
        0,
        "{json}"
    );
    assert!(!is_alive(clients[0]));
}

#[test]
fn a_client_process_that_crashes_is_a_failure() {
    let place = Place::new();
    let demo = place.demo(&["--clients", "8", "--seconds", "1"]);
    let clients = demo.clients();
    send(clients[3], Signal::ABORT);
    let done = demo.wait();
    assert_eq!(done.code(), 1, "{done:?}");
    assert_eq!(done.json()["lost_processes"][0]["pid"], clients[3]);
}

#[test]
fn nobody_is_left_when_all_client_processes_are_killed() {
    let place = Place::new();
    let demo = place.demo(&["--clients", "8", "--processes", "2", "--seconds", "60"]);
    for client in demo.clients() {
        send(client, Signal::KILL);
    }
    let done = demo.wait();
    assert_eq!(done.code(), 0, "{done:?}");
    assert_eq!(done.json()["lost_processes"].as_array().unwrap().len(), 2);
    // It did not go on without them.
    assert!(done.json()["seconds"].as_f64().unwrap() < 30.0, "{done:?}");
}

#[test]
fn an_interrupt_ends_it_with_a_report_of_what_was_done() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let demo = place.demo(&["--clients", "8", "--seconds", "600"]);
        let clients = demo.clients();
        std::thread::sleep(Duration::from_millis(700));
        // A terminal sends it to all of them.
        if signal == Signal::INT {
            clients.iter().for_each(|client| send(*client, signal));
        }
        demo.signal(signal);
        let done = demo.wait();
        assert_eq!(done.code(), 0, "{done:?}");
        let json = done.json();
        assert_eq!(json["interrupted"], true);
        assert_all_right(&json);
        assert_eq!(json["lost_processes"], Value::Array(vec![]), "{json}");
        assert!(!clients.iter().any(|client| is_alive(*client)));
    }
}

#[test]
fn the_client_processes_end_with_the_demo_however_it_ends() {
    let place = Place::new();
    let demo = place.demo(&["--clients", "8", "--seconds", "600"]);
    let clients = demo.clients();
    assert!(clients.iter().all(|client| is_alive(*client)));
    demo.signal(Signal::KILL);
    eventually("all client processes end", || {
        !clients.iter().any(|client| is_alive(*client))
    });
}

#[test]
fn it_leaves_no_file_behind_even_when_it_is_killed() {
    let place = Place::new();
    let tmp = place.path("tmp");
    std::fs::create_dir(&tmp).unwrap();
    let mut command = command(["demo", "--clients", "4", "--seconds", "600", "--tree"]);
    command.arg(place.tree()).env("TMPDIR", &tmp);
    let demo = Running::start(command);
    demo.clients();
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
    demo.signal(Signal::KILL);
}

#[test]
fn an_empty_tree_is_a_tree() {
    let place = Place::new();
    let empty = place.path("nothing");
    std::fs::create_dir(&empty).unwrap();
    let args = [
        "demo",
        "--json",
        "--clients",
        "8",
        "--seconds",
        "0.3",
        "--tree",
    ];
    let mut command = command(args);
    command.arg(&empty);
    let done = Running::start(command).wait();
    assert_eq!(done.code(), 0, "{done:?}");
    assert_all_right(&done.json());
    assert_eq!(number(&done.json(), "tree.entries"), 1);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let place = Place::new();
    for close_at_once in [true, false] {
        let mut command = command(["demo", "--clients", "4", "--seconds", "0.3", "--tree"]);
        command
            .arg(place.tree())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        if !close_at_once {
            let mut some = [0; 4];
            std::io::Read::read_exact(&mut stdout, &mut some).unwrap();
            assert_eq!(&some, b"tree");
        }
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(
            !stderr.contains("panicked") && !stderr.contains("Broken pipe"),
            "{stderr}"
        );
    }
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let place = Place::new();
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = command(["demo", "--clients", "4", "--seconds", "0.3", "--tree"]);
    command
        .arg(place.tree())
        .stdout(full)
        .stderr(Stdio::piped());
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("could not be written"), "{stderr}");
}

#[test]
fn tables_fit_a_terminal() {
    let place = Place::new();
    let tree = place.tree();
    let args = [
        "demo",
        "--clients",
        "80",
        "--seconds",
        "0.5",
        "--tree",
        tree.to_str().unwrap(),
    ];
    let done = run(args);
    assert_eq!(done.code(), 0, "{done:?}");
    for line in done.stdout.lines() {
        let is_path = line.starts_with("tree ");
        assert!(
            line.chars().count() <= 80 || is_path,
            "{line:?} in {done:?}"
        );
    }
    for part in [
        "virtual mapping",
        "static mapping",
        "context switches",
        " 0 wrong;",
    ] {
        assert!(done.stdout.contains(part), "{part:?} is not in {done:?}");
    }
}
