//! The command without a subcommand, as a user runs it. Nothing here is about speed: turns are short, and any machine will do.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SHORT: [&str; 9] = [
    "--patience-s",
    "0",
    "--quick",
    "--rounds",
    "2",
    "--turn-ms",
    "2",
    "--warm-ms",
    "1",
];

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scalerpc-bench"))
        .args(SHORT)
        .args(arguments)
        .output()
        .unwrap()
}

/// `None` on a machine with one processor, where nothing can be measured.
fn json(arguments: &[&str]) -> Option<Value> {
    let done = bench(&[&["--json"], arguments].concat());
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("takes two processors") {
        eprintln!("skipped: {said}");
        return None;
    }
    assert!(done.status.success(), "{done:?}");
    Some(serde_json::from_slice(&done.stdout).unwrap())
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap()
}

fn positive(value: &Value, name: &str) -> f64 {
    let number = value[name].as_f64().unwrap();
    assert!(number > 0.0 && number.is_finite(), "{name} of {value}");
    number
}

/// A program with one line to say.
fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn each_peer_has_a_row_for_each_load_and_goals_are_ratios_of_them() {
    let loads = "32x1x1,32x16x1,32x16x64,4096x16x1";
    let Some(json) = json(&["--peers", "floor,ours,rtrb", "--rows", loads]) else {
        return;
    };
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 4, "{json}");
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(text(row, "peer"), ["floor", "ours", "rtrb"][i % 3]);
        let load = ["size", "window", "connections"].map(|name| row[name].as_u64().unwrap());
        assert_eq!(
            load.map(|it| it.to_string()).join("x"),
            loads.split(',').nth(i / 3).unwrap()
        );
        let rate = positive(row, "rate_ops");
        assert!(
            positive(row, "low_ops") <= rate && rate <= positive(row, "high_ops"),
            "{row}"
        );
        // All calls that are outstanding take that long together.
        let outstanding = (load[1] * load[2]) as f64;
        let product = positive(row, "rtt_ns") * rate / outstanding;
        assert!((product / 1e9 - 1.0).abs() < 1e-9, "{row}");
        positive(row, "of_floor");
    }
    let goals = json["goals"].as_array().unwrap();
    let ids: Vec<&str> = goals.iter().map(|goal| text(goal, "id")).collect();
    assert_eq!(
        ids,
        [
            "round-trip-floor",
            "rate-floor",
            "rate-64-floor",
            "rate-4k-floor"
        ]
    );
    for goal in goals {
        let (value, bound) = (positive(goal, "value"), positive(goal, "goal"));
        let met = match text(goal, "id").starts_with("round-trip") {
            true => value <= bound,
            false => value >= bound,
        };
        assert_eq!(goal["met"].as_bool().unwrap(), met, "{goal}");
    }
    assert_eq!(json["missing"].as_array().unwrap().len(), 0, "{json}");
}

#[test]
fn a_goal_measures_what_it_needs_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let arguments = [
        "--peers",
        "floor,ours",
        "--goal",
        "connections-1000",
        "--out",
        out,
    ];
    let Some(json) = json(&arguments) else {
        return;
    };
    let rows = json["rows"].as_array().unwrap();
    let connections = rows.iter().map(|row| row["connections"].as_u64().unwrap());
    assert_eq!(connections.collect::<Vec<_>>(), [1_000, 40]);
    let goals = json["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 1, "{json}");
    positive(&goals[0], "value");
    let written = fs::read(dir.path().join("peers.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), json);
    // One of both is in the figure, which takes two.
    assert!(!dir.path().join("peers-connections.svg").exists());
}

#[test]
fn figures_are_written_where_there_are_two_loads_to_draw() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let rows = "32x1x1,32x16x1,32x16x8";
    if json(&["--peers", "floor,ours", "--rows", rows, "--out", out]).is_none() {
        return;
    }
    let svg = fs::read_to_string(dir.path().join("peers-connections.svg")).unwrap();
    assert!(
        svg.contains("scalerpc") && svg.trim_end().ends_with("</svg>"),
        "{svg}"
    );
    assert!(!dir.path().join("peers-round-trip.svg").exists());
}

#[test]
fn a_peer_that_is_missing_is_named_and_how_to_get_it_and_the_others_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let programs = dir.path().to_str().unwrap();
    let peers = "floor,ours,ucx,iceoryx2";
    let arguments = [
        "--peers",
        peers,
        "--programs",
        programs,
        "--rows",
        "32x1x1,32x1x2",
    ];
    let Some(json) = json(&arguments) else {
        return;
    };
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{json}");
    let missing = json["missing"].as_array().unwrap();
    let peers: Vec<&str> = missing.iter().map(|it| text(it, "peer")).collect();
    assert_eq!(peers, ["ucx", "iceoryx2"], "{json}");
    assert!(text(&missing[0], "why").contains("get-ucx.sh"), "{json}");
    assert!(text(&missing[1], "why").contains("cargo build"), "{json}");
    for it in missing {
        assert_eq!(it["loads"].as_array().unwrap().len(), 2, "{json}");
    }
}

