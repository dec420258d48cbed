//! Slow methods are learned, run elsewhere, and forgiven.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use scalerpc::{
    CallError, CallOptions, Client, ClientSet, Handler, PagePolicy, Request, Server, ServerBuilder,
    SlowConfig, SlowPool, SlowPoolCounters, SlowPoolOptions, Status,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Far longer than any other call takes, on a busy machine, too.
const SLOW: Duration = Duration::from_millis(600);
const FAST: u16 = 1;
/// What a request of any method may ask for.
const SLEEP: &[u8] = b"sleep";
const PASS: &[u8] = b"pass a gate";
const PANIC: &[u8] = b"panic";
const COUNT: &[u8] = b"count";

type Outcome = Result<Vec<u8>, CallError>;

const ON_SERVER: &[u8] = b"server";
const IN_POOL: &[u8] = b"pool";

/// A handler that says on which thread it ran, and what it was told before.
#[derive(Clone, Default)]
struct Told {
    ran: Arc<AtomicU32>,
    gate: Arc<(Mutex<bool>, Condvar)>,
    /// Of this clone.
    calls: u32,
}

impl Told {
    fn open(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    fn await_ran(&self, calls: u32) {
        let start = Instant::now();
        while self.ran.load(Ordering::Relaxed) < calls {
            assert!(start.elapsed() < PATIENCE, "it never runs");
            std::thread::yield_now();
        }
    }

    fn run(&mut self, request: Request<'_>, response: &mut [u8]) -> usize {
        self.ran.fetch_add(1, Ordering::Relaxed);
        self.calls += 1;
        match request.bytes {
            SLEEP => std::thread::sleep(SLOW),
            PASS => {
                let open = self.gate.0.lock().unwrap();
                let passed = self.gate.1.wait_while(open, |open| !*open).unwrap();
                drop(passed);
            }
            PANIC => panic!("asked to"),
            COUNT => {
                response[..4].copy_from_slice(&self.calls.to_le_bytes());
                return 4;
            }
            _ => {}
        }
        let name = match std::thread::current().name() {
            Some("scalerpc-slow") => IN_POOL,
            _ => ON_SERVER,
        };
        response[..name.len()].copy_from_slice(name);
        name.len()
    }

    /// As a handler that is a closure, and so is its clone.
    fn handler(&self) -> impl Handler + Clone + Send + use<> {
        let mut own = self.clone();
        move |request: Request<'_>, response: &mut [u8]| -> Result<usize, Status> {
            Ok(own.run(request, response))
        }
    }
}

fn options(threads: usize, queue: usize) -> SlowPoolOptions {
    SlowPoolOptions {
        threads,
        queue,
        slow: SlowConfig {
            slow_after_ns: SLOW.as_nanos() as u64 / 2,
            forgive_after_ns: u64::MAX,
            forgive_max_ns: u64::MAX,
        },
    }
}

fn builder() -> ServerBuilder {
    Server::builder()
        .clients_max(8)
        .request_max_bytes(64)
        .response_max_bytes(64)
        .page_policy(PagePolicy::Never)
}

/// A server that the test polls, whose own clock stands still, and a client.
struct Rig {
    server: Server,
    set: ClientSet,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(builder: ServerBuilder) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path: PathBuf = dir.path().join("socket");
        Self {
            server: builder.listen(&path).unwrap(),
            set: ClientSet::connect(&path, 1).unwrap(),
            _dir: dir,
        }
    }

    fn call(&mut self, method: u16, request: &[u8]) {
        self.set.call_async(0, method, request).unwrap();
    }

    /// The outcomes of so many calls, by call.
    fn outcomes(&mut self, count: usize, handler: &mut impl Handler) -> Vec<Outcome> {
        let (start, mut ended) = (Instant::now(), Vec::new());
        while ended.len() < count {
            assert!(start.elapsed() < PATIENCE, "no answer comes");
            self.server.poll(1, handler);
            while let Some(it) = self.set.poll_completion() {
                ended.push((it.call.0, it.result.map(<[u8]>::to_vec)));
            }
            std::thread::yield_now();
        }
        ended.sort_by_key(|(call, _)| *call);
        ended.into_iter().map(|(_, result)| result).collect()
    }

    fn ask(&mut self, method: u16, request: &[u8], handler: &mut impl Handler) -> Outcome {
        self.call(method, request);
        self.outcomes(1, handler).remove(0)
    }

    /// Until the server has handed so many calls out that are not answered.
    fn await_in_flight(&mut self, calls: u32, handler: &mut impl Handler) {
        let start = Instant::now();
        while self.server.calls_in_flight() < calls {
            assert!(start.elapsed() < PATIENCE, "it never comes");
            self.server.poll(1, handler);
            assert!(self.set.poll_completion().is_none());
        }
    }
}

