//! A seat without a client engine, as a test knows it.

use std::collections::VecDeque;

use scalerpc_core::post::{ReadWr, WrId, WriteWr};

/// What was posted to a peer and is not known to be done.
pub enum Pending {
    Write(WriteWr),
    Read(ReadWr),
}

impl Pending {
    pub fn wr_id(&self) -> WrId {
        match self {
            Self::Write(wr) => wr.wr_id,
            Self::Read(wr) => wr.wr_id,
        }
    }

    pub fn reports(&self) -> bool {
        match self {
            Self::Write(wr) => wr.signaled,
            Self::Read(_) => true,
        }
    }
}

/// A seat without a client engine.
pub struct Peer {
    pub seat: u32,
    pub posted: u32,
    pub pending: VecDeque<Pending>,
    /// Of an earlier connection at the seat.
    pub stale: Vec<WrId>,
    /// Number of the last entry that was written, and of the last one that was fetched for.
    pub entry_written: u64,
    pub entry: u64,
    /// Calls that the server has taken.
    pub calls: u64,
    /// The last tenancy that the server told of.
    pub told_epoch: u64,
}

impl Peer {
    pub fn at(seat: u32) -> Self {
        Self {
            seat,
            posted: 0,
            pending: VecDeque::new(),
            stale: Vec::new(),
            entry_written: 0,
            entry: 0,
            calls: 0,
            told_epoch: 0,
        }
    }
}
