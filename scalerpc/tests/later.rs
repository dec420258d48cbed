//! Calls that are answered later: by whom, when, and what becomes of them when an end goes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use scalerpc::{
    CallError, CallOptions, Client, ClientSet, Later, Mapping, PagePolicy, Postponed, Reply,
    Request, Server, ServerBuilder, Status, Wait,
};

const PATIENCE: Duration = Duration::from_secs(60);
const HANDLER_FAILED: Result<Vec<u8>, CallError> = Err(CallError::Status(Status::HANDLER_FAILED));
const BUSY: Result<Vec<u8>, CallError> = Err(CallError::Status(Status::BUSY));

fn builder() -> ServerBuilder {
    Server::builder()
        .clients_max(16)
        .group_size(16)
        .request_max_bytes(64)
        .response_max_bytes(64)
        .page_policy(PagePolicy::Never)
}

/// A server that the test itself polls, on a clock of its own.
struct Rig {
    server: Server,
    now_ns: u64,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(builder: ServerBuilder) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        Self {
            server: builder.listen(&path).unwrap(),
            now_ns: 0,
            path,
            _dir: dir,
        }
    }

    fn connect(&self, connections: u32) -> ClientSet {
        ClientSet::connect(&self.path, connections).unwrap()
    }

    /// Both ends' turns, until the end says that it is enough.
    fn turns(
        &mut self,
        set: &mut ClientSet,
        handler: &mut impl FnMut(Request<'_>) -> Reply,
        mut enough: impl FnMut(&mut Self, &mut ClientSet) -> bool,
    ) {
        let start = Instant::now();
        while !enough(self, set) {
            assert!(start.elapsed() < PATIENCE, "it never comes");
            self.now_ns += 1_000;
            self.server
                .poll(self.now_ns, &mut |request: Request<'_>, _: &mut [u8]| {
                    handler(request)
                });
            std::thread::yield_now();
        }
    }

    /// Keeps calls until so many are in flight.
    fn keep_until(&mut self, set: &mut ClientSet, kept: &mut Vec<Later>, in_flight: u32) {
        let mut handler = |request: Request<'_>| keep(request, kept);
        self.turns(set, &mut handler, |rig, set| {
            assert!(set.poll_completion().is_none(), "nobody has answered");
            rig.server.calls_in_flight() == in_flight
        });
    }

    /// The outcomes of so many calls, in the order in which they come: connection and what it was told.
    fn outcomes(
        &mut self,
        set: &mut ClientSet,
        count: usize,
        handler: &mut impl FnMut(Request<'_>) -> Reply,
    ) -> Vec<(u32, Result<Vec<u8>, CallError>)> {
        let mut outcomes = Vec::new();
        self.turns(set, handler, |_, set| {
            while let Some(it) = set.poll_completion() {
                outcomes.push((it.connection, it.result.map(<[u8]>::to_vec)));
            }
            outcomes.len() >= count
        });
        outcomes
    }
}

/// Keeps a call if it can.
fn keep(request: Request<'_>, kept: &mut Vec<Later>) -> Reply {
    match request.later() {
        Some((later, postponed)) => {
            kept.push(later);
            postponed.into()
        }
        None => Status::BUSY.into(),
    }
}

/// Answers with the request, back to front.
fn answer(mut later: Later) {
    let (request, response) = later.parts();
    let len = request.len();
    response[..len].copy_from_slice(request);
    response[..len].reverse();
    later.answer(len);
}

fn unexpected(request: Request<'_>) -> Reply {
    panic!("{request:?}")
}

