//! What runs calls, and what it is given and says.

use std::cell::Cell;
use std::fmt;

use scalerpc_core::ServerEngine;
use scalerpc_core::server::Call;
use scalerpc_core::wire::Status;
use scalerpc_driver::store::Boxed;

use super::later::{Deferrals, Later, NONE, Postponed};

/// A call, as a handler sees it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// What to run, below [`METHODS_RESERVED`](crate::observe::METHODS_RESERVED): the library answers the others.
    pub method: u16,
    /// The request's bytes.
    pub bytes: &'a [u8],
    /// The seat of the connection that it came from.
    pub seat: u32,
    origin: Option<&'a Origin<'a>>,
}

/// Where a request comes from, if it may be answered later.
pub(super) struct Origin<'a> {
    pub(super) call: &'a Call,
    pub(super) now_ns: u64,
    pub(super) engine: &'a ServerEngine<Boxed>,
    pub(super) deferrals: &'a Deferrals,
    /// The place that the call has been given, or [`NONE`].
    pub(super) taken: Cell<u32>,
}

impl<'a> Request<'a> {
    /// A request that comes from no server, to run a handler by oneself. It cannot be answered later.
    pub fn new(method: u16, bytes: &'a [u8], seat: u32) -> Self {
        Self {
            method,
            bytes,
            seat,
            origin: None,
        }
    }

    /// The same request as one of a server.
    #[inline]
    pub(super) fn with_origin(self, origin: Option<&'a Origin<'a>>) -> Self {
        Self { origin, ..self }
    }

    /// Keeps the call, to answer it later from any thread. The request is copied now, so the handler returns at once, with
    /// the [`Postponed`]; the [`Later`] answers.
    ///
    /// `None` if there is no room: then the handler answers now, with [`Status::BUSY`] if it has to. There is room for
    /// [`ServerBuilder::deferred_max`](crate::ServerBuilder::deferred_max) calls, of which a connection may have at most as
    /// many as are free: so a lone one may have half of them, and one that has none always gets the last.
    /// `None` also if this call is kept already, and where none [can be](Self::can_be_later).
    ///
    /// A handler that has a `Later`, and then answers at once all the same, has answered: what becomes of the `Later` does
    /// not matter any more.
    pub fn later(self) -> Option<(Later, Postponed)> {
        let origin = self.origin.filter(|it| it.taken.get() == NONE)?;
        let later = origin.deferrals.keep(origin, self.bytes)?;
        origin.taken.set(later.place());
        Some((later, Postponed::new()))
    }

    /// True if calls can be kept here at all: there is a server, with a
    /// [`deferred_max`](crate::ServerBuilder::deferred_max).
    #[inline]
    pub fn can_be_later(&self) -> bool {
        self.origin.is_some()
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("bytes", &self.bytes)
            .field("seat", &self.seat)
            .finish()
    }
}

/// What a handler says. A handler that only ever answers at once may say `Result<usize, Status>`, which becomes one.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// It has filled so many bytes of the response buffer.
    Done(usize),
    /// It answers with a status, and no bytes.
    Failed(Status),
    /// It answers later: see [`Request::later`]. One that has not kept this very call is taken to have failed, and the
    /// caller gets [`Status::HANDLER_FAILED`].
    Later(Postponed),
}

impl From<usize> for Reply {
    #[inline]
    fn from(len: usize) -> Self {
        Self::Done(len)
    }
}

impl From<Status> for Reply {
    #[inline]
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

impl From<Postponed> for Reply {
    #[inline]
    fn from(postponed: Postponed) -> Self {
        Self::Later(postponed)
    }
}

// Of no other `Result`: the type of a closure that only ever says `Err` could not be inferred.
impl From<Result<usize, Status>> for Reply {
    #[inline]
    fn from(result: Result<usize, Status>) -> Self {
        match result {
            Ok(len) => Self::Done(len),
            Err(status) => Self::Failed(status),
        }
    }
}

/// Runs calls. Any `FnMut(Request<'_>, &mut [u8])` that returns a [`Reply`], or a `Result<usize, Status>`, is one.
pub trait Handler {
    /// Runs one call; the answer goes into `response`, which has room for the largest one. What is
    /// in it before has no meaning.
    fn handle(&mut self, request: Request<'_>, response: &mut [u8]) -> Reply;
}

impl<F, R> Handler for F
where
    F: FnMut(Request<'_>, &mut [u8]) -> R,
    R: Into<Reply>,
{
    #[inline]
    fn handle(&mut self, request: Request<'_>, response: &mut [u8]) -> Reply {
        self(request, response).into()
    }
}
