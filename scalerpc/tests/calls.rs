//! Calls between threads over shared memory.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use scalerpc::{CallError, Client, ClientSet, Counters, Request, Server, ServerBuilder, Status};

const ECHO: u16 = 1;
const SUM: u16 = 2;

fn handler(request: Request<'_>, response: &mut [u8]) -> Result<usize, Status> {
    match request.method {
        ECHO => {
            response[..request.bytes.len()].copy_from_slice(request.bytes);
            Ok(request.bytes.len())
        }
        SUM => {
            let sum: u64 = request.bytes.iter().map(|&byte| u64::from(byte)).sum();
            response[..8].copy_from_slice(&sum.to_le_bytes());
            Ok(8)
        }
        3 => Ok(response.len() + 1),
        4 => Err(Status::application(7)),
        _ => Err(Status::UNKNOWN_METHOD),
    }
}

struct Running {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counters>>,
    dir: tempfile::TempDir,
}

impl Running {
    fn start(builder: ServerBuilder) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), builder)
    }

    fn start_in(dir: tempfile::TempDir, builder: ServerBuilder) -> Self {
        let path = dir.path().join("socket");
        let mut server = builder.listen(&path).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            server.run(&flag, &mut handler);
            server.counters()
        });
        Self {
            path,
            stop,
            thread: Some(thread),
            dir,
        }
    }

    fn stop(self) -> Counters {
        self.end().0
    }

    /// Stops it; its directory stays.
    fn end(mut self) -> (Counters, tempfile::TempDir) {
        self.stop.store(true, Ordering::Relaxed);
        (self.thread.take().unwrap().join().unwrap(), self.dir)
    }
}

#[test]
fn a_lone_client_gets_its_answers_without_any_switch() {
    let running = Running::start(Server::builder().clients_max(4));
    let mut client = Client::connect(&running.path).unwrap();
    for i in 0..20_000_u64 {
        assert_eq!(
            client.call(ECHO, &i.to_le_bytes()).unwrap(),
            i.to_le_bytes()
        );
    }
    let counters = running.stop();
    assert_eq!(counters.calls, 20_000);
    assert_eq!(counters.switches, 0);
    assert_eq!(counters.staged_calls, 1, "only the first call is fetched");
}

#[test]
fn every_size_travels_unchanged_and_larger_ones_are_refused_before_they_are_sent() {
    let running = Running::start(
        Server::builder()
            .request_max_bytes(300)
            .response_max_bytes(300),
    );
    let mut client = Client::connect(&running.path).unwrap();
    for len in (0..=300).chain((0..=300).rev()) {
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

#[test]
fn many_connections_of_many_threads_all_get_their_own_answers() {
    let running = Running::start(
        Server::builder()
            .clients_max(240)
            .group_size(20)
            .window(4)
            .request_max_bytes(64),
    );
    let threads: Vec<_> = (0..3_u32)
        .map(|thread| {
            let path = running.path.clone();
            std::thread::spawn(move || {
                let mut set = ClientSet::connect(&path, 80).unwrap();
                let mut sent = vec![0_u64; 80];
                let mut ended = vec![0_u64; 80];
                let mut wrong = 0;
                while ended.iter().sum::<u64>() < 80 * 100 {
                    for conn in 0..80_u32 {
                        while sent[conn as usize] < 100 {
                            let value = [u64::from(thread), u64::from(conn), sent[conn as usize]];
                            let bytes: Vec<u8> =
                                value.iter().flat_map(|word| word.to_le_bytes()).collect();
                            match set.call_async(conn, ECHO, &bytes) {
                                Ok(_) => sent[conn as usize] += 1,
                                Err(CallError::WindowFull) => break,
                                Err(error) => panic!("{error}"),
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
    assert_eq!(counters.calls, 3 * 80 * 100);
    assert!(counters.switches > 0, "{counters:?}");
    assert!(
        counters.direct_writes > 0 && counters.staged_calls > 0,
        "{counters:?}"
    );
    assert_eq!(counters.opened, 240);
}

#[test]
fn a_call_that_times_out_does_not_spoil_the_next_one() {
    let running = Running::start(Server::builder());
    let mut set = ClientSet::connect(&running.path, 1).unwrap();
    let late = set.call(0, ECHO, b"late", Duration::ZERO);
    assert!(matches!(late, Err(CallError::TimedOut) | Ok(b"late")));
    let first = set.call_async(0, ECHO, b"first").unwrap();
    assert!(set.cancel(0, first));
    assert!(!set.cancel(0, first));
    let second = set
        .call(0, ECHO, b"second", Duration::from_secs(5))
        .unwrap();
    assert_eq!(second, b"second");
    assert_eq!(running.stop().violations, 0);
}

#[test]
fn completions_of_other_calls_survive_a_call_that_waits() {
    let running = Running::start(Server::builder());
    let mut client = Client::connect(&running.path).unwrap();
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

#[test]
fn when_the_server_goes_calls_end_and_say_whether_they_ran() {
    let running = Running::start(Server::builder().window(4));
    let mut client = Client::connect(&running.path).unwrap();
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

#[test]
fn a_call_that_waits_asks_by_the_clock_whether_the_server_is_there() {
    let running = Running::start(Server::builder());
    let mut set = ClientSet::connect(&running.path, 1).unwrap();
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

/// Field case C8: seats, call numbers and the path are the same ones again, the owner's word is not.
#[test]
fn a_server_in_the_place_of_another_one_answers_only_its_own_clients() {
    let mut running = Running::start(Server::builder().window(8));
    for _ in 0..5 {
        let mut set = ClientSet::connect(&running.path, 1).unwrap();
        let mut calls: Vec<_> = (0..8)
            .map(|byte| set.call_async(0, ECHO, &[byte]).unwrap())
            .collect();
        let (_, dir) = running.end();
        running = Running::start_in(dir, Server::builder().window(8));
        let mut again = Client::connect(&running.path).unwrap();
        again.call(ECHO, b"to the new one").unwrap();
        // What was called before ends once each, and is not answered by the new one.
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while !calls.is_empty() && std::time::Instant::now() < end {
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
#[test]
fn a_busy_server_still_opens_and_closes_connections() {
    let running = Running::start(Server::builder().clients_max(16).group_size(4).window(8));
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..2)
        .map(|_| {
            let (path, stop) = (running.path.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut set = ClientSet::connect(&path, 4).unwrap();
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
        let begun = std::time::Instant::now();
        let mut client = Client::connect(&running.path).unwrap();
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
