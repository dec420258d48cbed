//! Seeds that every test run plays.

use scalerpc_sim::marks::Marks;

#[test]
fn every_rule_holds_in_300_seeds_and_every_path_is_taken() {
    let mut marks = Marks::default();
    for seed in 0..300 {
        let report =
            scalerpc_sim::run_seed(seed, false).unwrap_or_else(|broken| panic!("{broken}"));
        marks.add(&report);
    }
    // A run in which something never happens shows nothing about it.
    let missing: Vec<_> = marks.missing().collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| scalerpc_sim::run_seed(seed, false).map(|report| format!("{report:?}"));
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
