//! The inputs that are checked in with the fuzzing targets.

use std::path::Path;

/// Runs `body` on every input of a target, in the order of their names.
///
/// The package of this crate has no corpus: there is nothing to do then.
pub fn replay(target: &str, body: fn(&[u8])) {
    let fuzz = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"));
    if !fuzz.exists() {
        println!("{target}: no corpus here, nothing replayed");
        return;
    }
    let folder = fuzz.join("corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|why| panic!("{}: {why}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    for path in &paths {
        // A failing test shows what it printed: the last name is the input.
        println!("{target}: {}", path.display());
        body(&std::fs::read(path).unwrap());
    }
    println!("{target}: {} inputs replayed", paths.len());
}
