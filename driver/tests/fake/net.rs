//! Queue pairs and memory of a fake: what is posted is done at once, unless it is held back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rdma_core_sys::*;

/// A registration.
#[derive(Clone, Copy, Debug)]
pub struct Mr {
    pub addr: u64,
    pub len: u64,
    pub access: u32,
}

/// A work request, as it was posted.
#[derive(Clone, Debug)]
pub struct Wr {
    pub id: u64,
    pub read: bool,
    /// A WRITE that takes a receive of the peer's.
    pub immediate: bool,
    pub signaled: bool,
    /// Address, length and key.
    pub sges: Vec<(u64, u32, u32)>,
    /// Bytes that came with it.
    pub inline: Option<Vec<u8>>,
    pub remote: u64,
    pub rkey: u32,
}

/// A queue pair.
#[derive(Clone)]
pub struct Qp {
    pub state: ibv_qp_state,
    pub cq: usize,
    pub cap: ibv_qp_cap,
    pub access: u32,
    pub attr: ibv_qp_attr,
    pub peer: u32,
    pub psn: (u32, u32),
    pub outstanding: VecDeque<Wr>,
    /// The queue for completions of receives, and the receives.
    pub recv_cq: usize,
    pub receives: VecDeque<u64>,
}

impl Qp {
    pub fn new((cq, recv_cq): (usize, usize), cap: ibv_qp_cap) -> Self {
        Self {
            state: IBV_QPS_RESET,
            cq,
            recv_cq,
            receives: VecDeque::new(),
            cap,
            access: 0,
            attr: ibv_qp_attr::default(),
            peer: 0,
            psn: (0, 0),
            outstanding: VecDeque::new(),
        }
    }
}

/// What there is, and how unkind it is.
#[derive(Default)]
pub struct Net {
    pub qps: BTreeMap<u32, Qp>,
    /// By address of the queue: capacity and contents.
    pub cqs: BTreeMap<usize, (usize, VecDeque<ibv_wc>)>,
    /// By address of the queue: its channel's descriptor.
    pub channels: BTreeMap<usize, i32>,
    /// Queues whose next completion is an event.
    pub armed: BTreeSet<usize>,
    /// Events of queues that wait to be taken: descriptor and queue.
    pub told: VecDeque<(i32, usize)>,
    /// By key. That of the peer has its highest bit set, too.
    pub mrs: BTreeMap<u32, Mr>,
    pub next_number: u32,
    pub next_key: u32,
    /// Most bytes that queue pairs take inline; more is refused.
    pub inline_max: u32,
    /// The order of bytes that the device promises.
    pub in_order: bool,
    /// Nothing that is posted gets under way.
    pub hold: bool,
    /// What is posted is not done, and said to be.
    pub lazy: bool,
    /// The next work request ends so.
    pub status: Option<u32>,
    /// Of the next chain, the work request with this index is refused, with this number.
    pub refuse: Option<(u32, i32)>,
    /// Chains posted.
    pub chains: u64,
    /// Registrations so far: access flags.
    pub registered: Vec<u32>,
    /// Events that wait to be taken.
    pub events: VecDeque<ibv_async_event>,
    /// Descriptors by which open contexts are told of events.
    pub contexts: Vec<i32>,
    /// Changes the operations of a context that is opened.
    pub operations: Option<fn(&mut ibv_context_ops)>,
    /// What no user of verbs may do.
    pub misuse: Vec<String>,
}

// SAFETY: the pointers in attributes and events are never followed.
unsafe impl Send for Net {}

/// Bit of a key that is the peer's.
pub const REMOTE_KEY: u32 = 1 << 31;
/// As a driver would say more.
pub const VENDOR_ERR: u32 = 0x99;

impl Net {
    fn blame(&mut self, what: impl Into<String>) {
        self.misuse.push(what.into());
    }

    fn within(&self, key: u32, addr: u64, len: u64, access: u32) -> bool {
        self.mrs.get(&key).is_some_and(|mr| {
            let end = addr.checked_add(len);
            mr.access & access == access
                && addr >= mr.addr
                && end.is_some_and(|end| end <= mr.addr + mr.len)
        })
    }

