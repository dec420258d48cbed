//! The command as a user runs it. Nothing here is about speed.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scalerpc-bench"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs a command quickly; returns its JSON, which it also wrote beside a figure.
fn quick(name: &str, more: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let done = bench(&[&[name, "--quick", "--json", "--out", out], more].concat());
    assert!(done.status.success(), "{done:?}");
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    let written = fs::read(dir.path().join(format!("{name}.json"))).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), json);
    let svg = fs::read_to_string(dir.path().join(format!("{name}.svg"))).unwrap();
    assert!(svg.trim_end().ends_with("</svg>"));
    json
}

fn is_summary(value: &Value) -> bool {
    let part = |name: &str| value[name].as_f64().unwrap();
    part("low") > 0.0 && part("low") <= part("median") && part("median") <= part("high")
}

#[test]
fn a_quick_sweep_has_a_ratio_for_each_slice_and_group() {
    let json = quick("sweep", &["--clients", "80"]);
    let cells = json["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    assert!(
        cells.iter().all(|cell| is_summary(&cell["ratio"])),
        "{json}"
    );
}

#[test]
fn a_quick_skew_has_a_gain_for_each_load_measured_and_modelled() {
    let json = quick("skew", &["--clients", "80"]);
    let loads = json["loads"].as_array().unwrap();
    assert_eq!(loads.len(), 2);
    for load in loads {
        assert!(is_summary(&load["gain"]), "{json}");
        assert!(load["model_gain"].as_f64().unwrap() > 0.0, "{json}");
    }
}

#[test]
fn a_quick_octopus_has_each_call_measured_modelled_and_published() {
    let json = quick("octopus", &[]);
    let calls = json["calls"].as_array().unwrap();
    let names: Vec<_> = calls
        .iter()
        .map(|it| it["call"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["Stat", "ReadDir", "Mknod"]);
    for call in calls {
        let cells = call["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 2, "{json}");
        for side in ["shm_virtual", "shm_static"] {
            assert!(cells.iter().all(|cell| is_summary(&cell[side])), "{json}");
            assert_eq!(cells[0][side]["median"], 1.0, "{json}");
        }
        // The model is held to what was published, and groups lose nothing.
        let number = |name: &str| cells[1][name].as_f64().unwrap();
        let published = number("published_static");
        assert!((number("model_static") - published).abs() < 0.05, "{json}");
        assert!(number("model_virtual") > 0.9, "{json}");
    }
}

#[test]
fn quick_costs_grow_and_have_a_figure_each() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: there is no valgrind");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let done = bench(&["costs", "--quick", "--json", "--out", out]);
    assert!(done.status.success(), "{done:?}");
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    // A line, two records and a byte at least.
    assert!(json["bytes_per_connection"].as_u64().unwrap() > 64 + 128 + 64);
    let curves = json["curves"].as_array().unwrap();
    assert_eq!(curves.len(), 3);
    for curve in curves {
        assert!(curve["fit"]["each"].as_f64().unwrap() > 0.0, "{json}");
        let name = curve["name"].as_str().unwrap();
        let svg = fs::read_to_string(dir.path().join(format!("{name}.svg"))).unwrap();
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}

#[test]
fn arguments_that_cannot_be_are_named() {
    for (arguments, said) in [
        (&["sweep", "--clients", "1"][..], "--clients"),
        (&["skew", "--calls", "17"], "--calls"),
        (&["skew", "--pause-us", "soon"], "--pause-us"),
        (&["octopus", "--rounds", "1"], "--rounds"),
        (&["swoop"], "swoop"),
    ] {
        let done = bench(arguments);
        assert_eq!(done.status.code(), Some(2));
        let text = String::from_utf8(done.stderr).unwrap();
        assert!(text.contains(said), "{text}");
    }
    let done = bench(&["skew", "--quick", "--clients", "40", "--out", "/proc/none"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        String::from_utf8(done.stderr)
            .unwrap()
            .contains("/proc/none")
    );
}
