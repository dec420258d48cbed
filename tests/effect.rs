//! The verbs that are written by hand do what those of the header do: a device that notes its calls sees the same ones
//! from C and from Rust, and its answers come back the same.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests")]

mod common;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Debug;
use std::mem::zeroed;
use std::ptr;

use libloading::Library;
use rdma_core_sys::*;

/// `struct call` of the C source.
#[repr(C)]
struct RawCall {
    function: [c_char; 32],
    arguments: [u64; 6],
}

/// What a verb did.
#[derive(Debug, PartialEq)]
struct Outcome {
    result: i64,
    errno: c_int,
    /// What the device saw: functions, with their arguments.
    calls: Vec<(String, [u64; 6])>,
    /// What was written to the caller's memory.
    written: Vec<u8>,
}

impl Outcome {
    fn functions(&self) -> Vec<&str> {
        self.calls.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// The device, the verbs in C, and those in Rust.
struct Bench {
    library: Library,
    verbs: Verbs,
    _dir: tempfile::TempDir,
}

/// One of the device's contexts, and a queue of each kind.
#[derive(Clone, Copy)]
struct Device {
    context: *mut ibv_context,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    pd: *mut ibv_pd,
}

/// The value that `errno` has before a verb is called.
const ERRNO_BEFORE: c_int = 77;

/// The contexts of the C source.
const OLD: c_int = 0;
const NEW: c_int = 1;
const SHORT: c_int = 2;
const FITTING: c_int = 3;
const EMPTY: c_int = 4;
const TABLELESS: c_int = 5;

unsafe extern "C" fn stub() {}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut source = String::new();
        if cfg!(header_has = "_ibv_query_gid_ex") {
            source.push_str("#define HAS_QUERY_GID_EX\n");
        }
        if cfg!(header_has = "ibv_query_qp_data_in_order") {
            source.push_str("#define HAS_QUERY_QP_DATA_IN_ORDER\n");
        }
        source.push_str(include_str!("provider.c"));
        let path = common::library(dir.path(), "provider", &source);
        // SAFETY: a library without initializers.
        let library = unsafe { Library::new(path) }.unwrap();
        let address = |name: &CStr| {
            // SAFETY: the address is taken for one.
            let found = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) };
            match found {
                // SAFETY: the library outlives the address: both are in this value.
                Ok(symbol) => unsafe { symbol.into_raw() }.into_raw(),
                Err(_) if name.to_bytes().starts_with(b"_") => ptr::null_mut(),
                Err(_) => stub as *mut c_void,
            }
        };
        // SAFETY: C has checked the types of those that are called.
        let verbs = unsafe { Verbs::from_functions(address) }.unwrap();
        Self {
            library,
            verbs,
            _dir: dir,
        }
    }

    /// A function of the C source, whose type is `F`.
    fn c<F: Copy>(&self, name: &str) -> F {
        // SAFETY: each use names the type that the C source has.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.unwrap()
    }

    fn device(&self, kind: c_int) -> Device {
        type Open = unsafe extern "C" fn(
            c_int,
            *mut *mut ibv_qp,
            *mut *mut ibv_cq,
            *mut *mut ibv_srq,
            *mut *mut ibv_pd,
        ) -> *mut ibv_context;
        let mut device = Device {
            context: ptr::null_mut(),
            qp: ptr::null_mut(),
            cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            pd: ptr::null_mut(),
        };
        let open: Open = self.c("device_open");
        // SAFETY: the places are valid for writes.
        device.context = unsafe {
            open(
                kind,
                &mut device.qp,
                &mut device.cq,
                &mut device.srq,
                &mut device.pd,
            )
        };
        device
    }

    /// Calls a verb, while the device answers with `answer` and sets `errno` to `error`, unless that is 0.
    fn run(&self, answer: i64, error: c_int, verb: impl FnOnce() -> (i64, Vec<u8>)) -> Outcome {
        let answers: unsafe extern "C" fn(i64, c_int) = self.c("device_answers");
        let calls: unsafe extern "C" fn(*mut *const RawCall) -> c_int = self.c("device_calls");
        // SAFETY: the function has no demands.
        unsafe { answers(answer, error) };
        // SAFETY: the place is this thread's.
        unsafe { *libc::__errno_location() = ERRNO_BEFORE };
        let (result, written) = verb();
        // SAFETY: as above.
        let errno = unsafe { *libc::__errno_location() };
        let mut raw = ptr::null();
        // SAFETY: the place is valid for a write, and the answer is the length of the array there.
        let raw = unsafe {
            let count = calls(&mut raw);
            std::slice::from_raw_parts(raw, count as usize)
        };
        let calls = raw.iter().map(|call| {
            // SAFETY: the name ends with NUL.
            let name = unsafe { CStr::from_ptr(call.function.as_ptr()) };
            (name.to_str().unwrap().to_owned(), call.arguments)
        });
        Outcome {
            result,
            errno,
            calls: calls.collect(),
            written,
        }
    }

    /// Calls a verb in C and in Rust, and compares. Both get the same place to write to.
    fn same<T>(
        &self,
        answer: i64,
        error: c_int,
        place: &RefCell<T>,
        c: impl Fn(*mut T) -> i64,
        rust: impl Fn(*mut T) -> i64,
    ) -> Outcome {
        let call = |verb: &dyn Fn(*mut T) -> i64| {
            self.run(answer, error, || {
                let place = place.as_ptr();
                // SAFETY: the places are plain old data, all of whose bytes are written here.
                unsafe { place.cast::<u8>().write_bytes(0xa5, size_of::<T>()) };
                let result = verb(place);
                // SAFETY: as above.
                let bytes =
                    unsafe { std::slice::from_raw_parts(place.cast::<u8>(), size_of::<T>()) };
                (result, bytes.to_vec())
            })
        };
        let (c, rust) = (call(&c), call(&rust));
        assert_eq!(c, rust);
        rust
    }
}

/// A place that verbs write to.
fn place<T>() -> RefCell<T> {
    // SAFETY: the types that are used are structures of C, for which zeros are a value.
    RefCell::new(unsafe { zeroed() })
}

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
    assert_eq!(
        unsafe { to_cq(cq.get_mut()) },
        ibv_cq_ex_to_cq(cq.get_mut())
    );
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
