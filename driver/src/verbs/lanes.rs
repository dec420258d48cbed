//! The data path of either end: work requests of many queue pairs, and their completions.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use rdma_core_sys::{
    IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WR_RDMA_WRITE, ibv_poll_cq,
    ibv_post_send, ibv_qp, ibv_send_wr, ibv_sge, ibv_wc,
};
use scalerpc_core::post::{Completion, ReadWr, WcStatus, WrId, WriteWr};
use scalerpc_core::{Geometry, Memory, Region};

use super::batch::{Batch, Chain, Head};
use super::failure::{Failure, Unposted, Why};
use super::resources::{CompletionQueue, Registration, post_receive};
use crate::fabric::PostError;

/// Completions that are taken together.
const WCS: usize = 32;

/// A queue pair for the data path. Whoever hands one out promises that it lives until the lane is drained and whoever
/// owns it was told so.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpRef(pub(super) *mut ibv_qp);

// SAFETY: queue pairs may be used from any thread.
unsafe impl Send for QpRef {}

/// Memory of the peer: the address of its first byte, and the key to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) rkey: u32,
    pub(super) bytes: u64,
}

/// Memory of this end that WRITEs are posted from, as work requests name it.
#[derive(Clone, Copy, Debug)]
struct Source {
    address: u64,
    bytes: u64,
    lkey: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    /// No connection.
    Vacant,
    Up,
    /// Nothing more is posted.
    Down,
    /// In ERR, and the beacon is posted.
    Draining,
    /// The beacon has come back: no work request is outstanding.
    Drained,
}

/// A connection, as the data path knows it.
#[derive(Clone, Copy, Debug)]
struct Lane {
    qp: QpRef,
    remote: Remote,
    chain: Chain,
    /// The last work request that was added.
    last: WrId,
    state: LaneState,
    /// What it has received before the data path knew of it.
    received: u32,
}

const VACANT: Lane = Lane {
    qp: QpRef(ptr::null_mut()),
    remote: Remote {
        address: 0,
        rkey: 0,
        bytes: 0,
    },
    chain: Chain::EMPTY,
    last: WrId(0),
    state: LaneState::Vacant,
    received: 0,
};

impl Lane {
    /// The work request that comes after all of the engine's: no outstanding one has its number.
    fn beacon(&self) -> u64 {
        let sequence = self.last.sequence().wrapping_add(1);
        self.last.0 & !u64::from(u32::MAX) | u64::from(sequence)
    }
}

/// What a connection costs here: its lane, and a place in each of the lists.
pub(super) const LANE_BYTES: usize = size_of::<Lane>() + 4 * size_of::<u32>();

/// See the [module](self).
pub(super) struct Lanes {
    geometry: Geometry,
    lanes: Box<[Lane]>,
    batch: Batch,
    inline_max: usize,
    sge_max: u32,
    /// Connections with work requests in the batch.
    waiting: Vec<u32>,
    /// Connections whose chain was not posted, to be told to the engine.
    unposted: Vec<u32>,
    /// Connections that failed by themselves, to be ended.
    failed: Vec<u32>,
    /// Connections whose queue pair may be destroyed.
    drained: Vec<u32>,
    last_failure: Option<Failure>,
    queues: Box<[Arc<CompletionQueue>]>,
    queue_next: usize,
    /// Some queue pair was destroyed, or is to be, with work requests in its queue.
    undrained: bool,
    wcs: [ibv_wc; WCS],
    wcs_at: usize,
    wcs_len: usize,
    /// Where WRITEs come from.
    source: Source,
    /// Ended after everything above, which may name their memory.
    exposed: Registration,
    private: Registration,
}

// SAFETY: the pointers in the batch are to memory that the batch owns, and are written anew before each use; queue
// pairs may be used from any thread.
unsafe impl Send for Lanes {}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lanes")
            .field("connections", &self.lanes.len())
            .field("last_failure", &self.last_failure)
            .finish_non_exhaustive()
    }
}

/// How much the lanes may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub(super) connections: u32,
    pub(super) inline_max: usize,
    pub(super) sge_max: u32,
}

