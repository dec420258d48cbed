//! What goes wrong: clients that stop, die, fail or lie, and those that come after them.

use rand::Rng;
use scalerpc_core::Memory;
use scalerpc_core::client::{ClientConn, ClientState};
use scalerpc_core::server::{Class, ConnState, Limit, Priority};
use scalerpc_core::wire::{self, Entry, Head, LINE, Placement, TRAILER_BYTES, valid_word};
use scalerpc_driver::Fabric;
use scalerpc_driver::store;

use crate::fabric::Net;
use crate::oracle::Broken;
use crate::world::{Peer, World, hurt, tell};

/// What a client wrote that the server must not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bait {
    /// An endpoint entry in order but for one number, with a name for that.
    Entry(&'static str),
    /// A request with this number, in order but for its length or its flags.
    Request(u64),
}

impl World {
    pub(crate) fn disturb(&mut self, seat: usize) -> Result<(), Broken> {
        let chances = self.config.chances;
        if self.peers[seat].is_none() && self.chance(chances.connect) {
            self.connect(seat)?;
        }
        if self.chance(chances.operate) {
            self.operate(seat);
        }
        let nap_ns = self.rng.random_range(0..=100 * chances.step_ns);
        let later_ns = self.now_ns + nap_ns;
        let fates = [
            chances.stop,
            chances.mute,
            chances.die,
            chances.fail,
            chances.lie,
        ];
        let [stop, mute, die, fail, lie] = fates.map(|per_mille| self.chance(per_mille));
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        if stop && peer.asleep_ns != u64::MAX {
            peer.asleep_ns = later_ns;
            self.mark("client stopped for a while");
        } else if mute {
            peer.asleep_ns = u64::MAX;
            tell!(self, "{seat:>3} ~ stops for ever");
            self.mark("client stopped for ever");
        } else if die && !peer.dead {
            peer.dead = true;
            tell!(self, "{seat:>3} ~ dies");
            let noticed_ns = self.now_ns + self.rng.random_range(0..=chances.death_ns);
            self.end.change().die(seat as u32, noticed_ns);
            self.mark("client died");
        } else if fail {
            tell!(self, "{seat:>3} ~ connection fails");
            self.end.change().fail(seat as u32);
            self.mark("connection failed");
        } else if lie {
            self.lie(seat);
        }
        Ok(())
    }

    fn operate(&mut self, seat: usize) {
        let classes = [
            None,
            Some(Class::Low),
            Some(Class::Normal),
            Some(Class::High),
        ];
        let priority = Priority {
            weight_log2: self.rng.random_range(-8..=8),
            class: classes[self.rng.random_range(0..classes.len())],
        };
        if self.server.set_priority(seat as u32, priority) {
            tell!(self, "{seat:>3} ~ has {priority:?}");
            self.mark("priority set");
        }
        if self.terms_rng.random() {
            self.set_limit(seat);
        }
    }

    fn set_limit(&mut self, seat: usize) {
        let limit = Limit {
            calls_per_second: [0, 1_000, 100_000, 10_000_000][self.terms_rng.random_range(0..4)],
            burst: self.terms_rng.random_range(0..=8),
        };
        let limit = self.terms_rng.random::<bool>().then_some(limit);
        // The engine's time is that of its last action.
        let at_ns = self.served_ns;
        if self.server.set_limit(seat as u32, limit) {
            tell!(self, "{seat:>3} ~ has {limit:?}");
            if let Some(peer) = &self.peers[seat] {
                self.oracle.terms(peer.owner).limit(limit, at_ns);
            }
            self.mark("limit set");
        }
    }

    fn connect(&mut self, seat: usize) -> Result<(), Broken> {
        let owner: u64 = self.rng.random();
        self.connect_as(seat, owner)
    }

    /// A client with this nonce takes a free seat, if it can.
    pub(crate) fn connect_as(&mut self, seat: usize, owner: u64) -> Result<(), Broken> {
        let conn = ClientConn {
            connection: 0,
            seat: seat as u32,
            owner,
        };
        let engine = store::client_engine(self.geometry, self.config.limits, conn)
            .ok_or("the limits do not suffice")?;
        let Some(end) = Net::connect(self.end.net(), &[seat as u32], &[owner]) else {
            return Ok(());
        };
        tell!(self, "{seat:>3} + connects");
        self.peers[seat] = Some(Peer {
            owner,
            engine,
            end,
            asleep_ns: 0,
            dead: false,
            liar: false,
            bait: None,
            posted_max: 0,
            told_epoch: 0,
            waits: None,
            drained: 0,
        });
        self.mark("connected");
        Ok(())
    }

