//! Work requests that wait for the end of a round: each queue pair then gets its own as one chain, with one ring of the
//! doorbell.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use rdma_core_sys::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, ibv_post_send, ibv_qp, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};
use scalerpc_core::post::WrId;

use super::errno::Errno;
use super::failure::Unposted;

/// Work requests of a batch. A round of the server has at most 64 calls.
const WRS: usize = 128;
/// Elements of all their scatter lists.
const SGES: usize = 512;

/// A connection's work requests in the batch, linked as the device wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    head: *mut ibv_send_wr,
    tail: *mut ibv_send_wr,
}

impl Chain {
    pub(super) const EMPTY: Self = Self {
        head: ptr::null_mut(),
        tail: ptr::null_mut(),
    };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_null()
    }
}

/// What a work request says besides its scatter list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) wr_id: WrId,
    pub(super) remote: u64,
    pub(super) rkey: u32,
    pub(super) signaled: bool,
}

/// An array that is reached through pointers only, since its elements point to each other.
struct Array<T> {
    base: NonNull<[T]>,
}

impl<T: Clone + Default> Array<T> {
    fn new(len: usize) -> Self {
        let elements = vec![T::default(); len].into_boxed_slice();
        Self {
            base: NonNull::from(Box::leak(elements)),
        }
    }

