//! Several servers and clients that need all of them for each operation, in virtual time with a cost for everything.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use scalerpc_core::client::ClientConn;
use scalerpc_core::post::{Limits, ReadWr, WriteWr};
use scalerpc_core::server::{Action, Call, Grouping, OpenConn, ServerConfig};
use scalerpc_core::together::Rotation;
use scalerpc_core::wire::{Placement, Status};
use scalerpc_core::{ClientEngine, Geometry, GeometryConfig, Mapping, Memory, ServerEngine};
use scalerpc_driver::store::{self, Boxed};
use scalerpc_driver::{Fabric, FabricEvent, Revocation};

use super::Costs;
use super::hosts::Hosts;
use crate::fabric::{ClientEnd, Net, ServerEnd, Unkind};
use crate::oracle::Broken;

const METHOD: u16 = 1;
const WINDOW: u32 = 8;
/// Rounds of a server between two looks at whether all adds up.
const AUDIT_ROUNDS: u32 = 500;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Clients; each has a connection to each server.
    pub clients: u32,
    /// Connections that are served together.
    pub group_size: u32,
    /// Operations that a client has outstanding; each is a call to every server.
    pub depth: u32,
    /// A client's pause after an operation.
    pub think_ns: u64,
    /// Length of a slice.
    pub slice_ns: u64,
    /// A group from which nothing has come for this long yields.
    pub idle_switch_ns: u64,
}

impl Load {
    /// As many beats as there are groups.
    pub(super) fn rotation(&self) -> Result<Rotation, Broken> {
        let groups = self.clients.div_ceil(self.group_size).max(1);
        let beats = u16::try_from(groups).map_err(|it| it.to_string())?;
        Rotation::new(self.slice_ns, beats).map_err(|it| it.to_string())
    }
}

/// How the servers go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each by itself. The clients connected in the same order everywhere, so that groups are the same.
    Apart,
    /// Each by itself, and clients connected in any order.
    Mixed,
    /// Three follow the first.
    Together,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Operations done.
    pub operations: u64,
    /// Switches of all servers.
    pub switches: u64,
    /// By how much ends of beats were apart at most.
    pub off_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// What a connection's client (`true`) or its server posted first has arrived.
    Land(usize, u32, bool),
    Serve(usize),
    Client(usize),
}

struct Server {
    engine: ServerEngine<Boxed>,
    end: ServerEnd,
    /// By seat: the client, when what was posted last in each direction arrives, and the last call that ran.
    clients: Vec<usize>,
    busy_until_ns: Vec<[u64; 2]>,
    ran: Vec<u64>,
    rounds: u32,
}

struct Connection {
    engine: ClientEngine<Boxed>,
    end: ClientEnd,
    seat: u32,
    /// Operations whose call here was answered.
    answered: u64,
}

struct Client {
    connections: Vec<Connection>,
    /// Operations begun, and when the next may begin.
    begun: u64,
    done: u64,
    ready_ns: u64,
    /// There is an event for it.
    woken: bool,
}

pub(super) struct Farm {
    load: Load,
    costs: Costs,
    hosts: Hosts,
    now_ns: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    servers: Vec<Server>,
    clients: Vec<Client>,
    follows: bool,
    off_ns: u64,
}

fn limits() -> Limits {
    Limits {
        sq_depth: 64,
        sge_max: 16,
        inline_max: 0,
        can_revoke: false,
        placement: Placement::InOrder,
    }
}

