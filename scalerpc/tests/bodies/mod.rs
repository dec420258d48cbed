//! Calls between threads: what holds for every back end, once for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use scalerpc::{
    CallError, CallOptions, Cancelled, Client, ClientSet, Clock, Connector, Counters, Limit, Reply,
    Request, Server, ServerBuilder, Status, Wait,
};
use scalerpc_driver::Fabric;

const ECHO: u16 = 1;
const SUM: u16 = 2;
/// As [`ECHO`], by a thread of its own.
const LATER: u16 = 5;

pub fn handler(request: Request<'_>, response: &mut [u8]) -> Reply {
    match request.method {
        ECHO => {
            response[..request.bytes.len()].copy_from_slice(request.bytes);
            Reply::Done(request.bytes.len())
        }
        SUM => {
            let sum: u64 = request.bytes.iter().map(|&byte| u64::from(byte)).sum();
            response[..8].copy_from_slice(&sum.to_le_bytes());
            Reply::Done(8)
        }
        LATER => answer_later(request),
        3 => Reply::Done(response.len() + 1),
        4 => Status::application(7).into(),
        _ => Status::UNKNOWN_METHOD.into(),
    }
}

fn answer_later(request: Request<'_>) -> Reply {
    let Some((mut later, postponed)) = request.later() else {
        return Status::BUSY.into();
    };
    std::thread::spawn(move || {
        if later.number() % 2 == 1 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let (request, response) = later.parts();
        let len = request.len();
        response[..len].copy_from_slice(request);
        later.answer(len);
    });
    postponed.into()
}

/// A back end under test.
pub trait BackEnd {
    type ServerEnd: Fabric + Send + 'static;
    type ClientEnd: Fabric;
    /// Where a server is.
    type Place: Clone + Send + 'static;
    /// Calls that a test makes: so many times fewer.
    const SLOWER: u64;

    fn listen(builder: ServerBuilder) -> (Server<Self::ServerEnd>, Self::Place);
    /// Another server, where one was.
    fn listen_again(builder: ServerBuilder, place: &Self::Place) -> Server<Self::ServerEnd>;
    fn connect(place: &Self::Place, connections: u32) -> ClientSet<Self::ClientEnd>;
    fn client(place: &Self::Place) -> Client<Self::ClientEnd>;
    fn connector(place: &Self::Place) -> Connector<Self::ClientEnd>;
}

/// A server that runs on a thread of its own.
pub struct Running<B: BackEnd> {
    pub place: B::Place,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counters>>,
}

impl<B: BackEnd> Running<B> {
    pub fn start(builder: ServerBuilder) -> Self {
        let (server, place) = B::listen(builder);
        Self::run(server, place)
    }

