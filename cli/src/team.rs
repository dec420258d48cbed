//! A server of several workers: the first is polled by whoever polls the server, and the scheduler with it; the others
//! have threads of their own.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use scalerpc::{Backoff, Clock, Counters, SchedulerHandle, ServerBuilder, ServerBytes, Worker};
use scalerpc_cli::meta::service::MetaService;

use crate::hosting::{Memory, Serves, Service};

/// What a worker's thread and the others share.
#[derive(Default)]
struct Post {
    stop: AtomicBool,
    sleeps: AtomicBool,
    /// How often its counters were asked for.
    asked: AtomicU64,
    /// The counters, as of so many questions.
    told: Mutex<(u64, Counters)>,
}

impl Post {
    fn told(&self) -> MutexGuard<'_, (u64, Counters)> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker on a thread of its own. It ends when this is dropped.
struct Other {
    post: Arc<Post>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Other {
    fn start(worker: Worker, service: Service, clock: Clock) -> std::io::Result<Self> {
        let post = Arc::new(Post::default());
        let waker = worker.server().waker();
        let thread = thread::Builder::new()
            .name(format!("scalerpc-worker-{}", worker.index()))
            .spawn({
                let post = Arc::clone(&post);
                move || serve(worker, service, clock, &post)
            })?;
        Ok(Self {
            post,
            waker,
            thread: Some(thread),
        })
    }

    /// The counters as of now, or when its thread ended.
    fn counters(&self) -> Counters {
        // Ordering: the lock around the answer orders what matters.
        let question = self.post.asked.fetch_add(1, Ordering::Relaxed) + 1;
        self.waker.wake_by_ref();
        loop {
            let (answered, counters) = *self.post.told();
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            if answered >= question || ended {
                return counters;
            }
            thread::yield_now();
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.post.stop.store(true, Ordering::Relaxed);
        self.waker.wake_by_ref();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported where it happened.
            let _ = thread.join();
        }
    }
}

fn serve(mut worker: Worker, mut service: Service, clock: Clock, post: &Post) {
    let mut backoff = Backoff::default();
    let mut answered = 0;
    while !post.stop.load(Ordering::Relaxed) {
        let done = worker.poll(clock.now_ns(), &mut service);
        let asked = post.asked.load(Ordering::Relaxed);
        if asked > answered {
            answered = asked;
            *post.told() = (answered, worker.counters());
        }
        if done > 0 {
            backoff.busy();
        } else if !(post.sleeps.load(Ordering::Relaxed) && worker.wait()) {
            backoff.idle();
        }
    }
    *post.told() = (u64::MAX, worker.counters());
}

/// A server of several workers.
pub(crate) struct Team {
    first: Worker,
    scheduler: SchedulerHandle,
    round: u32,
    sleeps: bool,
    others: Vec<Other>,
    bytes: ServerBytes,
    memory: Memory,
}

impl Team {
    /// Listens at a socket, and starts the threads. `clock` is that of whoever polls the server.
    ///
    /// # Errors
    ///
    /// What the library says, or that there is no room for a thread.
    pub(crate) fn listen(
        path: &Path,
        builder: ServerBuilder,
        service: MetaService,
        clock: Clock,
    ) -> Result<(Self, Service), String> {
        let workers = builder.listen_workers(path);
        let (workers, scheduler) = workers.map_err(|error| error.to_string())?.split();
        let none = "a server without workers";
        let (bytes, memory) = sizes(&workers).ok_or(none)?;
        let service = Arc::new(Mutex::new(service));
        let mut workers = workers.into_iter();
        let first = workers.next().ok_or(none)?;
        let others: std::io::Result<Vec<_>> = workers
            .map(|worker| Other::start(worker, Service::Shared(Arc::clone(&service)), clock))
            .collect();
        let team = Self {
            first,
            scheduler,
            round: 0,
            sleeps: false,
            others: others.map_err(|error| format!("a thread for a worker: {error}"))?,
            bytes,
            memory,
        };
        Ok((team, Service::Shared(service)))
    }
}

/// What the workers' memory comes to; `None` if there are no workers.
fn sizes(workers: &[Worker]) -> Option<(ServerBytes, Memory)> {
    let each = || workers.iter().map(Worker::server);
    let fixed = each().map(|it| it.bytes().fixed).sum();
    let reports = each().map(|it| it.memory_report());
    let bytes = reports.map(|it| it.exposed_bytes + it.private_bytes).sum();
    let first = each().next()?;
    let memory = Memory {
        bytes,
        backing: first.memory_report().backing,
    };
    let bytes = ServerBytes {
        fixed,
        ..first.bytes()
    };
    Some((bytes, memory))
}

impl Serves for Team {
    fn poll(&mut self, now_ns: u64, service: &mut Service) -> usize {
        let done = self.first.poll(now_ns, service);
        self.round = self.round.wrapping_add(1);
        if done == 0 || self.round % SchedulerHandle::ROUNDS_PER_LOOK == 0 {
            self.scheduler.poll(now_ns);
        }
        done
    }

    fn set_rest_after(&mut self, after: Option<Duration>) {
        self.sleeps = after.is_some();
        self.first.server_mut().set_rest_after(after);
        for other in &self.others {
            other.post.sleeps.store(self.sleeps, Ordering::Relaxed);
        }
    }

    fn wait(&mut self, _: u64, _: Duration) -> bool {
        self.sleeps && self.first.others_nap() && self.first.wait()
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.workers().into_iter().for_each(|it| sum += it);
        sum
    }

    fn workers(&self) -> Vec<Counters> {
        let others = self.others.iter().map(Other::counters);
        std::iter::once(self.first.counters())
            .chain(others)
            .collect()
    }

    fn time_slice(&self) -> Duration {
        self.first.server().time_slice()
    }

    fn bytes(&self) -> ServerBytes {
        self.bytes
    }

    fn memory(&self) -> Memory {
        self.memory.clone()
    }

    fn address(&self) -> Option<SocketAddr> {
        None
    }
}
