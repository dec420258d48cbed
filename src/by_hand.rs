//! What bindgen cannot give: names that older headers lack, and macros. They are part of the binary interface, so
//! they are the same in all versions.

#![allow(non_camel_case_types, reason = "the names are those of C")]

use core::ffi::c_uint;

use crate::bindings::types::{
    IB_UVERBS_ACCESS_OPTIONAL_RANGE, IB_UVERBS_QPF_GRH_REQUIRED, ibv_gid,
};

/// An entry of a port's table of GIDs.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_gid_entry {
    /// The GID.
    pub gid: ibv_gid,
    /// Its index in the table.
    pub gid_index: u32,
    /// The port.
    pub port_num: u32,
    /// One of `IBV_GID_TYPE_*`.
    pub gid_type: u32,
    /// The network interface that a RoCE GID belongs to; 0 if there is none.
    pub ndev_ifindex: u32,
}

/// A GID of InfiniBand.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// A GID of RoCE v1: not routable.
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
/// A GID of RoCE v2: over UDP.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// Whether memory that is registered survives a `fork`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ibv_fork_status(pub c_uint);

/// Nobody has called `ibv_fork_init`, or the library is too old to tell.
pub const IBV_FORK_DISABLED: ibv_fork_status = ibv_fork_status(0);
/// `ibv_fork_init` was called.
pub const IBV_FORK_ENABLED: ibv_fork_status = ibv_fork_status(1);
/// The kernel copies registered pages at a `fork`, so there is nothing to do.
pub const IBV_FORK_UNNEEDED: ibv_fork_status = ibv_fork_status(2);

/// Flag for [`Verbs::ibv_query_qp_data_in_order`](crate::Verbs::ibv_query_qp_data_in_order): answer with a set of
/// `IBV_QUERY_QP_DATA_IN_ORDER_*` bits, not with 0 or 1. Drivers before rdma-core 46 answer 0 to it.
pub const IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: u32 = 1 << 0;
/// Flag for the same: answer for the device alone, on processors other than x86 too. Libraries before rdma-core 60 answer 0 to it.
pub const IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY: u32 = 1 << 1;
/// Answer: the bytes of a message become visible in increasing address order.
pub const IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG: u32 = 1 << 0;
/// Answer: those within each aligned 128 bytes do.
pub const IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES: u32 = 1 << 1;

/// Access flags that are hints: a library or kernel that does not know one ignores it.
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = IB_UVERBS_ACCESS_OPTIONAL_RANGE as c_uint;

/// In `ibv_port_attr::flags`: every address handle of this port needs a global route header.
pub const IBV_QPF_GRH_REQUIRED: u8 = IB_UVERBS_QPF_GRH_REQUIRED as u8;
