//! Devices as data.

use std::net::Ipv6Addr;

use rdma_core_sys::*;

/// A device.
#[derive(Clone)]
pub struct Device {
    pub name: &'static str,
    pub transport: ibv_transport_type,
    /// Its limits; the number of ports is that of `ports`.
    pub attr: ibv_device_attr,
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Clone)]
pub struct Port {
    /// Its attributes; the length of its table is that of `gids`.
    pub attr: ibv_port_attr,
    pub gids: Vec<Entry>,
}

/// An entry of a table of GIDs.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// A GID and its kind, one of `IBV_GID_TYPE_*`.
    Gid([u8; 16], u32),
    /// Nothing there.
    Hole,
    /// It cannot be read, for this reason.
    Unreadable(i32),
}

impl Entry {
    pub fn sysfs_type(self) -> Option<&'static str> {
        match self {
            Self::Gid(_, IBV_GID_TYPE_ROCE_V2) => Some("RoCE v2"),
            Self::Gid(..) => Some("IB/RoCE v1"),
            Self::Hole | Self::Unreadable(_) => None,
        }
    }
}

/// The bytes of a GID, from an address as text.
pub fn gid(address: &str) -> [u8; 16] {
    address.parse::<Ipv6Addr>().unwrap().octets()
}

impl Device {
    /// A device with common limits.
    pub fn new(name: &'static str, ports: Vec<Port>) -> Self {
        Self {
            name,
            transport: IBV_TRANSPORT_IB,
            attr: ibv_device_attr {
                max_qp: 1000,
                max_qp_wr: 4096,
                max_sge: 32,
                max_cq: 1000,
                max_cqe: 32767,
                max_mr: 1000,
                max_mr_size: u64::MAX,
                max_pd: 100,
                max_qp_rd_atom: 16,
                max_qp_init_rd_atom: 16,
                ..Default::default()
            },
            ports,
        }
    }
}

impl Port {
    /// A RoCE port that is up, with this table: address and version of RoCE.
    pub fn roce(gids: &[(&str, u32)]) -> Self {
        let entry = |&(address, version): &(&str, u32)| match version {
            1 => Entry::Gid(gid(address), IBV_GID_TYPE_ROCE_V1),
            _ => Entry::Gid(gid(address), IBV_GID_TYPE_ROCE_V2),
        };
        Self {
            attr: ibv_port_attr {
                state: IBV_PORT_ACTIVE,
                max_mtu: IBV_MTU_4096,
                active_mtu: IBV_MTU_4096,
                max_msg_sz: 1 << 30,
                link_layer: IBV_LINK_LAYER_ETHERNET as u8,
                ..Default::default()
            },
            gids: gids.iter().map(entry).collect(),
        }
    }

    /// A RoCE port with the table that every NIC with one IPv4 address has.
    pub fn common() -> Self {
        Self::roce(&[
            ("fe80::1", 1),
            ("fe80::1", 2),
            ("::ffff:10.0.0.1", 1),
            ("::ffff:10.0.0.1", 2),
        ])
    }

    /// An InfiniBand port that is up.
    pub fn infiniband(lid: u16) -> Self {
        let mut port = Self::roce(&[]);
        port.attr.link_layer = IBV_LINK_LAYER_INFINIBAND as u8;
        port.attr.lid = lid;
        port.gids = vec![Entry::Gid(gid("fe80::2:c903:0:1491"), IBV_GID_TYPE_IB)];
        port
    }

    pub fn down(mut self) -> Self {
        self.attr.state = IBV_PORT_DOWN;
        self
    }

    pub fn with_mtu(mut self, mtu: ibv_mtu) -> Self {
        self.attr.active_mtu = mtu;
        self
    }

    pub fn with_gids(mut self, gids: Vec<Entry>) -> Self {
        self.gids = gids;
        self
    }
}
