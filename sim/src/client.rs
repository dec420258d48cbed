//! A client's turn.

use rand::Rng;
use scalerpc_core::Memory;
use scalerpc_core::client::{CallError, Cancelled, ClientState};
use scalerpc_core::post::WriteWr;
use scalerpc_core::wire::ENTRY_QUIET_AT;
use scalerpc_driver::{Fabric, FabricEvent, PostError};

use crate::oracle::{Broken, Request};
use crate::world::{Peer, World, tell};

/// A client's turn cannot have more WRITEs.
const POSTS_MAX: u32 = 1_000;

impl World {
    /// Takes answers, makes calls, posts.
    pub(crate) fn poll_client(
        &mut self,
        seat: usize,
        calls: u32,
        cancels: bool,
    ) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        if peer.dead || peer.asleep_ns > self.now_ns {
            return Ok(());
        }
        while let Some(completion) = peer.end.poll_completion() {
            peer.engine.completed(completion);
        }
        if let Some(FabricEvent::Gone { .. }) = peer.end.poll_event() {
            peer.engine.lost();
        }
        self.take_answers(seat)?;
        self.make_calls(seat, calls)?;
        if cancels {
            self.cancel(seat)?;
        }
        self.post_client(seat, None)
    }

    pub(crate) fn take_answers(&mut self, seat: usize) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        let mut answered = 0;
        loop {
            let answer = match peer.engine.poll(peer.end.exposed()) {
                Ok(answer) => answer,
                Err(_) if peer.liar => break,
                Err(why) => return Err(format!("R12: seat {seat} found {why} in its ring")),
            };
            let Some(answer) = answer else { break };
            if peer.liar {
                continue;
            }
            let request = Request::of(peer.owner, answer.call, self.geometry.request_max_bytes());
            let (status, bytes) = match self.oracle.terms(peer.owner).refusal(answer.call) {
                Some(status) => (status, Vec::new()),
                None => request.answer(self.geometry.response_max_bytes()),
            };
            let mut got = vec![0; answer.payload_len];
            peer.end.exposed().copy_out(answer.payload_at, &mut got);
            if answer.tag != !answer.call || answer.status != status || got != bytes {
                return Err(format!("R1: call {} got the wrong answer", answer.call));
            }
            answered += 1;
            if let Some(answers) = &mut self.answers {
                let of_it = answers.entry(peer.owner).or_default();
                of_it.push((answer.call, answer.status, got));
            }
            tell!(self, "{seat:>3} < answer to {}", answer.call);
            self.oracle
                .ended(peer.owner, answer.call, true, peer.posted_max)?;
        }
        let mut failed = 0;
        while let Some(lost) = peer.engine.take_failed() {
            failed += 1;
            tell!(self, "{seat:>3} < call {} failed", lost.call);
            if !peer.liar {
                let (call, may) = (lost.call, lost.may_have_run);
                self.oracle.ended(peer.owner, call, may, peer.posted_max)?;
            }
        }
        *self.report.marks.entry("call answered").or_default() += answered;
        *self.report.marks.entry("call failed").or_default() += failed;
        Ok(())
    }

    fn make_calls(&mut self, seat: usize, count: u32) -> Result<(), Broken> {
        for _ in 0..count {
            let budget_ns = self.draw_budget();
            let Some(peer) = &mut self.peers[seat] else {
                return Ok(());
            };
            let call = peer.engine.counters().calls + 1;
            let request = Request::of(peer.owner, call, self.geometry.request_max_bytes());
            let private = peer.end.private();
            let Request { method, bytes } = &request;
            let accepted = match budget_ns {
                Some(budget_ns) => {
                    let clock_ns = self.now_ns + peer.clock_ns();
                    let engine = &mut peer.engine;
                    let accepted =
                        engine.call_within(*method, bytes, !call, budget_ns, clock_ns, private);
                    accepted.map(|number| (number, None))
                }
                // Both ways that a caller has.
                None if call % 2 == 0 => peer.engine.call_direct(*method, bytes, !call, private),
                None => {
                    let accepted = peer.engine.call(*method, bytes, !call, private);
                    accepted.map(|number| (number, None))
                }
            };
            let direct = accepted.as_ref().ok().and_then(|&(_, direct)| direct);
            match accepted {
                Ok(_) if peer.liar => {}
                Ok((number, _)) => {
                    tell!(
                        self,
                        "{seat:>3} + call {number}, {} bytes",
                        request.bytes.len()
                    );
                    self.oracle.issued(peer.owner, number)?;
                    if let Some(budget_ns) = budget_ns {
                        let deadline_ns = self.now_ns + budget_ns;
                        let terms = self.oracle.terms(peer.owner);
                        terms.has_budget(number, deadline_ns);
                    }
                }
                Err(CallError::WindowFull) => {
                    let net = self.end.look();
                    let still = net
                        .wire(seat as u32)
                        .is_some_and(|wire| wire.up.transfers.is_empty() && wire.up.is_drained());
                    if peer.engine.outstanding() == 0 && still && !peer.liar {
                        return Err(format!(
                            "R1: seat {seat} may not call, and nothing is going on"
                        ));
                    }
                    break;
                }
                Err(CallError::Lost) => break,
                Err(error) => return Err(error.to_string()),
            }
            if direct.is_some() {
                self.post_client(seat, direct)?;
            }
        }
        Ok(())
    }

    fn draw_budget(&mut self) -> Option<u64> {
        let chances = self.config.chances;
        let has_one = !self.calm && self.terms_rng.random_ratio(chances.budget, 1000);
        has_one.then(|| self.terms_rng.random_range(0..=chances.budget_ns))
    }

    fn cancel(&mut self, seat: usize) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        let back = self.rng.random_range(0..=u64::from(self.geometry.window()));
        let call = peer.engine.counters().calls.saturating_sub(back);
        let cancelled = peer.engine.cancel(call);
        if cancelled != Cancelled::Ended && !peer.liar {
            tell!(self, "{seat:>3} - call {call} cancelled: {cancelled:?}");
            self.oracle.cancelled(peer.owner, call)?;
            let never = cancelled == Cancelled::NeverRuns;
            self.oracle.terms(peer.owner).cancelled(call, never);
            self.mark(match never {
                true => "call cancelled before it was sent",
                false => "call cancelled",
            });
        }
        Ok(())
    }

    /// Posts `first`, and then what else the client has to post.
    fn post_client(&mut self, seat: usize, mut first: Option<WriteWr>) -> Result<(), Broken> {
        let Some(peer) = &mut self.peers[seat] else {
            return Ok(());
        };
        let (mut refused, mut quiet, mut posts) = (0, 0, 0);
        if peer.engine.wants_time() {
            peer.engine.pass(self.now_ns + peer.clock_ns());
        }
        loop {
            let Peer { engine, end, .. } = &mut *peer;
            let next = || engine.next_write(end.exposed(), end.private());
            let Some(wr) = first.take().or_else(next) else {
                break;
            };
            posts += 1;
            if posts > POSTS_MAX {
                return Err(format!("R11: seat {seat} posts without end"));
            }
            // A message goes to a zone, or an entry says what is staged.
            let is_entry = wr.remote == self.geometry.endpoint(seat as u32);
            if wr.len > 8 {
                let sent = peer.engine.counters().calls - peer.engine.parked();
                peer.posted_max = peer.posted_max.max(sent);
                let taken = self.oracle.executed_of(peer.owner);
                let terms = self.oracle.terms(peer.owner);
                match is_entry {
                    true => terms.staged(taken, sent, self.now_ns),
                    false => terms.written(sent, self.now_ns),
                }
            }
            let quiet_at = self.geometry.endpoint(seat as u32) + ENTRY_QUIET_AT;
            quiet += u64::from(wr.remote == quiet_at && wr.len == 8);
            match peer.end.post_write(&wr) {
                Ok(()) => tell!(self, "{seat:>3} > WRITE {} bytes, {:?}", wr.len, wr.epoch),
                Err(error) => {
                    tell!(self, "{seat:>3} > refused: {error}");
                    if wr.epoch.is_some() {
                        peer.engine.refused();
                    }
                    if error != PostError::Revoked {
                        peer.engine.lost();
                    }
                    refused += u64::from(error == PostError::Revoked);
                }
            }
        }
        let lost = peer.engine.state() == ClientState::Lost;
        *self
            .report
            .marks
            .entry("WRITE refused, tenancy revoked")
            .or_default() += refused;
        *self
            .report
            .marks
            .entry("quiet message of its own")
            .or_default() += quiet;
        if lost {
            self.take_answers(seat)
        } else {
            Ok(())
        }
    }
}
