//! Serving: looks for requests, hands them out, and sends the answers and the switch events.

use super::records::{Active, ConnState, NONE};
use super::{Action, Call, ServerEngine};
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::post::{WrId, WrKind, WriteWr};
use crate::store::Store;
use crate::wire::{
    self, Ext, FLAG_ACTIVATE, FLAG_CONTROL, FLAG_EXT, FLAG_SWITCH, Head, Message, Status, Violation,
};

/// Calls that are handed out in one round, so that the caller's clock is read in between.
pub(super) const ROUND_CALLS: u32 = 64;

impl<S: Store> ServerEngine<S> {
    pub(super) fn begin_visits(&mut self) {
        let active = self.tenancies[self.processing as usize].active;
        self.visits_left = active;
        // What is left of a burst is not renewed: a round may be shorter than a burst, and the connection
        // that it ended with would have the next one to itself, too.
        self.calls_left = self.round_calls;
    }

    /// Looks at the connections that are served, in turn; hands out a request that has come.
    #[inline]
    pub(super) fn visit<M: Memory>(&mut self, exposed: &M, private: &M) -> Option<Action> {
        if self.draining {
            return self.drain(exposed, private);
        }
        let first = self.processing as usize * self.geometry.zones() as usize;
        while self.visits_left > 0 && self.calls_left > 0 {
            let active = self.tenancies[self.processing as usize].active;
            if self.cursor >= active {
                self.cursor = 0;
            }
            if active == 0 {
                break;
            }
            let at = first + self.cursor;
            let Active {
                seat,
                awaited_at,
                awaited,
            } = self.memory.active[at];
            // Ordering: none; `look` acquires it.
            let news = exposed.load(awaited_at) == awaited && self.burst_left > 0;
            let call = if news { self.take(seat, exposed) } else { None };
            if let Some(call) = call {
                self.memory.active[at] = self.awaiting(seat);
                self.burst_left -= 1;
                return Some(Action::Call(call));
            }
            self.cursor += 1;
            self.visits_left -= 1;
            self.burst_left = self.config.burst;
        }
        self.visits_left = 0;
        None
    }

    /// Takes what has come from each connection, once, and tells it that its tenancy is over.
    fn drain<M: Memory>(&mut self, exposed: &M, private: &M) -> Option<Action> {
        let first = self.processing as usize * self.geometry.zones() as usize;
        while self.calls_left > 0 {
            let active = self.tenancies[self.processing as usize].active;
            if active == 0 {
                break;
            }
            let seat = self.memory.active[first + active - 1].seat;
            let call = if self.drain_budget > 0 {
                self.take(seat, exposed)
            } else {
                None
            };
            if let Some(call) = call {
                self.drain_budget -= u32::from(!mutant::is(Bug::DrainEndless));
                return Some(Action::Call(call));
            }
            if self.memory.conns[seat as usize].state != ConnState::Active {
                continue;
            }
            if mutant::is(Bug::EventForgotten) {
                self.quarantine(seat, true);
                continue;
            }
            let event = self.switch_event(seat, private);
            self.quarantine(seat, event.is_some());
            if let Some(write) = event {
                return Some(Action::Write(write));
            }
        }
        self.visits_left = 0;
        None
    }

    /// The message with the connection's next call, if it has come.
    #[inline]
    fn look<M: Memory>(&self, seat: u32, exposed: &M) -> Result<Option<Message>, Violation> {
        let conn = &self.memory.conns[seat as usize];
        let (pool, zone) = self.place(conn.zone);
        let end = self.geometry.block_end(pool, zone, conn.next_call);
        let size = self.geometry.request_block_bytes();
        match wire::observe(
            exposed,
            end,
            size,
            conn.owner,
            conn.next_call,
            conn.placement,
        ) {
            Ok(Some(message)) if message.head.flags != 0 && !mutant::is(Bug::FlagsIgnored) => {
                Err(Violation::Flags)
            }
            // Blocks are whole lines, so there may be room for more than was agreed.
            Ok(Some(message))
                if message.head.len > self.geometry.config().request_max_bytes
                    && !mutant::is(Bug::LengthIgnored) =>
            {
                Err(Violation::Length)
            }
            other => other,
        }
    }

