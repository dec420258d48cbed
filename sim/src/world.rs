//! A server, its clients and the fabric between them, moved on in random order.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scalerpc_core::client::CallError;
use scalerpc_core::post::{ReadWr, WriteWr};
use scalerpc_core::server::{Action, Counters};
use scalerpc_core::wire::{FLAG_EXT, FLAG_SWITCH};
use scalerpc_core::{ClientEngine, Geometry, Mapping, Memory, ServerEngine};
use scalerpc_driver::store::{self, Boxed};

use crate::arena::Arena;
use crate::config::Config;
use crate::net::{Queue, Transfer};
use crate::oracle::{Broken, Oracle, Request};

/// A client, and the two directions of its connection.
pub(crate) struct Peer {
    pub(crate) owner: u64,
    pub(crate) engine: ClientEngine<Boxed>,
    pub(crate) exposed: Arena,
    pub(crate) private: Arena,
    pub(crate) up: Queue,
    pub(crate) down: Queue,
    /// It does nothing before this time.
    pub(crate) asleep_ns: u64,
    pub(crate) dead: bool,
    /// It has broken the protocol: only what it does to others matters now.
    pub(crate) liar: bool,
    /// The connection has failed; the server hears of it at this time.
    pub(crate) down_ns: Option<u64>,
    /// Zones of tenancies up to this one may not be written to.
    pub(crate) revoked: u64,
}

/// How a run went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// The server's.
    pub counters: Counters,
    /// Steps that were made.
    pub steps: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that ended with an error.
    pub failed: u64,
    /// Calls that were cancelled.
    pub cancelled: u64,
    /// WRITEs refused because of a revocation.
    pub refused: u64,
}

/// See the [module](self).
pub struct World {
    pub(crate) config: Config,
    pub(crate) geometry: Geometry,
    pub(crate) rng: SmallRng,
    pub(crate) now_ns: u64,
    pub(crate) server: ServerEngine<Boxed>,
    pub(crate) exposed: Arena,
    pub(crate) private: Arena,
    pub(crate) peers: Vec<Option<Peer>>,
    pub(crate) oracle: Oracle,
    pub(crate) report: Report,
    pub(crate) faults: bool,
}

impl World {
    /// The world of a configuration, without clients yet.
    pub fn new(config: Config) -> Result<Self, Broken> {
        let geometry = config.sizes()?;
        let server = store::server_engine(geometry, config.server, config.limits)
            .ok_or("the limits do not suffice")?;
        let seats = geometry.clients_max() as usize;
        Ok(Self {
            config,
            geometry,
            rng: SmallRng::seed_from_u64(config.seed ^ 0x5eed),
            now_ns: 0,
            server,
            exposed: Arena::new(geometry.server_exposed_bytes()),
            private: Arena::new(geometry.server_private_bytes()),
            peers: (0..seats).map(|_| None).collect(),
            oracle: Oracle::default(),
            report: Report::default(),
            faults: true,
        })
    }