    /// Takes one work request of a chain; an error refuses it.
    pub fn post(&mut self, number: u32, wr: Wr) -> Result<(), i32> {
        let total: u32 = wr.sges.iter().map(|sge| sge.1).sum();
        if wr.sges.is_empty() || wr.sges.iter().any(|sge| sge.1 == 0) {
            self.blame("an empty scatter element");
        }
        let Some(qp) = self.qps.get(&number) else {
            self.blame("a post to a queue pair that is gone");
            return Err(libc::EINVAL);
        };
        if !matches!(qp.state, IBV_QPS_RTS | IBV_QPS_ERR) {
            self.blame("a post before RTS");
            return Err(libc::EINVAL);
        }
        if qp.outstanding.len() as u32 >= qp.cap.max_send_wr {
            self.blame("a full send queue");
            return Err(libc::ENOMEM);
        }
        if wr.sges.len() as u32 > qp.cap.max_send_sge
            || (wr.inline.is_some() && total > qp.cap.max_inline_data)
        {
            return Err(libc::EINVAL);
        }
        for &(addr, len, key) in wr.sges.iter().filter(|_| wr.inline.is_none()) {
            if !self.within(key, addr, len.into(), 0) {
                self.blame("local memory that is not registered");
            }
        }
        if let Some(qp) = self.qps.get_mut(&number) {
            qp.outstanding.push_back(wr);
        }
        Ok(())
    }

    /// Does what was posted, or flushes it.
    pub fn run(&mut self, number: u32) {
        loop {
            let Some(qp) = self.qps.get_mut(&number) else {
                return;
            };
            let (failed, held) = (qp.state == IBV_QPS_ERR, self.hold);
            if held && !failed {
                return;
            }
            let Some(wr) = qp.outstanding.pop_front() else {
                return;
            };
            let (cq, peer) = (qp.cq, qp.peer);
            let status = match failed {
                true => IBV_WC_WR_FLUSH_ERR,
                false => match self.status.take() {
                    Some(status) => ibv_wc_status(status),
                    None => match self.carry_out(peer, number, &wr) {
                        IBV_WC_RNR_RETRY_EXC_ERR if self.tries_for_ever(number) => {
                            if let Some(qp) = self.qps.get_mut(&number) {
                                qp.outstanding.push_front(wr);
                            }
                            return;
                        }
                        status => status,
                    },
                },
            };
            if status != IBV_WC_SUCCESS {
                if let Some(qp) = self.qps.get_mut(&number) {
                    qp.state = IBV_QPS_ERR;
                }
                self.flush_receives(number);
            }
            if wr.signaled || status != IBV_WC_SUCCESS {
                self.complete(cq, number, wr.id, status);
            }
        }
    }

    fn tries_for_ever(&self, number: u32) -> bool {
        self.qps
            .get(&number)
            .is_some_and(|qp| qp.attr.rnr_retry == 7)
    }

    /// Takes a receive; an error refuses it. Whoever waits for it goes on.
    pub fn receive(&mut self, number: u32, id: u64) -> Result<(), i32> {
        let Some(qp) = self.qps.get_mut(&number) else {
            self.blame("a receive of a queue pair that is gone");
            return Err(libc::EINVAL);
        };
        if qp.state == IBV_QPS_RESET {
            self.blame("a receive before INIT");
            return Err(libc::EINVAL);
        }
        if qp.receives.len() as u32 >= qp.cap.max_recv_wr {
            self.blame("a full receive queue");
            return Err(libc::ENOMEM);
        }
        qp.receives.push_back(id);
        let (failed, peer) = (qp.state == IBV_QPS_ERR, qp.peer);
        match failed {
            true => self.flush_receives(number),
            false => self.run(peer),
        }
        Ok(())
    }

    /// Gives back the receives of a queue pair in ERR.
    pub fn flush_receives(&mut self, number: u32) {
        while let Some(qp) = self.qps.get_mut(&number) {
            let Some(id) = qp.receives.pop_front() else {
                return;
            };
            let cq = qp.recv_cq;
            self.complete(cq, number, id, IBV_WC_WR_FLUSH_ERR);
        }
    }

