//! The server's turn.

use scalerpc_core::Memory;
use scalerpc_core::client::ClientState;
use scalerpc_core::post::{ReadWr, WriteWr};
use scalerpc_core::server::{Action, Call, ConnState, OpenConn};
use scalerpc_core::wire::{FLAG_ACTIVATE, FLAG_CONTROL, FLAG_EXT, FLAG_SWITCH, Status};
use scalerpc_driver::{Fabric, FabricEvent, Revocation};

use crate::faults::Bait;
use crate::oracle::{Broken, Request};
use crate::world::{Kept, World, tell};

impl World {
    /// At most so many actions. True if the server had nothing more to do.
    pub(crate) fn serve(&mut self, actions: u32) -> Result<bool, Broken> {
        while let Some(event) = self.end.poll_event() {
            self.sleeps = false;
            match event {
                FabricEvent::Opened(it) => {
                    let open = OpenConn {
                        seat: it.seat,
                        owner: it.owner,
                        ring_at: it.ring_at,
                        staging_at: it.staging_at,
                        placement: it.placement,
                    };
                    if !self.server.open(open) {
                        return Err("a free seat could not be opened".into());
                    }
                }
                FabricEvent::Gone { connection } => self.tear_down(connection as usize)?,
            }
        }
        while let Some(completion) = self.end.poll_completion() {
            self.sleeps = false;
            self.server.completed(completion);
        }
        if self.sleeps_on() {
            return Ok(true);
        }
        for done in 0..actions {
            let (exposed, private) = (self.end.exposed(), self.end.private());
            let before = self.next_group();
            let action = self.server.next_action(self.now_ns, exposed, private);
            self.served_ns = self.now_ns;
            if let (Some((old, true)), Some((new, _))) = (before, self.next_group()) {
                if old != new {
                    self.mark("group replaced: its fetch hangs");
                }
            }
            if action == Action::Idle {
                if done == 0 {
                    self.fall_asleep()?;
                }
                return Ok(true);
            }
            self.act(action)?;
        }
        Ok(false)
    }

    /// The group that is next, and whether it only waits for its fetches.
    fn next_group(&self) -> Option<(u32, bool)> {
        let pools = (0..self.geometry.pools()).filter_map(|pool| self.server.pool(pool));
        let next = pools.into_iter().find(|pool| !pool.processing)?;
        Some((next.group?, next.fetching > 0 && next.active == 0))
    }

    fn act(&mut self, action: Action) -> Result<(), Broken> {
        match action {
            Action::Idle => Ok(()),
            Action::Write(wr) => {
                self.note_refusal(&wr)?;
                self.post_write(&wr)
            }
            Action::Read(wr) => self.post_read(&wr),
            Action::Call(call) => self.handle(call),
            Action::Revoke { seat, epoch } => {
                let mut one = [Revocation {
                    seat,
                    epoch,
                    done: false,
                }];
                self.end.revoke_all(&mut one);
                tell!(self, "{seat:>3} = revoke {epoch}: {}", one[0].done);
                if one[0].done {
                    self.server.revoked(seat, epoch);
                }
                Ok(())
            }
            Action::Close { seat, why } => {
                tell!(self, "{seat:>3} = close: {why:?}");
                if let (Some(why), Some(peer)) = (why, &mut self.peers[seat as usize]) {
                    if !peer.liar {
                        return Err(format!("R12: seat {seat}, honest, was evicted for {why:?}"));
                    }
                    peer.bait = None;
                }
                self.end.close(seat);
                Ok(())
            }
        }
    }

    /// A WRITE that the server asks for by itself is a switch event, or answers a call that does not run.
    fn note_refusal(&mut self, wr: &WriteWr) -> Result<(), Broken> {
        let (private, end) = (self.end.private(), wr.local + wr.len);
        let (first, second) = (private.load(end - 24), private.load(end - 16));
        let (flags, status) = ((first >> 48) as u16, Status((first >> 32) as u16));
        if flags & FLAG_CONTROL != 0 {
            return Ok(());
        }
        let max = self.config.server.calls_in_flight_max as usize;
        let crowded = self.in_hand.len() >= max;
        self.count_drained(wr.connection)?;
        let Some(peer) = self.peers[wr.connection as usize]
            .as_ref()
            .filter(|it| !it.liar)
        else {
            return Ok(());
        };
        let call = self.oracle.executed_of(peer.owner) + 1;
        tell!(self, "{:>3} * refuse call {call}: {status}", wr.connection);
        if (second >> 48) as u16 != call as u16 {
            return Err(format!("R2: another call than {call} was refused"));
        }
        self.oracle.taken(peer.owner, call)?;
        let terms = self.oracle.terms(peer.owner);
        terms.was_refused(call, status, self.now_ns, crowded)
    }

    fn count_drained(&mut self, seat: u32) -> Result<(), Broken> {
        let draining = self.server.census()?.draining;
        if let Some(peer) = self.peers[seat as usize].as_mut().filter(|_| draining) {
            peer.drained += 1;
            if peer.drained > self.geometry.window() {
                return Err(format!("R8: seat {seat} had more than a window drained"));
            }
        }
        Ok(())
    }

