//! Slow methods run on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use scalerpc_core::wire::Status;
use scalerpc_core::{SlowConfig, SlowMethods};

use crate::error::SetupError;
use crate::server::{Handler, Later, Reply, Request};
use crate::wait::{Clock, nanoseconds};

/// What a [`SlowPool`] is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPoolOptions {
    /// Threads for calls of slow methods, at least one. Default 1.
    pub threads: usize,
    /// Calls that may wait for a thread. One more is answered with [`Status::BUSY`], and so is one for which there is no
    /// room in [`deferred_max`](crate::ServerBuilder::deferred_max), which bounds those that run, too. Default 64.
    pub queue: usize,
    /// Which methods are slow, and for how long. The default is an overrun of 100 us, and a second.
    pub slow: SlowConfig,
}

impl Default for SlowPoolOptions {
    fn default() -> Self {
        Self {
            threads: 1,
            queue: 64,
            slow: SlowConfig::default(),
        }
    }
}

/// What a [`SlowPool`] has done. All numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowPoolCounters {
    /// Calls that were sent to its threads.
    pub sent_away: u64,
    /// Calls of slow methods that were answered with [`Status::BUSY`].
    pub refused: u64,
    /// Calls that ended in a panic on one of its threads.
    pub panics: u64,
}

/// A handler that learns which methods are slow, and runs these on threads of its own, so that they do not hold up
/// the others.
///
/// A method is slow from its first overrun on. It is forgiven when it has run fast for a while, wherever it ran: see
/// [`scalerpc_core::slow`]. So the first call of a slow method holds up the server, and every now and then another one does,
/// if the method is slow only now and then.
///
/// Each thread has a clone of the handler, so what they share is for the handler to say. On these threads a handler answers
/// at once: [`Request::later`] gives it nothing there. Calls of one connection no longer run in their order then: one
/// that was sent away is overtaken. A call whose deadline has come before its thread gets to it is answered with
/// [`Status::DEADLINE_EXCEEDED`], and does not run. A handler that panics there is answered for with
/// [`Status::HANDLER_FAILED`] and counted, and its thread goes on with a new clone of the handler.
///
/// The server needs a [`deferred_max`](crate::ServerBuilder::deferred_max); without one everything runs on its thread.
///
/// Dropping the pool waits for the calls that run; those that wait for a thread are answered with [`Status::BUSY`].
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
/// use scalerpc::{Client, Request, Server, SlowPool, SlowPoolOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("socket");
/// let mut server = Server::builder().deferred_max(16).listen(&path)?;
/// let handler = |request: Request<'_>, response: &mut [u8]| {
///     if request.method == 2 {
///         std::thread::sleep(Duration::from_millis(2));
///     }
///     response[0] = 7;
///     Ok(1)
/// };
/// let mut pool = SlowPool::new(handler, SlowPoolOptions::default())?;
/// let stop = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     let running = scope.spawn(|| {
///         server.run(&stop, &mut pool);
///         pool.counters()
///     });
///     let mut client = Client::connect(&path)?;
///     for _ in 0..3 {
///         assert_eq!(client.call(2, b"")?, [7]);
///     }
///     stop.store(true, Ordering::Relaxed);
///     // The first one has been learned from.
///     assert!(running.join().is_ok_and(|counters| counters.sent_away == 2));
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct SlowPool<H> {
    own: H,
    methods: SlowMethods,
    clock: Clock,
    /// `None` when it ends.
    queue: Option<SyncSender<Job>>,
    runs: Receiver<Run>,
    /// Calls that were sent away, and whose runs have not come back.
    runs_awaited: usize,
    counters: SlowPoolCounters,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the pool and its threads share. It carries nothing else.
#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    panics: AtomicU64,
}

/// A call for a thread.
struct Job {
    later: Later,
    /// When its budget is used up, on the pool's clock.
    deadline_ns: u64,
}

/// A run that has ended.
struct Run {
    method: u16,
    took_ns: u64,
    ended_ns: u64,
    /// If not, it is only to be counted.
    has_run: bool,
}

impl<H: Handler + Clone + Send + 'static> SlowPool<H> {
    /// A pool whose threads wait for calls.
    ///
    /// # Errors
    ///
    /// [`SetupError::SlowThread`] if a thread cannot be started.
    pub fn new(handler: H, options: SlowPoolOptions) -> Result<Self, SetupError> {
        let threads = options.threads.max(1);
        let queue_len = options.queue.max(1);
        let (queue, jobs) = sync_channel(queue_len);
        // Runs are taken before a call is sent, so at most all that were sent before, and one, are in there.
        let (notes, runs) = sync_channel(queue_len + threads + 1);
        let jobs = Arc::new(Mutex::new(jobs));
        let shared = Arc::new(Shared::default());
        let clock = Clock::start();
        let mut pool = Self {
            own: handler.clone(),
            methods: SlowMethods::new(options.slow),
            clock,
            queue: Some(queue),
            runs,
            runs_awaited: 0,
            counters: SlowPoolCounters::default(),
            shared: Arc::clone(&shared),
            threads: Vec::with_capacity(threads),
        };
        for _ in 0..threads {
            let worker = SlowThread {
                jobs: Arc::clone(&jobs),
                notes: notes.clone(),
                clock,
                shared: Arc::clone(&shared),
                handler: handler.clone(),
            };
            let started = thread::Builder::new()
                .name("scalerpc-slow".into())
                .spawn(move || worker.run());
            // Those that were started end with the pool.
            let thread = started.map_err(|error| SetupError::SlowThread { error })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }
}