    fn run(mut server: Server<B::ServerEnd>, place: B::Place) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            server.run(&flag, &mut handler);
            server.counters()
        });
        Self {
            place,
            stop,
            thread: Some(thread),
        }
    }

    pub fn client(&self) -> Client<B::ClientEnd> {
        B::client(&self.place)
    }

    pub fn connect(&self, connections: u32) -> ClientSet<B::ClientEnd> {
        B::connect(&self.place, connections)
    }

    pub fn stop(mut self) -> Counters {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

/// A server that a failed test leaves ends with it.
impl<B: BackEnd> Drop for Running<B> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Makes a test of each body, or of those that are named, for one back end.
macro_rules! tests {
    ($back_end:ty, $attribute:tt) => {
        bodies::tests! { $back_end, $attribute;
            a_lone_client_gets_its_answers_without_any_switch
            every_size_travels_unchanged_and_larger_ones_are_refused_before_they_are_sent
            many_connections_of_many_threads_all_get_their_own_answers
            a_call_that_times_out_does_not_spoil_the_next_one
            a_call_whose_deadline_has_come_does_not_run
            calls_too_many_are_answered_and_do_not_run
            calls_are_answered_later_by_other_threads
            completions_of_other_calls_survive_a_call_that_waits
            when_the_server_goes_calls_end_and_say_whether_they_ran
            a_call_that_waits_asks_by_the_clock_whether_the_server_is_there
            a_server_in_the_place_of_another_one_answers_only_its_own_clients
            a_busy_server_still_opens_and_closes_connections
            a_client_connects_again_once_there_is_a_server
            a_client_waits_until_there_is_a_seat
        }
    };
    ($back_end:ty, $attribute:tt; $($body:ident)*) => {
        $(
            #[test]
            #$attribute
            fn $body() {
                bodies::$body::<$back_end>();
            }
        )*
    };
}
pub(crate) use tests;

pub fn a_lone_client_gets_its_answers_without_any_switch<B: BackEnd>() {
    // A server that sleeps may rest between two calls, where the client's thread is kept waiting.
    let builder = Server::builder().clients_max(4).wait(Wait::Yield);
    let running = Running::<B>::start(builder);
    let mut client = running.client();
    let calls = 20_000 / B::SLOWER;
    for i in 0..calls {
        assert_eq!(
            client.call(ECHO, &i.to_le_bytes()).unwrap(),
            i.to_le_bytes()
        );
    }
    let counters = running.stop();
    assert_eq!(counters.calls, calls);
    assert_eq!(counters.switches, 0);
    assert_eq!(counters.staged_calls, 1, "only the first call is fetched");
}

pub fn every_size_travels_unchanged_and_larger_ones_are_refused_before_they_are_sent<B: BackEnd>() {
    let running = Running::<B>::start(
        Server::builder()
            .request_max_bytes(300)
            .response_max_bytes(300),
    );
    let mut client = running.client();
    for len in (0..=300)
        .step_by(B::SLOWER.min(7) as usize)
        .chain((0..=300).rev().step_by(B::SLOWER.min(3) as usize))
    {
        let request: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        assert_eq!(client.call(ECHO, &request).unwrap(), request);
    }
    assert_eq!(
        client.call(ECHO, &[0; 301]),
        Err(CallError::TooLarge { max: 300 })
    );
    assert_eq!(client.outstanding(), 0);
    assert_eq!(
        client.call(9, b""),
        Err(CallError::Status(Status::UNKNOWN_METHOD))
    );
    assert_eq!(
        client.call(3, b""),
        Err(CallError::Status(Status::RESPONSE_TOO_LARGE))
    );
    assert_eq!(
        client.call(4, b""),
        Err(CallError::Status(Status::application(7)))
    );
    assert_eq!(client.call(SUM, &[1, 2, 3]).unwrap(), 6_u64.to_le_bytes());
    assert_eq!(running.stop().violations, 0);
}

pub fn many_connections_of_many_threads_all_get_their_own_answers<B: BackEnd>() {
    let running = Running::<B>::start(
        Server::builder()
            .clients_max(240)
            .group_size(20)
            .window(4)
            .request_max_bytes(64),
    );
    let calls = 100 / B::SLOWER.min(10);
    let threads: Vec<_> = (0..3_u32)
        .map(|thread| {
            let place = running.place.clone();
            std::thread::spawn(move || {
                let mut set = B::connect(&place, 80);
                let mut sent = vec![0_u64; 80];
                let mut ended = vec![0_u64; 80];
                let mut wrong = 0;
                while ended.iter().sum::<u64>() < 80 * calls {
                    for conn in 0..80_u32 {
                        while sent[conn as usize] < calls {
                            let value = [u64::from(thread), u64::from(conn), sent[conn as usize]];
                            let bytes: Vec<u8> =
                                value.iter().flat_map(|word| word.to_le_bytes()).collect();
                            match set.call_async(conn, ECHO, &bytes) {
                                Ok(_) => sent[conn as usize] += 1,
                                Err(CallError::WindowFull) => break,
                                Err(error) => unreachable!("{error}"),
                            }
                        }
                    }
                    let mut found = false;
                    while let Some(completion) = set.poll_completion() {
                        found = true;
                        let conn = completion.connection as usize;
                        let value = [u64::from(thread), conn as u64, ended[conn]];
                        let bytes: Vec<u8> =
                            value.iter().flat_map(|word| word.to_le_bytes()).collect();
                        wrong += u64::from(completion.result != Ok(&bytes[..]));
                        ended[conn] += 1;
                    }
                    if !found {
                        std::thread::yield_now();
                    }
                }
                wrong
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 0);
    }
    let counters = running.stop();
    assert_eq!(counters.calls, 3 * 80 * calls);
    assert!(counters.switches > 0, "{counters:?}");
    assert!(
        counters.direct_writes > 0 && counters.staged_calls > 0,
        "{counters:?}"
    );
    assert_eq!(counters.opened, 240);
}

pub fn a_call_that_times_out_does_not_spoil_the_next_one<B: BackEnd>() {
    let running = Running::<B>::start(Server::builder());
    let mut set = running.connect(1);
    let late = set.call(0, ECHO, b"late", Duration::ZERO);
    let late = late.unwrap_err();
    assert!(matches!(
        late,
        CallError::TimedOut | CallError::DeadlineExceeded
    ));
    let first = set.call_async(0, ECHO, b"first").unwrap();
    assert_ne!(set.cancel(0, first), Cancelled::Ended);
    assert_eq!(set.cancel(0, first), Cancelled::Ended);
    let second = set
        .call(0, ECHO, b"second", Duration::from_secs(5))
        .unwrap();
    assert_eq!(second, b"second");
    assert_eq!(running.stop().violations, 0);
}

pub fn a_call_whose_deadline_has_come_does_not_run<B: BackEnd>() {
    let running = Running::<B>::start(Server::builder());
    let mut client = running.client();
    let end = |client: &mut Client<B::ClientEnd>| loop {
        if let Some(completion) = client.poll_completion() {
            return completion.result.map(<[u8]>::to_vec);
        }
        std::thread::yield_now();
    };
    for _ in 0..3 {
        let options = CallOptions::within(Duration::ZERO);
        client.call_with(ECHO, b"late", &options).unwrap();
        let late = end(&mut client).unwrap_err();
        assert_eq!(late, CallError::DeadlineExceeded);
        assert!(late.is_certainly_not_run() && !late.is_retryable());
        let options = CallOptions::within(Duration::MAX);
        client.call_with(ECHO, b"in time", &options).unwrap();
        assert_eq!(end(&mut client), Ok(b"in time".to_vec()));
        client
            .call_with(ECHO, b"whenever", &CallOptions::default())
            .unwrap();
        assert_eq!(end(&mut client), Ok(b"whenever".to_vec()));
    }
    let counters = running.stop();
    assert_eq!((counters.calls, counters.calls_late), (9, 3));
}

/// Those above an operator's limit; and all of them, once the server takes no more.
pub fn calls_too_many_are_answered_and_do_not_run<B: BackEnd>() {
    let (mut server, place) = B::listen(Server::builder().clients_max(1));
    // 1: the connection is limited; 2: no call is to run any more; 3: none will.
    let stage = Arc::new(AtomicU32::new(0));
    let running = Running::<B> {
        place,
        stop: Arc::new(AtomicBool::new(false)),
        thread: None,
    };
    let (stop, reached) = (running.stop.clone(), stage.clone());
    let thread = std::thread::spawn(move || {
        let clock = Clock::start();
        let mut ran = 0;
        while !stop.load(Ordering::Relaxed) {
            let limit = Limit {
                calls_per_second: 0,
                burst: 5,
            };
            match reached.load(Ordering::Relaxed) {
                0 if server.set_limit(0, Some(limit)) => reached.store(1, Ordering::Relaxed),
                2 => {
                    server.set_limit(0, None);
                    server.set_calls_in_flight_max(0);
                    reached.store(3, Ordering::Relaxed);
                }
                _ => {}
            }
            let mut count = |request: Request<'_>, response: &mut [u8]| {
                ran += 1;
                handler(request, response)
            };
            server.poll(clock.now_ns(), &mut count);
            std::thread::yield_now();
        }
        assert_eq!(server.calls_in_flight(), 0);
        (ran, server.counters())
    });
    let mut client = running.client();
    let outcomes = |client: &mut Client<B::ClientEnd>, calls: usize| {
        let ran = |_| client.call(ECHO, b"x").map(|_| ());
        (0..calls).map(ran).collect::<Vec<_>>()
    };
    let wait_for = |number| {
        while stage.load(Ordering::Relaxed) != number {
            std::thread::yield_now();
        }
    };
    wait_for(1);
    let busy = CallError::Status(Status::BUSY);
    assert!(busy.is_certainly_not_run() && busy.is_retryable() && !busy.may_have_run());
    assert_eq!(
        outcomes(&mut client, 8),
        [[Ok(()); 5].as_slice(), &[Err(busy); 3]].concat()
    );
    stage.store(2, Ordering::Relaxed);
    wait_for(3);
    assert_eq!(outcomes(&mut client, 3), [Err(busy); 3]);
    running.stop.store(true, Ordering::Relaxed);
    let (ran, counters) = thread.join().unwrap();
    assert_eq!(
        (ran, counters.calls, counters.calls_busy),
        (5, 5 + 3 + 3, 3 + 3)
    );
}

pub fn calls_are_answered_later_by_other_threads<B: BackEnd>() {
    const CALLS: u64 = 40;
    let builder = Server::builder().clients_max(8).group_size(2).window(4);
    let running = Running::<B>::start(builder.deferred_max(32));
    let mut set = running.connect(6);
    let (mut ended, mut overtaken, mut last) = (0, 0, [0; 6]);
    while ended < 6 * CALLS {
        for connection in 0..6 {
            while set.counters(connection).calls < CALLS {
                let number = set.counters(connection).calls + 1;
                let name = [u64::from(connection), number].map(u64::to_le_bytes);
                if set
                    .call_async(connection, LATER, name.as_flattened())
                    .is_err()
                {
                    break;
                }
            }
        }
        while let Some(it) = set.poll_completion() {
            let name = [u64::from(it.connection), it.call.0].map(u64::to_le_bytes);
            // As many as are free are always enough for a window of each.
            assert_eq!(it.result.unwrap(), name.as_flattened());
            let last = &mut last[it.connection as usize];
            overtaken += u64::from(it.call.0 < *last);
            *last = it.call.0;
            ended += 1;
        }
        std::thread::yield_now();
    }
    assert!(overtaken > 0, "no answer has overtaken another");
    assert_eq!(running.stop().violations, 0);
}

pub fn completions_of_other_calls_survive_a_call_that_waits<B: BackEnd>() {
    let running = Running::<B>::start(Server::builder());
    let mut client = running.client();
    let accepted = client
        .call_batch([(ECHO, &b"a"[..]), (ECHO, b"b")])
        .unwrap();
    assert_eq!(accepted.count, 2);
    assert_eq!(client.call(ECHO, b"c").unwrap(), b"c");
    for (call, bytes) in [(accepted.first.0, b"a"), (accepted.first.0 + 1, b"b")] {
        let completion = client.poll_completion().unwrap();
        assert_eq!(completion.call.0, call);
        assert_eq!(completion.result, Ok(&bytes[..]));
    }
    assert!(client.poll_completion().is_none());
    running.stop();
}

pub fn when_the_server_goes_calls_end_and_say_whether_they_ran<B: BackEnd>() {
    let running = Running::<B>::start(Server::builder().window(4));
    let mut client = running.client();
    client.call(ECHO, b"x").unwrap();
    running.stop();
    client.set_timeout(Duration::from_secs(20));
    let ended = client.call(ECHO, b"y");
    assert!(
        matches!(ended, Err(CallError::Unknown | CallError::NotSent)),
        "{ended:?}"
    );
    assert_eq!(client.call(ECHO, b"z"), Err(CallError::NotSent));
}

pub fn a_call_that_waits_asks_by_the_clock_whether_the_server_is_there<B: BackEnd>() {
    let running = Running::<B>::start(Server::builder());
    let mut set = running.connect(1);
    // However few polls the machine's load allows.
    set.set_polls_per_check(u32::MAX);
    set.call(0, ECHO, b"x", Duration::from_secs(60)).unwrap();
    running.stop();
    let ended = set.call(0, ECHO, b"y", Duration::from_secs(60));
    assert!(
        matches!(ended, Err(CallError::Unknown | CallError::NotSent)),
        "{ended:?}"
    );
}

/// Field case C8: seats, call numbers and the address are the same ones again, the owner's word is not.
pub fn a_server_in_the_place_of_another_one_answers_only_its_own_clients<B: BackEnd>() {
    let mut running = Running::<B>::start(Server::builder().window(8));
    for _ in 0..5 {
        let mut set = running.connect(1);
        let mut calls: Vec<_> = (0..8)
            .map(|byte| set.call_async(0, ECHO, &[byte]).unwrap())
            .collect();
        let place = running.place.clone();
        running.stop();
        let server = B::listen_again(Server::builder().window(8), &place);
        running = Running::run(server, place);
        running.client().call(ECHO, b"to the new one").unwrap();
        // What was called before ends once each, and is not answered by the new one.
        let end = Instant::now() + Duration::from_secs(20);
        while !calls.is_empty() && Instant::now() < end {
            if let Some(it) = set.poll_completion() {
                let known = calls.iter().position(|call| *call == it.call);
                calls.remove(known.expect("a call ends once"));
            }
        }
        assert_eq!(calls, []);
        assert_eq!(set.call_async(0, ECHO, b"x"), Err(CallError::NotSent));
        assert!(set.poll_completion().is_none());
    }
    let counters = running.stop();
    assert_eq!(counters.calls, 1, "the last one's own");
}

/// Field case F7: while the server is saturated, connections come and go.
pub fn a_busy_server_still_opens_and_closes_connections<B: BackEnd>() {
    let running = Running::<B>::start(Server::builder().clients_max(16).group_size(4).window(8));
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..2)
        .map(|_| {
            let (place, stop) = (running.place.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut set = B::connect(&place, 4);
                let mut answers = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    for connection in 0..4 {
                        while set.call_async(connection, ECHO, b"busy").is_ok() {}
                    }
                    while set.poll_completion().is_some() {
                        answers += 1;
                    }
                }
                answers
            })
        })
        .collect();
    // More in all than there are seats, so they have to come back meanwhile.
    for _ in 0..40 {
        let begun = Instant::now();
        let mut client = running.client();
        client.call(ECHO, b"x").unwrap();
        drop(client);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    stop.store(true, Ordering::Relaxed);
    for thread in load {
        assert!(thread.join().unwrap() > 0);
    }
    running.stop();
}

