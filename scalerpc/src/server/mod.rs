//! The server: the engine, a back end, and the caller's handler.

mod admission;
mod builder;
mod handler;
mod later;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;
mod rest;
mod watch;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use scalerpc_core::post::{ReadWr, WriteWr};
use scalerpc_core::scheduler::Follower;
use scalerpc_core::server::{
    Action, Call, Class, Counters, OpenConn, Priority, Quick, ServerEngine, ServerSizes,
};
use scalerpc_core::together::SliceClock;
use scalerpc_core::wire::{Status, Violation};
use scalerpc_core::{Geometry, Mapping, Memory, Region};
use scalerpc_driver::shm::{MemoryReport, ShmServer};
use scalerpc_driver::store::Boxed;
use scalerpc_driver::{Fabric, FabricEvent, PostError, Revocation};

use crate::observe::{METHODS_RESERVED, WorkerPlace};
use crate::wait::{Wait, WaitCounters};
use handler::Origin;
use later::{Deferrals, NONE};

pub use builder::ServerBuilder;
pub use handler::{Handler, Reply, Request};
pub use later::{Later, Postponed};

/// Connections that may come or go in one round: thousands at once must not hold up the others.
const EVENTS: usize = 32;
/// Revocations that are asked for together.
const REVOCATIONS: usize = 16;

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

/// Serves calls. It does nothing unless it is polled, and blocks only in [`wait`](Server::wait) and
/// [`run`](Server::run).
pub struct Server<F: Fabric = ShmServer> {
    engine: ServerEngine<Boxed>,
    fabric: F,
    scratch: Option<Box<[u8]>>,
    /// Calls that are answered later; `None`: there are none.
    deferrals: Option<Box<Deferrals>>,
    last_eviction: Option<Eviction>,
    place: WorkerPlace,
    observable: bool,
    watch: watch::Watch,
    #[cfg(feature = "metrics")]
    published: metrics::Published,
    /// Scratch for `poll`.
    revocations: [Revocation; REVOCATIONS],
    wait: Wait,
    waits: WaitCounters,
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
    /// connections come and go, when the tenancy of a client that does not answer is revoked, and to wake a
    /// client that sleeps.
    ///
    /// With the feature `tracing` it tells the program's subscriber of connections that open, go and are evicted, of slow
    /// rounds and, at level trace, of context switches.
    ///
    /// What other threads have [answered](Later) is sent first.
    ///
    /// A handler that panics is answered for with [`Status::HANDLER_FAILED`]; then the panic goes on.
    /// Requests are read in place, which rests on clients that keep to the protocol: see
    /// [`ServerBuilder::copy_requests`].
    pub fn poll(&mut self, now_ns: u64, handler: &mut impl Handler) -> usize {
        self.watch.begin(now_ns, &self.engine);
        let mut done = self.take_events() + self.take_completions();
        if self.has_answers() {
            done += self.send_answers();
        }
        let mut revoking = 0;
        loop {
            if self.engine.begin_round(now_ns) {
                let (exposed, private) = (self.fabric.exposed(), self.fabric.private());
                if let Some(action) = self.engine.next_house(exposed, private) {
                    self.act(action, now_ns, handler, &mut revoking);
                    done += 1;
                    continue;
                }
            }
            match self.engine.next_quick(self.fabric.exposed()) {
                Quick::Call(call) if call.method < METHODS_RESERVED => {
                    self.run_handler(call, now_ns, handler);
                }
                Quick::Call(call) => self.answer_reserved(call),
                Quick::Idle => break,
                Quick::Other => {
                    let (exposed, private) = (self.fabric.exposed(), self.fabric.private());
                    match self.engine.next_other(exposed, private) {
                        Action::Idle => break,
                        action => self.act(action, now_ns, handler, &mut revoking),
                    }
                }
            }
            done += 1;
        }
        if revoking > 0 {
            self.revoke_all(revoking);
        }
        self.flush();
        self.watch.end(done, &self.engine);
        done
    }

    /// Does what is not a plain call.
    #[inline(never)]
    fn act(
        &mut self,
        action: Action,
        now_ns: u64,
        handler: &mut impl Handler,
        revoking: &mut usize,
    ) {
        match action {
            Action::Idle => {}
            Action::Call(call) if call.method >= METHODS_RESERVED => self.answer_reserved(call),
            Action::Call(call) => self.run_handler(call, now_ns, handler),
            Action::Write(write) => self.post_alone(&write),
            Action::Read(read) => self.post_read(&read),
            Action::Revoke { seat, epoch } => {
                if *revoking == REVOCATIONS {
                    self.revoke_all(*revoking);
                    *revoking = 0;
                }
                self.revocations[*revoking] = Revocation {
                    seat,
                    epoch,
                    done: false,
                };
                *revoking += 1;
            }
            Action::Close { seat, why } => {
                self.last_eviction = Some(Eviction { seat, why });
                self.watch.evicted(Eviction { seat, why });
                self.abandon(seat);
                self.fabric.close(seat);
            }
        }
    }

