//! The client engine: one connection's calls.
//!
//! ```text
//!            endpoint entry written            first response
//!   Idle ───────────────────────────▶ Warmup ─────────────────▶ Process
//!    ▲                                                             │
//!    └──────────────── context switch event ◀──────────────────────┘
//! ```
//!
//! Calls are numbered from 1 and sent in that order. A call that cannot be sent yet is *parked*: its
//! request lies ready in private memory, and goes out with the next endpoint entry or, in state
//! Process, by a WRITE straight into the zone. After a switch event every call that the server did not
//! take is parked again (rule R3).

mod options;
mod records;
mod ring;

pub use options::Cancelled;
pub use records::CallRecord;
pub use ring::{Answer, Failed};

use records::{NONE, RecordState};

use crate::geometry::{Geometry, Mapping};
use crate::memory::Memory;
use crate::mutant::{self, Bug};
use crate::post::{Completion, Limits, SendQueue, WRITE_AHEAD, WcStatus, WrId, WrKind, WriteWr};
use crate::store::Store;
use crate::wire::{self, Entry, Ext, FLAG_EXT, Head, LINE, Placement};

/// The client states of the paper, and the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// Not served, and nothing is staged.
    Idle,
    /// A batch is staged, and its endpoint entry written.
    Warmup,
    /// Served: requests are written straight into the zone.
    Process,
    /// The connection is down; calls only end with errors.
    Lost,
}

/// Why a call was not accepted. Nothing has happened, and nothing will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The request is larger than a block holds.
    TooLarge {
        /// Largest request, in bytes.
        max: usize,
    },
    /// As many calls are outstanding as the window allows; take an answer first.
    WindowFull,
    /// The connection is down.
    Lost,
}

impl core::fmt::Display for CallError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooLarge { max } => write!(
                f,
                "the request is larger than the {max} bytes that the server takes; \
                 send a descriptor of the data instead, or raise the server's request_max_bytes"
            ),
            Self::WindowFull => {
                f.write_str("the window is full of outstanding calls; poll for an answer first")
            }
            Self::Lost => f.write_str("the connection is down; connect again"),
        }
    }
}

impl core::error::Error for CallError {}

/// Where a connection belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConn {
    /// Its number on the link, from 0.
    pub connection: u32,
    /// Its seat at the server.
    pub seat: u32,
    /// The nonce of its messages.
    pub owner: u64,
}

/// A request that is ready to be written.
struct Parked {
    number: u64,
    slot: u32,
    /// Its request slot, and the bytes of the message in it.
    local: usize,
    span: usize,
}

/// What happened so far on one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Calls accepted.
    pub calls: u64,
    /// Calls that ended with an answer.
    pub answered: u64,
    /// Calls that ended because the connection was lost.
    pub failed: u64,
    /// Calls whose answer is not wanted any more.
    pub cancelled: u64,
    /// Endpoint entries written.
    pub entries: u64,
    /// Requests staged; a call may be staged more than once.
    pub staged: u64,
    /// Requests written straight into a zone.
    pub direct_writes: u64,
    /// Switch events taken.
    pub switch_events: u64,
    /// WRITEs that a revoked tenancy refused.
    pub refused: u64,
}

/// See the [module](self).
pub struct ClientEngine<S: Store> {
    geometry: Geometry,
    limits: Limits,
    conn: ClientConn,
    state: ClientState,
    /// The number of the next call that is accepted.
    next_call: u64,
    /// Calls up to this one are with the server, or on their way; later ones are parked.
    sent: u64,
    /// The latest call that was answered.
    answered_max: u64,
    /// The latest call that was made with a budget or cancelled: later ones are sent as they were made.
    amended_max: u64,
    /// What the time was when it was last told.
    now_ns: u64,
    outstanding: u32,
    /// The tenancy that the server last told of.
    epoch: u64,
    /// The tenancy that the server was last told is quiet.
    quiet: u64,
    pool: u32,
    zone: u32,
    /// Number of the last endpoint entry.
    entry: u64,
    /// The entry is written, but not yet the byte in the demand map.
    demand_owed: bool,
    /// The tenancy was revoked, and its switch event is yet to come.
    barred: bool,
    /// Offset of the response ring in this side's exposed memory.
    ring_at: usize,
    /// The position in the response ring that is looked at.
    ring_next: u64,
    sq: SendQueue,
    /// The last work request that was signaled before the last post, for one that is refused.
    signaled_before: u32,
    /// Of the last WRITE whose source is the entry image or a word beside it.
    words: Option<u32>,
    calls: S::Array<CallRecord>,
    /// The record of call n is at n mod window, for each n that may have to be sent (again).
    order: S::Array<u32>,
    counters: ClientCounters,
}

