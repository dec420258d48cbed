//! The server's end.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use scalerpc_core::post::{Completion, Limits, ReadWr, WcStatus, WrId, WriteWr};
use scalerpc_core::{Geometry, Region};
use scalerpc_hugepage::{Backing, HugeMemory, PagePolicy};

use super::control::{Control, Rules};
use super::error::{SetupError, Step};
use super::fence::ServerFence;
use super::guard;
use super::link::{Link, News, Order, Shared};
use super::path::{self, Claim};
use super::transfer::{self, Completions, REMOTE_ACCESS_ERROR};
use super::{SGE_MAX, TIMEOUT_MAX, limits, own_memory};
use crate::fabric::{Fabric, FabricEvent, Opened, PostError, Revocation};
use crate::mapping::Mapping;

/// What a server can be told besides its geometry.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Pages of the server's memory.
    pub page_policy: PagePolicy,
    /// NUMA node of the server's memory; `None` for the kernel's choice.
    pub numa_node: Option<u32>,
    /// Links (client processes, as a rule) that may be open at once. Each costs the server three file
    /// descriptors and a mapping; connections cost none.
    pub links_max: u32,
    /// Handshakes that may be under way at once; more clients wait in the socket's backlog.
    pub handshakes_max: u32,
    /// Time for a client to finish its handshake.
    pub handshake_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            page_policy: PagePolicy::Prefer,
            numa_node: None,
            links_max: 1024,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(5),
        }
    }
}

/// Where a server's memory is. See [`ShmServer::memory_report`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Bytes that clients read and write: demand map, endpoint table, pools. Fixed.
    pub exposed_bytes: usize,
    /// Bytes of the send slots. Fixed.
    pub private_bytes: usize,
    /// Of `exposed_bytes` and of this process's heap, what each further seat costs.
    pub per_seat_bytes: usize,
    /// Pages of the exposed memory, and why they are not what was preferred.
    pub backing: Backing,
    /// Bytes of clients' memory that are mapped now; their owners account for them.
    pub client_bytes: u64,
}

/// What has happened at a server. Gauges are as of now; everything else only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Gauge: links in service.
    pub links_open: u64,
    /// Gauge: seats that can be given out.
    pub seats_free: u32,
    /// Links that were put in service.
    pub links_admitted: u64,
    /// Handshakes that were refused, for any reason.
    pub refused: u64,
    /// Refusals and evictions because of something that the protocol does not allow.
    pub violations: u64,
    /// Handshakes that their client did not finish.
    pub abandoned: u64,
    /// Links that were fenced.
    pub fenced: u64,
    /// Revocations that are done.
    pub revocations: u64,
    /// Revocations that found a WRITE under way.
    pub revocations_pending: u64,
}

/// What the data thread knows about a seat.
#[derive(Debug, Default)]
struct Seat {
    /// `None`: free, or not announced yet.
    link: Option<Arc<Link>>,
    /// Its connection's number in the link.
    connection: u32,
    /// Completions that have not been taken.
    pending: u32,
    /// Gone has been given out.
    gone: bool,
}

/// What a seat costs here: its record, and its place in the list of free ones.
const SEAT_BYTES: usize = size_of::<Seat>() + size_of::<u32>();

/// The server's end of the shared memory back end: one for all clients of a path.
///
/// Dropping it ends all connections and frees the path; but not in a child of `fork`.
#[derive(Debug)]
pub struct ShmServer {
    geometry: Geometry,
    limits: Limits,
    exposed: Arc<Mapping>,
    private: Mapping,
    fence: ServerFence,
    seats: Box<[Seat]>,
    completions: Completions,
    /// News that is being told, and the connection that is next.
    telling: Option<(News, u32)>,
    shared: Arc<Shared>,
    control: Option<JoinHandle<()>>,
    /// Dropped after the control thread has ended.
    _claim: Claim,
    revocations: u64,
    revocations_pending: u64,
    /// The control thread is this process's; a fork of it has none.
    process: u32,
}

