//! Servers of several threads: every call ends exactly once, whatever clients and handlers do.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{JoinHandle, scope, spawn};
use std::time::{Duration, Instant};

use scalerpc::{
    CallError, CallId, Client, ClientSet, Clock, Counters, PagePolicy, Request, Server,
    ServerBuilder, SetupError, Status, Workers,
};

const PATIENCE: Duration = Duration::from_secs(60);
const COUNTED: u16 = 1;
const ECHO: u16 = 2;
const PANIC: u16 = 3;

fn builder(workers: u32, clients_max: u32) -> ServerBuilder {
    Server::builder()
        .workers(workers)
        .clients_max(clients_max)
        .group_size(16)
        .window(4)
        .request_max_bytes(64)
        .response_max_bytes(64)
        .page_policy(PagePolicy::Never)
        .time_slice(Duration::from_micros(200))
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    (dir, path)
}

/// The answer to a request of eight bytes.
fn answer(number: u64) -> u64 {
    (number ^ 0x5ca1_e49c).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A handler that notes which calls it ran.
fn handler(ran: &[AtomicU32]) -> impl FnMut(Request<'_>, &mut [u8]) -> Result<usize, Status> {
    |request, response| {
        let number = u64::from_le_bytes(request.bytes.try_into().unwrap());
        match request.method {
            COUNTED => {
                ran[number as usize].fetch_add(1, Ordering::Relaxed);
            }
            PANIC => panic!("asked to"),
            _ => {}
        }
        response[..8].copy_from_slice(&answer(number).to_le_bytes());
        Ok(8)
    }
}

/// Workers on threads of their own.
struct Running {
    stop: Arc<AtomicBool>,
    ran: Arc<[AtomicU32]>,
    thread: JoinHandle<Workers>,
}

impl Running {
    fn start(mut workers: Workers, calls: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ran: Arc<[AtomicU32]> = (0..calls).map(|_| AtomicU32::new(0)).collect();
        let (stopped, noted) = (Arc::clone(&stop), Arc::clone(&ran));
        let thread = spawn(move || {
            workers.run(&stopped, |_| handler(&noted));
            workers
        });
        Self { stop, ran, thread }
    }

    fn stop(self) -> Workers {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Makes the calls of these numbers over all connections in turn, and checks the answers. How each ended.
fn call_all(
    clients: &mut ClientSet,
    numbers: impl Iterator<Item = u64>,
    may_end: bool,
) -> HashMap<u64, Result<(), CallError>> {
    let mut numbers = numbers.peekable();
    let mut under_way: HashMap<(u32, CallId), u64> = HashMap::new();
    let mut ended = HashMap::new();
    let until = Instant::now() + PATIENCE;
    let mut connection = 0;
    while numbers.peek().is_some() || !under_way.is_empty() {
        for _ in 0..clients.len() {
            let Some(&number) = numbers.peek() else { break };
            connection = (connection + 1) % clients.len();
            match clients.call_async(connection, COUNTED, &number.to_le_bytes()) {
                Ok(call) => {
                    assert_eq!(under_way.insert((connection, call), number), None);
                    numbers.next();
                }
                Err(CallError::WindowFull) => {}
                Err(error) if may_end => {
                    ended.insert(number, Err(error));
                    numbers.next();
                }
                Err(error) => panic!("{error}"),
            }
        }
        while let Some(completion) = clients.poll_completion() {
            let key = (completion.connection, completion.call);
            let number = under_way.remove(&key).expect("a call ends once");
            let result = completion.result.map(|bytes| {
                assert_eq!(bytes, answer(number).to_le_bytes(), "its own answer");
            });
            assert!(may_end || result.is_ok(), "{result:?}");
            assert!(ended.insert(number, result).is_none());
        }
        assert!(Instant::now() < until, "{} calls hang", under_way.len());
        std::thread::yield_now();
    }
    ended
}

fn seats_free(workers: &Workers) -> u32 {
    let free = |it: &scalerpc::Worker| it.server().fabric().counters().seats_free;
    workers.workers().iter().map(free).sum()
}

/// Polls until all seats are free again.
fn wait_for_seats(workers: &mut Workers) {
    let until = Instant::now() + PATIENCE;
    let all: u32 = workers.workers().iter().map(seats).sum();
    while seats_free(workers) < all {
        assert!(Instant::now() < until, "{} of {all}", seats_free(workers));
        let stop = AtomicBool::new(false);
        scope(|scope| {
            scope.spawn(|| workers.run(&stop, |_| handler(&[])));
            std::thread::sleep(Duration::from_millis(5));
            stop.store(true, Ordering::Relaxed);
        });
    }
}

fn seats(worker: &scalerpc::Worker) -> u32 {
    worker.server().geometry().clients_max()
}

/// Three links of 80 connections.
fn every_answer_comes(workers: u32) -> Counters {
    const CALLS: u64 = 6_000;
    let (_dir, path) = place();
    let server = builder(workers, 256).listen_workers(&path).unwrap();
    assert_eq!(server.workers().len(), workers as usize);
    let running = Running::start(server, 3 * CALLS as usize);
    scope(|scope| {
        for link in 0..3 {
            let path = &path;
            scope.spawn(move || {
                let mut clients = ClientSet::connect(path, 80).unwrap();
                let ended = call_all(&mut clients, link * CALLS..(link + 1) * CALLS, false);
                assert_eq!(ended.len(), CALLS as usize);
            });
        }
    });
    let ran = Arc::clone(&running.ran);
    let mut workers = running.stop();
    assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == 1));
    let counters = workers.counters();
    assert_eq!(counters.calls, 3 * CALLS);
    assert!(counters.switches > 0, "groups take turns");
    for worker in workers.workers() {
        let counters = worker.counters();
        assert!(counters.calls > 0, "each has its part");
        assert_eq!((counters.violations, counters.failures), (0, 0));
    }
    wait_for_seats(&mut workers);
    counters
}

#[test]
fn one_worker_answers_every_call_once() {
    every_answer_comes(1);
}

#[test]
fn two_workers_answer_every_call_once() {
    every_answer_comes(2);
}

#[test]
fn four_workers_answer_every_call_once() {
    every_answer_comes(4);
}

#[test]
fn clients_come_and_go_in_the_middle_of_their_calls() {
    const ROUNDS: u64 = 12;
    const CALLS: u64 = 400;
    let (_dir, path) = place();
    let server = builder(4, 200).listen_workers(&path).unwrap();
    let running = Running::start(server, (3 * ROUNDS * CALLS) as usize);
    scope(|scope| {
        for link in 0..2 {
            let path = &path;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let first = (link * ROUNDS + round) * CALLS;
                    let mut clients = ClientSet::connect(path, 30).unwrap();
                    call_all(&mut clients, first..first + CALLS / 2, false);
                    // The rest is under way when it is dropped.
                    for number in first + CALLS / 2..first + CALLS {
                        let connection = (number % 30) as u32;
                        let sent = clients.call_async(connection, COUNTED, &number.to_le_bytes());
                        assert!(
                            matches!(sent, Ok(_) | Err(CallError::WindowFull)),
                            "{sent:?}"
                        );
                        clients.flush();
                    }
                }
            });
        }
        // One that stays is not disturbed.
        let mut clients = ClientSet::connect(&path, 40).unwrap();
        let first = 2 * ROUNDS * CALLS;
        call_all(&mut clients, first..first + ROUNDS * CALLS, false);
    });
    let ran = Arc::clone(&running.ran);
    let mut workers = running.stop();
    let ran: Vec<u32> = ran.iter().map(|ran| ran.load(Ordering::Relaxed)).collect();
    assert!(ran.iter().all(|&ran| ran <= 1), "no call runs twice");
    let stayed = &ran[(2 * ROUNDS * CALLS) as usize..];
    assert!(stayed.iter().all(|&ran| ran == 1));
    let counters = workers.counters();
    assert_eq!(counters.calls, u64::from(ran.iter().sum::<u32>()));
    wait_for_seats(&mut workers);
    let counters = workers.counters();
    assert_eq!(counters.opened, 40 + 2 * ROUNDS * 30);
    assert_eq!((counters.gone, counters.connections), (counters.opened, 0));
    assert_eq!((counters.violations, counters.quarantined_now), (0, 0));
}

