//! What a subscriber hears of a server.
#![allow(clippy::unwrap_used)]

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use scalerpc::{ClientSet, Request, Server};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the events of a level and those that are more important, as text.
#[derive(Clone)]
struct Ears {
    level: Level,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Ears {
    fn new(level: Level) -> Self {
        Self {
            level,
            heard: Arc::default(),
        }
    }

    fn count(&self, start: &str) -> usize {
        let heard = self.heard.lock().unwrap();
        heard
            .iter()
            .filter(|event| event.starts_with(start))
            .count()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Ears {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "scalerpc::server" && *metadata.level() <= self.level
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.heard.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Four connections in two groups, under load; then all of them go. Rounds are `round_ns` apart.
fn play(ears: &Ears, round_ns: u64) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut server = Server::builder()
        .clients_max(4)
        .group_size(2)
        .listen(&path)
        .unwrap();
    let connecting = std::thread::spawn(move || ClientSet::connect(&path, 4).unwrap());
    let mut set = connecting.join().unwrap();
    tracing::subscriber::with_default(ears.clone(), || {
        let mut now_ns = 0;
        let poll = |server: &mut Server, now_ns: u64| {
            server.poll(now_ns, &mut |_: Request<'_>, _: &mut [u8]| Ok(0));
        };
        // The server hears of its clients from another thread.
        while server.counters().opened < 4 {
            poll(&mut server, now_ns);
        }
        for _ in 0..300 {
            for connection in 0..4 {
                while set.call_async(connection, 1, b"x").is_ok() {}
            }
            now_ns += round_ns;
            poll(&mut server, now_ns);
            while set.poll_completion().is_some() {}
        }
        drop(set);
        // However many rounds that takes, no time passes.
        while server.counters().gone < 4 {
            poll(&mut server, now_ns);
        }
    });
    server
}

#[test]
fn connections_are_heard_of_and_switches_only_by_who_wants_them() {
    let ears = Ears::new(Level::DEBUG);
    let server = play(&ears, 20_000);
    assert!(server.counters().switches > 5);
    for seat in 0..4 {
        assert_eq!(ears.count(&format!("connection opened seat={seat}")), 1);
        assert_eq!(ears.count(&format!("connection gone seat={seat}")), 1);
    }
    assert_eq!(ears.heard.lock().unwrap().len(), 8);

    let ears = Ears::new(Level::TRACE);
    let server = play(&ears, 20_000);
    let switches = server.counters().switches;
    // At most one a round, which is all that there can be at this pace.
    assert_eq!(ears.count("context switch") as u64, switches);
    assert_eq!(
        ears.count(&format!("context switch switches={switches} epoch=")),
        1
    );
}

#[test]
fn slow_rounds_are_heard_of_once_a_second() {
    let ears = Ears::new(Level::WARN);
    // Twice a slice; in all it takes 0.6 s.
    play(&ears, 2_000_000);
    assert_eq!(
        ears.count("slow round round_ns=2000000 slice_ns=1000000"),
        1
    );
    assert_eq!(ears.heard.lock().unwrap().len(), 1);
}

#[test]
fn who_breaks_the_protocol_is_named() {
    // A connection that fails and one that lies are told of in the same way.
    let ears = Ears::new(Level::WARN);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let builder = Server::builder().clients_max(2).group_size(1);
    let mut server = builder.listen(&path).unwrap();
    let connecting = std::thread::spawn(move || ClientSet::connect(&path, 1).unwrap());
    let mut set = connecting.join().unwrap();
    tracing::subscriber::with_default(ears.clone(), || {
        let poll = |server: &mut Server| {
            server.poll(1_000, &mut |_: Request<'_>, _: &mut [u8]| Ok(0));
        };
        while server.counters().opened < 1 {
            poll(&mut server);
        }
        // An entry that names no calls, as if the client had written it.
        let seat = set.fabric().seat(0);
        forge_entry(&server, seat, set.fabric().owner(0));
        while server.counters().gone < 1 {
            poll(&mut server);
        }
    });
    assert!(set.call_async(0, 1, b"x").is_ok() || set.poll_completion().is_none());
    let why = scalerpc::Violation::Calls.to_string();
    assert_eq!(
        ears.count(&format!("connection evicted seat=0 why={why}")),
        1
    );
    assert_eq!(
        server.last_eviction().unwrap().why,
        Some(scalerpc::Violation::Calls)
    );
}

/// Writes an endpoint entry with no calls into the server's memory.
fn forge_entry(server: &Server, seat: u32, owner: u64) {
    use scalerpc_core::Memory;
    use scalerpc_core::wire::{Entry, Placement};
    use scalerpc_driver::Fabric;

    let exposed = server.fabric().exposed();
    let entry = Entry {
        quiet_epoch: 0,
        first_call: 1,
        staged_at: 0,
        stride: 64,
        count: 0,
    };
    let at = server.geometry().endpoint(seat);
    entry.seal(exposed, at, owner, 1, Placement::InOrder);
    exposed.store_byte_release(server.geometry().demand_byte(seat), 1);
}