#[test]
fn threads_answer_in_any_order_and_each_call_gets_its_own_answer() {
    const CONNECTIONS: u32 = 12;
    const CALLS: u64 = 300;
    let mut rig = Rig::new(builder().window(8).group_size(4).deferred_max(64));
    let mut set = rig.connect(CONNECTIONS);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (sender, calls) = mpsc::channel::<Later>();
                scope.spawn(move || {
                    // The oldest of some last.
                    let mut some = Vec::new();
                    loop {
                        // Nobody waits for ever: the connections may have no more calls to make.
                        let come = calls.recv_timeout(Duration::from_millis(5));
                        let ended = matches!(come, Err(mpsc::RecvTimeoutError::Disconnected));
                        let is_last = come.is_err();
                        some.extend(come);
                        if some.len() == 3 || is_last {
                            some.drain(..).rev().for_each(answer);
                        }
                        if ended {
                            return;
                        }
                    }
                });
                sender
            })
            .collect();
        let (mut kept, mut refused) = (0_u64, 0_u64);
        let mut handler = |request: Request<'_>| {
            let Some((later, postponed)) = request.later() else {
                refused += 1;
                return Status::BUSY.into();
            };
            assert_eq!(later.request(), request.bytes);
            assert_eq!(
                (later.method(), later.seat()),
                (request.method, request.seat)
            );
            threads[kept as usize % 3].send(later).unwrap();
            kept += 1;
            postponed.into()
        };
        let (mut sent, mut answered, mut busy) = (0_u64, 0_u64, 0_u64);
        rig.turns(&mut set, &mut handler, |_, set| {
            for connection in 0..CONNECTIONS {
                while set.counters(connection).calls < CALLS {
                    let name = u64::from(connection) << 32 | set.counters(connection).calls;
                    if set.call_async(connection, 1, &name.to_le_bytes()).is_err() {
                        break;
                    }
                    sent += 1;
                }
            }
            while let Some(it) = set.poll_completion() {
                match it.result {
                    Ok(bytes) => {
                        let name = u64::from_be_bytes(bytes.try_into().unwrap());
                        assert_eq!(name >> 32, u64::from(it.connection));
                        assert_eq!(
                            name & u64::from(u32::MAX),
                            it.call.0 - 1,
                            "another's answer"
                        );
                        answered += 1;
                    }
                    Err(CallError::Status(Status::BUSY)) => busy += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            answered + busy == CALLS * u64::from(CONNECTIONS)
        });
        assert_eq!((kept, refused), (answered, busy));
        assert!(kept > 1_000, "{kept} kept, {refused} refused");
        assert!(rig.server.counters().switches > 0);
        assert_eq!(rig.server.calls_in_flight(), 0);
    });
}

#[test]
fn a_connection_may_have_as_many_as_are_free_and_the_next_one_still_gets_some() {
    let mut rig = Rig::new(builder().deferred_max(4));
    let mut set = rig.connect(3);
    let mut kept = Vec::new();
    for (connection, calls, gets) in [(0, 5, 2), (1, 3, 1), (2, 3, 1)] {
        for call in 0..calls {
            set.call_async(connection, 1, &[call as u8]).unwrap();
        }
        let busy = calls - gets;
        let refused = rig.outcomes(&mut set, busy, &mut |request| keep(request, &mut kept));
        assert_eq!(refused, vec![(connection, BUSY); busy]);
    }
    assert_eq!(kept.len(), 4, "all that there is");
    let sizes = (rig.server.calls_in_flight(), kept.len());
    assert_eq!(sizes, (4, 4));
    // Once they are answered there is as much room as before.
    for _ in 0..2 {
        let told = |it: &Later| (it.seat(), Ok(it.request().to_vec()));
        let mut expected: Vec<_> = kept.iter().map(told).collect();
        kept.drain(..).for_each(answer);
        let mut answers = rig.outcomes(&mut set, expected.len(), &mut unexpected);
        // By connection, and in the order in which they were given.
        expected.sort_by_key(|(seat, _)| *seat);
        answers.sort_by_key(|(seat, _)| *seat);
        assert_eq!(answers, expected);
        for call in 0..3 {
            set.call_async(0, 1, &[call]).unwrap();
        }
        let refused = rig.outcomes(&mut set, 1, &mut |request| keep(request, &mut kept));
        assert_eq!(refused, [(0, BUSY)]);
    }
}

