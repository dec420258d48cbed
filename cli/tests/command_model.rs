//! `scalerpc model` as a user runs it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod process;

use std::fs;

use process::{Done, run};
use serde_json::Value;

const NOTICE: &str = "a model, not a measurement";

/// The command with few clients, which is quick.
fn model(more: &[&str]) -> Done {
    let done = run([&["model", "--clients", "40,400"], more].concat());
    assert_eq!(done.code(), 0, "{done:?}");
    done
}

/// What one of the `verbs` or `servers` of a NIC reaches with the last number of clients over that with the first.
fn kept(nic: &Value, of: &str, what: &str) -> f64 {
    let all = nic[of].as_array().unwrap();
    let one = all.iter().find(|it| it["what"] == what).unwrap();
    let rates: Vec<f64> = one["reached"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["rate_mops"].as_f64().unwrap())
        .collect();
    assert_eq!(rates.len(), one["clients"].as_array().unwrap().len());
    rates.last().unwrap() / rates.first().unwrap()
}

#[test]
fn tables_fit_a_terminal_and_say_that_it_is_a_model_of_what_and_from_where() {
    let done = model(&[]);
    assert!(done.stdout.starts_with(NOTICE), "{done:?}");
    for line in done.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for part in [
        "outbound WRITE",
        "static RC",
        "small cache, like a ConnectX-3",
        "large cache, like a ConnectX-5",
        "NIC cache, KiB",
        "fitted",
        "published",
        "EuroSys 2019",
    ] {
        assert!(done.stdout.contains(part), "{part} is not in {done:?}");
    }
}

#[test]
fn the_data_and_three_figures_are_written_and_each_says_that_it_is_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new");
    let done = model(&["--json", "--nic", "small", "--out", out.to_str().unwrap()]);
    let json = done.json();
    let written = fs::read(out.join("model.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), json);
    for name in ["verbs", "pcie", "calls"] {
        let svg = fs::read_to_string(out.join(format!("model-{name}.svg"))).unwrap();
        assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains(NOTICE), "{svg}");
    }
    assert_eq!(json["notice"].as_str().unwrap().find(NOTICE), Some(0));
    let nics = json["nics"].as_array().unwrap();
    assert_eq!(nics.len(), 1, "{json}");
    assert!(kept(&nics[0], "verbs", "outbound WRITE") < 0.2, "{json}");
    assert_eq!(kept(&nics[0], "verbs", "UD SEND"), 1.0, "{json}");
    assert!(kept(&nics[0], "servers", "static RC") < 0.2, "{json}");
    assert!(kept(&nics[0], "servers", "ScaleRPC") > 0.7, "{json}");
    assert!(!json["parameters"].as_array().unwrap().is_empty());
    assert!(!json["published"].as_array().unwrap().is_empty());
}

#[test]
fn options_reach_the_model() {
    let kept = |more: &[&str]| {
        let json = model(&[&["--json", "--nic", "small"], more].concat()).json();
        kept(&json["nics"][0], "servers", "ScaleRPC")
    };
    // A group of 400 is all of them, so that it is as if each had a zone of its own.
    assert!(kept(&["--group", "400"]) < 0.2);
    // So short are the slices that switches take most of the time.
    assert!(kept(&["--slice-us", "10"]) < 0.5);
}

#[test]
fn what_cannot_be_is_named() {
    for (args, said) in [
        (&["--clients", "40"][..], "two numbers"),
        (&["--clients", "400,40"], "40 is not above"),
        (&["--clients", "0,40"], "'0' is not a number from 1"),
        (&["--nic", "medium"], "--nic"),
        (&["--group", "0"], "--group"),
        (&["--slice-us", "0"], "--slice-us"),
        (&["--threads", "many"], "--threads"),
        (&["--window", "0"], "--window"),
    ] {
        run([&["model"], args].concat()).fails(2, &[said]);
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named_and_the_tables_are_there_all_the_same() {
    let args = [
        "model",
        "--clients",
        "1,2",
        "--nic",
        "small",
        "--out",
        "/proc/none",
    ];
    let done = run(args);
    assert_eq!(done.code(), 1, "{done:?}");
    assert!(done.stderr.contains("--out /proc/none: "), "{done:?}");
    assert!(done.stdout.starts_with(NOTICE), "{done:?}");
}
