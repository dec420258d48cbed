//! A server of several threads.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;

use scalerpc_core::scheduler::{Board, Follower, Scheduler};
use scalerpc_core::server::Counters;
use scalerpc_driver::Fabric;
use scalerpc_driver::board::BoardMemory;
use scalerpc_driver::shm::{self, ShmServer};

use crate::error::SetupError;
use crate::server::{Handler, Server};
use crate::wait::{Backoff, Clock, REST_AFTER, Wait, nanoseconds};

/// What the workers and their scheduler share.
#[derive(Debug)]
struct Shared {
    board: BoardMemory,
    /// By worker.
    states: Box<[State]>,
}

/// What a worker says of itself besides what is on the board. The flags carry nothing else.
#[derive(Debug)]
struct State {
    /// It is gone, and nobody waits for it.
    left: AtomicBool,
    /// It takes a nap.
    dozes: AtomicBool,
    waker: Waker,
}

/// The workers of a server, and their scheduler. See [`ServerBuilder::listen_workers`].
///
/// Each worker is a [`Server`] with its own connections, which it keeps for life, its own memory and its own handler;
/// they take no lock, and share nothing but whose turn it is. That is for the scheduler to say.
/// [`run`](Self::run) gives each worker a thread; [`split`](Self::split) leaves the threads to the caller.
///
/// [`ServerBuilder::listen_workers`]: crate::ServerBuilder::listen_workers
pub struct Workers<F: Fabric = ShmServer> {
    workers: Vec<Worker<F>>,
    scheduler: SchedulerHandle,
    /// Of all runs.
    clock: Clock,
}

/// One worker of several: polled by a thread of the caller's, without pause, since the others wait for it at every
/// switch.
///
/// Dropping it ends its connections, and with them all others of their clients' links. The other workers go on.
pub struct Worker<F: Fabric = ShmServer> {
    server: Server<F>,
    index: usize,
    follower: Follower,
    shared: Arc<Shared>,
    /// It has not been polled since its last nap.
    napped: bool,
}

/// Says which group is served next, and when. It is polled by a thread of its own, or by one that polls a worker,
/// between its rounds; if it is not polled, the group that is served stays so for ever.
#[must_use = "without its scheduler a server serves one group for ever"]
pub struct SchedulerHandle {
    scheduler: Scheduler,
    shared: Arc<Shared>,
}

impl State {
    fn of<F: Fabric>(server: &Server<F>) -> Self {
        Self {
            left: AtomicBool::new(false),
            dozes: AtomicBool::new(false),
            waker: server.waker(),
        }
    }

    fn polls(&self) -> bool {
        !self.left.load(Ordering::Relaxed) && !self.dozes.load(Ordering::Relaxed)
    }
}

impl<F: Fabric> Workers<F> {
    /// `servers` are led, and there is at least one.
    pub(crate) fn new(servers: Vec<Server<F>>) -> Result<Self, SetupError> {
        let memory = |error| SetupError::Shm(shm::SetupError::Memory(error));
        let shared = Arc::new(Shared {
            board: BoardMemory::new(servers.len()).map_err(memory)?,
            states: servers.iter().map(State::of).collect(),
        });
        let slice = servers.first().map(Server::time_slice).unwrap_or_default();
        let workers = servers.len();
        let worker = |(index, mut server): (usize, Server<F>)| {
            server.set_place(index, workers);
            Worker {
                server,
                index,
                follower: Follower::new(index),
                shared: Arc::clone(&shared),
                napped: false,
            }
        };
        Ok(Self {
            workers: servers.into_iter().enumerate().map(worker).collect(),
            scheduler: SchedulerHandle {
                scheduler: Scheduler::new(nanoseconds(slice)),
                shared,
            },
            clock: Clock::start(),
        })
    }

    /// The workers, by their index, and the scheduler: for threads of the caller's. All of them are to be given times of
    /// the same clock.
    pub fn split(self) -> (Vec<Worker<F>>, SchedulerHandle) {
        (self.workers, self.scheduler)
    }

    /// The workers.
    pub fn workers(&self) -> &[Worker<F>] {
        &self.workers
    }

    /// What happened so far, in all workers.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for worker in &self.workers {
            sum += worker.counters();
        }
        sum
    }

    /// Polls until `stop` is set, each worker on a thread of its own, and the scheduler on that of the first, which is
    /// the calling one. While there is nothing to do they wait as [`ServerBuilder::wait`] says. `handler` makes a worker's
    /// handler, on the worker's thread.
    ///
    /// [`ServerBuilder::wait`]: crate::ServerBuilder::wait
    ///
    /// # Panics
    ///
    /// If a handler does, after all threads have ended. It can be run again.
    pub fn run<H: Handler>(&mut self, stop: &AtomicBool, handler: impl Fn(usize) -> H + Sync)
    where
        F: Send,
    {
        let clock = self.clock;
        // Without one worker the others could not switch: all end.
        let panicked = AtomicBool::new(false);
        // Ordering: the flags carry nothing else.
        let go_on = || !stop.load(Ordering::Relaxed) && !panicked.load(Ordering::Relaxed);
        let serve = |worker: &mut Worker<F>, scheduler: Option<&mut SchedulerHandle>| {
            let mut handler = handler(worker.index);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                worker.serve(clock, scheduler, go_on, &mut handler);
            }));
            if outcome.is_err() {
                panicked.store(true, Ordering::Relaxed);
            }
            outcome
        };
        let Some((first, others)) = self.workers.split_first_mut() else {
            return;
        };
        let scheduler = &mut self.scheduler;
        let outcome = thread::scope(|scope| {
            let threads: Vec<_> = others
                .iter_mut()
                .map(|worker| scope.spawn(|| serve(worker, None)))
                .collect();
            let outcome = serve(first, Some(scheduler));
            let outcomes = threads
                .into_iter()
                .map(|thread| thread.join().and_then(|outcome| outcome));
            outcomes.fold(outcome, Result::and)
        });
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }
}