/// Not a test of its own: plays a client that is killed, if there is a server.
#[test]
fn child_process() {
    let Some(path) = std::env::var_os("SCALERPC_WORKERS_PATH") else {
        return;
    };
    let mut clients = ClientSet::connect(path, 20).unwrap();
    println!("\nready");
    loop {
        for connection in 0..20 {
            let _ = clients.call_async(connection, ECHO, &7_u64.to_le_bytes());
        }
        while clients.poll_completion().is_some() {}
    }
}

#[test]
fn killed_clients_leave_nothing_behind() {
    const CALLS: u64 = 2_000;
    if std::env::var_os("SCALERPC_WORKERS_PATH").is_some() {
        return;
    }
    let (_dir, path) = place();
    let server = builder(3, 90).listen_workers(&path).unwrap();
    let running = Running::start(server, 4 * CALLS as usize);
    let mut clients = ClientSet::connect(&path, 25).unwrap();
    for round in 0..4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process", "--nocapture"])
            .env("SCALERPC_WORKERS_PATH", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        call_all(
            &mut clients,
            round * CALLS..(round * CALLS + CALLS / 2),
            false,
        );
        child.kill().unwrap();
        child.wait().unwrap();
        call_all(
            &mut clients,
            round * CALLS + CALLS / 2..(round + 1) * CALLS,
            false,
        );
    }
    drop(clients);
    let ran = Arc::clone(&running.ran);
    let mut workers = running.stop();
    assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == 1));
    wait_for_seats(&mut workers);
    assert_eq!(workers.counters().gone, 25 + 4 * 20);
    assert_eq!(workers.counters().violations, 0);
}

