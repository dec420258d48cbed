//! The bindings, with a real driver: one queue pair writes to another on the same device. The first port that is active
//! will do; soft-RoCE has one.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

use std::ffi::{CStr, c_int};
use std::io::Error;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rdma_core_sys::*;

const BYTES: usize = 4096;

/// A verb that returns 0 or the value of `errno`.
#[track_caller]
fn check(result: c_int) {
    assert_eq!(result, 0, "{}", Error::from_raw_os_error(result));
}

/// A verb that returns null and sets `errno`.
#[track_caller]
fn some<T>(pointer: *mut T) -> *mut T {
    assert!(!pointer.is_null(), "{}", Error::last_os_error());
    pointer
}

/// A port, and an address that it can be reached at.
struct Port {
    context: *mut ibv_context,
    number: u8,
    attr: ibv_port_attr,
    gid: ibv_gid_entry,
}

/// Opens the first device with an active port.
unsafe fn open(verbs: &Verbs) -> Port {
    // SAFETY: the list is used as the manual says: devices are opened before it is freed.
    unsafe {
        let mut count = 0;
        let list = some(verbs.ibv_get_device_list(&mut count));
        for i in 0..count as usize {
            let device = *list.add(i);
            let name = CStr::from_ptr(verbs.ibv_get_device_name(device));
            let context = some(verbs.ibv_open_device(device));
            let mut limits = ibv_device_attr_ex::default();
            check(verbs.ibv_query_device_ex(context, ptr::null(), &mut limits));
            for number in 1..=limits.orig_attr.phys_port_cnt {
                let mut attr = ibv_port_attr::default();
                check(verbs.ibv_query_port(context, number, &mut attr));
                if attr.state == IBV_PORT_ACTIVE {
                    println!("{name:?} port {number}, {} GIDs", attr.gid_tbl_len);
                    verbs.ibv_free_device_list(list);
                    let gid = gid(verbs, context, number);
                    return Port {
                        context,
                        number,
                        attr,
                        gid,
                    };
                }
            }
            check(verbs.ibv_close_device(context));
        }
        panic!("none of {count} devices has an active port");
    }
}

/// A port's GID: the last one, since routable ones come after those of the link.
unsafe fn gid(verbs: &Verbs, context: *mut ibv_context, port: u8) -> ibv_gid_entry {
    let mut entries = [ibv_gid_entry::default(); 64];
    // SAFETY: the context is open, and there is room for as many entries as it is told.
    let count = unsafe { verbs.ibv_query_gid_table(context, entries.as_mut_ptr(), 64, 0) };
    assert!(count > 0, "{count}");
    let found = entries[..count as usize].iter().rev();
    let found = *found
        .clone()
        .find(|entry| entry.port_num == u32::from(port))
        .unwrap();

    let mut again = ibv_gid_entry::default();
    // SAFETY: as above.
    check(unsafe { verbs.ibv_query_gid_ex(context, port.into(), found.gid_index, &mut again, 0) });
    let mut old = ibv_gid::default();
    // SAFETY: as above.
    check(unsafe { verbs.ibv_query_gid(context, port, found.gid_index as c_int, &mut old) });
    // SAFETY: any bytes are a GID.
    let raw = unsafe { (found.gid.raw, again.gid.raw, old.raw) };
    assert_eq!((raw.0, raw.0), (raw.1, raw.2));
    assert_eq!(found.gid_type, again.gid_type);
    found
}

/// Takes a queue pair to RTS, connected to the one with the number `peer` on the same port.
unsafe fn connect(verbs: &Verbs, port: &Port, qp: *mut ibv_qp, peer: u32) {
    let modify = |mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask| {
        // SAFETY: the queue pair is live.
        check(unsafe { verbs.ibv_modify_qp(qp, &mut attr, (mask | IBV_QP_STATE) as c_int) });
    };
    let init = ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        port_num: port.number,
        qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE,
        ..Default::default()
    };
    modify(init, IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
    let mut rtr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        path_mtu: port.attr.active_mtu,
        dest_qp_num: peer,
        rq_psn: 77,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        ..Default::default()
    };
    rtr.ah_attr.port_num = port.number;
    rtr.ah_attr.dlid = port.attr.lid;
    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.grh.dgid = port.gid.gid;
    rtr.ah_attr.grh.sgid_index = port.gid.gid_index as u8;
    rtr.ah_attr.grh.hop_limit = 1;
    modify(
        rtr,
        IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER,
    );
    let rts = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        sq_psn: 77,
        timeout: 14,
        retry_cnt: 3,
        rnr_retry: 7,
        max_rd_atomic: 1,
        ..Default::default()
    };
    modify(
        rts,
        IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC,
    );
}

