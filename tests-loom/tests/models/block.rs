//! A request block: `valid` is written last, and the next call that uses the block waits for an answer.

use loom::thread;
use scalerpc_core::Memory;
use scalerpc_core::wire::{self, Head, Placement};
use scalerpc_tests_loom::message::{SPAN, head, payload, poll};
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, Step, World, seen};

use super::{RACE, TORN, TRIES};

/// The former tenant, whose messages still lie in the zone.
const FORMER: u64 = 0x1656_67b1_9e37_79f9;

/// What the former tenant left: its own payload, and another method.
fn put_stale(world: &World, at: usize, call: u64) {
    let head = Head {
        tag: 99,
        ..head(call, 0)
    };
    world.server.copy_in(at, &payload(FORMER, call));
    let placement = Placement::InOrder;
    wire::seal(
        &world.server,
        at + SPAN,
        FORMER,
        head,
        None,
        call,
        placement,
    );
}

/// The client sends calls 1 and 2 through the same block, in which call `stale_call` of a former tenant
/// lies; the server never sees anything but whole ones.
fn two_calls(mutation: Mutation, stale_call: u64) {
    let world = World::new(1, mutation);
    let stale_at = world.block_end(stale_call) - SPAN;
    put_stale(&world, stale_at, stale_call);
    let (client, server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    let other = thread::spawn(move || {
        client.write_call(0, 1);
        let answered = poll(TRIES, || client.response(0, 1)).is_some();
        if answered || mutation.skips(Step::AnswerBeforeReuse) {
            client.write_call(0, 2);
        }
    });
    if poll(TRIES, || server.call(0, 1)).is_some() {
        server.respond(0, 1, None, 0);
        if poll(TRIES, || server.call(0, 2)).is_some() {
            seen("call 2");
        }
    }
    other.join().expect("the other thread ended");
}

const MUTANTS: &[Mutant] = &[
    Mutant::weaken(Party::Client, Op::StoreRelease, Place::Block, TORN),
    Mutant::weaken(Party::Client, Op::LastWordLast, Place::Block, TORN),
    Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Block, TORN),
    Mutant::weaken(Party::Server, Op::StoreRelease, Place::Ring, RACE),
    Mutant::weaken(Party::Client, Op::LoadAcquire, Place::Ring, RACE),
    Mutant::skip(Step::AnswerBeforeReuse, RACE),
];

#[test]
fn calls_through_one_block() {
    Model {
        name: "block",
        bound: None,
        body: |mutation| two_calls(mutation, 3),
        must_see: &["call 2"],
        mutants: MUTANTS,
    }
    .check();
}

/// The former tenant's message in the block has the number of the call that is awaited.
#[test]
fn a_former_tenant_used_the_same_number() {
    Model {
        name: "block, same number",
        bound: None,
        body: |mutation| two_calls(mutation, 1),
        must_see: &["call 2"],
        mutants: MUTANTS,
    }
    .check();
}
