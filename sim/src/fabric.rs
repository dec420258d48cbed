//! The simulated fabric: both ends of its connections, as back ends of `scalerpc-driver`.
//!
//! [`Net`] holds what is under way. Nothing moves by itself: [`Net::advance`] moves one connection on.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scalerpc_core::memory::Region;
use scalerpc_core::post::{Completion, Limits, ReadWr, WriteWr};
use scalerpc_core::{Geometry, Memory};
use scalerpc_driver::{Fabric, FabricEvent, Opened, PostError, Revocation};

use crate::arena::Arena;
use crate::net::{Queue, Refusal, Span, Transfer};
use crate::oracle::Broken;

/// Memory of one end.
pub(crate) struct Machine {
    pub(crate) exposed: Arena,
    pub(crate) private: Arena,
}

/// How often the fabric is unkind, in 1/1000 of the occasions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unkind {
    /// Completions are kept back for another while.
    pub late: u32,
    /// A work request is refused, and the connection fails.
    pub refuse: u32,
    /// A revocation finds a WRITE under way.
    pub hesitate: u32,
    /// Longest time until a connection that ends is fenced.
    pub fence_ns: u64,
}

/// A connection.
pub(crate) struct Wire {
    pub(crate) owner: u64,
    client: Rc<Machine>,
    pub(crate) up: Queue,
    pub(crate) down: Queue,
    /// Nothing moves any more.
    pub(crate) cut: bool,
    /// The client's machine does not answer.
    pub(crate) dead: bool,
    /// When it is fenced, once that has begun.
    pub(crate) gone_ns: Option<u64>,
    told: bool,
    /// Zones of tenancies up to this one may not be written to.
    revoked: u64,
}

/// What is between the two ends.
pub struct Net {
    geometry: Geometry,
    limits: Limits,
    pub(crate) unkind: Unkind,
    rng: SmallRng,
    pub(crate) now_ns: u64,
    server: Rc<Machine>,
    wires: Vec<Option<Wire>>,
    opened: VecDeque<Opened>,
    broken: Option<Broken>,
    /// A byte of the demand map has landed, which wakes the server.
    pub(crate) knocked: bool,
    cursor: usize,
    /// How often each fault happened.
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

impl Net {
    /// A fabric, and the server's end of it.
    pub fn with_server(geometry: Geometry, limits: Limits, unkind: Unkind, seed: u64) -> ServerEnd {
        let machine = Rc::new(Machine {
            exposed: Arena::new(geometry.server_exposed_bytes()),
            private: Arena::new(geometry.server_private_bytes()),
        });
        let seats = geometry.clients_max() as usize;
        let net = Self {
            geometry,
            limits,
            unkind,
            rng: SmallRng::seed_from_u64(seed),
            now_ns: 0,
            server: machine.clone(),
            wires: (0..seats).map(|_| None).collect(),
            opened: VecDeque::new(),
            broken: None,
            knocked: false,
            cursor: 0,
            faults: BTreeMap::new(),
        };
        ServerEnd {
            net: Rc::new(RefCell::new(net)),
            machine,
            limits,
        }
    }

    /// The faults are over, and fences do not take long any more.
    pub(crate) fn calm_down(&mut self, unkind: Unkind) {
        self.unkind = unkind;
        let soon_ns = self.now_ns + unkind.fence_ns;
        for wire in self.wires.iter_mut().flatten().filter(|wire| !wire.dead) {
            wire.gone_ns = wire.gone_ns.map(|at| at.min(soon_ns));
        }
    }

    /// A rule that was broken at this fabric, if one was.
    pub fn broken(&mut self) -> Option<Broken> {
        self.broken.take()
    }

    fn breaks(&mut self, what: &str) {
        self.broken.get_or_insert_with(|| what.to_owned());
    }

    pub(crate) fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.random_ratio(per_mille.min(1000), 1000)
    }

    pub(crate) fn wire(&self, seat: u32) -> Option<&Wire> {
        self.wires.get(seat as usize)?.as_ref()
    }

    pub(crate) fn wire_mut(&mut self, seat: u32) -> Option<&mut Wire> {
        self.wires.get_mut(seat as usize)?.as_mut()
    }

