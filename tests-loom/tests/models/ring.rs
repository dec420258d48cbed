//! The response ring: a slot is written anew only after the client has let go of what was in it.

use loom::thread;
use scalerpc_tests_loom::message::poll;
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, Step, World, seen};

use super::{RACE, TORN, TRIES};

/// The server writes positions r and r + slots, which share a slot; the positions in between are left
/// out. The request that comes in between is what makes the second one possible: there is no answer
/// without a call, and no call without a place in the window.
fn wrap_around(mutation: Mutation) {
    let world = World::new(1, mutation);
    let (first, next) = (1, 1 + u64::from(world.geometry.ring_slots()));
    let (client, server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    let other = thread::spawn(move || {
        if mutation.skips(Step::ConsumeBeforeRequest) {
            client.write_call(0, 1);
            poll(TRIES, || client.response(0, first));
            return;
        }
        if poll(TRIES, || client.response(0, first)).is_none() {
            return;
        }
        client.write_call(0, 1);
        if poll(TRIES, || client.response(0, next)).is_some() {
            seen("the slot's second answer");
        }
    });
    server.respond(0, first, None, 0);
    if poll(TRIES, || server.call(0, 1)).is_some() {
        server.respond(0, next, None, 0);
    }
    other.join().expect("the other thread ended");
}

#[test]
fn the_ring_wraps_around() {
    Model {
        name: "ring",
        bound: None,
        body: wrap_around,
        must_see: &["the slot's second answer"],
        mutants: &[
            Mutant::weaken(Party::Server, Op::StoreRelease, Place::Ring, TORN),
            Mutant::weaken(Party::Server, Op::LastWordLast, Place::Ring, TORN),
            Mutant::weaken(Party::Client, Op::LoadAcquire, Place::Ring, TORN),
            Mutant::weaken(Party::Client, Op::StoreRelease, Place::Block, RACE),
            Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Block, RACE),
            Mutant::skip(Step::ConsumeBeforeRequest, RACE),
        ],
    }
    .check();
}
