//! A server engine and its clients, moved on step by step and in virtual time.
//!
//! WRITEs and READs take effect at once, unless the test holds a wire back. Whatever lands is checked
//! against the rules that hold always: no empty work request, no send queue past its depth (R11), no
//! source that changes before its WRITE has landed (R5), no WRITE to a zone that the server has taken
//! away (R4). A seat may also be *raw*: it has no client engine, and the test writes its bytes.

pub mod arena;
pub mod load;
pub mod raw;
pub mod wire;

use std::collections::VecDeque;

use scalerpc_core::client::{CallError, ClientConn, Failed};
use scalerpc_core::post::{Limits, ReadWr, WriteWr};
use scalerpc_core::server::{Action, Call, ConnState, OpenConn, ServerConfig};
use scalerpc_core::wire::{Placement, Status, Violation};
use scalerpc_core::{ClientEngine, Geometry, GeometryConfig, Mapping, Memory, ServerEngine};

use arena::{Arena, Boxed};
use wire::{Op, Wire, land, snapshot};

/// What a rig is made of.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub geometry: GeometryConfig,
    pub server: ServerConfig,
    pub limits: Limits,
    /// Time that passes with each call that is handed out.
    pub handler_ns: u64,
    /// Calls are kept, and answered only by [`Rig::answer_kept`].
    pub keep_calls: bool,
    /// The back end says at once that a revocation is done.
    pub revokes: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            geometry: GeometryConfig {
                clients_max: 8,
                group_size: 4,
                window: 4,
                request_max_bytes: 100,
                response_max_bytes: 100,
                mapping: Mapping::Virtual,
            },
            server: ServerConfig::default(),
            limits: Limits {
                sq_depth: 64,
                sge_max: 4,
                inline_max: 0,
                can_revoke: false,
                placement: Placement::InOrder,
            },
            handler_ns: 0,
            keep_calls: false,
            revokes: true,
        }
    }
}

impl Setup {
    /// Groups of one, so that every other client is in another group.
    pub fn single_groups(clients: u32) -> Self {
        let mut setup = Self::default();
        setup.geometry.clients_max = clients;
        setup.geometry.group_size = 1;
        setup
    }
}

/// How a call ended at its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Answer {
        call: u64,
        status: Status,
        bytes: Vec<u8>,
    },
    Failed {
        call: u64,
        may_have_run: bool,
    },
}

pub struct Client {
    pub engine: ClientEngine<Boxed>,
    pub exposed: Arena,
    pub private: Arena,
    pub up: Wire,
    pub down: Wire,
    pub ended: Vec<Ended>,
    /// It does nothing of its own accord.
    pub stopped: bool,
    /// Tenancies up to this one may not write.
    pub revoked: u64,
    pub violation: Option<Violation>,
}

/// A request as its handler saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub seat: u32,
    pub number: u64,
    pub method: u16,
    pub bytes: Vec<u8>,
    pub at_ns: u64,
}

/// What the server asked for, one line per action.
#[derive(Default)]
pub struct Log {
    pub served: Vec<Served>,
    pub closed: Vec<(u32, Option<Violation>)>,
    pub revocations: Vec<(u32, u64)>,
    /// READs and WRITEs that went to raw seats.
    pub raw_reads: Vec<ReadWr>,
    pub raw_writes: Vec<WriteWr>,
    /// Everything, in order, as text.
    pub trace: Vec<String>,
    pub tracing: bool,
}

pub struct Rig {
    pub setup: Setup,
    pub geometry: Geometry,
    pub server: ServerEngine<Boxed>,
    pub exposed: Arena,
    pub private: Arena,
    pub clients: Vec<Option<Client>>,
    /// Owners of all seats, raw ones too.
    pub owners: Vec<u64>,
    pub now_ns: u64,
    pub log: Log,
    pub kept: VecDeque<Call>,
    next_owner: u64,
}

/// What the clients' clock shows when the server's shows 0.
const CLIENTS_CLOCK_NS: u64 = 77_000_000_000;

/// Time that a round of the server takes in which it finds nothing to do.
const ROUND_NS: u64 = 200;

/// No scenario needs more steps than this.
const ENDLESS: usize = 1_000_000;

impl Rig {
    pub fn new(setup: Setup) -> Self {
        let geometry = Geometry::new(setup.geometry).expect("the geometry is valid");
        let server =
            arena::server_engine(geometry, setup.server, setup.limits).expect("the limits suffice");
        let seats = geometry.clients_max() as usize;
        Self {
            setup,
            geometry,
            server,
            exposed: Arena::new(geometry.server_exposed_bytes()),
            private: Arena::new(geometry.server_private_bytes()),
            clients: (0..seats).map(|_| None).collect(),
            owners: vec![0; seats],
            now_ns: 0,
            log: Log::default(),
            kept: VecDeque::new(),
            next_owner: 0x1000_0000_0000_0001,
        }
    }

