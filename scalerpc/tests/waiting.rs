//! Both ends sleep, thousands of times, and no wake-up is lost.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scalerpc::{Client, Clock, Mapping, Request, Server, ServerBuilder, Status, Wait};

const CALLS: u32 = 3_000;
/// Longest pauses, in microseconds: some longer than it takes to fall asleep, some shorter.
const PAUSE_US: u64 = 150;
const REST_AFTER: Duration = Duration::from_micros(20);

/// Numbers that look random (xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn pause(rng: &mut Rng) {
    let pause = Duration::from_micros(rng.below(PAUSE_US));
    let start = Instant::now();
    while start.elapsed() < pause {
        std::thread::yield_now();
    }
}

/// A handler that takes its time.
fn slow_echo(seed: u64) -> impl FnMut(Request<'_>, &mut [u8]) -> Result<usize, Status> {
    let mut rng = Rng(seed);
    move |request, response| {
        pause(&mut rng);
        response[..request.bytes.len()].copy_from_slice(request.bytes);
        Ok(request.bytes.len())
    }
}

/// A server that does as it is told on a thread of its own, until the client's part is done; and the server afterwards.
fn with_server(
    builder: ServerBuilder,
    serve: impl FnOnce(&mut Server, &AtomicBool) + Send,
    call: impl FnOnce(&mut Client),
) -> (Server, Client) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut server = builder.clients_max(4).listen(&path).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            serve(&mut server, &stop);
            server
        });
        let mut client = Client::connect(&path).unwrap();
        call(&mut client);
        stop.store(true, Ordering::Relaxed);
        (running.join().unwrap(), client)
    })
}

/// Calls with their numbers, each with a pause after it.
fn call_with_pauses(client: &mut Client, calls: u32, mut pause: impl FnMut()) {
    for call in 0..calls {
        let request = call.to_le_bytes();
        assert_eq!(client.call(1, &request).unwrap(), request);
        pause();
    }
}

#[test]
fn no_wake_up_is_lost_in_thousands_of_sleeps() {
    let serve = |server: &mut Server, stop: &AtomicBool| {
        let (clock, mut handler) = (Clock::start(), slow_echo(1));
        server.set_rest_after(Some(REST_AFTER));
        while !stop.load(Ordering::Relaxed) {
            let now_ns = clock.now_ns();
            if server.poll(now_ns, &mut handler) == 0 {
                server.wait(now_ns, Duration::MAX);
            }
        }
    };
    let mut rng = Rng(2);
    let (server, client) = with_server(Server::builder(), serve, |client| {
        call_with_pauses(client, CALLS, || pause(&mut rng));
    });
    let (ours, its) = (client.wait_counters(), server.wait_counters());
    println!("client {ours:?}, server {its:?}, {:?}", server.counters());
    assert!(ours.sleeps > u64::from(CALLS) / 20, "{ours:?}");
    assert!(its.sleeps > u64::from(CALLS) / 20, "{its:?}");
    assert_eq!((ours.woken_by_timeout, its.woken_by_timeout), (0, 0));
}

/// Calls with long pauses to a server that runs as it is told: how often that one slept.
fn serve_with_pauses(builder: ServerBuilder, wait: Wait) -> u64 {
    let serve = |server: &mut Server, stop: &AtomicBool| server.run(stop, &mut slow_echo(1));
    let (server, client) = with_server(builder.wait(wait), serve, |client| {
        client.set_wait(wait);
        call_with_pauses(client, 20, || std::thread::sleep(Duration::from_millis(3)));
    });
    assert_eq!(server.wait_counters().woken_by_timeout, 0);
    if wait != Wait::Sleep {
        assert_eq!(client.wait_counters().sleeps, 0, "{wait:?}");
        assert_eq!(server.counters().rests, 0, "{wait:?}");
    }
    server.wait_counters().sleeps
}

#[test]
fn a_server_waits_as_it_is_told() {
    assert_eq!(serve_with_pauses(Server::builder(), Wait::Poll), 0);
    assert_eq!(serve_with_pauses(Server::builder(), Wait::Yield), 0);
    assert!(serve_with_pauses(Server::builder(), Wait::Sleep) > 0);
}

#[test]
fn with_static_mapping_a_server_takes_naps() {
    let builder = || Server::builder().mapping(Mapping::Static);
    assert!(serve_with_pauses(builder(), Wait::Sleep) > 0);
    assert_eq!(serve_with_pauses(builder(), Wait::Yield), 0);
}

#[test]
fn who_does_not_ask_for_rest_is_not_drained() {
    let serve = |server: &mut Server, stop: &AtomicBool| {
        let (clock, mut handler) = (Clock::start(), slow_echo(1));
        while !stop.load(Ordering::Relaxed) {
            server.poll(clock.now_ns(), &mut handler);
        }
    };
    let (server, client) = with_server(Server::builder(), serve, |client| {
        call_with_pauses(client, 5, || std::thread::sleep(Duration::from_millis(5)));
    });
    assert_eq!(server.counters().rests, 0);
    assert_eq!(client.counters().entries, 1);
}
