//! The server's end.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use scalerpc_core::post::{Completion, Limits, ReadWr, WriteWr};
use scalerpc_core::wire::Placement;
use scalerpc_core::{Geometry, Region};
use scalerpc_hugepage::{Backing, PagePolicy};

use super::asleep::Alarm;
use super::control::{Control, Parts, Rules};
use super::device::{Host, Selection};
use super::error::VerbsError;
use super::failure::Failure;
use super::lanes::{LANE_BYTES, Lanes};
use super::nic::{Ground, Nic, Pages};
use super::plan::{Plan, RECEIVES};
use super::qp::{End, Patience};
use super::resources::{Channel, QueuePair};
use super::setup::{JoinStep, SetupError};
use super::shared::{News, Opening, Order, Shard, Shared};
use super::{DRAIN_TIME, ReliabilityOptions, tcp};
use crate::bell::Bell;
use crate::fabric::{Fabric, FabricEvent, Opened, PostError, Revocation, Slept};

/// What a server can be told besides its geometry.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Device, port, GID and MTU; what is not chosen is found.
    pub selection: Selection,
    /// Pages of the server's memory.
    pub page_policy: PagePolicy,
    /// NUMA node of the server's memory; `None` for the kernel's choice.
    pub numa_node: Option<u32>,
    /// Messages carry checksums even if both ends' devices place the bytes of a WRITE in order.
    pub checksums: bool,
    /// When a peer that does not answer is given up.
    pub reliability: ReliabilityOptions,
    /// Links (client processes, as a rule) that may be open at once.
    pub links_max: u32,
    /// Handshakes that may be under way at once; more clients wait in the listener's backlog.
    pub handshakes_max: u32,
    /// Time for a client to do its next step of the handshake.
    pub handshake_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            selection: Selection::default(),
            page_policy: PagePolicy::Prefer,
            numa_node: None,
            checksums: false,
            reliability: ReliabilityOptions::default(),
            links_max: 4096,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(5),
        }
    }
}

/// Where a server's memory is, and what its device does. See [`VerbsServer::report`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Bytes that clients write: demand map, endpoint table, pools. Fixed.
    pub exposed_bytes: usize,
    /// Bytes of the send slots. Fixed.
    pub private_bytes: usize,
    /// Pages of the exposed memory, and why they are not what was preferred.
    pub backing: Backing,
    /// The device.
    pub device: String,
    /// Completion queues.
    pub completion_queues: u32,
    /// Work requests that a connection may have outstanding.
    pub sq_depth: u32,
    /// Bytes that go inline.
    pub inline_max: u32,
    /// Whether messages carry checksums in any case, or the order of bytes is relied on with clients whose devices
    /// keep it, too.
    pub placement: Placement,
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
    /// Connections that were fenced.
    pub fenced: u64,
    /// Times that a port of the device went up or down.
    pub port_events: u64,
    /// Times that the device failed.
    pub device_events: u64,
}

/// The server's end of the back end over verbs.
///
/// Dropping it ends all connections.
#[derive(Debug)]
pub struct VerbsServer {
    geometry: Geometry,
    limits: Limits,
    report: Report,
    address: SocketAddr,
    lanes: Lanes,
    alarm: Alarm,
    /// By seat: the client's address, while there is one.
    peers: Box<[Option<SocketAddr>]>,
    shard: Arc<Shard>,
    shared: Arc<Shared>,
    control: Option<ControlThread>,
}

impl VerbsServer {
    /// Opens a device, makes the server's memory, and begins to admit clients that connect to `address` over TCP.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names what failed and what helps.
    pub fn listen(
        address: impl ToSocketAddrs + std::fmt::Debug,
        geometry: Geometry,
        options: &ServerOptions,
    ) -> Result<Self, SetupError> {
        Self::listen_with(&Host::load()?, address, geometry, options)
    }

