//! Many connections that one thread polls.

mod options;
mod polling;
mod waiting;

use std::collections::VecDeque;

use scalerpc_core::client::{
    CallError as Refused, ClientConn, ClientCounters, ClientEngine, ClientState,
};
use scalerpc_core::post::{Completion as WorkCompletion, WriteWr};
use scalerpc_core::wire::{Status, Violation};
use scalerpc_core::{Geometry, Mapping, Store};
use scalerpc_driver::shm::ShmClient;
use scalerpc_driver::store::{self, Boxed};
use scalerpc_driver::{Fabric, FabricEvent, PostError};

use crate::error::{CallError, SetupError};
use crate::wait::{Clock, Wait, WaitCounters};

pub use options::CallOptions;

/// See [`ClientSet::set_polls_per_check`].
const POLLS_PER_CHECK: u32 = 4096;
const NOT_LISTED: u32 = u32::MAX;

/// Names a call of one connection: its number, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What [`ClientSet::call_batch`] took: the calls `first`, `first` + 1, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The first one; the others follow it.
    pub first: CallId,
    /// How many there are.
    pub count: u32,
}

/// A call that has ended.
#[derive(Debug)]
pub struct Completion<'a> {
    /// The connection's number.
    pub connection: u32,
    /// The call.
    pub call: CallId,
    /// The answer's bytes, in place; or how it ended without one.
    pub result: Result<&'a [u8], CallError>,
}

/// A completion that was taken while another call was waited for.
struct Stashed {
    connection: u32,
    call: CallId,
    result: Result<Vec<u8>, CallError>,
}

/// A completion whose bytes are still where the server put them.
struct Ended {
    connection: u32,
    call: CallId,
    result: Result<(usize, usize), CallError>,
}

/// What has to be known of a busy connection to see that there is nothing new: a look at hundreds of
/// waiting connections costs little more than the loads of the words they wait for.
#[derive(Clone, Copy, Debug)]
struct Busy {
    connection: u32,
    /// Something is to be posted.
    post: bool,
    /// Where the next message's `valid` word is, and what it will be.
    awaited_at: usize,
    awaited: u64,
}

impl Busy {
    #[inline(always)]
    fn of<S: Store>(connection: u32, engine: &ClientEngine<S>, post: bool) -> Self {
        let (awaited_at, awaited) = engine.awaited();
        Self {
            connection,
            post,
            awaited_at,
            awaited,
        }
    }

    #[inline]
    fn post<S: Store>(engine: &ClientEngine<S>) -> bool {
        engine.state() == ClientState::Lost || engine.wants_to_post()
    }
}

/// Connections to one server that one thread polls: hundreds are normal.
///
/// The bytes of a completion are where the server put them, so until it is let go of the set does nothing else, nor ends:
///
/// ```compile_fail,E0499
/// fn two(set: &mut scalerpc::ClientSet) {
///     let completions = (set.poll_completion(), set.poll_completion());
///     drop(completions);
/// }
/// ```
///
/// ```compile_fail,E0505
/// fn late(mut set: scalerpc::ClientSet) {
///     let completion = set.poll_completion();
///     drop(set);
///     drop(completion);
/// }
/// ```
pub struct ClientSet<F: Fabric = ShmClient> {
    fabric: F,
    geometry: Geometry,
    engines: Vec<ClientEngine<Boxed>>,
    /// For calls with a deadline.
    clock: Clock,
    /// Connections that are to be polled; each at most once.
    busy: Vec<Busy>,
    /// By connection: its place in `busy`, or NOT_LISTED.
    listed: Vec<u32>,
    cursor: usize,
    /// Answers that were taken in a row from the connection at the cursor.
    burst: u32,
    idle_polls: u32,
    polls_per_check: u32,
    /// Completions that had to make room at once. Within a connection they come in order, and a later one
    /// covers the earlier ones, so their order here does not matter.
    late: Vec<WorkCompletion>,
    last_violation: Option<Violation>,
    /// What a look has found that is no plain answer.
    ended: Option<Ended>,
    stash: VecDeque<Stashed>,
    wait: Wait,
    waits: WaitCounters,
    /// Holds the bytes of the stashed completion that was given out last.
    given: Vec<u8>,
}