#[test]
fn a_server_without_room_keeps_no_call_and_takes_no_memory_for_it() {
    let mut rig = Rig::new(builder());
    let mut set = rig.connect(1);
    set.call_async(0, 1, b"x").unwrap();
    let mut handler = |request: Request<'_>| -> Reply {
        assert!(!request.can_be_later() && request.later().is_none());
        Status::BUSY.into()
    };
    assert_eq!(rig.outcomes(&mut set, 1, &mut handler), [(0, BUSY)]);
    let with_room = Rig::new(builder().deferred_max(10)).server.bytes();
    let without = rig.server.bytes();
    assert_eq!(with_room.per_client, without.per_client);
    let buffers = 10 * (64 + 64);
    let more = with_room.fixed - without.fixed;
    assert!((buffers..buffers + 10 * 512).contains(&more), "{more}");
}

#[test]
fn a_dropped_call_and_one_that_says_too_much_are_answered_for() {
    let mut rig = Rig::new(builder().deferred_max(8));
    let mut set = rig.connect(1);
    let mut ends: Vec<(fn(Later), _)> = vec![
        (drop, Status::HANDLER_FAILED),
        (|later| later.fail(Status::BUSY), Status::BUSY),
        (
            |later| later.fail(Status::application(3)),
            Status::application(3),
        ),
        (|later| later.answer(65), Status::RESPONSE_TOO_LARGE),
        (|later| later.answer(usize::MAX), Status::RESPONSE_TOO_LARGE),
        // What was said of another call before has no meaning.
        (drop, Status::HANDLER_FAILED),
    ];
    for (end, status) in ends.drain(..) {
        set.call_async(0, 1, b"x").unwrap();
        let mut handler = |request: Request<'_>| -> Reply {
            let (later, postponed) = request.later().unwrap();
            // On the server's own thread, too; it is sent in the next round.
            end(later);
            postponed.into()
        };
        let told = rig.outcomes(&mut set, 1, &mut handler);
        assert_eq!(told, [(0, Err(CallError::Status(status)))]);
    }
    set.call_async(0, 1, b"").unwrap();
    let mut kept = Vec::new();
    rig.keep_until(&mut set, &mut kept, 1);
    let mut later = kept.pop().unwrap();
    let (request, response) = later.parts();
    assert_eq!((request, response.len()), (&b""[..], 64));
    later.answer(0);
    let told = rig.outcomes(&mut set, 1, &mut unexpected);
    assert_eq!(told, [(0, Ok(vec![]))]);
}

#[test]
fn what_a_handler_says_of_another_call_is_no_promise_for_this_one() {
    let mut rig = Rig::new(builder().deferred_max(4));
    let mut set = rig.connect(1);
    let (mut kept, mut saved) = (Vec::new(), None::<Postponed>);
    // It keeps the call, and answers it all the same; the other call it has not kept, but says so.
    let mut handler = |request: Request<'_>| -> Reply {
        if let Some(postponed) = saved.take() {
            return postponed.into();
        }
        let (later, postponed) = request.later().unwrap();
        assert!(request.later().is_none(), "a call is kept once");
        kept.push(later);
        saved = Some(postponed);
        Reply::Done(0)
    };
    set.call_async(0, 1, b"x").unwrap();
    let told = rig.outcomes(&mut set, 1, &mut handler);
    assert_eq!(told, [(0, Ok(vec![]))]);
    set.call_async(0, 1, b"y").unwrap();
    let told = rig.outcomes(&mut set, 1, &mut handler);
    assert_eq!(told, [(0, HANDLER_FAILED)]);
    assert_eq!(rig.server.calls_in_flight(), 0);
    // The answer of the one that was kept goes nowhere, and its place comes back.
    kept.drain(..).for_each(answer);
    let mut kept = Vec::new();
    for _ in 0..3 {
        set.call_async(0, 1, b"z").unwrap();
    }
    let told = rig.outcomes(&mut set, 1, &mut |request| keep(request, &mut kept));
    assert_eq!((told, kept.len()), (vec![(0, BUSY)], 2));
    kept.drain(..).for_each(answer);
    let told = rig.outcomes(&mut set, 2, &mut unexpected);
    assert_eq!(told, vec![(0, Ok(b"z".to_vec())); 2]);
}

