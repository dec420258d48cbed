//! The revocation guard: once a revocation is done the client writes no more, so the zone may have a new
//! tenant without the client's help.

use loom::thread;
use scalerpc_core::Memory;
use scalerpc_core::wire::{Ext, FLAG_ACTIVATE};
use scalerpc_driver::shm::guard::{self, ClientFence};
use scalerpc_tests_loom::membarrier::Membarrier;
use scalerpc_tests_loom::message::poll;
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, Step, World, seen};

use super::{RACE, TORN, TRIES};

const EPOCH: u64 = 3;
const TENANT_CALL: u64 = 9;

/// The client writes calls under a tenancy that may be revoked at any time.
fn write_calls(client: &World, calls: std::ops::RangeInclusive<u64>, fence: ClientFence) {
    let (own, at) = (&client.clients[0], client.guard());
    for call in calls {
        if client.mutation.skips(Step::EndAfterBytes) {
            if guard::begin_write(own, at, EPOCH, fence) {
                guard::end_write(own, at);
                client.write_call(0, call);
            }
        } else if !client.write_call_guarded(0, call, EPOCH, fence) {
            seen("a refusal");
            if client.mutation.skips(Step::RefusedIsNotWritten) {
                client.write_call(0, call);
            }
        }
    }
}

/// The server revokes, and asks again while a WRITE is under way.
fn revoke(server: &World) -> bool {
    let (memory, at) = (&server.clients[0], server.guard());
    let mut first = true;
    let done = poll(TRIES, || {
        guard::raise(memory, at, EPOCH);
        memory.fence_full();
        let done = guard::is_quiet(memory, at);
        if !done && first {
            seen("a WRITE under way");
        }
        first = false;
        (done || server.mutation.skips(Step::PendingIsNotDone)).then_some(())
    });
    done.is_some()
}

/// The next writer of the zone is the server itself: it fetches a staged call of the new tenant.
fn then_the_server_writes(mutation: Mutation) {
    let world = World::new(1, mutation);
    world.stage(1, TENANT_CALL);
    let (client, server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    let other = thread::spawn(move || write_calls(&client, 1..=2, ClientFence::Full));
    if revoke(&server) {
        server.fetch(1, TENANT_CALL);
        let whole = server.call(1, TENANT_CALL).is_some();
        assert!(whole, "torn message: the former tenant wrote over it");
        seen("the new tenant's call");
    }
    other.join().expect("the other thread ended");
}

const MUTANTS: &[Mutant] = &[
    Mutant::weaken(Party::Client, Op::FenceFull, Place::Fence, RACE),
    Mutant::weaken(Party::Client, Op::FenceFullAsAcqRel, Place::Fence, RACE),
    Mutant::weaken(Party::Client, Op::StoreRelease, Place::Guard, RACE),
    Mutant::weaken(Party::Server, Op::FenceFull, Place::Fence, RACE),
    Mutant::weaken(Party::Server, Op::FenceFullAsAcqRel, Place::Fence, RACE),
    Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Guard, RACE),
    Mutant::skip(Step::EndAfterBytes, RACE),
    Mutant::skip(Step::RefusedIsNotWritten, RACE),
    Mutant::skip(Step::PendingIsNotDone, RACE),
];

#[test]
fn a_revoked_client_writes_no_more() {
    Model {
        name: "guard",
        bound: None,
        body: then_the_server_writes,
        must_see: &["a refusal", "a WRITE under way", "the new tenant's call"],
        mutants: MUTANTS,
    }
    .check();
}

/// The next writer of the zone is the new tenant, after the message that tells it where to write.
fn then_the_tenant_writes(mutation: Mutation) {
    let world = World::new(1, mutation);
    let server = world.seen_by(Party::Server);
    let (client, newcomer) = (world.seen_by(Party::Client), world.seen_by(Party::Tenant));
    let others = [
        thread::spawn(move || write_calls(&client, 1..=1, ClientFence::Full)),
        thread::spawn(move || {
            if poll(TRIES, || newcomer.response(1, 1)).is_some() {
                newcomer.write_call(1, TENANT_CALL);
            }
        }),
    ];
    if revoke(&server) {
        let epoch = EPOCH + 1;
        let ext = Ext {
            epoch,
            ..Ext::default()
        };
        server.respond(1, 1, Some(ext), FLAG_ACTIVATE);
        if poll(TRIES, || server.call(1, TENANT_CALL)).is_some() {
            seen("the new tenant's call");
        }
    }
    for other in others {
        other.join().expect("the other thread ended");
    }
}

#[test]
fn a_revoked_zone_has_a_new_tenant() {
    let mut mutants = MUTANTS.to_vec();
    mutants.push(Mutant::weaken(
        Party::Server,
        Op::StoreRelease,
        Place::Ring,
        TORN,
    ));
    mutants.push(Mutant::weaken(
        Party::Tenant,
        Op::LoadAcquire,
        Place::Ring,
        TORN,
    ));
    Model {
        name: "guard, new tenant",
        bound: None,
        body: then_the_tenant_writes,
        must_see: &["a refusal", "a WRITE under way", "the new tenant's call"],
        mutants: &mutants,
    }
    .check();
}

/// The client's fence is light; the server's reaches it wherever it is.
fn by_a_light_fence(mutation: Mutation) {
    let world = World::new(1, mutation);
    world.stage(1, TENANT_CALL);
    let kernel = Membarrier::default();
    let (mut client, server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    client.clients[0] = client.clients[0].interrupted_by(&kernel);
    client.server = client.server.interrupted_by(&kernel);
    let interrupted = kernel.clone();
    let other = thread::spawn(move || {
        write_calls(&client, 1..=1, ClientFence::Light);
        interrupted.leave();
    });
    let (memory, at) = (&server.clients[0], server.guard());
    guard::raise(memory, at, EPOCH);
    memory.fence_full();
    let reaches = mutation.op(Party::Server, Place::Fence) != Some(Op::Membarrier);
    let passed = !reaches || kernel.pass(TRIES);
    if passed && guard::is_quiet(memory, at) {
        server.fetch(1, TENANT_CALL);
        let whole = server.call(1, TENANT_CALL).is_some();
        assert!(whole, "torn message: the former tenant wrote over it");
        seen("the new tenant's call");
    } else if passed {
        seen("a WRITE under way");
    }
    other.join().expect("the other thread ended");
}

#[test]
fn a_light_fence_is_enough() {
    Model {
        name: "guard, light fence",
        bound: Some(3),
        body: by_a_light_fence,
        must_see: &["a refusal", "a WRITE under way", "the new tenant's call"],
        mutants: &[
            Mutant::weaken(Party::Server, Op::Membarrier, Place::Fence, RACE),
            Mutant::weaken(Party::Client, Op::StoreRelease, Place::Guard, RACE),
            Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Guard, RACE),
            Mutant::skip(Step::EndAfterBytes, RACE),
            Mutant::skip(Step::RefusedIsNotWritten, RACE),
        ],
    }
    .check();
}
