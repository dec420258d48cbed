//! Path MTUs.

use std::fmt;
use std::str::FromStr;

use rdma_core_sys::{IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096, ibv_mtu};

/// Largest payload of a packet. Two ends use the smaller of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256,
    /// 512 bytes.
    Bytes512,
    /// 1024 bytes.
    Bytes1024,
    /// 2048 bytes.
    Bytes2048,
    /// 4096 bytes.
    Bytes4096,
}

impl Mtu {
    /// All that there are, smallest first.
    pub const ALL: [Self; 5] = [
        Self::Bytes256,
        Self::Bytes512,
        Self::Bytes1024,
        Self::Bytes2048,
        Self::Bytes4096,
    ];

    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The MTU of so many bytes; `None` if there is none.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// As libibverbs has it.
    #[must_use]
    pub fn to_verbs(self) -> ibv_mtu {
        match self {
            Self::Bytes256 => IBV_MTU_256,
            Self::Bytes512 => IBV_MTU_512,
            Self::Bytes1024 => IBV_MTU_1024,
            Self::Bytes2048 => IBV_MTU_2048,
            Self::Bytes4096 => IBV_MTU_4096,
        }
    }

    /// From libibverbs; `None` for a value that it does not define.
    #[must_use]
    pub fn from_verbs(mtu: ibv_mtu) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.to_verbs() == mtu)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// A text that is no MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 256, 512, 1024, 2048 or 4096")]
pub struct ParseMtuError;

impl FromStr for Mtu {
    type Err = ParseMtuError;

    fn from_str(text: &str) -> Result<Self, ParseMtuError> {
        let bytes = text.parse().map_err(|_| ParseMtuError)?;
        Self::from_bytes(bytes).ok_or(ParseMtuError)
    }
}
