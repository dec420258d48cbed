//! What is made from an open device. Each piece owns what it needs, so that the end comes in the one order that is
//! allowed, however far the making came: queue pair, completion queue, registration, memory, domain, device.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys::{
    IBV_QPT_RC, IBV_WR_RDMA_WRITE, Verbs, ibv_comp_channel, ibv_cq, ibv_mr, ibv_pd, ibv_post_recv,
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_recv_wr, ibv_req_notify_cq,
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

/// What tells of completions to somebody who does not poll.
#[derive(Debug)]
pub(super) struct Channel {
    channel: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    context: Arc<Context>,
    _channel: Option<Arc<Channel>>,
}

/// The completion queues that some queue pairs share.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    /// Of what they send.
    pub(super) sends: Arc<CompletionQueue>,
    /// Of what they receive.
    pub(super) receives: Arc<CompletionQueue>,
}

/// A reliable connection's queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    qp: NonNull<ibv_qp>,
    number: u32,
    _queues: Queues,
    domain: Arc<Domain>,
}

/// How many work requests a queue pair is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) sends: u32,
    pub(super) sges: u32,
    pub(super) inline: u32,
    /// Receives, without scatter elements.
    pub(super) receives: u32,
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
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}
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

impl Channel {
    /// One that does not block.
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, Errno> {
        // SAFETY: the context is open.
        let channel = unsafe { context.verbs().ibv_create_comp_channel(context.as_ptr()) };
        let this = Self {
            channel: NonNull::new(channel).ok_or_else(Errno::last)?,
            context: Arc::clone(context),
        };
        rustix::io::ioctl_fionbio(&this, true).map_err(|errno| Errno(errno.raw_os_error()))?;
        Ok(Arc::new(this))
    }

    /// Takes all events, and acknowledges each: to destroy its queue would wait for that.
    pub(super) fn take_events(&self) {
        let verbs = self.context.verbs();
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        let channel = self.channel.as_ptr();
        // SAFETY: the channel is live, and both are valid for writes.
        while unsafe { verbs.ibv_get_cq_event(channel, &raw mut cq, &raw mut user) } == 0 {
            // SAFETY: the event is about a live queue: none is destroyed while its events are under way.
            unsafe { verbs.ibv_ack_cq_events(cq, 1) };
        }
    }
}

/// Readable while there is an event.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live; the library does not write to it after it was made.
        let fd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open while the channel is, which `self` keeps so.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl CompletionQueue {
    /// Makes a queue, of which a channel is told if there is one.
    pub(super) fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<Channel>>,
    ) -> Result<Arc<Self>, Errno> {
        let entries = c_int::try_from(entries).map_err(|_| Errno(libc::EINVAL))?;
        let events = channel.map_or(ptr::null_mut(), |it| it.channel.as_ptr());
        // SAFETY: the context is open, and so is the channel; there is no user's pointer.
        let cq = unsafe {
            context
                .verbs()
                .ibv_create_cq(context.as_ptr(), entries, ptr::null_mut(), events, 0)
        };
        Ok(Arc::new(Self {
            cq: NonNull::new(cq).ok_or_else(Errno::last)?,
            context: Arc::clone(context),
            _channel: channel.cloned(),
        }))
    }

    /// The next completion is told to the channel. False if the device does not do that.
    pub(super) fn arm(&self) -> bool {
        // SAFETY: the queue is live.
        unsafe { ibv_req_notify_cq(self.as_ptr(), 0) == 0 }
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }
}

impl QueuePair {
    /// Makes a queue pair, and says how many bytes it takes inline: no more than asked for.
    pub(super) fn new(
        domain: &Arc<Domain>,
        queues: &Queues,
        shape: Shape,
    ) -> Result<(Self, u32), Errno> {
        let mut init = ibv_qp_init_attr {
            send_cq: queues.sends.as_ptr(),
            recv_cq: queues.receives.as_ptr(),
            qp_type: IBV_QPT_RC,
            ..Default::default()
        };
        init.cap.max_send_wr = shape.sends;
        init.cap.max_send_sge = shape.sges;
        init.cap.max_inline_data = shape.inline;
        // Some drivers want a queue where nothing is ever received, and elements where none is used.
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (shape.receives.max(1), 1);
        // SAFETY: the domain and the queues are live and of one device; the attributes are valid.
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
            _queues: queues.clone(),
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

    /// Has it receive once more. Nothing is written to memory then.
    pub(super) fn receive(&self, wr_id: u64) -> Result<(), Errno> {
        // SAFETY: the queue pair is live.
        unsafe { post_receive(self.as_ptr(), wr_id) }
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

/// Has a queue pair receive once more, without scatter elements.
///
/// # Safety
///
/// The queue pair is live.
pub(super) unsafe fn post_receive(qp: *mut ibv_qp, wr_id: u64) -> Result<(), Errno> {
    let mut wr = ibv_recv_wr {
        wr_id,
        ..Default::default()
    };
    let mut bad = ptr::null_mut();
    // SAFETY: the caller's; the one request names no memory.
    let result = unsafe { ibv_post_recv(qp, &raw mut wr, &raw mut bad) };
    Errno::of_result(result).map_or(Ok(()), Err)
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
        // SAFETY: queue pairs keep it alive, so none uses it any more; events are acknowledged as soon as they are taken.
        let _ = unsafe { self.context.verbs().ibv_destroy_cq(self.as_ptr()) };
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: completion queues keep it alive, so none is told to it any more; it is destroyed once.
        let _ = unsafe {
            self.context
                .verbs()
                .ibv_destroy_comp_channel(self.channel.as_ptr())
        };
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it is live, and destroyed once. Events about it are acknowledged as soon as they are taken.
        let _ = unsafe { self.domain.verbs().ibv_destroy_qp(self.as_ptr()) };
    }
}
