//! Sizes, offsets and constants are those that a C compiler sees in the same headers.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::unwrap_used,
    reason = "tests"
)]

mod common;

use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::mem::offset_of;

use libloading::Library;
use rdma_core_sys::*;

/// One thing that both languages must agree on.
struct Fact {
    /// What C calls it: an expression.
    c: String,
    /// What headers must mention for C to know it.
    since: Option<&'static str>,
    /// What Rust says.
    rust: i64,
}

/// Constants, be they plain integers or newtypes.
trait Constant {
    fn value(self) -> i64;
}

macro_rules! constants_are {
    (plain $($plain:ty),*; new $($new:ty),*) => {
        $( impl Constant for $plain { fn value(self) -> i64 { i64::from(self) } } )*
        $( impl Constant for $new { fn value(self) -> i64 { i64::from(self.0) } } )*
    };
}
constants_are! {
    plain u8, u32;
    new ibv_wc_status, ibv_wc_opcode, ibv_wr_opcode, ibv_qp_state, ibv_qp_type, ibv_mtu, ibv_port_state,
        ibv_event_type, ibv_fork_status, ibv_node_type, ibv_transport_type
}

macro_rules! types {
    ($facts:ident, $since:expr, $($kind:ident $type:ident {
        $( $($field:ident).+ $(= $name:literal)? ),* $(,)?
    })*) => { $(
        let c = concat!(stringify!($kind), " ", stringify!($type));
        $facts.push(Fact {
            c: format!("sizeof({c})"),
            since: $since,
            rust: size_of::<$type>() as i64,
        });
        $facts.push(Fact {
            c: format!("_Alignof({c})"),
            since: $since,
            rust: align_of::<$type>() as i64,
        });
        $(
            let name = [$($name,)? stringify!($($field).+)][0].replace(' ', "");
            $facts.push(Fact {
                c: format!("offsetof({c}, {name})"),
                since: $since,
                rust: offset_of!($type, $($field).+) as i64,
            });
        )*
    )* };
}

macro_rules! constants {
    ($facts:ident, $($name:ident)*) => { $(
        $facts.push(Fact { c: stringify!($name).to_owned(), since: None, rust: $name.value() });
    )* };
}

macro_rules! newer_constants {
    ($facts:ident, $($name:ident)*) => { $(
        $facts.push(Fact {
            c: stringify!($name).to_owned(),
            since: Some(stringify!($name)),
            rust: $name.value(),
        });
    )* };
}

fn queue_facts(facts: &mut Vec<Fact>) {
    types! { facts, None,
        struct ibv_sge { addr, length, lkey }
        struct ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags,
            __bindgen_anon_1.imm_data = "imm_data",
            __bindgen_anon_1.invalidate_rkey = "invalidate_rkey",
            wr.rdma.remote_addr, wr.rdma.rkey,
            wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey,
            qp_type.xrc.remote_srqn,
        }
        struct ibv_recv_wr { wr_id, next, sg_list, num_sge }
        struct ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, __bindgen_anon_1.imm_data = "imm_data",
            qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits,
        }
        struct ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
        struct ibv_qp_cap {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }
        struct ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        struct ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num,
            timeout, retry_cnt, rnr_retry, rate_limit,
        }
        struct ibv_ah_attr {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
        }
        struct ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        struct ibv_cq { context, channel, cq_context, handle, cqe }
        struct ibv_cq_ex { context, channel, cq_context, handle, cqe, comp_mask }
        struct ibv_srq { context, srq_context, pd, handle }
        struct ibv_comp_channel { context, fd, refcnt }
        struct ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags,
        }
    }
}

fn device_facts(facts: &mut Vec<Fact>) {
    types! { facts, None,
        struct ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        struct ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        struct ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        struct verbs_context { query_port, create_cq_ex, query_device_ex, sz, context }
        struct ibv_device_attr {
            fw_ver, node_guid, max_mr_size, page_size_cap, vendor_id, max_qp, max_qp_wr, max_sge,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_qp_init_rd_atom, atomic_cap,
            max_srq, phys_port_cnt,
        }
        struct ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, device_cap_flags_ex }
        struct ibv_query_device_ex_input { comp_mask }
        struct ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, pkey_tbl_len, lid,
            sm_lid, lmc, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        struct ibv_pd { context, handle }
        struct ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        union ibv_gid { raw, global.subnet_prefix, global.interface_id }
        struct ibv_async_event {
            element.cq, element.qp, element.port_num, event_type,
        }
    }
    types! { facts, Some("ibv_gid_entry"),
        struct ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    }
    types! { facts, Some("ibv_fork_status"), enum ibv_fork_status {} }
}

