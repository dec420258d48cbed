//! The real engines over the memories of a [`World`], posting as the shared memory back end does.

use scalerpc_core::client::{Answer, ClientConn, ClientCounters};
use scalerpc_core::post::{Completion, Limits, WcStatus, WrId, WriteWr};
use scalerpc_core::scheduler::{Follower, Report};
use scalerpc_core::server::{Action, Call, ConnState, OpenConn, ServerConfig};
use scalerpc_core::wire::{Placement, Status};
use scalerpc_core::{ClientEngine, Geometry, Memory, ServerEngine};
use scalerpc_driver::shm::guard::{self, ClientFence};
use scalerpc_driver::store::{Boxed, client_engine, server_engine};

use crate::membarrier::Membarrier;
use crate::memory::LoomMemory;
use crate::message::{PAYLOAD, payload};
use crate::shm;
use crate::world::{World, owner};

/// As the shared memory back end has them.
fn limits(geometry: &Geometry) -> Limits {
    Limits {
        sq_depth: 2 * geometry.window() + 8,
        sge_max: 32,
        inline_max: usize::MAX,
        can_revoke: true,
        placement: Placement::InOrder,
    }
}

fn done(wr_id: WrId) -> Completion {
    Completion {
        wr_id,
        status: WcStatus::Success,
    }
}

/// A client's end.
pub struct ClientRig {
    engine: ClientEngine<Boxed>,
    world: World,
    which: usize,
    private: LoomMemory,
    fence: ClientFence,
}

impl ClientRig {
    /// The client of that number, whose seat has the same.
    ///
    /// # Panics
    ///
    /// If the limits do not suffice for the geometry.
    pub fn new(world: World, which: usize) -> Self {
        let geometry = world.geometry;
        let conn = ClientConn {
            connection: 0,
            seat: which as u32,
            owner: owner(which),
        };
        let engine = client_engine(geometry, limits(&geometry), conn);
        Self {
            engine: engine.expect("the limits suffice"),
            private: LoomMemory::private(geometry.client_private_bytes()),
            fence: ClientFence::Full,
            world,
            which,
        }
    }

    /// The same client, from now on with another view of the world.
    #[must_use]
    pub fn seeing(self, world: World) -> Self {
        Self { world, ..self }
    }

    /// The same client, whose fences are light from now on, with a server that never revokes: nothing
    /// but the copies themselves orders its WRITEs.
    #[must_use]
    pub fn with_light_fences(mut self) -> Self {
        let kernel = Membarrier::default();
        let own = &mut self.world.clients[self.which];
        *own = own.interrupted_by(&kernel);
        self.fence = ClientFence::Light;
        self
    }

    /// Makes the call that comes next, and posts what can be posted.
    ///
    /// # Panics
    ///
    /// If the window is full.
    pub fn call(&mut self) {
        let number = self.engine.counters().calls + 1;
        let request = payload(owner(self.which), number);
        let made = self
            .engine
            .call(number as u16, &request, number, &self.private);
        assert_eq!(made, Ok(number), "the window has room");
        self.flush();
    }

    /// Posts what can be posted.
    pub fn flush(&mut self) {
        let own = &self.world.clients[self.which];
        while let Some(wr) = self.engine.next_write(own, &self.private) {
            let epoch = wr.epoch.unwrap_or(guard::ENDED);
            if !guard::begin_write(own, self.world.guard(), epoch, self.fence) {
                self.engine.refused();
                return;
            }
            shm::write(
                &self.world.server,
                wr.remote,
                &self.private,
                wr.local,
                wr.len,
            );
            guard::end_write(own, self.world.guard());
            if wr.signaled {
                self.engine.completed(done(wr.wr_id));
            }
        }
    }

    /// Takes what the server has sent, and posts what follows from it; an answer is checked.
    ///
    /// # Panics
    ///
    /// If what has come is not whole.
    pub fn poll(&mut self) -> Option<Answer> {
        let own = &self.world.clients[self.which];
        let answer = self.engine.poll(own).expect("torn response");
        if let Some(answer) = &answer {
            let mut bytes = [0; PAYLOAD];
            own.copy_out(answer.payload_at, &mut bytes);
            assert_eq!(
                bytes,
                payload(owner(self.which), answer.call),
                "torn response"
            );
            own.owned_bytes(answer.payload_at, answer.payload_len);
        }
        self.flush();
        answer
    }

