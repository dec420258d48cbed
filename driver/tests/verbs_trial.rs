//! The trial of a device, on one that is data.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod fake;
mod verbs_common;

use std::collections::BTreeSet;

use fake::net::VENDOR_ERR;
use fake::{Device, Fake, Live, Port, Which};
use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR,
};
use scalerpc_driver::verbs::{
    Ended, Errno, OpenDevice, Selection, SetupError, Step, Trial, VerbsError,
};
use verbs_common::{assert_clean, fake};

fn open(fake: &Fake) -> OpenDevice {
    fake.host().open(&Selection::default()).unwrap()
}

fn try_out(fake: &Fake) -> Result<Trial, VerbsError> {
    match open(fake).try_out() {
        Ok(trial) => Ok(trial),
        Err(SetupError::Verbs(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn the_device_is_asked_for_its_order_and_tried_with_the_fewest_rights() {
    for in_order in [false, true] {
        let fake = fake();
        fake.net().in_order = in_order;
        assert_eq!(try_out(&fake).unwrap().in_order, in_order);
        assert_eq!(
            fake.net().registered,
            [IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE]
        );
        // Each WRITE is seen to have arrived before the next is posted.
        assert!(fake.net().chains > 1);
        assert_clean(&fake);
    }
    let infiniband = Fake::new(vec![Device::new("mlx5_0", vec![Port::infiniband(7)])]);
    try_out(&infiniband).unwrap();
    assert_clean(&infiniband);
}

#[test]
fn each_call_may_fail_and_the_error_names_it() {
    let fake = fake();
    let mut failed = BTreeSet::new();
    for k in 1.. {
        let device = open(&fake);
        fake.calls();
        fake.fail(Which::Nth(k), libc::ENOSPC);
        let tried = device.try_out();
        fake.heal();
        let calls = fake.calls();
        drop(device);
        assert_clean(&fake);
        match tried {
            Ok(_) if calls.len() < k => break,
            // The end of something.
            Ok(_) => {}
            Err(error) => {
                let verb = calls[k - 1].verb;
                let text = error.to_string();
                for part in [verb, "ENOSPC (28", "mlx5_0 port 1, GID 3", "peer itself"] {
                    assert!(text.contains(part), "{part:?} is not in: {text}");
                }
                failed.insert(verb);
            }
        }
    }
    let verbs = [
        "ibv_alloc_pd",
        "ibv_create_cq",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_reg_mr",
    ];
    assert_eq!(failed.into_iter().collect::<Vec<_>>(), verbs);
}

#[test]
fn numbers_are_what_the_verb_returned() {
    let fake = fake();
    fake.fail(Which::NthOf("ibv_modify_qp", 2), libc::EINVAL);
    let error = try_out(&fake).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(
            error,
            VerbsError::Failed {
                step: Step::Rtr,
                errno: Errno(libc::EINVAL),
                ..
            }
        ),
        "{text}"
    );
    assert!(text.contains("--gid-index"), "{text}");

    fake.heal();
    // And `errno` says something else.
    fake.net().refuse = Some((0, libc::ENOMEM));
    // SAFETY: the function has no demands.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's.
    unsafe { *errno = libc::ENOENT };
    let error = try_out(&fake).unwrap_err();
    assert!(
        matches!(
            error,
            VerbsError::Failed {
                step: Step::Trial,
                errno: Errno(libc::ENOMEM),
                ..
            }
        ),
        "{error}"
    );
    assert_clean(&fake);
}

#[test]
fn a_write_that_fails_says_how() {
    for (status, words) in [
        (IBV_WC_REM_ACCESS_ERR, "remote access error"),
        (IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded"),
    ] {
        let fake = fake();
        fake.net().status = Some(status.0);
        let error = try_out(&fake).unwrap_err();
        let VerbsError::TrialFailed { ended, .. } = &error else {
            panic!("{error}")
        };
        let expected = Ended::Status {
            text: words.to_owned(),
            vendor_err: VENDOR_ERR,
        };
        assert_eq!(ended, &expected);
        let text = error.to_string();
        assert!(
            text.contains(words) && text.contains("mlx5_0 port 1"),
            "{text}"
        );
        assert_clean(&fake);
    }
}

/// A device that says it is done, and has done nothing.
#[test]
fn a_completion_without_its_bytes_is_no_success() {
    let fake = fake();
    fake.net().lazy = true;
    let error = try_out(&fake).unwrap_err();
    assert!(
        matches!(
            &error,
            VerbsError::TrialFailed {
                ended: Ended::Untrue,
                ..
            }
        ),
        "{error}"
    );
    assert_clean(&fake);
}

/// The queue pair goes before the memory that a device may still write to.
#[test]
fn a_write_that_never_completes_is_given_up() {
    let fake = fake();
    fake.net().hold = true;
    let error = try_out(&fake).unwrap_err();
    let is_silent = matches!(
        &error,
        VerbsError::TrialFailed {
            ended: Ended::Silent(_),
            ..
        }
    );
    assert!(is_silent, "{error}");
    assert_eq!(fake.live(), Live::default());
    assert_eq!(fake.net().misuse, ["1 work requests cut off"]);
}
