//! The server: the engine, a back end, and the caller's handler.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scalerpc_core::post::{ReadWr, WriteWr};
use scalerpc_core::server::{
    Action, Call, Class, Counters, Grouping, OpenConn, Priority, ServerConfig, ServerEngine,
    ServerSizes,
};
use scalerpc_core::wire::{Status, Violation};
use scalerpc_core::{Geometry, GeometryConfig, Mapping, Memory};
use scalerpc_driver::shm::{MemoryReport, ServerOptions, ShmServer};
use scalerpc_driver::store::{self, Boxed};
#[cfg(feature = "verbs")]
use scalerpc_driver::verbs;
use scalerpc_driver::{Fabric, FabricEvent, PostError, Revocation};
use scalerpc_hugepage::PagePolicy;

use crate::error::SetupError;
use crate::wait::{Backoff, Clock};

/// See [`ServerBuilder::time_slice`]. Without one, the engine's default holds.
const SHM_SLICE: Duration = Duration::from_millis(1);
/// Connections that may come or go in one round: thousands at once must not hold up the others.
const EVENTS: usize = 32;
/// Revocations that are asked for together.
const REVOCATIONS: usize = 16;

/// A call, as a handler sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What to run.
    pub method: u16,
    /// The request's bytes.
    pub bytes: &'a [u8],
    /// The seat of the connection that it came from.
    pub seat: u32,
}

/// What a handler says: how many bytes of the response buffer it filled, or a status.
pub type Reply = Result<usize, Status>;

/// Runs calls. Any `FnMut(Request<'_>, &mut [u8]) -> Reply` is one.
pub trait Handler {
    /// Runs one call; the answer goes into `response`, which has room for the largest one. What is
    /// in it before has no meaning.
    fn handle(&mut self, request: Request<'_>, response: &mut [u8]) -> Reply;
}

impl<F: FnMut(Request<'_>, &mut [u8]) -> Reply> Handler for F {
    fn handle(&mut self, request: Request<'_>, response: &mut [u8]) -> Reply {
        self(request, response)
    }
}

/// What a server is made from; see [`Server::builder`].
#[derive(Clone, Debug, Default)]
pub struct ServerBuilder {
    geometry: GeometryConfig,
    config: ServerConfig,
    options: ServerOptions,
    copy_requests: bool,
    time_slice: Option<Duration>,
}

impl ServerBuilder {
    /// Seats for connections. Default 1024.
    pub fn clients_max(mut self, clients_max: u32) -> Self {
        self.geometry.clients_max = clients_max;
        self
    }

    /// Connections that are served together. Default 40, as in the paper's evaluation.
    pub fn group_size(mut self, group_size: u32) -> Self {
        self.geometry.group_size = group_size;
        self
    }

    /// Calls that a connection may have outstanding, a power of two. Default 16.
    pub fn window(mut self, window: u32) -> Self {
        self.geometry.window = window;
        self
    }

    /// Largest request payload. Default 4096.
    pub fn request_max_bytes(mut self, bytes: u32) -> Self {
        self.geometry.request_max_bytes = bytes;
        self
    }

    /// Largest response payload. Default 4096.
    pub fn response_max_bytes(mut self, bytes: u32) -> Self {
        self.geometry.response_max_bytes = bytes;
        self
    }

    /// How connections are given blocks. Default [`Mapping::Virtual`].
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.geometry.mapping = mapping;
        self
    }

    /// How long a group is served while others wait. Default 1 ms over shared memory, else 100 us as in the
    /// paper's evaluation.
    ///
    /// Over shared memory a switch costs copies and no NIC cache gains by it: with 400 clients in 4
    /// processes on 2 cores, slices of 100 us had 0.64 to 0.73 of the throughput of static mapping, slices
    /// of 1 ms 0.91 to 0.95 (`scalerpc demo --slice-us`, 2-core Sapphire Rapids VM).
    pub fn time_slice(mut self, slice: Duration) -> Self {
        self.time_slice = Some(slice);
        self
    }

    /// How connections are put into groups. Default [`Grouping::Priority`].
    pub fn grouping(mut self, grouping: Grouping) -> Self {
        self.config.grouping = grouping;
        self
    }

    /// A group from which nothing has come for this long yields to one that is ready. Default 10 us.
    pub fn idle_switch(mut self, idle: Duration) -> Self {
        self.config.idle_switch_ns = nanoseconds(idle);
        self
    }

