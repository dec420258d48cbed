//! The records of outstanding calls, and the request slots that belong to them.

use super::ClientEngine;
use crate::mutant::{self, Bug};
use crate::store::Store;

/// No index.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum RecordState {
    #[default]
    Free,
    /// Accepted, not answered.
    Outstanding,
    /// Answered, but the WRITE of its request is not known to be done: its slot may not be reused.
    Held,
}

/// The record of one outstanding call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallRecord {
    pub(super) number: u64,
    /// The caller's own.
    pub(super) tag: u64,
    /// Bytes of the whole message in the request slot.
    pub(super) span: u32,
    /// Of the WRITE that has the request slot as its source, if there was one.
    pub(super) sequence: Option<u32>,
    pub(super) state: RecordState,
    pub(super) cancelled: bool,
    /// When its budget is used up, if it has one.
    pub(super) deadline_ns: Option<u64>,
}

impl<S: Store> ClientEngine<S> {
    /// A record whose request slot may be written.
    #[inline(always)]
    pub(super) fn free_record(&mut self) -> Option<u32> {
        // In the steady state the record of call n - window is the one that became free.
        let window = self.geometry.window();
        let first = self.next_call as u32 & (window - 1);
        match self.is_free(first) {
            true => Some(first),
            false => self.other_record(first),
        }
    }

    #[cold]
    fn other_record(&mut self, first: u32) -> Option<u32> {
        let window = self.geometry.window();
        (1..window)
            .map(|i| (first + i) & (window - 1))
            .find(|&slot| self.is_free(slot))
    }

    pub(super) fn is_free(&mut self, slot: u32) -> bool {
        let record = &mut self.calls[slot as usize];
        let done = record.sequence.is_none_or(|it| self.sq.is_done(it));
        if record.state == RecordState::Held && (done || mutant::is(Bug::RequestSlotEarly)) {
            record.state = RecordState::Free;
        }
        record.state == RecordState::Free
    }

    /// Request slots come back with completions. Twice a window one is asked for; and when this request
    /// has the last slot, as no later one could ask while the others are held by slow calls.
    pub(super) fn signal_now(&mut self, number: u64) -> bool {
        let window = self.geometry.window();
        number % u64::from(window.div_ceil(2)) == 0 || !(0..window).any(|slot| self.is_free(slot))
    }

    #[inline]
    pub(super) fn slot_of(&self, number: u64) -> u32 {
        self.order[(number & u64::from(self.geometry.window() - 1)) as usize]
    }
}
