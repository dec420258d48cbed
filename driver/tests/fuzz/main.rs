//! What the fuzzing target of the handshake runs, as plain tests: on the inputs of its corpus, and on
//! inputs that proptest makes up.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod corpus;
mod shm;

use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn replays_its_corpus() {
    corpus::replay("handshake", shm::handshake);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn holds_for_made_up_inputs(kind in 0u32..8, body in vec(any::<u8>(), 0..200)) {
        shm::handshake(&body);
        // With a header that is sound.
        let mut packet = b"ScaleRPC\x01\0\0\0".to_vec();
        packet.extend(kind.to_le_bytes());
        packet.extend(body);
        shm::handshake(&packet);
    }
}