    /// As [`listen`](Self::listen), with devices from elsewhere.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn listen_with(
        host: &Host,
        address: impl ToSocketAddrs + std::fmt::Debug,
        geometry: Geometry,
        options: &ServerOptions,
    ) -> Result<Self, SetupError> {
        if options.links_max == 0 || options.handshakes_max == 0 {
            let what = "links_max and handshakes_max must be at least 1";
            return Err(SetupError::BadRequest { what });
        }
        // First the address, so that nothing large is made in vain.
        let (listener, address) = listen_at(&tcp::resolve(address)?)?;
        let patience = Patience::of(&options.reliability)?;
        let nic = Nic::open(
            host,
            &options.selection,
            address.ip(),
            End::Server,
            patience,
        )?;
        let seats = geometry.clients_max();
        let bytes = (
            geometry.server_exposed_bytes(),
            geometry.server_private_bytes(),
        );
        let pages = Pages {
            policy: options.page_policy,
            node: options.numa_node,
        };
        let channel = nic.channel()?;
        let ground = nic.ground(Some(&channel), &geometry, seats, bytes, pages)?;
        let in_order = !options.checksums && nic.places_in_order(&ground)?;
        let limits = limits(&ground.plan, ground.inline, in_order);
        let report = Report::of(&nic, &ground, limits.placement);
        let rules = Rules {
            geometry,
            plan: ground.plan,
            inline: ground.inline,
            in_order,
            remote: ground.remote(bytes.0),
            links_max: options.links_max,
            handshakes_max: options.handshakes_max,
            handshake_timeout: options.handshake_timeout.min(super::TIMEOUT_MAX),
        };
        let shard = Arc::new(Shard::new(seats));
        let (shared, alarm, control) =
            start(nic, (&ground, channel), rules, &shard, (listener, address))?;
        Ok(Self {
            geometry,
            limits,
            report,
            address,
            alarm,
            lanes: ground.lanes(geometry, seats),
            peers: (0..seats).map(|_| None).collect(),
            shard,
            shared,
            control: Some(control),
        })
    }

    /// The geometry that all connections share.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Where it listens: with the port that the system chose, if that was left to it.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it runs on.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What has happened so far. Takes a lock: not for the data path.
    pub fn counters(&self) -> ServerCounters {
        let counts = &self.shared.counts;
        ServerCounters {
            links_open: counts.links_open.get(),
            seats_free: self.shard.free_seats(),
            links_admitted: counts.links_admitted.get(),
            refused: counts.refused.get(),
            violations: counts.violations.get(),
            abandoned: counts.abandoned.get(),
            fenced: counts.fenced.get(),
            port_events: counts.port_events.get(),
            device_events: counts.device_events.get(),
        }
    }

    /// The last verb that failed for a client: the client is told its error number only.
    pub fn last_error(&self) -> Option<VerbsError> {
        self.shared.counts.last_error().clone()
    }

    /// The address of the client that has a seat; `None` if the seat is free.
    pub fn peer(&self, seat: u32) -> Option<SocketAddr> {
        *self.peers.get(seat as usize)?
    }

    /// The last connection that failed at this end.
    pub fn last_failure(&self) -> Option<Failure> {
        self.lanes.last_failure()
    }

    fn open(&mut self, opening: &Opening) -> FabricEvent {
        if let Some(peer) = self.peers.get_mut(opening.seat as usize) {
            *peer = Some(opening.peer);
        }
        self.lanes.attach(opening.seat, opening.qp, opening.remote);
        FabricEvent::Opened(Opened {
            seat: opening.seat,
            owner: opening.owner,
            ring_at: self.geometry.ring(opening.number),
            staging_at: self.geometry.staging(opening.number),
            placement: opening.placement,
        })
    }

    /// Queue pairs that are drained may be destroyed, and those that failed by themselves have to be ended.
    fn pass_on(&mut self) {
        while let Some(seat) = self.lanes.take_failed() {
            self.shared.order(Order::Fail(seat));
        }
        while let Some(seat) = self.lanes.take_drained() {
            self.shared.order(Order::Destroy(seat));
        }
    }
}

impl Report {
    fn of(nic: &Nic, ground: &Ground, placement: Placement) -> Self {
        let memory = ground.exposed.mapping().memory();
        Self {
            exposed_bytes: memory.len(),
            private_bytes: ground.private.mapping().memory().len(),
            backing: memory.backing().clone(),
            device: nic.device().name().to_owned(),
            completion_queues: ground.plan.queues,
            sq_depth: ground.plan.sq_depth,
            inline_max: ground.inline,
            placement,
        }
    }
}

type ControlThread = JoinHandle<Vec<(u32, QueuePair)>>;

/// Starts the control thread.
fn start(
    nic: Nic,
    (ground, channel): (&Ground, Arc<Channel>),
    rules: Rules,
    shard: &Arc<Shard>,
    (listener, address): (TcpListener, SocketAddr),
) -> Result<(Arc<Shared>, Alarm, ControlThread), SetupError> {
    let system = |call| move |error| SetupError::system(address, JoinStep::Start, call, error);
    let bell = || Bell::new().map_err(system("eventfd"));
    let shared = Arc::new(Shared::new(bell()?));
    let alarm = Alarm::new(ground, channel, Arc::new(bell()?));
    let parts = Parts {
        shared: Arc::clone(&shared),
        shard: Arc::clone(shard),
        nic,
        queues: ground.queues.clone(),
        exposed: Arc::clone(ground.exposed.mapping()),
        bell: Arc::clone(alarm.bell()),
    };
    let control = Control::new(parts, rules, listener).map_err(system("epoll"))?;
    let control = std::thread::Builder::new()
        .name("scalerpc-control".into())
        .spawn(|| control.run())
        .map_err(system("starting a thread"))?;
    Ok((shared, alarm, control))
}