    /// It is one of the workers of a server.
    pub(crate) fn set_place(&mut self, worker: usize, workers: usize) {
        self.place = WorkerPlace {
            worker: worker as u16,
            workers: workers as u16,
        };
    }

    /// A worker's look at the board, after a round.
    #[inline]
    pub(crate) fn follow(&mut self, follower: &mut Follower, board: &Region) {
        follower.follow(&mut self.engine, board);
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
                    if accepted {
                        self.watch.opened(opened.seat);
                    } else {
                        self.fabric.close(opened.seat);
                    }
                }
                FabricEvent::Gone { connection } => {
                    self.abandon(connection);
                    self.engine.gone(connection);
                    self.fabric.release(connection);
                    self.watch.gone(connection);
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

    fn abandon(&self, seat: u32) {
        if let Some(deferrals) = &self.deferrals {
            deferrals.abandon(seat);
        }
    }

    /// A WRITE that answers no call that was handed out: a switch event, or a refusal.
    #[cold]
    fn post_alone(&mut self, write: &WriteWr) {
        self.post_write(write);
    }

    #[inline(always)]
    fn run_handler(&mut self, call: Call, now_ns: u64, handler: &mut impl Handler) {
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
        let origin = self.deferrals.as_deref().map(|deferrals| Origin {
            call: &call,
            now_ns,
            engine: &self.engine,
            deferrals,
            taken: Cell::new(NONE),
        });
        let request = Request::new(call.method, bytes, call.seat).with_origin(origin.as_ref());
        // A handler that panics has answered, too: nobody waits for ever, and the send slot comes back.
        let outcome = catch_unwind(AssertUnwindSafe(|| handler.handle(request, response)));
        let (status, len) = match &outcome {
            Ok(Reply::Done(len)) => (Status::OK, *len),
            Ok(Reply::Failed(status)) => (*status, 0),
            Ok(Reply::Later(_)) => {
                let place = origin.map_or(NONE, |origin| origin.taken.get());
                if place != NONE {
                    return self.defer(call, place);
                }
                (Status::HANDLER_FAILED, 0)
            }
            Err(_) => (Status::HANDLER_FAILED, 0),
        };
        let seat = call.seat;
        if let Some(write) = self.engine.reply(call, status, len, exposed, private) {
            self.post_write(&write);
            if let Some(end) = self.engine.later_target(seat) {
                self.fabric.will_write(seat, end, write.len);
            }
        }
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    #[inline(always)]
    fn post_write(&mut self, write: &WriteWr) {
        if let Err(error) = self.fabric.post_write(write) {
            self.not_posted(*write, error);
        }
    }

    // By value: so that it is in memory only here.
    #[cold]
    fn not_posted(&mut self, write: WriteWr, error: PostError) {
        let mut posted = Err(error);
        if error == PostError::QueueFull {
            // Of the back end, not of the connection, which counts: completions make room.
            self.take_completions();
            posted = self.fabric.post_write(&write);
        }
        self.posted(write.connection, posted);
    }

    #[cold]
    fn post_read(&mut self, read: &ReadWr) {
        let mut posted = self.fabric.post_read(read);
        if posted == Err(PostError::QueueFull) {
            self.take_completions();
            posted = self.fabric.post_read(read);
        }
        self.posted(read.connection, posted);
    }

    /// What a post says of its connection: that of a client which has just left is down, which is no failure.
    #[cold]
    fn posted(&mut self, seat: u32, result: Result<(), PostError>) {
        match result {
            Ok(()) => {}
            Err(PostError::Down) => drop(self.engine.left(seat)),
            Err(PostError::QueueFull | PostError::Revoked) => self.engine.failed(seat),
        }
    }

    /// How long a group is served while others wait, as things are now: see [`ServerBuilder::time_slice`].
    pub fn time_slice(&self) -> Duration {
        Duration::from_nanos(self.engine.time_slice_ns())
    }

    /// What a switch costs, as measured; zero where slices have a fixed length, or nothing was measured yet.
    pub fn switch_cost(&self) -> Duration {
        Duration::from_nanos(self.engine.switch_cost_ns())
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

    /// Slices end with the beats of this clock: see [`together`](crate::together). It is to be told whenever the clock has
    /// changed. With `None`, slices end when they have lasted long enough.
    pub fn set_slice_clock(&mut self, clock: Option<&SliceClock>) {
        self.engine.set_slice_clock(clock);
    }

    /// Has a connection served in this beat of the rotation first, together with others of the same beat, until it
    /// ends; with `None`, in any. False if there is no such connection.
    pub fn set_beat(&mut self, seat: u32, beat: Option<u16>) -> bool {
        self.engine.set_beat(seat, beat)
    }

    /// The beat of a connection, if it has one.
    pub fn beat_of(&self, seat: u32) -> Option<u16> {
        self.engine.beat_of(seat)
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
            + sizes.seats * back_end
            + self.deferrals.as_ref().map_or(0, |it| it.bytes(geometry));
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