    /// The time goes on.
    pub fn pass(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Moves what is first in each direction of a connection on, or `all` there is.
    pub fn advance(&mut self, seat: u32, all: bool) {
        while self.advance_one(seat, all) && all {}
        let late = self.unkind.late;
        for up in [true, false] {
            if !all && self.chance(late) {
                continue;
            }
            let Some(wire) = self.wire_mut(seat) else {
                return;
            };
            let queue = if up { &mut wire.up } else { &mut wire.down };
            if queue.report() > 1 {
                self.count("completions together");
            }
        }
    }

    fn advance_one(&mut self, seat: u32, all: bool) -> bool {
        let Some(wire) = self.wires.get_mut(seat as usize).and_then(Option::as_mut) else {
            return false;
        };
        if wire.cut || wire.dead {
            return false;
        }
        let (server, client, rng) = (&self.server, &wire.client, &mut self.rng);
        let (mut moved, mut changed) = (false, None);
        if let Some(transfer) = wire.up.transfers.front_mut() {
            moved = true;
            let (from, to) = (client.private.region(), server.exposed.region());
            match transfer.advance(from, to, all, rng) {
                Ok(true) => {
                    self.knocked |= transfer.wakes();
                    wire.up.finish();
                }
                Ok(false) => {}
                Err(_) => changed = Some("client"),
            }
        }
        if let Some(transfer) = wire.down.transfers.front_mut() {
            moved = true;
            let (from, to) = match transfer.read {
                true => (client.exposed.region(), server.exposed.region()),
                false => (server.private.region(), client.exposed.region()),
            };
            match transfer.advance(from, to, all, rng) {
                Ok(true) => wire.down.finish(),
                Ok(false) => {}
                Err(_) => changed = Some("server"),
            }
        }
        if let Some(side) = changed {
            self.breaks(&format!(
                "R5: a source buffer of the {side} changed while seat {seat}'s WRITE was under way"
            ));
        }
        moved && changed.is_none()
    }

    /// Lands what is first in one direction of a connection, whole; its completion can be polled.
    pub(crate) fn land(&mut self, seat: u32, up: bool) {
        let Some(wire) = self.wires.get_mut(seat as usize).and_then(Option::as_mut) else {
            return;
        };
        let (server, client) = (&self.server, &wire.client);
        let queue = if up { &mut wire.up } else { &mut wire.down };
        let Some(transfer) = queue.transfers.front_mut() else {
            return;
        };
        let (from, to) = match (up, transfer.read) {
            (true, _) => (&client.private, &server.exposed),
            (false, true) => (&client.exposed, &server.exposed),
            (false, false) => (&server.private, &client.exposed),
        };
        let landed = transfer.advance(from.region(), to.region(), true, &mut self.rng);
        queue.finish();
        queue.report();
        if landed.is_err() {
            self.breaks(&format!("R5: a source of seat {seat} changed under way"));
        }
    }

    /// The connection fails: what is under way is flushed, and both ends may see that.
    pub fn fail(&mut self, seat: u32) {
        let after_ns = self.rng.random_range(0..=self.unkind.fence_ns);
        let now_ns = self.now_ns;
        if let Some(wire) = self.wire_mut(seat) {
            wire.cut = true;
            wire.up.flush();
            wire.down.flush();
            wire.gone_ns.get_or_insert(now_ns + after_ns);
        }
    }

    /// The connection is to be fenced, which takes a while; until then it works.
    pub(crate) fn begin_fence(&mut self, seat: u32) {
        let after_ns = self.rng.random_range(0..=self.unkind.fence_ns);
        let now_ns = self.now_ns;
        if let Some(wire) = self.wire_mut(seat) {
            wire.gone_ns.get_or_insert(now_ns + after_ns);
        }
    }

    /// The client's machine is gone: nothing moves, and the fabric notices after a while.
    pub(crate) fn die(&mut self, seat: u32, gone_ns: u64) {
        if let Some(wire) = self.wire_mut(seat) {
            wire.dead = true;
            wire.gone_ns.get_or_insert(gone_ns);
        }
    }

    fn post(
        &mut self,
        (seat, up): (u32, bool),
        spans: &[Span],
        id: (scalerpc_core::post::WrId, bool),
        (read, zone, epoch): (bool, Option<u32>, Option<u64>),
    ) -> Result<(), PostError> {
        let refuse = self.unkind.refuse;
        if self.chance(refuse) {
            self.count("post refused");
            self.fail(seat);
            return Err(PostError::Down);
        }
        let (limits, server) = (self.limits, self.server.clone());
        let Some(wire) = self.wires.get_mut(seat as usize).and_then(Option::as_mut) else {
            return Err(PostError::Down);
        };
        if epoch.is_some_and(|epoch| epoch <= wire.revoked) {
            return Err(PostError::Revoked);
        }
        let source = match (up, read) {
            (true, _) => wire.client.private.region(),
            (false, true) => wire.client.exposed.region(),
            (false, false) => server.private.region(),
        };
        let len: usize = spans.iter().map(|span| span.2).sum();
        let inline = !read && len <= limits.inline_max;
        let mut transfer =
            Transfer::new(spans, source, inline, limits.placement, id, &mut self.rng);
        (transfer.read, transfer.zone, transfer.epoch) = (read, zone, epoch);
        let queue = if up { &mut wire.up } else { &mut wire.down };
        let posted = queue.post(transfer, limits.sq_depth);
        if wire.cut {
            queue.flush();
        }
        match posted {
            Ok(()) => Ok(()),
            Err(Refusal::Full) => {
                self.breaks(&format!("R11: seat {seat}: a send queue overflowed"));
                Err(PostError::QueueFull)
            }
            Err(Refusal::OutOfSequence) => {
                self.breaks(&format!(
                    "R11: seat {seat}: work requests are counted wrongly"
                ));
                Err(PostError::Down)
            }
        }
    }

    fn poll_wire(&mut self, seat: usize, up: bool) -> Option<Completion> {
        let server = self.server.clone();
        let wire = self.wires[seat].as_mut()?;
        let polled = match up {
            true => wire.up.poll(wire.client.private.region()),
            false => wire.down.poll(server.private.region()),
        };
        polled.unwrap_or_else(|_| {
            let side = if up { "client" } else { "server" };
            self.breaks(&format!(
                "R5: a source buffer of the {side} changed before seat {seat}'s completion came"
            ));
            None
        })
    }

    /// Opens connections from one client; the server hears of it. Seats that are taken give `None`.
    pub fn connect(net: &Rc<RefCell<Self>>, seats: &[u32], owners: &[u64]) -> Option<ClientEnd> {
        let mut this = net.borrow_mut();
        if seats.iter().any(|seat| this.wire(*seat).is_some()) {
            return None;
        }
        let (geometry, limits) = (this.geometry, this.limits);
        let machine = Rc::new(Machine {
            exposed: Arena::new(seats.len() * geometry.client_exposed_bytes()),
            private: Arena::new(seats.len() * geometry.client_private_bytes()),
        });
        let exposed = this.server.clone();
        for (connection, (&seat, &owner)) in (0..).zip(seats.iter().zip(owners)) {
            let endpoint = geometry.endpoint(seat);
            for word in (0..64).step_by(8) {
                exposed.exposed.region().store(endpoint + word, 0);
            }
            let byte = geometry.demand_byte(seat);
            exposed.exposed.region().store_byte_release(byte, 0);
            this.wires[seat as usize] = Some(Wire {
                owner,
                client: machine.clone(),
                up: Queue::default(),
                down: Queue::default(),
                cut: false,
                dead: false,
                gone_ns: None,
                told: false,
                revoked: 0,
            });
            this.opened.push_back(Opened {
                seat,
                owner,
                ring_at: geometry.ring(connection),
                staging_at: geometry.staging(connection),
                placement: limits.placement,
            });
        }
        drop(this);
        let ends = seats.iter().zip(owners);
        Some(ClientEnd {
            net: net.clone(),
            machine,
            limits,
            seats: ends.map(|(seat, owner)| (*seat, *owner, false)).collect(),
        })
    }
}

/// The server's end.
pub struct ServerEnd {
    net: Rc<RefCell<Net>>,
    machine: Rc<Machine>,
    limits: Limits,
}

impl ServerEnd {
    /// What is between the ends.
    pub fn net(&self) -> &Rc<RefCell<Net>> {
        &self.net
    }

