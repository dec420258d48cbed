//! The example of servers that share nothing runs, and its answers are right.
#![allow(clippy::unwrap_used)]

#[path = "../examples/thread_per_core.rs"]
mod example;

#[test]
fn servers_of_all_cores_answer() {
    let dir = tempfile::tempdir().unwrap();
    let counters = example::serve_and_call(dir.path()).unwrap();
    assert!(!counters.is_empty());
    assert!(counters.iter().all(|it| it.calls > 0), "{counters:?}");
    let calls: u64 = counters.iter().map(|it| it.calls).sum();
    assert_eq!(calls, 40_000);
}
