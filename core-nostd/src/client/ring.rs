//! What comes from the server: answers, zones, and switch events.

use super::{ClientEngine, ClientState, RecordState};
use crate::geometry::Mapping;
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::post::READ_AHEAD;
use crate::store::Store;
use crate::wire::{
    self, Ext, FLAG_ACTIVATE, FLAG_CANCELLED, FLAG_CONTROL, FLAG_SWITCH, Head, Message, Status,
    Violation,
};

/// The answer to a call.
///
/// Its bytes stay in place until the caller has let as many further answers come as the ring has slots
/// beyond the window; so look at them before the next call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The call's number.
    pub call: u64,
    /// The caller's own, as given to `call`.
    pub tag: u64,
    /// How the call ended.
    pub status: Status,
    /// Offset of the payload in exposed memory.
    pub payload_at: usize,
    /// Its bytes.
    pub payload_len: usize,
}

/// A call that ended without an answer, because the connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The call's number.
    pub call: u64,
    /// The caller's own, as given to `call`.
    pub tag: u64,
    /// False: it certainly did not run (`NotSent`). True: nobody knows (`Unknown`).
    pub may_have_run: bool,
}

impl<S: Store> ClientEngine<S> {
    /// The word in exposed memory that is waited for, and its value once the next message is there. A
    /// caller with many connections looks at this before it bothers to [`poll`](Self::poll).
    #[inline]
    pub fn awaited(&self) -> (usize, u64) {
        (
            self.ring_at + self.geometry.ring_slot_end(self.ring_next) - 8,
            wire::last_word(self.conn.owner, self.ring_next),
        )
    }

    /// Where the message ends that is [`READ_AHEAD`] after the one that was taken last.
    #[inline(always)]
    pub fn later_source(&self) -> usize {
        let later = self.ring_next + READ_AHEAD - 1;
        self.ring_at + self.geometry.ring_slot_end(later)
    }

    /// Takes the next message of the response ring, and messages without an answer before it.
    ///
    /// # Errors
    ///
    /// A [`Violation`] by the server; the connection is lost then.
    #[inline]
    pub fn poll<M: Memory>(&mut self, exposed: &M) -> Result<Option<Answer>, Violation> {
        match self.poll_plain(exposed) {
            Some(answer) => Ok(Some(answer)),
            None => self.poll_any(exposed),
        }
    }

    /// As [`poll`](Self::poll), for nearly every message: an answer that says nothing else. `None` says nothing: there
    /// may be a message all the same.
    #[inline(always)]
    pub fn poll_plain<M: Memory>(&mut self, exposed: &M) -> Option<Answer> {
        let end = self.ring_at + self.geometry.ring_slot_end(self.ring_next);
        let len_max = self.geometry.config().response_max_bytes;
        let (owner, position) = (self.conn.owner, self.ring_next);
        let (head, payload_at) =
            wire::observe_plain(exposed, end, len_max, owner, position, self.placement())?;
        let record = self.record(head.slot)?;
        if self.state == ClientState::Lost || self.calls[record].cancelled {
            return None;
        }
        self.ring_next += 1;
        self.answered_max = self.answered_max.max(self.calls[record].number);
        self.end(record, head, payload_at)
    }

    fn poll_any<M: Memory>(&mut self, exposed: &M) -> Result<Option<Answer>, Violation> {
        while self.state != ClientState::Lost {
            let Some(message) = self.look(exposed)? else {
                break;
            };
            match self.receive(message) {
                Ok(Some(answer)) => return Ok(Some(answer)),
                Ok(None) => {}
                Err(why) => {
                    self.lost();
                    return Err(why);
                }
            }
        }
        Ok(None)
    }

    fn look<M: Memory>(&mut self, exposed: &M) -> Result<Option<Message>, Violation> {
        let end = self.ring_at + self.geometry.ring_slot_end(self.ring_next);
        let size = self.geometry.response_block_bytes();
        let owner = self.conn.owner;
        wire::observe(exposed, end, size, owner, self.ring_next, self.placement())
            .inspect_err(|_| self.lost())
    }

