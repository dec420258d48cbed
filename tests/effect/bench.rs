//! The device of `provider.c`, and how a verb in C is compared with the one in Rust.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::zeroed;
use std::ptr;

use libloading::Library;
use rdma_core_sys::{Verbs, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_srq};

use crate::common;

/// `struct call` of the C source.
#[repr(C)]
struct RawCall {
    function: [c_char; 32],
    arguments: [u64; 6],
}

/// What a verb did.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub result: i64,
    pub errno: c_int,
    /// What the device saw: functions, with their arguments.
    pub calls: Vec<(String, [u64; 6])>,
    /// What was written to the caller's memory.
    pub written: Vec<u8>,
}

impl Outcome {
    pub fn functions(&self) -> Vec<&str> {
        self.calls.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// The device, the verbs in C, and those in Rust.
pub struct Bench {
    library: Library,
    pub verbs: Verbs,
    _dir: tempfile::TempDir,
}

/// One of the device's contexts, and a queue of each kind.
#[derive(Clone, Copy)]
pub struct Device {
    pub context: *mut ibv_context,
    pub qp: *mut ibv_qp,
    pub cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
}

/// The value that `errno` has before a verb is called.
pub const ERRNO_BEFORE: c_int = 77;

/// The contexts of the C source.
pub const OLD: c_int = 0;
pub const NEW: c_int = 1;
pub const SHORT: c_int = 2;
pub const FITTING: c_int = 3;
pub const EMPTY: c_int = 4;
pub const TABLELESS: c_int = 5;

unsafe extern "C" fn stub() {}

impl Bench {
    pub fn new() -> Self {
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
    pub fn c<F: Copy>(&self, name: &str) -> F {
        // SAFETY: each use names the type that the C source has.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.unwrap()
    }

    pub fn device(&self, kind: c_int) -> Device {
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
    pub fn run(&self, answer: i64, error: c_int, verb: impl FnOnce() -> (i64, Vec<u8>)) -> Outcome {
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
    pub fn same<T>(
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
pub fn place<T>() -> RefCell<T> {
    // SAFETY: the types that are used are structures of C, for which zeros are a value.
    RefCell::new(unsafe { zeroed() })
}
