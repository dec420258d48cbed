//! A trial of a device: a queue pair that is connected to itself writes to memory of this process.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_SEND_SIGNALED, IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE, ibv_poll_cq, ibv_post_send, ibv_send_wr, ibv_sge, ibv_wc,
};
use scalerpc_core::Memory;
use scalerpc_hugepage::{HugeMemory, MemoryError, PagePolicy};

use super::ReliabilityOptions;
use super::device::OpenDevice;
use super::errno::Errno;
use super::error::{Place, Step, VerbsError};
use super::qp::{self, End, Pairing, Patience, Route};
use super::resources::{CompletionQueue, Domain, QueuePair, Queues, Registration, Shape};
use super::setup::SetupError;
use crate::mapping::Mapping;

/// What is written, from the first half of the memory to the second.
const BYTES: usize = 64;
/// The first takes longer than others.
const WRITES: u64 = 20;
/// Longer than a queue pair tries.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a trial showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trial {
    /// The bytes of a WRITE become visible in increasing address order: a poller may trust a message's last word.
    pub in_order: bool,
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

/// A queue pair that is its own peer.
struct Loop<'a> {
    device: &'a OpenDevice,
    pair: QueuePair,
    queue: Arc<CompletionQueue>,
    memory: Registration,
}

impl OpenDevice {
    /// Connects a queue pair of the port to itself, and WRITEs through it.
    ///
    /// # Errors
    ///
    /// The step that failed.
    pub fn try_out(&self) -> Result<Trial, SetupError> {
        let this = Loop::new(self)?;
        let in_order = this.pair.places_in_order();
        let mut write = Duration::MAX;
        for number in 1..=WRITES {
            write = write.min(this.write(number)?);
        }
        Ok(Trial { in_order, write })
    }

    fn to_itself(&self) -> Place {
        self.place().with_peer("itself")
    }
}

impl<'a> Loop<'a> {
    fn new(device: &'a OpenDevice) -> Result<Self, SetupError> {
        let memory = HugeMemory::builder("scalerpc-trial", 2 * BYTES);
        let memory = memory.policy(PagePolicy::Never).build()?;
        let bytes = memory.len() as u64;
        let mapping = Mapping::new(memory, 2 * BYTES, 2 * BYTES).ok_or(MemoryError::ZeroBytes)?;
        let failed = |step, verb| {
            move |errno| VerbsError::failed_to_lock(step, verb, device.to_itself(), errno, bytes)
        };
        let context = device.context();
        let domain =
            Domain::new(context).map_err(failed(Step::ProtectionDomain, "ibv_alloc_pd"))?;
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let memory = Registration::new(&domain, &Arc::new(mapping), access)
            .map_err(failed(Step::Register, "ibv_reg_mr"))?;
        let queue = CompletionQueue::new(context, 1, None)
            .map_err(failed(Step::CompletionQueue, "ibv_create_cq"))?;
        let queues = Queues {
            sends: Arc::clone(&queue),
            receives: Arc::clone(&queue),
        };
        let shape = Shape {
            sends: 1,
            sges: 1,
            inline: 0,
            receives: 0,
        };
        let (pair, _) = QueuePair::new(&domain, &queues, shape)
            .map_err(failed(Step::QueuePair, "ibv_create_qp"))?;
        let this = Self {
            device,
            pair,
            queue,
            memory,
        };
        this.connect()?;
        Ok(this)
    }

    fn connect(&self) -> Result<(), SetupError> {
        let device = self.device;
        let failed =
            |(step, errno)| VerbsError::failed(step, "ibv_modify_qp", device.to_itself(), errno);
        // Of the two ends, the one that may be written to and WRITEs with the fewest rights.
        qp::init(&self.pair, device, End::Server).map_err(failed)?;
        let route = Route {
            lid: device.port().lid(),
            gid: device.gid().bytes,
            mtu: device.mtu(),
            reads: 1,
        };
        let pairing = Pairing {
            peer: self.pair.number(),
            own_psn: 0,
            peer_psn: 0,
        };
        // A fifth of a second; some devices take four times as long.
        let patience = Patience::of(&ReliabilityOptions {
            timeout: 14,
            retries: 2,
        })?;
        qp::connect(&self.pair, device, End::Server, &route, pairing, patience).map_err(failed)?;
        Ok(())
    }

    /// Writes words that have not been there before, and says how long that took.
    fn write(&self, number: u64) -> Result<Duration, VerbsError> {
        let region = self.memory.mapping().region();
        for at in (0..BYTES).step_by(8) {
            region.store(at, number << 32 | at as u64);
        }
        let started = Instant::now();
        self.post()?;
        let wc = self.complete(started)?;
        let took = started.elapsed();
        if wc.status != IBV_WC_SUCCESS {
            let verbs = self.device.context().verbs();
            // SAFETY: the function takes any number.
            let text = unsafe { verbs.ibv_wc_status_str(wc.status) };
            // SAFETY: it answers with a text that ends with NUL and is never freed.
            let text = unsafe { CStr::from_ptr(text) };
            return Err(self.ended(Ended::Status {
                text: text.to_string_lossy().into_owned(),
                vendor_err: wc.vendor_err,
            }));
        }
        // Ordering: pairs with the device's; a completion that was polled is the proof that the bytes are there.
        fence(Ordering::Acquire);
        let same = |at| region.load(at) == region.load(BYTES + at);
        if (0..BYTES).step_by(8).all(same) {
            Ok(took)
        } else {
            Err(self.ended(Ended::Untrue))
        }
    }

    fn post(&self) -> Result<(), VerbsError> {
        let from = self.memory.address();
        let mut sge = ibv_sge {
            addr: from,
            length: BYTES as u32,
            lkey: self.memory.lkey(),
        };
        let mut wr = ibv_send_wr {
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = from + BYTES as u64;
        wr.wr.rdma.rkey = self.memory.rkey();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the request names registered memory. Should this value end before the request
        // does, the queue pair is destroyed first: its field comes first.
        let result = unsafe { ibv_post_send(self.pair.as_ptr(), &raw mut wr, &raw mut bad) };
        Errno::of_result(result).map_or(Ok(()), |errno| Err(self.failed("ibv_post_send", errno)))
    }

    fn complete(&self, started: Instant) -> Result<ibv_wc, VerbsError> {
        let mut wc = ibv_wc::default();
        loop {
            // SAFETY: the queue is live, and there is room for one completion.
            match unsafe { ibv_poll_cq(self.queue.as_ptr(), 1, &raw mut wc) } {
                0 if started.elapsed() < PATIENCE => std::thread::yield_now(),
                0 => return Err(self.ended(Ended::Silent(PATIENCE))),
                1 => return Ok(wc),
                other => {
                    let errno = Errno(other.saturating_abs());
                    return Err(self.failed("ibv_poll_cq", errno));
                }
            }
        }
    }

    fn failed(&self, verb: &'static str, errno: Errno) -> VerbsError {
        VerbsError::failed(Step::Trial, verb, self.device.to_itself(), errno)
    }

    fn ended(&self, ended: Ended) -> VerbsError {
        VerbsError::TrialFailed {
            place: Box::new(self.device.to_itself()),
            ended,
        }
    }
}
