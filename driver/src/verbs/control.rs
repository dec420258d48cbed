//! The control thread of a server: it admits clients, watches them, and owns all queue pairs.
//!
//! It sleeps until something happens. Every client is a small state machine, so a slow one delays nobody; the number of
//! unfinished handshakes and the time for each step are bounded.
//!
//! # How a queue pair ends
//!
//! ```text
//!  control: to ERR ──Failed──▶ data: posts the beacon, takes completions up to it
//!  control: destroys it ◀──Destroy── data: uses it no more
//!           ──Destroyed──▶ data: tells the engine, releases the seat
//! ```
//!
//! The peer's packets end at a queue pair in ERR, and one that is destroyed has no part of the device at work any more:
//! so when the engine hears of the end, nothing of that peer writes to its zone.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use scalerpc_core::{Geometry, Region};

use super::events::{Event, Events};
use super::lanes::Remote;
use super::nic::Nic;
use super::packet::{Inbox, Packet};
use super::plan::Plan;
use super::qp;
use super::resources::{QueuePair, Queues};
use super::setup::Refusal;
use super::shared::{News, Order, Shard, Shared};
use super::tcp::{self, Incoming};
use crate::bell::Bell;
use crate::door::{Door, LISTENER, WAKE};
use crate::mapping::Mapping;

/// The device's token. A peer's is its id, and ids count from the next one on.
const DEVICE: u64 = LISTENER + 1;
const FIRST_PEER: u64 = DEVICE + 1;

/// What may wait to be sent to a client that does not read: a Closed for each of some thousand connections.
const OUTBOX_MAX: usize = 1 << 18;

/// What the control thread goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) geometry: Geometry,
    pub(super) plan: Plan,
    pub(super) inline: u32,
    pub(super) in_order: bool,
    /// What clients may write to.
    pub(super) remote: Remote,
    pub(super) links_max: u32,
    pub(super) handshakes_max: u32,
    pub(super) handshake_timeout: Duration,
}

/// How far a client has come. Every stage from `Offered` on holds seats.
#[derive(Debug)]
pub(super) enum Stage {
    /// Its Hello is awaited.
    Greeting,
    /// Its Region is awaited.
    Offered(Joining),
    /// Its queue pairs are awaited, and then that it is ready.
    Pairing(Joining, Remote),
    /// In service.
    Open(Box<[u32]>),
}

/// A client that is being admitted.
#[derive(Debug)]
pub(super) struct Joining {
    pub(super) seats: Vec<u32>,
    pub(super) route: qp::Route,
    pub(super) owners: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: u64,
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) attempt: u64,
    inbox: Box<Inbox>,
    outbox: Vec<u8>,
    /// Times that it said Closed.
    closed: usize,
    pub(super) stage: Stage,
    /// While the handshake lasts.
    pub(super) deadline: Option<Instant>,
}

/// A seat's queue pair.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) pair: QueuePair,
    pub(super) peer: u64,
    /// Its number at the client.
    pub(super) number: u32,
    /// In ERR; the data thread was told.
    pub(super) failed: bool,
}

pub(super) struct Control {
    pub(super) shared: Arc<Shared>,
    pub(super) shard: Arc<Shard>,
    pub(super) nic: Nic,
    pub(super) queues: Box<[Queues]>,
    exposed: Arc<Mapping>,
    /// Wakes the data thread.
    bell: Arc<Bell>,
    pub(super) rules: Rules,
    door: Door<TcpListener>,
    events: Events,
    peers: BTreeMap<u64, Peer>,
    /// By seat.
    pub(super) seats: Box<[Option<Seat>]>,
    next_id: u64,
}

/// What the control thread works with.
pub(super) struct Parts {
    pub(super) shared: Arc<Shared>,
    pub(super) shard: Arc<Shard>,
    pub(super) nic: Nic,
    pub(super) queues: Box<[Queues]>,
    pub(super) exposed: Arc<Mapping>,
    pub(super) bell: Arc<Bell>,
}

