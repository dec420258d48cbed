//! Calls that are answered later, from any thread.
//!
//! A call that is kept has a place, with a buffer for its request and one for its response, made when the server is.
//! The buffers go round by value, so at any time one party has them:
//!
//! ```text
//!          Request::later            answer, fail, drop            next rounds: resume, reply
//!   free ────────────────▶ with a Later ─────────────▶ in the list ──────────────▶ free
//!   (server)               (any thread)                (server takes all)          (server)
//! ```
//!
//! The engine's token of the call never leaves the server's thread: it waits at the number of the place.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use scalerpc_core::answers::{self, AtomicWords};
use scalerpc_core::server::{Call, Deferred, Resumed};
use scalerpc_core::wire::Status;
use scalerpc_core::{Geometry, Memory};
use scalerpc_driver::Fabric;

use super::Server;
use super::handler::Origin;

/// No place.
pub(super) const NONE: u32 = answers::NONE;

/// Answers of other threads that are sent in one round: as many as a round has calls.
const ROUND_ANSWERS: usize = 64;

/// A call that was kept: its place, its buffers, and what is known of it.
#[derive(Debug)]
struct Kept {
    place: u32,
    seat: u32,
    number: u64,
    method: u16,
    deadline_ns: u64,
    /// Of its budget, when it was kept.
    left_ns: u64,
    request_len: usize,
    request: Box<[u8]>,
    response: Box<[u8]>,
    outcome: Result<usize, Status>,
}

impl Kept {
    fn with_buffers(place: u32, request: Box<[u8]>, response: Box<[u8]>) -> Self {
        Self {
            place,
            seat: 0,
            number: 0,
            method: 0,
            deadline_ns: u64::MAX,
            left_ns: u64::MAX,
            request_len: 0,
            request,
            response,
            outcome: Err(Status::HANDLER_FAILED),
        }
    }

    /// One without buffers, which takes no memory.
    fn hollow() -> Self {
        Self::with_buffers(NONE, Box::default(), Box::default())
    }
}

/// What the server and those who answer share.
#[derive(Debug)]
struct Shared {
    list: AtomicWords<Box<[AtomicU32]>>,
    places: Box<[Place]>,
    waker: Waker,
}

#[derive(Debug)]
struct Place {
    /// On its way back to the server. The list says whose turn it is, so nobody ever waits for the lock.
    answered: Mutex<Kept>,
    /// Nobody waits for the answer. It carries nothing else.
    abandoned: AtomicBool,
}

impl Shared {
    fn put(&self, kept: Kept) {
        let at = kept.place;
        let Some(place) = self.places.get(at as usize) else {
            return;
        };
        *lock(&place.answered) = kept;
        answers::push(&self.list, at);
        // What is pushed comes before the look at whether the server sleeps: the waker has the fence.
        self.waker.wake_by_ref();
    }
}

fn lock(kept: &Mutex<Kept>) -> std::sync::MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that a handler answers later; it comes with the [`Later`] that does. See [`Request::later`](super::Request::later).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the handler is to return it"]
pub struct Postponed(());

impl Postponed {
    pub(super) fn new() -> Self {
        Self(())
    }
}

/// A call that waits for its answer, which any thread may give. It has a copy of the request, and a buffer for the response.
///
/// One that is dropped without an answer is answered with [`Status::HANDLER_FAILED`]. It may outlive its server: then
/// nobody hears the answer.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::sync::mpsc;
/// use scalerpc::{Client, Later, Reply, Request, Server, Status};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("socket");
/// let mut server = Server::builder().deferred_max(8).listen(&path)?;
/// let (sender, calls) = mpsc::channel::<Later>();
/// let stop = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     // Answers what takes long: reads a disk, say.
///     scope.spawn(move || {
///         for mut call in calls {
///             let (request, response) = call.parts();
///             let len = request.len();
///             response[..len].copy_from_slice(request);
///             response[..len].reverse();
///             call.answer(len);
///         }
///     });
///     let mut handler = move |request: Request<'_>, _: &mut [u8]| -> Reply {
///         let Some((later, postponed)) = request.later() else {
///             return Status::BUSY.into();
///         };
///         match sender.send(later) {
///             Ok(()) => postponed.into(),
///             Err(_) => Status::BUSY.into(),
///         }
///     };
///     let stop = &stop;
///     scope.spawn(move || server.run(stop, &mut handler));
///     let mut client = Client::connect(&path)?;
///     let answer = client.call(1, b"abc").map(<[u8]>::to_vec);
///     stop.store(true, Ordering::Relaxed);
///     assert_eq!(answer?, b"cba");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the caller waits for an answer; dropped, the call has failed"]
pub struct Later {
    kept: Kept,
    shared: Arc<Shared>,
}

