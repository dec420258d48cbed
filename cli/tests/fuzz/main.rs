//! What the fuzzing targets of the metadata server run, as plain tests: on the inputs of their corpora,
//! and on inputs that proptest makes up.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bodies;
mod corpus;

use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn requests_replay_their_corpus() {
    corpus::replay("meta_request", bodies::request);
}

#[test]
fn responses_replay_their_corpus() {
    corpus::replay("meta_response", bodies::response);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn hold_for_made_up_inputs(input in vec(any::<u8>(), 0..400)) {
        bodies::request(&input);
        bodies::response(&input);
    }
}
