//! One direction of a reliable connection: FIFO, held back on request.

use std::collections::VecDeque;

use scalerpc_core::Memory;
use scalerpc_core::memory::Region;
use scalerpc_core::post::{Completion, ReadWr, WcStatus, WrId, WriteWr};

/// What was posted.
pub enum Op {
    /// With the source's bytes as they were when it was posted.
    Write {
        wr: WriteWr,
        bytes: Vec<u8>,
    },
    Read(ReadWr),
}

impl Op {
    pub fn write(wr: WriteWr, source: &Region) -> Self {
        let bytes = snapshot(source, wr.local, wr.len);
        Self::Write { wr, bytes }
    }

    fn wr_id(&self) -> WrId {
        match self {
            Self::Write { wr, .. } => wr.wr_id,
            Self::Read(wr) => wr.wr_id,
        }
    }
}

pub fn snapshot(memory: &Region, at: usize, len: usize) -> Vec<u8> {
    if len == 1 {
        return vec![memory.load_byte_acquire(at)];
    }
    let mut bytes = vec![0; len];
    memory.copy_out(at, &mut bytes);
    bytes
}

/// Puts bytes where a WRITE would: the last word after the others.
pub fn land(target: &Region, at: usize, bytes: &[u8]) {
    if let [byte] = bytes {
        target.store_byte_release(at, *byte);
        return;
    }
    let (body, last) = bytes.split_at(bytes.len() - 8);
    target.copy_in(at, body);
    let mut word = [0; 8];
    word.copy_from_slice(last);
    target.store_release(at + bytes.len() - 8, u64::from_le_bytes(word));
}

#[derive(Default)]
pub struct Wire {
    /// Nothing lands.
    pub held: bool,
    /// Things land, but nobody polls for completions.
    pub withheld: bool,
    pub ops: VecDeque<Op>,
    completions: VecDeque<Completion>,
    posted: u32,
    retired: u32,
    /// Posted since the last signaled one.
    unsignaled: u32,
    /// The most that were ever outstanding.
    pub peak: u32,
    /// The longest run without a signaled one.
    pub unsignaled_peak: u32,
}

impl Wire {
    /// Counts a work request (rule R11), and queues it.
    pub fn post(&mut self, op: Op, depth: u32) {
        let signaled = match &op {
            Op::Write { wr, .. } => wr.signaled,
            Op::Read(_) => true,
        };
        self.posted = self.posted.wrapping_add(1);
        assert_eq!(op.wr_id().sequence(), self.posted, "work requests count up");
        let outstanding = self.posted.wrapping_sub(self.retired);
        assert!(outstanding <= depth, "R11: {outstanding} of {depth} posted");
        self.peak = self.peak.max(outstanding);
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        self.unsignaled_peak = self.unsignaled_peak.max(self.unsignaled);
        self.ops.push_back(op);
    }

    /// The operation has taken effect.
    pub fn done(&mut self, op: &Op) {
        let wanted = match op {
            Op::Write { wr, .. } => wr.signaled,
            Op::Read(_) => true,
        };
        if wanted {
            self.completions.push_back(Completion {
                wr_id: op.wr_id(),
                status: WcStatus::Success,
            });
        }
    }

    /// True if a WRITE under a tenancy is under way.
    pub fn writes_to_a_zone(&self) -> bool {
        let mut ops = self.ops.iter();
        ops.any(|op| matches!(op, Op::Write { wr, .. } if wr.epoch.is_some()))
    }

    pub fn poll(&mut self) -> Option<Completion> {
        if self.withheld {
            return None;
        }
        let completion = self.completions.pop_front()?;
        self.retired = completion.wr_id.sequence();
        Some(completion)
    }
}
