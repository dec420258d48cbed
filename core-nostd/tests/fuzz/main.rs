//! What the fuzzing targets run, as plain tests: on the inputs of their corpora, and on inputs that
//! proptest makes up.
// Clippy knows tests by their attribute, and not the helpers between them.
#![allow(clippy::panic, clippy::unwrap_used)]

mod bodies;
mod corpus;

use proptest::collection::vec;
use proptest::prelude::*;

/// For each target: its corpus is replayed, and inputs are made up.
macro_rules! targets {
    ($($name:ident: $body:path, $max_bytes:literal;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn replays_its_corpus() {
                corpus::replay(stringify!($name), $body);
            }

            proptest! {
                #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
                #[test]
                fn holds_for_made_up_inputs(input in vec(any::<u8>(), 0..$max_bytes)) {
                    $body(&input);
                }
            }
        }
    )*};
}

targets! {
    observe_message: bodies::observe::message, 400;
    observe_entry: bodies::observe::entry, 100;
    server_engine: bodies::server::run, 1_500;
    client_engine: bodies::client::run, 1_500;
    pair: bodies::pair::run, 1_500;
}
