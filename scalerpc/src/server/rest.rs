//! Waiting: what a server does while there is nothing to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use scalerpc_core::Region;
use scalerpc_driver::Fabric;

use super::later::Deferrals;
use super::{Handler, Server};
use crate::wait::{
    Backoff, Clock, NAP_MAX, REST_AFTER, SLEEP_MAX, Wait, WaitCounters, nanoseconds,
};

impl<F: Fabric> Server<F> {
    /// Polls until `stop` is set, and waits as [`ServerBuilder::wait`](super::ServerBuilder::wait) says while there is
    /// nothing to do. A server that sleeps sees `stop` within 100 ms, or as soon as its [`waker`](Self::waker) is used.
    pub fn run(&mut self, stop: &AtomicBool, handler: &mut impl Handler) {
        let clock = Clock::start();
        let mut backoff = Backoff::default();
        self.set_rest_after((self.wait == Wait::Sleep).then_some(REST_AFTER));
        // Ordering: the flag carries nothing else.
        while !stop.load(Ordering::Relaxed) {
            let now_ns = clock.now_ns();
            if self.poll(now_ns, handler) > 0 {
                backoff.busy();
                continue;
            }
            let wait = self.wait;
            match wait {
                Wait::Poll => std::hint::spin_loop(),
                Wait::Yield => backoff.idle(),
                Wait::Sleep if self.wait(now_ns, SLEEP_MAX) => backoff.busy(),
                Wait::Sleep => backoff.idle(),
            }
        }
    }

    /// For callers that poll by themselves, and want to sleep in [`wait`](Self::wait): when nothing has come for this
    /// long, clients are told that they are served no more, and so have to wake the server when they call next.
    /// `None`, the default, leaves them the quick way to write calls, which wakes nobody. [`run`](Self::run) sees to it by
    /// itself.
    ///
    /// Some twenty times what it costs to wake a thread (50 us, say) is a good start: a millisecond.
    pub fn set_rest_after(&mut self, after: Option<Duration>) {
        self.engine.set_rest_after_ns(after.map(nanoseconds));
    }

    /// True if there is nothing to do until somebody wakes the server.
    pub fn rests(&self) -> bool {
        self.engine.rests() && !self.has_answers()
    }

    /// To be called after a round in which [`poll`](Self::poll) has done nothing, with the same clock. Where the server
    /// [`rests`](Self::rests) it sleeps until it is woken, at most for `timeout` or 100 ms; where the mapping is
    /// static, or the back end can wake nobody, it takes a nap of at most 1 ms once it has been silent for as long as
    /// [`set_rest_after`](Self::set_rest_after) says. If false, it did neither.
    ///
    /// It is woken by clients that have calls, by connections that come and go, by other threads that
    /// [answer](crate::Later) calls, by its [`waker`](Self::waker), and by
    /// the time at which something of its own is due.
    pub fn wait(&mut self, now_ns: u64, timeout: Duration) -> bool {
        let timeout = timeout.min(SLEEP_MAX);
        if self.has_answers() {
            return false;
        }
        if !self.fabric.can_sleep() || !self.engine.rests() {
            return self.nap(timeout);
        }
        let due_ns = self.engine.next_due_ns();
        let due = due_ns.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        let timeout = due.map_or(timeout, |due| due.min(timeout));
        if timeout.is_zero() {
            return false;
        }
        let (engine, deferrals) = (&self.engine, self.deferrals.as_deref());
        let answered = || deferrals.is_some_and(Deferrals::has_answers);
        let found = |exposed: &Region| engine.has_demand(exposed) || answered();
        let slept = self.fabric.sleep(timeout, &found);
        self.waits
            .count(slept, timeout, || found(self.fabric.exposed()))
    }

    /// As [`wait`](Self::wait), for a worker whose scheduler gives orders: it has to hear those, `ordered` says whether
    /// there is one, and so it never rests. When nothing has come for long enough it takes a nap, which demand and its
    /// waker end.
    pub(crate) fn doze(&mut self, ordered: impl Fn() -> bool) -> bool {
        if !self.engine.is_silent() || self.has_answers() {
            return false;
        }
        let (engine, deferrals) = (&self.engine, self.deferrals.as_deref());
        let answered = || deferrals.is_some_and(Deferrals::has_answers);
        let found = |exposed: &Region| ordered() || engine.has_demand(exposed) || answered();
        let slept = self.fabric.sleep(NAP_MAX, &found);
        self.waits.count(slept, NAP_MAX, || false)
    }

    /// Where nobody wakes the server it looks by itself.
    fn nap(&mut self, timeout: Duration) -> bool {
        let will_rest = self.fabric.can_sleep() && self.engine.can_rest();
        if will_rest || !self.engine.is_silent() {
            return false;
        }
        self.waits.sleeps += 1;
        std::thread::sleep(timeout.min(NAP_MAX));
        true
    }

    /// Wakes the server when it sleeps, from any thread; it is cheap to copy. First comes what the server is to see.
    /// It does not end a nap.
    pub fn waker(&self) -> Waker {
        self.fabric.waker()
    }

    /// See [`ServerEngine::is_silent`](scalerpc_core::ServerEngine::is_silent).
    pub(crate) fn is_silent(&self) -> bool {
        self.engine.is_silent()
    }

    /// What [`ServerBuilder::wait`](super::ServerBuilder::wait) said.
    pub(crate) fn wait_choice(&self) -> Wait {
        self.wait
    }

    /// How it has slept.
    pub fn wait_counters(&self) -> WaitCounters {
        self.waits
    }
}
