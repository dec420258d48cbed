//! libibverbs is looked for at run time: what happens when it, or a part of it, is missing.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::unwrap_used,
    reason = "tests"
)]

mod common;

use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr;

use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_RELAXED_ORDERING, IBV_FORK_DISABLED, IBV_WR_RDMA_WRITE,
    LIBRARY, LoadError, Verbs, ibv_gid_entry, ibv_mr, ibv_pd,
};

/// Functions that a library may lack.
const OPTIONAL: [&str; 5] = [
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_is_fork_initialized",
    "ibv_query_qp_data_in_order",
    "ibv_reg_mr_iova2",
];

/// Stands for every function that is not called.
unsafe extern "C" fn stub() {}

/// A library that has every function but these.
fn without(missing: &[&str]) -> Result<Verbs, LoadError> {
    let address = |name: &CStr| {
        if missing.contains(&name.to_str().unwrap()) {
            ptr::null_mut()
        } else {
            stub as *mut c_void
        }
    };
    // SAFETY: nobody calls them.
    unsafe { Verbs::from_functions(address) }
}

/// The names of all functions that are looked for.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let address = |name: &CStr| {
        names.insert(name.to_str().unwrap().to_owned());
        stub as *mut c_void
    };
    // SAFETY: nobody calls them.
    unsafe { Verbs::from_functions(address) }.unwrap();
    names
}

#[test]
fn a_missing_library_is_an_error_that_says_what_to_install() {
    // SAFETY: there is none.
    let result = unsafe { Verbs::load_from(Path::new("/nonexistent/libibverbs.so.1")) };
    let error = result.err().unwrap();
    assert!(matches!(&error, LoadError::Library { library, .. } if library.ends_with(LIBRARY)));
    let message = error.to_string();
    assert!(message.starts_with("/nonexistent/libibverbs.so.1 could not be loaded: "));
    for part in ["libibverbs1", "Fedora", "No such file"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn each_function_is_either_required_or_optional() {
    let names = names();
    assert!(names.len() > 30, "{names:?}");
    for name in &names {
        match without(&[name]) {
            Ok(_) => assert!(OPTIONAL.contains(&name.as_str()), "{name} is not required"),
            Err(LoadError::Function { function, .. }) => {
                assert_eq!(function, name);
                assert!(!OPTIONAL.contains(&name.as_str()), "{name} is required");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(OPTIONAL.iter().all(|name| names.contains(*name)));
}

#[test]
fn an_old_library_degrades() {
    let verbs = without(&OPTIONAL).unwrap();
    assert!(verbs._ibv_query_gid_ex.is_none());
    assert!(verbs._ibv_query_gid_table.is_none());
    assert!(verbs.ibv_is_fork_initialized.is_none());
    assert!(verbs.ibv_query_qp_data_in_order.is_none());
    assert!(verbs.ibv_reg_mr_iova2.is_none());

    let mut entry = ibv_gid_entry::default();
    // SAFETY: there is no function that would look at the arguments.
    unsafe {
        let result = verbs.ibv_query_gid_ex(ptr::null_mut(), 1, 0, &mut entry, 0);
        assert_eq!(result, libc::EOPNOTSUPP);
        let result = verbs.ibv_query_gid_table(ptr::null_mut(), &mut entry, 1, 0);
        assert_eq!(result, -(libc::EOPNOTSUPP as isize));
        let order = verbs.ibv_query_qp_data_in_order(ptr::null_mut(), IBV_WR_RDMA_WRITE, 0);
        assert_eq!(order, 0);
    }
    assert_eq!(verbs.ibv_is_fork_initialized(), IBV_FORK_DISABLED);
}

#[test]
fn an_old_library_registers_memory_without_hints() {
    /// Answers with the access flags, in place of a registration.
    unsafe extern "C" fn reg_mr(
        _: *mut ibv_pd,
        _: *mut c_void,
        _: usize,
        access: i32,
    ) -> *mut ibv_mr {
        ptr::without_provenance_mut(access as usize)
    }
    let address = |name: &CStr| match name.to_str().unwrap() {
        "ibv_reg_mr" => reg_mr as *mut c_void,
        "ibv_reg_mr_iova2" => ptr::null_mut(),
        _ => stub as *mut c_void,
    };
    // SAFETY: the one function that is called has the type of that name.
    let verbs = unsafe { Verbs::from_functions(address) }.unwrap();
    let flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    // SAFETY: the function above looks at none of the pointers.
    let mr = unsafe { verbs.ibv_reg_mr(ptr::null_mut(), ptr::null_mut(), 1, flags) };
    assert_eq!(mr.addr(), IBV_ACCESS_LOCAL_WRITE as usize);
}

#[test]
fn loads_a_library_and_says_which_function_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let source = |names: &BTreeSet<String>| -> String {
        names
            .iter()
            .map(|name| format!("void {name}(void) {{}}\n"))
            .collect()
    };
    let mut names = names();

    let path = common::library(dir.path(), "whole", &source(&names));
    // SAFETY: none of its functions is called.
    let verbs = unsafe { Verbs::load_from(&path) }.unwrap();
    assert!(verbs.ibv_query_qp_data_in_order.is_some());

    for name in OPTIONAL {
        names.remove(name);
    }
    let path = common::library(dir.path(), "old", &source(&names));
    // SAFETY: none of its functions is called.
    let verbs = unsafe { Verbs::load_from(&path) }.unwrap();
    assert!(verbs.ibv_query_qp_data_in_order.is_none());

    names.remove("ibv_modify_qp");
    let path = common::library(dir.path(), "other", &source(&names));
    // SAFETY: none of its functions is called.
    let error = unsafe { Verbs::load_from(&path) }.err().unwrap();
    let message = error.to_string();
    assert!(
        message.contains("ibv_modify_qp") && message.contains("other.so"),
        "{message}"
    );
}

/// Where the library is installed, all that is required is there, with the effect of the real one.
#[test]
fn the_systems_library_is_taken_if_it_is_there() {
    match Verbs::load() {
        Ok(verbs) => {
            let again = Verbs::load().unwrap();
            assert!(ptr::eq(verbs, again), "it is loaded once");
            // SAFETY: any status is allowed.
            let text = unsafe { verbs.ibv_wc_status_str(rdma_core_sys::IBV_WC_RETRY_EXC_ERR) };
            // SAFETY: the library answers with a string of its own.
            let text = unsafe { CStr::from_ptr(text) };
            assert_eq!(text.to_str().unwrap(), "transport retry counter exceeded");
        }
        Err(error) => assert!(matches!(error, LoadError::Library { .. }), "{error}"),
    }
}