impl Control {
    pub(super) fn new(
        parts: Parts,
        rules: Rules,
        listener: TcpListener,
    ) -> Result<Self, std::io::Error> {
        listener.set_nonblocking(true)?;
        let events = Events::new(parts.nic.device().context())?;
        let door = Door::new(&parts.shared.wake, listener)?;
        door.watch(events.fd(), DEVICE)?;
        let seats = (0..rules.geometry.clients_max()).map(|_| None).collect();
        Ok(Self {
            shared: parts.shared,
            shard: parts.shard,
            nic: parts.nic,
            queues: parts.queues,
            exposed: parts.exposed,
            bell: parts.bell,
            rules,
            door,
            events,
            peers: BTreeMap::new(),
            seats,
            next_id: FIRST_PEER,
        })
    }

    /// What clients write to.
    pub(super) fn exposed(&self) -> &Region {
        self.exposed.region()
    }

    pub(super) fn tell(&self, news: News) {
        // The shard is open for as long as this thread works. The data thread may be asleep.
        let _ = self.shard.tell(news);
        self.bell.ring();
    }

    /// Works until the server stops; then it gives away the queue pairs that are left, in ERR.
    pub(super) fn run(mut self) -> Vec<(u32, QueuePair)> {
        let mut events = Vec::with_capacity(64);
        while !self.shared.is_stopping() {
            let pause = self.look_after();
            self.door.wait(&mut events, pause);
            for event in &events {
                match event.data.u64() {
                    WAKE => self.shared.wake.hush(),
                    LISTENER => self.accept(),
                    DEVICE => self.on_device(),
                    id => self.with_peer(id, Self::on_stream),
                }
            }
            for order in self.shared.take_orders() {
                self.obey(order);
            }
        }
        self.farewell()
    }

    /// Does what is due by now; returns how long nothing else will be.
    fn look_after(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let mut due: Option<Instant> = None;
        let mut sooner = |at: Instant| due = Some(due.map_or(at, |due| due.min(at)));
        let (mut late, mut handshakes) = (Vec::new(), 0);
        for (&id, peer) in &self.peers {
            match peer.deadline {
                Some(deadline) if deadline <= now => late.push(id),
                Some(deadline) => {
                    handshakes += 1;
                    sooner(deadline);
                }
                None => {}
            }
        }
        if let Some(at) = self.door.rests_until(now) {
            sooner(at);
        }
        for id in late {
            self.with_peer(id, |control, peer| {
                let had_ms = control.rules.handshake_timeout.as_millis();
                control.refuse(peer, Refusal::Late, had_ms as u32)
            });
        }
        self.door.set_open(handshakes < self.rules.handshakes_max);
        due.map(|due| due.saturating_duration_since(now))
    }

