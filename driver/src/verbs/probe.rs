//! A trial of a device: a queue pair that is connected to itself writes to memory of this process.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR,
    IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE, Verbs, ibv_cq,
    ibv_mr, ibv_pd, ibv_poll_cq, ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_init_attr, ibv_send_wr, ibv_sge, ibv_wc,
};

use super::device::OpenDevice;
use super::errno::Errno;
use super::error::{Place, Step, VerbsError};

/// What is written, from the first half of the memory to the second.
const WORDS: usize = 8;
/// The first takes longer than others.
const WRITES: usize = 20;
/// Longer than a queue pair tries with the values below.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a trial showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trial {
    /// The bytes of a WRITE become visible in increasing address order: a poller may trust a message's last word.
    pub in_order: bool,
    /// Bytes that a work request may carry itself, of the least that can be asked for.
    pub inline_bytes: u32,
    /// From the post of a WRITE to its completion, at best.
    pub write: Duration,
}

/// How a WRITE ended that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// Not at all, in this time.
    Silent(Duration),
    /// With this status, in the library's words.
    Status {
        /// The words.
        text: String,
        /// The driver's own code.
        vendor_err: u32,
    },
    /// Well, and the bytes are not there.
    Untrue,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(time) => write!(f, "no completion within {time:?}"),
            Self::Status { text, vendor_err } => write!(f, "{text} (vendor error {vendor_err:#x})"),
            Self::Untrue => f.write_str("it completed, and its bytes are not there"),
        }
    }
}

impl OpenDevice {
    /// Connects a queue pair of the port to itself, and WRITEs through it.
    ///
    /// # Errors
    ///
    /// The step that failed.
    pub fn try_out(&self) -> Result<Trial, VerbsError> {
        let memory: [AtomicU64; 2 * WORDS] = std::array::from_fn(|index| {
            AtomicU64::new(if index < WORDS { index as u64 + 1 } else { 0 })
        });
        // In this order they are made; in the reverse order they are dropped, before the memory is.
        let pd = Pd::new(self)?;
        let mr = Mr::new(self, &pd, &memory)?;
        let cq = Cq::new(self)?;
        let (qp, inline_bytes) = Qp::new(self, &pd, &cq)?;
        self.connect_to_itself(&qp)?;
        // SAFETY: the queue pair is live.
        let in_order = unsafe {
            self.verbs()
                .ibv_query_qp_data_in_order(qp.0.as_ptr(), IBV_WR_RDMA_WRITE, 0)
        };
        let mut write = Duration::MAX;
        for _ in 0..WRITES {
            write = write.min(self.write_to_itself(&memory, &mr, &cq, &qp)?);
        }
        Ok(Trial {
            in_order: in_order != 0,
            inline_bytes,
            write,
        })
    }

    fn verbs(&self) -> &'static Verbs {
        self.context().verbs()
    }

    fn connect_to_itself(&self, qp: &Qp) -> Result<(), VerbsError> {
        let init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: self.port().number(),
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE,
            ..Default::default()
        };
        let mask = IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
        self.modify(qp, Step::Init, init, mask)?;
        let rtr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: self.mtu().to_verbs(),
            // SAFETY: the queue pair is live, and its number never changes.
            dest_qp_num: unsafe { (*qp.0.as_ptr()).qp_num },
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: self.route_to(self.port().lid(), self.gid().bytes),
            ..Default::default()
        };
        let mask = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(qp, Step::Rtr, rtr, mask)?;
        // Some 70 ms a try.
        let rts = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 3,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let mask = IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(qp, Step::Rts, rts, mask)
    }

    fn modify(
        &self,
        qp: &Qp,
        step: Step,
        mut attr: ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        let mask = (mask | IBV_QP_STATE) as c_int;
        // SAFETY: the queue pair is live, and the attributes are whole.
        let result = unsafe {
            self.verbs()
                .ibv_modify_qp(qp.0.as_ptr(), &raw mut attr, mask)
        };
        let failed = |errno| VerbsError::failed(step, "ibv_modify_qp", self.to_itself(), errno);
        Errno::of_result(result).map_or(Ok(()), |errno| Err(failed(errno)))
    }

    fn to_itself(&self) -> Place {
        self.place().with_peer("itself")
    }

    fn write_to_itself(
        &self,
        memory: &[AtomicU64; 2 * WORDS],
        mr: &Mr,
        cq: &Cq,
        qp: &Qp,
    ) -> Result<Duration, VerbsError> {
        let bytes = size_of_val(memory) / 2;
        let from = memory.as_ptr().expose_provenance() as u64;
        let mut sge = ibv_sge {
            addr: from,
            length: bytes as u32,
            lkey: mr.key(false),
        };
        let mut wr = ibv_send_wr {
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = from + bytes as u64;
        wr.wr.rdma.rkey = mr.key(true);
        for word in &memory[WORDS..] {
            word.store(0, Ordering::Relaxed);
        }
        let mut bad = ptr::null_mut();
        let started = Instant::now();
        // SAFETY: the queue pair is live; the request names registered memory, which outlives the queue pair.
        let result = unsafe { ibv_post_send(qp.0.as_ptr(), &raw mut wr, &raw mut bad) };
        if let Some(errno) = Errno::of_result(result) {
            let place = self.to_itself();
            return Err(VerbsError::failed(
                Step::Trial,
                "ibv_post_send",
                place,
                errno,
            ));
        }
        let failed = |ended| VerbsError::TrialFailed {
            place: Box::new(self.to_itself()),
            ended,
        };
        let mut wc = ibv_wc::default();
        loop {
            // SAFETY: the queue is live, and there is room for one completion.
            match unsafe { ibv_poll_cq(cq.0.as_ptr(), 1, &raw mut wc) } {
                0 if started.elapsed() < PATIENCE => std::thread::yield_now(),
                0 => return Err(failed(Ended::Silent(PATIENCE))),
                1 => break,
                other => {
                    let errno = Errno(other.saturating_abs());
                    let place = self.to_itself();
                    return Err(VerbsError::failed(Step::Trial, "ibv_poll_cq", place, errno));
                }
            }
        }
        let took = started.elapsed();
        if wc.status != IBV_WC_SUCCESS {
            // SAFETY: the function takes any number.
            let text = unsafe { self.verbs().ibv_wc_status_str(wc.status) };
            // SAFETY: it answers with a text that ends with NUL and is never freed.
            let text = unsafe { CStr::from_ptr(text) };
            return Err(failed(Ended::Status {
                text: text.to_string_lossy().into_owned(),
                vendor_err: wc.vendor_err,
            }));
        }
        // Ordering: pairs with the device's; a completion that was polled is the proof that the bytes are there.
        fence(Ordering::Acquire);
        let arrived = (0..WORDS).all(|index| {
            memory[index].load(Ordering::Relaxed) == memory[WORDS + index].load(Ordering::Relaxed)
        });
        if arrived {
            Ok(took)
        } else {
            Err(failed(Ended::Untrue))
        }
    }
}

