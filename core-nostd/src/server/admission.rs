//! Which calls run: a call that is late, cancelled, or one too many is answered without its handler.
//!
//! It is always answered, and never kept waiting: a request that waits stays in its block, so later calls of its
//! connection wait behind it, its zone cannot be given to another group, and at every switch it is staged and fetched
//! anew. A client that is told can wait by itself, or ask another server.

use super::records::ConnState;
use super::{Action, Call, ServerEngine};
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::store::Store;
use crate::wire::{FLAG_CANCELLED, FLAG_EXT, Message, Status, Violation};

/// The level of a bucket is in billionths of a call: calls per second times nanoseconds.
const CALL: u64 = 1_000_000_000;

/// How many calls a connection may make: a token bucket. A call above it is answered with [`Status::BUSY`], and does
/// not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Calls that come back to the bucket in a second; 0: none ever does.
    pub calls_per_second: u32,
    /// Calls that the bucket holds, and holds at first; 0: no call runs.
    pub burst: u32,
}

/// A connection's bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    calls_per_second: u32,
    burst: u32,
    /// What is in it, in 1/[`CALL`], as of `since_ns`.
    level: u64,
    since_ns: u64,
}

impl Bucket {
    fn full(limit: Limit, now_ns: u64) -> Self {
        Self {
            calls_per_second: limit.calls_per_second,
            burst: limit.burst,
            // Below 2^62.
            level: u64::from(limit.burst) * CALL,
            since_ns: now_ns,
        }
    }

    /// Takes a call out, if there is one.
    fn take(&mut self, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        let back = passed_ns.saturating_mul(self.calls_per_second.into());
        if !mutant::is(Bug::LimitNeverRefilled) {
            self.level = self.level.saturating_add(back);
        }
        if !mutant::is(Bug::LimitWithoutBurst) {
            self.level = self.level.min(u64::from(self.burst) * CALL);
        }
        self.since_ns = now_ns;
        let there = self.level >= CALL;
        if there {
            self.level -= CALL;
        }
        there || mutant::is(Bug::LimitIgnored)
    }
}

/// Looks at the flags of a request, and at what they announce; its budget, if it has one.
fn check_options(message: &Message) -> Result<Option<u64>, Violation> {
    let trusts = mutant::is(Bug::OptionsIgnored);
    let head = message.head;
    match (head.flags, message.ext) {
        (0, _) => Ok(None),
        (FLAG_EXT, Some(ext)) if trusts => Ok(Some(ext.epoch)),
        (FLAG_EXT, Some(ext)) => ext.budget_ns().map(Some),
        (FLAG_CANCELLED, _) if trusts || (head.len, head.tag) == (0, 0) => Ok(None),
        (FLAG_CANCELLED, _) => Err(Violation::Options),
        _ if mutant::is(Bug::FlagsIgnored) => Ok(None),
        _ => Err(Violation::Flags),
    }
}

impl<S: Store> ServerEngine<S> {
    /// Limits the calls of a connection from now on, with a full bucket; `None`: no more. It holds until the connection
    /// ends.
    ///
    /// False if there is no such connection.
    pub fn set_limit(&mut self, seat: u32, limit: Option<Limit>) -> bool {
        let Some(conn) = self.memory.conns.get_mut(seat as usize) else {
            return false;
        };
        if conn.state == ConnState::Free {
            return false;
        }
        conn.limited = limit.is_some();
        if let Some(limit) = limit {
            self.memory.members[seat as usize].bucket = Bucket::full(limit, self.now_ns);
        }
        true
    }

    /// Sets [`ServerConfig::calls_in_flight_max`](super::ServerConfig::calls_in_flight_max) anew. With 0 no
    /// call runs any more; those that are in flight are not touched.
    pub fn set_calls_in_flight_max(&mut self, calls: u32) {
        self.config.calls_in_flight_max = calls;
    }

    /// Calls that were handed out and are not answered, of all connections, also of those that ended meanwhile.
    pub fn calls_in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Takes a call that has options, or whose connection is limited, or that may be one too many, or that cannot be: it
    /// is to run, or is answered without, or its connection is evicted.
    #[cold]
    pub(super) fn take_with_care<M: Memory>(
        &mut self,
        seat: u32,
        end: usize,
        exposed: &M,
        private: &M,
    ) -> Option<Action> {
        let seen = self.look(seat, end, exposed).transpose()?;
        let checked = seen.and_then(|message| match self.is_too_long(&message) {
            true => Err(Violation::Length),
            false => Ok((message, check_options(&message)?)),
        });
        let (message, budget_ns) = match checked {
            Ok(checked) => checked,
            Err(why) => {
                self.evict(seat, why);
                return None;
            }
        };
        let (send_slot, staged) = self.enter(seat, message.head)?;
        let call = self.call(seat, message.head, message.payload, send_slot);
        match self.verdict(seat, message.head.flags, budget_ns, staged) {
            Ok(deadline_ns) => Some(Action::Call(Call {
                deadline_ns,
                ..call
            })),
            Err(status) => Some(self.refuse(call, status, exposed, private)),
        }
    }

    /// Its deadline, if it runs; else with what it is answered.
    fn verdict(
        &mut self,
        seat: u32,
        flags: u16,
        budget_ns: Option<u64>,
        staged: bool,
    ) -> Result<u64, Status> {
        let seat = seat as usize;
        if flags & FLAG_CANCELLED != 0 && !mutant::is(Bug::CancelledCallRuns) {
            return Err(Status::CANCELLED);
        }
        let mut deadline_ns = u64::MAX;
        if let Some(budget_ns) = budget_ns {
            // Clocks of two hosts differ, so what counts is the time that the call has spent here.
            let waited_ns = match staged && !mutant::is(Bug::WaitUncounted) {
                true => {
                    let since_ns = self.memory.members[seat].accepted_ns;
                    self.now_ns.saturating_sub(since_ns)
                        << u32::from(mutant::is(Bug::WaitCountedTwice))
                }
                false => 0,
            };
            let left_ns = budget_ns.saturating_sub(waited_ns);
            if left_ns == 0 && !mutant::is(Bug::BudgetIgnored) {
                return Err(Status::DEADLINE_EXCEEDED);
            }
            deadline_ns = self.now_ns.saturating_add(left_ns);
        }
        let many = self.in_flight > self.config.calls_in_flight_max;
        let many = many && !mutant::is(Bug::InFlightIgnored);
        let limited = self.memory.conns[seat].limited;
        if many || (limited && !self.memory.members[seat].bucket.take(self.now_ns)) {
            return Err(Status::BUSY);
        }
        Ok(deadline_ns)
    }

    /// Answers a call that does not run.
    fn refuse<M: Memory>(
        &mut self,
        call: Call,
        status: Status,
        exposed: &M,
        private: &M,
    ) -> Action {
        match status {
            Status::CANCELLED => self.counters.calls_cancelled += 1,
            Status::DEADLINE_EXCEEDED => self.counters.calls_late += 1,
            _ => self.counters.calls_busy += 1,
        }
        // Nor does it count for the priority: to be refused often must not make a connection look important.
        let conn = &mut self.memory.conns[call.seat as usize];
        conn.tenancy_bytes = conn.tenancy_bytes.saturating_sub(call.request_len as u32);
        let member = &mut self.memory.members[call.seat as usize];
        member.rated_call = member.rated_call.wrapping_add(1);
        match self.reply(call, status, 0, exposed, private) {
            Some(write) => Action::Write(write),
            // It was open a moment ago.
            None => Action::Idle,
        }
    }
}