    /// A rig with clients in the seats from 0.
    pub fn with_clients(setup: Setup, clients: u32) -> Self {
        let mut rig = Self::new(setup);
        for seat in 0..clients {
            rig.open(seat);
        }
        rig
    }

    /// Opens a seat at the server only; returns its owner word.
    pub fn open_raw(&mut self, seat: u32) -> u64 {
        let owner = self.next_owner;
        self.next_owner += 0x0101;
        self.clear_entry(seat);
        self.owners[seat as usize] = owner;
        let opened = self.server.open(OpenConn {
            seat,
            owner,
            ring_at: self.geometry.ring(0),
            staging_at: self.geometry.staging(0),
            placement: self.setup.limits.placement,
        });
        assert!(opened, "seat {seat} is free");
        owner
    }

    /// As every back end does before it says that a connection is open.
    fn clear_entry(&self, seat: u32) {
        let exposed = self.exposed.region();
        let entry = self.geometry.endpoint(seat);
        for at in (entry..entry + 64).step_by(8) {
            exposed.store(at, 0);
        }
        exposed.store_byte_release(self.geometry.demand_byte(seat), 0);
    }

    /// Opens a seat with a client.
    pub fn open(&mut self, seat: u32) {
        let owner = self.open_raw(seat);
        let conn = ClientConn {
            connection: 0,
            seat,
            owner,
        };
        let engine = arena::client_engine(self.geometry, self.setup.limits, conn)
            .expect("the limits suffice");
        self.clients[seat as usize] = Some(Client {
            engine,
            exposed: Arena::new(self.geometry.client_exposed_bytes()),
            private: Arena::new(self.geometry.client_private_bytes()),
            up: Wire::default(),
            down: Wire::default(),
            ended: Vec::new(),
            stopped: false,
            revoked: 0,
            violation: None,
        });
    }

    pub fn client(&mut self, seat: u32) -> &mut Client {
        self.clients[seat as usize]
            .as_mut()
            .expect("the seat has a client")
    }

    /// The server's view of a seat.
    pub fn state(&self, seat: u32) -> ConnState {
        self.server.seat(seat).expect("the seat exists").0
    }

    pub fn zone(&self, seat: u32) -> Option<u32> {
        self.server.seat(seat).expect("the seat exists").1
    }

    /// Makes a call. Its tag is the complement of its number.
    pub fn call(&mut self, seat: u32, bytes: &[u8]) -> Result<u64, CallError> {
        let client = self.client(seat);
        let tag = !(client.engine.counters().calls + 1);
        client.engine.call(7, bytes, tag, client.private.region())
    }

    /// Makes a call with a budget, by a clock of the client's own.
    pub fn call_within(
        &mut self,
        seat: u32,
        bytes: &[u8],
        budget_ns: u64,
    ) -> Result<u64, CallError> {
        let now_ns = self.now_ns + CLIENTS_CLOCK_NS;
        let client = self.client(seat);
        let tag = !(client.engine.counters().calls + 1);
        let private = client.private.region();
        client
            .engine
            .call_within(7, bytes, tag, budget_ns, now_ns, private)
    }

    /// Posts everything that a client has to post; returns how many WRITEs.
    pub fn post(&mut self, seat: u32) -> usize {
        let depth = self.setup.limits.sq_depth;
        let now_ns = self.now_ns + CLIENTS_CLOCK_NS;
        let engine = &mut self.client(seat).engine;
        if engine.wants_time() {
            engine.pass(now_ns);
        }
        for count in 0..ENDLESS {
            let client = self.client(seat);
            let (exposed, private) = (client.exposed.region(), client.private.region());
            let Some(wr) = client.engine.next_write(exposed, private) else {
                return count;
            };
            if wr.epoch.is_some_and(|epoch| epoch <= client.revoked) {
                client.engine.refused();
                continue;
            }
            let op = Op::write(wr, client.private.region());
            if self.log.tracing {
                self.log.trace.push(format!("client {seat} {wr:?}"));
            }
            self.client(seat).up.post(op, depth);
            self.deliver(seat);
        }
        unreachable!("a client posts without end")
    }

