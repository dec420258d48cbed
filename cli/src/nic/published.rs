//! What the model is held to, and what it is made of.

use serde::Serialize;

use super::{Design, Host, LARGE, Load, Metadata, Nic, SMALL, Verb, octopus, raw};

/// Something that was measured elsewhere, and the model's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// What was measured, with its unit.
    pub what: &'static str,
    /// Where that is written.
    pub source: &'static str,
    /// The number there.
    pub published: f64,
    /// The model's.
    pub model: f64,
}

const SCALERPC_2_2: &str = "ScaleRPC 2.2";
const SCALERPC_1: &str = "ScaleRPC 1";
const ERPC: &str = "eRPC fig. 1";

/// What the sources' short names stand for.
pub const SOURCES: [&str; 2] = [
    "ScaleRPC: Scalable RDMA RPC on Reliable Connection, EuroSys 2019",
    "eRPC: Datacenter RPCs can be General and Fast, NSDI 2019",
];

/// Every published number that the model is held to, beside the model's own.
pub fn points() -> Vec<Point> {
    let mops = |nic: &Nic, verb, clients| raw(nic, verb, clients).rate_mops;
    let kept = |nic: &Nic, verb, few, many| mops(nic, verb, many) / mops(nic, verb, few);
    let fall = |call| {
        let rate = |clients| octopus(&SMALL, call, Design::Static, clients).rate_mops;
        100.0 * (1.0 - rate(120) / rate(40))
    };
    let point = |what, source, published, model| Point {
        what,
        source,
        published,
        model,
    };
    vec![
        point(
            "small: outbound WRITE, 10 clients, M/s",
            SCALERPC_2_2,
            20.0,
            mops(&SMALL, Verb::OutboundWrite, 10),
        ),
        point(
            "small: outbound WRITE, 800 clients, M/s",
            SCALERPC_2_2,
            2.0,
            mops(&SMALL, Verb::OutboundWrite, 800),
        ),
        point(
            "small: inbound WRITE, 800 over 10 clients",
            SCALERPC_2_2,
            1.0,
            kept(&SMALL, Verb::InboundWrite, 10, 800),
        ),
        point(
            "small: UD SEND, 800 over 10 clients",
            SCALERPC_2_2,
            1.0,
            kept(&SMALL, Verb::DatagramSend, 10, 800),
        ),
        point(
            "large: outbound verb, 5,000 over 10 clients",
            ERPC,
            0.5,
            kept(&LARGE, Verb::OutboundWrite, 10, 5_000),
        ),
        point(
            "Stat, static: fall from 40 to 120 clients, %",
            SCALERPC_1,
            Metadata::Stat.published_fall_percent(),
            fall(Metadata::Stat),
        ),
        point(
            "ReadDir, static: fall from 40 to 120 clients, %",
            SCALERPC_1,
            Metadata::ReadDir.published_fall_percent(),
            fall(Metadata::ReadDir),
        ),
        point(
            "Mknod, static: fall from 40 to 120 clients, %",
            SCALERPC_1,
            Metadata::Mknod.published_fall_percent(),
            fall(Metadata::Mknod),
        ),
    ]
}

/// A number that the model is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// What it is, with its unit.
    pub name: &'static str,
    /// Its value for each NIC; one for all where it is not the NIC's.
    pub values: Vec<f64>,
    /// Where it comes from.
    pub source: &'static str,
}

/// Every number that the model is made of, for these NICs.
pub fn parameters(nics: &[Nic], host: &Host, load: &Load) -> Vec<Parameter> {
    let mut all = Vec::new();
    let mut of_nics = |name, of: fn(&Nic) -> f64, source| {
        let values = nics.iter().map(of).collect();
        all.push(Parameter {
            name,
            values,
            source,
        });
    };
    of_nics(
        "NIC cache, KiB",
        |it| it.cache_bytes as f64 / 1024.0,
        "fitted",
    );
    of_nics(
        "connection's context, B",
        |it| it.context_bytes as f64,
        "eRPC 2.2, for a ConnectX",
    );
    of_nics(
        "work queue element, B",
        |it| it.wqe_bytes as f64,
        "inline WRITE: a line",
    );
    of_nics("elements kept with it", |it| it.wqes as f64, "assumed");
    of_nics(
        "translation of a page, B",
        |it| it.translation_bytes as f64,
        "an address",
    );
    of_nics("page, KiB", |it| it.page_bytes as f64 / 1024.0, "hugepages");
    of_nics(
        "outbound verb, ns",
        |it| it.outbound_ns,
        "ScaleRPC 2.2; large assumed",
    );
    of_nics(
        "inbound verb, ns",
        |it| it.inbound_ns,
        "assumed: half of it",
    );
    of_nics("READ over PCIe, ns", |it| it.pcie_read_ns, "fitted");
    let Host {
        threads,
        ddio_bytes,
        miss_ns,
        call_ns,
        datagram_ns,
    } = *host;
    let Load {
        window,
        block_bytes,
    } = *load;
    for (name, value, source) in [
        ("threads that serve", f64::from(threads), "ScaleRPC 2.2"),
        (
            "processor's cache for DDIO, KiB",
            ddio_bytes as f64 / 1024.0,
            "assumed: 2 of 20 ways, 30 MiB",
        ),
        ("miss of that cache, ns", miss_ns, "assumed"),
        ("call, ns of a thread", call_ns, "assumed"),
        ("datagram, ns more", datagram_ns, "assumed: receive queue"),
        ("calls outstanding of each client", window as f64, "assumed"),
        (
            "message block, B",
            block_bytes as f64,
            "this package's default",
        ),
    ] {
        all.push(Parameter {
            name,
            values: vec![value],
            source,
        });
    }
    for (name, call) in [
        ("Stat, ns of a thread", Metadata::Stat),
        ("ReadDir, ns of a thread", Metadata::ReadDir),
        ("Mknod, ns of a thread", Metadata::Mknod),
    ] {
        all.push(Parameter {
            name,
            values: vec![call.call_ns()],
            source: "fitted to ScaleRPC 1",
        });
    }
    all
}
