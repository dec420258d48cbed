//! The functions of the library that are about memory and queues.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use rdma_core_sys::*;

use super::Shared;
use super::net::{Mr, Qp, REMOTE_KEY, Wr};
use super::verbs::{FakeDevice, int, pointer, set_errno};

/// A context's operations that do not go through the library.
pub fn operations(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.poll_cq = Some(poll_cq);
    ops.post_recv = Some(post_recv);
    ops.req_notify_cq = Some(req_notify_cq);
}

/// # Safety
///
/// The context must be open.
unsafe fn shared(context: *mut ibv_context) -> &'static Shared {
    // SAFETY: the caller's duty.
    unsafe { FakeDevice::of_context(context) }.shared()
}

pub unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_DISABLED
}

pub unsafe extern "C" fn ibv_fork_init() -> c_int {
    // Memory has been registered already: that has to be put up with.
    libc::EINVAL
}

pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    pointer(device.call("ibv_alloc_pd", None, 0).map(|()| {
        device.shared().state().live.pds += 1;
        Box::into_raw(Box::new(ibv_pd {
            context,
            ..Default::default()
        }))
    }))
}

pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context((*pd).context) };
    device.shared().state().live.pds -= 1;
    int(device.call("ibv_dealloc_pd", None, 0))
}

pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context((*pd).context) };
    let called = device.call("ibv_reg_mr", None, access as u64);
    pointer(called.map(|()| {
        let shared = device.shared();
        shared.state().live.mrs += 1;
        let mut net = shared.net();
        net.next_key += 1;
        let key = net.next_key;
        let mr = Mr {
            addr: addr.expose_provenance() as u64,
            len: length as u64,
            access: access as u32,
        };
        net.mrs.insert(key, mr);
        net.mrs.insert(key | REMOTE_KEY, mr);
        net.registered.push(access as u32);
        // SAFETY: the caller's duty.
        let context = unsafe { (*pd).context };
        Box::into_raw(Box::new(ibv_mr {
            context,
            pd,
            addr,
            length,
            lkey: key,
            rkey: key | REMOTE_KEY,
            ..Default::default()
        }))
    }))
}

pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's duty.
    unsafe { ibv_reg_mr(pd, addr, length, access as c_int) }
}

pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's duty.
    let (device, key) = unsafe { (FakeDevice::of_context((*mr).context), (*mr).lkey) };
    device.shared().state().live.mrs -= 1;
    let mut net = device.shared().net();
    let names_it = |wr: &Wr| wr.inline.is_none() && wr.sges.iter().any(|sge| sge.2 == key);
    if net
        .qps
        .values()
        .any(|qp| qp.outstanding.iter().any(names_it))
    {
        net.misuse.push("memory ended under a work request".into());
    }
    net.mrs.remove(&key);
    net.mrs.remove(&(key | REMOTE_KEY));
    drop(net);
    int(device.call("ibv_dereg_mr", None, 0))
}

pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    pointer(device.call("ibv_create_comp_channel", None, 0).map(|()| {
        device.shared().state().live.channels += 1;
        // It blocks until it is told not to.
        // SAFETY: it takes numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        Box::into_raw(Box::new(ibv_comp_channel {
            context,
            fd,
            refcnt: 0,
        }))
    }))
}

pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's duty.
    let (device, fd) = unsafe { (FakeDevice::of_context((*channel).context), (*channel).fd) };
    let mut net = device.shared().net();
    if net.channels.values().any(|it| *it == fd) {
        net.misuse
            .push("a completion channel before its queues".into());
    }
    drop(net);
    device.shared().state().live.channels -= 1;
    // SAFETY: the descriptor is the channel's own.
    unsafe { libc::close(fd) };
    int(device.call("ibv_destroy_comp_channel", None, 0))
}

pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's duty.
    let (shared, fd) = unsafe { (shared((*channel).context), (*channel).fd) };
    let mut count = [0_u8; 8];
    // SAFETY: the descriptor is the channel's.
    if unsafe { libc::read(fd, count.as_mut_ptr().cast(), 8) } != 8 {
        return -1;
    }
    let mut net = shared.net();
    let at = net.told.iter().position(|told| told.0 == fd).unwrap();
    let (_, queue) = net.told.remove(at).unwrap();
    drop(net);
    shared.state().live.events += 1;
    // SAFETY: the caller's duty.
    unsafe { *cq = ptr::with_exposed_provenance_mut(queue) };
    // SAFETY: as above.
    unsafe { *user = (**cq).cq_context };
    0
}

pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: the caller's duty.
    unsafe { shared((*cq).context) }.state().live.events -= count as i32;
}

pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    let called = device.call("ibv_create_cq", None, cqe as u64);
    pointer(called.map(|()| {
        device.shared().state().live.cqs += 1;
        let cq = Box::into_raw(Box::new(ibv_cq {
            context,
            channel,
            cq_context,
            cqe,
            ..Default::default()
        }));
        let queue = (cqe as usize, Default::default());
        let mut net = device.shared().net();
        net.cqs.insert(cq.expose_provenance(), queue);
        if !channel.is_null() {
            // SAFETY: the caller's duty.
            net.channels.insert(cq.addr(), unsafe { (*channel).fd });
        }
        cq
    }))
}

pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context((*cq).context) };
    let mut net = device.shared().net();
    if net
        .qps
        .values()
        .any(|qp| qp.cq == cq.addr() || qp.recv_cq == cq.addr())
    {
        net.misuse
            .push("a completion queue before its queue pairs".into());
    }
    net.cqs.remove(&cq.addr());
    net.channels.remove(&cq.addr());
    net.armed.remove(&cq.addr());
    net.told.retain(|told| told.1 != cq.addr());
    drop(net);
    device.shared().state().live.cqs -= 1;
    int(device.call("ibv_destroy_cq", None, 0))
}

pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller's duty.
    let (context, init) = unsafe { ((*pd).context, &mut *init) };
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    let called = device.call("ibv_create_qp", None, init.cap.max_inline_data.into());
    pointer(called.and_then(|()| {
        let mut net = device.shared().net();
        if init.cap.max_inline_data > net.inline_max {
            return Err(libc::EINVAL);
        }
        // Devices round up.
        init.cap.max_inline_data = net.inline_max;
        net.next_number += 1;
        let number = net.next_number;
        let qp = Qp::new((init.send_cq.addr(), init.recv_cq.addr()), init.cap);
        net.qps.insert(number, qp);
        drop(net);
        device.shared().state().live.qps += 1;
        Ok(Box::into_raw(Box::new(ibv_qp {
            context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            qp_num: number,
            ..Default::default()
        })))
    }))
}

/// What each transition of an RC queue pair must name, and nothing else.
fn mask_of(state: ibv_qp_state) -> u32 {
    IBV_QP_STATE
        | match state {
            IBV_QPS_INIT => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
            IBV_QPS_RTR => {
                IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER
            }
            IBV_QPS_RTS => {
                IBV_QP_TIMEOUT
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC
            }
            _ => 0,
        }
}

pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's duty.
    let (device, number, attr) = unsafe {
        (
            FakeDevice::of_context((*qp).context),
            (*qp).qp_num,
            &mut *attr,
        )
    };
    let to = attr.qp_state;
    if let Err(errno) = device.call("ibv_modify_qp", None, to.0.into()) {
        return int(Err(errno));
    }
    let mut net = device.shared().net();
    let Some(it) = net.qps.get_mut(&number) else {
        net.misuse.push("a queue pair that is gone".into());
        return int(Err(libc::EINVAL));
    };
    let from_before = matches!(
        (it.state, to),
        (IBV_QPS_RESET, IBV_QPS_INIT)
            | (IBV_QPS_INIT, IBV_QPS_RTR)
            | (IBV_QPS_RTR, IBV_QPS_RTS)
            | (_, IBV_QPS_ERR)
    );
    if !from_before || mask as u32 != mask_of(to) {
        return int(Err(libc::EINVAL));
    }
    match to {
        IBV_QPS_INIT => it.access = attr.qp_access_flags,
        IBV_QPS_RTR => {
            it.peer = attr.dest_qp_num;
            it.psn.0 = attr.rq_psn;
            it.attr = *attr;
        }
        IBV_QPS_RTS => {
            it.psn.1 = attr.sq_psn;
            it.attr.max_rd_atomic = attr.max_rd_atomic;
            it.attr.retry_cnt = attr.retry_cnt;
            it.attr.rnr_retry = attr.rnr_retry;
            it.attr.timeout = attr.timeout;
        }
        _ => {}
    }
    it.state = to;
    if to == IBV_QPS_ERR {
        net.flush_receives(number);
    }
    net.run(number);
    0
}

pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's duty.
    let (device, number) = unsafe { (FakeDevice::of_context((*qp).context), (*qp).qp_num) };
    let mut net = device.shared().net();
    match net.qps.remove(&number) {
        Some(it) if it.outstanding.is_empty() => {}
        Some(it) => {
            let what = format!("{} work requests cut off", it.outstanding.len());
            net.misuse.push(what);
        }
        None => net.misuse.push("destroyed twice".into()),
    }
    drop(net);
    device.shared().state().live.qps -= 1;
    int(device.call("ibv_destroy_qp", None, number.into()))
}

