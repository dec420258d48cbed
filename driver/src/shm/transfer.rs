//! What a NIC would do: the copies behind WRITE and READ, and the queue of completions.

use std::collections::VecDeque;

use scalerpc_core::post::{Completion, ReadWr, WcStatus, WrId};
use scalerpc_core::wire::LINE;
use scalerpc_core::{Geometry, Memory, Region};

/// The status of a work request whose remote range is not the peer's to give, as `ibv_wc_status` has it
/// (IBV_WC_REM_ACCESS_ERR).
pub(super) const REMOTE_ACCESS_ERROR: WcStatus = WcStatus::Failed {
    status: 10,
    vendor_err: 0,
};

/// True if `len` bytes at `at` are among the `reachable` first bytes of the peer's memory, and aligned as a
/// WRITE of that length needs it.
#[inline]
pub(super) fn write_fits(reachable: usize, at: usize, len: usize) -> bool {
    let aligned = len == 1 || (len % 8 == 0 && at % 8 == 0);
    aligned && at.checked_add(len).is_some_and(|end| end <= reachable)
}

/// Copies a WRITE to its target. WRITEs of one connection become visible in order: each begins with, or
/// is, a release.
// Not inlined it costs a WRITE 20 instructions.
#[inline(always)]
pub(super) fn write(to: &Region, remote: usize, from: &Region, local: usize, len: usize) {
    match len {
        1 => to.store_byte_release(remote, from.load_byte_acquire(local)),
        8 => to.store_release(remote, from.load(local)),
        LINE => {
            // As below, of a length that the compiler knows: most messages are one line.
            let line: [u64; LINE / 8] = from.load_words(local);
            to.fence_release();
            to.publish(remote, line);
        }
        _ => {
            // Ordering: release; an earlier WRITE is visible to whoever sees a word of this one, be it
            // only the first.
            to.fence_release();
            to.copy_from(remote, from, local, len);
        }
    }
}

/// True if a READ takes only the `reachable` first bytes of the peer's memory, in words, and no message is
/// larger than a block. A peer chose the numbers.
pub(super) fn read_fits(geometry: &Geometry, reachable: usize, wr: &ReadWr) -> bool {
    let count = wr.count as usize;
    let in_blocks = wr.stride <= geometry.request_block_bytes() && wr.count <= geometry.window();
    let aligned = wr.stride % 8 == 0 && wr.remote % 8 == 0;
    let end = wr
        .stride
        .checked_mul(count)
        .and_then(|bytes| bytes.checked_add(wr.remote));
    in_blocks && aligned && end.is_some_and(|end| end <= reachable)
}

/// Copies a staged batch into its blocks, each message right-aligned. `read_fits` has said yes.
pub(super) fn read(geometry: &Geometry, to: &Region, source: &Region, wr: &ReadWr) {
    let sources = (0..).map(|i: usize| wr.remote + i * wr.stride);
    for (target, source_at) in wr.targets(geometry).zip(sources) {
        to.copy_from(target, source, source_at, wr.stride);
    }
}

/// Completions that nobody has taken yet; never grows.
#[derive(Debug)]
pub(super) struct Completions {
    waiting: VecDeque<Completion>,
    capacity: usize,
}

impl Completions {
    /// Room for `wanted` completions, within reason.
    pub(super) fn new(wanted: usize) -> Self {
        let capacity = wanted.clamp(64, 1 << 20);
        Self {
            waiting: VecDeque::with_capacity(capacity),
            capacity,
        }
    }

    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.capacity
    }

    /// Adds one; there must be room.
    #[inline]
    pub(super) fn push(&mut self, wr_id: WrId, status: WcStatus) {
        debug_assert!(
            !self.is_full(),
            "completions are pushed only where there is room"
        );
        self.waiting.push_back(Completion { wr_id, status });
    }

    /// The oldest one.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Completion> {
        self.waiting.pop_front()
    }
}