impl<F: Fabric> ClientSet<F> {
    /// Connections over another back end; they are numbered in the order of `conns`.
    ///
    /// # Errors
    ///
    /// [`SetupError::WindowTooDeep`] if the back end cannot hold a window of work requests.
    pub fn over(fabric: F, geometry: Geometry, conns: &[ClientConn]) -> Result<Self, SetupError> {
        let limits = fabric.limits();
        let numbered = (0..).zip(conns).map(|(connection, conn)| ClientConn {
            connection,
            ..*conn
        });
        let engines: Option<Vec<_>> = numbered
            .map(|conn| store::client_engine(geometry, limits, conn))
            .collect();
        let engines = engines.ok_or(SetupError::WindowTooDeep {
            window: geometry.window(),
        })?;
        Ok(Self {
            fabric,
            geometry,
            busy: Vec::with_capacity(engines.len()),
            listed: vec![NOT_LISTED; engines.len()],
            engines,
            clock: Clock::start(),
            cursor: 0,
            burst: 0,
            idle_polls: 0,
            polls_per_check: POLLS_PER_CHECK,
            late: Vec::new(),
            last_violation: None,
            ended: None,
            stash: VecDeque::new(),
            wait: Wait::default(),
            waits: WaitCounters::default(),
            given: Vec::new(),
        })
    }

    /// Number of connections.
    pub fn len(&self) -> u32 {
        self.engines.len() as u32
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.engines.is_empty()
    }

    /// The server's sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The state of a connection.
    ///
    /// # Panics
    ///
    /// If there is no connection of that number; so do all methods that take one.
    pub fn state(&self, connection: u32) -> ClientState {
        self.engines[connection as usize].state()
    }

    /// Calls of a connection that have not ended.
    pub fn outstanding(&self, connection: u32) -> u32 {
        self.engines[connection as usize].outstanding()
    }

    /// What happened so far on a connection.
    pub fn counters(&self, connection: u32) -> ClientCounters {
        self.engines[connection as usize].counters()
    }

    /// Makes a call, and does not wait for it. Its completion comes out of
    /// [`poll_completion`](Self::poll_completion).
    ///
    /// While the connection is served the request is sent at once, else with the next poll. Over verbs it is always
    /// sent with the next poll, or by [`flush`](Self::flush): together with others for the same connection.
    ///
    /// # Errors
    ///
    /// [`CallError::TooLarge`], [`CallError::WindowFull`] or [`CallError::NotSent`]: the call was not
    /// accepted, and nothing will come of it.
    pub fn call_async(
        &mut self,
        connection: u32,
        method: u16,
        request: &[u8],
    ) -> Result<CallId, CallError> {
        let engine = &mut self.engines[connection as usize];
        let id = match engine.call_direct(method, request, 0, self.fabric.private()) {
            Ok((number, Some(write))) => {
                let later = engine.later_target();
                let posted = self.fabric.post_write(&write);
                if let Some(end) = later {
                    self.fabric.will_write(connection, end, write.len);
                }
                if posted.is_err() {
                    self.post_rest(connection, write, posted);
                    self.list(connection);
                } else {
                    self.list_as(connection, false);
                }
                return Ok(CallId(number));
            }
            Ok((number, None)) => CallId(number),
            Err(error) => self.accept_later(connection, method, request, error)?,
        };
        if self.engines[connection as usize].state() == ClientState::Process {
            self.post(connection);
        }
        self.list(connection);
        Ok(id)
    }

