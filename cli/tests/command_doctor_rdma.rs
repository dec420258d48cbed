//! `scalerpc doctor` in a virtual machine with two soft-RoCE devices and 16 hugepages, as ci/soft-roce-vm starts it. Where
//! something is to be missing, it is hidden from the one process that looks for it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod process;

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use process::{Done, Running};

/// Some tests take an interface down for a moment.
static DEVICES: Mutex<()> = Mutex::new(());

const WHY: &str = "needs the devices of ci/soft-roce-vm";

/// Runs `scalerpc doctor` after a shell has set something up, in a mount namespace of its own. `$doctor` is the command.
#[track_caller]
fn doctor(script: &str, code: i32, parts: &[&str]) -> Done {
    let _alone = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script]).env(
        "doctor",
        format!("{} doctor", env!("CARGO_BIN_EXE_scalerpc")),
    );
    let done = Running::start(command).wait();
    let words = done.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(words.contains(part), "{part:?} is not in {done:?}");
    }
    assert_eq!(done.code(), code, "{WHY}: {done:?}");
    for line in done.stdout.lines() {
        assert!(
            line.starts_with('{') || line.chars().count() <= 80,
            "{line}"
        );
    }
    done
}

#[test]
#[ignore = "needs the devices of ci/soft-roce-vm"]
fn everything_works() {
    let done = doctor(
        "$doctor --verbs",
        0,
        &[
            "Shared memory works",
            "16 of 16 pages of 2.0 MiB are free",
            "RDMA works",
            "ok kernel rxe0 port 1: Ethernet, ACTIVE",
            "ok kernel rxe1 port 1: Ethernet, ACTIVE",
            "ok library libibverbs.so.1.",
            "of rdma-core ",
            "ok device rxe0 port 1: Ethernet, ACTIVE",
            "ok GID 1 (RoCE v2, ::ffff:10.77.0.1)",
            "ok MTU 4096, the port's",
            "128 READs at once",
            "ok WRITE from the port to itself: ",
            "ok byte order not promised by the device",
            " were made and answered, in ",
            "ok also there rxe1 port 1, GID 1 (RoCE v2, ::ffff:10.77.0.2), MTU 4096",
        ],
    );
    assert!(!done.stdout.contains("\n  warn"), "{done:?}");
    let json = doctor("$doctor --json", 0, &[]).json();
    assert_eq!(
        (json["good"].as_bool(), json["rdma"]["usable"].as_bool()),
        (Some(true), Some(true))
    );
}

#[test]
#[ignore = "needs the devices of ci/soft-roce-vm"]
fn devices_ports_and_gids_can_be_chosen() {
    doctor(
        "$doctor --device rxe1",
        0,
        &["ok device rxe1 port 1", "::ffff:10.77.0.2"],
    );
    doctor(
        "$doctor --mtu 512",
        0,
        &["ok MTU 512 as asked for; the port has 4096", "ok WRITE"],
    );
    doctor(
        "$doctor --gid-index 0",
        0,
        &["warn GID 0 (RoCE v2, fe80::", "neighbours", "ok WRITE"],
    );
    doctor(
        "$doctor --gid-index 99",
        1,
        &[
            "fail device rxe0 port 1 has no GID at index 99",
            "1 (RoCE v2, ::ffff:10.77.0.1)",
        ],
    );
    doctor(
        "$doctor --device rxe7",
        1,
        &["fail device no RDMA device is called rxe7: choose one of rxe0, rxe1"],
    );
    doctor(
        "$doctor --device rxe0 --port 2",
        1,
        &["fail device rxe0 has no port 2"],
    );
}

#[test]
#[ignore = "needs the devices of ci/soft-roce-vm"]
fn a_port_that_is_down_is_passed_over_unless_it_is_the_one() {
    let down =
        |doctor: &str| format!("trap 'ip link set h0 up' EXIT; ip link set h0 down; {doctor}");
    doctor(
        &down("$doctor --verbs"),
        0,
        &[
            "warn passed over rxe0 port 1 is DOWN",
            "ip link set IF up",
            "ok device rxe1",
        ],
    );
    doctor(
        &down("$doctor --device rxe0"),
        1,
        &[
            "warn kernel rxe0 port 1: Ethernet, DOWN",
            "fail device rxe0 port 1 is DOWN",
        ],
    );
}

#[test]
#[ignore = "needs the devices of ci/soft-roce-vm"]
fn a_limit_of_locked_memory_is_named() {
    let limited = |kib: u32| {
        format!(
            "ulimit -l {kib}; setpriv --reuid 65534 --clear-groups --bounding-set -ipc_lock $doctor --verbs"
        )
    };
    doctor(
        &limited(64),
        1,
        &[
            "fail memory memlock: 64.0 KiB",
            "ulimit -l unlimited",
            "ok WRITE",
        ],
    );
    doctor(
        &limited(0),
        1,
        &[
            "fail WRITE ibv_reg_mr failed",
            "rxe0 port 1, GID 1",
            "EPERM (1, Operation not permitted)",
            "RLIMIT_MEMLOCK is 0",
        ],
    );
}

#[test]
#[ignore = "needs the devices of ci/soft-roce-vm"]
fn what_is_missing_is_named() {
    doctor(
        "mount -t tmpfs none /dev/infiniband; $doctor --verbs",
        1,
        &[
            "fail permission no /dev/infiniband/uverbs*",
            "modprobe ib_uverbs",
        ],
    );
    doctor(
        "chmod 600 /dev/infiniband/uverbs*; trap 'chmod 666 /dev/infiniband/uverbs*' EXIT; \
         setpriv --reuid 65534 --clear-groups $doctor --verbs",
        1,
        &["fail permission this user may not open 2 of 2 files"],
    );
    doctor(
        "mount -t tmpfs none /etc/libibverbs.d; $doctor --verbs",
        1,
        &[
            "fail device no RDMA device: the kernel has 2 (rxe0, rxe1), and libibverbs has a provider for none of them",
        ],
    );
    doctor(
        "for file in $(ldconfig -p | awk '/libibverbs.so.1 /{print $NF}'); do mount --bind /dev/null $file; done; \
         $doctor --verbs",
        1,
        &[
            "fail library no RDMA device: libibverbs.so.1 could not be loaded",
            "libibverbs1 (Debian, Ubuntu)",
        ],
    );
    // Shared memory needs none of it, nor a file system for it.
    doctor(
        "mount -t tmpfs -o size=4k none /dev/shm; mount -t tmpfs none /dev/infiniband; $doctor",
        0,
        &["ok calls"],
    );
}