impl<S: Store> ClientEngine<S> {
    /// A connection without calls. Both arrays have one element per block of the window, and are reset.
    ///
    /// `None` if an array has another length, or `limits` do not [suffice](Limits::suffice).
    pub fn new(
        geometry: Geometry,
        limits: Limits,
        conn: ClientConn,
        mut calls: S::Array<CallRecord>,
        mut order: S::Array<u32>,
    ) -> Option<Self> {
        let window = geometry.window() as usize;
        if calls.len() != window || order.len() != window || !limits.suffice(&geometry) {
            return None;
        }
        calls.fill(CallRecord::default());
        order.fill(NONE);
        let (state, epoch) = match geometry.mapping() {
            Mapping::Virtual => (ClientState::Idle, 0),
            // The zone with the seat's number is this connection's for as long as it lives.
            Mapping::Static => (ClientState::Process, 1),
        };
        Some(Self {
            geometry,
            limits,
            conn,
            state,
            next_call: 1,
            sent: 0,
            answered_max: 0,
            amended_max: 0,
            now_ns: 0,
            outstanding: 0,
            epoch,
            quiet: epoch,
            pool: 0,
            zone: conn.seat,
            entry: 0,
            demand_owed: false,
            barred: false,
            ring_at: geometry.ring(conn.connection),
            ring_next: 1,
            sq: SendQueue::new(limits.sq_depth),
            signaled_before: 0,
            words: None,
            calls,
            order,
            counters: ClientCounters::default(),
        })
    }

    /// The state.
    pub fn state(&self) -> ClientState {
        self.state
    }

    /// Calls that were accepted and have not ended.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Calls that are parked: accepted, but not with the server.
    pub fn parked(&self) -> u64 {
        self.next_call - 1 - self.sent
    }

