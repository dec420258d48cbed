//! What a device says unasked.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rdma_core_sys::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
    ibv_async_event, ibv_qp,
};

use super::context::Context;

/// An event, acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A queue pair can do nothing more: it is in ERR, or about to be.
    QueuePair(*mut ibv_qp),
    /// A port has gone up or down. Queue pairs outlast that, if it is not for long.
    Port,
    /// All that was made from the device is lost.
    Device,
    /// Nothing has to be done.
    Other,
}

/// The events of a device.
#[derive(Debug)]
pub(super) struct Events {
    context: Arc<Context>,
}

impl Events {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Self> {
        let this = Self {
            context: Arc::clone(context),
        };
        rustix::io::ioctl_fionbio(this.fd(), true)?;
        Ok(this)
    }

    /// Readable when there is an event.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open.
        let fd = unsafe { (*self.context.as_ptr()).async_fd };
        // SAFETY: the descriptor is open while the context is, which `self` keeps so.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes an event, and acknowledges it at once: destroying what it is about would wait for that.
    pub(super) fn take(&self) -> Option<Event> {
        let verbs = self.context.verbs();
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open, and the event valid for a write.
        let result = unsafe { verbs.ibv_get_async_event(self.context.as_ptr(), &raw mut event) };
        if result != 0 {
            return None;
        }
        let told = match event.event_type {
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_PATH_MIG_ERR => {
                // SAFETY: an event of these kinds is about a queue pair; the pointer is compared only.
                Event::QueuePair(unsafe { event.element.qp })
            }
            IBV_EVENT_PORT_ERR | IBV_EVENT_PORT_ACTIVE => Event::Port,
            // A completion queue that has overflowed loses what its queue pairs did; they are counted so that none does.
            IBV_EVENT_DEVICE_FATAL | IBV_EVENT_CQ_ERR => Event::Device,
            _ => Event::Other,
        };
        // SAFETY: the event was taken above, and is acknowledged once.
        unsafe { verbs.ibv_ack_async_event(&raw mut event) };
        Some(told)
    }
}
