//! The server's end.

use std::path::Path;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use scalerpc_core::post::{Completion, Limits, ReadWr, WcStatus, WrId, WriteWr, fetch_ahead};
use scalerpc_core::{Geometry, Memory, Region};
use scalerpc_hugepage::{Backing, HugeMemory, PagePolicy};

use super::asleep::{self, WriterFence};
use super::control::{Control, Rules, wake_server};
use super::error::{SetupError, Step};
use super::fence::ReachingFence;
use super::futex;
use super::guard;
use super::link::{self, Link, News, Order, Shared};
use super::path;
use super::shards::{Hub, Layout, Shard};
use super::transfer::{self, Completions, REMOTE_ACCESS_ERROR};
use super::{SGE_MAX, TIMEOUT_MAX, limits, own_memory};
use crate::bell::Bell;
use crate::fabric::{Fabric, FabricEvent, Opened, PostError, Revocation, Slept};
use crate::mapping::{Mapping, Part};

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

/// Where a server's memory is; of several shards, that of one. See [`ShmServer::memory_report`].
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
    /// Bytes of clients' memory that are mapped now, for all shards; their owners account for them.
    pub client_bytes: u64,
}

/// What has happened at a server. Gauges are as of now; everything else only rises.
///
/// Of several shards, each counts its own seats and revocations, and tells of the links of all.
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

const SHARDS: &str = "there must be 1 to 64 shards, and their memory must fit the address space";

/// What a seat costs here: its record, and its place in the list of free ones.
const SEAT_BYTES: usize = size_of::<Seat>() + size_of::<u32>();

