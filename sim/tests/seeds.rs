//! Seeds that every test run plays.

use scalerpc_core::server::Counters;

#[test]
fn every_rule_holds_in_300_seeds_and_every_path_is_taken() {
    let mut all = Counters::default();
    let (mut cancelled, mut failed, mut refused) = (0, 0, 0);
    for seed in 0..300 {
        let report = scalerpc_sim::run_seed(seed).unwrap_or_else(|broken| panic!("{broken}"));
        let one = report.counters;
        cancelled += report.cancelled;
        failed += report.failed;
        refused += report.refused;
        for (sum, part) in [
            (&mut all.direct_writes, one.direct_writes),
            (&mut all.staged_calls, one.staged_calls),
            (&mut all.switches, one.switches),
            (&mut all.switch_events_ridden, one.switch_events_ridden),
            (&mut all.switch_events_extra, one.switch_events_extra),
            (&mut all.zones_quiet, one.zones_quiet),
            (&mut all.zones_revoked, one.zones_revoked),
            (&mut all.zones_fenced, one.zones_fenced),
            (&mut all.violations, one.violations),
            (&mut all.failures, one.failures),
            (&mut all.guests, one.guests),
            (&mut all.merges, one.merges),
            (&mut all.stalls, one.stalls),
        ] {
            *sum += part;
        }
    }
    // A run in which something never happens shows nothing about it.
    for (what, times) in [
        ("direct WRITE", all.direct_writes),
        ("staged call", all.staged_calls),
        ("switch", all.switches),
        ("ridden switch event", all.switch_events_ridden),
        ("extra switch event", all.switch_events_extra),
        ("quiet message", all.zones_quiet),
        ("revocation", all.zones_revoked),
        ("fence", all.zones_fenced),
        ("violation", all.violations),
        ("failure", all.failures),
        ("guest", all.guests),
        ("merge", all.merges),
        ("stall", all.stalls),
        ("cancelled call", cancelled),
        ("failed call", failed),
        ("refused WRITE", refused),
    ] {
        assert!(times > 0, "no seed showed a {what}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| scalerpc_sim::run_seed(seed).map(|report| format!("{report:?}"));
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