/// Listens at the first address that can be had.
fn listen_at(addresses: &[SocketAddr]) -> Result<(TcpListener, SocketAddr), SetupError> {
    let mut last = None;
    for &address in addresses {
        match TcpListener::bind(address).and_then(|it| Ok((it.local_addr()?, it))) {
            Ok((address, listener)) => return Ok((listener, address)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                last = Some(SetupError::AlreadyInUse { address });
            }
            Err(error) => {
                last = Some(SetupError::system(address, JoinStep::Listen, "bind", error));
            }
        }
    }
    Err(last.unwrap_or(SetupError::BadRequest {
        what: "no address to listen at",
    }))
}

pub(super) fn limits(plan: &Plan, inline: u32, in_order: bool) -> Limits {
    Limits {
        sq_depth: plan.sq_depth,
        sge_max: plan.sge_max,
        inline_max: inline as usize,
        can_revoke: false,
        placement: placement(in_order),
    }
}

pub(super) fn placement(in_order: bool) -> Placement {
    match in_order {
        true => Placement::InOrder,
        false => Placement::AnyOrder,
    }
}

// SAFETY: the two regions are views of mappings that the lanes own and never exchange. The device writes to exposed
// memory what peers WRITE there and what was READ, and nothing to private memory; work requests name ranges that were
// checked against the lengths of both ends.
unsafe impl Fabric for VerbsServer {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn exposed(&self) -> &Region {
        self.lanes.exposed()
    }

    fn private(&self) -> &Region {
        self.lanes.private()
    }

    #[inline]
    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        self.lanes.post_write(wr)
    }

    #[inline]
    fn post_read(&mut self, wr: &ReadWr) -> Result<(), PostError> {
        self.lanes.post_read(wr)
    }

    #[inline]
    fn flush(&mut self) -> Option<u32> {
        self.lanes.flush()
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Completion> {
        self.lanes.poll()
    }

    fn poll_event(&mut self) -> Option<FabricEvent> {
        self.alarm.round(&mut self.lanes);
        self.pass_on();
        while self.shard.has_news() {
            match self.shard.take_news()? {
                News::Opened(opening) => return Some(self.open(&opening)),
                News::Failed { seat, flushes } => {
                    self.lanes.set_down(seat);
                    if !flushes || !self.lanes.drain(seat) {
                        self.lanes.give_up(seat);
                    }
                    self.pass_on();
                }
                // So nothing is left in a queue of a queue pair that had the seat.
                News::Destroyed(connection) => {
                    self.alarm.take_received(&mut self.lanes);
                    return Some(FabricEvent::Gone { connection });
                }
                News::Abandoned(seat) => {
                    self.alarm.take_received(&mut self.lanes);
                    self.lanes.detach(seat);
                    self.shard.give_back([seat]);
                }
            }
        }
        None
    }

    /// There is no way to take a zone from a client but to end its connection.
    fn revoke_all(&mut self, _: &mut [Revocation]) {}

    fn close(&mut self, connection: u32) {
        self.lanes.set_down(connection);
        self.shared.order(Order::Fail(connection));
    }

    fn can_sleep(&self) -> bool {
        true
    }

    fn sleep(&mut self, timeout: Duration, found: &dyn Fn(&Region) -> bool) -> Slept {
        let shard = &self.shard;
        let found = |lanes: &Lanes| shard.has_news() || found(lanes.exposed());
        self.alarm.sleep(&mut self.lanes, timeout, found)
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(self.alarm.bell()))
    }

    fn bytes_per_connection(&self) -> usize {
        let entries = self.report.sq_depth as usize + 1 + RECEIVES as usize;
        // A completion takes 64 bytes in most devices' queues.
        LANE_BYTES + size_of::<Option<SocketAddr>>() + entries * 64
    }

    fn release(&mut self, seat: u32) {
        if let Some(peer) = self.peers.get_mut(seat as usize) {
            if peer.take().is_some() {
                self.lanes.detach(seat);
                self.shard.give_back([seat]);
            }
        }
    }
}

impl Drop for VerbsServer {
    fn drop(&mut self) {
        self.shared.stop();
        let Some(control) = self.control.take() else {
            return;
        };
        // A panic of the thread has been reported already; it has destroyed the queue pairs.
        let pairs = control.join().unwrap_or_default();
        drain(&mut self.lanes, pairs.iter().map(|(seat, _)| *seat));
        drop(pairs);
    }
}

/// Waits until the queue pairs of these connections, all of them in ERR, have flushed what they had to do; but not for
/// ever.
pub(super) fn drain(lanes: &mut Lanes, connections: impl Iterator<Item = u32> + Clone) {
    for connection in connections.clone() {
        lanes.set_down(connection);
        if !lanes.drain(connection) {
            lanes.give_up(connection);
        }
    }
    let until = Instant::now() + DRAIN_TIME;
    while !connections.clone().all(|it| lanes.is_over(it)) && Instant::now() < until {
        if lanes.poll().is_none() {
            std::thread::yield_now();
        }
    }
}
