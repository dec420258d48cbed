//! Sleep: whoever falls asleep while the other writes what it waits for either sees that, or is woken.

use loom::thread;
use scalerpc_core::Memory;
use scalerpc_core::answers;
use scalerpc_driver::shm::asleep::{self, WriterFence};
use scalerpc_tests_loom::futex::Futex;
use scalerpc_tests_loom::membarrier::Membarrier;
use scalerpc_tests_loom::message::entry;
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, Step, World, seen};

use super::TRIES;
use super::answers::View;

/// A sleeper that nobody wakes.
const LOST: &[&str] = &["deadlock"];

/// A client writes its entry and its byte, and wakes the server if that sleeps.
fn call(client: &World, which: usize, futex: &Futex) {
    let staged = entry(0, 1, client.geometry.staging(0));
    client.write_entry(which, &staged, 1);
    client.write_demand(which, 1);
    let at = client.geometry.server_asleep();
    if asleep::must_wake(&client.server, at, WriterFence::Full) {
        seen("a sleeper is woken");
        futex.wake(&client.server, at, client.mutation);
    }
}

/// The server sleeps until so many clients have demand.
fn serve(server: &World, clients: usize, futex: &Futex) {
    let memory = &server.server;
    let has_demand = |which| memory.load_byte_acquire(server.geometry.demand_byte(which)) == 1;
    // Each sleep ends with another client's demand.
    sleep_until(server, clients + 1, futex, || {
        (0..clients as u32).all(has_demand)
    });
}

/// The server sleeps so many times at most.
fn sleep_until(server: &World, sleeps: usize, futex: &Futex, mut all: impl FnMut() -> bool) {
    let (memory, at) = (&server.server, server.geometry.server_asleep());
    for _ in 0..sleeps {
        asleep::announce(memory, at);
        memory.fence_full();
        if !server.mutation.skips(Step::LookBeforeSleep) && all() {
            asleep::withdraw(memory, at);
            seen("found before the sleep");
            return;
        }
        futex.sleep(memory, at, server.mutation);
        asleep::withdraw(memory, at);
        if all() {
            seen("found after the sleep");
            return;
        }
    }
    unreachable!("it was woken for nothing");
}

fn demand(clients: usize, mutation: Mutation) {
    let world = World::new(1, mutation);
    let futex = Futex::default();
    let server = world.seen_by(Party::Server);
    let parties = [Party::Client, Party::Tenant];
    let others: Vec<_> = (0..clients)
        .map(|which| {
            let (client, futex) = (world.seen_by(parties[which]), futex.clone());
            thread::spawn(move || call(&client, which, &futex))
        })
        .collect();
    serve(&server, clients, &futex);
    for other in others {
        other.join().expect("the other thread ended");
    }
}

const MUST_SEE: &[&str] = &[
    "a sleeper is woken",
    "found before the sleep",
    "found after the sleep",
];

const MUTANTS: &[Mutant] = &[
    Mutant::weaken(Party::Client, Op::FenceFull, Place::Fence, LOST),
    Mutant::weaken(Party::Client, Op::FenceFullAsAcqRel, Place::Fence, LOST),
    Mutant::weaken(Party::Server, Op::FenceFull, Place::Fence, LOST),
    Mutant::weaken(Party::Server, Op::FenceFullAsAcqRel, Place::Fence, LOST),
    Mutant::skip(Step::LookBeforeSleep, LOST),
    Mutant::skip(Step::CompareBeforeSleep, LOST),
    Mutant::skip(Step::ClearBeforeWake, LOST),
];

#[test]
fn a_demand_byte_wakes_a_server_that_falls_asleep() {
    Model {
        name: "wake, demand",
        bound: None,
        body: |mutation| demand(1, mutation),
        must_see: MUST_SEE,
        mutants: MUTANTS,
    }
    .check();
}

#[test]
fn two_clients_wake_a_server() {
    Model {
        name: "wake, two clients",
        bound: Some(2),
        body: |mutation| demand(2, mutation),
        must_see: MUST_SEE,
        mutants: MUTANTS,
    }
    .check();
}

