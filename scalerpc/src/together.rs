//! Servers that keep step, for clients that call several of them at once.
//!
//! A client whose operations need several servers waits for the slowest one. Where its turns at these servers come at
//! different times, it waits for all of them. So one server keeps time and the others follow it: each wraps its handler
//! in an [`InStep`], and each follower has a [`TimeFollower`] besides. A client gives every server the same key, with a
//! first call of [`BEAT_METHOD`] on each connection; connections of the same key are served together, at the same time
//! at all servers. See [`scalerpc_core::together`] for how that is done, and how well.
//!
//! It pays where several groups of clients have demand at the same time, and an operation needs several servers. With
//! one group, or where servers have little to do, it changes nothing.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use scalerpc_core::together::{Follower, FollowerCounters, TIME_METHOD, TimeServer};
use scalerpc_core::wire::Status;
use scalerpc_driver::Fabric;
use scalerpc_driver::shm::ShmClient;

pub use scalerpc_core::together::{
    Beat, FollowerConfig, FollowerConfigError, Rotation, RotationError, SliceClock,
    Status as TimeStatus,
};

use crate::client::Client;
use crate::server::{Handler, Reply, Request, Server};
use crate::set::CallId;
use crate::wait::Clock;

/// The method of the call with which a client names its key: 4 bytes, little-endian. The answer is empty.
pub const BEAT_METHOD: u16 = TIME_METHOD - 1;

/// Keys that clients may name between two calls of [`InStep::apply`]: as many as a round has calls.
const NAMED: usize = 64;

/// A handler that also answers what is asked about time and beats; all else goes to the handler that it wraps.
///
/// A time server, and a client that calls it together with others:
///
/// ```
/// use scalerpc::together::{BEAT_METHOD, InStep, Rotation};
/// use scalerpc::{Client, Clock, Request, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("socket");
/// // Slices of 1 ms; the first group has the right of way again after four of them.
/// let rotation = Rotation::new(1_000_000, 4)?;
/// let clock = Clock::start();
/// let echo = |request: Request<'_>, response: &mut [u8]| {
///     response[..request.bytes.len()].copy_from_slice(request.bytes);
///     Ok(request.bytes.len())
/// };
/// let mut server = Server::builder().listen(&path)?;
/// let mut handler = InStep::time_server(echo, clock, rotation);
///
/// let mut client = Client::connect(&path)?;
/// client.call_async(BEAT_METHOD, &7u32.to_le_bytes())?;
/// while client.poll_completion().is_none() {
///     server.poll(clock.now_ns(), &mut handler);
///     handler.apply(&mut server);
/// }
/// assert_eq!(server.beat_of(0), Some(7 % 4));
/// # Ok(())
/// # }
/// ```
pub struct InStep<H> {
    handler: H,
    clock: Clock,
    rotation: Rotation,
    time: Option<TimeServer>,
    begun: bool,
    /// Seats and their keys.
    named: Vec<(u32, u32)>,
}

impl<H: Handler> InStep<H> {
    fn new(handler: H, clock: Clock, rotation: Rotation, time: Option<TimeServer>) -> Self {
        Self {
            handler,
            clock,
            rotation,
            time,
            begun: false,
            named: Vec::with_capacity(NAMED),
        }
    }

    /// Of the server that keeps time. `clock` is the one that its engine is polled with.
    pub fn time_server(handler: H, clock: Clock, rotation: Rotation) -> Self {
        // Random for each start, as the keys of hash tables are.
        let incarnation = RandomState::new().build_hasher().finish();
        let time = TimeServer::new(incarnation, rotation);
        Self::new(handler, clock, rotation, Some(time))
    }

    /// Of a server that follows: it does not tell others the time.
    pub fn follower(handler: H, clock: Clock, rotation: Rotation) -> Self {
        Self::new(handler, clock, rotation, None)
    }

    /// After each round: connections whose clients have named a key get their beats. A time server's slices end with
    /// the beats of its own clock from the first time on.
    pub fn apply<F: Fabric>(&mut self, server: &mut Server<F>) {
        if let Some(time) = self.time.as_ref().filter(|_| !self.begun) {
            server.set_slice_clock(Some(&time.clock()));
            self.begun = true;
        }
        for (seat, key) in self.named.drain(..) {
            server.set_beat(seat, Some(self.rotation.beat_of(key)));
        }
    }

