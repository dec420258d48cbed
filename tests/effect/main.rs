//! The verbs that are written by hand do what those of the header do: a device that notes its calls sees the same ones
//! from C and from Rust, and its answers come back the same.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::unwrap_used,
    reason = "tests"
)]

mod bench;
#[path = "../common/mod.rs"]
mod common;

use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr;

use bench::{Bench, EMPTY, ERRNO_BEFORE, FITTING, NEW, OLD, SHORT, TABLELESS, place};
use rdma_core_sys::*;

#[test]
fn posting_passes_the_list_and_returns_the_error_without_setting_errno() {
    let bench = Bench::new();
    let device = bench.device(NEW);
    let mut last = ibv_send_wr::default();
    let mut wr = ibv_send_wr {
        wr_id: 11,
        next: &mut last,
        opcode: IBV_WR_RDMA_WRITE,
        send_flags: IBV_SEND_SIGNALED | IBV_SEND_INLINE,
        ..Default::default()
    };
    wr.wr.rdma.remote_addr = 0xffff_8000_1234_5678;
    wr.wr.rdma.rkey = 0x9abc_def0;
    let wr = &raw mut wr;
    let c: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int =
        bench.c("c_ibv_post_send");
    for answer in [0, libc::ENOMEM] {
        let outcome = bench.same(
            answer.into(),
            0,
            &place(),
            // SAFETY: the device and the requests are ours.
            |bad_wr| unsafe { c(device.qp, wr, bad_wr) }.into(),
            // SAFETY: as above.
            |bad_wr| unsafe { ibv_post_send(device.qp, wr, bad_wr) }.into(),
        );
        assert_eq!(outcome.result, i64::from(answer));
        assert_eq!(outcome.errno, ERRNO_BEFORE);
        assert_eq!(outcome.functions(), ["post_send"]);
        assert_eq!(
            outcome.calls[0].1[3..],
            [11, 0xffff_8000_1234_5678, 0x9abc_def0]
        );
        assert_eq!(outcome.written, (&raw mut last).addr().to_ne_bytes());
    }
}