#[test]
fn a_handler_that_panics_has_answered_even_if_it_kept_the_call() {
    let mut rig = Rig::new(builder().deferred_max(2));
    let mut set = rig.connect(1);
    set.call_async(0, 1, b"x").unwrap();
    let mut kept = Vec::new();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rig.outcomes(&mut set, 1, &mut |request| {
            kept.push(request.later().unwrap().0);
            panic!("asked to");
        })
    }));
    assert!(panicked.is_err());
    kept.drain(..).for_each(answer);
    let told = rig.outcomes(&mut set, 1, &mut unexpected);
    assert_eq!(told, [(0, HANDLER_FAILED)]);
    assert!(set.poll_completion().is_none(), "one answer");
    assert_eq!(rig.server.calls_in_flight(), 0);
}

#[test]
fn an_answer_for_a_connection_that_has_ended_goes_nowhere() {
    let mut rig = Rig::new(builder().clients_max(1).deferred_max(4));
    let mut set = rig.connect(1);
    let mut kept = Vec::new();
    set.call_async(0, 1, b"old").unwrap();
    rig.keep_until(&mut set, &mut kept, 1);
    let old = kept.pop().unwrap();
    assert!(old.is_awaited());
    drop(set);
    let start = Instant::now();
    while old.is_awaited() {
        assert!(start.elapsed() < PATIENCE, "it is never told");
        rig.now_ns += 1_000;
        rig.server
            .poll(rig.now_ns, &mut |_: Request<'_>, _: &mut [u8]| Ok(0));
    }
    // The same seat, and its first call, too.
    let mut set = rig.connect(1);
    set.call_async(0, 1, b"new").unwrap();
    rig.keep_until(&mut set, &mut kept, 2);
    let new = kept.pop().unwrap();
    assert_eq!(
        (new.seat(), new.number(), new.is_awaited()),
        (old.seat(), old.number(), true)
    );
    answer(old);
    rig.turns(&mut set, &mut unexpected, |rig, set| {
        assert!(set.poll_completion().is_none(), "another's answer");
        rig.server.calls_in_flight() == 1
    });
    answer(new);
    let told = rig.outcomes(&mut set, 1, &mut unexpected);
    assert_eq!(told, [(0, Ok(b"wen".to_vec()))]);
    // The buffers are those of the old one.
    for _ in 0..2 {
        set.call_async(0, 1, b"").unwrap();
    }
    rig.keep_until(&mut set, &mut kept, 2);
    assert!(kept.iter().all(Later::is_awaited));
}

#[test]
fn a_server_may_go_first() {
    let mut rig = Rig::new(builder().deferred_max(4));
    let mut set = rig.connect(1);
    let mut kept = Vec::new();
    for _ in 0..2 {
        set.call_async(0, 1, b"x").unwrap();
    }
    rig.keep_until(&mut set, &mut kept, 2);
    drop(rig);
    let dropped = kept.pop();
    let thread = std::thread::spawn(move || {
        drop(dropped);
        kept.drain(..).for_each(answer);
    });
    thread.join().unwrap();
    let start = Instant::now();
    let mut told = Vec::new();
    while told.len() < 2 {
        assert!(start.elapsed() < PATIENCE);
        set.take_events();
        while let Some(it) = set.poll_completion() {
            told.push(it.result.map(<[u8]>::to_vec));
        }
    }
    assert_eq!(told, vec![Err(CallError::Unknown); 2]);
}

/// Who begins to run a call looks at its deadline; an answer that was given is sent even so, because the call has run.
#[test]
fn a_call_that_is_kept_says_until_when_it_is_of_use() {
    let mut rig = Rig::new(builder().deferred_max(4));
    let mut set = rig.connect(1);
    let mut kept = Vec::new();
    let budget = Duration::from_secs(3_600);
    for options in [CallOptions::default(), CallOptions::within(budget)] {
        set.call_with(0, 1, b"x", &options).unwrap();
        rig.keep_until(&mut set, &mut kept, 1);
        let later = kept.pop().unwrap();
        if options.deadline.is_none() {
            assert_eq!((later.deadline_ns(), later.left()), (None, None));
        } else {
            let left = later.left().unwrap();
            assert!(left <= budget && left > budget / 2, "{left:?}");
            let deadline_ns = later.deadline_ns().unwrap();
            let budget_ns = budget.as_nanos() as u64;
            assert!(deadline_ns <= rig.now_ns + budget_ns && deadline_ns > budget_ns / 2);
            rig.now_ns = deadline_ns + 1;
        }
        answer(later);
        let told = rig.outcomes(&mut set, 1, &mut unexpected);
        assert_eq!(told, [(0, Ok(b"x".to_vec()))]);
    }
}

/// Calls one after the other to a server that runs as it is told, each answered by another thread after a pause.
fn answer_after_pauses(
    builder: ServerBuilder,
    calls: u32,
    pause: impl Fn(u32) -> Duration + Sync,
) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut server = builder.deferred_max(2).listen(&path).unwrap();
    let stop = AtomicBool::new(false);
    let (sender, laters) = mpsc::channel::<Later>();
    std::thread::scope(|scope| {
        let (stop, pause) = (&stop, &pause);
        scope.spawn(move || {
            for (later, call) in laters.into_iter().zip(0..) {
                let (start, pause) = (Instant::now(), pause(call));
                match pause < Duration::from_millis(1) {
                    true => while start.elapsed() < pause {},
                    false => std::thread::sleep(pause),
                }
                answer(later);
            }
        });
        let running = scope.spawn(move || {
            server.run(stop, &mut |request: Request<'_>, _: &mut [u8]| -> Reply {
                let Some((later, postponed)) = request.later() else {
                    return Status::BUSY.into();
                };
                sender.send(later).unwrap();
                postponed.into()
            });
            server
        });
        let mut client = Client::connect(&path).unwrap();
        client.set_timeout(PATIENCE);
        for call in 0..calls {
            let mut name = call.to_le_bytes();
            let told = client.call(1, &name).unwrap();
            name.reverse();
            assert_eq!(told, name);
        }
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap()
    })
}

#[test]
fn an_answer_wakes_a_server_that_sleeps() {
    let long = |_| Duration::from_millis(20);
    let server = answer_after_pauses(builder(), 20, long);
    let counters = server.wait_counters();
    assert!(counters.sleeps > 5, "{counters:?}");
    assert_eq!(counters.woken_by_timeout, 0);
}

#[test]
fn no_wake_up_is_lost_when_answers_come_while_the_server_falls_asleep() {
    // It falls asleep a millisecond after the last call.
    let about_then = |call: u32| Duration::from_micros(u64::from(900 + call * 37 % 300));
    let server = answer_after_pauses(builder(), 1_000, about_then);
    let counters = server.wait_counters();
    assert!(counters.sleeps > 50, "{counters:?}");
    assert_eq!(counters.woken_by_timeout, 0);
}

#[test]
fn a_server_that_takes_naps_or_never_sleeps_sends_answers_too() {
    let long = |_| Duration::from_millis(5);
    answer_after_pauses(builder().mapping(Mapping::Static), 5, long);
    answer_after_pauses(builder().wait(Wait::Yield), 5, long);
}