#[test]
fn a_program_that_says_something_else_is_named_with_its_last_words() {
    let dir = tempfile::tempdir().unwrap();
    let programs = dir.path().to_str().unwrap();
    program(
        &dir.path().join("ucx_am"),
        "echo no such device >&2; exit 1",
    );
    // At first it does what it should.
    let strange = dir.path().join("iceoryx2/release/peer-iceoryx2");
    program(
        &strange,
        "echo ready; read turn; echo 1 1000 0; read turn; echo many; read turn",
    );
    let peers = "floor,ucx,iceoryx2";
    let arguments = ["--peers", peers, "--programs", programs, "--rows", "32x1x1"];
    let Some(json) = json(&arguments) else {
        return;
    };
    assert_eq!(json["rows"].as_array().unwrap().len(), 1, "{json}");
    let missing = json["missing"].as_array().unwrap();
    assert!(
        text(&missing[0], "why").contains("no such device"),
        "{json}"
    );
    assert!(
        text(&missing[1], "why").contains("\"many\" and not how much it did"),
        "{json}"
    );
}

#[test]
fn a_program_is_told_its_load_and_its_turns_and_its_numbers_are_believed() {
    let dir = tempfile::tempdir().unwrap();
    let programs = dir.path().to_str().unwrap();
    let noted = dir.path().join("noted");
    let script = format!(
        "echo \"$*\" > {noted}; echo ready; while read warm time; do echo $warm $time >> {noted}; echo 3 1000 0; done",
        noted = noted.display()
    );
    program(&dir.path().join("ucx_am"), &script);
    let arguments = ["--peers", "ucx", "--programs", programs, "--rows", "64x8x2"];
    let Some(json) = json(&arguments) else {
        return;
    };
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(positive(&rows[0], "rate_ops"), 3e6, "{json}");
    let noted = fs::read_to_string(noted).unwrap();
    let lines: Vec<&str> = noted.lines().collect();
    assert!(lines[0].starts_with("64 8 2 "), "{noted}");
    assert_eq!(lines[1..], ["1000 1000", "250 2000", "250 2000"], "{noted}");
}

#[test]
fn lists_that_cannot_be_are_named() {
    for (arguments, said) in [
        (&["--peers", "floor,ourz"][..], "ourz"),
        (&["--peers", ""], "no peer"),
        (&["--rows", "32x1"], "32x1"),
        (&["--rows", "33x1x1"], "33x1x1"),
        (&["--rows", "32x1x4001"], "4000"),
        (&["--goal", "speed"], "rate-64-ucx"),
        (&["--rounds", "0"], "--rounds"),
        (
            &["--peers", "fabric", "--rows", "32x16x1"],
            "none of these peers",
        ),
    ] {
        let done = bench(arguments);
        assert!(!done.status.success(), "{done:?}");
        let text = String::from_utf8(done.stderr).unwrap();
        assert!(
            text.contains(said) || text.contains("two processors"),
            "{arguments:?}: {text}"
        );
    }
}
