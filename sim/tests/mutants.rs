//! Every deliberate bug of the core breaks a rule, or hides a path. Built with `--cfg scalerpc_mutant` only.
#![cfg(scalerpc_mutant)]

use scalerpc_sim::mutants;

#[test]
fn every_bug_is_noticed() {
    let all = mutants::run(0, "", |caught| println!("{caught}"));
    assert!(all.len() >= 25, "only {} bugs", all.len());
    let escaped: Vec<_> = all.iter().filter(|it| it.why.is_none()).collect();
    assert!(escaped.is_empty(), "not noticed: {escaped:?}");
}
