//! A [`Server`] and a [`ClientSet`] over shared memory, both polled.

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use scalerpc::{ClientSet, Clock, Mapping, Server};

use super::{Apart, BYTE, Load, Runner, Sample, check, take_turn};
use crate::cpus::Cpus;
use crate::stage::echo;

pub(crate) struct Ours {
    load: Load,
    cpus: Cpus,
    server: Apart<Server>,
    set: Apart<ClientSet>,
    clock: Clock,
    payload: Vec<u8>,
    _dir: tempfile::TempDir,
}

impl Ours {
    pub(super) fn start(load: Load, mapping: Mapping, cpus: Cpus) -> Result<Self, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("server");
        let mut server = Server::builder()
            .clients_max(load.connections)
            .window(load.window)
            .request_max_bytes(load.size)
            .response_max_bytes(load.size)
            .mapping(mapping)
            .listen(&path)?;
        let clock = Clock::start();
        let mut set = connect(&path, load.connections, &mut server, clock)?;
        let payload = vec![BYTE; load.size as usize];
        for connection in 0..load.connections {
            for _ in 0..load.window {
                set.call_async(connection, 1, &payload)?;
            }
        }
        Ok(Self {
            load,
            cpus,
            server: Apart(server),
            set: Apart(set),
            clock,
            payload,
            _dir: dir,
        })
    }
}

/// The server has to be polled for it.
fn connect(
    path: &Path,
    connections: u32,
    server: &mut Server,
    clock: Clock,
) -> Result<ClientSet, Box<dyn Error>> {
    let connected = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            // Ordering: it says nothing but itself, here and below.
            while !connected.load(Ordering::Relaxed) {
                server.poll(clock.now_ns(), &mut echo);
                thread::yield_now();
            }
        });
        let set = ClientSet::connect(path, connections);
        connected.store(true, Ordering::Relaxed);
        Ok(set?)
    })
}

impl Runner for Ours {
    fn run(&mut self, warm: Duration, time: Duration) -> Result<Sample, Box<dyn Error>> {
        /// Polls between two looks at the clock.
        const POLLS: u32 = 256;
        let Self {
            load,
            server: Apart(server),
            set: Apart(set),
            clock,
            payload,
            ..
        } = self;
        let (clock, load) = (*clock, *load);
        let serve = move || {
            server.poll(clock.now_ns(), &mut echo);
        };
        take_turn(self.cpus, [warm, time], serve, move || {
            let mut answered = 0;
            for _ in 0..POLLS {
                let Some(completion) = set.poll_completion() else {
                    continue;
                };
                let connection = completion.connection;
                check(completion.result?, load)?;
                set.call_async(connection, 1, payload)?;
                answered += 1;
            }
            Ok(answered)
        })
    }
}
