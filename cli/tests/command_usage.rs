//! Bad usage, and what is needed and not there: exit code 2 and a message that helps.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod process;

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use process::{Place, Running, command, number, run};
use rustix::fs::{Mode, OFlags, mkdirat, openat};

#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    run(args).fails(2, parts);
}

#[test]
fn numbers_that_cannot_be() {
    refused(
        &["demo", "--clients", "0"],
        &["--clients 0", "from 1 to 1048576"],
    );
    refused(
        &["demo", "--clients", "1048577"],
        &["--clients 1048577", "from 1 to 1048576"],
    );
    refused(&["demo", "--clients", "-1"], &["-1"]);
    refused(&["demo", "--clients", "many"], &["--clients", "many"]);
    refused(
        &["demo", "--clients", "3", "--processes", "4"],
        &["--processes 4", "fewer processes or more clients"],
    );
    refused(&["demo", "--processes", "0"], &["--processes 0"]);
    refused(
        &["demo", "--processes", "100000", "--clients", "200000"],
        &["--processes 100000"],
    );
    refused(
        &["demo", "--window", "3"],
        &["--window 3", "power of two", "2 or 4"],
    );
    refused(
        &["demo", "--window", "0"],
        &["--window 0", "from 1 to 1024"],
    );
    refused(
        &["demo", "--window", "2048"],
        &["--window 2048", "from 1 to 1024"],
    );
    refused(&["demo", "--group", "0"], &["--group 0"]);
    refused(&["demo", "--group", "4000000000"], &["--group 4000000000"]);
    refused(&["demo", "--slice-us", "0"], &["--slice-us"]);
    for seconds in ["0", "-1", "nan", "inf", "1e9", "soon", ""] {
        refused(&["demo", &format!("--seconds={seconds}")], &["--seconds"]);
    }
    refused(
        &["demo", "--mix", "stat=0"],
        &["--mix", "no method has a weight"],
    );
    refused(
        &["demo", "--mix", "open=1"],
        &["--mix", "stat, readdir, mknod, rmnod"],
    );
    refused(
        &["demo", "--pages", "always"],
        &["--pages", "require, prefer or never"],
    );
    refused(&["demo", "--mapping", "dynamic"], &["--mapping", "virtual"]);
    refused(
        &["serve", "--socket", "s", "--clients-max", "0"],
        &["--clients-max 0"],
    );
    refused(
        &["bench", "--socket", "s", "--clients", "0"],
        &["--clients 0"],
    );
    refused(&["bench", "--socket", "s", "--window", "0"], &["--window"]);
}

#[test]
fn more_memory_than_there_is() {
    let args = [
        "--window",
        "1024",
        "--group",
        "524288",
        "--clients",
        "1048576",
    ];
    refused(
        &[&["demo"], &args[..]].concat(),
        &["of memory would be needed", "choose a smaller"],
    );
    let args = ["--socket", "s", "--window", "1024", "--group", "524288"];
    refused(
        &[&["serve"], &args[..]].concat(),
        &["of memory would be needed", "choose a smaller"],
    );
}

#[test]
fn no_command_and_unknown_ones() {
    refused(&[], &["Usage: scalerpc"]);
    refused(&["frobnicate"], &["frobnicate"]);
    refused(&["serve"], &["--socket"]);
}

#[test]
fn help_says_how_and_names_the_exit_codes() {
    for args in [
        &["--help"][..],
        &["demo", "--help"],
        &["serve", "--help"],
        &["call", "--help"],
        &["doctor", "--help"],
        &["model", "--help"],
    ] {
        let done = run(args);
        assert_eq!(done.code(), 0);
        assert!(done.stdout.contains("Exit codes:"), "{done:?}");
        let has_examples = done.stdout.contains("Examples:") || args.len() == 1;
        assert!(has_examples, "{done:?}");
    }
    assert!(run(["--version"]).stdout.starts_with("scalerpc "));
}

#[test]
fn trees_that_are_none() {
    let place = Place::new();
    let file = place.tree().join("a/file-1");
    refused(
        &["demo", "--tree", "/no/such/tree"],
        &["--tree", "/no/such/tree", "no such directory"],
    );
    refused(
        &["demo", "--tree", file.to_str().unwrap()],
        &["--tree", "file-1", "not a directory"],
    );
    refused(
        &["serve", "--socket", "s", "--tree", "/no/such/tree"],
        &["no such directory"],
    );
    let mut command = command(["demo", "--tree"]);
    command.arg(OsStr::from_bytes(b"/no/caf\xe9"));
    Running::start(command)
        .wait()
        .fails(2, &["--tree", "/no/caf", "no such directory"]);
}

#[test]
fn entries_that_cannot_be_read_are_counted_and_named_and_no_failure() {
    let place = Place::new();
    // So deep that the path of what is below is too long for the system. (Permissions would not do:
    // the super-user reads everything.)
    let name = "d".repeat(200);
    let mut dir = openat(
        rustix::fs::CWD,
        place.tree(),
        OFlags::DIRECTORY | OFlags::RDONLY,
        Mode::empty(),
    )
    .unwrap();
    for _ in 0..25 {
        mkdirat(dir.as_fd(), &name, Mode::RWXU).unwrap();
        dir = openat(
            dir.as_fd(),
            &name,
            OFlags::DIRECTORY | OFlags::RDONLY,
            Mode::empty(),
        )
        .unwrap();
    }
    let done = place.demo(&["--clients", "4", "--seconds", "0.3"]).wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let json = done.json();
    assert!(number(&json, "tree.skipped") >= 1, "{json}");
    assert_eq!(number(&json, "wrong_answers"), 0, "{json}");
    assert!(
        done.stderr.contains("left out") && done.stderr.contains("dddd"),
        "{done:?}"
    );
}

#[test]
fn names_that_are_no_text_are_served() {
    let place = Place::new();
    let odd = place.tree().join(OsStr::from_bytes(b"caf\xe9 \n\x1b[31m"));
    std::fs::create_dir(&odd).unwrap();
    std::fs::write(odd.join(OsStr::from_bytes(b"\xff\xfe")), b"odd").unwrap();
    let done = place.demo(&["--clients", "4", "--seconds", "0.3"]).wait();
    assert_eq!(done.code(), 0, "{done:?}");
    let mut command = command(["demo", "--clients", "4", "--seconds", "0.3", "--tree"]);
    command.arg(&odd);
    let done = Running::start(command).wait();
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.stdout.contains("caf\\xe9 \\n\\u{1b}[31m"), "{done:?}");
}

#[test]
fn hugepages_that_are_demanded_are_used_or_it_says_what_to_run() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free: u64 = free.map_or(0, |free| free.trim().parse().unwrap());
    let place = Place::new();
    let done = place
        .demo(&["--clients", "4", "--seconds", "0.3", "--pages", "require"])
        .wait();
    if free == 0 {
        return done.fails(2, &["hugepages", "0 are free", "vm.nr_hugepages"]);
    }
    // With a few of them either may happen, but no fault.
    match done.code() {
        0 => assert!(number(&done.json(), "page_size") >= 2 << 20),
        _ => done.fails(2, &["hugepages", "are free", "vm.nr_hugepages"]),
    }
}