fn ok(bytes: &[u8]) -> Outcome {
    Ok(bytes.to_vec())
}

#[test]
fn a_method_that_overran_runs_in_the_pool_until_it_is_forgiven_and_others_do_not_wait_for_it() {
    let told = Told::default();
    let mut options = options(1, 4);
    // As soon as there was a fast run.
    (options.slow.forgive_after_ns, options.slow.forgive_max_ns) = (1, 1);
    let mut pool = SlowPool::new(told.handler(), options).unwrap();
    let mut rig = Rig::new(builder().deferred_max(8));
    assert_eq!(rig.ask(7, SLEEP, &mut pool), ok(ON_SERVER));
    assert!(pool.is_slow(7) && !pool.is_slow(FAST));
    rig.call(7, PASS);
    rig.await_in_flight(1, &mut pool);
    told.await_ran(2);
    for _ in 0..100 {
        assert_eq!(rig.ask(FAST, b"", &mut pool), ok(ON_SERVER));
    }
    assert_eq!(
        rig.server.calls_in_flight(),
        1,
        "it is in the pool all the time"
    );
    told.open();
    assert_eq!(rig.outcomes(1, &mut pool), [ok(IN_POOL)]);
    // That one was slow, or not: the test's machine decides. From here on it is fast.
    let start = Instant::now();
    while rig.ask(7, b"", &mut pool) != ok(ON_SERVER) {
        assert!(start.elapsed() < PATIENCE, "it is never forgiven");
    }
    assert!(!pool.is_slow(7));
    // It relapses: with a run in the pool that is slow it stays there.
    assert_eq!(rig.ask(7, SLEEP, &mut pool), ok(ON_SERVER));
    for _ in 0..2 {
        assert_eq!(rig.ask(7, SLEEP, &mut pool), ok(IN_POOL));
    }
    assert!(pool.is_slow(7) && !pool.is_slow(FAST));
    assert!(pool.counters().sent_away >= 3);
    assert_eq!(pool.counters().refused, 0);
}

/// The handler on the server's thread has to be held up once, so that a method counts as slow.
fn with_slow_method(builder: ServerBuilder, queue: usize) -> (Told, SlowPool<impl Handler>, Rig) {
    let told = Told::default();
    let mut pool = SlowPool::new(told.handler(), options(1, queue)).unwrap();
    let mut rig = Rig::new(builder);
    assert_eq!(rig.ask(7, SLEEP, &mut pool), ok(ON_SERVER));
    (told, pool, rig)
}

