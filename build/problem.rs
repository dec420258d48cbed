//! What a build of the bindings can lack. Each problem is one line that says what to install.

use std::fmt;
use std::path::PathBuf;

/// The folder with `infiniband/verbs.h`, instead of what pkg-config says: for cross builds, and to build
/// with the headers of another rdma-core.
pub const INCLUDE_DIR: &str = "SCALERPC_SYS_INCLUDE_DIR";

/// Why the bindings could not be written.
#[derive(Debug)]
pub enum Problem {
    /// The program pkg-config is missing.
    NoPkgConfig(String),
    /// pkg-config does not know libibverbs, or an older one.
    NoLibibverbs(String),
    /// The folder that the environment names has no header.
    NoHeader(PathBuf),
    /// There is no libclang.
    NoLibclang(String),
    /// libclang could not make sense of the headers.
    Clang(String),
    /// Anything else: a file that cannot be written, a variable that Cargo did not set.
    Other(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, remedy, cause) = match self {
            Self::NoPkgConfig(cause) => (
                "pkg-config, which finds the headers of libibverbs, could not be run",
                format!("{}, or set {INCLUDE_DIR}", install("pkg-config", "pkgconf")),
                cause,
            ),
            Self::NoLibibverbs(cause) => (
                "pkg-config found no headers of libibverbs, of rdma-core 28 or newer",
                format!(
                    "{}, or set {INCLUDE_DIR}",
                    install("libibverbs-dev", "rdma-core-devel")
                ),
                cause,
            ),
            Self::NoHeader(dir) => (
                "infiniband/verbs.h is missing",
                format!(
                    "correct {INCLUDE_DIR}, or unset it and {}",
                    install("libibverbs-dev pkg-config", "rdma-core-devel pkgconf")
                ),
                &format!("looked in {}", dir.display()),
            ),
            Self::NoLibclang(cause) => (
                "libclang, which reads the headers of libibverbs, was not found",
                format!(
                    "{}, or set LIBCLANG_PATH to its folder",
                    install("libclang-dev", "clang-devel")
                ),
                cause,
            ),
            Self::Clang(cause) => (
                "libclang could not read infiniband/verbs.h",
                format!(
                    "{}; in a cross build give the target's sysroot in BINDGEN_EXTRA_CLANG_ARGS",
                    install("libclang-dev libc6-dev", "clang-devel glibc-devel")
                ),
                cause,
            ),
            Self::Other(cause) => (
                "the bindings to libibverbs could not be written",
                "see the cause".to_owned(),
                cause,
            ),
        };
        write!(f, "{what}: {remedy} ({})", one_line(cause))
    }
}

/// The commands that install a package, on the systems that users have.
fn install(debian: &str, fedora: &str) -> String {
    format!("run `apt-get install {debian}` on Debian or Ubuntu, `dnf install {fedora}` on Fedora")
}

/// Cargo takes a message up to the end of its line, and what tools say has many lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