    /// Takes completions and answers.
    pub fn poll(&mut self, seat: u32) {
        let client = self.client(seat);
        while let Some(completion) = client.up.poll() {
            client.engine.completed(completion);
        }
        loop {
            match client.engine.poll(client.exposed.region()) {
                Ok(Some(answer)) => {
                    assert_eq!(answer.tag, !answer.call, "the caller's own tag comes back");
                    let mut bytes = vec![0; answer.payload_len];
                    let at = answer.payload_at;
                    client.exposed.region().copy_out(at, &mut bytes);
                    client.ended.push(Ended::Answer {
                        call: answer.call,
                        status: answer.status,
                        bytes,
                    });
                }
                Ok(None) => break,
                Err(why) => client.violation = Some(why),
            }
        }
        while let Some(Failed {
            call, may_have_run, ..
        }) = client.engine.take_failed()
        {
            client.ended.push(Ended::Failed { call, may_have_run });
        }
    }

    /// Lands what is on a connection's wires, unless they are held.
    pub fn deliver(&mut self, seat: u32) {
        self.deliver_up(seat, usize::MAX);
        self.deliver_down(seat, usize::MAX);
    }

    /// Lands at most `count` of a client's WRITEs.
    pub fn deliver_up(&mut self, seat: u32, count: usize) {
        let server = self.exposed.region();
        let inline_max = self.setup.limits.inline_max;
        let holder = self.server.seat(seat).and_then(|(_, zone)| zone);
        let Some(client) = self.clients[seat as usize].as_mut() else {
            return;
        };
        for _ in 0..count.min(client.up.ops.len()) {
            if client.up.held {
                return;
            }
            let Some(op) = client.up.ops.pop_front() else {
                return;
            };
            let Op::Write { wr, bytes } = &op else {
                unreachable!("clients do not READ");
            };
            assert!(wr.len > 0, "E2: an empty work request");
            if wr.epoch.is_some() {
                let zone = zone_at(&self.geometry, wr.remote);
                assert_eq!(holder, Some(zone), "R4: seat {seat} writes to zone {zone}");
            }
            if wr.len > inline_max {
                let now = snapshot(client.private.region(), wr.local, wr.len);
                assert_eq!(&now, bytes, "R5: a source changed before its WRITE landed");
            }
            land(server, wr.remote, bytes);
            client.up.done(&op);
        }
    }

    /// Lands at most `count` of the server's work requests.
    pub fn deliver_down(&mut self, seat: u32, count: usize) {
        let (exposed, private) = (self.exposed.region(), self.private.region());
        let inline_max = self.setup.limits.inline_max;
        let Some(client) = self.clients[seat as usize].as_mut() else {
            return;
        };
        for _ in 0..count.min(client.down.ops.len()) {
            if client.down.held {
                return;
            }
            let Some(op) = client.down.ops.pop_front() else {
                return;
            };
            match &op {
                Op::Write { wr, bytes } => {
                    assert!(wr.len > 0, "E2: an empty work request");
                    if wr.len > inline_max {
                        let now = snapshot(private, wr.local, wr.len);
                        assert_eq!(&now, bytes, "R5: a source changed before its WRITE landed");
                    }
                    land(client.exposed.region(), wr.remote, bytes);
                }
                Op::Read(wr) => {
                    assert!(wr.count > 0 && wr.stride > 0, "E2: an empty work request");
                    assert!(wr.count <= self.setup.limits.sge_max);
                    for (i, to) in wr.targets(&self.geometry).enumerate() {
                        let from = wr.remote + i * wr.stride;
                        exposed.copy_from(to, client.exposed.region(), from, wr.stride);
                    }
                }
            }
            client.down.done(&op);
        }
    }

