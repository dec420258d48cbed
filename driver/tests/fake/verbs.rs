//! The functions of the library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Mutex;

use rdma_core_sys::*;

use super::data::{Device, Entry, Port};
use super::queues::{self, *};
use super::{CURRENT, Shared, State};

/// What verbs that return `int` leave in `errno` when they fail: not the reason.
const STALE_ERRNO: c_int = libc::ENOENT;

/// A device of the library; `ibv_device` is its head, so that a pointer to that is one to this.
#[repr(C)]
pub struct FakeDevice {
    raw: ibv_device,
    data: Device,
    shared: *const Shared,
}

#[derive(Clone, Copy)]
pub struct DevicePtr(*mut FakeDevice);
// SAFETY: nothing is written to a device after `install`, and none is freed.
unsafe impl Send for DevicePtr {}
// SAFETY: as above.
unsafe impl Sync for DevicePtr {}

/// Makes devices, which live as long as the process.
pub fn install(devices: Vec<Device>) -> &'static Shared {
    let devices: Vec<_> = devices
        .into_iter()
        .map(|mut data| {
            data.attr.phys_port_cnt = data.ports.len() as u8;
            for port in &mut data.ports {
                port.attr.gid_tbl_len = port.gids.len() as c_int;
            }
            let mut raw = ibv_device {
                transport_type: data.transport,
                ..Default::default()
            };
            for (to, from) in raw.name.iter_mut().zip(data.name.bytes()) {
                *to = from as c_char;
            }
            let shared = ptr::null();
            DevicePtr(Box::into_raw(Box::new(FakeDevice { raw, data, shared })))
        })
        .collect();
    let shared: &'static Shared = Box::leak(Box::new(Shared {
        devices: devices.clone(),
        state: Mutex::new(State::default()),
        net: Mutex::new(super::net::Net {
            inline_max: 256,
            ..Default::default()
        }),
    }));
    for device in devices {
        // SAFETY: nobody else knows of the device yet.
        unsafe { (*device.0).shared = shared };
    }
    shared
}

impl FakeDevice {
    /// # Safety
    ///
    /// The pointer must come from this library.
    pub unsafe fn of(device: *mut ibv_device) -> &'static Self {
        // SAFETY: devices are never freed, nor written to.
        unsafe { &*device.cast::<Self>() }
    }

    /// # Safety
    ///
    /// The context must be open.
    pub unsafe fn of_context(context: *mut ibv_context) -> &'static Self {
        // SAFETY: an open context has its device.
        unsafe { Self::of((*context).device) }
    }

    pub fn shared(&self) -> &'static Shared {
        // SAFETY: set before anybody could see the device, and never freed.
        unsafe { &*self.shared }
    }

    pub fn port(&self, number: u32) -> Option<&Port> {
        self.data.ports.get((number as usize).checked_sub(1)?)
    }

    /// Notes a call.
    pub fn call(&self, verb: &'static str, port: Option<u32>, detail: u64) -> Result<(), c_int> {
        self.shared().call(verb, self.data.name, port, detail)
    }
}

/// Sets `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: it is this thread's.
    unsafe { *libc::__errno_location() = errno };
}

/// The result of a verb that returns the value of `errno`.
pub fn int(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(STALE_ERRNO);
            errno
        }
    }
}

/// The result of a verb that returns null and sets `errno`.
pub fn pointer<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// The library, without some of its functions. It is never freed.
pub fn library(missing: &[&str]) -> &'static Verbs {
    let address = |name: &CStr| {
        let name = name.to_str().unwrap();
        if missing.contains(&name) {
            return ptr::null_mut();
        }
        let found = FUNCTIONS.iter().find(|(known, _)| *known == name);
        found.map_or(not_faked as *mut c_void, |(_, function)| function.0)
    };
    // SAFETY: each function of the table has the type of its name; the stub for the rest takes nothing and never
    // returns.
    let verbs = unsafe { Verbs::from_functions(address) }.unwrap();
    Box::leak(Box::new(verbs))
}

/// Stands for every verb that is not in the table.
extern "C" fn not_faked() {
    eprintln!("a verb was called that tests/fake/verbs.rs does not have");
    std::process::abort();
}

struct Address(*mut c_void);
// SAFETY: the address of a function.
unsafe impl Sync for Address {}

macro_rules! functions {
    ($($name:ident)*) => {
        static FUNCTIONS: &[(&str, Address)] = &[$((stringify!($name), Address($name as *mut c_void))),*];
    };
}

functions! {
    ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_open_device ibv_close_device ibv_query_device
    ibv_query_gid _ibv_query_gid_ex
    ibv_is_fork_initialized ibv_fork_init ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_reg_mr_iova2 ibv_dereg_mr ibv_create_cq ibv_destroy_cq
    ibv_create_qp ibv_modify_qp ibv_destroy_qp ibv_query_qp_data_in_order ibv_get_async_event ibv_ack_async_event
    ibv_wc_status_str ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_cq_event ibv_ack_cq_events
}

unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let shared = CURRENT.get().unwrap();
    pointer(shared.call("ibv_get_device_list", "", None, 0).map(|()| {
        let mut list: Vec<*mut ibv_device> = shared
            .devices
            .iter()
            .map(|device| device.0.cast())
            .collect();
        // SAFETY: the caller's duty.
        unsafe { *count = list.len() as c_int };
        list.push(ptr::null_mut());
        shared.state().live.lists += 1;
        ManuallyDrop::new(list).as_mut_ptr()
    }))
}

unsafe extern "C" fn ibv_free_device_list(_: *mut *mut ibv_device) {
    CURRENT.get().unwrap().state().live.lists -= 1;
}

unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller's duty.
    unsafe { (*device).name.as_ptr() }
}

unsafe extern "C" fn ibv_open_device(raw: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of(raw) };
    pointer(device.call("ibv_open_device", None, 0).map(|()| {
        device.shared().state().live.contexts += 1;
        let context = Box::into_raw(Box::new(verbs_context {
            query_port: Some(query_port),
            sz: size_of::<verbs_context>(),
            ..Default::default()
        }));
        // SAFETY: it was just made.
        let context = unsafe { &raw mut (*context).context };
        // SAFETY: as above.
        unsafe { (*context).device = raw };
        // SAFETY: as above.
        unsafe { (*context).abi_compat = VERBS_ABI_IS_EXTENDED };
        // SAFETY: as above.
        queues::operations(unsafe { &mut (*context).ops });
        if let Some(operations) = device.shared().net().operations {
            // SAFETY: as above.
            operations(unsafe { &mut (*context).ops });
        }
        // SAFETY: it takes numbers.
        let fd = unsafe {
            libc::eventfd(
                0,
                libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE,
            )
        };
        // SAFETY: as above.
        unsafe { (*context).async_fd = fd };
        device.shared().net().contexts.push(fd);
        context
    }))
}

unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    let result = device.call("ibv_close_device", None, 0);
    device.shared().state().live.contexts -= 1;
    // SAFETY: the caller's duty.
    let fd = unsafe { (*context).async_fd };
    device.shared().net().contexts.retain(|other| *other != fd);
    // SAFETY: the descriptor is the context's own.
    unsafe { libc::close(fd) };
    // A second close would find no device.
    // SAFETY: the caller's duty.
    unsafe { (*context).device = ptr::null_mut() };
    int(result)
}

unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    let result = device.call("ibv_query_device", None, 0);
    // SAFETY: the caller's duty.
    int(result.map(|()| unsafe { *attr = device.data.attr }))
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
    bytes: usize,
) -> c_int {
    assert_eq!(bytes, size_of::<ibv_port_attr>());
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    let result = device.call("ibv_query_port", Some(number.into()), 0);
    int(result.and_then(|()| {
        let port = device.port(number.into()).ok_or(libc::EINVAL)?;
        // SAFETY: the caller's duty.
        unsafe { *attr = port.attr };
        Ok(())
    }))
}

/// An entry of a table, as either function reads it.
fn entry(device: &FakeDevice, port: u32, index: u32) -> Result<Entry, c_int> {
    let port = device.port(port).ok_or(libc::EINVAL)?;
    port.gids.get(index as usize).copied().ok_or(libc::EINVAL)
}

/// Before kinds were known a hole was zeros.
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    let result = device.call("ibv_query_gid", Some(port.into()), index as u64);
    let raw = result.and_then(|()| match entry(device, port.into(), index as u32)? {
        Entry::Gid(raw, _) => Ok(raw),
        Entry::Hole => Ok([0; 16]),
        Entry::Unreadable(errno) => Err(errno),
    });
    match raw {
        Ok(raw) => {
            // SAFETY: the caller's duty.
            unsafe { *gid = ibv_gid { raw } };
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

#[allow(non_snake_case, reason = "the name of C")]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    _flags: u32,
    bytes: usize,
) -> c_int {
    assert_eq!(bytes, size_of::<ibv_gid_entry>());
    // SAFETY: the caller's duty.
    let device = unsafe { FakeDevice::of_context(context) };
    let result = device.call("ibv_query_gid_ex", Some(port), index.into());
    int(result.and_then(|()| match entry(device, port, index)? {
        Entry::Gid(raw, gid_type) => {
            let entry = ibv_gid_entry {
                gid: ibv_gid { raw },
                gid_index: index,
                port_num: port,
                gid_type,
                ndev_ifindex: 0,
            };
            // SAFETY: the caller's duty.
            unsafe { *to = entry };
            Ok(())
        }
        Entry::Hole => Err(libc::ENODATA),
        Entry::Unreadable(errno) => Err(errno),
    }))
}