/// Waits for one completion.
unsafe fn complete(cq: *mut ibv_cq) -> ibv_wc {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut wc = ibv_wc::default();
    loop {
        // SAFETY: the queue is live, and there is room for one.
        let count = unsafe { ibv_poll_cq(cq, 1, &mut wc) };
        assert!(count >= 0, "{count}");
        if count == 1 {
            return wc;
        }
        assert!(Instant::now() < deadline, "no completion");
    }
}

#[test]
#[ignore = "needs an RDMA device, such as soft-RoCE"]
fn writes_arrive() {
    let verbs = Verbs::load().unwrap();
    // The first half is to be written to the second.
    let pattern = |i: usize| (i % 251 + 1) as u8;
    let memory: Vec<AtomicU8> = (0..BYTES)
        .map(|i| AtomicU8::new(if i < BYTES / 2 { pattern(i) } else { 0 }))
        .collect();
    let start = memory.as_ptr().cast_mut();
    // SAFETY: everything is made, used and destroyed in this order, and memory outlives its registration.
    unsafe {
        let port = open(verbs);
        let pd = some(verbs.ibv_alloc_pd(port.context));
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
        let mr = some(verbs.ibv_reg_mr(pd, start.cast(), BYTES, access));
        let cq = some(verbs.ibv_create_cq(port.context, 16, ptr::null_mut(), ptr::null_mut(), 0));
        let make = || {
            let mut init = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                qp_type: IBV_QPT_RC,
                ..Default::default()
            };
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
            (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
            some(verbs.ibv_create_qp(pd, &mut init))
        };
        let (from, to) = (make(), make());
        connect(verbs, &port, from, (*to).qp_num);
        connect(verbs, &port, to, (*from).qp_num);
        let order = verbs.ibv_query_qp_data_in_order(to, IBV_WR_RDMA_WRITE, 0);
        println!(
            "in order: {order}; fork: {:?}",
            verbs.ibv_is_fork_initialized()
        );

        // With the right key, and then with a wrong one.
        let mut sge = ibv_sge {
            addr: start.expose_provenance() as u64,
            length: (BYTES / 2) as u32,
            lkey: (*mr).lkey,
        };
        for (id, rkey, status) in [
            (1, (*mr).rkey, IBV_WC_SUCCESS),
            (2, !(*mr).rkey, IBV_WC_REM_ACCESS_ERR),
        ] {
            let mut wr = ibv_send_wr {
                wr_id: id,
                sg_list: &mut sge,
                num_sge: 1,
                opcode: IBV_WR_RDMA_WRITE,
                send_flags: IBV_SEND_SIGNALED,
                ..Default::default()
            };
            wr.wr.rdma.remote_addr = sge.addr + BYTES as u64 / 2;
            wr.wr.rdma.rkey = rkey;
            check(ibv_post_send(from, &mut wr, &mut ptr::null_mut()));
            let wc = complete(cq);
            let text = CStr::from_ptr(verbs.ibv_wc_status_str(wc.status));
            assert_eq!((wc.wr_id, wc.status), (id, status), "{text:?}");
            assert_eq!(wc.qp_num, (*from).qp_num);
        }

        check(verbs.ibv_destroy_qp(from));
        check(verbs.ibv_destroy_qp(to));
        check(verbs.ibv_destroy_cq(cq));
        check(verbs.ibv_dereg_mr(mr));
        check(verbs.ibv_dealloc_pd(pd));
        check(verbs.ibv_close_device(port.context));
    }
    for (i, byte) in memory.iter().enumerate() {
        assert_eq!(
            byte.load(Ordering::Relaxed),
            pattern(i % (BYTES / 2)),
            "{i}"
        );
    }
}
