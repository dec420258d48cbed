//! What is done with an input: the same for the fuzzer, for proptest, and for the corpora.

#[path = "../../common/mod.rs"]
#[allow(dead_code, reason = "the tests of the field cases use the rest")]
mod common;

pub mod client;
mod input;
pub mod observe;
pub mod pair;
mod peer;
pub mod server;

use common::Rig;

/// Zones, lists and send slots add up; of the slots so many belong to calls that were handed out.
fn check_census(rig: &Rig, handed_out: usize) {
    let census = rig.server.census();
    let census = census.unwrap_or_else(|what| panic!("{what}"));
    let slots = census.slots_free + census.slots_held + handed_out as u32;
    assert_eq!(slots, rig.geometry.send_slots(), "send slots do not add up");
}
