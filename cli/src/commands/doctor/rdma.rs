//! What RDMA needs, as far as the system's files tell; the library is asked in a build with it.

use std::fs;
use std::path::Path;

use scalerpc_driver::host::{self, MemoryLock};

use super::finding::Findings;
use super::shm::{kernel_release, server_bytes};
use crate::options::VerbsArgs;
use crate::report;

pub(super) fn check(selection: &VerbsArgs) -> Findings {
    let mut findings = Findings::default();
    let devices = kernel_devices(&mut findings);
    if devices.is_empty() {
        soft_roce(&mut findings);
    } else {
        device_files(&mut findings);
    }
    locked_memory(&mut findings);
    library(&mut findings, selection);
    findings
}

#[cfg(feature = "verbs")]
fn library(findings: &mut Findings, selection: &VerbsArgs) {
    super::verbs::check(findings, &selection.selection());
}

#[cfg(not(feature = "verbs"))]
fn library(findings: &mut Findings, _: &VerbsArgs) {
    findings.fail(
        "build",
        "this build has no verbs: it can use shared memory only, and what is above is all that it can see",
        "cargo build --release -p scalerpc-cli --features verbs   (it needs pkg-config, libibverbs-dev and libclang-dev)",
    );
}

fn kernel_devices(findings: &mut Findings) -> Vec<String> {
    let sys = Path::new("/sys");
    let devices = host::rdma_devices(sys);
    if devices.is_empty() {
        findings.fail(
            "kernel",
            "no RDMA device (nothing in /sys/class/infiniband)",
            "load the driver of the NIC (mlx5_ib, irdma, bnxt_re, ...); in a container, run it with the host's \
             devices",
        );
    }
    for device in &devices {
        for port in host::rdma_ports(sys, device) {
            let found = format!(
                "{device} port {}: {}, {}",
                port.number, port.link_layer, port.state
            );
            if port.state == "ACTIVE" {
                findings.ok("kernel", found);
            } else {
                findings.warn(
                    "kernel",
                    found,
                    "rdma link; ip link set IF up; check the cable",
                );
            }
        }
    }
    devices
}

fn device_files(findings: &mut Findings) {
    let files = host::uverbs_files(Path::new("/dev"));
    let closed: Vec<_> = files.iter().filter(|file| !host::can_open(file)).collect();
    if files.is_empty() {
        findings.fail(
            "permission",
            "no /dev/infiniband/uverbs*",
            "modprobe ib_uverbs   (as root), or give /dev/infiniband to the container",
        );
    } else if let Some(first) = closed.first() {
        let found = format!(
            "this user may not open {} of {} files, such as {}",
            closed.len(),
            files.len(),
            first.display()
        );
        findings.fail(
            "permission",
            found,
            "chmod a+rw /dev/infiniband/uverbs*   (as root), or a group that may",
        );
    } else {
        let found = format!(
            "this user may open /dev/infiniband/uverbs* ({})",
            files.len()
        );
        findings.ok("permission", found);
    }
}

/// Where the kernel has soft-RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SoftRoce {
    Loaded,
    Loadable,
    Missing,
}

/// Without a NIC a network interface can be one.
fn soft_roce(findings: &mut Findings) {
    let release = kernel_release();
    let modules = Path::new("/lib/modules").join(&release);
    match find_soft_roce(Path::new("/sys/module"), &modules) {
        SoftRoce::Missing => findings.warn(
            "soft-RoCE",
            "this kernel has no module rdma_rxe, so a network interface cannot stand in for a NIC",
            "a kernel with it (Debian: linux-image-amd64), or a virtual machine: ci/soft-roce-vm in the repository",
        ),
        there => {
            let load = match there {
                SoftRoce::Loadable => "modprobe rdma_rxe && ",
                _ => "",
            };
            let interface = interface(Path::new("/sys/class/net"));
            let interface = interface.as_deref().unwrap_or("IF");
            let fix =
                format!("{load}rdma link add rxe0 type rxe netdev {interface}   (as root; package iproute2)");
            findings.warn(
                "soft-RoCE",
                "this kernel has it: a network interface can stand in for a NIC",
                fix.as_str(),
            );
        }
    }
}

fn find_soft_roce(loaded: &Path, modules: &Path) -> SoftRoce {
    let lists = |file: &str| {
        let text = fs::read_to_string(modules.join(file)).unwrap_or_default();
        text.lines().any(|line| line.contains("/rdma_rxe.ko"))
    };
    if loaded.join("rdma_rxe").exists() || lists("modules.builtin") {
        SoftRoce::Loaded
    } else if lists("modules.dep") {
        SoftRoce::Loadable
    } else {
        SoftRoce::Missing
    }
}

/// A network interface that is up.
fn interface(net: &Path) -> Option<String> {
    let mut names: Vec<String> = fs::read_dir(net)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            let state = fs::read_to_string(net.join(name).join("operstate"));
            name != "lo" && state.is_ok_and(|state| state.trim() == "up")
        })
        .collect();
    names.sort();
    names.into_iter().next()
}

fn locked_memory(findings: &mut Findings) {
    let (lock, wanted) = (MemoryLock::now(), server_bytes());
    let limit = match lock.limit_bytes {
        _ if lock.exempt => "any amount: this process has CAP_IPC_LOCK".to_owned(),
        None => "any amount".to_owned(),
        Some(limit) => format!(
            "{} ({} in use); a server of the default size registers {}",
            report::bytes(limit as usize),
            report::bytes(lock.pinned_bytes as usize),
            report::bytes(wanted as usize),
        ),
    };
    let found = format!("memlock: {limit}");
    if lock.allows(wanted) {
        findings.ok("memory", found);
    } else {
        findings.fail(
            "memory",
            found,
            "ulimit -l unlimited   (as root), LimitMEMLOCK=infinity in a systemd unit, or \
             /etc/security/limits.conf",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_roce_is_found_in_every_place_where_it_may_be() {
        let root = tempfile::tempdir().unwrap();
        let (loaded, modules) = (root.path().join("module"), root.path().join("modules"));
        let find = || find_soft_roce(&loaded, &modules);
        assert_eq!(find(), SoftRoce::Missing);
        fs::create_dir_all(&modules).unwrap();
        let module = "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/drivers/x.ko\n";
        fs::write(modules.join("modules.dep"), "kernel/a.ko:\n").unwrap();
        assert_eq!(find(), SoftRoce::Missing);
        fs::write(modules.join("modules.dep"), module).unwrap();
        assert_eq!(find(), SoftRoce::Loadable);
        fs::create_dir_all(loaded.join("rdma_rxe")).unwrap();
        assert_eq!(find(), SoftRoce::Loaded);
    }

    #[test]
    fn the_interface_is_one_that_is_up_and_not_the_loopback() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(interface(root.path()), None);
        for (name, state) in [
            ("lo", "up"),
            ("eth0", "down"),
            ("wlan0", "up"),
            ("zt0", "up"),
        ] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(
                root.path().join(name).join("operstate"),
                format!("{state}\n"),
            )
            .unwrap();
        }
        assert_eq!(interface(root.path()).as_deref(), Some("wlan0"));
    }
}
