//! What a build says when something that it needs is missing.

// The build script's own file: Cargo gives a build script no tests.
#[allow(
    dead_code,
    reason = "the build script makes more of them than one test does"
)]
#[path = "../build/problem.rs"]
mod problem;

use problem::{INCLUDE_DIR, Problem};

#[test]
fn names_what_to_install_in_one_line() {
    let cause = "first\nsecond\r\n\tthird".to_owned();
    let cases = [
        (
            Problem::NoPkgConfig(cause.clone()),
            "apt-get install pkg-config`",
            "dnf install pkgconf`",
        ),
        (
            Problem::NoLibibverbs(cause.clone()),
            "apt-get install libibverbs-dev`",
            "dnf install rdma-core-devel`",
        ),
        (
            Problem::NoHeader("/nowhere".into()),
            "apt-get install libibverbs-dev pkg-config`",
            "dnf install rdma-core-devel pkgconf`",
        ),
        (
            Problem::NoLibclang(cause.clone()),
            "apt-get install libclang-dev`",
            "dnf install clang-devel`",
        ),
        (
            Problem::Clang(cause),
            "apt-get install libclang-dev libc6-dev`",
            "dnf install clang-devel glibc-devel`",
        ),
    ];
    for (problem, debian, fedora) in cases {
        let message = problem.to_string();
        assert!(!message.contains(['\n', '\r', '\t']), "{message:?}");
        assert!(message.contains("Debian or Ubuntu"), "{message}");
        assert!(message.contains(debian), "{message}");
        assert!(message.contains("Fedora"), "{message}");
        assert!(message.contains(fedora), "{message}");
    }
}

#[test]
fn keeps_the_cause_and_names_the_way_around() {
    let message = Problem::NoLibibverbs("first\nsecond".to_owned()).to_string();
    assert!(message.ends_with("(first second)"), "{message}");
    assert!(message.contains(INCLUDE_DIR), "{message}");

    let message = Problem::NoHeader("/nowhere".into()).to_string();
    assert!(message.contains("/nowhere"), "{message}");
    assert!(message.contains(INCLUDE_DIR), "{message}");

    let message = Problem::NoLibclang(String::new()).to_string();
    assert!(message.contains("LIBCLANG_PATH"), "{message}");
}