impl<H> SlowPool<H> {
    /// What it has done.
    pub fn counters(&self) -> SlowPoolCounters {
        SlowPoolCounters {
            panics: self.shared.panics.load(Ordering::Relaxed),
            ..self.counters
        }
    }

    /// True if calls of the method go to the threads now.
    pub fn is_slow(&self, method: u16) -> bool {
        self.methods.is_slow(method, self.clock.now_ns())
    }

    /// The handler that runs on the server's thread.
    pub fn handler(&self) -> &H {
        &self.own
    }

    /// What the threads have learned.
    #[cold]
    fn take_runs(&mut self) {
        while let Ok(run) = self.runs.try_recv() {
            self.runs_awaited -= 1;
            if run.has_run {
                self.methods.note(run.method, run.took_ns, run.ended_ns);
            }
        }
    }

    #[cold]
    fn send_away(&mut self, request: Request<'_>, now_ns: u64) -> Reply {
        let sent = request.later().and_then(|(later, postponed)| {
            let left_ns = later.left().map_or(u64::MAX, nanoseconds);
            let deadline_ns = now_ns.saturating_add(left_ns);
            let job = Job { later, deadline_ns };
            // A full queue gives the job back, and what becomes of it does not matter: the answer is below.
            self.queue.as_ref()?.try_send(job).ok()?;
            Some(postponed)
        });
        match sent {
            Some(postponed) => {
                self.runs_awaited += 1;
                self.counters.sent_away += 1;
                postponed.into()
            }
            None => {
                self.counters.refused += 1;
                Status::BUSY.into()
            }
        }
    }
}

impl<H: Handler> Handler for SlowPool<H> {
    #[inline]
    fn handle(&mut self, request: Request<'_>, response: &mut [u8]) -> Reply {
        if self.runs_awaited > 0 {
            self.take_runs();
        }
        let method = request.method;
        let begun_ns = self.clock.now_ns();
        if self.methods.is_slow(method, begun_ns) && request.can_be_later() {
            return self.send_away(request, begun_ns);
        }
        let reply = self.own.handle(request, response);
        let ended_ns = self.clock.now_ns();
        let took_ns = ended_ns.saturating_sub(begun_ns);
        self.methods.note(method, took_ns, ended_ns);
        reply
    }
}

impl<H> Drop for SlowPool<H> {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        // The threads end when the channel does.
        self.queue = None;
        for thread in self.threads.drain(..) {
            // Panics of handlers were caught where they happened.
            let _ = thread.join();
        }
    }
}

struct SlowThread<H> {
    jobs: Arc<Mutex<Receiver<Job>>>,
    notes: SyncSender<Run>,
    clock: Clock,
    shared: Arc<Shared>,
    handler: H,
}

impl<H: Handler + Clone> SlowThread<H> {
    fn run(self) {
        let mut handler = self.handler.clone();
        while let Some(job) = self.next_job() {
            let Job {
                mut later,
                deadline_ns,
            } = job;
            let begun_ns = self.clock.now_ns();
            let reply = match self.refuses(&later, begun_ns >= deadline_ns) {
                Some(status) => Err(status),
                None => Ok(self.run_handler(&mut handler, &mut later)),
            };
            let ended_ns = self.clock.now_ns();
            // Before the answer: whoever calls next is to find what was learned from this call. There is room for all of
            // them; and a pool that ends takes none.
            let _ = self.notes.try_send(Run {
                method: later.method(),
                took_ns: ended_ns.saturating_sub(begun_ns),
                ended_ns,
                has_run: reply.is_ok(),
            });
            match reply {
                Ok(Reply::Done(len)) => later.answer(len),
                Ok(Reply::Failed(status)) | Err(status) => later.fail(status),
                // It cannot have kept the call.
                Ok(Reply::Later(_)) => later.fail(Status::HANDLER_FAILED),
            }
        }
    }

    /// Whoever waits has the lock meanwhile, and the others wait for that.
    fn next_job(&self) -> Option<Job> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.recv().ok()
    }

    /// Why a call is not to run.
    fn refuses(&self, later: &Later, is_late: bool) -> Option<Status> {
        if self.shared.ends.load(Ordering::Relaxed) || !later.is_awaited() {
            return Some(Status::BUSY);
        }
        is_late.then_some(Status::DEADLINE_EXCEEDED)
    }

    fn run_handler(&self, handler: &mut H, later: &mut Later) -> Reply {
        let (method, seat) = (later.method(), later.seat());
        let (request, response) = later.parts();
        let request = Request::new(method, request, seat);
        let outcome = catch_unwind(AssertUnwindSafe(|| handler.handle(request, response)));
        outcome.unwrap_or_else(|_| {
            self.shared.panics.fetch_add(1, Ordering::Relaxed);
            // What is left of the old one may be half done.
            *handler = self.handler.clone();
            Reply::Failed(Status::HANDLER_FAILED)
        })
    }
}
