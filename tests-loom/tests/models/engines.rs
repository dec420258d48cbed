//! The real engines on both sides: what the other models take apart, put together.

use loom::thread;
use scalerpc_core::server::ServerConfig;
use scalerpc_tests_loom::message::poll;
use scalerpc_tests_loom::rig::{ClientRig, ServerRig, Turn};
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, World, seen};

use super::{RACE, TORN, TRIES};

/// The most of a slice that is charged at once.
const STEP_NS: u64 = 26_000;
/// Idle rounds after which the server gives up on the execution.
const IDLE_ROUNDS: usize = 6;

/// The first call is staged, fetched and answered; the second one goes straight into the same block.
fn two_calls(mutation: Mutation) {
    let world = World::new(1, mutation);
    let mut server = ServerRig::new(world.seen_by(Party::Server), ServerConfig::default());
    let mut client = ClientRig::new(world.seen_by(Party::Client), 0);
    let other = thread::spawn(move || {
        client.call();
        if poll(TRIES, || client.poll()).is_none() {
            return;
        }
        client.call();
        assert_eq!(client.counters().direct_writes, 1, "it is in state Process");
        if poll(TRIES, || client.poll()).is_some() {
            seen("the second answer");
        }
    });
    let mut idle = 0;
    while idle < IDLE_ROUNDS && server.ran(0) < 2 {
        if server.step(1) != Turn::Busy {
            idle += 1;
            thread::yield_now();
        }
    }
    other.join().expect("the other thread ended");
}

#[test]
fn engines_carry_two_calls() {
    Model {
        name: "engines: calls",
        bound: None,
        body: two_calls,
        must_see: &["the second answer"],
        mutants: &[
            Mutant::weaken(Party::Client, Op::StoreRelease, Place::Block, TORN),
            Mutant::weaken(Party::Client, Op::LastWordLast, Place::Block, TORN),
            Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Block, TORN),
            Mutant::weaken(Party::Server, Op::StoreRelease, Place::Ring, TORN),
            Mutant::weaken(Party::Server, Op::LastWordLast, Place::Ring, TORN),
            Mutant::weaken(Party::Client, Op::LoadAcquire, Place::Ring, TORN),
        ],
    }
    .check();
}

/// The former tenant has a zone of pool A; two more clients have demand, of which the second one is to
/// get a zone of pool A too.
fn prepare(world: &World, config: ServerConfig) -> (ServerRig, ClientRig) {
    let mut server = ServerRig::new(world.seen_by(Party::Server), config);
    let mut former = ClientRig::new(world.clone(), 0);
    former.call();
    while server.ran(0) < 1 {
        server.step(1);
    }
    assert!(former.poll().is_some(), "nothing runs at the same time yet");
    for which in 1..3 {
        ClientRig::new(world.clone(), which).call();
    }
    (server, former.seeing(world.seen_by(Party::Client)))
}

/// Runs the server until the third client's call has run. It begins to wait for others after so many
/// idle rounds, so they may find it anywhere in between.
fn serve(mut server: ServerRig, patience: usize) {
    let zone_of = |server: &ServerRig, seat| server.seat(seat).and_then(|(_, zone)| zone);
    let former_zone = zone_of(&server, 0);
    assert!(former_zone.is_some(), "the former tenant has a zone");
    let mut idle = 0;
    while idle < patience + IDLE_ROUNDS && server.ran(2) < 1 {
        let turn = server.step(STEP_NS);
        idle += usize::from(turn != Turn::Busy);
        if turn == Turn::Pending || (turn == Turn::Idle && idle > patience) {
            thread::yield_now();
        }
        if zone_of(&server, 2) == former_zone {
            seen("the zone has a new tenant");
        }
    }
    if server.ran(2) == 1 {
        seen("the new tenant's call");
    }
}

/// The former tenant writes late in its tenancy, and then answers its switch event.
///
/// If its call was taken it answers with the quiet word alone; the server has acquired the call then,
/// so the release of this word has nothing left to order, and is not among the mutants.
fn by_quiet(mutation: Mutation) {
    let world = World::with_clients(3, 1, mutation);
    let config = ServerConfig {
        revoke_after_ns: u64::MAX,
        ..ServerConfig::default()
    };
    let (server, former) = prepare(&world, config);
    let mut former = former.with_light_fences();
    let other = thread::spawn(move || {
        former.call();
        poll(TRIES, || {
            former.poll();
            (former.counters().switch_events > 0).then_some(())
        });
    });
    serve(server, 3);
    other.join().expect("the other thread ended");
}

#[test]
fn engines_hand_a_quiet_zone_over() {
    Model {
        name: "engines: quiet",
        bound: None,
        body: by_quiet,
        must_see: &["the zone has a new tenant", "the new tenant's call"],
        mutants: &[
            Mutant::weaken(Party::Client, Op::FenceRelease, Place::Fence, RACE),
            Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Entry, RACE),
        ],
    }
    .check();
}

/// The former tenant writes late in its tenancy, and is stopped then.
fn by_revocation(mutation: Mutation) {
    let world = World::with_clients(3, 1, mutation);
    let config = ServerConfig {
        revoke_after_ns: 1,
        ..ServerConfig::default()
    };
    let (server, mut former) = prepare(&world, config);
    let other = thread::spawn(move || {
        former.call();
        if former.counters().refused > 0 {
            seen("a refusal");
        }
    });
    serve(server, 20);
    other.join().expect("the other thread ended");
}

#[test]
fn engines_hand_a_revoked_zone_over() {
    Model {
        name: "engines: revocation",
        bound: None,
        body: by_revocation,
        must_see: &[
            "a refusal",
            "the zone has a new tenant",
            "the new tenant's call",
        ],
        mutants: &[
            Mutant::weaken(Party::Client, Op::FenceFull, Place::Fence, RACE),
            Mutant::weaken(Party::Client, Op::FenceFullAsAcqRel, Place::Fence, RACE),
            Mutant::weaken(Party::Client, Op::StoreRelease, Place::Guard, RACE),
            Mutant::weaken(Party::Server, Op::FenceFull, Place::Fence, RACE),
            Mutant::weaken(Party::Server, Op::FenceFullAsAcqRel, Place::Fence, RACE),
            Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Guard, RACE),
        ],
    }
    .check();
}
