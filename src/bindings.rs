//! What bindgen wrote.

/// Types and constants.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::multiple_unsafe_ops_per_block,
    clippy::pub_underscore_fields,
    clippy::undocumented_unsafe_blocks,
    reason = "written by a program"
)]
pub mod types {
    use libc::{pthread_cond_t, pthread_mutex_t};

    include!(concat!(env!("OUT_DIR"), "/types.rs"));
}

/// Declarations of functions, which nothing links to. They prove that the types in [`crate::library`] are those of
/// the headers, and are used for nothing else.
#[allow(
    dead_code,
    improper_ctypes,
    non_camel_case_types,
    unused_imports,
    reason = "written by a program, and older headers have less"
)]
pub(crate) mod functions {
    use crate::by_hand::{ibv_fork_status, ibv_gid_entry};

    use super::types::*;

    include!(concat!(env!("OUT_DIR"), "/functions.rs"));
}