/// The server's end of the shared memory back end: one for all clients of a path, or one of several shards, each with
/// its own part of the connections and of the memory.
///
/// Dropping it ends all its connections, and with them all others of their links; dropping the last shard frees the
/// path. But not in a child of `fork`.
#[derive(Debug)]
pub struct ShmServer {
    geometry: Geometry,
    limits: Limits,
    /// Which shard this is, and how many there are.
    number: u32,
    shards: u32,
    exposed: Arc<Part>,
    private: Mapping,
    fence: ReachingFence,
    /// Before the look at whether a client sleeps.
    look: WriterFence,
    seats: Box<[Seat]>,
    completions: Completions,
    /// News that is being told, and the connection that is next.
    telling: Option<(News, u32)>,
    line: Arc<link::Shard>,
    hub: Arc<Hub>,
    revocations: u64,
    revocations_pending: u64,
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
        let mut shards = Self::listen_shards(path, geometry, 1, options)?;
        shards.pop().ok_or(SetupError::BadRequest { what: SHARDS })
    }

    /// As [`listen`](Self::listen), for several data threads, each of which polls a shard: what it has for itself of
    /// the connections, the memory, the completions and the news. `geometry` is that of one shard, so there are
    /// `shards` (1 to [`SHARDS_MAX`](super::SHARDS_MAX)) times its seats. The connections of a link are spread evenly.
    ///
    /// All shards admit clients by one socket and one control thread. A link ends as a whole: when one shard closes
    /// a connection, the others learn that their connections of that link are gone. So all shards have to be polled.
    /// Which shard a connection is in is not up to the client.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn listen_shards(
        path: impl AsRef<Path>,
        geometry: Geometry,
        shards: u32,
        options: ServerOptions,
    ) -> Result<Vec<Self>, SetupError> {
        let path = path.as_ref();
        if options.links_max == 0 || options.handshakes_max == 0 {
            let what = "links_max and handshakes_max must be at least 1";
            return Err(SetupError::BadRequest { what });
        }
        let no_shards = || SetupError::BadRequest { what: SHARDS };
        let layout = Layout::new(&geometry, shards).ok_or_else(no_shards)?;
        let memory = |name, bytes| {
            let memory = HugeMemory::builder(name, bytes).policy(options.page_policy);
            own_memory(memory.numa_node(options.numa_node), bytes, bytes)
        };
        // First the path, so that nothing large is made in vain.
        let (claim, listener) = path::claim(path)?;
        let exposed = Arc::new(memory("scalerpc-pools", layout.bytes())?);
        let private: Result<Vec<_>, _> = (0..shards)
            .map(|_| memory("scalerpc-send", geometry.server_private_bytes()))
            .collect();
        let private = private?;
        let system = |call| move |error| SetupError::system(path, Step::Start, call, error);
        let wake = Bell::new().map_err(system("eventfd"))?;
        let shared = Arc::new(Shared::new(wake));
        let fence = ReachingFence::probe();
        let rules = Rules {
            geometry,
            layout,
            fence,
            links_max: options.links_max,
            handshakes_max: options.handshakes_max,
            handshake_timeout: options.handshake_timeout.min(TIMEOUT_MAX),
        };
        let all = Shard::all(&exposed, &layout, geometry.clients_max()).ok_or_else(no_shards)?;
        let control = Control::new(Arc::clone(&shared), all.clone(), rules, listener)
            .map_err(|errno| system("epoll")(std::io::Error::from(errno)))?;
        let control = std::thread::Builder::new()
            .name("scalerpc-control".into())
            .spawn(|| control.run())
            .map_err(system("starting a thread"))?;
        let hub = Arc::new(Hub::new(shared, control, claim));
        let shard = |((number, shard), private)| Self::new(number, shard, private, &rules, &hub);
        Ok((0..).zip(all).zip(private).map(shard).collect())
    }

    fn new(number: u32, shard: Shard, private: Mapping, rules: &Rules, hub: &Arc<Hub>) -> Self {
        let geometry = rules.geometry;
        // Between two looks at the completions the engine posts, for each zone, at most the READs of a window,
        // one signaled WRITE for every half of a send queue, which is a window or more, and a switch event.
        let each = geometry.window().div_ceil(SGE_MAX) as usize + 3;
        let completions = each * geometry.pools() as usize * geometry.zones() as usize;
        Self {
            geometry,
            limits: limits(&geometry),
            number,
            shards: rules.layout.shards(),
            exposed: shard.exposed,
            private,
            fence: rules.fence,
            look: match rules.fence.is_expedited() {
                true => WriterFence::Light,
                false => WriterFence::Full,
            },
            seats: (0..geometry.clients_max())
                .map(|_| Seat::default())
                .collect(),
            completions: Completions::new(completions),
            telling: None,
            line: shard.line,
            hub: Arc::clone(hub),
            revocations: 0,
            revocations_pending: 0,
        }
    }

    /// The geometry that all connections share: that of this shard.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Where the memory is. It does not grow with clients: the seats are there from the start.
    pub fn memory_report(&self) -> MemoryReport {
        let exposed = self.exposed.whole().memory();
        MemoryReport {
            exposed_bytes: exposed.len() / self.shards as usize,
            private_bytes: self.private.memory().len(),
            per_seat_bytes: self.geometry.server_bytes_per_client() + SEAT_BYTES,
            backing: exposed.backing().clone(),
            client_bytes: self.hub.shared.counts.client_bytes.get(),
        }
    }

    /// What has happened so far. Takes a lock: not for the data path.
    pub fn counters(&self) -> ServerCounters {
        let counts = &self.hub.shared.counts;
        ServerCounters {
            links_open: counts.links_open.get(),
            seats_free: self.line.free_seats(),
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

    /// The others go on without this shard: the links that have connections here end.
    fn leave(&mut self) {
        let telling = self.telling.take().map(|(news, _)| news);
        let unread = telling.into_iter().chain(self.line.close());
        let unread: Vec<_> = unread.map(|news| Arc::clone(news.link())).collect();
        let seats = self.seats.iter().filter_map(|seat| seat.link.as_ref());
        for link in seats.chain(&unread) {
            self.hub.end(link, self.number);
            // Or else the control thread has not told yet that it is, and will find this shard closed.
            if link.is_fenced() && link.let_go_all(self.number) {
                self.hub.shared.order(Order::Forget(link.id));
            }
        }
    }

    /// The next piece of the news.
    fn tell(&mut self) -> Option<FabricEvent> {
        loop {
            if self.telling.is_none() {
                self.telling = self.line.take_news().map(|news| (news, 0));
            }
            let (news, next) = self.telling.as_mut()?;
            let link = news.link();
            let grant = match news {
                News::Ended(_) => {
                    self.hub.end(link, self.number);
                    None
                }
                News::Opened(_) | News::Gone(_) => link.next_in(self.number, *next),
            };
            let Some((connection, grant)) = grant else {
                self.telling = None;
                continue;
            };
            let seat = self.seats.get_mut(grant.seat as usize)?;
            let event = match news {
                News::Opened(_) => {
                    *seat = Seat {
                        link: Some(Arc::clone(link)),
                        connection,
                        ..Seat::default()
                    };
                    FabricEvent::Opened(Opened {
                        seat: grant.seat,
                        owner: grant.owner,
                        ring_at: self.geometry.ring(connection),
                        staging_at: self.geometry.staging(connection),
                        placement: self.limits.placement,
                    })
                }
                // First the completions are taken.
                _ if seat.pending > 0 => return None,
                _ => {
                    seat.gone = true;
                    FabricEvent::Gone {
                        connection: grant.seat,
                    }
                }
            };
            *next = connection + 1;
            if link.next_in(self.number, *next).is_none() {
                // Not a round later: who holds a link keeps its memory mapped.
                self.telling = None;
            }
            return Some(event);
        }
    }
}

/// Of an end that sleeps as it goes on: a system call that only such clients cost.
#[cold]
fn wake_client(link: &Link) {
    futex::wake(link.region(), link.asleep_at());
}

/// Wakes the data thread.
struct DataThread {
    exposed: Arc<Part>,
    asleep_at: usize,
}

impl Wake for DataThread {
    fn wake(self: Arc<Self>) {
        wake_server(&self.exposed, self.asleep_at);
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

    #[inline(always)]
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
        if asleep::must_wake(to, link.asleep_at(), self.look) {
            wake_client(link);
        }
        if wr.signaled {
            self.complete(wr.connection, wr.wr_id, WcStatus::Success);
        }
        Ok(())
    }

    #[inline(always)]
    fn will_write(&self, connection: u32, end: usize, len: usize) {
        if let Ok(link) = self.up(connection) {
            fetch_ahead(end, len, |line| link.region().prefetch_write(line));
        }
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
        if self.telling.is_none() && !self.line.has_news() {
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
            self.hub.end(link, self.number);
        }
    }

    fn can_sleep(&self) -> bool {
        true
    }

    fn sleep(&mut self, timeout: Duration, found: &dyn Fn(&Region) -> bool) -> Slept {
        if self.completions.is_waiting() || self.telling.is_some() {
            return Slept::NotAtAll;
        }
        let (exposed, at) = (self.exposed.region(), self.geometry.server_asleep());
        asleep::announce(exposed, at);
        // Ordering: full; partner is the fence of `must_wake`, of clients and of other threads.
        exposed.fence_full();
        let slept = match self.line.has_news() || found(exposed) {
            true => Slept::NotAtAll,
            false if futex::sleep(exposed, at, timeout) => Slept::TimedOut,
            false => Slept::Woken,
        };
        asleep::withdraw(exposed, at);
        slept
    }

    fn waker(&self) -> Waker {
        let exposed = Arc::clone(&self.exposed);
        let asleep_at = self.geometry.server_asleep();
        Waker::from(Arc::new(DataThread { exposed, asleep_at }))
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
            self.line.give_back([seat]);
            if link.let_go(self.number) {
                // The control thread has the last reference, and unmaps: that can take long.
                self.hub.shared.order(Order::Forget(link.id));
            }
        }
    }
}

impl Drop for ShmServer {
    fn drop(&mut self) {
        // The last shard leaves it to the control thread to say goodbye.
        if self.hub.is_ours() && Arc::strong_count(&self.hub) > 1 {
            self.leave();
        }
    }
}