impl ShmServer {
    /// Takes a path, makes the server's memory and begins to admit clients.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names what failed and what helps. A live server on the path is left alone.
    pub fn listen(
        path: impl AsRef<Path>,
        geometry: Geometry,
        options: ServerOptions,
    ) -> Result<Self, SetupError> {
        let path = path.as_ref();
        if options.links_max == 0 || options.handshakes_max == 0 {
            let what = "links_max and handshakes_max must be at least 1";
            return Err(SetupError::BadRequest { what });
        }
        let memory = |name, bytes| {
            let memory = HugeMemory::builder(name, bytes).policy(options.page_policy);
            own_memory(memory.numa_node(options.numa_node), bytes, bytes)
        };
        // First the path, so that nothing large is made in vain.
        let (claim, listener) = path::claim(path)?;
        let exposed = Arc::new(memory("scalerpc-pools", geometry.server_exposed_bytes())?);
        let private = memory("scalerpc-send", geometry.server_private_bytes())?;
        let system = |call| move |error| SetupError::system(path, Step::Start, call, error);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| system("eventfd")(std::io::Error::from(errno)))?;
        let shared = Arc::new(Shared::new(wake, geometry.clients_max()));
        let fence = ServerFence::probe();
        let rules = Rules {
            geometry,
            fence,
            links_max: options.links_max,
            handshakes_max: options.handshakes_max,
            handshake_timeout: options.handshake_timeout.min(TIMEOUT_MAX),
        };
        let control = Control::new(Arc::clone(&shared), Arc::clone(&exposed), rules, listener)
            .map_err(|errno| system("epoll")(std::io::Error::from(errno)))?;
        let control = std::thread::Builder::new()
            .name("scalerpc-control".into())
            .spawn(|| control.run())
            .map_err(system("starting a thread"))?;
        let seats = (0..geometry.clients_max())
            .map(|_| Seat::default())
            .collect();
        // Between two looks at the completions the engine posts, for each zone, at most the READs of a window,
        // one signaled WRITE for every half of a send queue, which is a window or more, and a switch event.
        let each = geometry.window().div_ceil(SGE_MAX) as usize + 3;
        let completions = each * geometry.pools() as usize * geometry.zones() as usize;
        Ok(Self {
            geometry,
            limits: limits(&geometry),
            exposed,
            private,
            fence,
            seats,
            completions: Completions::new(completions),
            telling: None,
            shared,
            control: Some(control),
            _claim: claim,
            revocations: 0,
            revocations_pending: 0,
            process: std::process::id(),
        })
    }

    /// The geometry that all connections share.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Where the memory is. It does not grow with clients: the seats are there from the start.
    pub fn memory_report(&self) -> MemoryReport {
        MemoryReport {
            exposed_bytes: self.exposed.memory().len(),
            private_bytes: self.private.memory().len(),
            per_seat_bytes: self.geometry.server_bytes_per_client() + SEAT_BYTES,
            backing: self.exposed.memory().backing().clone(),
            client_bytes: self.shared.counts.client_bytes.get(),
        }
    }

    /// What has happened so far. Takes a lock: not for the data path.
    pub fn counters(&self) -> ServerCounters {
        let counts = &self.shared.counts;
        ServerCounters {
            links_open: counts.links_open.get(),
            seats_free: self.shared.free_seats(),
            links_admitted: counts.links_admitted.get(),
            refused: counts.refused.get(),
            violations: counts.violations.get(),
            abandoned: counts.abandoned.get(),
            fenced: counts.fenced.get(),
            revocations: self.revocations,
            revocations_pending: self.revocations_pending,
        }
    }

    /// The process of the client that has a seat, for messages about it; 0 if it is in a pid namespace that
    /// cannot be seen from here. `None` if the seat is free.
    pub fn peer_process(&self, seat: u32) -> Option<i32> {
        Some(self.seats.get(seat as usize)?.link.as_ref()?.process)
    }

    /// A work request reached for what the client has not given: its link ends, as a QP would.
    #[cold]
    fn fail(&mut self, connection: u32, wr_id: WrId) -> Result<(), PostError> {
        if self.completions.is_full() {
            return Err(PostError::QueueFull);
        }
        self.complete(connection, wr_id, REMOTE_ACCESS_ERROR);
        self.close(connection);
        Ok(())
    }

    #[inline]
    fn complete(&mut self, connection: u32, wr_id: WrId, status: WcStatus) {
        if let Some(seat) = self.seats.get_mut(connection as usize) {
            seat.pending += 1;
            self.completions.push(wr_id, status);
        }
    }

    /// The link of a connection that is up.
    #[inline]
    fn up(&self, connection: u32) -> Result<&Arc<Link>, PostError> {
        let link = self
            .seats
            .get(connection as usize)
            .and_then(|seat| seat.link.as_ref());
        link.filter(|link| !link.is_down()).ok_or(PostError::Down)
    }

    /// The link and the guard of a connection.
    fn guard(&self, seat: u32) -> Option<(&Arc<Link>, usize)> {
        let seat = self.seats.get(seat as usize)?;
        let link = seat.link.as_ref()?;
        Some((link, link.guard(seat.connection)))
    }

    /// The next piece of the news at hand.
    fn tell(&mut self) -> Option<FabricEvent> {
        if self.telling.is_none() {
            self.telling = self.shared.take_news().map(|news| (news, 0));
        }
        let (news, connection) = self.telling.as_mut()?;
        let number = *connection;
        let link = news.link();
        let grant = *link.grants.get(number as usize)?;
        let is_last = number as usize + 1 == link.grants.len();
        let seat = self.seats.get_mut(grant.seat as usize)?;
        let event = match news {
            News::Opened(link) => {
                *seat = Seat {
                    link: Some(Arc::clone(link)),
                    connection: number,
                    ..Seat::default()
                };
                FabricEvent::Opened(Opened {
                    seat: grant.seat,
                    owner: grant.owner,
                    ring_at: self.geometry.ring(number),
                    staging_at: self.geometry.staging(number),
                    placement: self.limits.placement,
                })
            }
            News::Gone(_) => {
                if seat.pending > 0 {
                    // First the completions are taken.
                    return None;
                }
                seat.gone = true;
                FabricEvent::Gone {
                    connection: grant.seat,
                }
            }
        };
        *connection += 1;
        if is_last {
            self.telling = None;
        }
        Some(event)
    }
}

