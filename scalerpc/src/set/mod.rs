//! Many connections that one thread polls.

mod waiting;

use std::collections::VecDeque;

use scalerpc_core::client::{
    Answer, ClientConn, ClientCounters, ClientEngine, ClientState, Failed,
};
use scalerpc_core::post::Completion as WorkCompletion;
use scalerpc_core::wire::{Status, Violation};
use scalerpc_core::{Geometry, Mapping, Memory, Store};
use scalerpc_driver::shm::ShmClient;
use scalerpc_driver::store::{self, Boxed};
use scalerpc_driver::{Fabric, FabricEvent, PostError};

use crate::error::{CallError, SetupError};

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
    fn of<S: Store>(connection: u32, engine: &ClientEngine<S>) -> Self {
        let (awaited_at, awaited) = engine.awaited();
        let lost = engine.state() == ClientState::Lost;
        Self {
            connection,
            post: lost || engine.wants_to_post(),
            awaited_at,
            awaited,
        }
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
    /// Connections that are to be polled; each at most once.
    busy: Vec<Busy>,
    /// By connection: its place in `busy`, or NOT_LISTED.
    listed: Vec<u32>,
    cursor: usize,
    idle_polls: u32,
    polls_per_check: u32,
    /// Completions that had to make room at once. Within a connection they come in order, and a later one
    /// covers the earlier ones, so their order here does not matter.
    late: Vec<WorkCompletion>,
    last_violation: Option<Violation>,
    stash: VecDeque<Stashed>,
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
            cursor: 0,
            idle_polls: 0,
            polls_per_check: POLLS_PER_CHECK,
            late: Vec::new(),
            last_violation: None,
            stash: VecDeque::new(),
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
        let id = self.accept(connection, method, request)?;
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
        let engine = &mut self.engines[connection as usize];
        let mut accepted = engine.call(method, request, 0, self.fabric.private());
        if accepted.is_err() && self.waits_for_slot(connection) {
            // It may have come meanwhile.
            self.take_completions();
            let engine = &mut self.engines[connection as usize];
            accepted = engine.call(method, request, 0, self.fabric.private());
        }
        Ok(CallId(accepted?))
    }

    /// True if a call may have to wait for the completion of a WRITE whose call has been answered.
    fn waits_for_slot(&self, connection: u32) -> bool {
        let engine = &self.engines[connection as usize];
        engine.state() != ClientState::Lost && engine.outstanding() < self.geometry.window()
    }

    /// Sees to it that a connection with outstanding calls is polled.
    fn list(&mut self, connection: u32) {
        let busy = Busy::of(connection, &self.engines[connection as usize]);
        let listed = &mut self.listed[connection as usize];
        match *listed {
            NOT_LISTED => {
                *listed = self.busy.len() as u32;
                self.busy.push(busy);
            }
            at => self.busy[at as usize] = busy,
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

    /// The answer to a call is not wanted any more: its completion will not come out. The call may run
    /// all the same, and its place in the window is taken until the server has answered it.
    ///
    /// False if the call has ended already; its completion may be waiting to be taken.
    pub fn cancel(&mut self, connection: u32, call: CallId) -> bool {
        self.engines[connection as usize].cancel(call.0)
    }

    /// Posts what a connection has to send.
    fn post(&mut self, connection: u32) {
        let engine = &mut self.engines[connection as usize];
        while let Some(write) = engine.next_write(self.fabric.exposed(), self.fabric.private()) {
            let mut posted = self.fabric.post_write(&write);
            if posted == Err(PostError::QueueFull) {
                // Of the back end, not of the connection, which counts: completions make room.
                while let Some(completion) = self.fabric.poll_completion() {
                    self.late.push(completion);
                }
                posted = self.fabric.post_write(&write);
            }
            if let Err(error) = posted {
                if write.epoch.is_some() {
                    engine.refused();
                }
                if error != PostError::Revoked {
                    return self.end(connection);
                }
            }
        }
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
        if let Some(stashed) = self.stash.pop_front() {
            let Stashed {
                connection,
                call,
                result,
            } = stashed;
            let result = match result {
                Ok(bytes) => {
                    self.given = bytes;
                    Ok(&*self.given)
                }
                Err(error) => Err(error),
            };
            return Some(Completion {
                connection,
                call,
                result,
            });
        }
        let Ended {
            connection,
            call,
            result,
        } = self.poll_ended()?;
        let result = result.map(|(at, len)| self.bytes(at, len));
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

    /// One round: looks at every busy connection once, and sends what there is to send.
    fn poll_ended(&mut self) -> Option<Ended> {
        self.take_completions();
        let ended = self.look();
        self.flush();
        ended
    }

    /// Sends what calls and polls have left to be sent: a back end may collect it. Polling does so by itself.
    #[inline]
    pub fn flush(&mut self) {
        while let Some(connection) = self.fabric.flush() {
            self.end(connection);
        }
    }

    /// Looks at every busy connection once, beginning after the one that had the last completion.
    fn look(&mut self) -> Option<Ended> {
        for _ in 0..self.busy.len() {
            if self.cursor >= self.busy.len() {
                self.cursor = 0;
            }
            let Busy {
                connection,
                post,
                awaited_at,
                awaited,
            } = self.busy[self.cursor];
            let news = self.fabric.exposed().load_acquire(awaited_at) == awaited;
            if !news && !post {
                self.cursor += 1;
                continue;
            }
            let ended = self.poll_connection(connection);
            let engine = &self.engines[connection as usize];
            if engine.is_busy() {
                self.busy[self.cursor] = Busy::of(connection, engine);
                self.cursor += 1;
            } else {
                self.unlist(self.cursor);
            }
            if ended.is_some() {
                self.idle_polls = 0;
                return ended;
            }
        }
        self.idle_polls += 1;
        if self.idle_polls >= self.polls_per_check {
            self.idle_polls = 0;
            self.take_events();
        }
        None
    }

    fn poll_connection(&mut self, connection: u32) -> Option<Ended> {
        let engine = &mut self.engines[connection as usize];
        let answer = match engine.poll(self.fabric.exposed()) {
            Ok(answer) => answer,
            Err(why) => {
                // The calls end below.
                self.last_violation = Some(why);
                self.end(connection);
                None
            }
        };
        let engine = &mut self.engines[connection as usize];
        if let Some(Answer {
            call,
            status,
            payload_at,
            payload_len,
            ..
        }) = answer
        {
            // What it makes possible is sent before the caller sees it.
            self.post(connection);
            let result = match status {
                Status::OK => Ok((payload_at, payload_len)),
                status => Err(CallError::Status(status)),
            };
            return Some(Ended {
                connection,
                call: CallId(call),
                result,
            });
        }
        if engine.state() == ClientState::Lost {
            let Failed {
                call, may_have_run, ..
            } = engine.take_failed()?;
            let error = if may_have_run {
                CallError::Unknown
            } else {
                CallError::NotSent
            };
            return Some(Ended {
                connection,
                call: CallId(call),
                result: Err(error),
            });
        }
        self.post(connection);
        None
    }

    #[inline]
    fn take_completions(&mut self) {
        while let Some(completion) = self.late.pop().or_else(|| self.fabric.poll_completion()) {
            let connection = completion.wr_id.seat();
            if let Some(engine) = self.engines.get_mut(connection as usize) {
                engine.completed(completion);
                self.relist(connection);
            }
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
