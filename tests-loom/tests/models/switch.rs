//! A switch of several workers: when all have acknowledged it, nobody runs a call of the tenancy before it, and
//! what a client of that tenancy writes late is nobody's call.
//!
//! The engines, the board and the scheduler are the real ones.

use std::cell::Cell;
use std::rc::Rc;

use loom::thread;
use scalerpc_core::Memory;
use scalerpc_core::scheduler::{Board, Follower, Scheduler, Task};
use scalerpc_core::server::ServerConfig;
use scalerpc_core::wire::LINE;
use scalerpc_tests_loom::message::poll;
use scalerpc_tests_loom::rig::{ClientRig, ServerRig, Turn};
use scalerpc_tests_loom::{
    LoomMemory, Model, Mutant, Mutation, Op, Party, Place, Step, World, seen,
};

use super::{RACE, TORN, TRIES};

const WORKERS: usize = 2;
/// The most of a slice that is charged at once; five times, and it is over.
const STEP_NS: u64 = 26_000;
/// The client of the old tenancy, and that of the new one.
const OLD: usize = 0;
const NEW: usize = 1;

fn config() -> ServerConfig {
    ServerConfig {
        led: true,
        revoke_after_ns: u64::MAX,
        ..ServerConfig::default()
    }
}

/// The board, and behind it for each worker a line that it writes when it runs a call of the old tenancy, and one
/// for the new tenancy. They stand for all that a worker does there.
fn board() -> LoomMemory {
    LoomMemory::shared(old_line(WORKERS) + WORKERS * LINE, 0)
}

const fn old_line(worker: usize) -> usize {
    Board::<LoomMemory>::bytes(WORKERS) + worker * LINE
}

const fn new_line(worker: usize) -> usize {
    old_line(WORKERS + worker)
}

/// The same memory, as a party sees it.
fn seen_by(memory: &LoomMemory, party: Party, mutation: Mutation) -> LoomMemory {
    let len = Board::<LoomMemory>::bytes(WORKERS);
    memory.weaken(mutation.op(party, Place::Board), 0..len)
}

struct Worker {
    at: usize,
    server: ServerRig,
    follower: Follower,
    board: LoomMemory,
    /// The calls that ran.
    ran: [u64; 2],
    /// All have acknowledged the switch. Loom does not see this: it is for the check alone.
    over: Rc<Cell<bool>>,
}

impl Worker {
    /// One round, and a look at the board.
    fn round(&mut self, passed_ns: u64) {
        while self.server.step(passed_ns) == Turn::Busy {
            self.mark();
        }
        self.mark();
        self.look();
    }

    fn look(&mut self) {
        self.server.follow(&mut self.follower, &self.board);
    }

    /// Leaves a mark for each call that has just run.
    fn mark(&mut self) {
        for (client, line) in [(OLD, old_line(self.at)), (NEW, new_line(self.at))] {
            let ran = self.server.ran(client);
            if ran > self.ran[client] {
                self.ran[client] = ran;
                self.board.store(line, ran);
                if client == OLD {
                    assert!(!self.over.get(), "a call of the tenancy before the switch");
                    seen("a call of the old tenancy");
                } else {
                    seen("a call of the new tenancy");
                }
            }
        }
    }
}

/// Workers that serve their old clients; the slice is over, and the new client of the first one is ready. The second one
/// has nobody of the new tenancy, so that no message of its own, with its fence, comes before what it acknowledges.
struct Before {
    workers: Vec<Worker>,
    clients: Vec<[ClientRig; 2]>,
    scheduler: Scheduler,
}

fn before(worlds: &[World], memory: &LoomMemory) -> Before {
    let over = Rc::new(Cell::new(false));
    let mut workers: Vec<_> = (0..)
        .zip(worlds)
        .map(|(at, world)| Worker {
            at,
            server: ServerRig::new(world.clone(), config()),
            follower: Follower::new(at),
            board: memory.clone(),
            ran: [0; 2],
            over: Rc::clone(&over),
        })
        .collect();
    let mut clients: Vec<_> = worlds
        .iter()
        .map(|world| [OLD, NEW].map(|client| ClientRig::new(world.clone(), client)))
        .collect();
    let mut scheduler = Scheduler::new(config().time_slice_ns);
    let board = Board::new(memory, workers.len()).expect("there is room");
    clients.iter_mut().for_each(|both| both[OLD].call());
    while workers.iter().any(|worker| worker.server.ran(OLD) < 1) {
        workers.iter_mut().for_each(|worker| worker.round(1));
        board.attend(&mut scheduler, 0);
    }
    for both in &mut clients {
        assert!(both[OLD].poll().is_some(), "it was answered");
    }
    clients[0][NEW].call();
    while board.attend(&mut scheduler, 0).is_none() {
        workers.iter_mut().for_each(|worker| worker.round(1));
    }
    for worker in &mut workers {
        (0..6).for_each(|_| worker.round(STEP_NS));
        let report = worker.server.report();
        assert_eq!((report.ready, report.done), (worker.at == 0, true));
    }
    Before {
        workers,
        clients,
        scheduler,
    }
}

