//! A zone changes hands (rule R4): the former tenant says that it is quiet, and only then the new tenant
//! is told where to write.

use loom::thread;
use scalerpc_core::wire::{Ext, FLAG_ACTIVATE, FLAG_CONTROL, FLAG_SWITCH};
use scalerpc_tests_loom::message::{entry, poll};
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, Step, World, seen};

use super::{RACE, TORN, TRIES};

/// Of the former tenancy.
const EPOCH: u64 = 3;
/// Both tenants write calls of these numbers, which use the same block.
const FORMER_CALL: u64 = 4;
const TENANT_CALL: u64 = 5;

/// How the former tenant says that it is quiet.
#[derive(Clone, Copy)]
enum Quiet {
    /// With a word of its own.
    Word,
    /// With its next endpoint entry, whose first word it is.
    Entry,
}

/// The former tenant: a WRITE late in its tenancy, then the switch event, then the quiet message.
fn former(world: &World, quiet: Quiet) {
    let say = || match quiet {
        Quiet::Word => world.write_quiet(0, EPOCH),
        Quiet::Entry => {
            let staged_at = world.geometry.staging(0);
            world.write_entry(0, &entry(EPOCH, FORMER_CALL, staged_at), 2);
        }
    };
    if world.mutation.skips(Step::SilenceAfterQuiet) {
        if poll(TRIES, || world.response(0, 1)).is_some() {
            say();
        }
        world.write_call(0, FORMER_CALL);
        return;
    }
    world.write_call(0, FORMER_CALL);
    if let Some(event) = poll(TRIES, || world.response(0, 1)) {
        assert_eq!(event.ext.map(|ext| ext.epoch), Some(EPOCH), "torn event");
        say();
    }
}

/// The new tenant writes where the first message tells it to.
fn tenant(world: &World) {
    if let Some(message) = poll(TRIES, || world.response(1, 1)) {
        assert_eq!(
            message.ext.map(|ext| ext.epoch),
            Some(EPOCH + 1),
            "torn event"
        );
        world.write_call(1, TENANT_CALL);
    }
}

fn hand_over(mutation: Mutation, quiet: Quiet) {
    let ext = |epoch| {
        Some(Ext {
            epoch,
            ..Ext::default()
        })
    };
    let world = World::new(1, mutation);
    let server = world.seen_by(Party::Server);
    let (client, newcomer) = (world.seen_by(Party::Client), world.seen_by(Party::Tenant));
    let others = [
        thread::spawn(move || former(&client, quiet)),
        thread::spawn(move || tenant(&newcomer)),
    ];
    server.respond(0, 1, ext(EPOCH), FLAG_SWITCH | FLAG_CONTROL);
    let is_quiet = poll(TRIES, || server.is_quiet(0, EPOCH)).is_some();
    if is_quiet || mutation.skips(Step::QuietBeforeReuse) {
        server.respond(1, 1, ext(EPOCH + 1), FLAG_ACTIVATE);
        if poll(TRIES, || server.call(1, TENANT_CALL)).is_some() {
            seen("the new tenant's call");
        }
    }
    for other in others {
        other.join().expect("the other thread ended");
    }
}

const MUTANTS: &[Mutant] = &[
    Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Entry, RACE),
    Mutant::weaken(Party::Server, Op::StoreRelease, Place::Ring, TORN),
    Mutant::weaken(Party::Client, Op::LoadAcquire, Place::Ring, TORN),
    Mutant::weaken(Party::Tenant, Op::LoadAcquire, Place::Ring, TORN),
    Mutant::weaken(Party::Tenant, Op::StoreRelease, Place::Block, TORN),
    Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Block, TORN),
    Mutant::skip(Step::QuietBeforeReuse, RACE),
    Mutant::skip(Step::SilenceAfterQuiet, RACE),
];

#[test]
fn a_quiet_word_hands_a_zone_over() {
    let mut mutants = MUTANTS.to_vec();
    mutants.push(Mutant::weaken(
        Party::Client,
        Op::StoreRelease,
        Place::Entry,
        RACE,
    ));
    Model {
        name: "quiet word",
        bound: None,
        body: |mutation| hand_over(mutation, Quiet::Word),
        must_see: &["the new tenant's call"],
        mutants: &mutants,
    }
    .check();
}

#[test]
fn an_entry_hands_a_zone_over() {
    let mut mutants = MUTANTS.to_vec();
    // The quiet epoch is the first word of the copy, and stored relaxed: the fence alone orders it.
    mutants.push(Mutant::weaken(
        Party::Client,
        Op::FenceRelease,
        Place::Fence,
        RACE,
    ));
    Model {
        name: "quiet entry",
        bound: None,
        body: |mutation| hand_over(mutation, Quiet::Entry),
        must_see: &["the new tenant's call"],
        mutants: &mutants,
    }
    .check();
}
