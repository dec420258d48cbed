//! Seeds that every test run plays.

use scalerpc_sim::marks::SEEDS_FOR_MARKS;

#[test]
fn every_rule_holds_in_300_seeds_and_every_path_is_taken() {
    let jobs = std::thread::available_parallelism().map_or(1, |it| it.get());
    let played = scalerpc_sim::play(0, SEEDS_FOR_MARKS, jobs, None);
    let played = played.unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(played.seeds, SEEDS_FOR_MARKS);
    // A run in which something never happens shows nothing about it.
    let missing: Vec<_> = played.marks.missing().collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| scalerpc_sim::run_seed(seed, false).map(|report| format!("{report:?}"));
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