    /// Makes several calls; a connection that is not served yet sends them as one batch.
    ///
    /// # Errors
    ///
    /// If not even the first one was accepted, why. Else [`Accepted`] says how many were; the rest was
    /// not, because of the window or because the next one is too large.
    pub fn call_batch<'a>(
        &mut self,
        connection: u32,
        calls: impl IntoIterator<Item = (u16, &'a [u8])>,
    ) -> Result<Accepted, CallError> {
        let mut accepted = Accepted {
            first: CallId(0),
            count: 0,
        };
        for (method, request) in calls {
            match self.accept(connection, method, request) {
                Ok(id) if accepted.count == 0 => {
                    accepted = Accepted {
                        first: id,
                        count: 1,
                    }
                }
                Ok(_) => accepted.count += 1,
                Err(error) if accepted.count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.post(connection);
        self.list(connection);
        self.flush();
        Ok(accepted)
    }

    fn accept(
        &mut self,
        connection: u32,
        method: u16,
        request: &[u8],
    ) -> Result<CallId, CallError> {
        let private = self.fabric.private();
        match self.engines[connection as usize].call(method, request, 0, private) {
            Ok(number) => Ok(CallId(number)),
            Err(error) => self.accept_later(connection, method, request, error),
        }
    }

    /// The engine has refused a call; what it waited for may have come meanwhile.
    #[cold]
    fn accept_later(
        &mut self,
        connection: u32,
        method: u16,
        request: &[u8],
        error: Refused,
    ) -> Result<CallId, CallError> {
        if !self.waits_for_slot(connection) {
            return Err(error.into());
        }
        self.take_completions();
        let private = self.fabric.private();
        let number = self.engines[connection as usize].call(method, request, 0, private)?;
        Ok(CallId(number))
    }

    /// True if a call may have to wait for the completion of a WRITE whose call has been answered.
    fn waits_for_slot(&self, connection: u32) -> bool {
        let engine = &self.engines[connection as usize];
        engine.state() != ClientState::Lost && engine.outstanding() < self.geometry.window()
    }

    /// Sees to it that a connection with outstanding calls is polled. What a listed one waits for changes only when it
    /// is polled.
    fn list(&mut self, connection: u32) {
        let post = Busy::post(&self.engines[connection as usize]);
        self.list_as(connection, post);
    }

    /// As [`list`](Self::list), where it is known whether something is to be posted.
    #[inline(always)]
    fn list_as(&mut self, connection: u32, post: bool) {
        let listed = &mut self.listed[connection as usize];
        match *listed {
            NOT_LISTED => {
                *listed = self.busy.len() as u32;
                let engine = &self.engines[connection as usize];
                self.busy.push(Busy::of(connection, engine, post));
            }
            at => self.busy[at as usize].post = post,
        }
    }

    /// Something about the connection has changed: what its place in the list says may be out of date.
    fn relist(&mut self, connection: u32) {
        if self.listed[connection as usize] != NOT_LISTED {
            self.list(connection);
        }
    }

    fn unlist(&mut self, at: usize) {
        let gone = self.busy.swap_remove(at);
        self.listed[gone.connection as usize] = NOT_LISTED;
        if let Some(moved) = self.busy.get(at) {
            self.listed[moved.connection as usize] = at as u32;
        }
    }

    /// Posts what a connection has to send.
    #[inline(never)]
    fn post(&mut self, connection: u32) {
        let engine = &mut self.engines[connection as usize];
        if engine.wants_time() {
            engine.pass(self.clock.now_ns());
        }
        loop {
            let engine = &mut self.engines[connection as usize];
            let Some(write) = engine.next_write(self.fabric.exposed(), self.fabric.private())
            else {
                return;
            };
            let posted = self.fabric.post_write(&write);
            if !self.is_posted(write, posted) {
                return;
            }
        }
    }

    /// What is left to do when the WRITE of a call was not posted at once.
    #[cold]
    fn post_rest(&mut self, connection: u32, write: WriteWr, posted: Result<(), PostError>) {
        if self.is_posted(write, posted) {
            self.post(connection);
        }
    }

    /// What becomes of a WRITE that the back end may have refused. False if the connection has ended.
    fn is_posted(&mut self, write: WriteWr, mut posted: Result<(), PostError>) -> bool {
        if posted == Err(PostError::QueueFull) {
            // Of the back end, not of the connection, which counts: completions make room.
            while let Some(completion) = self.fabric.poll_completion() {
                self.late.push(completion);
            }
            posted = self.fabric.post_write(&write);
        }
        let Err(error) = posted else {
            return true;
        };
        if write.epoch.is_some() {
            self.engines[write.connection as usize].refused();
        }
        if error != PostError::Revoked {
            self.end(write.connection);
        }
        error == PostError::Revoked
    }

    /// The connection cannot go on from this side.
    #[cold]
    fn end(&mut self, connection: u32) {
        self.engines[connection as usize].lost();
        self.fabric.close(connection);
        self.relist(connection);
    }

    /// Takes the completion of a call that has ended, of whichever connection; `None` if there is none
    /// now. It neither blocks nor allocates (but for completions that a waiting [`call`](Self::call) put
    /// aside), and makes no system call while there is something to do.
    ///
    /// The bytes of the answer are read in place. Whoever wants to keep them copies them.
    pub fn poll_completion(&mut self) -> Option<Completion<'_>> {
        if !self.stash.is_empty() {
            return self.stashed();
        }
        let Some((connection, answer)) = self.poll_answer() else {
            return self.other();
        };
        Some(Completion {
            connection,
            call: CallId(answer.call),
            result: match answer.status {
                Status::OK => Ok(self.bytes(answer.payload_at, answer.payload_len)),
                status => Err(CallError::of(status)),
            },
        })
    }

    /// What a poll has found that is no plain answer.
    #[inline]
    fn other(&mut self) -> Option<Completion<'_>> {
        let Ended {
            connection,
            call,
            result,
        } = self.ended.take()?;
        let result = result.map(|(at, len)| self.bytes(at, len));
        Some(Completion {
            connection,
            call,
            result,
        })
    }

