//! What goes wrong: clients that stop, die, fail or lie, and those that come after them.

use rand::Rng;
use scalerpc_core::Memory;
use scalerpc_core::client::{ClientConn, ClientState};
use scalerpc_core::server::{ConnState, OpenConn};
use scalerpc_core::wire::{TRAILER_BYTES, valid_word};
use scalerpc_driver::store;

use crate::arena::Arena;
use crate::net::Queue;
use crate::oracle::Broken;
use crate::world::{Peer, World};

impl World {
    pub(crate) fn disturb(&mut self, seat: usize) -> Result<(), Broken> {
        let chances = self.config.chances;
        if self.peers[seat].is_none() && self.chance(chances.connect) {
            self.connect(seat)?;
        }
        let nap_ns = self.rng.random_range(0..=100 * chances.step_ns);
        let (stop, die, fail) = (
            self.chance(chances.stop),
            self.chance(chances.die),
            self.chance(chances.fail),
        );
        let lie = self.chance(chances.lie);
        let later_ns = self.now_ns + nap_ns;
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        if stop {
            peer.asleep_ns = later_ns;
        }
        if die {
            peer.dead = true;
        }
        if (die || fail) && peer.down_ns.is_none() {
            peer.down_ns = Some(later_ns);
        }
        if lie {
            self.lie(seat);
        }
        Ok(())
    }

    fn connect(&mut self, seat: usize) -> Result<(), Broken> {
        let owner: u64 = self.rng.random();
        let conn = ClientConn {
            connection: 0,
            seat: seat as u32,
            owner,
        };
        let engine = store::client_engine(self.geometry, self.config.limits, conn)
            .ok_or("the limits do not suffice")?;
        let exposed = self.exposed.region();
        let (line, byte) = (
            self.geometry.endpoint(seat as u32),
            self.geometry.demand_byte(seat as u32),
        );
        for word in (0..64).step_by(8) {
            exposed.store(line + word, 0);
        }
        exposed.store_byte_release(byte, 0);
        self.peers[seat] = Some(Peer {
            owner,
            engine,
            exposed: Arena::new(self.geometry.client_exposed_bytes()),
            private: Arena::new(self.geometry.client_private_bytes()),
            up: Queue::default(),
            down: Queue::default(),
            asleep_ns: 0,
            dead: false,
            liar: false,
            down_ns: None,
            revoked: 0,
        });
        let open = OpenConn {
            seat: seat as u32,
            owner,
            ring_at: self.geometry.ring(0),
            staging_at: self.geometry.staging(0),
        };
        match self.server.open(open) {
            true => Ok(()),
            false => Err("a free seat could not be opened".into()),
        }
    }

    /// The client writes bytes that it may reach and must not write.
    fn lie(&mut self, seat: usize) {
        let endpoint = self.geometry.endpoint(seat as u32);
        let zone = self.server.seat(seat as u32).and_then(|(_, zone)| zone);
        let Some(peer) = &mut self.peers[seat] else {
            return;
        };
        if peer.down_ns.is_some() {
            return;
        }
        peer.liar = true;
        let target = self.exposed.region();
        let mut word = || match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..4),
            1 => u64::MAX - self.rng.random_range(0..4),
            2 => 1 << self.rng.random_range(0..64),
            _ => self.rng.random(),
        };
        // Its own endpoint entry with the right owner, or a block of its zone.
        let number = word() % 8;
        for at in (0..56).step_by(8) {
            target.store(endpoint + at, word());
        }
        target.store(endpoint + 8, peer.owner);
        target.store_release(endpoint + 56, number);
        target.store_byte_release(self.geometry.demand_byte(seat as u32), number as u8);
        if let Some(zone) = zone {
            let zones = self.geometry.zones();
            let end = self.geometry.block_end(zone / zones, zone % zones, number);
            for at in (8..=TRAILER_BYTES).step_by(8) {
                target.store(end - at, word());
            }
            target.store(end - TRAILER_BYTES, peer.owner);
            target.store_release(end - 8, valid_word(peer.owner, number));
        }
    }

    /// Connections that have failed end, on both sides.
    pub(crate) fn tear_down(&mut self) -> Result<(), Broken> {
        for seat in 0..self.peers.len() {
            let Some(peer) = &mut self.peers[seat] else {
                continue;
            };
            if peer.down_ns.is_none_or(|at| at > self.now_ns) {
                continue;
            }
            peer.up.flush();
            peer.down.flush();
            while let Some(completion) = peer.down.poll() {
                self.server.completed(completion);
            }
            self.server.gone(seat as u32);
            if self.server.seat(seat as u32) != Some((ConnState::Free, None)) {
                return Err(format!("seat {seat} is not free after its end"));
            }
            peer.engine.lost();
            if peer.engine.state() != ClientState::Lost {
                return Err("a lost connection is not lost".into());
            }
            if !peer.dead {
                peer.asleep_ns = 0;
                self.take_answers(seat)?;
                let honest = self.peers[seat].as_ref().filter(|peer| !peer.liar);
                let left = honest.map_or(Ok(0), |peer| self.oracle.balance(peer.owner))?;
                if left > 0 {
                    return Err("R1: a call of a lost connection did not end".into());
                }
            }
            self.peers[seat] = None;
        }
        Ok(())
    }
}