    /// Runs to the end.
    pub fn run(mut self) -> Result<Report, Broken> {
        for _ in 0..self.config.steps {
            self.step()?;
        }
        self.faults = false;
        self.settle()?;
        self.report.counters = self.server.counters();
        Ok(self.report)
    }

    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        self.rng.random_ratio(per_mille.min(1000), 1000)
    }

    fn step(&mut self) -> Result<(), Broken> {
        self.report.steps += 1;
        self.now_ns += self.rng.random_range(0..=self.config.chances.step_ns);
        let seat = self.rng.random_range(0..self.peers.len());
        if self.faults {
            self.disturb(seat)?;
        }
        for seat in 0..self.peers.len() {
            if self.chance(self.config.chances.deliver) {
                self.deliver(seat)?;
            }
            if self.chance(self.config.chances.poll) {
                self.poll_client(seat)?;
            }
        }
        self.serve()?;
        self.tear_down()
    }

    /// After the faults: everything that is outstanding ends.
    fn settle(&mut self) -> Result<(), Broken> {
        for peer in self.peers.iter_mut().flatten() {
            peer.asleep_ns = 0;
        }
        let mut quiet = 0;
        for _ in 0..200_000 {
            self.config.chances.deliver = self.config.chances.deliver.max(200);
            self.config.chances.poll = self.config.chances.poll.max(200);
            self.step()?;
            let mut left = 0;
            for peer in self.peers.iter().flatten() {
                left += if peer.liar || peer.dead {
                    0
                } else {
                    self.oracle.balance(peer.owner)?
                };
                left += usize::from(peer.down_ns.is_some());
            }
            quiet = if left == 0 { quiet + 1 } else { 0 };
            if quiet > 100 {
                return Ok(());
            }
        }
        let stuck: Vec<_> = (0..self.peers.len())
            .filter_map(|seat| {
                let peer = self.peers[seat].as_ref()?;
                if peer.liar {
                    return None;
                }
                let left = self.oracle.balance(peer.owner).ok()?;
                let client = (
                    peer.engine.state(),
                    peer.engine.parked(),
                    peer.engine.counters(),
                );
                let wires = (peer.up.transfers.len(), peer.down.transfers.len());
                Some((seat, left, client, self.server.seat(seat as u32), wires))
            })
            .filter(|stuck| stuck.1 > 0)
            .collect();
        Err(format!(
            "R1, R8: calls never end: {stuck:?}; {:?}",
            self.server.counters()
        ))
    }

    /// Moves an operation of the connection on.
    fn deliver(&mut self, seat: usize) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        let (rng, exposed, private) = (&mut self.rng, self.exposed.region(), self.private.region());
        let changed = |side| format!("R5: a source buffer of the {side} changed too early");
        if let Some(transfer) = peer.up.transfers.front_mut() {
            if let (Some(zone), false) = (transfer.zone, peer.liar) {
                // Rule R4: the server must not have given the zone away. (It may be told lies.)
                let holder = self.server.seat(seat as u32);
                if holder.and_then(|(_, zone)| zone) != Some(zone) {
                    return Err(format!(
                        "R4: seat {seat} writes to zone {zone}; it has {holder:?}"
                    ));
                }
            }
            if transfer
                .advance(peer.private.region(), exposed, rng)
                .map_err(|_| changed("client"))?
            {
                peer.up.finish();
            }
        }
        if let Some(transfer) = peer.down.transfers.front_mut() {
            let read = transfer.zone.is_some();
            let (source, target) = if read {
                (peer.exposed.region(), exposed)
            } else {
                (private, peer.exposed.region())
            };
            if transfer
                .advance(source, target, rng)
                .map_err(|_| changed("server"))?
            {
                peer.down.finish();
            }
        }
        Ok(())
    }

    /// A client's turn: takes answers, makes calls, posts.
    fn poll_client(&mut self, seat: usize) -> Result<(), Broken> {
        let (call, cancel) = (self.config.chances.call, self.config.chances.cancel);
        let calls = if self.faults && self.chance(call) {
            self.config.chances.burst
        } else {
            0
        };
        let cancels = self.faults && self.chance(cancel);
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        if peer.dead || peer.asleep_ns > self.now_ns {
            return Ok(());
        }
        while let Some(completion) = peer.up.poll() {
            peer.engine.completed(completion);
        }
        self.take_answers(seat)?;
        self.make_calls(seat, calls)?;
        if cancels {
            self.cancel(seat)?;
        }
        self.post_client(seat)
    }

    pub(crate) fn take_answers(&mut self, seat: usize) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        loop {
            let answer = match peer.engine.poll(peer.exposed.region()) {
                Ok(answer) => answer,
                Err(_) if peer.liar => return Ok(()),
                Err(why) => return Err(format!("the client found {why} in the ring")),
            };
            let Some(answer) = answer else { break };
            if peer.liar {
                continue;
            }
            let request = Request::of(peer.owner, answer.call, self.geometry.request_max_bytes());
            let (status, bytes) = request.answer(self.geometry.response_max_bytes());
            let mut got = vec![0; answer.payload_len];
            peer.exposed.region().copy_out(answer.payload_at, &mut got);
            if answer.tag != !answer.call || answer.status != status || got != bytes {
                return Err(format!("call {} got the wrong answer", answer.call));
            }
            self.report.answered += 1;
            self.oracle.ended(peer.owner, answer.call, true)?;
        }
        while let Some(failed) = peer.engine.take_failed() {
            self.report.failed += 1;
            if !peer.liar {
                self.oracle
                    .ended(peer.owner, failed.call, failed.may_have_run)?;
            }
        }
        Ok(())
    }

    fn make_calls(&mut self, seat: usize, count: u32) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        for _ in 0..count {
            let call = peer.engine.counters().calls + 1;
            let request = Request::of(peer.owner, call, self.geometry.request_max_bytes());
            let private = peer.private.region();
            match peer
                .engine
                .call(request.method, &request.bytes, !call, private)
            {
                Ok(number) if peer.liar => debug_assert_eq!(number, call),
                Ok(number) => self.oracle.issued(peer.owner, number)?,
                Err(CallError::WindowFull | CallError::Lost) => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn cancel(&mut self, seat: usize) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        let back = self.rng.random_range(0..=u64::from(self.geometry.window()));
        let call = peer.engine.counters().calls.saturating_sub(back);
        if peer.engine.cancel(call) && !peer.liar {
            self.report.cancelled += 1;
            self.oracle.cancelled(peer.owner, call)?;
        }
        Ok(())
    }

    fn post_client(&mut self, seat: usize) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        while let Some(wr) = peer
            .engine
            .next_write(peer.exposed.region(), peer.private.region())
        {
            if wr.epoch.is_some_and(|epoch| epoch <= peer.revoked) {
                peer.engine.refused();
                self.report.refused += 1;
                continue;
            }
            let mut transfer = Transfer::new(
                &[(wr.local, wr.remote, wr.len)],
                peer.private.region(),
                wr.len <= self.config.limits.inline_max,
                self.config.limits.placement,
                (wr.wr_id, wr.signaled),
                &mut self.rng,
            );
            transfer.zone = wr.epoch.map(|_| zone_at(&self.geometry, wr.remote));
            if peer.down_ns.is_some() {
                // Posted to a connection that has failed already.
                continue;
            }
            if !peer.up.post(transfer, self.config.limits.sq_depth) {
                return Err("R11: the client's send queue overflowed".into());
            }
        }
        Ok(())
    }

    /// The server's turn.
    fn serve(&mut self) -> Result<(), Broken> {
        for peer in self.peers.iter_mut().flatten() {
            while let Some(completion) = peer.down.poll() {
                self.server.completed(completion);
            }
        }
        for _ in 0..self.rng.random_range(1..40) {
            let action =
                self.server
                    .next_action(self.now_ns, self.exposed.region(), self.private.region());
            match action {
                Action::Idle => break,
                Action::Write(wr) => self.post_server_write(wr)?,
                Action::Read(wr) => self.post_server_read(wr)?,
                Action::Call(call) => self.handle(call)?,
                Action::Revoke { seat, epoch } => self.revoke(seat, epoch),
                Action::Close { seat, why } => {
                    let down_ns = self.now_ns + self.rng.random_range(0..100_000);
                    if let Some(peer) = &mut self.peers[seat as usize] {
                        if why.is_some() && !peer.liar {
                            return Err(format!("R12: an honest client was evicted for {why:?}"));
                        }
                        peer.down_ns.get_or_insert(down_ns);
                    }
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, call: scalerpc_core::server::Call) -> Result<(), Broken> {
        let (exposed, private) = (self.exposed.region(), self.private.region());
        let seat = call.seat as usize;
        let Some(peer) = &self.peers[seat] else {
            return Err("R12: a call of nobody".into());
        };
        let mut bytes = vec![0; call.request_len];
        exposed.copy_out(call.request_at, &mut bytes);
        let request = Request {
            method: call.method,
            bytes,
        };
        if !peer.liar {
            self.oracle.executed(peer.owner, call.number)?;
            if request != Request::of(peer.owner, call.number, self.geometry.request_max_bytes()) {
                return Err(format!("call {} ran with another's bytes", call.number));
            }
        }
        let (status, answer) = request.answer(self.geometry.response_max_bytes());
        private.copy_in(call.response_at, &answer);
        match self
            .server
            .reply(call, status, answer.len(), exposed, private)
        {
            Some(wr) => self.post_server_write(wr),
            None => Ok(()),
        }
    }

    fn post_server_write(&mut self, wr: WriteWr) -> Result<(), Broken> {
        let private = self.private.region();
        let Some(peer) = &mut self.peers[wr.connection as usize] else {
            return Err("a WRITE to nobody".into());
        };
        let end = wr.local + wr.len;
        let flags = (private.load(end - 24) >> 48) as u16;
        if flags & FLAG_EXT != 0 && flags & FLAG_SWITCH != 0 && !peer.liar {
            self.oracle.switched(peer.owner, private.load(end - 56))?;
        }
        let span = (wr.local, wr.remote, wr.len);
        self.post_down(wr.connection, &[span], false, (wr.wr_id, wr.signaled), None)
    }

    fn post_server_read(&mut self, wr: ReadWr) -> Result<(), Broken> {
        if let Some(peer) = &self.peers[wr.connection as usize] {
            self.oracle.fetched(peer.owner);
        }
        let spans: Vec<_> = wr
            .targets(&self.geometry)
            .enumerate()
            .map(|(i, to)| (wr.remote + i * wr.stride, to, wr.stride))
            .collect();
        let end = wr.remote + wr.count as usize * wr.stride;
        if end > self.geometry.client_exposed_bytes()
            || spans.len() > self.config.limits.sge_max as usize
        {
            return Err(format!(
                "R12: a READ outside of the client's memory: {wr:?}"
            ));
        }
        let zone = wr.pool * self.geometry.zones() + wr.zone;
        self.post_down(wr.connection, &spans, true, (wr.wr_id, true), Some(zone))
    }

    fn post_down(
        &mut self,
        seat: u32,
        spans: &[(usize, usize, usize)],
        read: bool,
        id: (scalerpc_core::post::WrId, bool),
        zone: Option<u32>,
    ) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat as usize] else {
            return Err("a work request to nobody".into());
        };
        let source = if read {
            peer.exposed.region()
        } else {
            self.private.region()
        };
        let len: usize = spans.iter().map(|span| span.2).sum();
        let inline = !read && len <= self.config.limits.inline_max;
        let placement = self.config.limits.placement;
        let mut transfer = Transfer::new(spans, source, inline, placement, id, &mut self.rng);
        transfer.zone = zone;
        if peer.down_ns.is_some() {
            return Ok(());
        }
        if !peer.down.post(transfer, self.config.limits.sq_depth) {
            return Err("R11: the server's send queue overflowed".into());
        }
        Ok(())
    }

    fn revoke(&mut self, seat: u32, epoch: u64) {
        let hesitate = self.chance(300);
        if let Some(peer) = &mut self.peers[seat as usize] {
            peer.revoked = peer.revoked.max(epoch);
            let writing = peer
                .up
                .transfers
                .iter()
                .any(|transfer| transfer.zone.is_some());
            if !writing && !hesitate {
                self.server.revoked(seat, epoch);
            }
        }
    }
}

/// The zone, over both pools, that holds an offset of the server's exposed memory.
fn zone_at(geometry: &Geometry, at: usize) -> u32 {
    let window = u64::from(geometry.window());
    (0..geometry.pools() * geometry.zones())
        .find(|zone| {
            let (pool, zone) = (zone / geometry.zones(), zone % geometry.zones());
            let first = geometry.block_end(pool, zone, 0) - geometry.request_block_bytes();
            (first..geometry.block_end(pool, zone, window - 1)).contains(&at)
        })
        .unwrap_or(u32::MAX)
}

/// True if a run of this configuration can show switches.
pub fn has_groups(config: &Config) -> bool {
    config.geometry.mapping == Mapping::Virtual
        && config.geometry.clients_max > config.geometry.group_size
}