impl Farm {
    pub(super) fn new(
        load: Load,
        costs: Costs,
        mode: Mode,
        hosts: Hosts,
        seed: u64,
    ) -> Result<Self, Broken> {
        let config = GeometryConfig {
            clients_max: load.clients,
            group_size: load.group_size,
            window: WINDOW,
            request_max_bytes: 32,
            response_max_bytes: 32,
            mapping: Mapping::Virtual,
        };
        let geometry = Geometry::new(config).map_err(|it| it.to_string())?;
        let mut farm = Self {
            load,
            costs,
            now_ns: hosts.now_ns(),
            hosts,
            sequence: 0,
            events: BinaryHeap::new(),
            servers: Vec::new(),
            clients: (0..load.clients)
                .map(|_| Client {
                    connections: Vec::new(),
                    begun: 0,
                    done: 0,
                    ready_ns: 0,
                    woken: false,
                })
                .collect(),
            follows: mode == Mode::Together,
            off_ns: 0,
        };
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xfa23);
        let mut order: Vec<usize> = (0..load.clients as usize).collect();
        for at in 0..farm.hosts.count() {
            if mode != Mode::Apart {
                order.shuffle(&mut rng);
            }
            farm.add_server(at, geometry, &order, &mut rng)?;
        }
        for client in 0..farm.clients.len() {
            let at_ns = rng.random_range(0..load.slice_ns);
            farm.wake(client, at_ns);
        }
        Ok(farm)
    }

    fn add_server(
        &mut self,
        at: usize,
        geometry: Geometry,
        order: &[usize],
        rng: &mut SmallRng,
    ) -> Result<(), Broken> {
        let config = ServerConfig {
            time_slice_ns: self.load.slice_ns,
            idle_switch_ns: self.load.idle_switch_ns,
            grouping: Grouping::Arrival,
            ..ServerConfig::default()
        };
        let seats = order.len();
        let engine = store::server_engine(geometry, config, limits());
        let mut server = Server {
            engine: engine.ok_or("the limits do not suffice")?,
            end: Net::with_server(geometry, limits(), Unkind::default(), rng.random()),
            clients: order.to_vec(),
            busy_until_ns: vec![[0; 2]; seats],
            ran: vec![0; seats],
            rounds: 0,
        };
        for (seat, &client) in (0..).zip(order) {
            let owner = rng.random();
            let end = Net::connect(server.end.net(), &[seat], &[owner]);
            let conn = ClientConn {
                connection: 0,
                seat,
                owner,
            };
            let engine = store::client_engine(geometry, limits(), conn);
            self.clients[client].connections.push(Connection {
                engine: engine.ok_or("the limits do not suffice")?,
                end: end.ok_or("a seat is taken")?,
                seat,
                answered: 0,
            });
        }
        while let Some(FabricEvent::Opened(it)) = server.end.poll_event() {
            server.engine.open(OpenConn {
                seat: it.seat,
                owner: it.owner,
                ring_at: it.ring_at,
                staging_at: it.staging_at,
                placement: it.placement,
            });
        }
        if self.follows {
            let rotation = self.load.rotation()?;
            server.engine.set_slice_clock(Some(self.hosts.clock(at)));
            for (seat, &client) in (0..).zip(order) {
                let key = client as u32;
                server.engine.set_beat(seat, Some(rotation.beat_of(key)));
            }
        }
        self.servers.push(server);
        // Servers start at different times.
        let after_ns = rng.random_range(0..self.load.slice_ns);
        self.after(after_ns, Event::Serve(at));
        Ok(())
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.sequence += 1;
        let item = (self.now_ns + ns, self.sequence, event);
        self.events.push(Reverse(item));
    }

    fn wake(&mut self, client: usize, after_ns: u64) {
        if !self.clients[client].woken {
            self.clients[client].woken = true;
            self.after(after_ns, Event::Client(client));
        }
    }

    /// Work requests of one direction of a connection arrive in their order.
    fn post(&mut self, server: usize, seat: u32, up: bool, takes_ns: u64) {
        let at_ns = self.now_ns + takes_ns;
        let until_ns = &mut self.servers[server].busy_until_ns[seat as usize][usize::from(up)];
        *until_ns = at_ns.max(*until_ns);
        let takes_ns = *until_ns - self.now_ns;
        self.after(takes_ns, Event::Land(server, seat, up));
    }

    /// Runs for so long; what came of it.
    pub(super) fn run(&mut self, ns: u64) -> Result<Outcome, Broken> {
        let before = self.outcome();
        let end_ns = self.now_ns + ns;
        while let Some(Reverse((at_ns, _, event))) = self.events.pop() {
            if at_ns > end_ns {
                self.events.push(Reverse((at_ns, 0, event)));
                break;
            }
            self.now_ns = at_ns;
            match event {
                Event::Land(server, seat, up) => self.land(server, seat, up)?,
                Event::Serve(server) => self.serve(server)?,
                Event::Client(client) => self.client(client)?,
            }
        }
        let after = self.outcome();
        Ok(Outcome {
            operations: after.operations - before.operations,
            switches: after.switches - before.switches,
            off_ns: after.off_ns,
        })
    }

    fn outcome(&self) -> Outcome {
        let switches = |it: &Server| it.engine.counters().switches;
        Outcome {
            operations: self.clients.iter().map(|it| it.done).sum(),
            switches: self.servers.iter().map(switches).sum(),
            off_ns: self.off_ns,
        }
    }

    fn land(&mut self, at: usize, seat: u32, up: bool) -> Result<(), Broken> {
        let server = &mut self.servers[at];
        let mut net = server.end.change();
        let zone = net
            .wire(seat)
            .and_then(|it| it.up.transfers.front())
            .and_then(|it| it.zone);
        let holds = server.engine.seat(seat).and_then(|(_, zone)| zone);
        if up && zone.is_some() && zone != holds {
            return Err(format!("R4: bytes of seat {seat} land in {zone:?}"));
        }
        net.land(seat, up);
        if let Some(broken) = net.broken() {
            return Err(broken);
        }
        drop(net);
        if !up {
            let client = server.clients[seat as usize];
            self.wake(client, self.costs.client_ns);
        }
        Ok(())
    }

    /// One action of a server, or a round in which it finds nothing.
    fn serve(&mut self, at: usize) -> Result<(), Broken> {
        if self.follows {
            let adjusted = self.hosts.pass(at, self.now_ns)?;
            if adjusted {
                let clock = self.hosts.clock(at);
                self.servers[at].engine.set_slice_clock(Some(clock));
            }
        }
        let local_ns = self.hosts.local_ns(at, self.now_ns);
        let server = &mut self.servers[at];
        while let Some(completion) = server.end.poll_completion() {
            server.engine.completed(completion);
        }
        let (exposed, private) = (server.end.exposed(), server.end.private());
        let took_ns = match server.engine.next_action(local_ns, exposed, private) {
            Action::Idle => {
                self.audit(at)?;
                self.costs.round_ns
            }
            Action::Call(call) => {
                self.handle(at, call)?;
                self.costs.handler_ns
            }
            Action::Write(wr) => {
                self.post_write(at, &wr)?;
                self.costs.post_ns
            }
            Action::Read(wr) => {
                self.post_read(at, &wr)?;
                self.costs.post_ns
            }
            Action::Revoke { seat, epoch } => {
                let mut one = [Revocation {
                    seat,
                    epoch,
                    done: false,
                }];
                server.end.revoke_all(&mut one);
                self.costs.post_ns
            }
            Action::Close { seat, why } => {
                return Err(format!("R12: seat {seat} was evicted for {why:?}"));
            }
        };
        self.after(took_ns, Event::Serve(at));
        Ok(())
    }

    fn audit(&mut self, at: usize) -> Result<(), Broken> {
        let server = &mut self.servers[at];
        server.rounds += 1;
        if server.rounds % AUDIT_ROUNDS == 0 {
            server.engine.census()?;
            if self.follows {
                self.off_ns = self.off_ns.max(self.hosts.beats_apart_ns(at, self.now_ns)?);
            }
        }
        Ok(())
    }

    fn handle(&mut self, at: usize, call: Call) -> Result<(), Broken> {
        let server = &mut self.servers[at];
        let ran = &mut server.ran[call.seat as usize];
        if call.number != *ran + 1 || call.method != METHOD {
            return Err(format!("R2: call {} ran after {ran}", call.number));
        }
        *ran = call.number;
        let (exposed, private) = (server.end.exposed(), server.end.private());
        private.copy_in(call.response_at, &[0; 32]);
        let write = server.engine.reply(call, Status::OK, 32, exposed, private);
        match write {
            Some(wr) => self.post_write(at, &wr),
            None => Err("an answer to nobody".into()),
        }
    }

    fn post_write(&mut self, at: usize, wr: &WriteWr) -> Result<(), Broken> {
        let posted = self.servers[at].end.post_write(wr);
        posted.map_err(|it| it.to_string())?;
        self.post(at, wr.connection, false, self.costs.write_ns);
        Ok(())
    }

    fn post_read(&mut self, at: usize, wr: &ReadWr) -> Result<(), Broken> {
        let posted = self.servers[at].end.post_read(wr);
        posted.map_err(|it| it.to_string())?;
        self.post(at, wr.connection, false, self.costs.read_ns);
        Ok(())
    }

    /// A client takes its answers, begins operations, and posts.
    fn client(&mut self, at: usize) -> Result<(), Broken> {
        let (now_ns, think_ns) = (self.now_ns, self.load.think_ns);
        let client = &mut self.clients[at];
        client.woken = false;
        for connection in &mut client.connections {
            while let Some(completion) = connection.end.poll_completion() {
                connection.engine.completed(completion);
            }
            loop {
                let answer = connection.engine.poll(connection.end.exposed());
                let Some(answer) = answer.map_err(|it| format!("R12: {it}"))? else {
                    break;
                };
                connection.answered += 1;
                if answer.call != connection.answered {
                    return Err(format!("R1: call {} was answered", answer.call));
                }
            }
        }
        let answered = client.connections.iter().map(|it| it.answered);
        let done = answered.min().unwrap_or(0);
        if done > client.done {
            client.done = done;
            client.ready_ns = now_ns + think_ns;
        }
        let rested = now_ns >= client.ready_ns;
        while rested && client.begun - client.done < u64::from(self.load.depth) {
            for connection in &mut client.connections {
                let private = connection.end.private();
                let call = connection.engine.call(METHOD, &[7; 32], 0, private);
                call.map_err(|it| it.to_string())?;
            }
            client.begun += 1;
        }
        let rests_ns = client.ready_ns.saturating_sub(now_ns);
        self.post_client(at)?;
        if rests_ns > 0 {
            self.wake(at, rests_ns);
        }
        Ok(())
    }

    fn post_client(&mut self, at: usize) -> Result<(), Broken> {
        for server in 0..self.servers.len() {
            let connection = &mut self.clients[at].connections[server];
            let mut posts = 0;
            while let Some(wr) = connection
                .engine
                .next_write(connection.end.exposed(), connection.end.private())
            {
                let posted = connection.end.post_write(&wr);
                posted.map_err(|it| it.to_string())?;
                posts += 1;
            }
            let seat = connection.seat;
            for _ in 0..posts {
                self.post(server, seat, true, self.costs.write_ns);
            }
        }
        Ok(())
    }
}
