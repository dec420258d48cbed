//! Calls that are answered later: until then they hold no send slot.

use super::records::ConnState;
use super::{Call, ServerEngine};
use crate::mutant::{self, Bug};
use crate::store::Store;

/// A call that was taken and is answered later: see [`ServerEngine::defer`].
///
/// Its connection still owes the answer, so it keeps a place in the window and in the send queue; the send
/// slot and the request's bytes are given up.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a call that was taken has to be answered"]
pub struct Deferred {
    seat: u32,
    number: u64,
    method: u16,
    generation: u16,
    client_slot: u32,
    /// The generation of a seat comes again after 65,536 connections, and a call may be kept for longer.
    owner: u64,
}

impl Deferred {
    /// Seat of the connection.
    pub fn seat(&self) -> u32 {
        self.seat
    }

    /// The call's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What to run.
    pub fn method(&self) -> u16 {
        self.method
    }
}

/// What becomes of a call that is to be answered at last: see [`ServerEngine::resume`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a call that was taken has to be answered"]
pub enum Resumed {
    /// It has a send slot again, for [`ServerEngine::reply`]. Its request is gone: `request_len` is 0.
    Call(Call),
    /// No send slot is to be had now. Completions bring them back; try again in a later round.
    Wait(Deferred),
    /// The connection has ended. Nobody waits for the answer.
    Ended,
}

impl<S: Store> ServerEngine<S> {
    /// Keeps a call that is not answered yet, and gives its send slot back, which others need. Its request may
    /// change from here on: copy it first.
    pub fn defer(&mut self, call: Call) -> Deferred {
        if !mutant::is(Bug::DeferredSlotKept) {
            self.return_slot(call.send_slot);
        }
        let conn = &mut self.memory.conns[call.seat as usize];
        if mutant::is(Bug::DeferredNotOwed) {
            conn.answers_owed = conn.answers_owed.saturating_sub(1);
        }
        Deferred {
            seat: call.seat,
            number: call.number,
            method: call.method,
            generation: call.generation,
            client_slot: call.client_slot,
            owner: conn.owner,
        }
    }

    /// Takes a send slot for the answer of a call that was deferred.
    ///
    /// The place in the send queue was kept, so nothing but the slot can be missing. A connection whose
    /// completions do not come waits while half of the slots are gone, as in any other call (rule R6).
    pub fn resume(&mut self, deferred: Deferred) -> Resumed {
        if !self.is_awaited(&deferred) && !mutant::is(Bug::DeferredForAnother) {
            self.in_flight -= 1;
            return Resumed::Ended;
        }
        let conn = &self.memory.conns[deferred.seat as usize];
        let generation = match mutant::is(Bug::DeferredForAnother) {
            true => conn.generation,
            false => deferred.generation,
        };
        let hoards = self.hoards(conn) && !mutant::is(Bug::DeferredHoards);
        let Some(send_slot) = self.pop_slot(!hoards) else {
            return Resumed::Wait(deferred);
        };
        if mutant::is(Bug::DeferredNotOwed) {
            self.memory.conns[deferred.seat as usize].answers_owed += 1;
        }
        Resumed::Call(Call {
            seat: deferred.seat,
            number: deferred.number,
            method: deferred.method,
            request_at: 0,
            request_len: 0,
            response_at: self.geometry.send_slot(send_slot),
            deadline_ns: u64::MAX,
            generation,
            client_slot: deferred.client_slot,
            send_slot,
        })
    }

    /// True if the connection of a deferred call still waits for its answer.
    pub fn is_awaited(&self, deferred: &Deferred) -> bool {
        let conn = &self.memory.conns[deferred.seat as usize];
        let ended = matches!(conn.state, ConnState::Free | ConnState::Closing);
        !ended && conn.generation == deferred.generation && conn.owner == deferred.owner
    }

    /// Calls of a seat that were handed out and are not answered, deferred ones included.
    #[inline]
    pub fn answers_owed(&self, seat: u32) -> u32 {
        let conn = self.memory.conns.get(seat as usize);
        conn.map_or(0, |conn| conn.answers_owed.into())
    }
}
