//! The instructions of a call, of idle polls and of a switch, beside those of the table in `docs/figures/counts.txt`.
//!
//! They depend on the program alone, so a rise is the change's. Another compiler or profile counts differently: then
//! they are only shown.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_scalerpc-bench");
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/figures/counts.txt");
const ACCEPT: &str = "SCALERPC_ACCEPT=1 cargo test --profile ci -p scalerpc-bench --test counts";
/// The profile that is counted: what a program that uses the library gets by default.
const PROFILE: &str = "ci";
/// A rise above this fails, and a fall below it is worth a new table.
const MAY_CHANGE: f64 = 0.02;

/// What the compiler left in the program about itself, and for which machine.
fn compiler() -> String {
    let program = fs::read(BENCH).unwrap();
    let mark = b"rustc version ";
    let at = program.windows(mark.len()).position(|it| it == mark);
    let at = at.expect("the compiler names itself in the section .comment");
    let name = program[at..].split(|&byte| byte == 0).next().unwrap();
    format!(
        "{}, {}",
        String::from_utf8_lossy(name),
        std::env::consts::ARCH
    )
}

fn counted() -> BTreeMap<String, f64> {
    let done = Command::new(BENCH)
        .args(["counts", "--json"])
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let rows: Vec<Value> = serde_json::from_slice(&done.stdout).unwrap();
    let row = |row: &Value| {
        (
            row["what"].as_str().unwrap().to_owned(),
            row["instructions"].as_f64().unwrap(),
        )
    };
    rows.iter().map(row).collect()
}

fn render(compiler: &str, rows: &BTreeMap<String, f64>) -> String {
    let mut text =
        format!("# Instructions, by Callgrind; accept others with {ACCEPT}\n{compiler}\n");
    for (what, instructions) in rows {
        writeln!(text, "{instructions:>10.1}  {what}").unwrap();
    }
    text
}

/// The compiler of a table, and its rows.
fn parse(text: &str) -> (String, BTreeMap<String, f64>) {
    let mut lines = text.lines().skip(1);
    let compiler = lines.next().unwrap().to_owned();
    let row = |line: &str| {
        let (instructions, what) = line.trim_start().split_once("  ").unwrap();
        (what.to_owned(), instructions.parse().unwrap())
    };
    (compiler, lines.map(row).collect())
}

/// What has become of each row: all changes that are worth a line, and whether one of them is not to be.
fn compare(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>) -> (String, bool) {
    let (mut said, mut worse) = (String::new(), false);
    for (what, &now) in now {
        let Some(&before) = before.get(what) else {
            worse = true;
            writeln!(said, "{now:>10.1}, not in the table: {what}").unwrap();
            continue;
        };
        let change = now / before - 1.0;
        if change.abs() > MAY_CHANGE {
            worse |= change > 0.0;
            let percent = 100.0 * change;
            writeln!(
                said,
                "{now:>10.1} instead of {before:.1}, {percent:+.1} %: {what}"
            )
            .unwrap();
        }
    }
    for what in before.keys().filter(|what| !now.contains_key(*what)) {
        worse = true;
        writeln!(said, "not counted any more: {what}").unwrap();
    }
    (said, worse)
}

#[test]
fn no_count_rises_by_more_than_a_fiftieth_unless_it_is_accepted() {
    if !Path::new(BENCH).parent().unwrap().ends_with(PROFILE) {
        eprintln!("skipped: only the profile {PROFILE} is counted");
        return;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: there is no valgrind");
        return;
    }
    let (compiler, now) = (compiler(), counted());
    if std::env::var_os("SCALERPC_ACCEPT").is_some() {
        fs::write(TABLE, render(&compiler, &now)).unwrap();
        return;
    }
    let (compiler_before, before) = parse(&fs::read_to_string(TABLE).unwrap());
    let (said, worse) = compare(&before, &now);
    println!("{said}");
    if compiler != compiler_before {
        println!("the table is of {compiler_before}, this is {compiler}: not compared");
        return;
    }
    assert!(
        !worse,
        "counts have changed; to accept them:\n  {ACCEPT}\n{said}"
    );
}

#[test]
fn rises_and_missing_rows_are_worse_and_falls_are_told() {
    let table = |rows: &[(&str, f64)]| {
        let rows = rows.iter().map(|&(what, count)| (what.to_owned(), count));
        let text = render("a compiler", &rows.collect());
        let (compiler, rows) = parse(&text);
        assert_eq!(compiler, "a compiler");
        rows
    };
    let before = table(&[("a call: send", 1000.0), ("a poll", 50.0)]);
    assert_eq!(compare(&before, &before), (String::new(), false));
    let (said, worse) = compare(
        &before,
        &table(&[("a call: send", 1021.0), ("a poll", 50.0)]),
    );
    assert!(worse && said.contains("+2.1 %: a call: send"), "{said}");
    let (said, worse) = compare(
        &before,
        &table(&[("a call: send", 1019.0), ("a poll", 40.0)]),
    );
    assert!(
        !worse && said.contains("-20.0 %: a poll") && !said.contains("send"),
        "{said}"
    );
    assert!(compare(&before, &table(&[("a poll", 50.0)])).1);
    let more = table(&[("a call: send", 1000.0), ("a poll", 50.0), ("new", 1.0)]);
    assert!(compare(&before, &more).1);
}
