//! A connection is ended: the data thread revokes, and the control thread finds the client quiet. The
//! order from one thread to the other goes through a mutex.

use std::rc::Rc;

use loom::sync::Mutex;
use loom::thread;
use scalerpc_core::Memory;
use scalerpc_driver::shm::guard::{self, ClientFence};
use scalerpc_tests_loom::message::poll;
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, Step, World, seen};

use super::{RACE, TRIES};

const TENANT_CALL: u64 = 9;

fn evict(mutation: Mutation) {
    let world = World::new(1, mutation);
    world.stage(1, TENANT_CALL);
    let (client, server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    let control = world.seen_by(Party::Control);
    let at = world.guard();
    let ordered = Rc::new(Mutex::new(false));
    let order = Rc::clone(&ordered);
    let others = [
        thread::spawn(move || {
            if !client.write_call_guarded(0, 1, guard::ENDED, ClientFence::Full) {
                seen("a refusal");
            }
        }),
        thread::spawn(move || {
            let memory = &server.clients[0];
            if !mutation.skips(Step::RevokeBeforeAsking) {
                guard::raise(memory, at, guard::ENDED);
            }
            *order.lock().expect("nobody panicked") = true;
        }),
    ];
    let memory = &control.clients[0];
    let quiet = || {
        if !*ordered.lock().expect("nobody panicked") {
            return None;
        }
        memory.fence_full();
        guard::is_quiet(memory, at).then_some(())
    };
    if poll(TRIES, quiet).is_some() {
        // The zone of a connection that is gone is given out.
        control.fetch(1, TENANT_CALL);
        let whole = control.call(1, TENANT_CALL).is_some();
        assert!(whole, "torn message: the former tenant wrote over it");
        seen("the new tenant's call");
    }
    for other in others {
        other.join().expect("the other thread ended");
    }
}

#[test]
fn an_evicted_client_writes_no_more() {
    Model {
        name: "evict",
        bound: None,
        body: evict,
        must_see: &["a refusal", "the new tenant's call"],
        mutants: &[
            Mutant::weaken(Party::Client, Op::FenceFull, Place::Fence, RACE),
            Mutant::weaken(Party::Client, Op::FenceFullAsAcqRel, Place::Fence, RACE),
            Mutant::weaken(Party::Client, Op::StoreRelease, Place::Guard, RACE),
            Mutant::weaken(Party::Control, Op::FenceFull, Place::Fence, RACE),
            Mutant::weaken(Party::Control, Op::FenceFullAsAcqRel, Place::Fence, RACE),
            Mutant::weaken(Party::Control, Op::LoadAcquire, Place::Guard, RACE),
            Mutant::skip(Step::RevokeBeforeAsking, RACE),
        ],
    }
    .check();
}