    fn tell_time(&self, request: &[u8], response: &mut [u8]) -> Result<usize, Status> {
        let time = self.time.as_ref().ok_or(Status::UNKNOWN_METHOD)?;
        let now_ns = self.clock.now_ns();
        let answer = time
            .answer(request, now_ns, now_ns)
            .map_err(|_| Status::HANDLER_FAILED)?;
        let place = response
            .get_mut(..answer.len())
            .ok_or(Status::RESPONSE_TOO_LARGE)?;
        place.copy_from_slice(&answer);
        Ok(answer.len())
    }

    fn note_key(&mut self, seat: u32, request: &[u8]) -> Result<usize, Status> {
        let key = request.try_into().map_err(|_| Status::HANDLER_FAILED)?;
        if self.named.len() == NAMED {
            return Err(Status::BUSY);
        }
        self.named.push((seat, u32::from_le_bytes(key)));
        Ok(0)
    }
}

impl<H: Handler> Handler for InStep<H> {
    fn handle(&mut self, request: Request<'_>, response: &mut [u8]) -> Reply {
        match request.method {
            TIME_METHOD => self.tell_time(request.bytes, response).into(),
            BEAT_METHOD => self.note_key(request.seat, request.bytes).into(),
            _ => self.handler.handle(request, response),
        }
    }
}

/// Follows the time server over a connection of its own to it.
///
/// In the loop that polls the server:
///
/// ```no_run
/// # use scalerpc::together::{InStep, TimeFollower};
/// # use scalerpc::{Clock, Handler, Server};
/// # fn serve(mut server: Server, mut handler: InStep<impl Handler>, mut follower: TimeFollower, clock: Clock) {
/// loop {
///     server.poll(clock.now_ns(), &mut handler);
///     handler.apply(&mut server);
///     if follower.poll(&clock) {
///         server.set_slice_clock(Some(follower.clock()));
///     }
/// }
/// # }
/// ```
pub struct TimeFollower<F: Fabric = ShmClient> {
    client: Client<F>,
    follower: Follower,
    call: Option<CallId>,
}

impl<F: Fabric> TimeFollower<F> {
    /// Follows the time server at the other end of `client`'s connection, which must have the same rotation.
    ///
    /// # Errors
    ///
    /// [`FollowerConfigError`] names the number that cannot be used.
    pub fn new(
        client: Client<F>,
        config: FollowerConfig,
        rotation: Rotation,
    ) -> Result<Self, FollowerConfigError> {
        Ok(Self {
            client,
            follower: Follower::new(config, rotation)?,
            call: None,
        })
    }

    /// Asks for the time if it is time to, and takes answers. True if the clock has changed: then the server is to be
    /// told. It neither blocks nor allocates; it is to be called as often as the server is polled, since an answer that
    /// waits counts as a long way back.
    pub fn poll(&mut self, clock: &Clock) -> bool {
        let before = *self.follower.clock();
        while let Some(done) = self.client.poll_completion() {
            let now_ns = clock.now_ns();
            if self.call != Some(done.call) {
                continue;
            }
            self.call = None;
            match done.result {
                // The follower counts what it refuses.
                Ok(answer) => drop(self.follower.answered(now_ns, answer)),
                Err(_) => self.follower.failed(now_ns),
            }
        }
        let now_ns = clock.now_ns();
        if let Some(request) = self.follower.ask(now_ns) {
            if let Some(late) = self.call.take() {
                // Whether it runs or not, nobody waits for its time any more.
                let _ = self.client.cancel(late);
            }
            match self.client.call_async(TIME_METHOD, &request) {
                Ok(call) => self.call = Some(call),
                Err(_) => self.follower.failed(now_ns),
            }
        }
        *self.follower.clock() != before
    }

    /// The common clock, as it is known now.
    pub fn clock(&self) -> &SliceClock {
        self.follower.clock()
    }

    /// How well the time is known.
    pub fn status(&self, clock: &Clock) -> TimeStatus {
        self.follower.status(clock.now_ns())
    }

    /// What happened so far.
    pub fn counters(&self) -> FollowerCounters {
        self.follower.counters()
    }

    /// Another connection, after the one until now was lost: the clock goes on, and is set by the next answer.
    pub fn reconnect(&mut self, client: Client<F>, clock: &Clock) {
        self.client = client;
        self.call = None;
        self.follower.failed(clock.now_ns());
    }
}
