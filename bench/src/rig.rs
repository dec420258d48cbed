//! A server over shared memory and its clients in one thread, by a clock of its own: what is counted.

use std::error::Error;
use std::hint::black_box;
use std::time::Duration;

use clap::Args;
use scalerpc::{CallError, ClientSet, Grouping, PagePolicy, Server};
use serde::{Deserialize, Serialize};

use crate::callgrind::Done;
use crate::stage::echo;

/// Time from one round of the server to the next: some rounds make a slice.
const ROUND_NS: u64 = 200;
/// Where there are several groups: over after each round, so that little but switches is counted.
const SLICE: Duration = Duration::from_nanos(ROUND_NS);
/// Rounds before those that count: some slices.
const WARM_ROUNDS: u32 = 2_000;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scenario {
    /// Seats of the server.
    pub(crate) seats: u32,
    /// Connections, in so many equal groups.
    pub(crate) connections: u32,
    pub(crate) groups: u32,
    /// Calls that each connection keeps outstanding; 0: they have been served, and are silent.
    pub(crate) calls: u32,
    /// They were never served.
    pub(crate) strangers: bool,
    /// Bytes of a request, and of its answer.
    pub(crate) bytes: usize,
    /// Rounds that count.
    pub(crate) rounds: u32,
}

impl Scenario {
    /// One group, 32 bytes.
    pub(crate) fn new(connections: u32, calls: u32) -> Self {
        Self {
            seats: connections.max(64),
            connections,
            groups: 1,
            calls,
            strangers: false,
            bytes: 32,
            rounds: 500,
        }
    }
}

/// Not for users: what `counts` and `costs` run under Callgrind
#[derive(Args)]
pub(crate) struct Counted {
    scenario: String,
}

impl Counted {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let scenario: Scenario = serde_json::from_str(&self.scenario)?;
        let done = Rig::new(scenario)?.run()?;
        println!("{}", serde_json::to_string(&done)?);
        Ok(())
    }
}

struct Rig {
    scenario: Scenario,
    server: Server,
    set: ClientSet,
    request: Vec<u8>,
    now_ns: u64,
    /// Connections that call next, as often as they are in it.
    due: Vec<u32>,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(scenario: Scenario) -> Result<Self, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("socket");
        let builder = Server::builder()
            .clients_max(scenario.seats)
            .group_size(scenario.connections.div_ceil(scenario.groups))
            .grouping(Grouping::Arrival)
            .request_max_bytes(scenario.bytes as u32)
            .response_max_bytes(scenario.bytes as u32)
            .page_policy(PagePolicy::Never);
        let builder = match scenario.groups {
            1 => builder,
            _ => builder.time_slice(SLICE),
        };
        let mut server = builder.listen(&path)?;
        let mut set = ClientSet::connect(&path, scenario.connections)?;
        // Looks at the socket are system calls.
        set.set_polls_per_check(u32::MAX);
        while server.counters().opened < u64::from(scenario.connections) {
            server.poll(0, &mut echo);
            std::thread::sleep(Duration::from_millis(1));
        }
        let each = scenario.calls.max(1) as usize;
        let callers = match scenario.strangers {
            true => 0,
            false => scenario.connections,
        };
        let due = (0..callers).flat_map(|it| std::iter::repeat_n(it, each));
        Ok(Self {
            scenario,
            server,
            set,
            request: vec![7; scenario.bytes],
            now_ns: 0,
            due: due.collect(),
            _dir: dir,
        })
    }

    fn run(&mut self) -> Result<Done, Box<dyn Error>> {
        self.rounds(WARM_ROUNDS)?;
        if self.scenario.calls == 0 && !self.scenario.strangers {
            while self.due.len() < self.scenario.connections as usize {
                self.serve();
                counted_receive(&mut self.set, &mut self.due)?;
            }
            self.due.clear();
        }
        counting_begins();
        let before = self.server.counters();
        let calls = self.rounds(self.scenario.rounds)?;
        let (after, bytes) = (self.server.counters(), self.server.bytes());
        Ok(Done {
            calls,
            rounds: self.scenario.rounds.into(),
            tenancies: after.quarantined_zones - before.quarantined_zones,
            switches: after.switches - before.switches,
            bytes_fixed: bytes.fixed as u64,
            bytes_per_client: bytes.per_client as u64,
        })
    }

    /// So many rounds, in which who has had an answer calls anew. Returns how many were answered.
    fn rounds(&mut self, rounds: u32) -> Result<u64, Box<dyn Error>> {
        let mut answered = 0;
        for _ in 0..rounds {
            counted_send(&mut self.set, &self.due, &self.request)?;
            self.due.clear();
            self.serve();
            counted_receive(&mut self.set, &mut self.due)?;
            answered += self.due.len() as u64;
        }
        Ok(answered)
    }

    fn serve(&mut self) {
        self.now_ns += ROUND_NS;
        counted_serve(&mut self.server, self.now_ns);
    }
}

/// Callgrind starts from zero here.
#[inline(never)]
fn counting_begins() {
    black_box(());
}

#[inline(never)]
fn counted_send(set: &mut ClientSet, due: &[u32], request: &[u8]) -> Result<(), CallError> {
    for &connection in due {
        set.call_async(connection, 1, request)?;
    }
    set.flush();
    Ok(())
}

#[inline(never)]
fn counted_serve(server: &mut Server, now_ns: u64) {
    server.poll(now_ns, &mut echo);
}

#[inline(never)]
fn counted_receive(set: &mut ClientSet, due: &mut Vec<u32>) -> Result<(), CallError> {
    while let Some(completion) = set.poll_completion() {
        completion.result?;
        due.push(completion.connection);
    }
    Ok(())
}