    /// The client writes bytes that it may reach and must not write.
    fn lie(&mut self, seat: usize) {
        let is_up = self
            .end
            .look()
            .wire(seat as u32)
            .is_some_and(|wire| !wire.cut && !wire.dead);
        let baited = self.peers[seat]
            .as_ref()
            .is_none_or(|peer| peer.bait.is_some());
        if !is_up || baited {
            return;
        }
        // Baits are bound to a moment, and mostly come to nothing.
        match self.rng.random_range(0..12) {
            0 => self.lie_at_home(seat),
            1 => self.lie_anywhere(seat),
            2 => self.lie_of_demand(seat),
            3..9 => self.bait_with_entry(seat),
            _ => self.bait_with_request(seat),
        }
    }

    /// A number that somebody might not have thought of.
    fn odd_word(&mut self) -> u64 {
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..4),
            1 => u64::MAX - self.rng.random_range(0..4),
            2 => 1 << self.rng.random_range(0..64),
            _ => self.rng.random(),
        }
    }

    /// Nonsense in its own endpoint entry, with the right owner, and in a block of its zone.
    fn lie_at_home(&mut self, seat: usize) {
        let words: Vec<_> = (0..16).map(|_| self.odd_word()).collect();
        let endpoint = self.geometry.endpoint(seat as u32);
        let zone = self.server.seat(seat as u32).and_then(|(_, zone)| zone);
        let Some(peer) = &mut self.peers[seat] else {
            return;
        };
        peer.liar = true;
        let target = self.end.exposed();
        let number = words[15] % 8;
        for (i, word) in words[..7].iter().enumerate() {
            target.store(endpoint + 8 * i, *word);
        }
        target.store(endpoint + 8, peer.owner);
        target.store_release(endpoint + 56, number);
        target.store_byte_release(self.geometry.demand_byte(seat as u32), number as u8);
        if let Some(zone) = zone {
            let zones = self.geometry.zones();
            let end = self.geometry.block_end(zone / zones, zone % zones, number);
            for (i, word) in (1..=TRAILER_BYTES / 8).zip(&words[7..]) {
                target.store(end - 8 * i, *word);
            }
            target.store(end - TRAILER_BYTES, peer.owner);
            target.store_release(end - 8, valid_word(peer.owner, number));
        }
        self.end.change().knocked = true;
        tell!(self, "{seat:>3} ~ lies");
        self.mark("lie: nonsense at its own places");
    }

    /// Nonsense in what is another's: all clients have the same key to the server's memory.
    fn lie_anywhere(&mut self, seat: usize) {
        let victim = self.rng.random_range(0..self.peers.len());
        let zones = self.geometry.pools() * self.geometry.zones();
        let zone = self.rng.random_range(0..zones);
        let (words, at_entry): (_, bool) = ([(); 8].map(|()| self.odd_word()), self.rng.random());
        let call = self.rng.random();
        let at = match at_entry {
            true => self.geometry.endpoint(victim as u32),
            false => {
                let (pool, zone) = (zone / self.geometry.zones(), zone % self.geometry.zones());
                self.geometry.block_end(pool, zone, call) - LINE
            }
        };
        if !at_entry {
            hurt(&mut self.peers, &self.server, zone);
        }
        if let Some(peer) = &mut self.peers[seat] {
            peer.liar = true;
        }
        if let Some(peer) = self.peers[victim].as_mut().filter(|_| at_entry) {
            peer.liar = true;
            // What it wrote there itself is not there any more.
            peer.bait = None;
        }
        let target = self.end.exposed();
        for (i, word) in words.into_iter().enumerate() {
            target.store_release(at + 8 * i, word);
        }
        let byte = self.geometry.demand_byte(victim as u32);
        if at_entry {
            target.store_byte_release(byte, words[0] as u8);
        }
        self.end.change().knocked = true;
        tell!(self, "{seat:>3} ~ lies at {at}");
        self.mark("lie: nonsense at another's places");
    }

    /// Another's demand byte, as its next entry will have it. That costs a look, and does no harm.
    fn lie_of_demand(&mut self, seat: usize) {
        let victim = self.rng.random_range(0..self.peers.len());
        let Some(peer) = &self.peers[victim] else {
            return;
        };
        let number = peer.engine.counters().entries + 1;
        let byte = self.geometry.demand_byte(victim as u32);
        self.end.exposed().store_byte_release(byte, number as u8);
        if let Some(peer) = &mut self.peers[seat] {
            peer.liar |= seat != victim;
        }
        tell!(self, "{seat:>3} ~ lies: {victim} has demand");
        self.mark("lie: another's demand byte");
    }

    /// An endpoint entry in which one number is hostile.
    fn bait_with_entry(&mut self, seat: usize) {
        let idle = self.server.seat(seat as u32) == Some((ConnState::Idle, None));
        let still = self
            .end
            .look()
            .wire(seat as u32)
            .is_some_and(|it| it.up.outstanding() == 0);
        let pick = self.rng.random_range(0..11);
        let Some(peer) = &mut self.peers[seat] else {
            return;
        };
        let ready = idle && still && peer.engine.state() == ClientState::Idle && !peer.liar;
        if !ready || peer.engine.outstanding() > 0 {
            return;
        }
        let block = self.geometry.request_block_bytes() as u32;
        let mut entry = Entry {
            quiet_epoch: peer.told_epoch,
            first_call: self.oracle.executed_of(peer.owner) + 1,
            staged_at: 0,
            stride: LINE as u32,
            count: 1,
        };
        let what = match pick {
            0 => {
                entry.quiet_epoch += 1;
                "quiet epoch"
            }
            1 => {
                entry.first_call += 1;
                "first call"
            }
            2 => {
                entry.first_call -= 1;
                "first call"
            }
            3 => {
                entry.count = 0;
                "count"
            }
            4 => {
                entry.count = self.geometry.window() + 1;
                "count"
            }
            5 => {
                entry.count = u32::MAX;
                "count"
            }
            6 => {
                entry.staged_at = self.geometry.staging_bytes() as u64;
                "address"
            }
            7 => {
                entry.staged_at = u64::MAX - 63;
                "address"
            }
            8 => {
                entry.stride = 0;
                "stride"
            }
            9 => {
                entry.stride = block + LINE as u32;
                "stride"
            }
            _ => {
                entry.staged_at = 8;
                "address"
            }
        };
        let number = peer.engine.counters().entries + 1;
        peer.bait = Some(Bait::Entry(what));
        (peer.liar, peer.asleep_ns) = (true, u64::MAX);
        let placement = self.config.limits.placement;
        let endpoint = self.geometry.endpoint(seat as u32);
        let exposed = self.end.exposed();
        entry.seal(exposed, endpoint, peer.owner, number, placement);
        exposed.store_byte_release(self.geometry.demand_byte(seat as u32), number as u8);
        self.end.change().knocked = true;
        tell!(self, "{seat:>3} ~ lies: an entry with a hostile {what}");
        self.mark("lie: entry with one hostile number");
    }

    /// A request in its zone, the next one, with a hostile length or flags.
    fn bait_with_request(&mut self, seat: usize) {
        let Some((ConnState::Active, Some(zone))) = self.server.seat(seat as u32) else {
            return;
        };
        let still = self
            .end
            .look()
            .wire(seat as u32)
            .is_some_and(|it| it.up.transfers.is_empty());
        let (pick, word) = (self.rng.random_range(0..3), self.odd_word());
        let Some(peer) = &mut self.peers[seat] else {
            return;
        };
        let ready = still && peer.engine.state() == ClientState::Process && !peer.liar;
        // Where bytes come in any order, a message that cannot be has not arrived yet.
        let trusts = self.config.limits.placement == Placement::InOrder;
        if !ready || !trusts {
            return;
        }
        let max = self.geometry.request_max_bytes() as u32;
        let (len, flags) = match pick {
            0 => ((max + 1).max(word as u32), 0),
            1 => (max + 1, 0),
            _ => (0, 1 << (word % 16)),
        };
        if len <= max && flags == 0 {
            return;
        }
        // With the flags that a request may have, it is something else that cannot be.
        let head = Head {
            len,
            tag: 1,
            flags,
            slot: 0,
        };
        let number = self.oracle.executed_of(peer.owner) + 1;
        peer.bait = Some(Bait::Request(number));
        (peer.liar, peer.asleep_ns) = (true, u64::MAX);
        let (pool, zone) = (zone / self.geometry.zones(), zone % self.geometry.zones());
        let end = self.geometry.block_end(pool, zone, number);
        let ext = (flags & wire::FLAG_EXT != 0).then_some(wire::Ext {
            epoch: u64::MAX,
            zone: 1,
            ..wire::Ext::default()
        });
        wire::seal(
            self.end.exposed(),
            end,
            peer.owner,
            head,
            ext,
            number,
            Placement::InOrder,
        );
        tell!(
            self,
            "{seat:>3} ~ lies: request {number} of {len} bytes, flags {flags:#x}"
        );
        self.mark("lie: request with a hostile head");
    }
}
