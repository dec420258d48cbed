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

bodies::tests! { Shm, [allow(clippy::unwrap_used)];
    a_lone_client_gets_its_answers_without_any_switch
    every_size_travels_unchanged_and_larger_ones_are_refused_before_they_are_sent
    many_connections_of_many_threads_all_get_their_own_answers
    a_call_that_times_out_does_not_spoil_the_next_one
    completions_of_other_calls_survive_a_call_that_waits
    when_the_server_goes_calls_end_and_say_whether_they_ran
    a_call_that_waits_asks_by_the_clock_whether_the_server_is_there
    a_server_in_the_place_of_another_one_answers_only_its_own_clients
    a_busy_server_still_opens_and_closes_connections
    a_client_connects_again_once_there_is_a_server
}
