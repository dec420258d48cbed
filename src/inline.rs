//! The verbs that C has as inline functions and that need nothing but a device's tables of functions.
//!
//! Where a table lacks a function, C calls a null pointer; here the answer is `EOPNOTSUPP`.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr;

use crate::bindings::types::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq,
    ibv_wc, verbs_context,
};

/// The mark in `ibv_context::abi_compat` that says: this context is the end of a [`verbs_context`].
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// The larger structure that a context is the end of; null if it is not.
///
/// # Safety
///
/// `context` must come from libibverbs, and be open.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the context is open, so its fields can be read.
    if unsafe { (*context).abi_compat } != VERBS_ABI_IS_EXTENDED {
        return ptr::null_mut();
    }
    context
        .wrapping_byte_sub(offset_of!(verbs_context, context))
        .cast()
}

/// An operation in the table of a queue's device.
macro_rules! op {
    ($queue:expr, $op:ident) => {{
        // SAFETY: the callers of this macro have the queue from their own caller, and it is live.
        let context = unsafe { (*$queue).context };
        // SAFETY: a live queue has a live context.
        unsafe { (*context).ops.$op }
    }};
}

/// An operation of a device's extended table: `None` if the table ends before it, or has none there. The table grows
/// downwards from the context, and `sz` is its size in the library that made it.
macro_rules! context_op {
    ($context:expr, $op:ident) => {{
        let context: *mut $crate::ibv_context = $context;
        // SAFETY: the callers of this macro have the context from their own caller, and it is open.
        let extended = unsafe { $crate::verbs_get_ctx(context) };
        let needed =
            size_of::<$crate::verbs_context>() - core::mem::offset_of!($crate::verbs_context, $op);
        // SAFETY: `sz` lies just before the context, in every version.
        if extended.is_null() || unsafe { (*extended).sz } < needed {
            None
        } else {
            // SAFETY: the table reaches from the context down to this operation.
            unsafe { (*extended).$op }
        }
    }};
}
pub(crate) use context_op;

/// What inline functions that return a pointer do where the device has no such operation.
pub(crate) fn not_supported<T>() -> *mut T {
    // SAFETY: the function has no demands.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: it is the place of this thread's `errno`.
    unsafe { *errno = libc::EOPNOTSUPP };
    ptr::null_mut()
}

/// Posts a list of work requests to a send queue. Returns 0 or the value of `errno`; then `bad_wr` is the first
/// request that was not posted.
///
/// # Safety
///
/// `qp` must be a live queue pair; `wr` a list of valid work requests, whose memory stays registered and, unless it
/// is sent inline, unchanged until they complete; `bad_wr` must be valid for a write.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    match op!(qp, post_send) {
        // SAFETY: the caller's duties are the driver's.
        Some(post_send) => unsafe { post_send(qp, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts a list of work requests to a receive queue. Returns 0 or the value of `errno`; then `bad_wr` is the first
/// request that was not posted.
///
/// # Safety
///
/// `qp` must be a live queue pair; `wr` a list of valid work requests, whose memory stays registered and untouched
/// until they complete; `bad_wr` must be valid for a write.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    match op!(qp, post_recv) {
        // SAFETY: the caller's duties are the driver's.
        Some(post_recv) => unsafe { post_recv(qp, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts a list of work requests to a shared receive queue. Returns 0 or the value of `errno`; then `bad_wr` is the
/// first request that was not posted.
///
/// # Safety
///
/// As for [`ibv_post_recv`], with a live shared receive queue.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    match op!(srq, post_srq_recv) {
        // SAFETY: the caller's duties are the driver's.
        Some(post_srq_recv) => unsafe { post_srq_recv(srq, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Takes up to `num_entries` completions from a queue. Returns how many there were, or a negative number on error.
///
/// # Safety
///
/// `cq` must be a live completion queue, and `wc` valid for writes of `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    match op!(cq, poll_cq) {
        // SAFETY: the caller's duties are the driver's.
        Some(poll_cq) => unsafe { poll_cq(cq, num_entries, wc) },
        None => -libc::EOPNOTSUPP,
    }
}

/// Asks for an event at the next completion, or, if `solicited_only` is not 0, at the next one whose sender asked for
/// an event or that failed. Returns 0 or the value of `errno`.
///
/// # Safety
///
/// `cq` must be a live completion queue.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    match op!(cq, req_notify_cq) {
        // SAFETY: the caller's duties are the driver's.
        Some(req_notify_cq) => unsafe { req_notify_cq(cq, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}

/// Makes a completion queue with attributes that `ibv_create_cq` cannot give, such as
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`. Returns null and sets `errno` on error: `EOPNOTSUPP` if the device's driver
/// has no such operation or does not know an attribute.
///
/// # Safety
///
/// `context` must be open, and `attr` valid.
#[inline]
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    match context_op!(context, create_cq_ex) {
        // SAFETY: the caller's duties are the driver's.
        Some(create_cq_ex) => unsafe { create_cq_ex(context, attr) },
        None => not_supported(),
    }
}

/// The completion queue that an extended one begins with.
#[inline]
#[must_use]
pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}
