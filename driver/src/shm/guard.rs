//! How a server proves that a client writes no more, without the client's help.
//!
//! Each connection has a guard of two cache lines in its client's exposed memory. The client says in the
//! first when a WRITE is under way; the server says in the second which tenancies are over. Either the
//! client sees the revocation and does not write, or the server sees the WRITE and asks again later: the
//! shape is Dekker's. So a client that is stopped between two WRITEs costs nobody its zone.
//!
//! ```text
//!  line 0 | writing: 1 while a WRITE is under way, else 0 (the client writes it)  |
//!  line 1 | revoked: the highest epoch that is over, or ENDED (the server writes it) |
//! ```
//!
//! # Why it holds
//!
//! Call F the fence of [`begin_write`], and S the server's full fence between [`raise`] and [`is_quiet`].
//! Full fences have one total order.
//!
//! - F before S: the store of `writing` = 1 comes before F, so the load of `writing` after S sees it, or
//!   a later value. A later 0 is the release in [`end_write`] of this WRITE or a later one; the acquire
//!   load that sees it comes after all bytes of those WRITEs.
//! - S before F: the store of `revoked` comes before S, so the load of `revoked` after F sees it, or a
//!   higher epoch: the WRITE is refused.
//!
//! Bytes of a WRITE cannot become visible before its `writing` = 1 does, since F stands between them.
//!
//! A full fence waits for the stores before it, which are misses on lines that the server polls: it
//! would cost each WRITE the time of one, and undo the overlap of several. So where the kernel can
//! (`membarrier(2)`, MEMBARRIER_CMD_GLOBAL_EXPEDITED), F only keeps the compiler from reordering, and S
//! makes every core that runs a registered process pass a full fence: F, wherever that finds it, is then
//! before S or after S as above.

use scalerpc_core::Memory;
use scalerpc_core::wire::LINE;

/// Bytes of the guard of a connection.
pub const GUARD_BYTES: usize = 2 * LINE;
/// The epoch of WRITEs that belong to no tenancy; revoking it ends the connection.
pub const ENDED: u64 = u64::MAX;

/// Offsets in a guard.
const WRITING: usize = 0;
const REVOKED: usize = LINE;

/// How a client orders its announcement before its look at the revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFence {
    /// By a full fence of its own.
    Full,
    /// By the server's, which reaches this process: it is registered for that.
    Light,
}

/// Client: begins a WRITE under `epoch` ([`ENDED`] for one outside of any tenancy). If false, the tenancy
/// is over and nothing may be written; if true, [`end_write`] follows after the last byte.
#[inline(always)]
#[must_use]
pub fn begin_write<M: Memory>(memory: &M, at: usize, epoch: u64, fence: ClientFence) -> bool {
    memory.store(at + WRITING, 1);
    // Ordering: full; partner is the server's fence between `raise` and `is_quiet`. Store of `writing`
    // before load of `revoked`, and before the bytes of the WRITE.
    match fence {
        ClientFence::Full => memory.fence_full(),
        ClientFence::Light => memory.fence_light(),
    }
    if memory.load(at + REVOKED) < epoch {
        return true;
    }
    end_write(memory, at);
    false
}

/// Client: ends a WRITE.
#[inline]
pub fn end_write<M: Memory>(memory: &M, at: usize) {
    // Ordering: release; partner is the acquire in `is_quiet`. The bytes written come before it.
    memory.store_release(at + WRITING, 0);
}

/// Client: the highest epoch that is over, or [`ENDED`].
#[inline]
pub fn revoked<M: Memory>(memory: &M, at: usize) -> u64 {
    memory.load(at + REVOKED)
}

/// Server: ends the tenancies up to `epoch`. Then comes a full fence that reaches the client, and then
/// [`is_quiet`] tells whether a WRITE was under way.
///
/// One thread alone revokes: raising the word is a load and a store.
#[inline]
pub fn raise<M: Memory>(memory: &M, at: usize, epoch: u64) {
    if memory.load(at + REVOKED) < epoch {
        memory.store(at + REVOKED, epoch);
    }
}

/// Server: true if no WRITE that was forbidden before the last fence is under way, or will be. If false,
/// a fence and this again, later.
#[inline]
#[must_use]
pub fn is_quiet<M: Memory>(memory: &M, at: usize) -> bool {
    // Ordering: acquire; partner is the release in `end_write`.
    memory.load_acquire(at + WRITING) == 0
}
