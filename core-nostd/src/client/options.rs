//! Calls with a budget, and calls that are taken back.
//!
//! What a request says of either is written when it is sent, not when it is made: by then time has passed, or the
//! caller has changed its mind. A request that was sent and comes back at a switch is sent anew in the same way.

use super::{CallError, ClientEngine, RecordState};
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::store::Store;
use crate::wire::{self, Ext, FLAG_CANCELLED, Head, LINE};

/// What became of a call that was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a call that was cancelled may run all the same"]
pub enum Cancelled {
    /// It was not with the server, and never runs.
    NeverRuns,
    /// It is with the server, or on its way: it may have run, or still run.
    MayRun,
    /// It had ended, or was cancelled before: nothing has changed.
    Ended,
}

impl<S: Store> ClientEngine<S> {
    /// As [`call`](Self::call), with a budget: a call that the server comes to when so much time has passed does not
    /// run, and ends with [`Status::DEADLINE_EXCEEDED`](crate::wire::Status::DEADLINE_EXCEEDED). With a budget of 0 it
    /// never runs.
    ///
    /// `now_ns` is the time on the caller's monotonic clock, of which the server knows nothing: it is told how much of
    /// the budget is left when the request is sent, and counts from there. The time on the way counts for nobody.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing has happened then.
    #[inline]
    pub fn call_within<M: Memory>(
        &mut self,
        method: u16,
        request: &[u8],
        tag: u64,
        budget_ns: u64,
        now_ns: u64,
        private: &M,
    ) -> Result<u64, CallError> {
        self.pass(now_ns);
        let deadline_ns = self.now_ns.saturating_add(budget_ns);
        let ext = Ext::of_budget(deadline_ns - self.now_ns);
        let accepted = self.accept(method, request, tag, Some((ext, deadline_ns)), private)?;
        self.amended_max = accepted.number;
        Ok(accepted.number)
    }

    /// True if a call with a budget is parked. Then [`pass`](Self::pass) is to be told the time before
    /// [`next_write`](Self::next_write).
    #[inline]
    pub fn wants_time(&self) -> bool {
        self.sent < self.amended_max
    }

    /// It is `now_ns` on the clock that calls with a budget are made by.
    #[inline]
    pub fn pass(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// The answer to a call is not wanted any more. One that is parked is sent without its request, so that its place
    /// in the window comes back; one that is with the server keeps its place until it is answered.
    pub fn cancel(&mut self, number: u64) -> Cancelled {
        let found = self.calls.iter_mut().find(|record| {
            record.number == number && record.state == RecordState::Outstanding && !record.cancelled
        });
        let Some(record) = found else {
            return Cancelled::Ended;
        };
        record.cancelled = true;
        self.counters.cancelled += 1;
        if !mutant::is(Bug::CancelledCallSent) {
            // If it comes back at a switch, it is sent without its request, too.
            record.span = LINE as u32;
            self.amended_max = self.amended_max.max(number);
        }
        match number > self.sent {
            true => Cancelled::NeverRuns,
            false => Cancelled::MayRun,
        }
    }

    /// A request that may have to be amended is sent: the message, as it is in its request slot, or a copy of it, ends
    /// at `end` of `memory`, which nobody reads.
    #[cold]
    pub(super) fn amend<M: Memory>(&mut self, number: u64, memory: &M, end: usize, private: &M) {
        let slot = self.slot_of(number);
        let record = self.calls[slot as usize];
        let (owner, placement) = (self.conn.owner, self.limits.placement);
        if record.cancelled && !mutant::is(Bug::CancelledCallSent) {
            let head = Head {
                len: 0,
                tag: 0,
                flags: FLAG_CANCELLED,
                slot: slot | (number as u32) << 16,
            };
            wire::seal(memory, end, owner, head, None, number, placement);
            return;
        }
        let Some(deadline_ns) = record.deadline_ns else {
            return;
        };
        let ext = Ext::of_budget(deadline_ns.saturating_sub(self.now_ns));
        if Ext::read_budget(memory, end) == ext || mutant::is(Bug::BudgetNotReduced) {
            return;
        }
        let start = self.geometry.request_slot(self.conn.connection, slot);
        let head = Head::read(private, start + record.span as usize);
        wire::seal(memory, end, owner, head, Some(ext), number, placement);
    }
}
