//! Seeds that every test run plays.
// Clippy knows tests by their attribute, and not the helpers between them.
#![allow(clippy::panic)]

use scalerpc_sim::Cast;
use scalerpc_sim::team::same_answers;

fn play(cast: Cast) {
    let jobs = std::thread::available_parallelism().map_or(1, |it| it.get());
    let played = scalerpc_sim::play(cast, 0, cast.seeds_for_marks(), jobs, None);
    let played = played.unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(played.seeds, cast.seeds_for_marks());
    // A run in which something never happens shows nothing about it.
    let missing: Vec<_> = played.marks.missing().collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
}

#[test]
fn every_rule_holds_in_300_seeds_and_every_path_is_taken() {
    play(Cast::One);
}

#[test]
fn every_rule_holds_in_120_seeds_of_teams_and_every_path_is_taken() {
    play(Cast::Team);
}

/// A connection cannot tell how many workers there are.
#[test]
fn several_workers_answer_as_one_engine_does() {
    for seed in 0..30 {
        same_answers(seed).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for cast in [Cast::One, Cast::Team] {
        let run = |seed| cast.run(seed, false).map(|report| format!("{report:?}"));
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
