//! Calls between threads over shared memory.
#![allow(clippy::unwrap_used)]

mod bodies;

use std::sync::Arc;

use bodies::BackEnd;
use scalerpc::{Client, ClientOptions, ClientSet, Connector, Server, ServerBuilder};
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
