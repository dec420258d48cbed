//! What a served call costs where a scheduler leads, in instructions, beside an engine that decides by itself.
//! Callgrind counts them, and only in the server's rounds.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "common/arena.rs"]
mod arena;

use std::process::{Command, exit};

use arena::{Arena, Boxed};
use scalerpc_core::client::ClientConn;
use scalerpc_core::post::{Completion, Limits, WcStatus, WriteWr};
use scalerpc_core::scheduler::{Board, Follower, Scheduler};
use scalerpc_core::server::{Action, OpenConn, ServerConfig};
use scalerpc_core::wire::{Placement, Status};
use scalerpc_core::{ClientEngine, Geometry, GeometryConfig, Memory, Region, ServerEngine};

/// Tells the child what to do: whether a scheduler leads, clients, calls of each in a round, rounds.
const CHILD: &str = "SCALERPC_LED_COST_CHILD";
const ROUNDS: u32 = 400;
/// Time from one round to the next; there is no switch, whoever decides.
const ROUND_NS: u64 = 1_000;
/// What a led engine may cost more.
const MORE: f64 = 1.03;

struct Client {
    engine: ClientEngine<Boxed>,
    exposed: Arena,
    private: Arena,
}

struct Server {
    engine: ServerEngine<Boxed>,
    exposed: Arena,
    private: Arena,
    board: Arena,
    /// Of a led engine.
    follower: Option<Follower>,
    posted: Vec<Action>,
    completions: Vec<Completion>,
    calls: u64,
}

impl Server {
    fn write(&mut self, wr: WriteWr) {
        if wr.signaled {
            self.completions.push(Completion {
                wr_id: wr.wr_id,
                status: WcStatus::Success,
            });
        }
        self.posted.push(Action::Write(wr));
    }

    /// What is measured, by its name.
    #[inline(never)]
    fn measured_round(&mut self, now_ns: u64) {
        for completion in self.completions.drain(..) {
            self.engine.completed(completion);
        }
        loop {
            let (exposed, private) = (self.exposed.region(), self.private.region());
            match self.engine.next_action(now_ns, exposed, private) {
                Action::Idle => break,
                Action::Call(call) => {
                    self.calls += 1;
                    let reply = self.engine.reply(call, Status::OK, 8, exposed, private);
                    if let Some(wr) = reply {
                        self.write(wr);
                    }
                }
                Action::Write(wr) => self.write(wr),
                action => self.posted.push(action),
            }
        }
        if let Some(follower) = &mut self.follower {
            follower.follow(&mut self.engine, self.board.region());
        }
    }