#[test]
fn receives_are_posted_to_either_kind_of_queue() {
    let bench = Bench::new();
    let device = bench.device(OLD);
    let mut last = ibv_recv_wr::default();
    let mut wr = ibv_recv_wr {
        wr_id: 12,
        next: &mut last,
        ..Default::default()
    };
    let wr = &raw mut wr;
    type Post<Q> = unsafe extern "C" fn(*mut Q, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
    let post_recv: Post<ibv_qp> = bench.c("c_ibv_post_recv");
    let post_srq_recv: Post<ibv_srq> = bench.c("c_ibv_post_srq_recv");
    for answer in [0, libc::EINVAL] {
        let outcome = bench.same(
            answer.into(),
            0,
            &place(),
            // SAFETY: the device and the requests are ours.
            |bad_wr| unsafe { post_recv(device.qp, wr, bad_wr) }.into(),
            // SAFETY: as above.
            |bad_wr| unsafe { ibv_post_recv(device.qp, wr, bad_wr) }.into(),
        );
        assert_eq!(outcome.functions(), ["post_recv"]);
        assert_eq!(
            (outcome.result, outcome.errno),
            (answer.into(), ERRNO_BEFORE)
        );
        let outcome = bench.same(
            answer.into(),
            0,
            &place(),
            // SAFETY: as above.
            |bad_wr| unsafe { post_srq_recv(device.srq, wr, bad_wr) }.into(),
            // SAFETY: as above.
            |bad_wr| unsafe { ibv_post_srq_recv(device.srq, wr, bad_wr) }.into(),
        );
        assert_eq!(outcome.functions(), ["post_srq_recv"]);
        assert_eq!(
            (outcome.result, outcome.errno),
            (answer.into(), ERRNO_BEFORE)
        );
    }
}

#[test]
fn polling_returns_counts_errors_and_completions() {
    let bench = Bench::new();
    let device = bench.device(NEW);
    let c: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int =
        bench.c("c_ibv_poll_cq");
    for answer in [3, 0, -2] {
        let outcome = bench.same(
            answer,
            0,
            &place::<[ibv_wc; 3]>(),
            // SAFETY: the device is ours, and there is room for three.
            |wc| unsafe { c(device.cq, 3, wc.cast()) }.into(),
            // SAFETY: as above.
            |wc| unsafe { ibv_poll_cq(device.cq, 3, wc.cast()) }.into(),
        );
        assert_eq!(outcome.result, answer);
        assert_eq!(outcome.functions(), ["poll_cq"]);
    }
    let mut wc = <[ibv_wc; 3]>::default();
    // SAFETY: as above.
    unsafe { ibv_poll_cq(device.cq, 3, wc.as_mut_ptr()) };
    assert_eq!((wc[2].wr_id, wc[2].vendor_err), (102, 0x81));
    assert_eq!(wc[2].status, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn notification_is_asked_for_as_told() {
    let bench = Bench::new();
    let device = bench.device(NEW);
    let c: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int = bench.c("c_ibv_req_notify_cq");
    for solicited_only in [0, 1] {
        let outcome = bench.same(
            5,
            0,
            &place::<()>(),
            // SAFETY: the device is ours.
            |_| unsafe { c(device.cq, solicited_only) }.into(),
            // SAFETY: as above.
            |_| unsafe { ibv_req_notify_cq(device.cq, solicited_only) }.into(),
        );
        assert_eq!(outcome.result, 5);
        assert_eq!(outcome.calls[0].1[1], solicited_only as u64);
    }
}

#[test]
fn the_extended_context_is_found_where_there_is_one() {
    let bench = Bench::new();
    let kinds: unsafe extern "C" fn() -> c_int = bench.c("device_kinds");
    // SAFETY: the function has no demands.
    assert_eq!(unsafe { kinds() }, TABLELESS + 1);
    let c: unsafe extern "C" fn(*mut ibv_context) -> *mut verbs_context =
        bench.c("c_verbs_get_ctx");
    for kind in [OLD, NEW, SHORT, FITTING, EMPTY, TABLELESS] {
        let context = bench.device(kind).context;
        // SAFETY: the context is ours.
        let (c, rust) = unsafe { (c(context), verbs_get_ctx(context)) };
        assert_eq!(c, rust);
        assert_eq!(rust.is_null(), kind == OLD);
    }
}

#[test]
fn ports_are_asked_about_by_the_new_operation_or_the_old() {
    let bench = Bench::new();
    let c: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int =
        bench.c("c_ibv_query_port");
    let cases = [
        (OLD, "ibv_query_port"),
        (NEW, "query_port"),
        (SHORT, "ibv_query_port"),
        (FITTING, "query_port"),
        (EMPTY, "ibv_query_port"),
        (TABLELESS, "ibv_query_port"),
    ];
    for (kind, function) in cases {
        let context = bench.device(kind).context;
        for answer in [0, libc::EINVAL] {
            let outcome = bench.same(
                answer.into(),
                0,
                &place(),
                // SAFETY: the device is ours.
                |attr| unsafe { c(context, 2, attr) }.into(),
                // SAFETY: as above.
                |attr| unsafe { bench.verbs.ibv_query_port(context, 2, attr) }.into(),
            );
            assert_eq!(outcome.functions(), [function], "context {kind}");
            assert_eq!(
                (outcome.result, outcome.errno),
                (answer.into(), ERRNO_BEFORE)
            );
        }
    }
}

#[test]
fn devices_are_asked_about_by_the_new_operation_or_the_old() {
    let bench = Bench::new();
    type Query = unsafe extern "C" fn(
        *mut ibv_context,
        *const ibv_query_device_ex_input,
        *mut ibv_device_attr_ex,
    ) -> c_int;
    let c: Query = bench.c("c_ibv_query_device_ex");
    let null = ptr::null();
    for (kind, answer, functions) in [
        (NEW, 0, &["query_device_ex"][..]),
        (NEW, libc::EINVAL, &["query_device_ex"]),
        (
            NEW,
            libc::EOPNOTSUPP,
            &["query_device_ex", "ibv_query_device"],
        ),
        (SHORT, 0, &["query_device_ex"]),
        (OLD, 0, &["ibv_query_device"]),
        (EMPTY, 0, &["ibv_query_device"]),
        (TABLELESS, 0, &["ibv_query_device"]),
    ] {
        let context = bench.device(kind).context;
        let outcome = bench.same(
            answer.into(),
            0,
            &place(),
            // SAFETY: the device is ours.
            |attr| unsafe { c(context, null, attr) }.into(),
            // SAFETY: as above.
            |attr| unsafe { bench.verbs.ibv_query_device_ex(context, null, attr) }.into(),
        );
        assert_eq!(outcome.functions(), functions, "context {kind}");
    }

    // What the header of rdma-core 28 does not do yet.
    let context = bench.device(NEW).context;
    let mut attr = ibv_device_attr_ex::default();
    let outcome = bench.run(libc::ENOSYS.into(), 0, || {
        // SAFETY: the device is ours.
        let result = unsafe { bench.verbs.ibv_query_device_ex(context, null, &mut attr) };
        (result.into(), Vec::new())
    });
    assert_eq!(outcome.functions(), ["query_device_ex", "ibv_query_device"]);
    let input = ibv_query_device_ex_input { comp_mask: 1 };
    // SAFETY: the device is ours.
    let result = unsafe { bench.verbs.ibv_query_device_ex(context, &input, &mut attr) };
    assert_eq!(result, libc::EINVAL);
}

#[test]
fn extended_queues_are_made_or_refused_with_errno() {
    let bench = Bench::new();
    type Create =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
    let c: Create = bench.c("c_ibv_create_cq_ex");
    let mut attr = ibv_cq_init_attr_ex {
        comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS,
        flags: IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
        ..Default::default()
    };
    let attr = &raw mut attr;
    for (kind, answer, error, result, errno) in [
        (NEW, 0x5000, 0, 0x5000, ERRNO_BEFORE),
        (NEW, 0, libc::EINVAL, 0, libc::EINVAL),
        (SHORT, 0x5000, 0, 0x5000, ERRNO_BEFORE),
        (OLD, 0x5000, 0, 0, libc::EOPNOTSUPP),
        (EMPTY, 0x5000, 0, 0, libc::EOPNOTSUPP),
        (TABLELESS, 0x5000, 0, 0, libc::EOPNOTSUPP),
    ] {
        let context = bench.device(kind).context;
        let outcome = bench.same(
            answer,
            error,
            &place::<()>(),
            // SAFETY: the device is ours.
            |_| unsafe { c(context, attr) }.addr() as i64,
            // SAFETY: as above.
            |_| unsafe { ibv_create_cq_ex(context, attr) }.addr() as i64,
        );
        assert_eq!(
            (outcome.result, outcome.errno),
            (result, errno),
            "context {kind}"
        );
    }

    let to_cq: unsafe extern "C" fn(*mut ibv_cq_ex) -> *mut ibv_cq = bench.c("c_ibv_cq_ex_to_cq");
    let mut cq = place::<ibv_cq_ex>();
    // SAFETY: the function returns an address within its argument.
    let c = unsafe { to_cq(cq.get_mut()) };
    assert_eq!(c, ibv_cq_ex_to_cq(cq.get_mut()));
}

#[test]
fn memory_is_registered_by_the_function_that_takes_its_flags() {
    let bench = Bench::new();
    let pd = bench.device(NEW).pd;
    let addr = ptr::without_provenance_mut(0x7fff_1234_5000);
    let plain = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    let relaxed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    let cases: [(&str, c_uint, &str, [u64; 2]); 2] = [
        ("c_ibv_reg_mr_plain", plain, "ibv_reg_mr", [plain.into(), 0]),
        (
            "c_ibv_reg_mr_relaxed",
            relaxed,
            "ibv_reg_mr_iova2",
            [0x7fff_1234_5000, relaxed.into()],
        ),
    ];
    for (name, access, function, last) in cases {
        let c: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize) -> *mut ibv_mr = bench.c(name);
        for (answer, error) in [(0x6000, 0), (0, libc::ENOMEM)] {
            let outcome = bench.same(
                answer,
                error,
                &place::<()>(),
                // SAFETY: the device is ours, and does not look at the memory.
                |_| unsafe { c(pd, addr, 5 << 30) }.addr() as i64,
                // SAFETY: as above.
                |_| unsafe { bench.verbs.ibv_reg_mr(pd, addr, 5 << 30, access) }.addr() as i64,
            );
            assert_eq!(outcome.functions(), [function]);
            assert_eq!(outcome.calls[0].1[1..3], [0x7fff_1234_5000, 5 << 30]);
            assert_eq!(outcome.calls[0].1[3..5], last);
            let errno = if error == 0 { ERRNO_BEFORE } else { error };
            assert_eq!((outcome.result, outcome.errno), (answer, errno));
        }
    }
}

#[cfg(header_has = "_ibv_query_gid_ex")]
#[test]
fn gids_are_asked_for_with_the_size_of_an_entry() {
    let bench = Bench::new();
    let context = bench.device(NEW).context;
    type One = unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32) -> c_int;
    let c: One = bench.c("c_ibv_query_gid_ex");
    for answer in [0, libc::ENODATA] {
        let outcome = bench.same(
            answer.into(),
            0,
            &place(),
            // SAFETY: the device is ours.
            |entry| unsafe { c(context, 2, 3, entry, 4) }.into(),
            // SAFETY: as above.
            |entry| unsafe { bench.verbs.ibv_query_gid_ex(context, 2, 3, entry, 4) }.into(),
        );
        assert_eq!(outcome.functions(), ["_ibv_query_gid_ex"]);
        assert_eq!(outcome.calls[0].1[5], size_of::<ibv_gid_entry>() as u64);
    }
    let mut entry = ibv_gid_entry::default();
    // SAFETY: as above.
    unsafe { bench.verbs.ibv_query_gid_ex(context, 2, 3, &mut entry, 0) };
    assert_eq!((entry.gid_index, entry.gid_type), (3, IBV_GID_TYPE_ROCE_V2));

    type All = unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32) -> isize;
    let c: All = bench.c("c_ibv_query_gid_table");
    for answer in [2, -5] {
        let outcome = bench.same(
            answer,
            0,
            &place::<[ibv_gid_entry; 2]>(),
            // SAFETY: the device is ours, and there is room for two.
            |entries| unsafe { c(context, entries.cast(), 2, 6) } as i64,
            // SAFETY: as above.
            |entries| unsafe {
                bench
                    .verbs
                    .ibv_query_gid_table(context, entries.cast(), 2, 6)
            } as i64,
        );
        assert_eq!(outcome.functions(), ["_ibv_query_gid_table"]);
        assert_eq!(outcome.result, answer);
    }
}