    /// Takes the connection's next call, if it has come and can be answered.
    #[inline]
    fn take<M: Memory>(&mut self, seat: u32, exposed: &M) -> Option<Call> {
        if mutant::is(Bug::CallsSwapped) {
            self.memory.conns[seat as usize].next_call += 1;
            if !matches!(self.look(seat, exposed), Ok(Some(_))) {
                self.memory.conns[seat as usize].next_call -= 1;
            }
        }
        let message = match self.look(seat, exposed) {
            Ok(message) => message?,
            Err(why) => {
                self.evict(seat, why);
                return None;
            }
        };
        let owed = u32::from(self.memory.conns[seat as usize].answers_owed);
        if owed >= self.geometry.window() {
            self.evict(seat, Violation::Window);
            return None;
        }
        let send_slot = self.take_slot(seat)?;
        let conn = &mut self.memory.conns[seat as usize];
        let (number, generation) = (conn.next_call, conn.generation);
        conn.next_call += 1;
        conn.answers_owed += 1;
        conn.tenancy_bytes = conn.tenancy_bytes.saturating_add(message.head.len);
        // The staged batch is at the front of a tenancy's calls.
        let staged = conn.staged_asked > 0;
        if staged {
            conn.staged_asked -= 1;
        }
        self.counters.calls += 1;
        self.counters.staged_calls += u64::from(staged);
        self.counters.direct_writes += u64::from(!staged);
        self.idle_ns = 0;
        self.calls_left = self.calls_left.saturating_sub(1);
        self.calls_since += 1;
        Some(Call {
            seat,
            number,
            generation,
            method: message.head.tag,
            request_at: message.payload,
            request_len: message.head.len as usize,
            response_at: self.geometry.send_slot(send_slot),
            client_slot: message.head.slot,
            send_slot,
        })
    }

    /// A free send slot, if the connection may post one more WRITE.
    #[inline]
    fn take_slot(&mut self, seat: u32) -> Option<u32> {
        let slot = self.free_slot;
        let conn = &self.memory.conns[seat as usize];
        // When half of the slots are gone, a connection gets its next one when its last completion has
        // come: one whose completions do not come cannot take the slots that the others need (rule R6).
        let hoards = self.slots_scarce() && conn.sq.reports() && !mutant::is(Bug::SendSlotsHoarded);
        if slot == NONE || hoards || !conn.has_room(1) {
            self.counters.stalls += 1;
            return None;
        }
        self.free_slot = self.memory.send_slots[slot as usize].next;
        self.free_slots -= 1;
        Some(slot)
    }

    #[inline]
    fn slots_scarce(&self) -> bool {
        self.free_slots < self.geometry.send_slots() / 2
    }

    fn return_slot(&mut self, slot: u32) {
        self.memory.send_slots[slot as usize].next = self.free_slot;
        self.free_slot = slot;
        self.free_slots += 1;
    }

    /// Answers a call with the `len` bytes that were put at its `response_at`.
    ///
    /// `None` if the connection has ended meanwhile; there is nothing to post then.
    #[inline]
    pub fn reply<M: Memory>(
        &mut self,
        call: Call,
        status: Status,
        len: usize,
        exposed: &M,
        private: &M,
    ) -> Option<WriteWr> {
        let (status, len) = if len > self.geometry.response_max_bytes() {
            (Status::RESPONSE_TOO_LARGE, 0)
        } else {
            (status, len)
        };
        let seat = call.seat;
        let conn = &mut self.memory.conns[seat as usize];
        let ended = matches!(conn.state, ConnState::Free | ConnState::Closing);
        if ended || conn.generation != call.generation {
            self.return_slot(call.send_slot);
            if mutant::is(Bug::SendSlotTwice) {
                self.return_slot(call.send_slot);
            }
            return None;
        }
        conn.answers_owed -= 1;
        let (active, told_zone) = (conn.state == ConnState::Active, conn.told_zone);
        let zone = conn.zone;
        // An answer that comes late may go to a connection of the next tenancy, whose drain this is not.
        let leaves = active && self.draining && self.place(zone).0 == self.processing;
        let last = leaves && self.is_last(seat, exposed);
        let mut flags = 0;
        if last {
            flags |= FLAG_EXT | FLAG_SWITCH;
        } else if active && !told_zone {
            flags |= FLAG_EXT | FLAG_ACTIVATE;
        }
        let head = Head {
            len: len as u32,
            tag: status.0,
            flags,
            slot: call.client_slot,
        };
        let write = self.respond(seat, call.send_slot, head, private);
        if last {
            self.counters.switch_events_ridden += 1;
            if !mutant::is(Bug::ServedAfterEvent) {
                self.quarantine(seat, true);
            }
        }
        Some(write)
    }