#[test]
fn calls_too_many_for_queue_or_server_are_refused_and_have_not_run() {
    // By the queue, and by the calls that the server can keep: half of four.
    for (queue, deferred_max) in [(1, 16), (16, 4)] {
        let (told, mut pool, mut rig) =
            with_slow_method(builder().deferred_max(deferred_max), queue);
        rig.call(7, PASS);
        rig.await_in_flight(1, &mut pool);
        told.await_ran(2);
        rig.call(7, b"waits");
        rig.await_in_flight(2, &mut pool);
        let busy = Err(CallError::Status(Status::BUSY));
        assert_eq!(rig.ask(7, b"one too many", &mut pool), busy);
        told.open();
        assert_eq!(rig.outcomes(2, &mut pool), [ok(IN_POOL), ok(IN_POOL)]);
        told.await_ran(3);
        let expected = SlowPoolCounters {
            sent_away: 2,
            refused: 1,
            panics: 0,
        };
        assert_eq!(pool.counters(), expected);
        assert_eq!(told.ran.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn a_call_whose_deadline_comes_while_it_waits_for_a_thread_does_not_run() {
    let (told, mut pool, mut rig) = with_slow_method(builder().deferred_max(8), 4);
    rig.call(7, PASS);
    rig.await_in_flight(1, &mut pool);
    told.await_ran(2);
    let budget = Duration::from_millis(30);
    let within = CallOptions::within(budget);
    rig.set.call_with(0, 7, b"", &within).unwrap();
    let within = CallOptions::within(PATIENCE * 10);
    rig.set.call_with(0, 7, b"", &within).unwrap();
    rig.await_in_flight(3, &mut pool);
    std::thread::sleep(budget);
    told.open();
    assert_eq!(
        rig.outcomes(3, &mut pool),
        [ok(IN_POOL), Err(CallError::DeadlineExceeded), ok(IN_POOL)]
    );
    assert_eq!(
        told.ran.load(Ordering::Relaxed),
        3,
        "the late one has not run"
    );
}

#[test]
fn a_panic_in_the_pool_is_answered_for_and_its_thread_goes_on_with_a_new_handler() {
    let (told, mut pool, mut rig) = with_slow_method(builder().deferred_max(8), 4);
    for panics in 1..=3 {
        let failed = Err(CallError::Status(Status::HANDLER_FAILED));
        assert_eq!(rig.ask(7, PANIC, &mut pool), failed);
        assert_eq!(pool.counters().panics, panics);
        for calls in 1..=2_u32 {
            assert_eq!(rig.ask(7, COUNT, &mut pool), ok(&calls.to_le_bytes()));
        }
    }
    assert_eq!(told.ran.load(Ordering::Relaxed), 10);
}

#[test]
fn a_pool_that_is_dropped_waits_for_what_runs_and_refuses_what_waits() {
    let (told, mut pool, mut rig) = with_slow_method(builder().deferred_max(8), 4);
    rig.call(7, PASS);
    rig.await_in_flight(1, &mut pool);
    told.await_ran(2);
    rig.call(7, b"waits");
    rig.await_in_flight(2, &mut pool);
    let dropped = Arc::new(AtomicBool::new(false));
    let (flag, thread) = (
        Arc::clone(&dropped),
        std::thread::spawn({
            let dropped = Arc::clone(&dropped);
            move || {
                drop(pool);
                dropped.store(true, Ordering::Relaxed);
            }
        }),
    );
    std::thread::sleep(Duration::from_millis(20));
    assert!(!flag.load(Ordering::Relaxed), "a call still runs");
    told.open();
    thread.join().unwrap();
    let mut nobody = |_: Request<'_>, _: &mut [u8]| -> Result<usize, Status> { panic!("a call") };
    assert_eq!(
        rig.outcomes(2, &mut nobody),
        [ok(IN_POOL), Err(CallError::Status(Status::BUSY))]
    );
    assert_eq!(Arc::strong_count(&told.ran), 1, "its handlers are gone");
}

#[test]
fn where_no_call_can_be_kept_everything_runs_on_the_server_s_thread() {
    let (_, mut pool, mut rig) = with_slow_method(builder(), 4);
    assert!(pool.is_slow(7));
    assert_eq!(rig.ask(7, SLEEP, &mut pool), ok(ON_SERVER));
    assert_eq!(pool.counters(), SlowPoolCounters::default());
}

#[test]
fn a_handler_in_the_pool_cannot_keep_its_call() {
    let mut pool = SlowPool::new(
        |request: Request<'_>, _: &mut [u8]| {
            if request.bytes == SLEEP {
                std::thread::sleep(SLOW);
            }
            match request.later() {
                Some((later, postponed)) => {
                    later.answer(0);
                    postponed.into()
                }
                None => scalerpc::Reply::Failed(Status::application(9)),
            }
        },
        options(1, 4),
    )
    .unwrap();
    let mut rig = Rig::new(builder().deferred_max(8));
    assert_eq!(rig.ask(7, SLEEP, &mut pool), ok(b""));
    let failed = Err(CallError::Status(Status::application(9)));
    assert_eq!(rig.ask(7, SLEEP, &mut pool), failed);
}

#[test]
fn each_worker_has_a_pool_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let builder = builder().deferred_max(4).workers(2);
    let mut workers = builder.listen_workers(&path).unwrap();
    let (stop, told) = (AtomicBool::new(false), Told::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pool = |_| SlowPool::new(told.handler(), options(1, 4)).unwrap();
            workers.run(&stop, pool);
        });
        // They are spread over the workers.
        let mut clients = [(); 2].map(|()| Client::connect(&path).unwrap());
        for client in &mut clients {
            client.set_timeout(PATIENCE);
            assert_eq!(client.call(7, SLEEP), Ok(ON_SERVER));
            for _ in 0..2 {
                assert_eq!(client.call(7, SLEEP), Ok(IN_POOL));
            }
            assert_eq!(client.call(FAST, b""), Ok(ON_SERVER));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        Arc::strong_count(&told.ran),
        1,
        "the pools ended with their workers"
    );
}