pub unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    _: ibv_wr_opcode,
    _: u32,
) -> c_int {
    // SAFETY: the caller's duty.
    let (shared, number) = unsafe { (shared((*qp).context), (*qp).qp_num) };
    let net = shared.net();
    let ready = net
        .qps
        .get(&number)
        .is_some_and(|it| it.state == IBV_QPS_RTS);
    c_int::from(ready && net.in_order)
}

pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's duty.
    let shared = unsafe { shared(context) };
    let mut count = [0_u8; 8];
    // SAFETY: the descriptor is that of the context, and does not block.
    unsafe { libc::read((*context).async_fd, count.as_mut_ptr().cast(), 8) };
    let mut net = shared.net();
    let is_of_context = |event: &ibv_async_event| {
        // SAFETY: the tests' events are about queue pairs, or have none.
        let qp = unsafe { event.element.qp };
        // SAFETY: as above.
        qp.is_null() || unsafe { (*qp).context } == context
    };
    let found = net.events.iter().position(is_of_context);
    let Some(found) = found.and_then(|at| net.events.remove(at)) else {
        set_errno(libc::EAGAIN);
        return -1;
    };
    drop(net);
    // SAFETY: the caller's duty.
    unsafe { *event = found };
    // SAFETY: as above.
    if unsafe { !found.element.qp.is_null() } {
        shared.state().live.events += 1;
    }
    0
}

pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the tests' events are about queue pairs, or have none.
    let qp = unsafe { (*event).element.qp };
    if !qp.is_null() {
        // SAFETY: as above; none is freed.
        unsafe { shared((*qp).context) }.state().live.events -= 1;
    }
}

pub unsafe extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    let text = match status {
        IBV_WC_REM_ACCESS_ERR => c"remote access error",
        IBV_WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
        _ => c"unknown",
    };
    text.as_ptr()
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's duty.
    let (shared, number) = unsafe { (shared((*qp).context), (*qp).qp_num) };
    let mut net = shared.net();
    net.chains += 1;
    let refuse = net.refuse.take();
    let mut index = 0;
    while !wr.is_null() {
        // SAFETY: the caller's duty.
        let (it, list) = unsafe {
            let it = &*wr;
            (
                it,
                std::slice::from_raw_parts(it.sg_list, it.num_sge as usize),
            )
        };
        let is_inline = it.send_flags & IBV_SEND_INLINE != 0;
        let inline = is_inline.then(|| {
            let sge = list[0];
            let from = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the caller's duty.
            unsafe { std::slice::from_raw_parts(from, sge.length as usize) }.to_vec()
        });
        let posted = match refuse {
            Some((at, errno)) if at == index => Err(errno),
            _ => net.post(
                number,
                Wr {
                    id: it.wr_id,
                    read: it.opcode == IBV_WR_RDMA_READ,
                    immediate: it.opcode == IBV_WR_RDMA_WRITE_WITH_IMM,
                    signaled: it.send_flags & IBV_SEND_SIGNALED != 0,
                    sges: list
                        .iter()
                        .map(|it| (it.addr, it.length, it.lkey))
                        .collect(),
                    inline,
                    // SAFETY: these are WRITEs and READs.
                    remote: unsafe { it.wr.rdma.remote_addr },
                    // SAFETY: as above.
                    rkey: unsafe { it.wr.rdma.rkey },
                },
            ),
        };
        if let Err(errno) = posted {
            // SAFETY: the caller's duty.
            unsafe { *bad_wr = wr };
            net.run(number);
            return errno;
        }
        index += 1;
        wr = it.next;
    }
    net.run(number);
    0
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's duty.
    let shared = unsafe { shared((*cq).context) };
    let mut net = shared.net();
    let Some((_, queue)) = net.cqs.get_mut(&cq.addr()) else {
        return -libc::EINVAL;
    };
    let mut taken = 0;
    while taken < count {
        let Some(wc) = queue.pop_front() else { break };
        // SAFETY: the caller's duty.
        unsafe { *to.add(taken as usize) = wc };
        taken += 1;
    }
    taken
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's duty.
    let (device, number) = unsafe { (FakeDevice::of_context((*qp).context), (*qp).qp_num) };
    while !wr.is_null() {
        // SAFETY: the caller's duty.
        let it = unsafe { &*wr };
        let called = device.call("ibv_post_recv", None, number.into());
        let posted = called.and_then(|()| device.shared().net().receive(number, it.wr_id));
        if let Err(errno) = posted {
            // SAFETY: the caller's duty.
            unsafe { *bad_wr = wr };
            return errno;
        }
        wr = it.next;
    }
    0
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context((*cq).context) };
    int(device
        .call("ibv_req_notify_cq", None, solicited_only as u64)
        .map(|()| {
            device.shared().net().armed.insert(cq.addr());
        }))
}