fn constant_facts(facts: &mut Vec<Fact>) {
    constants! { facts,
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ
        IBV_ACCESS_REMOTE_ATOMIC IBV_ACCESS_HUGETLB IBV_ACCESS_RELAXED_ORDERING
        IBV_ACCESS_OPTIONAL_RANGE IBV_QPF_GRH_REQUIRED
        IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND IBV_WR_RDMA_READ
        IBV_SEND_FENCE IBV_SEND_SIGNALED IBV_SEND_SOLICITED IBV_SEND_INLINE
        IBV_WC_SUCCESS IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR IBV_WC_REM_ACCESS_ERR
        IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_GENERAL_ERR
        IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RDMA_READ IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM
        IBV_WC_WITH_IMM IBV_QPT_RC IBV_QPT_UC IBV_QPT_UD
        IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_SQD IBV_QPS_SQE IBV_QPS_ERR
        IBV_QP_STATE IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_AV IBV_QP_PATH_MTU
        IBV_QP_TIMEOUT IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN IBV_QP_MAX_QP_RD_ATOMIC
        IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_CAP IBV_QP_DEST_QPN
        IBV_MTU_256 IBV_MTU_1024 IBV_MTU_4096 IBV_PORT_DOWN IBV_PORT_ACTIVE
        IBV_LINK_LAYER_UNSPECIFIED IBV_LINK_LAYER_INFINIBAND IBV_LINK_LAYER_ETHERNET
        IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR
        IBV_EVENT_GID_CHANGE IBV_EVENT_DEVICE_FATAL
        IBV_NODE_UNKNOWN IBV_NODE_CA IBV_TRANSPORT_IB IBV_TRANSPORT_IWARP
        IBV_CQ_INIT_ATTR_MASK_FLAGS IBV_CREATE_CQ_ATTR_SINGLE_THREADED
    }
    newer_constants! { facts,
        IBV_GID_TYPE_IB IBV_GID_TYPE_ROCE_V1 IBV_GID_TYPE_ROCE_V2
        IBV_FORK_DISABLED IBV_FORK_ENABLED IBV_FORK_UNNEEDED
        IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY
        IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES
    }
}

/// A library that tells facts, one for each number.
fn source(facts: &[Fact]) -> String {
    let mut source = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         struct fact { const char *name; long long value; };\n\
         const struct fact facts[] = {\n",
    );
    for fact in facts {
        writeln!(source, "{{\"{0}\", (long long)({0})}},", fact.c).unwrap();
    }
    source.push_str("};\n");
    source
}

/// `struct fact` of the C source.
#[repr(C)]
struct Told {
    name: *const c_char,
    value: i64,
}

#[test]
fn c_and_rust_agree() {
    let dir = tempfile::tempdir().unwrap();
    let headers = common::headers(dir.path());
    let mut facts = Vec::new();
    queue_facts(&mut facts);
    device_facts(&mut facts);
    constant_facts(&mut facts);
    facts.retain(|fact| fact.since.is_none_or(|name| headers.contains(name)));

    let path = common::library(dir.path(), "facts", &source(&facts));
    // SAFETY: a library without initializers.
    let library = unsafe { Library::new(path) }.unwrap();
    // SAFETY: the array has a fact for each of ours.
    let told = unsafe {
        let first = *library.get::<*const Told>(b"facts").unwrap();
        std::slice::from_raw_parts(first, facts.len())
    };
    let mut wrong = Vec::new();
    for (fact, told) in facts.iter().zip(told) {
        // SAFETY: names are strings.
        let name = unsafe { CStr::from_ptr(told.name) };
        assert_eq!(name.to_str().unwrap(), fact.c);
        if fact.rust != told.value {
            wrong.push(format!("{}: C {}, Rust {}", fact.c, told.value, fact.rust));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What the headers have decides which types are compared with theirs, so it must not be missed.
#[test]
fn the_build_script_knows_what_the_headers_have() {
    let dir = tempfile::tempdir().unwrap();
    let headers = common::headers(dir.path());
    macro_rules! check {
        ($($name:literal)*) => { $(
            let declared = [" ", "*"].iter().any(|before| headers.contains(&format!("{before}{}(", $name)));
            assert_eq!(cfg!(header_has = $name), declared, $name);
        )* };
    }
    check! {
        "_ibv_query_gid_ex" "_ibv_query_gid_table" "ibv_is_fork_initialized"
        "ibv_query_qp_data_in_order" "ibv_open_device" "ibv_reg_mr_iova2"
    }
}