/// A protection domain.
struct Pd(NonNull<ibv_pd>, &'static Verbs);

impl Pd {
    fn new(device: &OpenDevice) -> Result<Self, VerbsError> {
        let verbs = device.verbs();
        // SAFETY: the context is open.
        let pd = unsafe { verbs.ibv_alloc_pd(device.context().as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| {
            let errno = Errno::last();
            VerbsError::failed(
                Step::ProtectionDomain,
                "ibv_alloc_pd",
                device.place(),
                errno,
            )
        })?;
        Ok(Self(pd, verbs))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: what was made in it was dropped before.
        let _ = unsafe { self.1.ibv_dealloc_pd(self.0.as_ptr()) };
    }
}

/// A registration.
struct Mr(NonNull<ibv_mr>, &'static Verbs);

impl Mr {
    /// The memory must outlive the value, which its only user sees to.
    fn new(device: &OpenDevice, pd: &Pd, memory: &[AtomicU64]) -> Result<Self, VerbsError> {
        let verbs = device.verbs();
        let bytes = size_of_val(memory);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let start = memory.as_ptr().cast_mut().cast();
        // SAFETY: the domain is live; the memory is made of atomics, and stays until the registration has ended.
        let mr = unsafe { verbs.ibv_reg_mr(pd.0.as_ptr(), start, bytes, access) };
        let mr = NonNull::new(mr).ok_or_else(|| {
            let errno = Errno::last();
            let place = device.place();
            VerbsError::failed_to_lock(Step::Register, "ibv_reg_mr", place, errno, bytes as u64)
        })?;
        Ok(Self(mr, verbs))
    }

    fn key(&self, remote: bool) -> u32 {
        let mr = self.0.as_ptr();
        if remote {
            // SAFETY: the registration is live.
            unsafe { (*mr).rkey }
        } else {
            // SAFETY: as above.
            unsafe { (*mr).lkey }
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: it is live, and the queue pair that used it is gone.
        let _ = unsafe { self.1.ibv_dereg_mr(self.0.as_ptr()) };
    }
}

/// A completion queue.
struct Cq(NonNull<ibv_cq>, &'static Verbs);

impl Cq {
    fn new(device: &OpenDevice) -> Result<Self, VerbsError> {
        let verbs = device.verbs();
        let none = ptr::null_mut();
        let context = device.context().as_ptr();
        // SAFETY: the context is open; there is neither a user context nor a channel.
        let cq = unsafe { verbs.ibv_create_cq(context, 1, none, ptr::null_mut(), 0) };
        let cq = NonNull::new(cq).ok_or_else(|| {
            let (errno, place) = (Errno::last(), device.place());
            // At least a page of entries.
            VerbsError::failed_to_lock(Step::CompletionQueue, "ibv_create_cq", place, errno, 4096)
        })?;
        Ok(Self(cq, verbs))
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: it is live, and its queue pair is gone.
        let _ = unsafe { self.1.ibv_destroy_cq(self.0.as_ptr()) };
    }
}

/// A queue pair.
struct Qp(NonNull<ibv_qp>, &'static Verbs);

impl Qp {
    /// With the bytes that a work request of it may carry.
    fn new(device: &OpenDevice, pd: &Pd, cq: &Cq) -> Result<(Self, u32), VerbsError> {
        let verbs = device.verbs();
        let mut init = ibv_qp_init_attr {
            send_cq: cq.0.as_ptr(),
            recv_cq: cq.0.as_ptr(),
            qp_type: IBV_QPT_RC,
            ..Default::default()
        };
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        // SAFETY: the domain and the queue are live, and outlive the queue pair.
        let qp = unsafe { verbs.ibv_create_qp(pd.0.as_ptr(), &raw mut init) };
        let qp = NonNull::new(qp).ok_or_else(|| {
            let (errno, place) = (Errno::last(), device.place());
            VerbsError::failed_to_lock(Step::QueuePair, "ibv_create_qp", place, errno, 4096)
        })?;
        Ok((Self(qp, verbs), init.cap.max_inline_data))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: it is live. Nothing reaches the memory through it once this returns.
        let _ = unsafe { self.1.ibv_destroy_qp(self.0.as_ptr()) };
    }
}