impl Later {
    /// What to run.
    pub fn method(&self) -> u16 {
        self.kept.method
    }

    /// The seat of the connection that it came from.
    pub fn seat(&self) -> u32 {
        self.kept.seat
    }

    /// The call's number: from 1, by connection.
    pub fn number(&self) -> u64 {
        self.kept.number
    }

    /// When its budget is used up, on the clock whose time [`Server::poll`] is given; `None`: it has none. Who begins to
    /// run the call later than that answers with [`Status::DEADLINE_EXCEEDED`] instead, which vouches that it has not run.
    pub fn deadline_ns(&self) -> Option<u64> {
        Some(self.kept.deadline_ns).filter(|&deadline_ns| deadline_ns != u64::MAX)
    }

    /// What was left of its budget when the round began in which it was kept; `None`: it has none.
    pub fn left(&self) -> Option<Duration> {
        self.deadline_ns()
            .map(|_| Duration::from_nanos(self.kept.left_ns))
    }

    /// False if the server knows that its connection has ended: then no answer will be heard. A hint: it may end at
    /// any time.
    pub fn is_awaited(&self) -> bool {
        let place = self.shared.places.get(self.kept.place as usize);
        !place.is_some_and(|place| place.abandoned.load(Ordering::Relaxed))
    }

    /// The request's bytes.
    pub fn request(&self) -> &[u8] {
        &self.kept.request[..self.kept.request_len]
    }

    /// Where the answer goes; there is room for the largest one. What is in it before has no meaning.
    pub fn response(&mut self) -> &mut [u8] {
        &mut self.kept.response
    }

    /// [`request`](Self::request) and [`response`](Self::response), to have both at once.
    pub fn parts(&mut self) -> (&[u8], &mut [u8]) {
        let kept = &mut self.kept;
        (&kept.request[..kept.request_len], &mut kept.response)
    }

    /// Answers with the first `len` bytes of the [`response`](Self::response). The caller gets
    /// [`Status::RESPONSE_TOO_LARGE`] if there are not so many.
    pub fn answer(mut self, len: usize) {
        self.kept.outcome = Ok(len);
    }

    /// Answers with a status, and no bytes.
    pub fn fail(mut self, status: Status) {
        self.kept.outcome = Err(status);
    }

    pub(super) fn place(&self) -> u32 {
        self.kept.place
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.shared
            .put(std::mem::replace(&mut self.kept, Kept::hollow()));
    }
}

/// The server's side of all calls that are kept.
#[derive(Debug)]
pub(super) struct Deferrals {
    shared: Arc<Shared>,
    free: RefCell<Vec<Kept>>,
    /// By place. None for one whose handler has answered by itself.
    tokens: Box<[Option<Deferred>]>,
    /// Answers that are to be sent, the oldest first.
    answered: VecDeque<Kept>,
}

impl Deferrals {
    /// Room for `max` calls.
    pub(super) fn new(max: u32, geometry: &Geometry, waker: Waker) -> Self {
        let buffer = |bytes: usize| vec![0; bytes].into_boxed_slice();
        let (request, response) = (geometry.request_max_bytes(), geometry.response_max_bytes());
        let kept = |place| Kept::with_buffers(place, buffer(request), buffer(response));
        let place = |_| Place {
            answered: Mutex::new(Kept::hollow()),
            abandoned: AtomicBool::new(false),
        };
        let links: Box<[_]> = (0..max).map(|_| AtomicU32::new(NONE)).collect();
        Self {
            shared: Arc::new(Shared {
                list: AtomicWords::new(links),
                places: (0..max).map(place).collect(),
                waker,
            }),
            free: RefCell::new((0..max).map(kept).collect()),
            tokens: (0..max).map(|_| None).collect(),
            answered: VecDeque::with_capacity(max as usize),
        }
    }

    /// What it takes, for that many calls.
    pub(super) fn bytes(&self, geometry: &Geometry) -> usize {
        let records = size_of::<Kept>() * 2 + size_of::<Place>() + size_of::<Option<Deferred>>();
        let place = geometry.request_max_bytes() + geometry.response_max_bytes();
        (place + records + size_of::<AtomicU32>()) * self.tokens.len()
    }