// SAFETY: the two regions are views of mappings that the struct owns and never exchanges; clients map only
// the exposed one, and copies are checked against the lengths of both ends.
unsafe impl Fabric for ShmServer {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn exposed(&self) -> &Region {
        self.exposed.region()
    }

    fn private(&self) -> &Region {
        self.private.region()
    }

    #[inline]
    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        let link = self.up(wr.connection)?;
        if wr.signaled && self.completions.is_full() {
            return Err(PostError::QueueFull);
        }
        let to = link.region();
        if !transfer::write_fits(link.reachable_bytes(), wr.remote, wr.len) {
            return self.fail(wr.connection, wr.wr_id);
        }
        transfer::write(to, wr.remote, self.private.region(), wr.local, wr.len);
        if wr.signaled {
            self.complete(wr.connection, wr.wr_id, WcStatus::Success);
        }
        Ok(())
    }

    #[inline]
    fn post_read(&mut self, wr: &ReadWr) -> Result<(), PostError> {
        let link = self.up(wr.connection)?;
        if self.completions.is_full() {
            return Err(PostError::QueueFull);
        }
        if !transfer::read_fits(&self.geometry, link.reachable_bytes(), wr) {
            return self.fail(wr.connection, wr.wr_id);
        }
        transfer::read(&self.geometry, self.exposed.region(), link.region(), wr);
        self.complete(wr.connection, wr.wr_id, WcStatus::Success);
        Ok(())
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.completions.take()?;
        if let Some(seat) = self.seats.get_mut(completion.wr_id.seat() as usize) {
            seat.pending = seat.pending.saturating_sub(1);
        }
        Some(completion)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<FabricEvent> {
        if self.telling.is_none() && !self.shared.has_news() {
            return None;
        }
        self.tell()
    }

    /// One fence serves them all: it costs a system call.
    fn revoke_all(&mut self, revocations: &mut [Revocation]) {
        for it in revocations.iter() {
            if let Some((link, at)) = self.guard(it.seat) {
                // The highest epoch ends the connection, and is not for tenancies.
                guard::raise(link.region(), at, it.epoch.min(guard::ENDED - 1));
            }
        }
        let passed = self.fence.pass(self.exposed.region());
        for it in revocations.iter_mut() {
            it.done = match self.guard(it.seat) {
                Some((link, at)) => passed && guard::is_quiet(link.region(), at),
                None => true,
            };
            self.revocations += u64::from(it.done);
            self.revocations_pending += u64::from(!it.done);
        }
    }

    /// Ends the whole link of the connection: the peer is the process, and all its connections go.
    fn close(&mut self, connection: u32) {
        let seat = self.seats.get(connection as usize);
        if let Some(link) = seat.and_then(|seat| seat.link.as_ref()) {
            if link.evict() {
                self.shared.order(Order::Evict(link.id));
            }
        }
    }

    fn bytes_per_connection(&self) -> usize {
        SEAT_BYTES
    }

    fn release(&mut self, seat: u32) {
        let Some(record) = self.seats.get_mut(seat as usize) else {
            return;
        };
        if !record.gone {
            return;
        }
        if let Some(link) = std::mem::take(record).link {
            self.shared.give_back([seat]);
            if link.let_go() {
                // The control thread has the last reference, and unmaps: that can take long.
                self.shared.order(Order::Forget(link.id));
            }
        }
    }
}

impl Drop for ShmServer {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.shared.stop();
        if let Some(control) = self.control.take() {
            // It has nothing to return; a panic of it has been reported already.
            let _ = control.join();
        }
    }
}