impl<F: Fabric> Worker<F> {
    /// One round, as [`Server::poll`], and a look at what the scheduler wants: one load, if that is nothing new.
    ///
    /// After a handler's panic it is to be polled again, or dropped: the others wait for it.
    #[inline]
    pub fn poll(&mut self, now_ns: u64, handler: &mut impl Handler) -> usize {
        let done = self.server.poll(now_ns, handler);
        let board = self.shared.board.region();
        self.server.follow(&mut self.follower, board);
        if self.napped {
            self.after_nap(done);
        }
        done
    }

    #[cold]
    fn after_nap(&mut self, done: usize) {
        self.napped = false;
        if done == 0 && self.server.is_silent() {
            return;
        }
        // There may be something to decide.
        if let Some(first) = self.shared.states.first() {
            first.waker.wake_by_ref();
        }
    }

    /// To be called after a round in which nothing was done. When nothing has come for as long as
    /// [`Server::set_rest_after`] says, it takes a nap of at most 1 ms, which ends when a client comes with new demand, or
    /// the scheduler with an order. True if it did. (A client that is being served writes its calls without waking
    /// anybody; so one that comes then may wait for the rest of the nap.)
    ///
    /// The thread that polls the scheduler, too, is to be that of the first worker, which others wake, and to nap only
    /// while [they do](Self::others_nap).
    pub fn wait(&mut self) -> bool {
        let (board, follower) = (self.shared.board.region(), &self.follower);
        let Some(state) = self.shared.states.get(self.index) else {
            return false;
        };
        state.dozes.store(true, Ordering::Relaxed);
        let slept = self.server.doze(|| !follower.is_settled(board));
        state.dozes.store(false, Ordering::Relaxed);
        self.napped = slept;
        slept
    }

    /// True if all others take naps now, or are gone: then there is nothing to decide.
    pub fn others_nap(&self) -> bool {
        let states = self.shared.states.iter().enumerate();
        let mut others = states.filter(|(index, _)| *index != self.index);
        !others.any(|(_, state)| state.polls())
    }

    fn serve(
        &mut self,
        clock: Clock,
        mut scheduler: Option<&mut SchedulerHandle>,
        go_on: impl Fn() -> bool,
        handler: &mut impl Handler,
    ) {
        let mut backoff = Backoff::default();
        let mut round = 0_u32;
        let sleeps = self.server.wait_choice() == Wait::Sleep;
        self.server.set_rest_after(sleeps.then_some(REST_AFTER));
        while go_on() {
            let now_ns = clock.now_ns();
            let done = self.poll(now_ns, handler);
            round = round.wrapping_add(1);
            if let Some(scheduler) = scheduler.as_deref_mut() {
                if done == 0 || round % SchedulerHandle::ROUNDS_PER_LOOK == 0 {
                    scheduler.poll(now_ns);
                }
            }
            if done > 0 {
                backoff.busy();
                continue;
            }
            match self.server.wait_choice() {
                Wait::Poll => std::hint::spin_loop(),
                Wait::Yield => backoff.idle(),
                Wait::Sleep => {
                    let may_nap = scheduler.is_none() || self.others_nap();
                    if !(may_nap && self.wait()) {
                        backoff.idle();
                    }
                }
            }
        }
    }

    /// Its number among the workers, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its part of the server: seats, counters and sizes are its own.
    pub fn server(&self) -> &Server<F> {
        &self.server
    }

    /// As [`server`](Self::server), for what can be set.
    pub fn server_mut(&mut self) -> &mut Server<F> {
        &mut self.server
    }

    /// What happened so far, in this worker.
    pub fn counters(&self) -> Counters {
        self.server.counters()
    }
}

impl<F: Fabric> Drop for Worker<F> {
    fn drop(&mut self) {
        if let Some(state) = self.shared.states.get(self.index) {
            state.left.store(true, Ordering::Relaxed);
        }
    }
}

impl SchedulerHandle {
    /// Rounds of a busy worker after which a thread that has both polls the scheduler, as [`Workers::run`] does; after
    /// a round in which there was nothing to do it polls it at once.
    pub const ROUNDS_PER_LOOK: u32 = 8;

    /// One look at what the workers report. True if that led to an order; who naps is woken for it.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        let states = &self.shared.states;
        let Some(board) = Board::new(self.shared.board.region(), states.len()) else {
            return false;
        };
        let there = states.iter().enumerate();
        let there = there.filter(|(_, state)| !state.left.load(Ordering::Relaxed));
        let reports = there.map(|(worker, _)| board.report(worker));
        let Some(order) = self.scheduler.step(now_ns, reports) else {
            return false;
        };
        board.give(order);
        states.iter().for_each(|state| state.waker.wake_by_ref());
        true
    }
}
