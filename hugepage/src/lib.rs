//! Hugepage-backed shared memory that never raises SIGBUS.
//!
//! [`HugeMemory`] is a memfd and a shared mapping of it: memory that can be registered with a NIC
//! and passed to another process over a Unix socket. It has no name in any file system, so nothing
//! is left behind when its last user is killed.
//!
//! ```
//! use scalerpc_hugepage::{HugeMemory, PagePolicy};
//!
//! # fn main() -> Result<(), scalerpc_hugepage::MemoryError> {
//! let memory = HugeMemory::builder("pool", 1 << 20).policy(PagePolicy::Prefer).build()?;
//! // Says which pages were used and, where hugepages were not to be had, why and what to run.
//! println!("{}", memory.backing());
//! # Ok(())
//! # }
//! ```
//!
//! # Why a touch cannot fault
//!
//! - Every page is allocated with `fallocate`, then mapped with `MADV_POPULATE_WRITE`: both answer
//!   a shortage (of the hugepage pool, or under a hugetlb cgroup limit) with an error, where a
//!   first touch would raise SIGBUS. `MAP_POPULATE` is not used: it hides the error.
//! - The memfd is sealed with `F_SEAL_SHRINK | F_SEAL_GROW` before anybody else sees it, so nobody
//!   can truncate it under a mapping. A memfd from another process is refused without these seals.
//! - A peer that holds a writable descriptor can still punch a hole, which gives a page back. In
//!   normal pages the next touch reads zeros; in hugepages it needs a free page, and raises SIGBUS
//!   when there is none. [`HugeMemory::adopt_fd`] and [`HugeMemory::seal_for_good`] rule this out
//!   with `F_SEAL_FUTURE_WRITE`. Do not give hugepage-backed memory to a process that you do not
//!   trust before the memory is sealed like this.
//!
//! What remains is beyond a program's reach: a memory cell that fails, or a swap device that cannot
//! be read.
//!
//! # Fork
//!
//! The mapping is `MAP_SHARED`, so a child of `fork` uses the same pages: there is no copy on write
//! which could need a hugepage that the pool no longer has, and a NIC keeps seeing what the parent
//! writes. `MADV_DONTFORK` is therefore not used. The descriptor is close-on-exec.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("scalerpc-hugepage needs memfds and 64-bit addresses: 64-bit Linux only");

mod error;
mod memory;
mod policy;
mod pool;
mod received;
mod seal;
mod size;
mod smaps;
mod sys;

pub use error::{MemoryError, Remedy, Shortage};
pub use memory::{Builder, HugeMemory};
pub use policy::{Backing, FallbackReason, PagePolicy, ParsePagePolicyError};
pub use pool::{HugepagePool, hugepage_pool, hugepage_sizes};
pub use seal::{Sealing, seal_for_good};
pub use size::round_up_to_pages;
