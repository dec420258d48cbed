//! `scalerpc doctor` on whatever machine this is: shared memory works on all of them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod process;

use std::process::Command;

use process::{Done, Running, command, run};
use serde_json::Value;

/// With limits or variables that a shell sets first.
fn after(setup: &str, args: &[&str]) -> Done {
    let mut command = Command::new("sh");
    let script = format!("{setup}; exec \"$0\" \"$@\"");
    command
        .args(["-c", &script, env!("CARGO_BIN_EXE_scalerpc")])
        .args(args);
    Running::start(command).wait()
}

fn findings<'a>(json: &'a Value, section: &str) -> &'a [Value] {
    json[section]["findings"].as_array().unwrap()
}

/// The only finding of this check.
#[track_caller]
fn finding<'a>(json: &'a Value, section: &str, check: &str) -> &'a Value {
    let mut found = findings(json, section)
        .iter()
        .filter(|finding| finding["check"] == check);
    let one = found
        .next()
        .unwrap_or_else(|| panic!("no {check} in {json}"));
    assert!(found.next().is_none(), "{check} twice in {json}");
    one
}

#[track_caller]
fn contains(finding: &Value, field: &str, part: &str) {
    let text = finding[field].as_str().unwrap_or_default();
    assert!(
        text.contains(part),
        "{part:?} is not the {field} of {finding}"
    );
}

#[test]
fn shared_memory_works_everywhere_and_the_text_fits_a_terminal() {
    let done = run(["doctor"]);
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""), "{done:?}");
    assert!(done.stdout.starts_with("Shared memory works\n"), "{done:?}");
    assert!(done.stdout.contains("\nRDMA "), "{done:?}");
    for line in done.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    // What nobody asked for is no failure.
    assert!(!done.stdout.contains("\n  fail"), "{done:?}");
}

#[test]
fn programs_get_the_same_as_people() {
    let json = run(["doctor", "--json"]).json();
    assert_eq!(json["good"], true);
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["shared_memory"]["usable"], true);
    assert_eq!(json["rdma"]["asked_for"], false);
    let text = run(["doctor"]).stdout;
    let mut count = 0;
    for section in ["shared_memory", "rdma"] {
        for finding in findings(&json, section) {
            let (check, level) = (
                finding["check"].as_str().unwrap(),
                finding["level"].as_str().unwrap(),
            );
            assert!(
                text.contains(&format!("\n  {level:<5} {check}")),
                "{finding} is not in {text}"
            );
            assert_ne!(finding["found"], "");
            count += 1;
        }
    }
    let lines = text.lines().filter(|line| {
        ["  ok ", "  warn ", "  fail "]
            .iter()
            .any(|level| line.starts_with(level))
    });
    assert_eq!(lines.count(), count, "{text}");
    for check in [
        "kernel",
        "CPUs",
        "memory",
        "hugepages",
        "processes",
        "files",
        "calls",
    ] {
        finding(&json, "shared_memory", check);
    }
    contains(
        finding(&json, "shared_memory", "calls"),
        "found",
        "were made and answered",
    );
}

#[test]
fn a_machine_with_few_files_is_told_the_limit() {
    let few = after("ulimit -n 500", &["doctor", "--json"]);
    assert_eq!(few.code(), 0);
    let json = few.json();
    let files = finding(&json, "shared_memory", "files");
    assert_eq!(files["level"], "warn");
    contains(files, "found", "500");
    contains(files, "fix", "ulimit -Hn 1024");
    let too_few = after("ulimit -n 40", &["doctor", "--json"]);
    assert_eq!(too_few.code(), 1, "{too_few:?}");
    let json = too_few.json();
    assert_eq!(
        (&json["good"], &json["shared_memory"]["usable"]),
        (&Value::from(false), &Value::from(false))
    );
    assert_eq!(finding(&json, "shared_memory", "files")["level"], "fail");
}

#[test]
fn a_missing_folder_for_sockets_is_a_failure_that_names_the_variable() {
    let done = after("export TMPDIR=/no/such/folder", &["doctor"]);
    assert_eq!(done.code(), 1, "{done:?}");
    assert!(
        done.stdout.starts_with("Shared memory does not work\n"),
        "{done:?}"
    );
    assert!(done.stdout.contains("\n  fail  calls "), "{done:?}");
    assert!(done.stdout.contains(" fix: set TMPDIR"), "{done:?}");
}

#[test]
fn a_device_that_is_not_there_is_asked_for_in_vain() {
    for args in [
        &["--device", "no-such-device"][..],
        &["--device", "no-such-device", "--port", "2"],
    ] {
        let done = run([&["doctor"][..], args].concat());
        assert_eq!(done.code(), 1, "{done:?}");
        assert!(done.stdout.contains("\nRDMA does not work\n"), "{done:?}");
        assert!(done.stdout.contains("\n  fail "), "{done:?}");
        if !cfg!(feature = "verbs") {
            assert!(done.stdout.contains("--features verbs"), "{done:?}");
        }
    }
    let json = run(["doctor", "--json", "--device", "no-such-device"]).json();
    assert_eq!(
        (&json["good"], &json["rdma"]["asked_for"]),
        (&Value::from(false), &Value::from(true))
    );
    assert_eq!(json["shared_memory"]["usable"], true);
}

#[test]
fn without_a_device_the_way_to_one_is_named() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
    {
        return;
    }
    for option in ["--verbs", "--port=1", "--gid-index=3", "--mtu=1024"] {
        let done = run(["doctor", "--json", option]);
        assert_eq!(done.code(), 1, "{option}: {done:?}");
        let json = done.json();
        let kernel = finding(&json, "rdma", "kernel");
        assert_eq!(kernel["level"], "fail");
        contains(kernel, "fix", "mlx5_ib");
        assert_ne!(finding(&json, "rdma", "soft-RoCE")["fix"], Value::Null);
    }
}

#[test]
fn values_that_cannot_be_are_bad_usage() {
    for (option, value, part) in [
        ("--port", "0", "--port"),
        ("--port", "256", "--port"),
        ("--gid-index", "256", "--gid-index"),
        ("--gid-index", "-1", "-1"),
        ("--mtu", "1500", "256, 512, 1024, 2048 or 4096"),
        ("--mtu", "", "--mtu"),
    ] {
        run(["doctor", option, value]).fails(2, &[part]);
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let mut command = command(["doctor"]);
    command.stderr(std::process::Stdio::null());
    let script = format!(
        "{} doctor | true; {} doctor >/dev/full; echo $?",
        command.get_program().to_str().unwrap(),
        command.get_program().to_str().unwrap()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let done = Running::start(shell).wait();
    assert_eq!(done.stdout, "1\n", "{done:?}");
    assert!(done.stderr.contains("standard output"), "{done:?}");
}
