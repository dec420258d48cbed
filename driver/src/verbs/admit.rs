//! The server's side of the handshake.
//!
//! # Why nothing is sent too early
//!
//! The server takes a queue pair to RTS before the client can: the client learns its number only then, so whatever the
//! client sends finds a queue pair that receives, and no retry is used up. The server itself sends nothing on it before
//! an endpoint entry of the client has come through it, and the client writes one only after the server's Go: by then
//! the client's queue pair has been in RTS since before its Ready. So neither end ever sends to one that is not there.

use std::time::Instant;

use scalerpc_core::Memory;
use scalerpc_core::wire::LINE;

use super::control::{Control, Joining, Peer, Seat, Stage};
use super::errno::Errno;
use super::error::VerbsError;
use super::lanes::{QpRef, Remote};
use super::packet::{Bad, Grant, Hello, Offer, PAIRS_MAX, Packet, Pair, VERSION, client_bytes};
use super::qp::{self, Pairing, Route};
use super::resources::QueuePair;
use super::server::placement;
use super::setup::Refusal;
use super::shared::{News, Opening};

/// Pieces taken from a client that is refused; more than that is its own loss.
const DRAIN_MAX: u32 = 64;

impl Control {
    pub(super) fn on_hello(&mut self, mut peer: Peer, hello: &Hello, attempt: u64) -> Option<Peer> {
        peer.attempt = attempt;
        if hello.connections == 0 {
            return self.refuse(peer, Refusal::BadRequest, 0);
        }
        if self.links() >= self.rules.links_max {
            return self.refuse(peer, Refusal::TooMany, self.rules.links_max);
        }
        // Nothing is allocated before the seats are known to be free.
        let seats = match self.shard.take_seats(hello.connections) {
            Ok(seats) => seats,
            Err(free) => return self.refuse(peer, Refusal::Busy, free),
        };
        let device = self.nic.device();
        let can = device.capabilities();
        let route = Route {
            mtu: hello.route.mtu.min(device.mtu()),
            reads: hello.route.reads.min(can.max_qp_init_rd_atom).max(1),
            ..hello.route
        };
        let offer = Offer {
            config: *self.rules.geometry.config(),
            connections: hello.connections,
            in_order: self.rules.in_order,
            route: Route {
                lid: device.port().lid(),
                gid: device.gid().bytes,
                ..route
            },
            remote: self.rules.remote,
        };
        peer.stage = Stage::Offered(Joining {
            owners: Vec::with_capacity(seats.len()),
            seats,
            route,
        });
        self.answer(peer, &Packet::Offer(offer))
    }

    /// Sends, and gives the client time for its next step.
    fn answer(&mut self, mut peer: Peer, packet: &Packet) -> Option<Peer> {
        peer.deadline = Some(Instant::now() + self.rules.handshake_timeout);
        match self.send(&mut peer, packet) {
            true => Some(peer),
            false => self.part(peer),
        }
    }

    pub(super) fn on_region(&mut self, mut peer: Peer, remote: Remote) -> Option<Peer> {
        let Stage::Offered(joining) = peer.stage else {
            return Some(peer);
        };
        // How much of it is used follows from this side's geometry alone.
        let needed = client_bytes(&self.rules.geometry, joining.seats.len() as u32);
        let enough = needed.is_some_and(|(bytes, _)| bytes as u64 <= remote.bytes);
        peer.stage = Stage::Pairing(joining, remote);
        match enough {
            true => Some(peer),
            false => self.refuse(peer, Refusal::Memory, 0),
        }
    }

    pub(super) fn on_pairs(&mut self, mut peer: Peer, first: u32, pairs: &[Pair]) -> Option<Peer> {
        let Stage::Pairing(joining, _) = &mut peer.stage else {
            return Some(peer);
        };
        let done = joining.owners.len();
        let in_turn = first as usize == done && done + pairs.len() <= joining.seats.len();
        if !in_turn || pairs.len() > PAIRS_MAX {
            return self.refuse(peer, Refusal::Protocol, 0);
        }
        let seats: Vec<u32> = joining.seats[done..done + pairs.len()].to_vec();
        let route = joining.route;
        let mut grants = Vec::with_capacity(pairs.len());
        for ((&seat, pair), number) in seats.iter().zip(pairs).zip(first..) {
            match self.pair_up(&peer, (seat, number), &route, *pair) {
                Ok(grant) => grants.push(grant),
                Err(errno) => return self.refuse(peer, Refusal::Device, errno.0 as u32),
            }
        }
        if let Stage::Pairing(joining, _) = &mut peer.stage {
            joining
                .owners
                .extend(grants.iter().map(|grant| grant.owner));
        }
        self.answer(peer, &Packet::Seats { first, grants })
    }

