//! Serving: looks for requests, hands them out, and sends the answers and the switch events.

use super::records::{Conn, ConnState, NONE};
use super::{Action, Active, Call, Quick, ServerEngine};
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::post::{READ_AHEAD, WRITE_AHEAD, WrId, WrKind, WriteWr, fetch_ahead};
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
    pub(super) fn visit<M: Memory>(&mut self, exposed: &M, private: &M) -> Option<Action> {
        if self.draining {
            return self.drain(exposed, private);
        }
        while let Some(at) = self.seek(exposed) {
            let seat = self.memory.active[at].seat;
            let end = self.memory.active[at].awaited_at + 8;
            let action = self.take(seat, end, exposed, private);
            if action.is_some() {
                self.taken_at(at, seat, wire::LINE, exposed);
                return action;
            }
            self.next_visit();
        }
        self.visits_left = 0;
        None
    }

    /// The place of the next connection that has something new.
    #[inline(always)]
    fn seek<M: Memory>(&mut self, exposed: &M) -> Option<usize> {
        let first = self.processing as usize * self.geometry.zones() as usize;
        while self.visits_left > 0 && self.calls_left > 0 {
            let active = self.tenancies[self.processing as usize].active;
            if self.cursor >= active {
                self.cursor = 0;
            }
            if active == 0 {
                return None;
            }
            if self.burst_left == 0 {
                self.next_visit();
                continue;
            }
            let end = active.min(self.cursor + self.visits_left);
            let list = &self.memory.active[first + self.cursor..first + end];
            // Ordering: none; `look` acquires it.
            let mut words = list
                .iter()
                .map(|it| exposed.load(it.awaited_at) == it.awaited);
            let silent = words.position(|news| news).unwrap_or(list.len());
            if silent > 0 {
                self.cursor += silent;
                self.visits_left -= silent;
                self.burst_left = self.config.burst;
            }
            if self.visits_left > 0 && self.cursor < active {
                return Some(first + self.cursor);
            }
        }
        None
    }

    #[inline]
    fn next_visit(&mut self) {
        self.cursor += 1;
        self.visits_left -= 1;
        self.burst_left = self.config.burst;
    }

    /// A call of the connection at this place was taken, a message of `span` bytes: its next one is awaited.
    #[inline(always)]
    fn taken_at<M: Memory>(&mut self, at: usize, seat: u32, span: usize, exposed: &M) {
        self.memory.active[at] = self.awaiting(seat);
        self.burst_left -= 1;
        // In a burst it has come already, or comes while this call runs.
        let conn = &self.memory.conns[seat as usize];
        let (pool, zone) = self.place(conn.zone);
        let later = conn.next_call + READ_AHEAD - 1;
        let end = self.geometry.block_end(pool, zone, later);
        fetch_ahead(end, span, |line| exposed.prefetch(line));
    }

    /// The second part of [`next_action`](Self::next_action): a plain call, or nothing.
    // Apart, so that a call has one origin: where several meet, it is handed over through memory, and read in other
    // widths than it was written, which a processor waits for.
    #[inline(always)]
    pub fn next_quick<M: Memory>(&mut self, exposed: &M) -> Quick {
        if self.draining || mutant::is(Bug::CallsSwapped) {
            return Quick::Other;
        }
        let Some(at) = self.seek(exposed) else {
            self.visits_left = 0;
            return Quick::Idle;
        };
        let Active {
            seat, awaited_at, ..
        } = self.memory.active[at];
        let conn = &self.memory.conns[seat as usize];
        let crowded = self.in_flight >= self.config.calls_in_flight_max;
        if conn.limited || crowded || !self.can_enter(conn) {
            return Quick::Other;
        }
        let (owner, number) = (conn.owner, conn.next_call);
        let len_max = self.geometry.config().request_max_bytes;
        let end = awaited_at + 8;
        let plain = wire::observe_plain(exposed, end, len_max, owner, number, conn.placement);
        let Some((head, payload)) = plain else {
            return Quick::Other;
        };
        let send_slot = self.first_slot();
        self.entered(seat, head);
        let call = self.call(seat, head, payload, send_slot);
        self.taken_at(at, seat, wire::span(head.len as usize, 0), exposed);
        Quick::Call(call)
    }

    /// True if a call of the connection can be handed out.
    #[inline]
    fn can_enter(&self, conn: &Conn) -> bool {
        u32::from(conn.answers_owed) < self.geometry.window()
            && self.free_slot != NONE
            && conn.has_room(1)
            && !self.hoards(conn)
    }

    /// Takes what has come from each connection, once, and tells it that its tenancy is over.
    #[inline(never)]
    fn drain<M: Memory>(&mut self, exposed: &M, private: &M) -> Option<Action> {
        self.slice.note_switching();
        let first = self.processing as usize * self.geometry.zones() as usize;
        while self.calls_left > 0 {
            let active = self.tenancies[self.processing as usize].active;
            if active == 0 {
                break;
            }
            let seat = self.memory.active[first + active - 1].seat;
            let budget = self.drain_budget;
            if budget > 0 {
                // Before it is taken: an answer looks at what is left.
                self.drain_budget -= u32::from(!mutant::is(Bug::DrainEndless));
                let end = self.next_end(seat);
                let action = self.take(seat, end, exposed, private);
                if action.is_some() {
                    return action;
                }
            }
            if self.memory.conns[seat as usize].state != ConnState::Active {
                continue;
            }
            self.drain_budget = budget;
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

    /// Where the block of the connection's next call ends.
    fn next_end(&self, seat: u32) -> usize {
        let conn = &self.memory.conns[seat as usize];
        let (pool, zone) = self.place(conn.zone);
        self.geometry.block_end(pool, zone, conn.next_call)
    }

    /// The message with the connection's next call, if it has come, in the block that ends at `end`. What it says of its
    /// length and flags is not looked at.
    pub(super) fn look<M: Memory>(
        &self,
        seat: u32,
        end: usize,
        exposed: &M,
    ) -> Result<Option<Message>, Violation> {
        let conn = &self.memory.conns[seat as usize];
        let size = self.geometry.request_block_bytes();
        let (owner, number) = (conn.owner, conn.next_call);
        wire::observe(exposed, end, size, owner, number, conn.placement)
    }

    /// Blocks are whole lines, so there may be room for more than was agreed.
    #[inline]
    pub(super) fn is_too_long(&self, message: &Message) -> bool {
        message.head.len > self.geometry.config().request_max_bytes
            && !mutant::is(Bug::LengthIgnored)
    }

    /// Takes the connection's next call, if it has come, in the block that ends at `end`, and can be answered: it is to
    /// run, or is answered without.
    fn take<M: Memory>(
        &mut self,
        seat: u32,
        mut end: usize,
        exposed: &M,
        private: &M,
    ) -> Option<Action> {
        if mutant::is(Bug::CallsSwapped) {
            self.memory.conns[seat as usize].next_call += 1;
            let later = self.next_end(seat);
            if matches!(self.look(seat, later, exposed), Ok(Some(_))) {
                end = later;
            } else {
                self.memory.conns[seat as usize].next_call -= 1;
            }
        }
        self.take_with_care(seat, end, exposed, private)
    }

    /// The call that was taken last.
    #[inline(always)]
    pub(super) fn call(&self, seat: u32, head: Head, payload: usize, send_slot: u32) -> Call {
        let conn = &self.memory.conns[seat as usize];
        Call {
            seat,
            number: conn.next_call - 1,
            generation: conn.generation,
            method: head.tag,
            request_at: payload,
            request_len: head.len as usize,
            response_at: self.geometry.send_slot(send_slot),
            deadline_ns: u64::MAX,
            client_slot: head.slot,
            send_slot,
        }
    }

    /// Counts a call, and gives it a send slot; and says whether it was staged.
    #[inline(always)]
    pub(super) fn enter(&mut self, seat: u32, head: Head) -> Option<(u32, bool)> {
        let owed = u32::from(self.memory.conns[seat as usize].answers_owed);
        if owed >= self.geometry.window() {
            self.evict(seat, Violation::Window);
            return None;
        }
        let send_slot = self.take_slot(seat)?;
        Some((send_slot, self.entered(seat, head)))
    }

    /// Counts a call that can be answered; and says whether it was staged.
    #[inline(always)]
    fn entered(&mut self, seat: u32, head: Head) -> bool {
        let conn = &mut self.memory.conns[seat as usize];
        conn.next_call += 1;
        conn.answers_owed += 1;
        conn.tenancy_bytes = conn.tenancy_bytes.saturating_add(head.len);
        // The staged batch is at the front of a tenancy's calls.
        let staged = conn.staged_asked > 0;
        if staged {
            conn.staged_asked -= 1;
        }
        self.counters.calls += 1;
        self.counters.staged_calls += u64::from(staged);
        self.counters.direct_writes += u64::from(!staged);
        self.idle_ns = 0;
        self.unsettled = true;
        self.calls_left = self.calls_left.saturating_sub(1);
        self.in_flight += 1;
        staged
    }

    /// A free send slot, if the connection may post one more WRITE.
    #[inline]
    fn take_slot(&mut self, seat: u32) -> Option<u32> {
        let conn = &self.memory.conns[seat as usize];
        self.pop_slot(conn.has_room(1) && !self.hoards(conn))
    }

    /// A free send slot, if one may be taken.
    #[inline]
    pub(super) fn pop_slot(&mut self, may: bool) -> Option<u32> {
        let slot = self.free_slot;
        if slot == NONE || !may {
            self.counters.stalls += 1;
            self.unsettled = true;
            return None;
        }
        Some(self.first_slot())
    }

    /// The first free send slot, which there is.
    #[inline(always)]
    fn first_slot(&mut self) -> u32 {
        let slot = self.free_slot;
        self.free_slot = self.memory.send_slots[slot as usize].next;
        self.free_slots -= 1;
        slot
    }

    /// When half of the slots are gone, a connection gets its next one when its last completion has come: one
    /// whose completions do not come cannot take the slots that the others need (rule R6).
    #[inline]
    pub(super) fn hoards(&self, conn: &Conn) -> bool {
        self.slots_scarce() && conn.sq.reports() && !mutant::is(Bug::SendSlotsHoarded)
    }

    #[inline]
    fn slots_scarce(&self) -> bool {
        self.free_slots < self.geometry.send_slots() / 2
    }

    pub(super) fn return_slot(&mut self, slot: u32) {
        self.memory.send_slots[slot as usize].next = self.free_slot;
        self.free_slot = slot;
        self.free_slots += 1;
    }

    /// Answers a call with the `len` bytes that were put at its `response_at`.
    ///
    /// `None` if the connection has ended meanwhile; there is nothing to post then.
    // As a function of its own, which it becomes with a second caller, it costs each call 33 instructions more.
    #[inline(always)]
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
        self.in_flight -= 1;
        let conn = &mut self.memory.conns[seat as usize];
        let ended = matches!(conn.state, ConnState::Free | ConnState::Closing);
        if ended || conn.generation != call.generation {
            self.return_slot(call.send_slot);
            self.in_flight += u32::from(mutant::is(Bug::InFlightForgotten));
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

    /// Where the answer ends, in its client's memory, that is [`WRITE_AHEAD`] after the one that a seat had last; `None`
    /// where the window is so small that the client may be at that slot.
    #[inline(always)]
    pub fn later_target(&self, seat: u32) -> Option<usize> {
        let conn = &self.memory.conns[seat as usize];
        let position = conn.ring_next - 1 + WRITE_AHEAD;
        let end = conn.ring_at + self.geometry.ring_slot_end(position);
        (u64::from(self.geometry.window()) > 2 * WRITE_AHEAD).then_some(end)
    }

    /// In a drain: true if no further call of the connection will be taken.
    fn is_last<M: Memory>(&self, seat: u32, exposed: &M) -> bool {
        let more = self.drain_budget > 0
            && self.free_slot != NONE
            && self.memory.conns[seat as usize].has_room(2)
            && matches!(
                self.look(seat, self.next_end(seat), exposed),
                Ok(Some(next)) if !self.is_too_long(&next)
            );
        !more
    }

    /// A message that says nothing but that the connection's tenancy is over.
    #[inline(never)]
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
    #[inline(always)]
    fn respond<M: Memory>(&mut self, seat: u32, slot: u32, head: Head, private: &M) -> WriteWr {
        let scarce = self.slots_scarce();
        let ext = match head.flags & FLAG_EXT {
            0 => None,
            _ => Some(self.ext(seat)),
        };
        let conn = &mut self.memory.conns[seat as usize];
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

    /// What a message says of the connection's tenancy.
    #[cold]
    fn ext(&self, seat: u32) -> Ext {
        let conn = &self.memory.conns[seat as usize];
        let (pool, zone) = self.place(conn.zone);
        Ext {
            epoch: self.memory.zones[conn.zone as usize].epoch,
            consumed: conn.next_call - 1 + u64::from(mutant::is(Bug::ConsumedTooHigh))
                - u64::from(mutant::is(Bug::ConsumedTooLow) && conn.next_call > 1),
            zone: match mutant::is(Bug::WrongZone) {
                true => (zone + 1) % self.geometry.zones(),
                false => zone,
            },
            pool,
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