impl Lanes {
    pub(super) fn new(
        geometry: Geometry,
        reach: Reach,
        queues: Box<[Arc<CompletionQueue>]>,
        exposed: Registration,
        private: Registration,
    ) -> Self {
        let count = reach.connections as usize;
        let list = || Vec::with_capacity(count);
        Self {
            geometry,
            lanes: vec![VACANT; count].into(),
            batch: Batch::new(reach.inline_max),
            inline_max: reach.inline_max,
            sge_max: reach.sge_max,
            waiting: list(),
            unposted: list(),
            failed: list(),
            drained: list(),
            last_failure: None,
            queues,
            queue_next: 0,
            undrained: false,
            wcs: [ibv_wc::default(); WCS],
            wcs_at: 0,
            wcs_len: 0,
            source: Source {
                address: private.address(),
                bytes: private.mapping().region().len() as u64,
                lkey: private.lkey(),
            },
            exposed,
            private,
        }
    }

    pub(super) fn exposed(&self) -> &Region {
        self.exposed.mapping().region()
    }

    pub(super) fn private(&self) -> &Region {
        self.private.mapping().region()
    }

    /// The connection is there. It is vacant.
    pub(super) fn attach(&mut self, connection: u32, qp: QpRef, remote: Remote) {
        if let Some(lane) = self.lanes.get_mut(connection as usize) {
            debug_assert_eq!(lane.state, LaneState::Vacant);
            let received = lane.received;
            *lane = Lane {
                qp,
                remote,
                chain: Chain::EMPTY,
                last: WrId(u64::from(connection) << 32),
                state: LaneState::Up,
                received: 0,
            };
            for _ in 0..received {
                self.receive(connection);
            }
        }
    }

    /// The connection is gone, and its queue pair destroyed; or there never was one.
    pub(super) fn detach(&mut self, connection: u32) {
        if let Some(lane) = self.lanes.get_mut(connection as usize) {
            *lane = VACANT;
        }
    }

    /// True if the connection's queue pair may be destroyed, or there is none.
    pub(super) fn is_over(&self, connection: u32) -> bool {
        matches!(
            self.state(connection),
            LaneState::Drained | LaneState::Vacant
        )
    }

    /// True if there is nothing more to be done to end the connection.
    pub(super) fn is_ending(&self, connection: u32) -> bool {
        !matches!(self.state(connection), LaneState::Up | LaneState::Down)
    }

    /// Nothing shows when the queue of this connection is empty: its queue pair is to be destroyed as it is.
    pub(super) fn give_up(&mut self, connection: u32) {
        if let Some(lane) = self.lanes.get_mut(connection as usize) {
            if lane.state != LaneState::Vacant {
                lane.state = LaneState::Drained;
                self.undrained = true;
                self.drained.push(connection);
            }
        }
    }

    fn state(&self, connection: u32) -> LaneState {
        let lane = self.lanes.get(connection as usize);
        lane.map_or(LaneState::Vacant, |lane| lane.state)
    }