    /// Makes the queue pair of a seat and takes it to RTS: the client may write from here on.
    fn pair_up(
        &mut self,
        peer: &Peer,
        (seat, number): (u32, u32),
        route: &Route,
        pair: Pair,
    ) -> Result<Grant, Errno> {
        let random = |_| Errno(libc::EAGAIN);
        let owner = nonce().map_err(random)?;
        let psn = qp::random_psn().map_err(random)?;
        self.clear_seat(seat);
        let made = self.make_pair(seat, route, (pair, psn), peer);
        let made = made.map_err(|error| {
            let errno = match &error {
                VerbsError::Failed { errno, .. } | VerbsError::Memlock { errno, .. } => *errno,
                _ => Errno(libc::EINVAL),
            };
            self.shared.counts.note(error);
            errno
        })?;
        let grant = Grant {
            pair: Pair {
                number: made.number(),
                psn,
            },
            seat,
            owner,
        };
        if let Some(slot) = self.seats.get_mut(seat as usize) {
            *slot = Some(Seat {
                pair: made,
                peer: peer.id,
                number,
                failed: false,
            });
        }
        Ok(grant)
    }

    fn make_pair(
        &self,
        seat: u32,
        route: &Route,
        (pair, psn): (Pair, u32),
        peer: &Peer,
    ) -> Result<QueuePair, VerbsError> {
        let (plan, inline) = (&self.rules.plan, self.rules.inline);
        let queue = &self.queues[plan.queue_of(seat)];
        let made = self.nic.queue_pair(queue, plan, inline, &peer.address)?;
        self.nic.receive(&made, seat, plan, &peer.address)?;
        let pairing = Pairing {
            peer: pair.number,
            own_psn: psn,
            peer_psn: pair.psn,
        };
        self.nic.connect(&made, route, pairing, &peer.address)?;
        Ok(made)
    }

    /// A new tenant must not inherit anything from the last one, which is fenced.
    fn clear_seat(&self, seat: u32) {
        let (geometry, region) = (&self.rules.geometry, self.exposed());
        let line = geometry.endpoint(seat);
        for word in (line..line + LINE).step_by(8) {
            region.store(word, 0);
        }
        // Ordering: release; the reply that follows tells the client, the queue of news the engine.
        region.store_byte_release(geometry.demand_byte(seat), 0);
    }

    pub(super) fn on_ready(&mut self, mut peer: Peer, in_order: bool) -> Option<Peer> {
        let Stage::Pairing(joining, remote) = &peer.stage else {
            return Some(peer);
        };
        if joining.owners.len() != joining.seats.len() {
            return self.refuse(peer, Refusal::Protocol, 0);
        }
        // A promise of both devices, or none.
        let in_order = in_order && self.rules.in_order;
        let (seats, owners, remote) = (joining.seats.clone(), joining.owners.clone(), *remote);
        let counts = &self.shared.counts;
        counts.links_open.add(1);
        counts.links_admitted.add(1);
        for ((&seat, owner), number) in seats.iter().zip(owners).zip(0..) {
            if let Some(Some(slot)) = self.seats.get(seat as usize) {
                self.tell(News::Opened(Opening {
                    seat,
                    number,
                    owner,
                    qp: QpRef(slot.pair.as_ptr()),
                    remote,
                    peer: peer.address,
                    placement: placement(in_order),
                }));
            }
        }
        peer.stage = Stage::Open(seats.into());
        let mut peer = self.answer(peer, &Packet::Go { in_order })?;
        peer.deadline = None;
        Some(peer)
    }

    pub(super) fn refuse_bad(&mut self, peer: Peer, bad: Bad) -> Option<Peer> {
        match bad {
            Bad::Version(_) => self.refuse(peer, Refusal::Version, VERSION),
            Bad::Form => self.refuse(peer, Refusal::Protocol, 0),
        }
    }

    /// Ends a handshake with a reason that the client can read.
    pub(super) fn refuse(&mut self, mut peer: Peer, reason: Refusal, detail: u32) -> Option<Peer> {
        let counts = &self.shared.counts;
        counts.refused.add(1);
        if matches!(
            reason,
            Refusal::Protocol | Refusal::BadRequest | Refusal::Memory
        ) {
            counts.violations.add(1);
        }
        self.send(&mut peer, &Packet::Refusal(reason, detail));
        // Without this, what the client has sent and nobody read would destroy what it has not read yet.
        let _ = peer.stream.shutdown(std::net::Shutdown::Write);
        let mut rest = [0; 1024];
        let mut stream = &peer.stream;
        for _ in 0..DRAIN_MAX {
            if !std::io::Read::read(&mut stream, &mut rest).is_ok_and(|count| count > 0) {
                break;
            }
        }
        self.part(peer)
    }
}

/// A number that no other connection has, and that nobody guesses; never zero.
fn nonce() -> Result<u64, getrandom::Error> {
    loop {
        match getrandom::u64()? {
            0 => {}
            owner => return Ok(owner),
        }
    }
}
