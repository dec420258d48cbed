//! Calls over real queue pairs. They need two soft-RoCE devices in a network of their own, as `ci/soft-roce-vm` has
//! them: rxe0 at 10.77.0.1 and rxe1 at 10.77.0.2.
#![allow(clippy::panic, clippy::unwrap_used)]

mod bodies;
mod verbs_faults;

use std::net::SocketAddr;
use std::time::Duration;

use bodies::BackEnd;
use scalerpc::verbs::{
    ClientOptions, Mtu, ReliabilityOptions, Selection, ServerOptions, VerbsClient, VerbsServer,
};
use scalerpc::{CallError, Client, ClientSet, Connector, Server, ServerBuilder};

const ECHO: u16 = 1;

/// Server and client on one device.
struct OneDevice;
/// On two, with a network between them.
struct TwoDevices;

fn on(device: &str) -> Selection {
    Selection {
        device: Some(device.to_owned()),
        ..Selection::default()
    }
}

/// Two seconds: an emulated processor is slow, and stops now and then.
const PATIENT: ReliabilityOptions = ReliabilityOptions {
    timeout: 16,
    retries: 6,
};

fn server_on(device: &str) -> ServerOptions {
    ServerOptions {
        selection: on(device),
        reliability: PATIENT,
        handshake_timeout: Duration::from_secs(30),
        ..ServerOptions::default()
    }
}

fn client_on(device: &str) -> ClientOptions {
    ClientOptions {
        selection: on(device),
        reliability: PATIENT,
        timeout: Duration::from_secs(30),
        ..ClientOptions::default()
    }
}

fn listen(builder: ServerBuilder) -> (Server<VerbsServer>, SocketAddr) {
    let server = builder
        .listen_verbs("10.77.0.1:0", &server_on("rxe0"))
        .unwrap();
    let address = server.fabric().local_addr();
    (server, address)
}

macro_rules! back_end {
    ($name:ident, $client:literal) => {
        impl BackEnd for $name {
            type ServerEnd = VerbsServer;
            type ClientEnd = VerbsClient;
            type Place = SocketAddr;
            const SLOWER: u64 = 20;

            fn listen(builder: ServerBuilder) -> (Server<VerbsServer>, SocketAddr) {
                listen(builder)
            }

            fn listen_again(builder: ServerBuilder, place: &SocketAddr) -> Server<VerbsServer> {
                builder.listen_verbs(place, &server_on("rxe0")).unwrap()
            }

            fn connect(place: &SocketAddr, connections: u32) -> ClientSet<VerbsClient> {
                ClientSet::connect_verbs(place, connections, &client_on($client)).unwrap()
            }

            fn connector(place: &SocketAddr) -> Connector<VerbsClient> {
                Connector::verbs(place.to_string(), 1, client_on($client))
            }

            fn client(place: &SocketAddr) -> Client<VerbsClient> {
                Client::connect_verbs(place, &client_on($client)).unwrap()
            }
        }
    };
}

back_end!(OneDevice, "rxe0");
back_end!(TwoDevices, "rxe1");

mod one_device {
    use super::{OneDevice, bodies};

    bodies::tests! { OneDevice, [ignore = "needs soft-RoCE"] }
}

mod two_devices {
    use super::{TwoDevices, bodies};

    bodies::tests! { TwoDevices, [ignore = "needs soft-RoCE"];
        a_lone_client_gets_its_answers_without_any_switch
        every_size_travels_unchanged_and_larger_ones_are_refused_before_they_are_sent
        when_the_server_goes_calls_end_and_say_whether_they_ran
    }
}

/// Makes `each` calls on each connection, a window at a time, and checks every answer.
fn exchange(set: &mut ClientSet<VerbsClient>, each: u64) {
    let count = set.len();
    let mut sent = vec![0_u64; count as usize];
    let mut ended = vec![0_u64; count as usize];
    let payload = |connection: u32, number: u64| {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&connection.to_le_bytes());
        bytes[4..].copy_from_slice(&number.to_le_bytes());
        bytes
    };
    while ended.iter().sum::<u64>() < u64::from(count) * each {
        for connection in 0..count {
            let sent = &mut sent[connection as usize];
            while *sent < each {
                match set.call_async(connection, ECHO, &payload(connection, *sent)) {
                    Ok(_) => *sent += 1,
                    Err(CallError::WindowFull) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        while let Some(completion) = set.poll_completion() {
            let number = &mut ended[completion.connection as usize];
            let expected = payload(completion.connection, *number);
            let result = completion.result.map(<[u8]>::to_vec);
            *number += 1;
            if result.as_deref() != Ok(&expected[..]) {
                panic!(
                    "{result:?}: {:?}",
                    set.fabric().last_failure().map(|it| it.to_string())
                );
            }
        }
        std::thread::yield_now();
    }
}

/// So many connections of one client, with so many calls each.
fn connections(count: u32, each: u64) {
    let builder = Server::builder()
        .clients_max(count)
        .window(4)
        .request_max_bytes(64)
        .response_max_bytes(64);
    let running = bodies::Running::<TwoDevices>::start(builder);
    let begin = std::time::Instant::now();
    let mut set = running.connect(count);
    let connected = begin.elapsed();
    exchange(&mut set, each);
    println!(
        "{count} connections: {connected:?} to connect, {:?} in all",
        begin.elapsed()
    );
    drop(set);
    let counters = running.stop();
    assert_eq!(counters.calls, u64::from(count) * each);
    assert_eq!(counters.violations, 0, "{counters:?}");
}

#[test]
#[ignore = "needs soft-RoCE"]
fn one_to_three_hundred_connections() {
    for count in [1, 2, 64, 300] {
        connections(count, 20);
    }
}

#[test]
#[ignore = "needs soft-RoCE, and takes long"]
fn two_thousand_connections() {
    connections(2000, 2);
}

#[test]
#[ignore = "needs soft-RoCE"]
fn the_smaller_mtu_of_the_two_ends_is_used() {
    let builder = Server::builder()
        .request_max_bytes(5000)
        .response_max_bytes(5000);
    let running = bodies::Running::<OneDevice>::start(builder);
    for mtu in [Mtu::Bytes256, Mtu::Bytes1024, Mtu::Bytes4096] {
        let mut options = client_on("rxe1");
        options.selection.mtu = Some(mtu);
        let mut client = Client::connect_verbs(running.place, &options).unwrap();
        for len in [0, 1, 255, 256, 1023, 1024, 1025, 4095, 4096, 4097, 5000] {
            let request: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            assert_eq!(client.call(ECHO, &request).unwrap(), request);
        }
    }
    assert_eq!(running.stop().violations, 0);
}

#[test]
#[ignore = "needs soft-RoCE"]
fn the_device_is_that_of_the_address_unless_another_is_chosen() {
    let device = |address: &str, options: &ServerOptions| {
        let server = Server::builder().listen_verbs(address, options).unwrap();
        server.fabric().report().device.clone()
    };
    let unasked = ServerOptions::default();
    for (address, expected) in [
        ("10.77.0.1:0", "rxe0"),
        ("10.77.0.2:0", "rxe1"),
        ("0.0.0.0:0", "rxe0"),
        ("127.0.0.1:0", "rxe0"),
    ] {
        assert_eq!(device(address, &unasked), expected, "{address}");
    }
    assert_eq!(device("10.77.0.2:0", &server_on("rxe0")), "rxe0");
}