    #[cold]
    fn stashed(&mut self) -> Option<Completion<'_>> {
        let Stashed {
            connection,
            call,
            result,
        } = self.stash.pop_front()?;
        let result = match result {
            Ok(bytes) => {
                self.given = bytes;
                Ok(&*self.given)
            }
            Err(error) => Err(error),
        };
        Some(Completion {
            connection,
            call,
            result,
        })
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: the engine acquired the message's `valid` word. The server writes to the same slot of
        // the ring again only after this client has made further calls, for which the caller has to give
        // up the borrow of `self`.
        unsafe { self.fabric.exposed().bytes(at, len) }
    }

    /// Sends what calls and polls have left to be sent: a back end may collect it. Polling does so by itself.
    #[inline]
    pub fn flush(&mut self) {
        while let Some(connection) = self.fabric.flush() {
            self.end(connection);
        }
    }

    #[inline(always)]
    fn take_completions(&mut self) {
        while let Some(completion) = self.late.pop().or_else(|| self.fabric.poll_completion()) {
            self.completed(completion);
        }
    }

    // Apart: few calls have one, and all look for one.
    #[inline(never)]
    fn completed(&mut self, completion: WorkCompletion) {
        let connection = completion.wr_id.seat();
        if let Some(engine) = self.engines.get_mut(connection as usize) {
            engine.completed(completion);
            self.relist(connection);
        }
    }

    /// After how many fruitless polls in a row the back end is asked whether the server still lives.
    /// Default 4096. The question costs a system call, so a busy client never asks it; who wants it never
    /// to be asked while polling sets `u32::MAX`, and calls [`take_events`](Self::take_events) elsewhere.
    ///
    /// Where more threads want to run than there are cores, so many polls can take seconds: who gives the
    /// core away between polls should call `take_events` by the clock. [`call`](Self::call) does.
    pub fn set_polls_per_check(&mut self, polls: u32) {
        self.polls_per_check = polls;
    }

    /// Asks the back end whether the server is still there. It is asked by itself when nothing comes for
    /// a while.
    pub fn take_events(&mut self) {
        while let Some(event) = self.fabric.poll_event() {
            if let FabricEvent::Gone { connection } = event {
                self.lost(connection);
            }
            self.take_completions();
        }
    }

    fn lost(&mut self, connection: u32) {
        self.engines[connection as usize].lost();
        self.relist(connection);
    }

    /// True if connections have zones of their own for as long as they live.
    pub fn is_static(&self) -> bool {
        self.geometry.mapping() == Mapping::Static
    }

    /// What the server did that the protocol does not allow, if a connection was lost to that.
    pub fn last_violation(&self) -> Option<Violation> {
        self.last_violation
    }

    /// The back end.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }
}