/// The scheduler orders the switch, and looks until all have acknowledged it.
fn lead(
    memory: &LoomMemory,
    scheduler: &mut Scheduler,
    workers: usize,
    mutation: Mutation,
) -> bool {
    let board = Board::new(memory, workers).expect("there is room");
    let Some(order) = poll(TRIES, || board.attend(scheduler, 0)) else {
        return false;
    };
    assert_eq!(order.task, Task::Switch);
    let awaited = match mutation.skips(Step::AllAcknowledge) {
        true => 1,
        false => workers,
    };
    let all = || {
        let mut reports = (0..awaited).map(|at| board.report(at));
        reports.all(|report| report.acknowledged == order.sequence)
    };
    poll(TRIES, || all().then_some(())).is_some()
}

/// The old client's second call may be the last one of its tenancy, or be too late for it.
fn two_workers(mutation: Mutation) {
    let memory = board();
    let worlds = [(); WORKERS].map(|()| World::of_one_party(2, 1, mutation));
    let mut before = before(&worlds, &memory);
    let over = Rc::clone(&before.workers[0].over);
    before.clients.iter_mut().for_each(|both| both[OLD].call());
    let others: Vec<_> = before
        .workers
        .drain(..)
        .map(|mut worker| {
            worker.board = seen_by(&memory, Party::Server, mutation);
            thread::spawn(move || {
                // So that the call may be taken in the drain.
                worker.look();
                for _ in 0..TRIES {
                    worker.round(1);
                    if worker.ran[NEW] > 0 {
                        break;
                    }
                    thread::yield_now();
                }
            })
        })
        .collect();
    let own = seen_by(&memory, Party::Scheduler, mutation);
    for worker in 0..WORKERS {
        own.store(new_line(worker), 0);
    }
    if lead(&own, &mut before.scheduler, WORKERS, mutation) {
        over.set(true);
        for worker in 0..WORKERS {
            own.owned_bytes(old_line(worker), LINE);
        }
        seen("all have switched");
    }
    for other in others {
        other.join().expect("the other thread ended");
    }
}

#[test]
fn after_a_switch_nobody_runs_a_call_of_the_tenancy_before_it() {
    const BROKEN: &[&str] = &["Causality violation", "a call of the tenancy before"];
    Model {
        name: "switch",
        bound: None,
        body: two_workers,
        must_see: &[
            "a call of the old tenancy",
            "a call of the new tenancy",
            "all have switched",
        ],
        mutants: &[
            Mutant::weaken(Party::Scheduler, Op::StoreRelease, Place::Board, RACE),
            Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Board, RACE),
            Mutant::weaken(Party::Server, Op::StoreRelease, Place::Board, RACE),
            Mutant::weaken(Party::Scheduler, Op::LoadAcquire, Place::Board, RACE),
            Mutant::skip(Step::AllAcknowledge, BROKEN),
        ],
    }
    .check();
}

/// The old client writes while its worker switches. Its call is taken in its tenancy, or not at all before it is staged
/// again: the rig checks that what runs is whole, and the next of its own client.
fn late_write(mutation: Mutation) {
    let memory = board();
    let world = World::new(1, mutation);
    let mut before = before(&[world.seen_by(Party::Server)], &memory);
    let over = Rc::clone(&before.workers[0].over);
    let mut worker = before.workers.remove(0);
    let [old, _] = before.clients.remove(0);
    let mut old = old.seeing(world.seen_by(Party::Client)).with_light_fences();
    let others = [
        thread::spawn(move || {
            old.call();
            poll(TRIES, || {
                old.poll();
                (old.counters().switch_events > 0).then_some(())
            });
        }),
        thread::spawn(move || {
            let mut scheduler = before.scheduler;
            if lead(&memory, &mut scheduler, 1, mutation) {
                over.set(true);
                seen("all have switched");
            }
        }),
    ];
    for _ in 0..TRIES {
        worker.round(1);
        if worker.ran[NEW] > 0 {
            break;
        }
        thread::yield_now();
    }
    for other in others {
        other.join().expect("the other thread ended");
    }
}

#[test]
fn a_late_write_is_no_call_of_the_new_tenancy() {
    Model {
        name: "switch, late WRITE",
        bound: Some(2),
        body: late_write,
        must_see: &[
            "a call of the old tenancy",
            "a call of the new tenancy",
            "all have switched",
        ],
        mutants: &[
            Mutant::weaken(Party::Client, Op::StoreRelease, Place::Block, TORN),
            Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Block, TORN),
        ],
    }
    .check();
}
