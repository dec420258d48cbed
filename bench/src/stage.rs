//! Servers on a thread of their own, of which one at a time is polled, and their clients on this one.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use scalerpc::{ClientSet, Clock, Request, Server, ServerBuilder, Status};

/// Bytes of a request, and of its answer.
pub(crate) const PAYLOAD: [u8; 32] = [7; 32];
/// Calls that a connection may have outstanding.
pub(crate) const WINDOW: u32 = 16;

/// Answers with the request.
pub(crate) fn echo(request: Request<'_>, response: &mut [u8]) -> Reply {
    response[..request.bytes.len()].copy_from_slice(request.bytes);
    Ok(request.bytes.len())
}

/// A builder for `clients` connections with messages of the size of [`PAYLOAD`].
pub(crate) fn builder(clients: u32) -> ServerBuilder {
    Server::builder()
        .clients_max(clients)
        .window(WINDOW)
        .request_max_bytes(PAYLOAD.len() as u32)
        .response_max_bytes(PAYLOAD.len() as u32)
}

/// Keeps the calling thread on the n-th processor that this process may use, if there are so many.
pub(crate) fn pin(n: usize) {
    /// As it was before any thread was kept anywhere: a new thread may only go where the one that began it may.
    static MAY: OnceLock<Option<CpuSet>> = OnceLock::new();
    let Some(may) = MAY.get_or_init(|| sched_getaffinity(None).ok()) else {
        return;
    };
    if let Some(cpu) = (0..CpuSet::MAX_CPU).filter(|&cpu| may.is_set(cpu)).nth(n) {
        let mut one = CpuSet::new();
        one.set(cpu);
        // Without it the samples have more spread, which they show.
        let _ = sched_setaffinity(None, &one);
    }
}

/// What the clients do: each `hot_every`-th one keeps so many calls outstanding, the others make one call, and the
/// next so long after its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) hot_every: u32,
    pub(crate) hot_calls: u32,
    pub(crate) cold_pause: Duration,
}

impl Load {
    pub(crate) fn is_hot(&self, client: u32) -> bool {
        client % self.hot_every == 0
    }
}

/// What clients ask, and what is right of an answer. A client with several calls outstanding has them answered in any order.
pub(crate) trait Work {
    /// Writes the next request of a client of a side; its method and length.
    fn ask(&mut self, side: usize, client: u32, request: &mut [u8]) -> (u16, usize);

    /// An answer to a client of a side.
    fn check(&mut self, side: usize, client: u32, answer: &[u8]) -> Result<(), Box<dyn Error>>;
}

/// Asks for [`PAYLOAD`].
pub(crate) struct Echo;

impl Work for Echo {
    fn ask(&mut self, _: usize, _: u32, request: &mut [u8]) -> (u16, usize) {
        request[..PAYLOAD.len()].copy_from_slice(&PAYLOAD);
        (1, PAYLOAD.len())
    }

    fn check(&mut self, _: usize, _: u32, answer: &[u8]) -> Result<(), Box<dyn Error>> {
        match answer == PAYLOAD {
            true => Ok(()),
            false => Err("the answer is not the request".into()),
        }
    }
}

/// One server to be, and its clients.
pub(crate) struct Plan<H> {
    pub(crate) builder: ServerBuilder,
    pub(crate) clients: u32,
    pub(crate) handler: H,
}

/// What a server's handler returns.
pub(crate) type Reply = Result<usize, Status>;

/// Polls the server of a side once.
type Poll = Box<dyn FnMut(usize) + Send>;

struct Side {
    set: ClientSet,
    /// Cold clients that pause, in the order in which they call again.
    pausing: VecDeque<(Duration, u32)>,
}

/// The servers, by side, and their clients.
pub(crate) struct Stage<W> {
    load: Load,
    work: W,
    /// Where requests are put together.
    request: Vec<u8>,
    sides: Vec<Side>,
    which: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Poll>>,
    /// What polls the servers if that is done by this thread.
    alone: Option<Poll>,
    begun: Instant,
    _dir: tempfile::TempDir,
}

impl Stage<Echo> {
    /// Servers that answer with the request, with as many clients each.
    pub(crate) fn echo(
        builders: Vec<ServerBuilder>,
        clients: u32,
        load: Load,
    ) -> Result<Self, Box<dyn Error>> {
        let plans = builders.into_iter().map(|builder| Plan {
            builder,
            clients,
            handler: echo,
        });
        Self::new(plans.collect(), PAYLOAD.len(), load, Echo)
    }
}

