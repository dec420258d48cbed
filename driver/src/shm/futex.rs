//! The kernel's part of sleeping and waking (`futex(2)`), across processes that share the word.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec, WakeOp, WakeOpCmp};
use scalerpc_core::{Memory, Region};

use super::asleep::ASLEEP;

/// The half of a word that the kernel looks at: the low one, wherever it is. It is for the kernel alone.
fn low_half(region: &Region, at: usize) -> &AtomicU32 {
    assert!(at % 8 == 0, "words are aligned");
    assert!(at + 8 <= region.len(), "the word is in the region");
    // Words are little-endian in memory, so its low half comes first.
    // SAFETY: the assertion above keeps the offset inside of the region, which is one valid range.
    let half = unsafe { region.base().add(at) }.cast::<AtomicU32>();
    // SAFETY: valid for reads and writes for as long as the region is borrowed, and aligned to 8; any bytes are a
    // valid AtomicU32, and shared mutation through atomics needs no exclusivity. No access is made through it
    // in this program: the kernel gets its address.
    unsafe { half.as_ref() }
}

/// Sleeps while the word says so, at most for `timeout`. True if that was over. Signals end it, too.
pub(super) fn sleep(region: &Region, at: usize, timeout: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let asleep = (ASLEEP as u32).to_le();
    let slept = futex::wait(low_half(region, at), Flags::empty(), asleep, Some(&timeout));
    slept == Err(Errno::TIMEDOUT)
}

/// Makes the word say that its owner is awake, and wakes it, in one step.
pub(super) fn wake(region: &Region, at: usize) {
    let word = low_half(region, at);
    let (set, never) = (WakeOp::Set, WakeOpCmp::Lt);
    // Of nobody but its owner, who is woken by the first of the two numbers. It fails only where the kernel has
    // no such call: then the sleeper wakes up by itself.
    let _ = futex::wake_op(word, Flags::empty(), 1, 0, word, set, never, 0, 0);
}