    /// A client that has not answered the end of its tenancy for this long has it revoked, where the
    /// back end can do that; its connection stays. Default 200 us.
    pub fn revoke_after(mut self, after: Duration) -> Self {
        self.config.revoke_after_ns = nanoseconds(after);
        self
    }

    /// Where it cannot, a client that has not answered for this long is fenced, which ends its
    /// connection. Default 1 s.
    pub fn fence_after(mut self, after: Duration) -> Self {
        self.config.fence_after_ns = nanoseconds(after);
        self
    }

    /// Pages of the server's memory. Default [`PagePolicy::Prefer`].
    pub fn page_policy(mut self, policy: PagePolicy) -> Self {
        self.options.page_policy = policy;
        self
    }

    /// NUMA node of the server's memory. Default: the kernel's choice.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.options.numa_node = Some(node);
        self
    }

    /// Links, that is client processes, that may be open at once.
    pub fn links_max(mut self, links_max: u32) -> Self {
        self.options.links_max = links_max;
        self
    }

    /// Copies each request out of the pool before the handler sees it. Default false: it is read in
    /// place.
    ///
    /// In place, a client that breaks the protocol can change the bytes while the handler looks at them.
    /// Over shared memory any process that may open the socket can do that to any request. Where clients
    /// are not trusted that far, and the handler would not stand it, let requests be copied.
    pub fn copy_requests(mut self, copy: bool) -> Self {
        self.copy_requests = copy;
        self
    }

    /// Listens at a Unix socket for clients on this host, over shared memory.
    ///
    /// # Errors
    ///
    /// [`SetupError`]: the sizes cannot be used, the memory is not to be had, or the path is taken,
    /// too long or not writable.
    pub fn listen(mut self, path: impl AsRef<Path>) -> Result<Server, SetupError> {
        self.time_slice.get_or_insert(SHM_SLICE);
        let geometry = Geometry::new(self.geometry)?;
        let fabric = ShmServer::listen(path, geometry, self.options.clone())?;
        self.build(geometry, fabric)
    }

    /// Listens for clients that connect to `address` over TCP, and serves them over RDMA reliable connections.
    ///
    /// Pages, NUMA node and `links_max` are this builder's; those in `options` are not looked at.
    ///
    /// # Errors
    ///
    /// [`SetupError`]: the sizes cannot be used, there is no usable device, the memory is not to be had or may not be
    /// registered, or the address is taken.
    #[cfg(feature = "verbs")]
    pub fn listen_verbs(
        self,
        address: impl std::net::ToSocketAddrs + std::fmt::Debug,
        options: &verbs::ServerOptions,
    ) -> Result<Server<verbs::VerbsServer>, SetupError> {
        let geometry = Geometry::new(self.geometry)?;
        let options = verbs::ServerOptions {
            page_policy: self.options.page_policy,
            numa_node: self.options.numa_node,
            links_max: self.options.links_max,
            ..options.clone()
        };
        let fabric = verbs::VerbsServer::listen(address, geometry, &options)?;
        self.build(geometry, fabric)
    }

    /// The sizes that have been chosen so far, for a back end that [`build`](Self::build) is to get.
    ///
    /// # Errors
    ///
    /// [`SetupError::Geometry`]: they cannot be used.
    pub fn geometry(&self) -> Result<Geometry, SetupError> {
        Ok(Geometry::new(self.geometry)?)
    }

    /// A server over another back end, whose memory has this geometry's sizes.
    ///
    /// # Errors
    ///
    /// [`SetupError::WindowTooDeep`] if the back end cannot hold a window of work requests.
    pub fn build<F: Fabric>(self, geometry: Geometry, fabric: F) -> Result<Server<F>, SetupError> {
        let mut config = self.config;
        if let Some(slice) = self.time_slice {
            config.time_slice_ns = nanoseconds(slice);
        }
        let engine = store::server_engine(geometry, config, fabric.limits()).ok_or(
            SetupError::WindowTooDeep {
                window: geometry.window(),
            },
        )?;
        let scratch = if self.copy_requests {
            geometry.request_max_bytes()
        } else {
            0
        };
        Ok(Server {
            engine,
            fabric,
            scratch: self.copy_requests.then(|| vec![0; scratch].into()),
            last_eviction: None,
            revocations: [Revocation::default(); REVOCATIONS],
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// A peer that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The seat that it had.
    pub seat: u32,
    /// What it did; `None` if the connection failed.
    pub why: Option<Violation>,
}

/// What a server's memory comes to (rule R10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerBytes {
    /// Pools, send area and their records: the same for any number of seats.
    pub fixed: usize,
    /// For each seat: an endpoint line, a byte of the demand map, and a control record. With static
    /// mapping a zone, too.
    pub per_client: usize,
    /// For each group that the seats can fill: its record.
    pub per_group: usize,
}

/// Serves calls. It does nothing unless it is polled, and never blocks.
pub struct Server<F: Fabric = ShmServer> {
    engine: ServerEngine<Boxed>,
    fabric: F,
    scratch: Option<Box<[u8]>>,
    last_eviction: Option<Eviction>,
    /// Scratch for `poll`.
    revocations: [Revocation; REVOCATIONS],
}

impl Server {
    /// What a server is made from.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// What kind of memory it has.
    pub fn memory_report(&self) -> MemoryReport {
        self.fabric.memory_report()
    }
}

impl<F: Fabric> Server<F> {
    /// Takes what has come and answers it: one round, of at most 64 calls. Returns how many things
    /// were done; after a round with none the caller may do something else.
    ///
    /// `now_ns` is any monotonic clock. It neither allocates nor makes a system call, except when
    /// connections come and go, and when the tenancy of a client that does not answer is revoked.
    ///
    /// A handler that panics is answered for with [`Status::HANDLER_FAILED`]; then the panic goes on.
    /// Requests are read in place, which rests on clients that keep to the protocol: see
    /// [`ServerBuilder::copy_requests`].
    pub fn poll(&mut self, now_ns: u64, handler: &mut impl Handler) -> usize {
        let mut done = self.take_events() + self.take_completions();
        let mut revoking = 0;
        loop {
            let (exposed, private) = (self.fabric.exposed(), self.fabric.private());
            match self.engine.next_action(now_ns, exposed, private) {
                Action::Idle => break,
                Action::Call(call) => self.run_handler(call, handler),
                Action::Write(write) => self.post_write(&write),
                Action::Read(read) => self.post_read(&read),
                Action::Revoke { seat, epoch } => {
                    if revoking == REVOCATIONS {
                        self.revoke_all(revoking);
                        revoking = 0;
                    }
                    self.revocations[revoking] = Revocation {
                        seat,
                        epoch,
                        done: false,
                    };
                    revoking += 1;
                }
                Action::Close { seat, why } => {
                    self.last_eviction = Some(Eviction { seat, why });
                    self.fabric.close(seat);
                }
            }
            done += 1;
        }
        if revoking > 0 {
            self.revoke_all(revoking);
        }
        self.flush();
        done
    }

    /// What the round has posted goes out. Connections for which that fails are ended in the next one.
    #[inline]
    fn flush(&mut self) {
        while let Some(seat) = self.fabric.flush() {
            self.engine.failed(seat);
        }
    }

    /// Together: a back end may pay for a request, however many tenancies it names.
    fn revoke_all(&mut self, count: usize) {
        let revocations = &mut self.revocations[..count];
        self.fabric.revoke_all(revocations);
        for it in revocations.iter().filter(|it| it.done) {
            self.engine.revoked(it.seat, it.epoch);
        }
    }

    /// Polls until `stop` is set, giving the core away while there is nothing to do.
    pub fn run(&mut self, stop: &AtomicBool, handler: &mut impl Handler) {
        let clock = Clock::start();
        let mut backoff = Backoff::default();
        // Ordering: the flag carries nothing else.
        while !stop.load(Ordering::Relaxed) {
            if self.poll(clock.now_ns(), handler) == 0 {
                backoff.idle();
            } else {
                backoff.busy();
            }
        }
    }

    fn take_events(&mut self) -> usize {
        for taken in 0..EVENTS {
            let Some(event) = self.fabric.poll_event() else {
                return taken;
            };
            match event {
                FabricEvent::Opened(opened) => {
                    let accepted = self.engine.open(OpenConn {
                        seat: opened.seat,
                        owner: opened.owner,
                        ring_at: opened.ring_at,
                        staging_at: opened.staging_at,
                        placement: opened.placement,
                    });
                    if !accepted {
                        self.fabric.close(opened.seat);
                    }
                }
                FabricEvent::Gone { connection } => {
                    self.engine.gone(connection);
                    self.fabric.release(connection);
                }
            }
        }
        EVENTS
    }

    fn take_completions(&mut self) -> usize {
        let mut taken = 0;
        while let Some(completion) = self.fabric.poll_completion() {
            self.engine.completed(completion);
            taken += 1;
        }
        taken
    }

    fn run_handler(&mut self, call: Call, handler: &mut impl Handler) {
        let (exposed, private) = (self.fabric.exposed(), self.fabric.private());
        let bytes = match &mut self.scratch {
            // SAFETY: the engine hands out a call only after it acquired its `valid` word, and takes the
            // block as its own until `reply`; a client that keeps to the protocol does not write there
            // before the answer. (One that does not is what `copy_requests` is for.)
            None => unsafe { exposed.bytes(call.request_at, call.request_len) },
            Some(scratch) => {
                let copy = &mut scratch[..call.request_len];
                exposed.copy_out(call.request_at, copy);
                &*copy
            }
        };
        let room = self.engine.geometry().response_max_bytes();
        // SAFETY: private memory is touched by this side only; the send slot is this call's own until
        // `reply`, and no other reference to it exists.
        let response = unsafe { private.bytes_mut(call.response_at, room) };
        let request = Request {
            method: call.method,
            bytes,
            seat: call.seat,
        };
        // A handler that panics has answered, too: nobody waits for ever, and the send slot comes back.
        let outcome = catch_unwind(AssertUnwindSafe(|| handler.handle(request, response)));
        let (status, len) = match &outcome {
            Ok(Ok(len)) => (Status::OK, *len),
            Ok(Err(status)) => (*status, 0),
            Err(_) => (Status::HANDLER_FAILED, 0),
        };
        if let Some(write) = self.engine.reply(call, status, len, exposed, private) {
            self.post_write(&write);
        }
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    #[inline]
    fn post_write(&mut self, write: &WriteWr) {
        let mut posted = self.fabric.post_write(write);
        if posted == Err(PostError::QueueFull) {
            // Of the back end, not of the connection, which counts: completions make room.
            self.take_completions();
            posted = self.fabric.post_write(write);
        }
        if posted.is_err() {
            self.engine.failed(write.connection);
        }
    }

    #[inline]
    fn post_read(&mut self, read: &ReadWr) {
        let mut posted = self.fabric.post_read(read);
        if posted == Err(PostError::QueueFull) {
            self.take_completions();
            posted = self.fabric.post_read(read);
        }
        if posted.is_err() {
            self.engine.failed(read.connection);
        }
    }

    /// How long a group is served while others wait: see [`ServerBuilder::time_slice`].
    pub fn time_slice(&self) -> Duration {
        Duration::from_nanos(self.engine.config().time_slice_ns)
    }

    /// Gives a connection a weight, or a class of its own, until it ends. It is moved to another group when its
    /// group's next slice has ended. False if there is no such connection.
    pub fn set_priority(&mut self, seat: u32, priority: Priority) -> bool {
        self.engine.set_priority(seat, priority)
    }

    /// With whom a connection is served; `None` if the seat is free.
    pub fn class(&self, seat: u32) -> Option<Class> {
        self.engine.class(seat)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// The sizes.
    pub fn geometry(&self) -> &Geometry {
        self.engine.geometry()
    }

    /// The peer that was evicted last, if one was.
    pub fn last_eviction(&self) -> Option<Eviction> {
        self.last_eviction
    }

    /// What its memory comes to.
    pub fn bytes(&self) -> ServerBytes {
        let geometry = self.engine.geometry();
        let sizes = ServerSizes::of(geometry);
        let zone = match geometry.mapping() {
            Mapping::Virtual => 0,
            Mapping::Static => geometry.zone_bytes() + ServerSizes::BYTES_PER_ZONE,
        };
        let back_end = self.fabric.bytes_per_connection();
        let per_client =
            geometry.server_bytes_per_client() + ServerSizes::BYTES_PER_CLIENT + back_end + zone;
        let all = geometry.server_exposed_bytes()
            + geometry.server_private_bytes()
            + sizes.bytes()
            + sizes.seats * back_end;
        let grows = per_client * sizes.seats + ServerSizes::BYTES_PER_GROUP * sizes.groups;
        ServerBytes {
            fixed: all - grows,
            per_client,
            per_group: ServerSizes::BYTES_PER_GROUP,
        }
    }

    /// The back end.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }
}
