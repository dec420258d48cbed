//! C, compiled with the headers that the bindings were made from.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The C compiler, told where the headers are.
fn compiler() -> Command {
    let mut command = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    for dir in env::split_paths(env!("VERBS_INCLUDE_PATHS")) {
        if !dir.as_os_str().is_empty() {
            command.arg("-I").arg(dir);
        }
    }
    command
}

/// Compiles `source` to a shared library in `dir`.
pub fn library(dir: &Path, name: &str, source: &str) -> PathBuf {
    let file = dir.join(name).with_extension("c");
    let library = dir.join(name).with_extension("so");
    fs::write(&file, source).unwrap();
    let output = compiler()
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    library
}

/// The headers, as the compiler sees them.
pub fn headers(dir: &Path) -> String {
    let file = dir.join("headers.c");
    fs::write(&file, "#include <infiniband/verbs.h>\n").unwrap();
    let output = compiler().arg("-E").arg(&file).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
