//! The steps of the handshake, as the control thread takes them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use scalerpc_core::Memory;
use scalerpc_core::wire::LINE;
use scalerpc_hugepage::{HugeMemory, MemoryError};

use super::control::{Control, Peer, Stage};
use super::error::Refusal;
use super::handshake::{self, Grant, Offer, Packet, VERSION, WELCOME_SEATS};
use super::link::{Link, News, client_bytes, guard_at};
use super::{shards, socket};
use crate::mapping::Mapping;

/// Why a handshake goes no further.
enum Stop {
    Refuse(Refusal, u32),
    /// The peer is gone, or this side is out of something.
    Abandon,
}

impl Control {
    pub(super) fn on_hello(
        &mut self,
        mut peer: Peer,
        packet: Option<Packet<'_>>,
        fd: Option<OwnedFd>,
    ) -> Option<Peer> {
        match self.grant(packet, fd.is_some()) {
            Ok(grants) => {
                let layout = &self.rules.layout;
                let offer = handshake::offer(&Offer {
                    config: *self.rules.geometry.config(),
                    connections: grants.len() as u32,
                    expedited: self.rules.fence.is_expedited(),
                    shards: layout.shards(),
                    stride: layout.stride() as u64,
                    bytes: layout.bytes() as u64,
                });
                peer.stage = Stage::Offered(grants);
                let exposed = self.shards.first().map(|shard| shard.exposed.whole());
                match socket::send(&peer.socket, &offer, exposed.map(|it| it.memory().fd())) {
                    Ok(()) => Some(peer),
                    Err(_) => self.abandon(peer),
                }
            }
            Err(stop) => self.stop(peer, stop),
        }
    }

    fn stop(&mut self, peer: Peer, stop: Stop) -> Option<Peer> {
        match stop {
            Stop::Refuse(reason, detail) => self.refuse(peer, reason, detail),
            Stop::Abandon => self.abandon(peer),
        }
    }

    /// Takes the seats that a Hello asks for. Nothing is allocated before they are known to be free.
    fn grant(&mut self, packet: Option<Packet<'_>>, with_fd: bool) -> Result<Box<[Grant]>, Stop> {
        let packet = packet.ok_or(Stop::Refuse(Refusal::Protocol, 0))?;
        if packet.version != VERSION {
            return Err(Stop::Refuse(Refusal::Version, VERSION));
        }
        let wanted = packet.hello().filter(|_| !with_fd);
        let wanted = wanted.ok_or(Stop::Refuse(Refusal::Protocol, 0))?;
        if wanted == 0 {
            return Err(Stop::Refuse(Refusal::BadRequest, 0));
        }
        if self.links() >= self.rules.links_max {
            return Err(Stop::Refuse(Refusal::TooManyLinks, self.rules.links_max));
        }
        let seats = shards::take_seats(&self.shards, wanted, &mut self.turn);
        let mut grants = seats.map_err(|free| Stop::Refuse(Refusal::Busy, free))?;
        for grant in &mut grants {
            match nonce() {
                Ok(owner) => grant.owner = owner,
                Err(_) => {
                    shards::give_back(&self.shards, &grants);
                    return Err(Stop::Abandon);
                }
            }
        }
        Ok(grants)
    }

    pub(super) fn on_region(
        &mut self,
        mut peer: Peer,
        packet: Option<Packet<'_>>,
        fd: Option<OwnedFd>,
    ) -> Option<Peer> {
        let Stage::Offered(grants) = &mut peer.stage else {
            return Some(peer);
        };
        let connections = grants.len() as u32;
        match self.adopt(connections, packet, fd) {
            Ok(mapping) => {
                let grants = std::mem::take(grants);
                self.clear_seats(&grants);
                let guards_at = guard_at(&self.rules.geometry, connections, 0);
                let link = Link::new(
                    (peer.id, peer.pid()),
                    grants,
                    guards_at,
                    mapping,
                    self.rules.fence,
                );
                peer.stage = Stage::Welcoming {
                    link: Arc::new(link),
                    sent: 0,
                };
                self.welcome(peer)
            }
            Err(stop) => self.stop(peer, stop),
        }
    }

    /// Maps a client's memory and seals it, so that it can neither be cut short nor be full of holes.
    fn adopt(
        &self,
        connections: u32,
        packet: Option<Packet<'_>>,
        fd: Option<OwnedFd>,
    ) -> Result<Mapping, Stop> {
        let protocol = || Stop::Refuse(Refusal::Protocol, 0);
        let packet = packet
            .filter(|packet| packet.version == VERSION)
            .ok_or_else(protocol)?;
        let declared = packet.region().ok_or_else(protocol)?;
        let fd = fd.ok_or_else(protocol)?;
        // How much is mapped follows from this side's geometry alone.
        let bytes = client_bytes(&self.rules.geometry, connections)
            .filter(|&bytes| bytes as u64 == declared)
            .ok_or(Stop::Refuse(Refusal::Memory, 0))?;
        let memory =
            HugeMemory::adopt_fd(fd, bytes).map_err(|error| Stop::Refuse(blame(&error), 0))?;
        Mapping::new(memory, bytes, bytes).ok_or(Stop::Refuse(Refusal::Memory, 0))
    }

    /// A new tenant must not inherit anything from the last one, which is fenced.
    fn clear_seats(&self, grants: &[Grant]) {
        let geometry = &self.rules.geometry;
        for grant in grants {
            let Some(shard) = self.shards.get(grant.shard as usize) else {
                continue;
            };
            let region = shard.exposed.region();
            let line = geometry.endpoint(grant.seat);
            for word in (line..line + LINE).step_by(8) {
                region.store(word, 0);
            }
            // Ordering: release; the Welcome that follows tells the client, the queue of news the engine.
            region.store_byte_release(geometry.demand_byte(grant.seat), 0);
        }
    }

    /// Sends what fits of a Welcome; after the last packet the link is in service.
    pub(super) fn welcome(&mut self, mut peer: Peer) -> Option<Peer> {
        let Stage::Welcoming { link, sent } = &mut peer.stage else {
            return Some(peer);
        };
        let link = Arc::clone(link);
        while let Some(rest) = link.grants.get(*sent..).filter(|rest| !rest.is_empty()) {
            let piece = rest.get(..WELCOME_SEATS).unwrap_or(rest);
            match socket::send(&peer.socket, &handshake::welcome(*sent as u32, piece), None) {
                Ok(()) => *sent += piece.len(),
                Err(Errno::AGAIN) => {
                    return match self.watch_writable(&peer, true) {
                        Ok(()) => Some(peer),
                        Err(_) => self.abandon(peer),
                    };
                }
                Err(_) => return self.abandon(peer),
            }
        }
        let counts = &self.shared.counts;
        counts.links_open.add(1);
        counts.links_admitted.add(1);
        counts.client_bytes.add(link.memory_bytes() as u64);
        peer.settle(Arc::clone(&link));
        self.tell(&link, News::Opened);
        Some(peer)
    }
}

/// Whether a client's memory is unusable, or this side is out of something.
fn blame(error: &MemoryError) -> Refusal {
    let out_of = |source: &std::io::Error| {
        let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
        Errno::from_io_error(source).is_some_and(|errno| short.contains(&errno))
    };
    match error {
        MemoryError::Os { source, .. } if out_of(source) => Refusal::Resources,
        MemoryError::HugepagesUnavailable(_) | MemoryError::NotEnoughMemory { .. } => {
            Refusal::Resources
        }
        _ => Refusal::Memory,
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