impl<W: Work> Stage<W> {
    /// Requests have at most `request_max_bytes`.
    pub(crate) fn new<H>(
        plans: Vec<Plan<H>>,
        request_max_bytes: usize,
        load: Load,
        work: W,
    ) -> Result<Self, Box<dyn Error>>
    where
        H: FnMut(Request<'_>, &mut [u8]) -> Reply + Send + 'static,
    {
        let dir = tempfile::tempdir()?;
        let path = |i: usize| dir.path().join(i.to_string());
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for (i, plan) in plans.into_iter().enumerate() {
            servers.push((plan.builder.listen(path(i))?, plan.handler));
            clients.push(plan.clients);
        }
        let (which, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (polled, stopped) = (which.clone(), stop.clone());
        let clock = Clock::start();
        let mut poll: Poll = Box::new(move |which| {
            let (server, handler) = &mut servers[which];
            server.poll(clock.now_ns(), handler);
        });
        let thread = thread::spawn(move || {
            pin(1);
            // Ordering: both say nothing but themselves.
            while !stopped.load(Ordering::Relaxed) {
                poll(polled.load(Ordering::Relaxed));
            }
            poll
        });
        let mut stage = Self {
            load,
            work,
            request: vec![0; request_max_bytes],
            sides: Vec::new(),
            which,
            stop,
            thread: Some(thread),
            alone: None,
            begun: Instant::now(),
            _dir: dir,
        };
        pin(0);
        for (i, clients) in clients.into_iter().enumerate() {
            stage.select(i);
            let set = ClientSet::connect(stage._dir.path().join(i.to_string()), clients)?;
            stage.sides.push(Side {
                set,
                pausing: VecDeque::with_capacity(clients as usize),
            });
            stage.begin(i, clients)?;
        }
        Ok(stage)
    }

    /// From now on this thread polls the servers, in turns with their clients, and time is what it has had of its
    /// processor. So neither other load nor the wait for another thread is in what is measured.
    pub(crate) fn make_alone(&mut self) -> Result<(), Box<dyn Error>> {
        // Ordering: as at the other end.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let poll = thread.join().map_err(|_| "the servers' thread panicked")?;
            self.alone = Some(poll);
        }
        Ok(())
    }

    fn now(&self) -> Duration {
        if self.alone.is_none() {
            return self.begun.elapsed();
        }
        let had = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(had.tv_sec as u64, had.tv_nsec as u32)
    }

    fn select(&self, side: usize) {
        // Ordering: as at the other end.
        self.which.store(side, Ordering::Relaxed);
    }

    fn begin(&mut self, side: usize, clients: u32) -> Result<(), Box<dyn Error>> {
        for client in 0..clients {
            let calls = if self.load.is_hot(client) {
                self.load.hot_calls
            } else {
                1
            };
            for _ in 0..calls {
                self.call(side, client)?;
            }
        }
        Ok(())
    }

    fn call(&mut self, side: usize, client: u32) -> Result<(), Box<dyn Error>> {
        let (method, len) = self.work.ask(side, client, &mut self.request);
        let set = &mut self.sides[side].set;
        set.call_async(client, method, &self.request[..len])?;
        Ok(())
    }

    /// Lets a side run for so long, and until something was answered; returns calls in a second, after a fifth of the time.
    pub(crate) fn run(&mut self, which: usize, time: Duration) -> Result<f64, Box<dyn Error>> {
        self.select(which);
        self.drive(which, time / 5)?;
        let begun = self.now();
        let calls = self.drive(which, time)?;
        Ok(calls as f64 / (self.now() - begun).as_secs_f64())
    }

    fn drive(&mut self, which: usize, time: Duration) -> Result<u64, Box<dyn Error>> {
        /// Polls between two looks at the clock.
        const POLLS: u32 = 64;
        /// On a busy machine the server's thread may be off its core for much longer than a round.
        const PATIENCE: Duration = Duration::from_secs(60);
        let (begun, mut calls) = (self.now(), 0);
        loop {
            let now = self.now();
            let elapsed = now - begun;
            if elapsed >= time && calls > 0 {
                return Ok(calls);
            }
            if elapsed >= time + PATIENCE {
                return Err(format!("nothing was answered for {} s", PATIENCE.as_secs()).into());
            }
            while let Some(&(due, client)) = self.sides[which].pausing.front() {
                if due > now {
                    break;
                }
                self.sides[which].pausing.pop_front();
                self.call(which, client)?;
            }
            if let Some(poll) = &mut self.alone {
                poll(which);
            }
            for _ in 0..POLLS {
                let Some(completion) = self.sides[which].set.poll_completion() else {
                    continue;
                };
                let client = completion.connection;
                self.work.check(which, client, completion.result?)?;
                calls += 1;
                if self.load.is_hot(client) {
                    self.call(which, client)?;
                } else {
                    let due = now + self.load.cold_pause;
                    self.sides[which].pausing.push_back((due, client));
                }
            }
        }
    }
}

impl<W> Drop for Stage<W> {
    fn drop(&mut self) {
        // Ordering: as at the other end.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::thread;

    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::pin;

    fn processors() -> Vec<usize> {
        let may = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU)
            .filter(|&cpu| may.is_set(cpu))
            .collect()
    }

    #[test]
    fn a_thread_of_one_that_is_kept_somewhere_can_be_kept_elsewhere() {
        let all = processors();
        let kept = thread::spawn(|| {
            pin(0);
            let other = thread::spawn(|| {
                pin(1);
                processors()
            });
            (processors(), other.join().unwrap())
        });
        let (first, second) = kept.join().unwrap();
        assert_eq!(first, all[..1]);
        // With one processor there is no other.
        assert_eq!(second, all[all.len().min(2) - 1..all.len().min(2)]);
    }
}
