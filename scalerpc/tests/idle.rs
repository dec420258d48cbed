//! An idle server, and a client that waits, leave the core alone. One test: it measures the whole process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod usage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scalerpc::{CallError, Client, ClientSet, Server};
use usage::{echo, load};

/// How long idleness is looked at.
const IDLE: Duration = Duration::from_secs(2);

#[test]
fn an_idle_server_and_a_waiting_client_take_less_than_a_hundredth_of_a_core() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut server = Server::builder().clients_max(64).listen(&path).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            server.run(&stop, &mut echo);
            server
        });
        // It is served, and falls silent; others were never served.
        let _others = ClientSet::connect(&path, 16).unwrap();
        let mut client = Client::connect(&path).unwrap();
        assert_eq!(client.call(1, b"one").unwrap(), b"one");
        let idle = load(|| std::thread::sleep(IDLE));
        assert_eq!(client.call(1, b"two").unwrap(), b"two");
        // Now nobody answers.
        stop.store(true, Ordering::Relaxed);
        let server = running.join().unwrap();
        client.set_timeout(IDLE);
        let waiting = load(|| assert_eq!(client.call(1, b"three"), Err(CallError::TimedOut)));
        println!("idle server {idle:.4}, waiting client {waiting:.4}");
        println!("{:?}, {:?}", server.wait_counters(), client.wait_counters());
        assert!(idle < 0.01, "an idle server took {idle:.4} of a core");
        assert!(
            waiting < 0.01,
            "a waiting client took {waiting:.4} of a core"
        );
        assert!(server.counters().rests >= 1);
    });
}
