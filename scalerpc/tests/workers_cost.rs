//! What a call costs at a server of one worker under a scheduler, and at one that could keep calls to answer them later, in
//! instructions, beside a server without either.
//! Callgrind counts; a run of twice the rounds, less one of the rounds, leaves out what comes before. Both ends are on
//! one thread, so the counts do not depend on the machine.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::process::{Command, exit};
use std::time::Duration;

use scalerpc::{ClientSet, PagePolicy, Request, SchedulerHandle, Server, ServerBuilder, Worker};

/// Tells the child what to do: the kind of server, connections, calls of each in a round, rounds.
const CHILD: &str = "SCALERPC_WORKERS_COST_CHILD";
const ROUNDS: u32 = 500;
/// Time from one round to the next.
const ROUND_NS: u64 = 1_000;
/// What may cost so many times as much.
const MORE: f64 = 1.03;

/// Kinds of servers.
const PLAIN: u32 = 0;
const LED: u32 = 1;
const KEEPS: u32 = 2;

/// What serves.
enum Serving {
    Alone(Server),
    Led(Worker, SchedulerHandle),
}

impl Serving {
    fn listen(kind: u32, builder: ServerBuilder, path: &std::path::Path) -> Self {
        if kind != LED {
            let calls = if kind == KEEPS { 64 } else { 0 };
            return Self::Alone(builder.deferred_max(calls).listen(path).unwrap());
        }
        let (mut workers, scheduler) = builder.workers(1).listen_workers(path).unwrap().split();
        Self::Led(workers.pop().unwrap(), scheduler)
    }

    /// A round, as `run` has them.
    fn round(&mut self, round: u32) -> usize {
        let now_ns = u64::from(round) * ROUND_NS;
        let mut handler = |request: Request<'_>, response: &mut [u8]| {
            response[..request.bytes.len()].copy_from_slice(request.bytes);
            Ok(request.bytes.len())
        };
        match self {
            Self::Alone(server) => server.poll(now_ns, &mut handler),
            Self::Led(worker, scheduler) => {
                let done = worker.poll(now_ns, &mut handler);
                if done == 0 || round % SchedulerHandle::ROUNDS_PER_LOOK == 0 {
                    scheduler.poll(now_ns);
                }
                done
            }
        }
    }
}

/// Not a test by itself: what the child of the test below runs, under Callgrind.
#[test]
fn child() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    let numbers: Vec<u32> = task.split(' ').map(|it| it.parse().unwrap()).collect();
    let [kind, connections, calls, rounds] = numbers[..] else {
        panic!("{task}");
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let builder = Server::builder()
        .clients_max(64)
        .page_policy(PagePolicy::Never)
        // Of a fixed length: what a switch costs by the clock must not matter.
        .time_slice(Duration::from_micros(100));
    let mut server = Serving::listen(kind, builder, &path);
    let mut clients = ClientSet::connect(&path, connections).unwrap();
    // Looks at the socket are system calls, and as many at any server.
    clients.set_polls_per_check(u32::MAX);
    // The connections arrive when the control thread has its turn: before anything counts.
    let opened = |server: &Serving| match server {
        Serving::Alone(server) => server.counters().opened,
        Serving::Led(worker, _) => worker.counters().opened,
    };
    while opened(&server) < u64::from(connections) {
        server.round(0);
        std::thread::yield_now();
    }
    measured_rounds(&mut server, &mut clients, calls, rounds);
    exit(0);
}

/// Each connection makes its calls, and then all answers are waited for.
#[inline(never)]
fn measured_rounds(server: &mut Serving, clients: &mut ClientSet, calls: u32, rounds: u32) {
    let request = [7; 32];
    let (mut round, mut answers, mut wanted) = (0, 0, 0);
    for _ in 0..rounds {
        for connection in 0..clients.len() {
            for _ in 0..calls {
                clients.call_async(connection, 1, &request).unwrap();
            }
        }
        clients.flush();
        wanted += clients.len() * calls;
        while answers < wanted {
            round += 1;
            server.round(round);
            while let Some(completion) = clients.poll_completion() {
                assert_eq!(completion.result.unwrap(), request);
                answers += 1;
            }
        }
    }
}

/// Instructions of a run, of both ends.
fn instructions(kind: u32, connections: u32, calls: u32, rounds: u32) -> f64 {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*measured_rounds*")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{kind} {connections} {calls} {rounds}"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    let line = said.lines().find(|line| line.contains("Collected :"));
    let number = line.and_then(|line| line.split_whitespace().last());
    number.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

fn per_call(kind: u32, connections: u32, calls: u32) -> f64 {
    let long = instructions(kind, connections, calls, 2 * ROUNDS);
    let short = instructions(kind, connections, calls, ROUNDS);
    (long - short) / f64::from(ROUNDS * connections * calls)
}

#[test]
fn neither_a_scheduler_nor_room_for_later_answers_makes_calls_dearer() {
    if cfg!(debug_assertions) {
        // Only optimized code is compared; ci.sh runs these tests in release, too.
        return;
    }
    let mut too_many = Vec::new();
    for (what, connections, calls) in [("a lone caller", 1, 1), ("16 busy clients", 16, 4)] {
        let [alone, led, keeps] =
            [PLAIN, LED, KEEPS].map(|kind| per_call(kind, connections, calls));
        println!(
            "{what}: {alone:.1} instructions a call, with a scheduler {led:.1}, with room {keeps:.1}"
        );
        assert!(alone > 100.0, "{what}: calls are counted");
        if led.max(keeps) > alone * MORE {
            too_many.push(what);
        }
    }
    assert!(too_many.is_empty(), "more than it may: {too_many:?}");
}
