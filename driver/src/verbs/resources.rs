//! What is made from an open device. Each piece owns what it needs, so that the end comes in the one order that is
//! allowed, however far the making came: queue pair, completion queue, registration, memory, domain, device.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys::{
    IBV_QPT_RC, IBV_WR_RDMA_WRITE, Verbs, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_init_attr,
};

use super::context::Context;
use super::errno::Errno;
use crate::mapping::Mapping;

/// A protection domain.
#[derive(Debug)]
pub(super) struct Domain {
    pd: NonNull<ibv_pd>,
    context: Arc<Context>,
}

/// Memory that a device may reach.
#[derive(Debug)]
pub(super) struct Registration {
    mr: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    mapping: Arc<Mapping>,
    domain: Arc<Domain>,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    context: Arc<Context>,
}

/// A reliable connection's queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    qp: NonNull<ibv_qp>,
    number: u32,
    _queue: Arc<CompletionQueue>,
    domain: Arc<Domain>,
}

/// How many work requests a queue pair is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) sends: u32,
    pub(super) sges: u32,
    pub(super) inline: u32,
}

// SAFETY: verbs may be called from any thread; the library and the drivers lock what they have to. Nothing is bound to
// the thread that made it, and each pointer is used only while its owner lives.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}
// SAFETY: as above.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}
// SAFETY: as above.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}
// SAFETY: as above.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl Domain {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, Errno> {
        // SAFETY: the context is open.
        let pd = unsafe { context.verbs().ibv_alloc_pd(context.as_ptr()) };
        Ok(Arc::new(Self {
            pd: NonNull::new(pd).ok_or_else(Errno::last)?,
            context: Arc::clone(context),
        }))
    }

    fn verbs(&self) -> &'static Verbs {
        self.context.verbs()
    }
}

impl Registration {
    /// Registers all pages of `mapping`: some kernels register whole hugepages only.
    pub(super) fn new(
        domain: &Arc<Domain>,
        mapping: &Arc<Mapping>,
        access: c_uint,
    ) -> Result<Self, Errno> {
        let memory = mapping.memory();
        let start = memory.as_ptr().as_ptr().cast();
        // SAFETY: the domain is live; the memory stays mapped until the mapping is dropped, which this struct keeps
        // from happening before the registration has ended. Rust code reaches it by atomics, or as bytes that the
        // protocol says nobody writes to.
        let mr = unsafe {
            domain
                .verbs()
                .ibv_reg_mr(domain.pd.as_ptr(), start, memory.len(), access)
        };
        let mr = NonNull::new(mr).ok_or_else(Errno::last)?;
        // SAFETY: the library has just made it.
        let lkey = unsafe { (*mr.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*mr.as_ptr()).rkey };
        Ok(Self {
            mr,
            lkey,
            rkey,
            mapping: Arc::clone(mapping),
            domain: Arc::clone(domain),
        })
    }

    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The address by which work requests name the first byte, here and at the peer.
    pub(super) fn address(&self) -> u64 {
        self.mapping.memory().as_ptr().as_ptr().expose_provenance() as u64
    }
}

impl CompletionQueue {
    pub(super) fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>, Errno> {
        let entries = c_int::try_from(entries).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: the context is open; there is neither a user's pointer nor a channel.
        let cq = unsafe {
            context.verbs().ibv_create_cq(
                context.as_ptr(),
                entries,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        Ok(Arc::new(Self {
            cq: NonNull::new(cq).ok_or_else(Errno::last)?,
            context: Arc::clone(context),
        }))
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }
}

impl QueuePair {
    /// Makes a queue pair, and says how many bytes it takes inline: no more than asked for.
    pub(super) fn new(
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        shape: Shape,
    ) -> Result<(Self, u32), Errno> {
        let mut init = ibv_qp_init_attr {
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            qp_type: IBV_QPT_RC,
            ..Default::default()
        };
        init.cap.max_send_wr = shape.sends;
        init.cap.max_send_sge = shape.sges;
        init.cap.max_inline_data = shape.inline;
        // Nothing is ever received by a work request of this end, but some drivers want a queue.
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (1, 1);
        // SAFETY: the domain and the queue are live and of one device; the attributes are valid.
        let qp = unsafe {
            domain
                .verbs()
                .ibv_create_qp(domain.pd.as_ptr(), &raw mut init)
        };
        let qp = NonNull::new(qp).ok_or_else(Errno::last)?;
        // SAFETY: the library has just made it.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        let this = Self {
            qp,
            number,
            _queue: Arc::clone(queue),
            domain: Arc::clone(domain),
        };
        Ok((this, init.cap.max_inline_data.min(shape.inline)))
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Valid until `self` is dropped.
    pub(super) fn as_ptr(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    pub(super) fn modify(
        &self,
        attr: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), Errno> {
        let mask = mask as c_int;
        // SAFETY: the queue pair is live, and the attributes are valid.
        let result = unsafe { self.domain.verbs().ibv_modify_qp(self.as_ptr(), attr, mask) };
        Errno::of_result(result).map_or(Ok(()), Err)
    }

    /// Whether what a peer WRITEs through it becomes visible in increasing address order. To be asked in RTS.
    pub(super) fn places_in_order(&self) -> bool {
        let verbs = self.domain.verbs();
        // SAFETY: the queue pair is live.
        let answer =
            unsafe { verbs.ibv_query_qp_data_in_order(self.as_ptr(), IBV_WR_RDMA_WRITE, 0) };
        answer == 1
    }
}

// What destroying can fail with is of no use any more: nothing of this end refers to the thing.

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: whatever was made in it kept it alive, so nothing of that is left.
        let _ = unsafe { self.verbs().ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it is live, and ended once.
        let _ = unsafe { self.domain.verbs().ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep it alive, so none uses it any more; there is no channel, so no event of it waits for
        // an acknowledgement.
        let _ = unsafe { self.context.verbs().ibv_destroy_cq(self.as_ptr()) };
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it is live, and destroyed once. Events about it are acknowledged as soon as they are taken.
        let _ = unsafe { self.domain.verbs().ibv_destroy_qp(self.as_ptr()) };
    }
}
