//! The servers of the demo, all on one thread of their own.
//!
//! One of them is polled all the time, as a server is. The others have no load then; they are looked at
//! now and then, for clients that come, go, or are late. None of them sleeps, lest a load that is kept waiting for a core
//! is taken for one that has ended, and the switches counted that follow.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use scalerpc::{
    Backing, Backoff, Clock, Counters, Handler, Reply, Request, Server, ServerBytes, Status,
};
use scalerpc_cli::meta::service::{MetaService, ServiceCounters};
use scalerpc_driver::Fabric;
use scalerpc_driver::shm::ShmServer;

/// Rounds of the polled server after which the others are looked at.
const ROUNDS_PER_LOOK: u32 = 1024;
/// Rounds after which requests of other threads are taken.
const ROUNDS_PER_ASK: u32 = 64;

/// Where a server's memory is.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: usize,
    pub(crate) backing: Backing,
}

/// A server of any back end.
pub(crate) trait Serves: Send {
    /// One round; see [`Server::poll`].
    fn poll(&mut self, now_ns: u64, service: &mut Service) -> usize;
    /// See [`Server::set_rest_after`].
    fn set_rest_after(&mut self, after: Option<Duration>);
    /// After a round in which nothing was done; see [`Server::wait`].
    fn wait(&mut self, now_ns: u64, timeout: Duration) -> bool;
    /// What happened so far.
    fn counters(&self) -> Counters;
    /// The same of each worker, if there are several.
    fn workers(&self) -> Vec<Counters> {
        Vec::new()
    }
    /// How long a group is served while others wait.
    fn time_slice(&self) -> Duration;
    /// What clients cost.
    fn bytes(&self) -> ServerBytes;
    /// Its memory.
    fn memory(&self) -> Memory;
    /// Where it listens, if that is a TCP port.
    fn address(&self) -> Option<SocketAddr>;
}

/// What the back ends each have of their own.
trait End: Fabric {
    fn memory(&self) -> Memory;
    fn address(&self) -> Option<SocketAddr>;
}

impl End for ShmServer {
    fn memory(&self) -> Memory {
        let report = self.memory_report();
        Memory {
            bytes: report.exposed_bytes + report.private_bytes,
            backing: report.backing,
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        None
    }
}

#[cfg(feature = "verbs")]
impl End for scalerpc::verbs::VerbsServer {
    fn memory(&self) -> Memory {
        let report = self.report();
        Memory {
            bytes: report.exposed_bytes + report.private_bytes,
            backing: report.backing.clone(),
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(self.local_addr())
    }
}

impl<F: End + Send> Serves for Server<F> {
    fn poll(&mut self, now_ns: u64, service: &mut Service) -> usize {
        match service {
            Service::Own(service) => Server::poll(self, now_ns, &mut handler(service)),
            service @ Service::Shared(_) => Server::poll(self, now_ns, service),
        }
    }

    fn set_rest_after(&mut self, after: Option<Duration>) {
        Server::set_rest_after(self, after);
    }

    fn wait(&mut self, now_ns: u64, timeout: Duration) -> bool {
        Server::wait(self, now_ns, timeout)
    }

    fn counters(&self) -> Counters {
        Server::counters(self)
    }

    fn time_slice(&self) -> Duration {
        Server::time_slice(self)
    }

    fn bytes(&self) -> ServerBytes {
        Server::bytes(self)
    }

    fn memory(&self) -> Memory {
        self.fabric().memory()
    }