    #[inline]
    pub(super) fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        let inside = |at: usize, len: u64| {
            let end = (at as u64).checked_add(wr.len as u64);
            end.is_some_and(|end| end <= len)
        };
        self.make_room(1);
        let Some(lane) = self.lanes.get_mut(wr.connection as usize) else {
            return Err(PostError::Down);
        };
        let fits = inside(wr.local, self.source.bytes) && inside(wr.remote, lane.remote.bytes);
        if lane.state != LaneState::Up || wr.len == 0 || !fits {
            return Err(PostError::Down);
        }
        if lane.chain.is_empty() {
            self.waiting.push(wr.connection);
        }
        let head = Head {
            wr_id: wr.wr_id,
            // The peer's memory ends within the address space, as was checked when it said where it is.
            remote: lane.remote.address + wr.remote as u64,
            rkey: lane.remote.rkey,
            signaled: wr.signaled,
        };
        if wr.len <= self.inline_max {
            let from = self.private.mapping().region();
            // SAFETY: only the caller writes to private memory, and it is here.
            let bytes = unsafe { from.bytes(wr.local, wr.len) };
            // SAFETY: room was made, and so many bytes go inline.
            unsafe { self.batch.write_inline(&mut lane.chain, head, bytes) };
        } else {
            let addr = self.source.address + wr.local as u64;
            let source = (addr, wr.len, self.source.lkey);
            // SAFETY: room was made.
            unsafe { self.batch.write(&mut lane.chain, head, source) };
        }
        if wr.wakes() {
            // SAFETY: the chain ends with the WRITE that has just been added.
            unsafe { self.batch.wake(&lane.chain) };
        }
        lane.last = wr.wr_id;
        Ok(())
    }

    pub(super) fn post_read(&mut self, wr: &ReadWr) -> Result<(), PostError> {
        let bytes = wr.stride as u64 * u64::from(wr.count);
        let end = (wr.remote as u64).checked_add(bytes);
        let fits = wr.stride > 0 && wr.stride <= self.geometry.request_block_bytes();
        if wr.count == 0 || wr.count > self.sge_max || !fits {
            return Err(PostError::Down);
        }
        self.make_room(wr.count as usize);
        let Some(lane) = self.lanes.get_mut(wr.connection as usize) else {
            return Err(PostError::Down);
        };
        if lane.state != LaneState::Up || end.is_none_or(|end| end > lane.remote.bytes) {
            return Err(PostError::Down);
        }
        if lane.chain.is_empty() {
            self.waiting.push(wr.connection);
        }
        let head = Head {
            wr_id: wr.wr_id,
            remote: lane.remote.address + wr.remote as u64,
            rkey: lane.remote.rkey,
            signaled: true,
        };
        let start = self.exposed.address();
        let pieces = wr.targets(&self.geometry).map(|at| start + at as u64);
        let target = (wr.stride, self.exposed.lkey());
        // SAFETY: room was made for so many, at least one.
        unsafe { self.batch.read(&mut lane.chain, head, pieces, target) };
        lane.last = wr.wr_id;
        Ok(())
    }

    #[inline]
    fn make_room(&mut self, sges: usize) {
        if !self.batch.has_room(sges) {
            self.ring();
        }
    }

    /// Posts what has been collected. Returns a connection of which not all could be posted; there may be more.
    #[inline]
    pub(super) fn flush(&mut self) -> Option<u32> {
        if !self.batch.is_empty() {
            self.ring();
        }
        self.unposted.pop()
    }

    #[inline(never)]
    fn ring(&mut self) {
        for &connection in &self.waiting {
            let lane = &mut self.lanes[connection as usize];
            // SAFETY: a chain is not empty only while the lane is up, and its queue pair lives longer. Elements name
            // private memory for WRITEs and exposed memory for READs, registered for as long as this struct lives;
            // the engine keeps source and target until the completion.
            let posted = unsafe { self.batch.post(lane.qp.0, &mut lane.chain) };
            if let Err(broken) = posted {
                lane.state = LaneState::Down;
                self.last_failure = Some(Failure {
                    connection,
                    why: Why::Post(broken),
                });
                self.unposted.push(connection);
            }
        }
        self.waiting.clear();
        self.batch.clear();
    }

    /// A connection has received something, and is to receive once more; a device that does not take that has failed it.
    pub(super) fn receive(&mut self, connection: u32) {
        let Some(lane) = self.lanes.get_mut(connection as usize) else {
            return;
        };
        match lane.state {
            LaneState::Up => {}
            // Its news is under way.
            LaneState::Vacant => {
                lane.received += 1;
                return;
            }
            LaneState::Down | LaneState::Draining | LaneState::Drained => return,
        }
        // SAFETY: the queue pair is live, since the lane is up.
        let posted = unsafe { post_receive(lane.qp.0, connection.into()) };
        if let Err(errno) = posted {
            let (posted, unposted) = (0, 1);
            self.last_failure = Some(Failure {
                connection,
                why: Why::Post(Unposted {
                    errno,
                    posted,
                    unposted,
                }),
            });
            self.set_down(connection);
            self.failed.push(connection);
        }
    }

    /// True if there is a completion, which stays to be taken.
    pub(super) fn has_completion(&mut self) -> bool {
        self.wcs_at < self.wcs_len || self.refill()
    }

    /// Takes a completion.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<Completion> {
        if let Some(wc) = self.wcs[..self.wcs_len].get(self.wcs_at) {
            // A beacon is flushed, if anything. What was left undrained may come to a connection that is over.
            if wc.status == IBV_WC_SUCCESS && !self.undrained {
                self.wcs_at += 1;
                return Some(Completion {
                    wr_id: WrId(wc.wr_id),
                    status: WcStatus::Success,
                });
            }
        }
        self.poll_on()
    }

    /// As [`poll`](Self::poll), where none is at hand, or one that is not usual.
    #[inline(never)]
    fn poll_on(&mut self) -> Option<Completion> {
        loop {
            if self.wcs_at == self.wcs_len && !self.refill() {
                return None;
            }
            let wc = self.wcs[self.wcs_at];
            self.wcs_at += 1;
            if let Some(completion) = self.take(&wc) {
                return Some(completion);
            }
        }
    }

    /// Polls the queues in turn, until one has something.
    #[inline]
    fn refill(&mut self) -> bool {
        for _ in 0..self.queues.len() {
            let queue = self.queues[self.queue_next].as_ptr();
            self.queue_next += 1;
            if self.queue_next == self.queues.len() {
                self.queue_next = 0;
            }
            // SAFETY: the queue is live, and there is room for so many.
            let count = unsafe { ibv_poll_cq(queue, WCS as i32, self.wcs.as_mut_ptr()) };
            // A queue that cannot be polled any more is told of by an event.
            if count > 0 {
                self.wcs_at = 0;
                self.wcs_len = (count as usize).min(WCS);
                return true;
            }
        }
        false
    }

    #[inline]
    fn take(&mut self, wc: &ibv_wc) -> Option<Completion> {
        let wr_id = WrId(wc.wr_id);
        let connection = wr_id.seat();
        let lane = self.lanes.get_mut(connection as usize)?;
        let status = match wc.status {
            IBV_WC_SUCCESS => WcStatus::Success,
            IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
            status => WcStatus::Failed {
                status: status.0,
                vendor_err: wc.vendor_err,
            },
        };
        match lane.state {
            // Left over from a queue pair that was destroyed without being drained.
            LaneState::Vacant | LaneState::Drained => return None,
            LaneState::Draining if wc.wr_id == lane.beacon() => {
                lane.state = LaneState::Drained;
                self.drained.push(connection);
                return None;
            }
            LaneState::Up if status != WcStatus::Success => {
                self.last_failure = Some(Failure {
                    connection,
                    why: Why::Completion {
                        status: wc.status.0,
                        vendor_err: wc.vendor_err,
                        kind: wr_id.kind(),
                    },
                });
                self.set_down(connection);
                self.failed.push(connection);
            }
            LaneState::Up | LaneState::Down | LaneState::Draining => {}
        }
        Some(Completion { wr_id, status })
    }

    /// Nothing more is posted on the connection, and what waits is given up. True if it was up.
    pub(super) fn set_down(&mut self, connection: u32) -> bool {
        let Some(lane) = self.lanes.get_mut(connection as usize) else {
            return false;
        };
        if lane.state != LaneState::Up {
            return false;
        }
        lane.state = LaneState::Down;
        // Its work requests stay in the batch, and nothing leads to them.
        lane.chain = Chain::EMPTY;
        true
    }

    /// Posts the beacon of a connection that is down and whose queue pair is in ERR. False if that cannot be: then
    /// nothing shows when the queue is empty, and the queue pair may only be destroyed.
    pub(super) fn drain(&mut self, connection: u32) -> bool {
        let Some(lane) = self.lanes.get_mut(connection as usize) else {
            return false;
        };
        if lane.state != LaneState::Down {
            return lane.state == LaneState::Draining;
        }
        // It is flushed, and moves nothing.
        let mut sge = ibv_sge {
            addr: self.private.address(),
            length: 1,
            lkey: self.private.lkey(),
        };
        let mut wr = ibv_send_wr {
            wr_id: lane.beacon(),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = lane.remote.address;
        wr.wr.rdma.rkey = lane.remote.rkey;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live until the lane is drained; the one element names registered memory.
        let result = unsafe { ibv_post_send(lane.qp.0, &raw mut wr, &raw mut bad) };
        if result == 0 {
            lane.state = LaneState::Draining;
        }
        result == 0
    }

    /// The last connection that failed at this end.
    pub(super) fn last_failure(&self) -> Option<Failure> {
        self.last_failure
    }

    /// A connection that failed by itself.
    pub(super) fn take_failed(&mut self) -> Option<u32> {
        self.failed.pop()
    }

    /// A connection that has been drained.
    pub(super) fn take_drained(&mut self) -> Option<u32> {
        self.drained.pop()
    }
}
