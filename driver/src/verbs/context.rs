//! Devices as libibverbs lists and opens them: everything here that needs `unsafe`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ptr::NonNull;

use rdma_core_sys::{
    IBV_TRANSPORT_IB, Verbs, ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry,
    ibv_port_attr,
};

use super::errno::Errno;
use super::gid::{Gid, GidKind};

/// The devices that libibverbs found.
pub(super) struct DeviceList {
    verbs: &'static Verbs,
    list: NonNull<*mut ibv_device>,
    devices: Vec<NonNull<ibv_device>>,
}

impl DeviceList {
    pub(super) fn new(verbs: &'static Verbs) -> Result<Self, Errno> {
        let mut count: c_int = 0;
        // SAFETY: the count is valid for a write.
        let list = unsafe { verbs.ibv_get_device_list(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(Errno::last)?;
        let mut devices = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has as many entries as the library said.
            let entry = unsafe { list.add(index) };
            // SAFETY: as above; nobody else knows of the list.
            devices.extend(NonNull::new(unsafe { entry.read() }));
        }
        Ok(Self {
            verbs,
            list,
            devices,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.devices.len()
    }

    pub(super) fn names(&self) -> Vec<String> {
        (0..self.len()).map(|index| self.name(index)).collect()
    }

    pub(super) fn name(&self, index: usize) -> String {
        let device = self.devices[index].as_ptr();
        // SAFETY: the list is not freed before `self` is dropped, and neither are its devices.
        let name: *const c_char = unsafe { self.verbs.ibv_get_device_name(device) };
        if name.is_null() {
            return "?".to_owned();
        }
        // SAFETY: the library's names end with NUL, and live as long as their device.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// True if queue pairs of the device are connected as those of InfiniBand and RoCE are.
    pub(super) fn is_infiniband(&self, index: usize) -> bool {
        let device = self.devices[index].as_ptr();
        // SAFETY: as in `name`; the field is never written after the device was listed.
        let transport = unsafe { (*device).transport_type };
        transport == IBV_TRANSPORT_IB
    }

    pub(super) fn open(&self, index: usize) -> Result<Context, Errno> {
        let device = self.devices[index].as_ptr();
        // SAFETY: as in `name`.
        let context = unsafe { self.verbs.ibv_open_device(device) };
        Ok(Context {
            verbs: self.verbs,
            context: NonNull::new(context).ok_or_else(Errno::last)?,
            name: self.name(index),
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it is the library's list, freed once, and an open device outlives it.
        unsafe { self.verbs.ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// An open device, which is closed when this is dropped. Whatever is made from it must be gone before.
pub struct Context {
    verbs: &'static Verbs,
    context: NonNull<ibv_context>,
    name: String,
}

// SAFETY: verbs may be called from any thread, says ibv_open_device's family of manual pages: the library locks what
// it has to. Nothing here is bound to a thread, and the pointer is not used after the drop.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The library that opened it.
    #[must_use]
    pub fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    /// The context, open until this is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn query_device(&self) -> Result<ibv_device_attr, Errno> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is open, and the attributes are valid for a write.
        let result = unsafe { self.verbs.ibv_query_device(self.as_ptr(), &raw mut attr) };
        Errno::of_result(result).map_or(Ok(attr), Err)
    }

    pub(super) fn query_port(&self, port: u8) -> Result<ibv_port_attr, Errno> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: as in `query_device`.
        let result = unsafe {
            self.verbs
                .ibv_query_port(self.as_ptr(), port, &raw mut attr)
        };
        Errno::of_result(result).map_or(Ok(attr), Err)
    }

    /// An entry of a port's table of GIDs; its index in the answer is the one that was asked for.
    pub(super) fn query_gid_ex(&self, port: u8, index: u32) -> Result<Gid, Errno> {
        let mut entry = ibv_gid_entry::default();
        // SAFETY: as in `query_device`.
        let result = unsafe {
            self.verbs
                .ibv_query_gid_ex(self.as_ptr(), port.into(), index, &raw mut entry, 0)
        };
        if let Some(errno) = Errno::of_result(result) {
            return Err(errno);
        }
        Ok(Gid {
            index,
            bytes: raw(entry.gid),
            kind: GidKind::from_verbs(entry.gid_type),
        })
    }

    /// The bytes of an entry, for libraries that do not know of kinds.
    pub(super) fn query_gid(&self, port: u8, index: u32) -> Result<[u8; 16], Errno> {
        let index = c_int::try_from(index).map_err(|_| Errno(libc::EINVAL))?;
        let mut gid = ibv_gid::default();
        // SAFETY: as in `query_device`.
        let result = unsafe {
            self.verbs
                .ibv_query_gid(self.as_ptr(), port, index, &raw mut gid)
        };
        Errno::of_result(result).map_or(Ok(raw(gid)), Err)
    }
}

/// The bytes of a GID.
fn raw(gid: ibv_gid) -> [u8; 16] {
    // SAFETY: both variants have 16 bytes, and any bytes are a GID.
    unsafe { gid.raw }
}

impl Drop for Context {
    fn drop(&mut self) {
        // What it could fail with is of no use any more.
        // SAFETY: the context is open, and closed once.
        let _ = unsafe { self.verbs.ibv_close_device(self.as_ptr()) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