/// Other threads of the server's process answer a call each, and wake the server if that sleeps.
fn answers_of_threads(threads: usize, mutation: Mutation) {
    let world = World::new(1, mutation);
    let (futex, list) = (Futex::default(), View::new());
    let server = world.seen_by(Party::Server);
    let parties = [Party::Client, Party::Tenant];
    let others: Vec<_> = (0..threads)
        .map(|which| {
            let (own, futex) = (world.seen_by(parties[which]), futex.clone());
            let list = list.clone();
            thread::spawn(move || {
                answers::push(&list, which as u32);
                let at = own.geometry.server_asleep();
                if asleep::must_wake(&own.server, at, WriterFence::Full) {
                    seen("a sleeper is woken");
                    futex.wake(&own.server, at, own.mutation);
                }
            })
        })
        .collect();
    let mut taken = 0;
    // The look before the sleep is one at the head alone, as the server's is.
    sleep_until(&server, threads + 1, &futex, || {
        if !answers::is_empty(&list) {
            answers::take_all(&list, |_| taken += 1);
        }
        taken == threads
    });
    for other in others {
        other.join().expect("the other thread ended");
    }
}

#[test]
fn an_answer_of_another_thread_wakes_a_server_that_falls_asleep() {
    Model {
        name: "wake, answer of a thread",
        bound: None,
        body: |mutation| answers_of_threads(1, mutation),
        must_see: MUST_SEE,
        mutants: MUTANTS,
    }
    .check();
}

#[test]
fn answers_of_two_threads_wake_a_server() {
    Model {
        name: "wake, answers of two threads",
        bound: Some(2),
        body: |mutation| answers_of_threads(2, mutation),
        must_see: MUST_SEE,
        mutants: MUTANTS,
    }
    .check();
}

/// The server answers, and wakes the client if that sleeps.
fn respond(server: &World, futex: &Futex, fence: WriterFence) {
    server.respond(0, 1, None, 0);
    let (memory, at) = (&server.clients[0], server.asleep());
    if asleep::must_wake(memory, at, fence) {
        seen("a sleeper is woken");
        futex.wake(memory, at, server.mutation);
    }
}

/// The client sleeps until its answer has come. The fence may not have been passed: then it has not slept.
fn await_answer(client: &World, futex: &Futex, fence: impl FnOnce() -> bool) {
    let (memory, at) = (&client.clients[0], client.asleep());
    asleep::announce(memory, at);
    if !fence() {
        asleep::withdraw(memory, at);
        return;
    }
    if !client.mutation.skips(Step::LookBeforeSleep) && client.response(0, 1).is_some() {
        asleep::withdraw(memory, at);
        seen("an answer before the sleep");
        return;
    }
    futex.sleep(memory, at, client.mutation);
    asleep::withdraw(memory, at);
    assert!(client.response(0, 1).is_some(), "it was woken for nothing");
    seen("an answer after the sleep");
}

fn answer(mutation: Mutation) {
    let world = World::new(1, mutation);
    let futex = Futex::default();
    let (client, server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    let kernel = futex.clone();
    let other = thread::spawn(move || respond(&server, &kernel, WriterFence::Full));
    await_answer(&client, &futex, || {
        client.clients[0].fence_full();
        true
    });
    other.join().expect("the other thread ended");
}

const ANSWER_MUST_SEE: &[&str] = &[
    "a sleeper is woken",
    "an answer before the sleep",
    "an answer after the sleep",
];

#[test]
fn an_answer_wakes_a_client_that_falls_asleep() {
    Model {
        name: "wake, answer",
        bound: None,
        body: answer,
        must_see: ANSWER_MUST_SEE,
        mutants: MUTANTS,
    }
    .check();
}

/// The server's fence is light; the client's reaches it wherever it is.
fn answer_by_a_light_fence(mutation: Mutation) {
    let world = World::new(1, mutation);
    let (futex, barrier) = (Futex::default(), Membarrier::default());
    let (client, mut server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    server.clients[0] = server.clients[0].interrupted_by(&barrier);
    let (kernel, interrupted) = (futex.clone(), barrier.clone());
    let other = thread::spawn(move || {
        respond(&server, &kernel, WriterFence::Light);
        interrupted.leave();
    });
    let reaches = mutation.op(Party::Client, Place::Fence) != Some(Op::Membarrier);
    await_answer(&client, &futex, || {
        client.clients[0].fence_full();
        !reaches || barrier.pass(TRIES)
    });
    other.join().expect("the other thread ended");
}

#[test]
fn a_light_fence_is_enough_to_wake_a_client() {
    Model {
        name: "wake, light fence",
        bound: Some(3),
        body: answer_by_a_light_fence,
        must_see: ANSWER_MUST_SEE,
        mutants: &[
            Mutant::weaken(Party::Client, Op::Membarrier, Place::Fence, LOST),
            Mutant::skip(Step::LookBeforeSleep, LOST),
            Mutant::skip(Step::CompareBeforeSleep, LOST),
            Mutant::skip(Step::ClearBeforeWake, LOST),
        ],
    }
    .check();
}
