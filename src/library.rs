//! libibverbs, loaded at run time.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::fmt;
use core::mem::transmute;
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::functions as declared;
use crate::bindings::types::*;
use crate::by_hand::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_FORK_DISABLED, ibv_fork_status, ibv_gid_entry,
};
use crate::error::LoadError;
use crate::inline::context_op;

/// The name that [`Verbs::load`] loads: that of the stable binary interface.
pub const LIBRARY: &str = "libibverbs.so.1";

/// A function's address as a pointer of the function's type.
macro_rules! typed {
    ($address:expr, $type:ty) => {
        // SAFETY: whoever loads a library promises that its functions have the types of rdma-core's, and the
        // constants below prove that these are they.
        unsafe { transmute::<*mut c_void, $type>($address) }
    };
}

/// A function's name, as C has it.
macro_rules! c_name {
    ($name:ident) => {{
        const NAME: &CStr =
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
        NAME
    }};
}

/// Writes [`Verbs`]: a field for each function, how they are found, and a method for each that is `called` as it is.
macro_rules! table {
    (
        called { $(
            $(#[$doc:meta])*
            fn $called:ident($($arg:ident: $arg_type:ty),*) $(-> $called_result:ty)?;
        )* }
        wrapped { $( fn $wrapped:ident($($wrapped_type:ty),*) -> $wrapped_result:ty; )* }
        optional { $(
            $(#[$optional_doc:meta])*
            fn $optional:ident = $name:tt ($($optional_type:ty),*) -> $optional_result:ty;
        )* }
    ) => {
        /// libibverbs, loaded.
        ///
        /// Methods are verbs. A field is a function that older libraries lack, as it is; prefer the method of the same
        /// name, which answers for a library without it.
        #[allow(non_snake_case, reason = "a name of C begins with an underscore")]
        pub struct Verbs {
            $( $called: unsafe extern "C" fn($($arg_type),*) $(-> $called_result)?, )*
            $( $wrapped: unsafe extern "C" fn($($wrapped_type),*) -> $wrapped_result, )*
            $(
                $(#[$optional_doc])*
                pub $optional: Option<unsafe extern "C" fn($($optional_type),*) -> $optional_result>,
            )*
            /// Keeps the functions where they are.
            _library: Option<Library>,
        }

        impl Verbs {
            /// Finds every function. `library` is for the message only.
            fn find(
                library: &str,
                mut address: impl FnMut(&CStr) -> *mut c_void,
            ) -> Result<Self, LoadError> {
                let mut required = |function: &'static str, name: &CStr| {
                    let found = address(name);
                    if found.is_null() {
                        return Err(LoadError::Function {
                            library: library.to_owned(),
                            function,
                        });
                    }
                    Ok(found)
                };
                $(
                    let $called = typed!(
                        required(stringify!($called), c_name!($called))?,
                        unsafe extern "C" fn($($arg_type),*) $(-> $called_result)?
                    );
                )*
                $(
                    let $wrapped = typed!(
                        required(stringify!($wrapped), c_name!($wrapped))?,
                        unsafe extern "C" fn($($wrapped_type),*) -> $wrapped_result
                    );
                )*
                $(
                    let $optional = typed!(
                        address(c_name!($optional)),
                        Option<unsafe extern "C" fn($($optional_type),*) -> $optional_result>
                    );
                )*
                Ok(Self { $($called,)* $($wrapped,)* $($optional,)* _library: None })
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                ///
                /// The arguments must be what the manual page of the C function demands.
                #[inline]
                pub unsafe fn $called(&self, $($arg: $arg_type),*) $(-> $called_result)? {
                    // SAFETY: the caller's duties are the library's.
                    unsafe { (self.$called)($($arg),*) }
                }
            )*
        }

        // The types above are those of the headers: the compiler compares them. Nothing is linked.
        $( const _: unsafe extern "C" fn($($arg_type),*) $(-> $called_result)? = declared::$called; )*
        $( const _: unsafe extern "C" fn($($wrapped_type),*) -> $wrapped_result = declared::$wrapped; )*
        $(
            #[cfg(header_has = $name)]
            const _: unsafe extern "C" fn($($optional_type),*) -> $optional_result = declared::$optional;
        )*
    };
}

table! {
    called {
        /// Lists the devices, in an array that ends with null. Returns null and sets `errno` on error.
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
        /// Frees a list of devices; those that are open stay open.
        fn ibv_free_device_list(list: *mut *mut ibv_device);
        /// A device's name, such as `mlx5_0`.
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        /// A device's GUID, in network byte order.
        fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
        /// Opens a device. Returns null and sets `errno` on error.
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        /// Closes a device.
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        /// Waits for an asynchronous event and takes it. Returns -1 and sets `errno` on error.
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        /// Acknowledges an asynchronous event: what it is about cannot be destroyed before.
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        /// A device's limits.
        fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        /// An entry of a port's table of GIDs. Returns -1 on error.
        fn ibv_query_gid(
            context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid
        ) -> c_int;
        /// An entry of a port's table of partition keys, in network byte order. Returns -1 on error.
        fn ibv_query_pkey(
            context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16
        ) -> c_int;
        /// Makes a protection domain. Returns null and sets `errno` on error.
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        /// Frees a protection domain.
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        /// Ends a memory registration.
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        /// Makes a completion channel. Returns null and sets `errno` on error.
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        /// Destroys a completion channel.
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        /// Makes a completion queue. Returns null and sets `errno` on error.
        fn ibv_create_cq(
            context: *mut ibv_context,
            cqe: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int
        ) -> *mut ibv_cq;
        /// Destroys a completion queue. It waits until every event of the queue has been acknowledged.
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        /// Waits for a completion event and takes it. Returns -1 and sets `errno` on error.
        fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void
        ) -> c_int;
        /// Acknowledges completion events.
        fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
        /// Makes a shared receive queue, and writes the capacities that it got to `attr`. Returns null and sets `errno`
        /// on error.
        fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        /// Destroys a shared receive queue.
        fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
        /// Makes a queue pair, and writes the capacities that it got to `attr`. Returns null and sets `errno` on
        /// error.
        fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        /// Changes a queue pair's attributes and state: those that `attr_mask` names.
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
        /// A queue pair's attributes and state.
        fn ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: c_int,
            init_attr: *mut ibv_qp_init_attr
        ) -> c_int;
        /// Destroys a queue pair.
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        /// Makes `fork` safe for registered memory, on kernels that need it. Returns `EINVAL` if memory has been
        /// registered already.
        fn ibv_fork_init() -> c_int;
        /// A completion's status, in words.
        fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
        /// An asynchronous event, in words.
        fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
        /// A port's state, in words.
        fn ibv_port_state_str(state: ibv_port_state) -> *const c_char;
    }
    wrapped {
        fn ibv_query_port(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    }
    optional {
        /// Since rdma-core 28.
        fn ibv_reg_mr_iova2 = "ibv_reg_mr_iova2"
            (*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        /// Since rdma-core 32. [`Verbs::ibv_query_gid_ex`] calls it.
        fn _ibv_query_gid_ex = "_ibv_query_gid_ex"
            (*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        /// Since rdma-core 32. [`Verbs::ibv_query_gid_table`] calls it.
        fn _ibv_query_gid_table = "_ibv_query_gid_table"
            (*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        /// Since rdma-core 35.
        fn ibv_is_fork_initialized = "ibv_is_fork_initialized" () -> ibv_fork_status;
        /// Since rdma-core 36.
        fn ibv_query_qp_data_in_order = "ibv_query_qp_data_in_order"
            (*mut ibv_qp, ibv_wr_opcode, u32) -> c_int;
    }
}

impl Verbs {
    /// Loads [`LIBRARY`], once per process. It stays loaded. An error is not remembered, so it can be tried again.
    ///
    /// # Errors
    ///
    /// When the library, or one that it needs, is missing, or is not rdma-core's.
    pub fn load() -> Result<&'static Self, LoadError> {
        static LOADED: OnceLock<Verbs> = OnceLock::new();
        if let Some(verbs) = LOADED.get() {
            return Ok(verbs);
        }
        // SAFETY: a library of this name is rdma-core's libibverbs; whoever puts another one where the system looks
        // for libraries could replace the C library as well.
        let verbs = unsafe { Self::load_from(Path::new(LIBRARY)) }?;
        Ok(LOADED.get_or_init(|| verbs))
    }

    /// Loads libibverbs from a place of its own.
    ///
    /// # Safety
    ///
    /// The library's functions must be those of rdma-core: of these types, and with their effect. Whatever was made
    /// by them must be gone before the value is dropped.
    ///
    /// # Errors
    ///
    /// As for [`Verbs::load`].
    pub unsafe fn load_from(path: &Path) -> Result<Self, LoadError> {
        let name = path.display().to_string();
        // All symbols now: one that is missing is found here, not at some first call.
        // SAFETY: the caller vouches for the library, and so for what it does when it is loaded.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Library {
            library: name.clone(),
            reason: error.to_string(),
        })?;
        let mut verbs = Self::find(&name, |function| {
            // SAFETY: the address is taken for one, whatever is there.
            let found = unsafe { library.get::<*mut c_void>(function.to_bytes_with_nul()) };
            found.map_or(core::ptr::null_mut(), |symbol| symbol.into_raw())
        })?;
        verbs._library = Some(library);
        Ok(verbs)
    }

    /// Takes functions from anywhere, as tests of error paths do: `address` gives that of the function of a name, or
    /// null.
    ///
    /// # Safety
    ///
    /// The functions must have the types that rdma-core's have, and stay where they are while the value lives.
    ///
    /// # Errors
    ///
    /// [`LoadError::Function`] when a function is missing that is not optional.
    pub unsafe fn from_functions(
        address: impl FnMut(&CStr) -> *mut c_void,
    ) -> Result<Self, LoadError> {
        Self::find("the table of functions", address)
    }

    /// A port's attributes.
    ///
    /// The exported function of this name fills a shorter structure. It is called only where the device has no
    /// operation of its own, and what it leaves is zero.
    ///
    /// # Safety
    ///
    /// `context` must be open, and `attr` valid for a write.
    #[inline]
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int {
        match context_op!(context, query_port) {
            // SAFETY: the caller's duties are the library's.
            Some(query_port) => unsafe {
                query_port(context, port_num, attr, size_of::<ibv_port_attr>())
            },
            None => {
                // SAFETY: `attr` is valid for a write, and made of integers.
                unsafe { attr.write_bytes(0, 1) };
                // SAFETY: the caller's duties are the library's; the shorter structure is a prefix of this one.
                unsafe { (self.ibv_query_port)(context, port_num, attr.cast()) }
            }
        }
    }

    /// A device's limits, and those that came later. Devices without this operation answer with the former, and zeros
    /// for the rest.
    ///
    /// # Safety
    ///
    /// `context` must be open, `input` null or valid, and `attr` valid for a write.
    #[inline]
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: `input` is null or valid.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return libc::EINVAL;
        }
        if let Some(query) = context_op!(context, query_device_ex) {
            // SAFETY: the caller's duties are the library's.
            let result = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
            if result != libc::EOPNOTSUPP && result != libc::ENOSYS {
                return result;
            }
        }
        // SAFETY: `attr` is valid for a write, and made of integers.
        unsafe { attr.write_bytes(0, 1) };
        // SAFETY: `attr` is valid, and so is the place of a field.
        let orig = unsafe { &raw mut (*attr).orig_attr };
        // SAFETY: the caller's duties are the library's.
        unsafe { (self.ibv_query_device)(context, orig) }
    }

    /// Registers memory. Returns null and sets `errno` on error.
    ///
    /// Flags in [`IBV_ACCESS_OPTIONAL_RANGE`] are hints: a library that is too old to pass them on ignores them, as a
    /// newer one does for a kernel that is too old.
    ///
    /// # Safety
    ///
    /// `pd` must be live. `addr` to `addr + length` must be memory of this process that stays mapped until the
    /// registration ends; nothing in Rust may rely on its contents while a device may write there.
    #[inline]
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr {
        match self.ibv_reg_mr_iova2 {
            Some(reg_mr_iova2) if access & IBV_ACCESS_OPTIONAL_RANGE != 0 => {
                // A registration's addresses at the peer are those of this process.
                let iova = addr.expose_provenance() as u64;
                // SAFETY: the caller's duties are the library's.
                unsafe { reg_mr_iova2(pd, addr, length, iova, access) }
            }
            _ => {
                let access = (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int;
                // SAFETY: the caller's duties are the library's.
                unsafe { (self.ibv_reg_mr)(pd, addr, length, access) }
            }
        }
    }

    /// An entry of a port's table of GIDs, with its type. Returns 0 or the value of `errno`: `ENODATA` for an empty
    /// entry, `EOPNOTSUPP` if the library is too old.
    ///
    /// # Safety
    ///
    /// `context` must be open, and `entry` valid for a write.
    #[inline]
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int {
        let bytes = size_of::<ibv_gid_entry>();
        match self._ibv_query_gid_ex {
            // SAFETY: the caller's duties are the library's.
            Some(query) => unsafe { query(context, port_num, gid_index, entry, flags, bytes) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// All valid entries of the tables of GIDs of all ports. Returns how many there are, or the negative value of
    /// `errno`: `-EOPNOTSUPP` if the library is too old.
    ///
    /// # Safety
    ///
    /// `context` must be open, and `entries` valid for writes of `max_entries` entries.
    #[inline]
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
    ) -> isize {
        let bytes = size_of::<ibv_gid_entry>();
        match self._ibv_query_gid_table {
            // SAFETY: the caller's duties are the library's.
            Some(query) => unsafe { query(context, entries, max_entries, flags, bytes) },
            None => -(libc::EOPNOTSUPP as isize),
        }
    }

    /// Whether registered memory survives a `fork`. A library that is too old to know answers
    /// [`IBV_FORK_DISABLED`].
    #[inline]
    #[must_use]
    pub fn ibv_is_fork_initialized(&self) -> ibv_fork_status {
        match self.ibv_is_fork_initialized {
            // SAFETY: the function takes nothing, and may be called at any time.
            Some(is_initialized) => unsafe { is_initialized() },
            None => IBV_FORK_DISABLED,
        }
    }

    /// Whether what a peer's `op` writes through this queue pair becomes visible in increasing address order. Ask
    /// when the queue pair has reached RTS; the answer holds for memory registered without
    /// `IBV_ACCESS_RELAXED_ORDERING`. 0 means that there is no such promise, which is also the answer of a library
    /// that is too old to know.
    ///
    /// # Safety
    ///
    /// `qp` must be a live queue pair.
    #[inline]
    pub unsafe fn ibv_query_qp_data_in_order(
        &self,
        qp: *mut ibv_qp,
        op: ibv_wr_opcode,
        flags: u32,
    ) -> c_int {
        match self.ibv_query_qp_data_in_order {
            // SAFETY: the caller's duties are the library's.
            Some(query) => unsafe { query(qp, op, flags) },
            None => 0,
        }
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").finish_non_exhaustive()
    }
}