    /// What was posted lands.
    fn land(&mut self, clients: &[Client], geometry: &Geometry) {
        let (exposed, private) = (self.exposed.region(), self.private.region());
        for action in self.posted.drain(..) {
            match action {
                Action::Write(wr) => {
                    let target = clients[wr.connection as usize].exposed.region();
                    target.copy_from(wr.remote, private, wr.local, wr.len);
                }
                Action::Read(wr) => {
                    let source = clients[wr.connection as usize].exposed.region();
                    for (i, to) in wr.targets(geometry).enumerate() {
                        exposed.copy_from(to, source, wr.remote + i * wr.stride, wr.stride);
                    }
                    self.completions.push(Completion {
                        wr_id: wr.wr_id,
                        status: WcStatus::Success,
                    });
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Client {
    /// Takes its answers, makes up to so many calls, and posts.
    fn turn(&mut self, calls: u32, server: &Region) {
        let (exposed, private) = (self.exposed.region(), self.private.region());
        while self.engine.poll(exposed).unwrap().is_some() {}
        for _ in 0..calls {
            if self.engine.call(1, &[7; 32], 0, private).is_err() {
                break;
            }
        }
        while let Some(wr) = self.engine.next_write(exposed, private) {
            match wr.len {
                1 => server.store_byte_release(wr.remote, private.load(wr.local) as u8),
                len => server.copy_from(wr.remote, private, wr.local, len),
            }
            if wr.signaled {
                self.engine.completed(Completion {
                    wr_id: wr.wr_id,
                    status: WcStatus::Success,
                });
            }
        }
    }
}

const LIMITS: Limits = Limits {
    sq_depth: 128,
    sge_max: 16,
    // What is posted lands after the round.
    inline_max: 0,
    can_revoke: true,
    placement: Placement::InOrder,
};

fn client(geometry: Geometry, seat: u32, server: &mut Server) -> Client {
    let owner = 0x9e37_79b9_7f4a_7c15 ^ u64::from(seat);
    assert!(server.engine.open(OpenConn {
        seat,
        owner,
        ring_at: geometry.ring(0),
        staging_at: geometry.staging(0),
        placement: Placement::InOrder,
    }));
    let conn = ClientConn {
        connection: 0,
        seat,
        owner,
    };
    Client {
        engine: arena::client_engine(geometry, LIMITS, conn).unwrap(),
        exposed: Arena::new(geometry.client_exposed_bytes()),
        private: Arena::new(geometry.client_private_bytes()),
    }
}

/// Not a test by itself: what the child of the test below runs, under Callgrind.
#[test]
fn child() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    let numbers: Vec<u32> = task.split(' ').map(|it| it.parse().unwrap()).collect();
    let [led, clients, calls, rounds] = numbers[..] else {
        panic!("{task}");
    };
    let geometry = Geometry::new(GeometryConfig {
        clients_max: 64,
        group_size: 16,
        window: 16,
        request_max_bytes: 32,
        response_max_bytes: 32,
        ..GeometryConfig::default()
    })
    .unwrap();
    let config = ServerConfig {
        led: led == 1,
        ..ServerConfig::default()
    };
    let mut server = Server {
        engine: arena::server_engine(geometry, config, LIMITS).unwrap(),
        exposed: Arena::new(geometry.server_exposed_bytes()),
        private: Arena::new(geometry.server_private_bytes()),
        board: Arena::new(Board::<Region>::bytes(1)),
        follower: config.led.then(|| Follower::new(0)),
        posted: Vec::with_capacity(1024),
        completions: Vec::with_capacity(1024),
        calls: 0,
    };
    let mut scheduler = Scheduler::new(config.time_slice_ns);
    let mut clients: Vec<Client> = (0..clients)
        .map(|seat| client(geometry, seat, &mut server))
        .collect();
    for round in 1..=rounds {
        for client in &mut clients {
            client.turn(calls, server.exposed.region());
        }
        let now_ns = u64::from(round) * ROUND_NS;
        server.measured_round(now_ns);
        server.land(&clients, &geometry);
        if config.led {
            let board = Board::new(server.board.region(), 1).unwrap();
            board.attend(&mut scheduler, now_ns);
        }
    }
    assert_eq!(server.engine.counters().switches, 0);
    eprintln!("served {}", server.calls);
    exit(0);
}

/// Instructions of the server's rounds, and calls that were served in them.
fn measure(led: bool, clients: u32, calls: u32, rounds: u32) -> (f64, f64) {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*measured_round*")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(
            CHILD,
            format!("{} {clients} {calls} {rounds}", u32::from(led)),
        );
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    let number = |what: &str| {
        let line = said.lines().find(|line| line.contains(what));
        let number = line.and_then(|line| line.split_whitespace().last());
        number.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
    };
    (number("Collected :"), number("served "))
}

/// A run of twice the rounds, less one of the rounds, leaves out the first calls.
fn per_call(led: bool, clients: u32, calls: u32) -> f64 {
    let long = measure(led, clients, calls, 2 * ROUNDS);
    let short = measure(led, clients, calls, ROUNDS);
    (long.0 - short.0) / (long.1 - short.1)
}

#[test]
fn a_led_engine_costs_no_more_than_another() {
    if cfg!(debug_assertions) {
        return;
    }
    for (what, clients, calls) in [("a lone caller", 1, 1), ("16 busy clients", 16, 4)] {
        let [own, led] = [false, true].map(|led| per_call(led, clients, calls));
        println!("{what}: {own:.1} instructions a call, led {led:.1}");
        assert!(own > 50.0, "{what}: the rounds are counted");
        assert!(led <= own * MORE, "{what}: {led:.1} instead of {own:.1}");
    }
}