    /// In a drain: true if no further call of the connection will be taken.
    fn is_last<M: Memory>(&self, seat: u32, exposed: &M) -> bool {
        let more = self.drain_budget > 0
            && self.free_slot != NONE
            && self.memory.conns[seat as usize].has_room(2)
            && matches!(self.look(seat, exposed), Ok(Some(_)));
        !more
    }

    /// A message that says nothing but that the connection's tenancy is over.
    pub(super) fn switch_event<M: Memory>(&mut self, seat: u32, private: &M) -> Option<WriteWr> {
        let slot = self.take_slot(seat)?;
        let flags = FLAG_EXT | FLAG_SWITCH | FLAG_CONTROL;
        let head = Head {
            len: 0,
            tag: 0,
            flags,
            slot: 0,
        };
        self.counters.switch_events_extra += 1;
        Some(self.respond(seat, slot, head, private))
    }

    /// Completes the message in a send slot, and says where it goes.
    #[inline]
    fn respond<M: Memory>(&mut self, seat: u32, slot: u32, head: Head, private: &M) -> WriteWr {
        let scarce = self.slots_scarce();
        let (pool, zone) = self.place(self.memory.conns[seat as usize].zone);
        let conn = &mut self.memory.conns[seat as usize];
        let ext = (head.flags & FLAG_EXT != 0).then(|| Ext {
            epoch: self.memory.zones[conn.zone as usize].epoch,
            consumed: conn.next_call - 1 + u64::from(mutant::is(Bug::ConsumedTooHigh))
                - u64::from(mutant::is(Bug::ConsumedTooLow) && conn.next_call > 1),
            zone: match mutant::is(Bug::WrongZone) {
                true => (zone + 1) % self.geometry.zones(),
                false => zone,
            },
            pool,
        });
        if head.flags & FLAG_ACTIVATE != 0 {
            conn.told_zone = true;
            conn.told_epoch = self.memory.zones[conn.zone as usize].epoch;
        }
        let span = wire::span(head.len as usize, head.flags);
        let local = self.geometry.send_slot(slot);
        let position = conn.ring_next;
        conn.ring_next += 1;
        let placement = conn.placement;
        wire::seal(
            private,
            local + span,
            conn.owner,
            head,
            ext,
            position,
            placement,
        );
        // A switch event is signaled: the send queue is empty before the next fetch, and no send slot
        // waits for a WRITE of the next tenancy. When half of the slots are gone, every WRITE that
        // holds one is, so that they all come back (rule R5).
        let inline = span <= self.limits.inline_max;
        let holds_scarce = scarce && !inline;
        let event = head.flags & FLAG_SWITCH != 0 && !mutant::is(Bug::EventUnsignaled);
        // Nor does a fetch wait for answers that came late, after the event.
        let late = conn.state != ConnState::Active && !mutant::is(Bug::LateAnswerUnsignaled);
        let (sequence, signaled) = conn.sq.post(holds_scarce || event || late);
        let remote = conn.ring_at + self.geometry.ring_slot_end(position) - span;
        let wr_id = WrId::new(WrKind::Write, conn.generation.into(), seat, sequence);
        if inline || mutant::is(Bug::SendSlotEarly) {
            self.return_slot(slot);
        } else {
            self.hold_slot(seat, slot, sequence);
        }
        WriteWr {
            connection: seat,
            local,
            remote,
            len: span,
            epoch: None,
            signaled,
            wr_id,
        }
    }

    /// The slot is free again when the WRITE with this sequence number is known to be done.
    fn hold_slot(&mut self, seat: u32, slot: u32, sequence: u32) {
        let record = &mut self.memory.send_slots[slot as usize];
        record.next = NONE;
        record.sequence = sequence;
        let conn = &mut self.memory.conns[seat as usize];
        match conn.slot_tail {
            NONE => conn.slot_head = slot,
            tail => self.memory.send_slots[tail as usize].next = slot,
        }
        conn.slot_tail = slot;
    }
}
