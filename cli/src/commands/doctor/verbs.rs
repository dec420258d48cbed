//! What libibverbs and a device say, and whether the device does what they say.

use std::time::Duration;

use scalerpc::{Client, PagePolicy, Server};
use scalerpc_driver::verbs::{
    ClientOptions, GidKind, Host, LinkLayer, NoDevice, OpenDevice, Selection, ServerOptions,
    VerbsError,
};

use super::finding::Findings;
use super::trial;
use crate::report::grouped;

pub(super) fn check(findings: &mut Findings, selection: &Selection) {
    let host = match Host::load() {
        Ok(host) => host,
        Err(error) => return findings.fail("library", error, None),
    };
    library(findings);
    let device = match host.open(selection) {
        Ok(device) => device,
        Err(VerbsError::NoUsablePort(reasons)) => {
            for reason in reasons {
                findings.fail("device", reason, None);
            }
            return;
        }
        // The kernel's files have been looked at, and the findings are above.
        Err(VerbsError::NoDevice(
            NoDevice::NoneInKernel { .. }
            | NoDevice::NoFiles { .. }
            | NoDevice::NotPermitted { .. },
        )) => return,
        Err(error) => return findings.fail("device", error, None),
    };
    for skipped in device.skipped() {
        findings.warn("passed over", &skipped.why, None);
    }
    port(findings, &device);
    limits(findings, &device);
    if writes(findings, &device) {
        trial::tell(findings, shortest_call(selection, &device));
    }
    others(findings, &host, selection, &device);
}

fn library(findings: &mut Findings) {
    let file = Host::library_file();
    let name = file.as_ref().and_then(|file| file.file_name());
    let name = name.map_or("libibverbs".into(), |name| name.to_string_lossy());
    match rdma_core(&name) {
        Some(version) => findings.ok("library", format!("{name}, of rdma-core {version}")),
        None => findings.ok(
            "library",
            format!("{name}, which does not tell its version"),
        ),
    }
}

/// The version of rdma-core, which is the third number of its library's.
fn rdma_core(name: &str) -> Option<u32> {
    let numbers = name.strip_prefix("libibverbs.so.")?;
    numbers.split('.').nth(2)?.parse().ok()
}

fn port(findings: &mut Findings, device: &OpenDevice) {
    let (port, gid) = (device.port(), device.gid());
    let firmware = match device.firmware() {
        none if none.is_empty() => String::new(),
        firmware => format!(", firmware {firmware}"),
    };
    let ethernet = port.link_layer() == LinkLayer::Ethernet;
    let lid = if ethernet {
        String::new()
    } else {
        format!(", LID {}", port.lid())
    };
    findings.ok(
        "device",
        format!(
            "{} port {}: {}, {}{lid}{firmware}",
            device.name(),
            port.number(),
            port.link_layer(),
            port.state(),
        ),
    );
    if ethernet && !gid.is_routable() {
        let why = match gid.kind {
            GidKind::RoceV2 => "only neighbours of the same network can be reached",
            _ => "no router forwards it, and the peer's must be of the same kind",
        };
        let found = format!("{gid}: {why}");
        findings.warn("GID", found, "leave --gid-index away");
    } else {
        findings.ok("GID", gid);
    }
    let (mtu, active) = (device.mtu(), port.active_mtu());
    let found = match active {
        active if mtu < active => format!("{mtu} as asked for; the port has {active}"),
        _ => format!("{mtu}, the port's"),
    };
    findings.ok("MTU", found);
}

fn limits(findings: &mut Findings, device: &OpenDevice) {
    let limits = device.capabilities();
    let found = format!(
        "{} queue pairs of {} work requests, {} completions, {} elements of a list, {} READs at once",
        grouped(limits.max_qp.into()),
        grouped(limits.max_qp_wr.into()),
        grouped(limits.max_cqe.into()),
        limits.max_sge,
        limits.max_qp_init_rd_atom,
    );
    findings.ok("limits", found);
}

/// True if the device can be used at all.
fn writes(findings: &mut Findings, device: &OpenDevice) -> bool {
    let trial = match device.try_out() {
        Ok(trial) => trial,
        Err(error) => {
            findings.fail("WRITE", error, None);
            return false;
        }
    };
    let took = trial.write.as_secs_f64() * 1e6;
    findings.ok(
        "WRITE",
        format!("from the port to itself: {took:.1} us at best"),
    );
    let found = if trial.in_order {
        "bytes become visible in order: a message is known by its last word"
    } else {
        "not promised by the device: each message carries a CRC-32C and is known by that"
    };
    findings.ok("byte order", found);
    true
}

/// Calls a server in this process through the device.
fn shortest_call(selection: &Selection, device: &OpenDevice) -> Result<(usize, Duration), String> {
    let selection = Selection {
        device: Some(device.name().to_owned()),
        port: Some(device.port().number()),
        ..selection.clone()
    };
    let server = ServerOptions {
        selection: selection.clone(),
        ..ServerOptions::default()
    };
    let client = ClientOptions {
        selection,
        page_policy: PagePolicy::Never,
        ..ClientOptions::default()
    };
    let builder = Server::builder()
        .clients_max(2)
        .page_policy(PagePolicy::Never);
    let server = builder.listen_verbs("127.0.0.1:0", &server);
    let server = server.map_err(|error| error.to_string())?;
    let address = server.fabric().local_addr();
    trial::shortest_call(server, || Client::connect_verbs(address, &client))
}

/// The devices that were not needed.
fn others(findings: &mut Findings, host: &Host, selection: &Selection, used: &OpenDevice) {
    let Ok(names) = host.devices() else { return };
    if selection.device.is_some() {
        return;
    }
    let after = names.into_iter().skip_while(|name| name != used.name());
    for name in after.skip(1) {
        let other = Selection {
            device: Some(name),
            ..Selection::default()
        };
        match host.open(&other) {
            Ok(device) => findings.ok("also there", device.place()),
            Err(error) => findings.warn("also there", error, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rdma_core;

    #[test]
    fn the_version_of_rdma_core_is_in_the_name_of_the_file() {
        assert_eq!(rdma_core("libibverbs.so.1.14.44.0"), Some(44));
        assert_eq!(rdma_core("libibverbs.so.1.15.60.2"), Some(60));
        assert_eq!(rdma_core("libibverbs.so.1"), None);
        assert_eq!(rdma_core("libibverbs"), None);
    }
}
