//! The commands over RDMA. They need two soft-RoCE devices in a network of their own, as `ci/soft-roce-vm` has them:
//! rxe0 at 10.77.0.1 and rxe1 at 10.77.0.2.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const ADDRESS: &str = "10.77.0.1:7471";

fn scalerpc(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scalerpc"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    let output = scalerpc(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    output
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server that is up, and killed with the test.
struct Serving(Child);

impl Serving {
    fn start() -> Self {
        let args = [
            "serve", "--verbs", ADDRESS, "--device", "rxe0", "--tree", "/etc",
        ];
        let mut child = scalerpc(&args).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let up = lines.any(|line| line.unwrap().starts_with("serving at 10.77.0.1:7471"));
        assert!(up, "the server is not up");
        Self(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The numbers of the demo that is documented, in short.
#[test]
#[ignore = "needs soft-RoCE"]
fn a_demo_of_300_connections_has_eight_groups_and_no_wrong_answer() {
    let args = [
        "demo",
        "--verbs",
        "--clients",
        "300",
        "--processes",
        "4",
        "--seconds",
        "2",
        "--tree",
        "/usr/share/doc",
        "--mapping",
        "virtual",
        "--json",
    ];
    let report = json(&run(&args));
    assert_eq!(report["groups"], 8, "{report}");
    assert_eq!(report["wrong_answers"], 0, "{report}");
    assert_eq!(report["errors"], 0, "{report}");
    let switches = report["switches"].as_u64().unwrap();
    let staged = report["staged_calls"].as_u64().unwrap();
    assert!(switches > 8 && staged > 300, "{report}");
}

#[test]
#[ignore = "needs soft-RoCE"]
fn calls_and_a_load_reach_a_server_on_another_device() {
    let server = Serving::start();
    let over = ["--verbs", ADDRESS, "--device", "rxe1"];
    let stat = run(&[&["call"], &over[..], &["--json", "stat", "hostname"]].concat());
    assert_eq!(json(&stat)["kind"], "file");
    let bench = [
        "bench",
        "--clients",
        "40",
        "--seconds",
        "1",
        "--tree",
        "/etc",
        "--json",
    ];
    let report = json(&run(&[&bench[..], &over[..]].concat()));
    assert_eq!(report["wrong_answers"], 0, "{report}");
    drop(server);
    // And nobody is there any more.
    let gone = scalerpc(&[&["call"], &over[..], &["stat", "hostname"]].concat());
    let gone = { gone }.output().unwrap();
    assert_eq!(gone.status.code(), Some(2), "{gone:?}");
}

/// With a device that is not there the ones that are are named.
#[test]
#[ignore = "needs soft-RoCE"]
fn a_device_that_is_not_there_is_an_error_that_names_those_that_are() {
    let output = scalerpc(&["demo", "--verbs", "--device", "mlx5_9"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("mlx5_9") && said.contains("rxe0"), "{said}");
}
