//! A server over real queue pairs that nobody calls leaves the core alone, and is woken by who does. They need what
//! `ci/soft-roce-vm` has, and one thread, since they measure the whole process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod usage;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scalerpc::verbs::{ClientOptions, ReliabilityOptions, Selection, ServerOptions, VerbsServer};
use scalerpc::{Client, ClientSet, Clock, Counters, Mapping, Server, ServerBuilder, WaitCounters};
use usage::{echo, load};

/// How long idleness is looked at.
const IDLE: Duration = Duration::from_secs(3);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Nothing waits this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);

const PATIENT: ReliabilityOptions = ReliabilityOptions {
    timeout: 16,
    retries: 6,
};

fn on(device: &str) -> Selection {
    Selection {
        device: Some(device.to_owned()),
        ..Selection::default()
    }
}

fn client_options() -> ClientOptions {
    ClientOptions {
        selection: on("rxe1"),
        reliability: PATIENT,
        timeout: PATIENCE,
        ..ClientOptions::default()
    }
}

fn listen(builder: ServerBuilder) -> (Server<VerbsServer>, SocketAddr) {
    let options = ServerOptions {
        selection: on("rxe0"),
        reliability: PATIENT,
        handshake_timeout: PATIENCE,
        ..ServerOptions::default()
    };
    let server = builder.listen_verbs("10.77.0.1:0", &options).unwrap();
    let address = server.fabric().local_addr();
    (server, address)
}

/// What clients do with a server that sleeps whenever it can. Stopping it takes its waker.
fn with_server(builder: ServerBuilder, act: impl FnOnce(SocketAddr)) -> (Counters, WaitCounters) {
    let (mut server, address) = listen(builder);
    let stop = AtomicBool::new(false);
    let waker = server.waker();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            server.run(&stop, &mut echo);
            (server.counters(), server.wait_counters())
        });
        act(address);
        stop.store(true, Ordering::Relaxed);
        waker.wake();
        running.join().unwrap()
    })
}

#[test]
#[ignore = "needs soft-RoCE"]
fn an_idle_server_leaves_the_core_alone_and_its_sleeps_are_long() {
    let idle = |builder: ServerBuilder| {
        let mut idle = 1.0;
        let told = with_server(builder.clients_max(64), |address| {
            // It is served, and falls silent; others were never served.
            let _others = ClientSet::connect_verbs(address, 16, &client_options()).unwrap();
            let mut client = Client::connect_verbs(address, &client_options()).unwrap();
            assert_eq!(client.call(1, b"one").unwrap(), b"one");
            idle = load(|| std::thread::sleep(IDLE));
            assert_eq!(client.call(1, b"two").unwrap(), b"two");
        });
        (idle, told)
    };
    // One that takes naps of a millisecond, on the same machine: an emulated processor is slow, and what it does not have
    // is counted as taken.
    let (naps, (_, nap_waits)) = idle(Server::builder().mapping(Mapping::Static));
    let (idle, (counters, waits)) = idle(Server::builder());
    println!("idle {idle:.4}, {waits:?}, {counters:?}; with naps {naps:.4}, {nap_waits:?}");
    // One that spins takes all of it.
    assert!(
        idle < naps.max(0.1),
        "an idle server took {idle:.4} of a core"
    );
    let longest = (IDLE.as_millis() / SLEEP_MAX.as_millis()) as u64;
    assert!(waits.sleeps >= longest / 2, "{waits:?}");
    assert!(waits.sleeps <= 3 * longest, "{waits:?}");
    assert!(waits.sleeps < nap_waits.sleeps / 4, "{waits:?}");
    assert_eq!(waits.woken_by_timeout, 0, "{waits:?}");
    assert!(counters.rests >= 1, "{counters:?}");
}

/// Clients that are not polled between their calls, or are: they hear that the server rests at their next call, or before.
#[test]
#[ignore = "needs soft-RoCE"]
fn every_call_wakes_it() {
    const ROUNDS: u64 = 200;
    for polled in [false, true] {
        let (counters, waits) = with_server(Server::builder().clients_max(8), |address| {
            let mut set = ClientSet::connect_verbs(address, 2, &client_options()).unwrap();
            for round in 0..ROUNDS {
                let connection = (round % 3 % 2) as u32;
                let request = round.to_le_bytes();
                assert_eq!(
                    set.call(connection, 1, &request, PATIENCE).unwrap(),
                    request
                );
                let until = Instant::now() + Duration::from_millis(5);
                while Instant::now() < until {
                    match polled {
                        true => assert!(set.poll_completion().is_none()),
                        false => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            }
        });
        println!("polled: {polled}, {waits:?}, {counters:?}");
        assert_eq!(waits.woken_by_timeout, 0, "{waits:?}");
        assert_eq!(counters.calls, ROUNDS);
        assert!(waits.sleeps >= ROUNDS / 2, "{waits:?}");
        assert!(counters.rests >= ROUNDS / 2, "{counters:?}");
        // A client that leaves while it is told something counts as a failure.
        assert_eq!((counters.violations, counters.zones_fenced), (0, 0));
    }
}

/// Longer than a peer may be silent, with demand of connections that it has not heard of, and then of some that it told
/// that their turn is over.
#[test]
#[ignore = "needs soft-RoCE"]
fn a_server_that_does_not_look_for_seconds_loses_nobody() {
    const CONNECTIONS: u32 = 64;
    let (mut server, address) = listen(Server::builder().clients_max(CONNECTIONS));
    let mut set = ClientSet::connect_verbs(address, CONNECTIONS, &client_options()).unwrap();
    let clock = Clock::start();
    for round in 0..2_u32 {
        let mut open = 0;
        for connection in 0..CONNECTIONS {
            let request = (round + connection).to_le_bytes();
            set.call_async(connection, 1, &request).unwrap();
            open += 1;
        }
        // The client is polled, the server is not.
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            assert!(set.poll_completion().is_none());
            std::thread::yield_now();
        }
        let until = Instant::now() + PATIENCE;
        while open > 0 {
            server.poll(clock.now_ns(), &mut echo);
            while let Some(done) = set.poll_completion() {
                let expected = (round + done.connection).to_le_bytes();
                assert_eq!(done.result, Ok(&expected[..]));
                open -= 1;
            }
            assert!(
                Instant::now() < until,
                "{open} are open: {:?}",
                server.counters()
            );
        }
        // All are told that their turn is over, so that they have to demand again.
        server.set_rest_after(Some(Duration::from_millis(1)));
        let until = Instant::now() + PATIENCE;
        while !server.rests() {
            server.poll(clock.now_ns(), &mut echo);
            assert!(set.poll_completion().is_none());
            assert!(Instant::now() < until, "{:?}", server.counters());
        }
    }
    let counters = server.counters();
    let lost = (counters.failures, counters.violations);
    assert_eq!(lost, (0, 0), "{counters:?}");
    assert_eq!(counters.calls, 2 * u64::from(CONNECTIONS));
}

/// Who comes while it sleeps need not wait for the end of the sleep, and who asks for it neither.
#[test]
#[ignore = "needs soft-RoCE"]
fn who_comes_wakes_it() {
    let (counters, waits) = with_server(Server::builder().clients_max(8), |address| {
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(5));
            let mut client = Client::connect_verbs(address, &client_options()).unwrap();
            assert_eq!(client.call(1, b"x").unwrap(), b"x");
        }
    });
    println!("{waits:?}, {counters:?}");
    assert_eq!(waits.woken_by_timeout, 0, "{waits:?}");
    assert_eq!(
        (counters.calls, counters.violations),
        (50, 0),
        "{counters:?}"
    );
}
