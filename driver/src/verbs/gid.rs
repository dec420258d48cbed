//! GIDs: what a port is addressed by, and which of its table to use.

use std::fmt;
use std::net::Ipv6Addr;

use rdma_core_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_gid, ibv_global_route,
};

/// What packets with a GID look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE v1: Ethernet frames that no router forwards.
    RoceV1,
    /// RoCE v2: over UDP.
    RoceV2,
    /// One that this version does not know; the number is the library's.
    Other(u32),
}

impl GidKind {
    /// From libibverbs.
    #[must_use]
    pub fn from_verbs(kind: u32) -> Self {
        match kind {
            IBV_GID_TYPE_IB => Self::Ib,
            IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }

    /// From sysfs, which has one name for the first two.
    pub(super) fn from_sysfs(text: &str, is_ethernet: bool) -> Option<Self> {
        match text.trim() {
            "RoCE v2" => Some(Self::RoceV2),
            "IB/RoCE v1" if is_ethernet => Some(Self::RoceV1),
            "IB/RoCE v1" => Some(Self::Ib),
            _ => None,
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ib => f.pad("InfiniBand"),
            Self::RoceV1 => f.pad("RoCE v1"),
            Self::RoceV2 => f.pad("RoCE v2"),
            Self::Other(kind) => write!(f, "type {kind}"),
        }
    }
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid {
    /// Its index in the table.
    pub index: u32,
    /// The GID itself, in network byte order.
    pub bytes: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
}

impl Gid {
    /// The GID as an address: RoCE v2 sends to it as such.
    #[must_use]
    pub fn address(&self) -> Ipv6Addr {
        self.bytes.into()
    }

    /// True for an entry that is not in use.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.bytes == [0; 16]
    }

    /// True if no router forwards it: `fe80::/10`, or `169.254.0.0/16`.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        let address = self.address();
        match address.to_ipv4_mapped() {
            Some(address) => address.is_link_local(),
            None => address.is_unicast_link_local(),
        }
    }

    /// True if a peer in another network can be reached with it.
    #[must_use]
    pub fn is_routable(&self) -> bool {
        self.kind == GidKind::RoceV2 && !self.is_zero() && !self.is_link_local()
    }

    /// As libibverbs has it.
    #[must_use]
    pub fn to_verbs(&self) -> ibv_gid {
        gid_to_verbs(self.bytes)
    }
}

/// `index (kind, address)`.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.index, self.kind, self.address())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// The bytes of a GID as libibverbs has them.
pub(super) fn gid_to_verbs(raw: [u8; 16]) -> ibv_gid {
    ibv_gid { raw }
}

/// A route to a GID from an entry of the own table.
pub(super) fn route(from: u32, to: [u8; 16]) -> ibv_global_route {
    ibv_global_route {
        dgid: gid_to_verbs(to),
        flow_label: 0,
        // A table has at most 256 entries: the index was checked against it.
        sgid_index: from as u8,
        // What Linux gives to packets of its own.
        hop_limit: 64,
        traffic_class: 0,
    }
}

/// The GID to use on Ethernet: routable, of IPv4 rather than of IPv6, and the first of those.
pub(super) fn choose(table: &[Gid]) -> Option<Gid> {
    let routable = || table.iter().filter(|gid| gid.is_routable());
    let ipv4 = routable().find(|gid| gid.address().to_ipv4_mapped().is_some());
    ipv4.or_else(|| routable().next()).copied()
}