    /// What has happened.
    pub fn counters(&self) -> ClientCounters {
        self.engine.counters()
    }
}

/// What came of one step of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something was done.
    Busy,
    /// There was nothing to do.
    Idle,
    /// A revocation waits for a client.
    Pending,
}

/// The server's end.
pub struct ServerRig {
    /// On the heap: a model's threads have stacks of 32 KiB.
    engine: Box<ServerEngine<Boxed>>,
    world: World,
    private: LoomMemory,
    now_ns: u64,
    /// By seat, the last call that ran.
    ran: Vec<u64>,
}

impl ServerRig {
    /// A server to which every client of the world is connected.
    ///
    /// # Panics
    ///
    /// If the limits do not suffice for the geometry.
    #[inline(never)]
    pub fn new(world: World, config: ServerConfig) -> Self {
        let geometry = world.geometry;
        let engine = server_engine(geometry, config, limits(&geometry));
        let mut engine = Box::new(engine.expect("the limits suffice"));
        for seat in 0..world.clients.len() {
            let opened = engine.open(OpenConn {
                seat: seat as u32,
                owner: owner(seat),
                ring_at: geometry.ring(0),
                staging_at: geometry.staging(0),
                placement: limits(&geometry).placement,
            });
            assert!(opened, "the seat is free");
        }
        Self {
            engine,
            private: LoomMemory::private(geometry.server_private_bytes()),
            now_ns: 0,
            ran: vec![0; world.clients.len()],
            world,
        }
    }

    /// Carries out the next action, `passed_ns` after the last one.
    ///
    /// # Panics
    ///
    /// If a request is not whole, or not the one that comes next, or the engine finds that a client
    /// broke the protocol.
    pub fn step(&mut self, passed_ns: u64) -> Turn {
        self.now_ns += passed_ns;
        let server = &self.world.server;
        match self.engine.next_action(self.now_ns, server, &self.private) {
            Action::Idle => return Turn::Idle,
            Action::Call(call) => self.run(call),
            Action::Write(wr) => self.post(&wr),
            Action::Read(wr) => {
                let source = &self.world.clients[wr.connection as usize];
                shm::read(&self.world.geometry, server, source, &wr);
                self.engine.completed(done(wr.wr_id));
            }
            Action::Revoke { seat, epoch } => {
                let memory = &self.world.clients[seat as usize];
                guard::raise(memory, self.world.guard(), epoch);
                memory.fence_full();
                if !guard::is_quiet(memory, self.world.guard()) {
                    return Turn::Pending;
                }
                self.engine.revoked(seat, epoch);
            }
            Action::Close { seat, why } => {
                assert!(
                    why.is_none(),
                    "torn: seat {seat} seems to have sent {why:?}"
                );
            }
        }
        Turn::Busy
    }

    fn run(&mut self, call: Call) {
        let seat = call.seat as usize;
        let wanted = payload(owner(seat), call.number);
        let server = &self.world.server;
        let mut bytes = [0; PAYLOAD];
        server.copy_out(call.request_at, &mut bytes);
        assert_eq!(bytes, wanted, "torn request");
        assert_eq!(u64::from(call.method), call.number, "torn request");
        assert_eq!(
            call.number,
            self.ran[seat] + 1,
            "calls run once and in order"
        );
        self.ran[seat] = call.number;
        server.owned_bytes(call.request_at, call.request_len);
        self.private.copy_in(call.response_at, &wanted);
        let reply = self
            .engine
            .reply(call, Status::OK, PAYLOAD, server, &self.private);
        if let Some(wr) = reply {
            self.post(&wr);
        }
    }

    fn post(&mut self, wr: &WriteWr) {
        let to = &self.world.clients[wr.connection as usize];
        shm::write(to, wr.remote, &self.private, wr.local, wr.len);
        if wr.signaled {
            self.engine.completed(done(wr.wr_id));
        }
    }

    /// A look at the board of the scheduler.
    pub fn follow(&mut self, follower: &mut Follower, board: &LoomMemory) {
        follower.follow(&mut self.engine, board);
    }

    /// What the engine has to report.
    pub fn report(&mut self) -> Report {
        self.engine.report()
    }

    /// The last call of a seat that ran.
    pub fn ran(&self, seat: usize) -> u64 {
        self.ran[seat]
    }

    /// The state of a seat, and its zone.
    pub fn seat(&self, seat: usize) -> Option<(ConnState, Option<u32>)> {
        self.engine.seat(seat as u32)
    }
}