    pub fn complete_server(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            while let Some(completion) = client.down.poll() {
                self.server.completed(completion);
            }
        }
    }

    /// The server's next action, carried out. False if it is idle.
    pub fn act(&mut self) -> bool {
        self.complete_server();
        let (exposed, private) = (self.exposed.region(), self.private.region());
        let action = self.server.next_action(self.now_ns, exposed, private);
        if self.log.tracing {
            self.log.trace.push(format!("server {action:?}"));
        }
        match action {
            Action::Idle => return false,
            Action::Call(call) => self.handle(call),
            other => self.carry_out(other),
        }
        true
    }

    /// An action that is no call.
    pub fn carry_out(&mut self, action: Action) {
        match action {
            Action::Write(wr) => self.post_server(wr),
            Action::Read(wr) => self.read(wr),
            Action::Revoke { seat, epoch } => {
                self.log.revocations.push((seat, epoch));
                let mut writing = false;
                if let Some(client) = self.clients[seat as usize].as_mut() {
                    client.revoked = client.revoked.max(epoch);
                    writing = client.up.writes_to_a_zone();
                }
                if self.setup.revokes && !writing {
                    self.server.revoked(seat, epoch);
                }
            }
            Action::Close { seat, why } => self.log.closed.push((seat, why)),
            Action::Idle | Action::Call(_) => unreachable!("{action:?}"),
        }
    }

    fn handle(&mut self, call: Call) {
        self.now_ns += self.setup.handler_ns;
        let mut bytes = vec![0; call.request_len];
        self.exposed.region().copy_out(call.request_at, &mut bytes);
        self.log.served.push(Served {
            seat: call.seat,
            number: call.number,
            method: call.method,
            bytes,
            at_ns: self.now_ns,
        });
        if self.setup.keep_calls {
            self.kept.push_back(call);
        } else {
            self.answer(call);
        }
    }

    /// Echoes the request, as far as a response holds it.
    fn answer(&mut self, call: Call) {
        let (exposed, private) = (self.exposed.region(), self.private.region());
        let len = call.request_len.min(self.geometry.response_max_bytes());
        let mut bytes = vec![0; len];
        exposed.copy_out(call.request_at, &mut bytes);
        private.copy_in(call.response_at, &bytes);
        if let Some(wr) = self.server.reply(call, Status::OK, len, exposed, private) {
            self.post_server(wr);
        }
    }

    /// Answers the oldest call that was kept.
    pub fn answer_kept(&mut self) {
        let call = self.kept.pop_front().expect("a call was kept");
        self.answer(call);
    }

    pub fn post_server(&mut self, wr: WriteWr) {
        let seat = wr.connection;
        let op = Op::write(wr, self.private.region());
        match self.clients[seat as usize].as_mut() {
            Some(client) => client.down.post(op, self.setup.limits.sq_depth),
            None => self.log.raw_writes.push(wr),
        }
        self.deliver(seat);
    }

    fn read(&mut self, wr: ReadWr) {
        let seat = wr.connection;
        match self.clients[seat as usize].as_mut() {
            Some(client) => client.down.post(Op::Read(wr), self.setup.limits.sq_depth),
            None => self.log.raw_reads.push(wr),
        }
        self.deliver(seat);
    }

    /// Runs the server until it has nothing to do; returns how many actions that took.
    pub fn serve(&mut self) -> usize {
        // A round is over at `Idle`; what it began may bear fruit in the next ones.
        let (mut actions, mut idle) = (0, 0);
        for _ in 0..ENDLESS {
            if self.act() {
                (actions, idle) = (actions + 1, 0);
            } else {
                idle += 1;
                self.now_ns += ROUND_NS;
                if idle == 4 {
                    return actions;
                }
            }
        }
        unreachable!("the server works without end")
    }

    /// Each client that is not stopped takes its answers and posts its WRITEs.
    pub fn clients_turn(&mut self) {
        for seat in 0..self.clients.len() as u32 {
            if self.clients[seat as usize]
                .as_ref()
                .is_some_and(|client| !client.stopped)
            {
                self.deliver(seat);
                self.poll(seat);
                self.post(seat);
            }
        }
    }

    /// Everybody's turn; `ns` pass.
    pub fn turn(&mut self, ns: u64) {
        self.now_ns += ns;
        self.clients_turn();
        self.serve();
    }

    /// Turns until no call of a client that is not stopped is outstanding.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            self.turn(1_000);
            let busy = self.clients.iter().flatten();
            if busy
                .filter(|client| !client.stopped)
                .all(|client| client.engine.outstanding() == 0)
            {
                return;
            }
        }
        panic!("calls never end: {:?}", self.server.counters());
    }

    /// The connection is fenced: the server hears that it is gone, the client that it is lost.
    pub fn fence(&mut self, seat: u32) {
        self.server.gone(seat);
        if let Some(mut client) = self.clients[seat as usize].take() {
            client.engine.lost();
            client.up.ops.clear();
            client.down.ops.clear();
            self.clients[seat as usize] = Some(client);
            self.poll(seat);
        }
    }

    /// Calls that were answered at a seat, in order.
    pub fn answered(&mut self, seat: u32) -> Vec<u64> {
        let ended = self.client(seat).ended.iter();
        ended
            .filter_map(|it| match it {
                Ended::Answer { call, .. } => Some(*call),
                Ended::Failed { .. } => None,
            })
            .collect()
    }

    /// When each call of a seat ran.
    pub fn served(&self, seat: u32) -> Vec<(u64, u64)> {
        let served = self.log.served.iter().filter(|it| it.seat == seat);
        served.map(|it| (it.number, it.at_ns)).collect()
    }
}

/// The zone, over both pools, that holds an offset of the server's exposed memory.
pub fn zone_at(geometry: &Geometry, at: usize) -> u32 {
    let window = u64::from(geometry.window());
    (0..geometry.pools() * geometry.zones())
        .find(|zone| {
            let (pool, zone) = (zone / geometry.zones(), zone % geometry.zones());
            let first = geometry.block_end(pool, zone, 0) - geometry.request_block_bytes();
            (first..geometry.block_end(pool, zone, window - 1)).contains(&at)
        })
        .expect("the offset is in a zone")
}