    pub(crate) fn look(&self) -> Ref<'_, Net> {
        self.net.borrow()
    }

    pub(crate) fn change(&self) -> RefMut<'_, Net> {
        self.net.borrow_mut()
    }
}

// SAFETY: the two regions are views of an arena each, which the end owns and never exchanges; `advance`
// copies between the ranges of posted work requests, which it checks as slices of the arenas would be.
unsafe impl Fabric for ServerEnd {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn exposed(&self) -> &Region {
        self.machine.exposed.region()
    }

    fn private(&self) -> &Region {
        self.machine.private.region()
    }

    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        let span = (wr.local, wr.remote, wr.len);
        let id = (wr.wr_id, wr.signaled);
        let mut net = self.change();
        net.post((wr.connection, false), &[span], id, (false, None, None))
    }

    fn post_read(&mut self, wr: &ReadWr) -> Result<(), PostError> {
        let mut net = self.change();
        let geometry = net.geometry;
        let spans: Vec<_> = wr
            .targets(&geometry)
            .enumerate()
            .map(|(i, to)| (wr.remote + i * wr.stride, to, wr.stride))
            .collect();
        let client = net
            .wire(wr.connection)
            .map(|wire| wire.client.exposed.region().len());
        let end = wr.remote + wr.count as usize * wr.stride;
        if client.is_some_and(|len| end > len) || wr.count > self.limits.sge_max || wr.count == 0 {
            net.breaks(&format!("R12: a READ of what cannot be: {wr:?}"));
            return Err(PostError::Down);
        }
        let zone = Some(wr.pool * geometry.zones() + wr.zone);
        net.post(
            (wr.connection, false),
            &spans,
            (wr.wr_id, true),
            (true, zone, None),
        )
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        let mut net = self.change();
        let seats = net.wires.len();
        for _ in 0..seats {
            let seat = net.cursor;
            if let Some(completion) = net.poll_wire(seat, false) {
                return Some(completion);
            }
            net.cursor = (seat + 1) % seats;
        }
        None
    }

    fn poll_event(&mut self) -> Option<FabricEvent> {
        let mut net = self.change();
        if let Some(opened) = net.opened.pop_front() {
            return Some(FabricEvent::Opened(opened));
        }
        let now_ns = net.now_ns;
        for (connection, wire) in (0..).zip(&mut net.wires) {
            let Some(wire) = wire else { continue };
            if wire.told || wire.gone_ns.is_none_or(|at| at > now_ns) {
                continue;
            }
            wire.cut = true;
            wire.up.flush();
            wire.down.flush();
            // Its completions come first.
            if wire.down.is_drained() {
                wire.told = true;
                return Some(FabricEvent::Gone { connection });
            }
        }
        None
    }

    fn revoke_all(&mut self, revocations: &mut [Revocation]) {
        let mut net = self.change();
        for it in revocations {
            let hesitate = net.unkind.hesitate;
            let hesitate = net.chance(hesitate);
            let Some(wire) = net.wire_mut(it.seat) else {
                continue;
            };
            wire.revoked = wire.revoked.max(it.epoch);
            let under_way = |transfer: &Transfer| transfer.epoch.is_some_and(|at| at <= it.epoch);
            it.done = !hesitate && !wire.up.transfers.iter().any(under_way);
            if !it.done {
                net.count("revocation pending");
            }
        }
    }

    fn close(&mut self, connection: u32) {
        self.change().begin_fence(connection);
    }

    fn release(&mut self, seat: u32) {
        self.change().wires[seat as usize] = None;
    }
}

