//! What was agreed about a connection's calls besides that they run: budgets, limits, and calls that were taken back.

use std::collections::{BTreeMap, HashMap, HashSet};

use scalerpc_core::server::Limit;
use scalerpc_core::wire::Status;

use crate::oracle::Broken;

const SECOND_NS: u128 = 1_000_000_000;

/// How a request was sent last.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at_ns: u64,
    staged: bool,
}

/// A limit, and when calls ran under it.
#[derive(Debug)]
struct Limited {
    limit: Limit,
    since_ns: u64,
    ran_ns: Vec<u64>,
}

impl Limited {
    /// True if in no time up to now more calls have run than a burst and what the rate gives, one more included.
    fn admits(&self, now_ns: u64) -> bool {
        let ran = self.ran_ns.len() as u128;
        let starts = self.ran_ns.iter().zip(0..).map(|(ns, at)| (*ns, ran - at));
        let mut all = starts.chain([(self.since_ns, ran), (now_ns, 0)]);
        all.all(|(start_ns, ran)| {
            let back = u128::from(now_ns - start_ns) * u128::from(self.limit.calls_per_second);
            (ran + 1) * SECOND_NS <= u128::from(self.limit.burst) * SECOND_NS + back
        })
    }
}

/// What was agreed about one connection's calls.
#[derive(Debug, Default)]
pub struct Terms {
    /// When the budgets of calls are used up.
    deadlines: BTreeMap<u64, u64>,
    /// Of calls with a budget.
    sent: HashMap<u64, Sent>,
    /// When the server last fetched.
    fetched_ns: u64,
    /// Calls that the client was told never run, and those that it has cancelled.
    never: HashSet<u64>,
    cancelled: HashSet<u64>,
    refused: HashMap<u64, Status>,
    limited: Option<Limited>,
}

impl Terms {
    /// The call has a budget.
    pub fn has_budget(&mut self, call: u64, deadline_ns: u64) {
        self.deadlines.insert(call, deadline_ns);
    }

    /// Request `call` was written straight into the zone.
    pub fn written(&mut self, call: u64, at_ns: u64) {
        let sent = Sent {
            at_ns,
            staged: false,
        };
        self.sent.insert(call, sent);
    }

    /// The calls after `taken` up to `last` were staged.
    pub fn staged(&mut self, taken: u64, last: u64, at_ns: u64) {
        let sent = Sent {
            at_ns,
            staged: true,
        };
        if taken < last {
            let calls = self.deadlines.range(taken + 1..=last);
            self.sent.extend(calls.map(|(&call, _)| (call, sent)));
        }
    }

    /// The server fetches.
    pub fn fetched(&mut self, at_ns: u64) {
        self.fetched_ns = at_ns;
    }

    /// The client has cancelled the call, and was told that it never runs, or that it may.
    pub fn cancelled(&mut self, call: u64, never: bool) {
        self.cancelled.insert(call);
        if never {
            self.never.insert(call);
        }
    }

    /// The operator limits the connection.
    pub fn limit(&mut self, limit: Option<Limit>, since_ns: u64) {
        self.limited = limit.map(|limit| Limited {
            limit,
            since_ns,
            ran_ns: Vec::new(),
        });
    }

    /// With what the call was answered without running.
    pub fn refusal(&self, call: u64) -> Option<Status> {
        self.refused.get(&call).copied()
    }

    /// A handler runs.
    pub fn ran(&mut self, call: u64, now_ns: u64) -> Result<(), Broken> {
        if self.never.contains(&call) {
            return Err(format!("call {call} ran, but was taken back"));
        }
        if let (Some(&deadline_ns), Some(sent)) = (self.deadlines.get(&call), self.sent.get(&call))
        {
            // When the entry was accepted is not seen, but it was before the fetch.
            let waited_ns = if sent.staged {
                now_ns - self.fetched_ns
            } else {
                0
            };
            if deadline_ns.saturating_sub(sent.at_ns) <= waited_ns {
                return Err(format!("call {call} ran, but its budget was used up"));
            }
        }
        if let Some(limited) = &mut self.limited {
            if !limited.admits(now_ns) {
                return Err(format!("call {call} ran, above {:?}", limited.limit));
            }
            limited.ran_ns.push(now_ns);
        }
        Ok(())
    }

    /// A call was answered without running. `crowded`: there were as many in flight as may be.
    pub fn was_refused(
        &mut self,
        call: u64,
        status: Status,
        now_ns: u64,
        crowded: bool,
    ) -> Result<(), Broken> {
        let right = match status {
            // No earlier than by the client's own clock: the time on the way counts for nobody.
            Status::DEADLINE_EXCEEDED => self.deadlines.get(&call).is_some_and(|&it| now_ns >= it),
            Status::BUSY => crowded || self.limited.as_ref().is_some_and(|it| !it.admits(now_ns)),
            Status::CANCELLED => self.cancelled.contains(&call),
            _ => false,
        };
        self.refused.insert(call, status);
        match right {
            true => Ok(()),
            false => Err(format!("call {call} was refused without reason: {status}")),
        }
    }
}
