//! What it is worth that servers keep step, in virtual time: the same on every machine.
#![allow(clippy::unwrap_used)]

use scalerpc_sim::together::{Compared, Costs, LOADS, Load, Mode, compare, run};

const NS: u64 = 4_000_000;

fn load(name: &str) -> Load {
    LOADS.iter().find(|it| it.0 == name).unwrap().1
}

fn compared(name: &str, seed: u64) -> Compared {
    let compared = compare(load(name), Costs::default(), NS, seed).unwrap();
    println!("{name}, seed {seed}: {compared}");
    compared
}

#[test]
fn it_pays_where_groups_take_turns() {
    for seed in [1, 2] {
        let compared = compared("4 groups", seed);
        assert!(compared.gain() > 1_500, "{compared:?}");
        assert!(compared.gain_mixed() > 2_000, "{compared:?}");
    }
    // As in the paper, where a slice is never cut short.
    let compared = compared("4 groups, whole slices", 1);
    assert!(compared.gain() > 5_000, "{compared:?}");
}

#[test]
fn it_costs_little_where_there_is_nothing_to_gain() {
    for name in ["1 group", "4 groups, pause of 300 us"] {
        let compared = compared(name, 1);
        assert!(compared.gain_mixed() > 900, "{name}: {compared:?}");
    }
}

/// Messages about time take 2 to 8 us there and back, so the ends of beats are apart by less.
#[test]
fn beats_end_together() {
    for seed in 1..4 {
        let load = load("4 groups");
        let outcome = run(load, Costs::default(), Mode::Together, 1_000_000, seed).unwrap();
        assert!(outcome.off_ns > 0, "{outcome:?}");
        assert!(outcome.off_ns < 20_000, "{outcome:?}");
        let again = run(load, Costs::default(), Mode::Together, 1_000_000, seed).unwrap();
        assert_eq!(again, outcome, "the same seed gives the same run");
    }
}