    fn handle(&mut self, call: Call) -> Result<(), Broken> {
        self.count_drained(call.seat)?;
        let crowded = self.in_hand.len() >= self.config.server.calls_in_flight_max as usize;
        let Some(peer) = &mut self.peers[call.seat as usize] else {
            return Err("R12: a call of nobody".into());
        };
        if peer.bait == Some(Bait::Request(call.number)) {
            return Err("R12: a request that cannot be was handed out".into());
        }
        if call.request_len > self.geometry.request_max_bytes() {
            return Err(format!(
                "R12: a request of {} bytes was handed out",
                call.request_len
            ));
        }
        if crowded {
            return Err(format!(
                "a call too many runs, beside {}",
                self.in_hand.len()
            ));
        }
        let mut bytes = vec![0; call.request_len];
        self.end.exposed().copy_out(call.request_at, &mut bytes);
        let request = Request {
            method: call.method,
            bytes,
        };
        tell!(self, "{:>3} * run call {}", call.seat, call.number);
        if !peer.liar {
            self.oracle.executed(peer.owner, call.number, self.now_ns)?;
            if request != Request::of(peer.owner, call.number, self.geometry.request_max_bytes()) {
                return Err(format!("R2: call {} ran with another's bytes", call.number));
            }
        }
        if !self.calm && self.chance(self.config.chances.defer) {
            let kept = match self.chance(self.config.chances.keep) {
                true => Kept::Call(call),
                false => Kept::Deferred(self.server.defer(call)),
            };
            self.in_hand.push((kept, request));
            self.mark("call answered later");
            return Ok(());
        }
        self.answer(call, &request)
    }

    pub(crate) fn answer(&mut self, call: Call, request: &Request) -> Result<(), Broken> {
        let (status, answer) = request.answer(self.geometry.response_max_bytes());
        let (exposed, private) = (self.end.exposed(), self.end.private());
        private.copy_in(call.response_at, &answer);
        let write = self
            .server
            .reply(call, status, answer.len(), exposed, private);
        match write {
            Some(wr) => self.post_write(&wr),
            None => {
                self.mark("answer to a connection that ended");
                Ok(())
            }
        }
    }

    fn post_write(&mut self, wr: &WriteWr) -> Result<(), Broken> {
        let (seat, end) = (wr.connection, wr.local + wr.len);
        let private = self.end.private();
        let (flags, ext) = ((private.load(end - 24) >> 48) as u16, end - 64);
        let Some(peer) = &mut self.peers[seat as usize] else {
            return Err("a WRITE to nobody".into());
        };
        tell!(
            self,
            "{seat:>3} ! WRITE {} bytes, flags {flags:#06b}",
            wr.len
        );
        if flags & FLAG_EXT != 0 && flags & (FLAG_ACTIVATE | FLAG_SWITCH) != 0 {
            peer.told_epoch = private.load(ext);
            let warmup = peer.engine.state() == ClientState::Warmup;
            if flags & FLAG_SWITCH != 0 {
                peer.drained = 0;
                if !peer.liar {
                    self.oracle.switched(peer.owner, private.load(ext + 8))?;
                }
                if flags & FLAG_CONTROL != 0 && warmup {
                    self.mark("switch event to a client in Warmup");
                }
            }
        }
        if self.end.post_write(wr).is_err() {
            self.server.failed(seat);
        }
        Ok(())
    }

    fn post_read(&mut self, wr: &ReadWr) -> Result<(), Broken> {
        let seat = wr.connection;
        tell!(
            self,
            "{seat:>3} ! READ {} calls from {}",
            wr.count,
            wr.first_call
        );
        if let Some(peer) = &self.peers[seat as usize] {
            if let Some(Bait::Entry(what)) = peer.bait {
                return Err(format!("R12: an entry with a hostile {what} was accepted"));
            }
            self.oracle.fetched(peer.owner);
            self.oracle.terms(peer.owner).fetched(self.now_ns);
        }
        if wr.count < self.geometry.window() && wr.count == self.config.limits.sge_max {
            self.mark("batch of several READs");
        }
        if self.end.post_read(wr).is_err() {
            self.mark("chain of READs posted in part");
            self.server.failed(seat);
        }
        Ok(())
    }

    /// A connection has ended and is fenced: both sides let go of it.
    fn tear_down(&mut self, seat: usize) -> Result<(), Broken> {
        tell!(self, "{seat:>3} = gone");
        self.server.gone(seat as u32);
        if self.server.seat(seat as u32) != Some((ConnState::Free, None)) {
            return Err(format!("seat {seat} is not free after its end"));
        }
        self.end.release(seat as u32);
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        peer.engine.lost();
        if !peer.dead {
            self.take_answers(seat)?;
            let honest = self.peers[seat].as_ref().filter(|peer| !peer.liar);
            let left = honest.map_or(Ok(0), |peer| self.oracle.balance(peer.owner))?;
            if left > 0 {
                return Err("R1: a call of a lost connection did not end".into());
            }
        }
        self.peers[seat] = None;
        Ok(())
    }
}