    /// `None`: it answers no call, or one that was cancelled.
    fn receive(&mut self, message: Message) -> Result<Option<Answer>, Violation> {
        let flags = message.head.flags;
        self.ring_next += 1;
        let ext = message.ext.unwrap_or_default();
        // Slots are whole lines, so there may be room for more than was agreed.
        if message.head.len > self.geometry.config().response_max_bytes {
            return Err(Violation::Length);
        }
        let odd = flags & (FLAG_ACTIVATE | FLAG_SWITCH) != 0 && message.ext.is_none();
        if odd || flags & FLAG_CANCELLED != 0 {
            return Err(Violation::Flags);
        }
        let record = match flags & FLAG_CONTROL {
            0 => {
                let record = self.record(message.head.slot).ok_or(Violation::Slot)?;
                // Before the switch event that may come with it, which is held to it.
                self.answered_max = self.answered_max.max(self.calls[record].number);
                Some(record)
            }
            _ => None,
        };
        if flags & FLAG_ACTIVATE != 0 {
            self.activate(ext)?;
        }
        if flags & FLAG_SWITCH != 0 {
            self.switch(ext)?;
        }
        // Only now: with an extension that cannot be, the call ends through `take_failed` (rule R1).
        Ok(record.and_then(|record| self.end(record, message.head, message.payload)))
    }

    /// The record of the call that a message answers, if it is outstanding.
    #[inline(always)]
    fn record(&self, slot: u32) -> Option<usize> {
        let at = (slot & 0xffff) as usize;
        let record = self.calls.get(at)?;
        let right = record.state == RecordState::Outstanding
            && record.number as u16 == (slot >> 16) as u16
            && record.number <= self.sent;
        right.then_some(at)
    }

    /// The call ends with this answer.
    #[inline(always)]
    fn end(&mut self, record: usize, head: Head, payload_at: usize) -> Option<Answer> {
        let record = &mut self.calls[record];
        record.state = RecordState::Held;
        self.outstanding -= 1;
        if record.cancelled && !mutant::is(Bug::CancelIgnored) {
            return None;
        }
        self.counters.answered += 1;
        Some(Answer {
            call: record.number,
            tag: record.tag,
            status: Status(head.tag),
            payload_at,
            payload_len: head.len as usize,
        })
    }

    /// The first response of a tenancy: it says where to write from now on.
    fn activate(&mut self, ext: Ext) -> Result<(), Violation> {
        let exists = ext.pool < self.geometry.pools() && ext.zone < self.geometry.zones();
        if self.state != ClientState::Warmup || !exists || ext.epoch <= self.epoch {
            return Err(Violation::Mapping);
        }
        self.state = ClientState::Process;
        self.epoch = ext.epoch;
        // Until the tenancy is over there is nothing to be quiet about.
        self.quiet = ext.epoch;
        self.pool = ext.pool;
        self.zone = ext.zone;
        Ok(())
    }

    /// The tenancy is over: calls after `consumed` did not run, and will not unless sent again.
    fn switch(&mut self, ext: Ext) -> Result<(), Violation> {
        let expected = match self.state {
            ClientState::Warmup => ext.epoch > self.epoch,
            ClientState::Process => ext.epoch == self.epoch,
            ClientState::Idle | ClientState::Lost => false,
        };
        // A zone for life is not taken away, nor is another one given for it.
        let expected = expected && self.geometry.mapping() == Mapping::Virtual;
        // Everything that was answered had been consumed.
        if !expected || ext.consumed < self.answered_max || ext.consumed > self.sent {
            return Err(Violation::Mapping);
        }
        self.state = ClientState::Idle;
        let forgotten = mutant::is(Bug::ParkedCallForgotten) && ext.consumed < self.sent;
        self.sent = ext.consumed + u64::from(forgotten);
        self.epoch = ext.epoch;
        self.quiet = 0;
        self.barred = false;
        self.counters.switch_events += 1;
        Ok(())
    }

    /// After the connection was lost: the next call that ends without an answer.
    pub fn take_failed(&mut self) -> Option<Failed> {
        if self.state != ClientState::Lost || self.outstanding == 0 {
            return None;
        }
        for record in self.calls.iter_mut() {
            if record.state != RecordState::Outstanding {
                continue;
            }
            record.state = RecordState::Free;
            self.outstanding -= 1;
            if !record.cancelled {
                self.counters.failed += 1;
                return Some(Failed {
                    call: record.number,
                    tag: record.tag,
                    may_have_run: (record.number <= self.sent && !mutant::is(Bug::LostCallNotSent))
                        || mutant::is(Bug::ParkedCallUnknown),
                });
            }
        }
        None
    }
}
