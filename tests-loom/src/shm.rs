//! What the shared memory back end does for a posted work request, over any [`Memory`].
//!
//! `driver/src/shm/transfer.rs` is written for `Region` alone, so its two copies are restated here, step
//! by step. A change there has to be made here, too.

use scalerpc_core::post::ReadWr;
use scalerpc_core::{Geometry, Memory};

use crate::memory::LoomMemory;
use crate::mutant::Op;

/// `transfer::write`: copies a WRITE to its target.
pub fn write(to: &LoomMemory, remote: usize, from: &LoomMemory, local: usize, len: usize) {
    match len {
        1 => to.store_byte_release(remote, from.load_byte_acquire(local)),
        8 => to.store_release(remote, from.load(local)),
        _ => {
            to.fence_release();
            let last = len - 8;
            if to.is_weak(Op::LastWordLast, remote + last) {
                to.store_release(remote + last, from.load(local + last));
                to.copy_from(remote, from, local, last);
            } else {
                to.copy_from(remote, from, local, len);
            }
        }
    }
}

/// `transfer::read`: copies a staged batch into its blocks.
pub fn read(geometry: &Geometry, to: &LoomMemory, source: &LoomMemory, wr: &ReadWr) {
    let sources = (0..).map(|i: usize| wr.remote + i * wr.stride);
    for (target, source_at) in wr.targets(geometry).zip(sources) {
        to.copy_from(target, source, source_at, wr.stride);
    }
}