#[test]
fn a_handler_that_panics_ends_the_run_and_no_call() {
    let (_dir, path) = place();
    let mut workers = builder(3, 30).listen_workers(&path).unwrap();
    let mut clients = ClientSet::connect(&path, 6).unwrap();
    for round in 0..3_u64 {
        let victim = (2 * round) as u32;
        let call = clients
            .call_async(victim, PANIC, &1_u64.to_le_bytes())
            .unwrap();
        let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let run = scope(|scope| {
            scope.spawn(|| {
                let until = Instant::now() + PATIENCE;
                let mut answers = 0;
                while answers == 0 || !ended.load(Ordering::Relaxed) {
                    // Requests go out as the client polls.
                    if let Some(completion) = clients.poll_completion() {
                        let failed = CallError::Status(Status::HANDLER_FAILED);
                        assert_eq!((completion.connection, completion.call), (victim, call));
                        assert_eq!(completion.result, Err(failed));
                        answers += 1;
                    }
                    if Instant::now() > until {
                        stop.store(true, Ordering::Relaxed);
                        panic!("{answers} answers, and a run that does not end");
                    }
                }
            });
            let run = AssertUnwindSafe(|| workers.run(&stop, |_| handler(&[])));
            let run = catch_unwind(run);
            ended.store(true, Ordering::Relaxed);
            run
        });
        let panic = run.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"asked to"));
    }
    let running = Running::start(workers, 600);
    assert_eq!(call_all(&mut clients, 0..600, false).len(), 600);
    assert_eq!(running.stop().counters().calls, 603);
}

/// Threads of the caller's: the scheduler has one of its own, and a worker that is dropped takes only its own
/// clients along.
#[test]
fn workers_go_on_without_one_that_is_dropped() {
    let (_dir, path) = place();
    let server = builder(3, 96).listen_workers(&path).unwrap();
    let (mut workers, mut scheduler) = server.split();
    let clock = Clock::start();
    let stop = AtomicBool::new(false);
    let ran: Vec<AtomicU32> = (0..4_000).map(|_| AtomicU32::new(0)).collect();
    // Links of one connection, which are spread over the workers; so each group has several.
    let mut clients: Vec<Client> = (0..90).map(|_| Client::connect(&path).unwrap()).collect();
    let leaver = workers.pop().unwrap();
    let leaving = AtomicBool::new(false);
    scope(|scope| {
        let (stop, leaving, ran) = (&stop, &leaving, &ran);
        for mut worker in workers {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    worker.poll(clock.now_ns(), &mut handler(ran));
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(move || {
            let mut worker = leaver;
            while !leaving.load(Ordering::Relaxed) {
                worker.poll(clock.now_ns(), &mut handler(ran));
                std::thread::yield_now();
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                scheduler.poll(clock.now_ns());
                std::thread::yield_now();
            }
        });
        let mut number = 0_u64;
        let mut round = |clients: &mut Vec<Client>| {
            for client in clients.iter_mut() {
                client.set_timeout(PATIENCE);
            }
            clients.retain_mut(|client| {
                number += 1;
                match client.call(COUNTED, &number.to_le_bytes()) {
                    Ok(bytes) => {
                        assert_eq!(bytes, answer(number).to_le_bytes());
                        true
                    }
                    Err(CallError::TimedOut) => panic!("nobody says that the worker is gone"),
                    Err(_) => false,
                }
            });
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..3 {
                round(&mut clients);
            }
            assert_eq!(clients.len(), 90);
            leaving.store(true, Ordering::Relaxed);
            let until = Instant::now() + PATIENCE;
            while clients.len() > 60 {
                assert!(Instant::now() < until);
                round(&mut clients);
            }
            for _ in 0..5 {
                round(&mut clients);
            }
            assert_eq!(clients.len(), 60, "the others are served on");
        }));
        stop.store(true, Ordering::Relaxed);
        leaving.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) <= 1));
}

#[test]
fn wrong_numbers_of_workers_are_refused() {
    let (_dir, path) = place();
    let what = |error: SetupError| error.to_string();
    for workers in [0, 65] {
        let refused = builder(workers, 256).listen_workers(&path);
        assert!(
            what(refused.err().unwrap()).contains("1 to 64"),
            "{workers}"
        );
    }
    let refused = builder(2, 8).listen(&path);
    assert!(what(refused.err().unwrap()).contains("listen_workers"));
    assert!(!Path::new(&path).exists());
    // Rounded up: at least a seat for each.
    let workers = builder(64, 100).listen_workers(&path).unwrap();
    assert_eq!(workers.workers().iter().map(seats).sum::<u32>(), 128);
}

#[cfg(feature = "verbs")]
#[test]
fn over_verbs_there_is_one_worker() {
    let options = scalerpc::verbs::ServerOptions::default();
    let refused = builder(2, 8).listen_verbs("127.0.0.1:0", &options);
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("one worker"), "{error}");
}