    /// What happened so far.
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// True if the server may have something for this connection, or the connection for the server:
    /// it is to be polled. An idle one need not be.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.outstanding > 0
            || self.quiet != self.epoch
            || self.demand_owed
            || (self.state == ClientState::Process && self.geometry.mapping() == Mapping::Virtual)
    }

    /// True if [`next_write`](Self::next_write) may have something to post, without any news first.
    #[inline]
    pub fn wants_to_post(&self) -> bool {
        let parked = self.parked() > 0;
        // Owed in state Warmup; and longer, if a server lies and serves what it cannot know of.
        self.demand_owed
            || (self.state == ClientState::Process && parked && !self.barred)
            || (self.state == ClientState::Idle && (parked || self.quiet != self.epoch))
    }

    /// Accepts a call: copies the request, and numbers it. `tag` comes back with the answer.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing has happened then.
    #[inline(always)]
    pub fn call<M: Memory>(
        &mut self,
        method: u16,
        request: &[u8],
        tag: u64,
        private: &M,
    ) -> Result<u64, CallError> {
        let accepted = self.accept(method, request, tag, None, private)?;
        Ok(accepted.number)
    }

    /// As [`call`](Self::call) and then [`next_write`](Self::next_write), where that is the request of this call, which
    /// is written straight into the zone: nearly always. Then there is nothing else to post.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing has happened then.
    #[inline(always)]
    pub fn call_direct<M: Memory>(
        &mut self,
        method: u16,
        request: &[u8],
        tag: u64,
        private: &M,
    ) -> Result<(u64, Option<WriteWr>), CallError> {
        let direct = self.state == ClientState::Process
            && self.parked() == 0
            && !self.demand_owed
            && self.sq.has_room(1);
        debug_assert!(!direct || !self.barred, "a call that was refused is parked");
        let accepted = self.accept(method, request, tag, None, private)?;
        if !direct {
            return Ok((accepted.number, None));
        }
        self.signaled_before = self.sq.last_signaled();
        Ok((accepted.number, Some(self.write_at(accepted))))
    }

    /// `budget`: the extension of its request, and when it is used up.
    #[inline(always)]
    fn accept<M: Memory>(
        &mut self,
        method: u16,
        request: &[u8],
        tag: u64,
        budget: Option<(Ext, u64)>,
        private: &M,
    ) -> Result<Parked, CallError> {
        if self.state == ClientState::Lost {
            return Err(CallError::Lost);
        }
        let max = self.geometry.request_max_bytes();
        if request.len() > max {
            return Err(CallError::TooLarge { max });
        }
        let window = self.geometry.window();
        let number = self.next_call;
        if self.outstanding == window {
            return Err(CallError::WindowFull);
        }
        // The block of call n - window is free once the server took that call. It takes calls in order, so
        // an answer to that call or to a later one shows it; and were there none, a window of calls would
        // be outstanding.
        debug_assert!(number <= self.answered_max + u64::from(window));
        let slot = self.free_record().ok_or(CallError::WindowFull)?;
        let flags = budget.map_or(0, |_| FLAG_EXT);
        let head = Head {
            len: request.len() as u32,
            tag: method,
            flags,
            slot: slot | (number as u32) << 16,
        };
        let span = wire::span(request.len(), flags);
        let start = self.geometry.request_slot(self.conn.connection, slot);
        private.copy_in(start, request);
        let placement = self.limits.placement;
        wire::seal(
            private,
            start + span,
            self.conn.owner,
            head,
            budget.map(|(ext, _)| ext),
            number,
            placement,
        );
        self.calls[slot as usize] = CallRecord {
            number,
            tag,
            span: span as u32,
            sequence: None,
            state: RecordState::Outstanding,
            cancelled: false,
            deadline_ns: budget.map(|(_, deadline_ns)| deadline_ns),
        };
        self.order[(number & u64::from(window - 1)) as usize] = slot;
        self.next_call += 1;
        self.outstanding += 1;
        self.counters.calls += 1;
        Ok(Parked {
            number,
            slot,
            local: start,
            span,
        })
    }

    /// Where the request ends, in the server's memory, that is [`WRITE_AHEAD`] after the last one, if it is written straight
    /// into the zone; `None` where the window is so small that the server may be at that block.
    #[inline(always)]
    pub fn later_target(&self) -> Option<usize> {
        let later = self.sent + WRITE_AHEAD;
        let end = self.geometry.block_end(self.pool, self.zone, later);
        (u64::from(self.geometry.window()) > 2 * WRITE_AHEAD).then_some(end)
    }

    /// The next WRITE to post, if there is one. If the back end refuses it because the tenancy was
    /// revoked, [`refused`](Self::refused) takes it back.
    #[inline]
    pub fn next_write<M: Memory>(&mut self, exposed: &M, private: &M) -> Option<WriteWr> {
        self.signaled_before = self.sq.last_signaled();
        let told = self.state == ClientState::Process && self.quiet == self.epoch;
        if mutant::is(Bug::QuietTooEarly) && told && self.words_free() && self.sq.has_room(1) {
            let write = self.write_quiet(private);
            self.quiet = 0;
            return write;
        }
        if self.demand_owed {
            return self.write_demand(private);
        }
        match self.state {
            ClientState::Process if self.sent + 1 < self.next_call => self.write_block(private),
            ClientState::Idle if self.sent + 1 < self.next_call => {
                self.write_entry(exposed, private)
            }
            ClientState::Idle if self.quiet != self.epoch => self.write_quiet(private),
            _ => None,
        }
    }

    /// State Process: the next parked request, straight into the zone.
    fn write_block<M: Memory>(&mut self, private: &M) -> Option<WriteWr> {
        if self.barred || !self.sq.has_room(1) {
            return None;
        }
        let number = self.sent + 1;
        let slot = self.slot_of(number);
        let local = self.geometry.request_slot(self.conn.connection, slot);
        if number <= self.amended_max {
            // Its slot was not the source of a WRITE: one that comes back at a switch is staged.
            debug_assert!(self.calls[slot as usize].sequence.is_none());
            let end = local + self.calls[slot as usize].span as usize;
            self.amend(number, private, end, private);
        }
        let span = self.calls[slot as usize].span as usize;
        Some(self.write_at(Parked {
            number,
            slot,
            local,
            span,
        }))
    }

    /// Writes the first parked request.
    #[inline(always)]
    fn write_at(&mut self, parked: Parked) -> WriteWr {
        let Parked {
            number,
            slot,
            local,
            span: len,
        } = parked;
        let inline = len <= self.limits.inline_max;
        let want_signal = !inline && self.signal_now(number);
        let (sequence, signaled) = self.sq.post(want_signal);
        self.calls[slot as usize].sequence = (!inline).then_some(sequence);
        self.sent = number;
        self.counters.direct_writes += 1;
        WriteWr {
            connection: self.conn.connection,
            local,
            remote: self.geometry.block_end(self.pool, self.zone, number) - len,
            len,
            epoch: (self.geometry.mapping() == Mapping::Virtual).then_some(self.epoch),
            signaled,
            wr_id: self.wr_id(sequence),
        }
    }

    fn wr_id(&self, sequence: u32) -> WrId {
        WrId::new(WrKind::Write, 0, self.conn.connection, sequence)
    }

    /// True if the entry image and the words beside it may be written anew.
    fn words_free(&self) -> bool {
        mutant::is(Bug::EntryImageEarly) || self.words.is_none_or(|it| self.sq.is_done(it))
    }

    /// State Idle: stages all parked requests, and writes the endpoint entry.
    #[inline(never)]
    fn write_entry<M: Memory>(&mut self, exposed: &M, private: &M) -> Option<WriteWr> {
        if !self.sq.has_room(2) || !self.words_free() {
            return None;
        }
        let first_call = self.sent + 1;
        let count = (self.next_call - first_call) as u32;
        let spans = (first_call..self.next_call).map(|n| self.calls[self.slot_of(n) as usize].span);
        let stride = spans.max()?;
        let staging = self.geometry.staging(self.conn.connection);
        let mut end = staging;
        for number in first_call..self.next_call {
            end += stride as usize;
            let slot = self.slot_of(number);
            let len = self.calls[slot as usize].span as usize;
            let from = self.geometry.request_slot(self.conn.connection, slot);
            exposed.copy_from(end - len, private, from, len);
            if number <= self.amended_max {
                self.amend(number, exposed, end, private);
            }
        }
        let image = self.geometry.entry_image(self.conn.connection);
        self.entry += 1;
        self.quiet = self.epoch;
        let entry = Entry {
            quiet_epoch: self.quiet,
            first_call,
            staged_at: staging as u64,
            stride,
            count,
        };
        entry.seal(
            private,
            image,
            self.conn.owner,
            self.entry,
            self.limits.placement,
        );
        self.sent = self.next_call - 1;
        self.state = ClientState::Warmup;
        self.demand_owed = !mutant::is(Bug::DemandForgotten) || self.entry % 8 != 0;
        self.counters.entries += 1;
        self.counters.staged += u64::from(count);
        let remote = self.geometry.endpoint(self.conn.seat);
        Some(self.write_words(image, remote, LINE, false))
    }

    /// After the entry: the byte that tells the server to look at it.
    #[inline(never)]
    fn write_demand<M: Memory>(&mut self, private: &M) -> Option<WriteWr> {
        if !self.sq.has_room(1) {
            return None;
        }
        self.demand_owed = false;
        let local = self.geometry.entry_image(self.conn.connection) + LINE;
        private.store_byte_release(local, self.entry as u8);
        let remote = self.geometry.demand_byte(self.conn.seat);
        Some(self.write_words(local, remote, 1, true))
    }

    /// State Idle, nothing to send: only the word that says that the last tenancy is quiet.
    #[inline(never)]
    fn write_quiet<M: Memory>(&mut self, private: &M) -> Option<WriteWr> {
        if !self.sq.has_room(1) || !self.words_free() {
            return None;
        }
        self.quiet = self.epoch;
        let local = self.geometry.entry_image(self.conn.connection) + LINE + 8;
        private.store(local, self.quiet);
        let remote = self.geometry.endpoint(self.conn.seat) + wire::ENTRY_QUIET_AT;
        Some(self.write_words(local, remote, 8, true))
    }

    fn write_words(&mut self, local: usize, remote: usize, len: usize, last: bool) -> WriteWr {
        // A byte that goes inline says nothing about an entry before it that did not.
        let held = len > self.limits.inline_max || !self.words_free();
        let (sequence, signaled) = self.sq.post(held && last);
        self.words = held.then_some(sequence);
        WriteWr {
            connection: self.conn.connection,
            local,
            remote,
            len,
            epoch: None,
            signaled,
            wr_id: self.wr_id(sequence),
        }
    }

    /// The back end refused the last WRITE of [`next_write`](Self::next_write), because its tenancy is
    /// revoked. The call is parked again; the switch event that says so is on its way.
    pub fn refused(&mut self) {
        if mutant::is(Bug::RefusalIgnored) {
            return;
        }
        self.sq.take_back(self.signaled_before);
        let slot = self.slot_of(self.sent);
        self.calls[slot as usize].sequence = None;
        self.sent -= 1;
        self.barred = !mutant::is(Bug::RefusalNotBarring);
        self.counters.direct_writes -= 1;
        self.counters.refused += 1;
    }

    /// A work request completed.
    pub fn completed(&mut self, completion: Completion) {
        self.sq.retire(completion.wr_id.sequence());
        if completion.status != WcStatus::Success {
            self.lost();
        }
    }

    /// The connection is down. Its calls end through [`take_failed`](Self::take_failed).
    pub fn lost(&mut self) {
        self.state = ClientState::Lost;
        self.demand_owed = false;
        self.quiet = self.epoch;
    }

    fn placement(&self) -> Placement {
        self.limits.placement
    }
}