    /// Takes one client from the backlog. The others stay readable, and `look_after` counts before the next one.
    fn accept(&mut self) {
        if self.door.is_resting() {
            return;
        }
        match self.door.listener().accept() {
            Ok((stream, address)) => self.greet(stream, address),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                _ => self.door.rest(),
            },
        }
    }

    fn greet(&mut self, stream: TcpStream, address: SocketAddr) {
        let id = self.next_id;
        self.next_id += 1;
        let watched = || -> std::io::Result<()> {
            stream.set_nonblocking(true)?;
            tcp::prepare(&stream)?;
            self.door.watch(&stream, id)?;
            Ok(())
        };
        if watched().is_err() {
            self.shared.counts.abandoned.add(1);
            return;
        }
        let peer = Peer {
            id,
            stream,
            address,
            attempt: 0,
            inbox: Box::new(Inbox::new()),
            outbox: Vec::new(),
            closed: 0,
            stage: Stage::Greeting,
            deadline: Some(Instant::now() + self.rules.handshake_timeout),
        };
        self.peers.insert(id, peer);
    }

    /// Gives a peer a turn; it stays if it is returned.
    fn with_peer(&mut self, id: u64, turn: impl FnOnce(&mut Self, Peer) -> Option<Peer>) {
        // A peer may have left in the same round of events.
        let Some(peer) = self.peers.remove(&id) else {
            return;
        };
        if let Some(peer) = turn(self, peer) {
            self.peers.insert(id, peer);
        }
    }

    fn on_stream(&mut self, mut peer: Peer) -> Option<Peer> {
        if !peer.outbox.is_empty() {
            peer = self.send_rest(peer)?;
        }
        // All that is there: what has been read of it would not wake this thread again.
        loop {
            match tcp::receive(&peer.stream, &mut peer.inbox) {
                Incoming::Nothing => return Some(peer),
                Incoming::End => return self.part(peer),
                Incoming::Bad(_) if matches!(peer.stage, Stage::Open(_)) => {
                    return self.violate(peer);
                }
                Incoming::Bad(bad) => return self.refuse_bad(peer, bad),
                Incoming::Packet(packet, attempt) => {
                    peer = self.on_packet(peer, packet, attempt)?;
                }
            }
        }
    }

    fn on_packet(&mut self, peer: Peer, packet: Packet, attempt: u64) -> Option<Peer> {
        if !matches!(peer.stage, Stage::Greeting) && attempt != peer.attempt {
            return self.refuse(peer, Refusal::Protocol, 0);
        }
        match (&peer.stage, packet) {
            (Stage::Greeting, Packet::Hello(hello)) => self.on_hello(peer, &hello, attempt),
            (Stage::Offered(_), Packet::Region(remote)) => self.on_region(peer, remote),
            (Stage::Pairing(..), Packet::Pairs { first, pairs }) => {
                self.on_pairs(peer, first, &pairs)
            }
            (Stage::Pairing(..), Packet::Ready { in_order }) => self.on_ready(peer, in_order),
            (Stage::Open(seats), Packet::Closed(number)) => {
                let seat = seats.get(number as usize).copied();
                // Once for each: a stream without end would keep this thread.
                let seat = seat.filter(|_| peer.closed < seats.len());
                self.on_closed(peer, seat)
            }
            (Stage::Open(_), Packet::Bye) => self.part(peer),
            (Stage::Open(_), _) => self.violate(peer),
            _ => self.refuse(peer, Refusal::Protocol, 0),
        }
    }

    fn on_closed(&mut self, mut peer: Peer, seat: Option<u32>) -> Option<Peer> {
        let Some(seat) = seat else {
            return self.violate(peer);
        };
        peer.closed += 1;
        self.fail_seat(peer.id, seat);
        Some(peer)
    }

    fn violate(&mut self, peer: Peer) -> Option<Peer> {
        self.shared.counts.violations.add(1);
        self.part(peer)
    }

    /// Sends a packet, now or when the stream takes it. False if the peer is to be given up.
    pub(super) fn send(&mut self, peer: &mut Peer, packet: &Packet) -> bool {
        let bytes = packet.bytes(peer.attempt);
        let sent = match peer.outbox.is_empty() {
            true => tcp::send(&peer.stream, &bytes),
            false => Ok(0),
        };
        let Ok(sent) = sent else {
            return false;
        };
        let rest = bytes.get(sent..).unwrap_or_default();
        if rest.is_empty() {
            return true;
        }
        let watch = peer.outbox.is_empty();
        peer.outbox.extend(rest);
        peer.outbox.len() <= OUTBOX_MAX && (!watch || self.watch_writable(peer, true).is_ok())
    }

    fn send_rest(&mut self, mut peer: Peer) -> Option<Peer> {
        match tcp::send(&peer.stream, &peer.outbox) {
            Ok(sent) => {
                peer.outbox.drain(..sent);
            }
            Err(_) => return self.part(peer),
        }
        if peer.outbox.is_empty() && self.watch_writable(&peer, false).is_err() {
            return self.part(peer);
        }
        Some(peer)
    }

    /// Wakes up when the stream can take more, too.
    fn watch_writable(&self, peer: &Peer, writable: bool) -> Result<(), Errno> {
        self.door.watch_writable(&peer.stream, peer.id, writable)
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Fail(seat) => {
                let slot = self.seats.get(seat as usize).and_then(Option::as_ref);
                if let Some(peer) = slot.map(|slot| slot.peer) {
                    self.fail_seat(peer, seat);
                }
            }
            Order::Destroy(seat) => {
                if let Some(slot) = self.seats.get_mut(seat as usize) {
                    *slot = None;
                    self.tell(News::Destroyed(seat));
                }
            }
        }
    }

    /// Takes a connection in service to ERR, and tells both sides of it.
    fn fail_seat(&mut self, peer: u64, seat: u32) {
        let slot = self.seats.get_mut(seat as usize).and_then(Option::as_mut);
        let Some(slot) = slot.filter(|slot| slot.peer == peer && !slot.failed) else {
            return;
        };
        slot.failed = true;
        let flushes = qp::fail(&slot.pair).is_ok();
        let number = slot.number;
        self.shared.counts.fenced.add(1);
        self.tell(News::Failed { seat, flushes });
        self.with_peer(peer, |control, mut peer| {
            match control.send(&mut peer, &Packet::Closed(number)) {
                true => Some(peer),
                false => control.part(peer),
            }
        });
    }

    fn on_device(&mut self) {
        while let Some(event) = self.events.take() {
            match event {
                Event::QueuePair(qp) => {
                    let of_seat = |slot: &Option<Seat>| {
                        slot.as_ref().is_some_and(|slot| slot.pair.as_ptr() == qp)
                    };
                    if let Some(seat) = self.seats.iter().position(of_seat) {
                        self.obey(Order::Fail(seat as u32));
                    }
                }
                Event::Port => self.shared.counts.port_events.add(1),
                Event::Device => {
                    self.shared.counts.device_events.add(1);
                    for id in self.peers.keys().copied().collect::<Vec<_>>() {
                        self.with_peer(id, Self::part);
                    }
                }
                Event::Other => {}
            }
        }
    }

    /// The client's stream has ended, or is ended: so are its connections.
    pub(super) fn part(&mut self, peer: Peer) -> Option<Peer> {
        self.door.unwatch(&peer.stream);
        let counts = &self.shared.counts;
        match peer.stage {
            Stage::Open(seats) => {
                counts.links_open.sub(1);
                for &seat in &seats {
                    self.fail_seat(peer.id, seat);
                }
            }
            Stage::Greeting => counts.abandoned.add(1),
            Stage::Offered(joining) | Stage::Pairing(joining, _) => {
                counts.abandoned.add(1);
                // The data thread has not heard of these: they can be destroyed at once. But it may have to take what
                // they received.
                for seat in joining.seats {
                    let slot = self.seats.get_mut(seat as usize);
                    match slot.and_then(Option::take) {
                        Some(_) => self.tell(News::Abandoned(seat)),
                        None => self.shard.give_back([seat]),
                    }
                }
            }
        }
        None
    }

    /// Clients with seats, or about to have some.
    pub(super) fn links(&self) -> u32 {
        let greeting = |peer: &&Peer| matches!(peer.stage, Stage::Greeting);
        (self.peers.len() - self.peers.values().filter(greeting).count()) as u32
    }

    fn farewell(mut self) -> Vec<(u32, QueuePair)> {
        for peer in self.peers.values() {
            // A client that does not take it sees the end of the stream.
            let _ = tcp::send(&peer.stream, &Packet::Bye.bytes(peer.attempt));
        }
        let mut left = Vec::new();
        for (seat, slot) in (0..).zip(&mut self.seats) {
            if let Some(slot) = slot.take() {
                if slot.failed || qp::fail(&slot.pair).is_ok() {
                    left.push((seat, slot.pair));
                }
            }
        }
        left
    }
}

/// If this thread panics, the data thread goes on to use the queue pairs: then they are never destroyed.
impl Drop for Control {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for slot in &mut self.seats {
                std::mem::forget(slot.take());
            }
        }
    }
}