    /// An element that is inside, or the end.
    ///
    /// # Safety
    ///
    /// `at` is at most the length.
    #[inline]
    unsafe fn at(&self, at: usize) -> *mut T {
        debug_assert!(at <= self.base.len());
        // SAFETY: the caller knows that it is inside, or at the end.
        unsafe { self.base.cast::<T>().as_ptr().add(at) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and this is its end.
        drop(unsafe { Box::from_raw(self.base.as_ptr()) });
    }
}

/// The batch.
pub(super) struct Batch {
    wrs: Array<ibv_send_wr>,
    used: usize,
    sges: Array<ibv_sge>,
    sges_used: usize,
    /// Bytes that go inline: their source is free again before they are posted. As many as the work requests of a
    /// batch can have.
    inline: Array<u8>,
    inline_used: usize,
    inline_max: usize,
}

impl Batch {
    pub(super) fn new(inline_max: usize) -> Self {
        Self {
            wrs: Array::new(WRS),
            used: 0,
            sges: Array::new(SGES),
            sges_used: 0,
            inline: Array::new(WRS * inline_max),
            inline_used: 0,
            inline_max,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// True if one more fits, with so many scatter elements.
    #[inline]
    pub(super) fn has_room(&self, sges: usize) -> bool {
        self.used < WRS && self.sges_used + sges <= SGES
    }

    /// Adds a WRITE of bytes that go inline.
    ///
    /// # Safety
    ///
    /// There is room, and there are no more bytes than go inline.
    #[inline]
    pub(super) unsafe fn write_inline(&mut self, chain: &mut Chain, head: Head, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.inline_max);
        // SAFETY: each of at most `WRS` work requests has at most `inline_max` of them.
        let copy = unsafe { self.inline.at(self.inline_used) };
        self.inline_used += bytes.len();
        // SAFETY: as above; nobody refers to that part of the array, and the source is not in it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
        let addr = copy.expose_provenance() as u64;
        // SAFETY: the caller's: there is room.
        let sge = unsafe { self.sge(addr, bytes.len(), 0) };
        // SAFETY: as above.
        unsafe { self.add(chain, head, IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, (sge, 1)) };
    }

    /// Adds a WRITE from registered memory.
    ///
    /// # Safety
    ///
    /// There is room.
    #[inline]
    pub(super) unsafe fn write(
        &mut self,
        chain: &mut Chain,
        head: Head,
        (addr, len, lkey): (u64, usize, u32),
    ) {
        // SAFETY: the caller's.
        let sge = unsafe { self.sge(addr, len, lkey) };
        // SAFETY: the caller's.
        unsafe { self.add(chain, head, IBV_WR_RDMA_WRITE, 0, (sge, 1)) };
    }

    /// The WRITE that was added last to a chain wakes the peer. Its immediate is zero, and says nothing.
    ///
    /// # Safety
    ///
    /// The chain ends with a WRITE of this batch.
    #[inline]
    pub(super) unsafe fn wake(&mut self, chain: &Chain) {
        // SAFETY: the caller's; nobody else refers to it before it is posted.
        unsafe { (*chain.tail).opcode = IBV_WR_RDMA_WRITE_WITH_IMM };
    }

    /// Adds a READ into pieces of registered memory, all of one length.
    ///
    /// # Safety
    ///
    /// There is room for one with so many scatter elements, at least one.
    pub(super) unsafe fn read(
        &mut self,
        chain: &mut Chain,
        head: Head,
        pieces: impl Iterator<Item = u64>,
        (len, lkey): (usize, u32),
    ) {
        // SAFETY: at most the length: this many are used.
        let first = unsafe { self.sges.at(self.sges_used) };
        let mut count = 0;
        for addr in pieces {
            // SAFETY: the caller's.
            unsafe { self.sge(addr, len, lkey) };
            count += 1;
        }
        // SAFETY: the caller's.
        unsafe { self.add(chain, head, IBV_WR_RDMA_READ, 0, (first, count)) };
    }

    /// Adds a scatter element.
    ///
    /// # Safety
    ///
    /// There is room.
    #[inline]
    unsafe fn sge(&mut self, addr: u64, len: usize, lkey: u32) -> *mut ibv_sge {
        // Some devices take a length of 0 for 2^31.
        debug_assert!(len > 0, "no scatter element is empty");
        // SAFETY: the caller's: fewer than `SGES` are used.
        let at = unsafe { self.sges.at(self.sges_used) };
        self.sges_used += 1;
        let length = len as u32;
        // SAFETY: it is inside, and nobody else refers to it before it is posted.
        unsafe { at.write(ibv_sge { addr, length, lkey }) };
        at
    }

    /// Adds a work request with this scatter list.
    ///
    /// # Safety
    ///
    /// There is room, and the chain's work requests are in this batch.
    #[inline]
    unsafe fn add(
        &mut self,
        chain: &mut Chain,
        head: Head,
        opcode: ibv_wr_opcode,
        flags: u32,
        (sg_list, count): (*mut ibv_sge, usize),
    ) {
        // SAFETY: the caller's: fewer than `WRS` are used.
        let at = unsafe { self.wrs.at(self.used) };
        self.used += 1;
        // SAFETY: it is inside, and nobody else refers to it before it is posted. What is not set here is zero.
        let wr = unsafe { &mut *at };
        wr.wr_id = head.wr_id.0;
        wr.next = ptr::null_mut();
        wr.sg_list = sg_list;
        wr.num_sge = count as i32;
        wr.opcode = opcode;
        wr.send_flags = flags | (u32::from(head.signaled) * IBV_SEND_SIGNALED);
        wr.wr.rdma.remote_addr = head.remote;
        wr.wr.rdma.rkey = head.rkey;
        if chain.is_empty() {
            chain.head = at;
        } else {
            // SAFETY: the caller's: the tail is another work request of this batch.
            unsafe { (*chain.tail).next = at };
        }
        chain.tail = at;
    }

    /// Posts a chain, which is empty afterwards.
    ///
    /// # Safety
    ///
    /// The queue pair is live, the chain's work requests were added since the last [`clear`](Self::clear), and every
    /// scatter element that is not inline names registered memory, which stays so until the work request has
    /// completed.
    #[inline]
    pub(super) unsafe fn post(
        &mut self,
        qp: *mut ibv_qp,
        chain: &mut Chain,
    ) -> Result<(), Unposted> {
        let Chain { head, .. } = std::mem::replace(chain, Chain::EMPTY);
        if head.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the caller has the queue pair; the chain ends with null; what is inline lies in this struct.
        let result = unsafe { ibv_post_send(qp, head, &raw mut bad) };
        match Errno::of_result(result) {
            None => Ok(()),
            Some(errno) => Err(count(head, bad, errno)),
        }
    }

    /// Forgets all work requests: every chain has been posted or given up.
    #[inline]
    pub(super) fn clear(&mut self) {
        (self.used, self.sges_used, self.inline_used) = (0, 0, 0);
    }
}

/// How far a chain of this batch was posted, by the first work request that was not.
#[cold]
fn count(head: *mut ibv_send_wr, bad: *mut ibv_send_wr, errno: Errno) -> Unposted {
    let mut broken = Unposted {
        errno,
        posted: 0,
        unposted: 0,
    };
    let mut at = head;
    while !at.is_null() {
        if broken.unposted > 0 || at == bad {
            broken.unposted += 1;
        } else {
            broken.posted += 1;
        }
        // SAFETY: a chain's links lead to work requests of the batch, and end with null.
        at = unsafe { (*at).next };
    }
    broken
}