/// Field case C8: a client that has lost its server finds the one that comes in its place, however long that takes.
pub fn a_client_connects_again_once_there_is_a_server<B: BackEnd + 'static>() {
    let running = Running::<B>::start(Server::builder().clients_max(1));
    let connector = B::connector(&running.place);
    let mut set = connector.connect().unwrap();
    let patience = Duration::from_secs(60);
    set.call(0, ECHO, b"before", patience).unwrap();
    let call = set.call_async(0, ECHO, b"under way").unwrap();
    let place = running.place.clone();
    running.stop();
    while set.poll_completion().is_none_or(|it| it.call != call) {}
    // The server may have answered before it went, so its going may be noticed later than the end of the call.
    while set.call_async(0, ECHO, b"x") != Err(CallError::NotSent) {
        set.poll_completion();
    }
    drop(set);
    let hasty = connector.connect_within(Duration::from_millis(50));
    assert!(hasty.is_err(), "there is no server");
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        Running::<B>::run(
            B::listen_again(Server::builder().clients_max(1), &place),
            place,
        )
    });
    let mut set = connector.connect_within(patience).unwrap();
    assert_eq!(set.call(0, ECHO, b"after", patience).unwrap(), b"after");
    assert_eq!(late.join().unwrap().stop().calls, 1);
}

/// A server without a free seat says so, and a connector tries again until there is one.
pub fn a_client_waits_until_there_is_a_seat<B: BackEnd>() {
    let running = Running::<B>::start(Server::builder().clients_max(1));
    let connector = B::connector(&running.place);
    let mut first = running.client();
    first.call(ECHO, b"first").unwrap();
    let refusal = connector.connect().err().unwrap().to_string();
    for word in ["0 free seats", "1 were wanted", "clients_max"] {
        assert!(refusal.contains(word), "{refusal}");
    }
    let impatient = connector.connect_within(Duration::from_millis(50));
    assert!(impatient.is_err(), "the seat is taken");
    let patience = Duration::from_secs(60);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut second = connector.connect_within(patience).unwrap();
            second.call(0, ECHO, b"second", patience).unwrap().to_vec()
        });
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
        assert_eq!(second.join().unwrap(), b"second");
    });
    assert_eq!(running.stop().opened, 2);
}
