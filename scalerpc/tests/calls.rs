//! Calls between threads over shared memory.
#![allow(clippy::unwrap_used)]

mod bodies;

use std::sync::Arc;
use std::time::Duration;

use bodies::BackEnd;
use scalerpc::{Client, ClientOptions, ClientSet, Connector, Request, Server, ServerBuilder};
use scalerpc_driver::shm::{ShmClient, ShmServer};

struct Shm;

impl BackEnd for Shm {
    type ServerEnd = ShmServer;
    type ClientEnd = ShmClient;
    /// The folder that the socket is in.
    type Place = Arc<tempfile::TempDir>;
    const SLOWER: u64 = 1;

    fn listen(builder: ServerBuilder) -> (Server, Self::Place) {
        let dir = tempfile::tempdir().unwrap();
        (
            builder.listen(dir.path().join("socket")).unwrap(),
            Arc::new(dir),
        )
    }

    fn listen_again(builder: ServerBuilder, place: &Self::Place) -> Server {
        builder.listen(place.path().join("socket")).unwrap()
    }

    fn connect(place: &Self::Place, connections: u32) -> ClientSet {
        ClientSet::connect(place.path().join("socket"), connections).unwrap()
    }

    fn connector(place: &Self::Place) -> Connector<ShmClient> {
        Connector::shm(place.path().join("socket"), 1, ClientOptions::default())
    }

    fn client(place: &Self::Place) -> Client {
        Client::connect(place.path().join("socket")).unwrap()
    }
}

bodies::tests! { Shm, [allow(clippy::unwrap_used)] }

#[test]
fn a_client_that_leaves_while_its_call_runs_is_no_failure() {
    let (mut server, dir) = Shm::listen(Server::builder());
    let connected = std::thread::spawn({
        let dir = Arc::clone(&dir);
        move || Shm::connect(&dir, 1)
    });
    let mut now_ns = 0;
    while !connected.is_finished() {
        now_ns += 1_000;
        server.poll(now_ns, &mut |_: Request<'_>, _: &mut [u8]| Ok(0));
    }
    let mut clients = Some(connected.join().unwrap());
    clients.as_mut().unwrap().call_async(0, 1, b"x").unwrap();
    let mut ran = false;
    while !ran || server.counters().gone == 0 {
        if let Some(clients) = &mut clients {
            assert!(clients.poll_completion().is_none());
        }
        now_ns += 1_000;
        server.poll(now_ns, &mut |_: Request<'_>, _: &mut [u8]| {
            // The answer finds a link that is down.
            drop(clients.take());
            std::thread::sleep(Duration::from_millis(100));
            ran = true;
            Ok(0)
        });
    }
    let counters = server.counters();
    assert_eq!((counters.failures, counters.violations), (0, 0));
}