#[cfg(header_has = "ibv_query_qp_data_in_order")]
#[test]
fn the_order_of_bytes_is_asked_of_the_library() {
    let bench = Bench::new();
    let qp = bench.device(NEW).qp;
    let flags = IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS;
    let outcome = bench.run(3, 0, || {
        // SAFETY: the device is ours.
        let result = unsafe {
            bench
                .verbs
                .ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_READ, flags)
        };
        (result.into(), Vec::new())
    });
    assert_eq!(outcome.result, 3);
    assert_eq!(outcome.functions(), ["data_in_order"]);
    assert_eq!(
        outcome.calls[0].1[1..3],
        [IBV_WR_RDMA_READ.0.into(), flags.into()]
    );
}

#[test]
fn an_operation_that_is_missing_is_an_error() {
    // SAFETY: zeros are a value of these types: no operation is there.
    let (mut context, mut qp, mut cq, mut srq) = unsafe {
        (
            zeroed::<ibv_context>(),
            zeroed::<ibv_qp>(),
            zeroed::<ibv_cq>(),
            zeroed::<ibv_srq>(),
        )
    };
    qp.context = &mut context;
    cq.context = &mut context;
    srq.context = &mut context;
    let (null, mut bad) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: nothing is called that would look at the other arguments.
    let results = unsafe {
        [
            ibv_post_send(&mut qp, ptr::null_mut(), &mut ptr::null_mut()),
            ibv_post_recv(&mut qp, null, &mut bad),
            ibv_post_srq_recv(&mut srq, null, &mut bad),
            ibv_req_notify_cq(&mut cq, 0),
            -ibv_poll_cq(&mut cq, 1, ptr::null_mut()),
        ]
    };
    assert_eq!(results, [libc::EOPNOTSUPP; 5]);
}