    fn complete(&mut self, cq: usize, number: u32, id: u64, status: ibv_wc_status) {
        let wc = ibv_wc {
            wr_id: id,
            status,
            vendor_err: if status == IBV_WC_SUCCESS {
                0
            } else {
                VENDOR_ERR
            },
            qp_num: number,
            ..Default::default()
        };
        if self.armed.remove(&cq) {
            let fd = self.channels[&cq];
            self.told.push_back((fd, cq));
            // SAFETY: a channel's descriptor is open while a queue has it.
            unsafe { libc::write(fd, 1_u64.to_ne_bytes().as_ptr().cast(), 8) };
        }
        match self.cqs.get_mut(&cq) {
            Some((capacity, queue)) if queue.len() < *capacity => queue.push_back(wc),
            Some(_) => self.blame("a completion queue has overflowed"),
            None => self.blame("a completion for a queue that is gone"),
        }
    }

    fn carry_out(&mut self, peer: u32, number: u32, wr: &Wr) -> ibv_wc_status {
        let there = self.qps.get(&peer).filter(|it| it.peer == number);
        let Some(there) = there.filter(|it| matches!(it.state, IBV_QPS_RTR | IBV_QPS_RTS)) else {
            return IBV_WC_RETRY_EXC_ERR;
        };
        let access = match wr.read {
            true => IBV_ACCESS_REMOTE_READ,
            false => IBV_ACCESS_REMOTE_WRITE,
        };
        let total: u64 = wr.sges.iter().map(|sge| u64::from(sge.1)).sum();
        if there.access & access == 0 || !self.within(wr.rkey, wr.remote, total, access) {
            return IBV_WC_REM_ACCESS_ERR;
        }
        if self.lazy {
            return IBV_WC_SUCCESS;
        }
        if !wr.immediate {
            return self.copy_all(wr, total);
        }
        let Some(receive) = self
            .qps
            .get_mut(&peer)
            .and_then(|it| it.receives.pop_front())
        else {
            return IBV_WC_RNR_RETRY_EXC_ERR;
        };
        // What is written is there before its completion.
        let status = self.copy_all(wr, total);
        let cq = self.qps[&peer].recv_cq;
        self.complete(cq, peer, receive, IBV_WC_SUCCESS);
        status
    }

    fn copy_all(&self, wr: &Wr, total: u64) -> ibv_wc_status {
        let mut remote = wr.remote;
        if let Some(bytes) = &wr.inline {
            copy(bytes.as_ptr().expose_provenance() as u64, remote, total);
            return IBV_WC_SUCCESS;
        }
        for &(local, len, key) in &wr.sges {
            if wr.read && !self.within(key, local, len.into(), IBV_ACCESS_LOCAL_WRITE) {
                return IBV_WC_LOC_PROT_ERR;
            }
            match wr.read {
                true => copy(remote, local, len.into()),
                false => copy(local, remote, len.into()),
            }
            remote += u64::from(len);
        }
        IBV_WC_SUCCESS
    }
}

/// Copies between ranges that were registered, in words where that is possible, in increasing order.
fn copy(from: u64, to: u64, len: u64) {
    let word = (from | to | len) % 8 == 0;
    let step = if word { 8 } else { 1 };
    for at in (0..len).step_by(step) {
        let (from, to) = ((from + at) as usize, (to + at) as usize);
        if word {
            let from = std::ptr::with_exposed_provenance::<AtomicU64>(from);
            // SAFETY: registered memory is mapped, and accessed by atomics on the other side too.
            let value = unsafe { (*from).load(Ordering::Relaxed) };
            let to = std::ptr::with_exposed_provenance::<AtomicU64>(to);
            // SAFETY: as above.
            unsafe { (*to).store(value, Ordering::Release) };
        } else {
            let from = std::ptr::with_exposed_provenance::<AtomicU8>(from);
            // SAFETY: as above.
            let value = unsafe { (*from).load(Ordering::Relaxed) };
            let to = std::ptr::with_exposed_provenance::<AtomicU8>(to);
            // SAFETY: as above.
            unsafe { (*to).store(value, Ordering::Release) };
        }
    }
}
