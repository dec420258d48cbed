//! How an end that sleeps is woken, and a wake-up is never lost.
//!
//! Each end has a word that says whether it is asleep: the server in its exposed memory, for all clients
//! ([`Geometry::server_asleep`](scalerpc_core::Geometry::server_asleep)); a client behind the guards of its link. Who goes
//! to sleep stores the word, passes a full fence, looks once more for what it waits for, and only then sleeps. Who has
//! written something passes a full fence, looks at the word, and wakes the other if it is set. The shape is Dekker's:
//! either the sleeper sees what was written, or the writer sees that the other sleeps.
//!
//! ```text
//!  sleeper: asleep = 1 │ full fence S │ look │ sleep while asleep = 1      │ asleep = 0
//!  writer:  write      │ full fence W │ asleep? then, in one step: asleep = 0, wake
//! ```
//!
//! # Why it holds
//!
//! Full fences have one total order. W before S: what was written comes before W, so the look after S sees it. S before W:
//! the look at the word after W sees 1, or a later value. A later value is 0, which the sleeper stored after it had
//! slept, or the kernel for somebody who woke it: it goes round again, and its next fence comes after W, or W after that one.
//!
//! Nobody but the sleeper writes the word by itself. Who wakes lets the kernel do it (`FUTEX_WAKE_OP`), in one step with
//! the wake-up, so a process that is stopped on the way cannot leave a sleeper behind whose word says that it is awake.
//! And to sleep is to compare (`FUTEX_WAIT`): who was woken between its look and its sleep does not fall asleep.
//!
//! # What a fence costs, and whom
//!
//! The server is woken only by the WRITE of a demand byte, once for a batch: a fence is little beside that. But
//! it would have to pass one after each response. So where the kernel can (`membarrier(2)`), a client that
//! is about to sleep makes the server's process pass the fence W, wherever it is, and the server's own only
//! keeps the compiler from reordering; see [`guard`](super::guard), where the roles are the other way round.

use scalerpc_core::Memory;

const AWAKE: u64 = 0;
/// What the word is while its owner sleeps, in its low half too, which is all that the kernel looks at.
pub const ASLEEP: u64 = 1;

/// How a writer orders what it wrote before its look at the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterFence {
    /// By a full fence of its own.
    Full,
    /// By the sleeper's, which reaches this process: it is registered for that.
    Light,
}

/// Sleeper: says that it is about to sleep. Then come a full fence, which reaches the writer if that one's is light, and
/// a last look.
#[inline]
pub fn announce<M: Memory>(memory: &M, at: usize) {
    memory.store(at, ASLEEP);
}

/// Sleeper: it is awake, or has not gone to sleep at all.
#[inline]
pub fn withdraw<M: Memory>(memory: &M, at: usize) {
    memory.store(at, AWAKE);
}

/// Writer: has written something that the other may be waiting for. True if that one is to be woken.
#[inline]
#[must_use]
pub fn must_wake<M: Memory>(memory: &M, at: usize, fence: WriterFence) -> bool {
    // Ordering: full; partner is the sleeper's fence after `announce`. What was written before the look at the word.
    match fence {
        WriterFence::Full => memory.fence_full(),
        WriterFence::Light => memory.fence_light(),
    }
    memory.load(at) != AWAKE
}
