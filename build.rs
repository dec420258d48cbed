//! Writes the bindings to libibverbs, where the feature `verbs` asks for them.

#[cfg(feature = "verbs")]
#[path = "build/bindings.rs"]
mod bindings;
#[cfg(feature = "verbs")]
#[path = "build/problem.rs"]
mod problem;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rustc-check-cfg=cfg(header_has, values(any()))");

    // An error of Cargo's own kind is one line of its output; a panic would be buried in many.
    #[cfg(feature = "verbs")]
    if let Err(problem) = bindings::write() {
        println!("cargo::error={problem}");
    }
}