    /// True if there are answers to send.
    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        !answers::is_empty(&self.shared.list) || !self.answered.is_empty()
    }

    pub(super) fn keep(&self, origin: &Origin<'_>, bytes: &[u8]) -> Option<Later> {
        let call = origin.call;
        // Of the answers that its connection is owed one is this call's own.
        let held = origin.engine.answers_owed(call.seat).saturating_sub(1);
        let mut free = self.free.borrow_mut();
        if held as usize >= free.len() {
            return None;
        }
        let mut kept = free.pop()?;
        let Some(copy) = kept.request.get_mut(..bytes.len()) else {
            // The handler has put other bytes there, more than a request may have.
            free.push(kept);
            return None;
        };
        copy.copy_from_slice(bytes);
        let kept = Kept {
            seat: call.seat,
            number: call.number,
            method: call.method,
            deadline_ns: call.deadline_ns,
            left_ns: call.deadline_ns.saturating_sub(origin.now_ns),
            request_len: bytes.len(),
            outcome: Err(Status::HANDLER_FAILED),
            ..kept
        };
        if let Some(place) = self.shared.places.get(kept.place as usize) {
            place.abandoned.store(false, Ordering::Relaxed);
        }
        Some(Later {
            kept,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Nobody waits for answers to this seat's connection any more.
    pub(super) fn abandon(&self, seat: u32) {
        for (token, place) in self.tokens.iter().zip(&self.shared.places) {
            if token.as_ref().is_some_and(|token| token.seat() == seat) {
                place.abandoned.store(true, Ordering::Relaxed);
            }
        }
    }

    fn take_answers(&mut self) {
        let before = self.answered.len();
        let (shared, answered) = (&self.shared, &mut self.answered);
        answers::take_all(&shared.list, |at| {
            if let Some(place) = shared.places.get(at as usize) {
                let kept = std::mem::replace(&mut *lock(&place.answered), Kept::hollow());
                answered.push_back(kept);
            }
        });
        // The last one comes first.
        answered.make_contiguous()[before..].reverse();
    }
}

impl<F: Fabric> Server<F> {
    /// True if other threads have answered calls. One load if none can be kept, two or three else.
    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        let deferrals = self.deferrals.as_deref();
        deferrals.is_some_and(Deferrals::has_answers)
    }

    /// The handler that ran the call has kept it at this place.
    #[cold]
    pub(super) fn defer(&mut self, call: Call, place: u32) {
        let deferred = self.engine.defer(call);
        let deferrals = self.deferrals.as_deref_mut();
        if let Some(token) = deferrals.and_then(|it| it.tokens.get_mut(place as usize)) {
            *token = Some(deferred);
        }
    }

    /// Sends what other threads have answered; how many answers there were.
    #[cold]
    pub(super) fn send_answers(&mut self) -> usize {
        let Some(mut deferrals) = self.deferrals.take() else {
            return 0;
        };
        deferrals.take_answers();
        let mut done = 0;
        for _ in 0..deferrals.answered.len().min(ROUND_ANSWERS) {
            let Some(kept) = deferrals.answered.pop_front() else {
                break;
            };
            let token = &mut deferrals.tokens[kept.place as usize];
            match token.take().map(|deferred| self.engine.resume(deferred)) {
                Some(Resumed::Wait(deferred)) => {
                    *token = Some(deferred);
                    deferrals.answered.push_back(kept);
                    continue;
                }
                Some(Resumed::Call(call)) => self.send_answer(call, &kept),
                // Nobody waits for it, or its handler has answered by itself.
                Some(Resumed::Ended) | None => {}
            }
            deferrals.free.get_mut().push(kept);
            done += 1;
        }
        self.deferrals = Some(deferrals);
        done
    }

    fn send_answer(&mut self, call: Call, kept: &Kept) {
        let (exposed, private) = (self.fabric.exposed(), self.fabric.private());
        let (status, len) = match kept.outcome {
            Ok(len) => (Status::OK, len),
            Err(status) => (status, 0),
        };
        if let Some(bytes) = kept.response.get(..len) {
            private.copy_in(call.response_at, bytes);
        }
        if let Some(write) = self.engine.reply(call, status, len, exposed, private) {
            self.post_write(&write);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;

    use crate::{ClientSet, Later, Reply, Request, Server};

    #[test]
    fn nothing_is_left_once_the_server_and_the_last_call_that_was_kept_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let builder = Server::builder().clients_max(1).deferred_max(4);
        let mut server = builder.listen(&path).unwrap();
        let mut set = ClientSet::connect(&path, 1).unwrap();
        for _ in 0..2 {
            set.call_async(0, 1, b"x").unwrap();
        }
        let mut kept = Vec::<Later>::new();
        while kept.len() < 2 {
            set.poll_completion();
            server.poll(1, &mut |request: Request<'_>, _: &mut [u8]| -> Reply {
                let (later, postponed) = request.later().unwrap();
                kept.push(later);
                postponed.into()
            });
        }
        let shared = Arc::downgrade(&server.deferrals.as_ref().unwrap().shared);
        drop(server);
        kept.remove(0).answer(1);
        assert!(shared.upgrade().is_some(), "the other one needs it");
        drop(kept);
        assert!(shared.upgrade().is_none());
    }
}