/// A client's end: connections of its own, numbered from 0.
pub struct ClientEnd {
    net: Rc<RefCell<Net>>,
    machine: Rc<Machine>,
    limits: Limits,
    /// Seat, nonce, and whether its end was told.
    seats: Vec<(u32, u64, bool)>,
}

impl ClientEnd {
    /// The seat of a connection, while it is there.
    fn seat(&self, connection: u32) -> Option<u32> {
        let &(seat, owner, _) = self.seats.get(connection as usize)?;
        let net = self.net.borrow();
        (net.wire(seat)?.owner == owner).then_some(seat)
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

// SAFETY: as for the server's end. (A world that lies writes to exposed memory, and runs no borrowed handler.)
unsafe impl Fabric for ClientEnd {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn exposed(&self) -> &Region {
        self.machine.exposed.region()
    }

    fn private(&self) -> &Region {
        self.machine.private.region()
    }

    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        let seat = self.seat(wr.connection).ok_or(PostError::Down)?;
        let mut net = self.net.borrow_mut();
        let zone = wr.epoch.map(|_| zone_at(&net.geometry, wr.remote));
        let span = (wr.local, wr.remote, wr.len);
        net.post(
            (seat, true),
            &[span],
            (wr.wr_id, wr.signaled),
            (false, zone, wr.epoch),
        )
    }

    fn post_read(&mut self, _: &ReadWr) -> Result<(), PostError> {
        Err(PostError::Down)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        let connections = 0..self.seats.len() as u32;
        let mut seats = connections.filter_map(|connection| self.seat(connection));
        seats.find_map(|seat| self.net.borrow_mut().poll_wire(seat as usize, true))
    }

    fn poll_event(&mut self) -> Option<FabricEvent> {
        for connection in 0..self.seats.len() as u32 {
            let there = self.seat(connection).is_some_and(|seat| {
                let net = self.net.borrow();
                net.wire(seat).is_some_and(|wire| !wire.cut)
            });
            let told = &mut self.seats[connection as usize].2;
            if !there && !*told {
                *told = true;
                return Some(FabricEvent::Gone { connection });
            }
        }
        None
    }

    fn revoke_all(&mut self, _: &mut [Revocation]) {}

    fn close(&mut self, connection: u32) {
        if let Some(seat) = self.seat(connection) {
            self.net.borrow_mut().fail(seat);
        }
    }

    fn release(&mut self, _: u32) {}
}