    fn address(&self) -> Option<SocketAddr> {
        self.fabric().address()
    }
}

/// What is served: by one thread, or by several, which see what each other's clients create.
pub(crate) enum Service {
    Own(Box<MetaService>),
    Shared(Arc<Mutex<MetaService>>),
}

impl Service {
    pub(crate) fn counters(&self) -> ServiceCounters {
        match self {
            Self::Own(service) => service.counters(),
            Self::Shared(service) => lock(service).counters(),
        }
    }
}

impl Handler for Service {
    fn handle(&mut self, request: Request<'_>, response: &mut [u8]) -> Reply {
        match self {
            Self::Own(service) => handler(service)(request, response).into(),
            Self::Shared(service) => handler(&mut lock(service))(request, response).into(),
        }
    }
}

fn lock(service: &Mutex<MetaService>) -> MutexGuard<'_, MetaService> {
    // A call that panicked was answered for, and what it has left half done is its caller's own.
    service.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handler(
    service: &mut MetaService,
) -> impl FnMut(Request<'_>, &mut [u8]) -> Result<usize, Status> {
    |request, response| {
        // The service knows every method that there is, and refuses the others.
        service
            .handle(request.method, request.bytes, response)
            .map_err(|_| Status::UNKNOWN_METHOD)
    }
}

/// A server and what it serves.
pub(crate) struct Hosted {
    pub(crate) server: Box<dyn Serves>,
    pub(crate) service: Service,
}

impl Hosted {
    /// One round; see [`Server::poll`].
    pub(crate) fn poll(&mut self, now_ns: u64) -> usize {
        self.server.poll(now_ns, &mut self.service)
    }
}

enum Ask {
    Activate(usize),
    Counters(usize, Sender<Counters>),
    TimeSlice(usize, Sender<Duration>),
    Stop,
}

/// The thread that polls the servers. It ends when this is dropped.
pub(crate) struct Host {
    asks: Sender<Ask>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Where the system has no room for it.
    pub(crate) fn start(servers: Vec<Hosted>, clock: Clock) -> std::io::Result<Self> {
        let (asks, asked) = channel();
        let thread = std::thread::Builder::new()
            .name("scalerpc-server".into())
            .spawn(move || run(servers, &asked, clock))?;
        Ok(Self {
            asks,
            thread: Some(thread),
        })
    }

    /// From now on this server is the one that is polled all the time.
    pub(crate) fn activate(&self, server: usize) {
        self.ask(Ask::Activate(server));
    }

    fn ask(&self, ask: Ask) {
        // The thread ends only after `Stop`.
        let _ = self.asks.send(ask);
    }

    /// Asks the thread, and waits for what it says.
    fn answer<T>(&self, ask: impl FnOnce(Sender<T>) -> Ask) -> Result<T, String> {
        let (reply, answer) = channel();
        self.ask(ask(reply));
        answer
            .recv()
            .map_err(|_| "the server's thread has panicked".to_owned())
    }

    /// The counters of a server, as of now.
    ///
    /// # Errors
    ///
    /// Where the thread has panicked.
    pub(crate) fn counters(&self, server: usize) -> Result<Counters, String> {
        self.answer(|reply| Ask::Counters(server, reply))
    }

    /// How long a slice of a server is, as of now.
    ///
    /// # Errors
    ///
    /// Where the thread has panicked.
    pub(crate) fn time_slice(&self, server: usize) -> Result<Duration, String> {
        self.answer(|reply| Ask::TimeSlice(server, reply))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.ask(Ask::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported where it happened.
            let _ = thread.join();
        }
    }
}

fn run(mut servers: Vec<Hosted>, asked: &Receiver<Ask>, clock: Clock) {
    let mut active = 0;
    let mut round = 0_u32;
    let mut backoff = Backoff::default();
    loop {
        round = round.wrapping_add(1);
        let done = match servers.get_mut(active) {
            Some(hosted) => hosted.poll(clock.now_ns()),
            None => 0,
        };
        if done == 0 {
            backoff.idle();
        } else {
            backoff.busy();
        }
        if round % ROUNDS_PER_LOOK == 0 {
            for (index, hosted) in servers.iter_mut().enumerate() {
                if index != active {
                    hosted.poll(clock.now_ns());
                }
            }
        }
        if round % ROUNDS_PER_ASK != 0 && !backoff.is_long() {
            continue;
        }
        match asked.try_recv() {
            Ok(Ask::Activate(server)) => active = server,
            Ok(Ask::Counters(server, reply)) => {
                let counters = servers.get(server).map(|hosted| hosted.server.counters());
                // Who asked may not wait any more.
                let _ = reply.send(counters.unwrap_or_default());
            }
            Ok(Ask::TimeSlice(server, reply)) => {
                let slice = servers.get(server).map(|hosted| hosted.server.time_slice());
                let _ = reply.send(slice.unwrap_or_default());
            }
            Ok(Ask::Stop) => return,
            Err(_) => {}
        }
    }
}
