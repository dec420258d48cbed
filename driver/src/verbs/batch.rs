//! Work requests that wait for the end of a round: each queue pair then gets its own as one chain, with one ring of the
//! doorbell.
#![allow(unsafe_code)]

use std::ptr;

use rdma_core_sys::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, ibv_post_send, ibv_qp,
    ibv_send_wr, ibv_sge,
};
use scalerpc_core::post::WrId;

use super::errno::Errno;
use super::failure::Unposted;

/// Work requests of a batch. A round of the server has at most 64 calls.
const WRS: usize = 128;
/// Elements of all their scatter lists.
const SGES: usize = 512;
/// No work request.
const NONE: u32 = u32::MAX;

/// A connection's work requests in the batch, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    head: u32,
    tail: u32,
}

impl Chain {
    pub(super) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
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

/// The batch.
pub(super) struct Batch {
    wrs: Box<[ibv_send_wr]>,
    /// By work request: the next one of its chain, and its first scatter element.
    links: Box<[(u32, u32)]>,
    used: usize,
    sges: Box<[ibv_sge]>,
    sges_used: usize,
    /// By work request: bytes that go inline. Their source is free again before they are posted.
    inline: Box<[u8]>,
    inline_max: usize,
}

impl Batch {
    pub(super) fn new(inline_max: usize) -> Self {
        Self {
            wrs: vec![ibv_send_wr::default(); WRS].into(),
            links: vec![(NONE, 0); WRS].into(),
            used: 0,
            sges: vec![ibv_sge::default(); SGES].into(),
            sges_used: 0,
            inline: vec![0; WRS * inline_max].into(),
            inline_max,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// True if one more fits, with so many scatter elements.
    #[inline]
    pub(super) fn has_room(&self, sges: usize) -> bool {
        self.used < WRS && self.sges_used + sges <= SGES
    }

    /// Adds a WRITE of bytes that `fill` copies. There is room, also for `len` bytes inline.
    #[inline]
    pub(super) fn write_inline(
        &mut self,
        chain: &mut Chain,
        head: Head,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let at = self.used * self.inline_max;
        let bytes = &mut self.inline[at..at + len];
        fill(bytes);
        let addr = bytes.as_ptr().expose_provenance() as u64;
        self.sge(addr, len, 0);
        let wr = self.add(chain, head, 1);
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.send_flags |= IBV_SEND_INLINE;
    }

    /// Adds a WRITE from registered memory. There is room.
    #[inline]
    pub(super) fn write(
        &mut self,
        chain: &mut Chain,
        head: Head,
        (addr, len, lkey): (u64, usize, u32),
    ) {
        self.sge(addr, len, lkey);
        self.add(chain, head, 1).opcode = IBV_WR_RDMA_WRITE;
    }

    /// Adds a READ into pieces of registered memory, all of one length. There is room.
    #[inline]
    pub(super) fn read(
        &mut self,
        chain: &mut Chain,
        head: Head,
        pieces: impl Iterator<Item = u64>,
        (len, lkey): (usize, u32),
    ) {
        let mut count = 0;
        for addr in pieces {
            self.sge(addr, len, lkey);
            count += 1;
        }
        self.add(chain, head, count).opcode = IBV_WR_RDMA_READ;
    }

    #[inline]
    fn sge(&mut self, addr: u64, len: usize, lkey: u32) {
        // Some devices take a length of 0 for 2^31.
        debug_assert!(len > 0, "no scatter element is empty");
        self.sges[self.sges_used] = ibv_sge {
            addr,
            length: len as u32,
            lkey,
        };
        self.sges_used += 1;
    }

    /// Adds a work request whose scatter list is the last `count` elements.
    #[inline]
    fn add(&mut self, chain: &mut Chain, head: Head, count: usize) -> &mut ibv_send_wr {
        let at = self.used as u32;
        self.used += 1;
        match chain.tail {
            NONE => chain.head = at,
            tail => self.links[tail as usize].0 = at,
        }
        chain.tail = at;
        self.links[at as usize] = (NONE, (self.sges_used - count) as u32);
        let wr = &mut self.wrs[at as usize];
        *wr = ibv_send_wr {
            wr_id: head.wr_id.0,
            num_sge: count as i32,
            send_flags: if head.signaled {
                IBV_SEND_SIGNALED
            } else {
                Default::default()
            },
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = head.remote;
        wr.wr.rdma.rkey = head.rkey;
        wr
    }

    /// Posts a chain, which is empty afterwards.
    ///
    /// # Safety
    ///
    /// The queue pair is live, and every scatter element that is not inline names registered memory, which stays so
    /// until the work request has completed.
    pub(super) unsafe fn post(
        &mut self,
        qp: *mut ibv_qp,
        chain: &mut Chain,
    ) -> Result<(), Unposted> {
        let Chain { head, .. } = std::mem::replace(chain, Chain::EMPTY);
        if head == NONE {
            return Ok(());
        }
        let wrs = self.wrs.as_mut_ptr();
        let sges = self.sges.as_mut_ptr();
        let mut at = head;
        while at != NONE {
            let (next, sge) = self.links[at as usize];
            // SAFETY: links hold indices of work requests that were added, so they are inside of the array.
            let wr = unsafe { wrs.add(at as usize) };
            // SAFETY: as above, with scatter elements; nobody else refers to the work request.
            unsafe { (*wr).sg_list = sges.wrapping_add(sge as usize) };
            let follower = match next {
                NONE => ptr::null_mut(),
                next => wrs.wrapping_add(next as usize),
            };
            // SAFETY: as above.
            unsafe { (*wr).next = follower };
            at = next;
        }
        let mut bad = ptr::null_mut();
        let first = wrs.wrapping_add(head as usize);
        // SAFETY: the caller has the queue pair; the chain ends with null; what is inline lies in this struct.
        let result = unsafe { ibv_post_send(qp, first, &raw mut bad) };
        match Errno::of_result(result) {
            None => Ok(()),
            Some(errno) => Err(self.count(head, bad.addr(), errno)),
        }
    }

    /// How far a chain was posted, by the address of the first work request that was not.
    #[cold]
    fn count(&self, head: u32, bad: usize, errno: Errno) -> Unposted {
        let mut broken = Unposted {
            errno,
            posted: 0,
            unposted: 0,
        };
        let mut at = head;
        while at != NONE {
            let address = ptr::from_ref(&self.wrs[at as usize]).addr();
            if broken.unposted > 0 || address == bad {
                broken.unposted += 1;
            } else {
                broken.posted += 1;
            }
            at = self.links[at as usize].0;
        }
        broken
    }

    /// Forgets all work requests: every chain has been posted or given up.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.sges_used = 0;
    }
}
