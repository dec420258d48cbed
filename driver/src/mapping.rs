//! Memory of this process that other threads, or peers, reach.
#![allow(unsafe_code)]

use std::sync::Arc;

use scalerpc_core::Region;
use scalerpc_hugepage::HugeMemory;

/// Memory and views of its first bytes.
#[derive(Debug)]
pub(crate) struct Mapping {
    region: Region,
    reachable: Region,
    memory: HugeMemory,
}

impl Mapping {
    /// Views the first `bytes` of `memory`; the rest of its last page is out of reach. READ and WRITE may
    /// reach the first `reachable` of them. `None` if there are not so many.
    pub(crate) fn new(memory: HugeMemory, bytes: usize, reachable: usize) -> Option<Self> {
        if bytes > memory.len() {
            return None;
        }
        // SAFETY: `as_ptr` is aligned to a page and valid for `len` bytes until `memory` is dropped: every
        // page exists, and seals keep everybody from truncating the file. The view lives in the same
        // struct, which only lends it out. A HugeMemory gives out raw pointers only, and this is the only
        // place where this crate takes one, so all access is through Regions.
        let region = unsafe { Region::new(memory.as_ptr(), bytes) };
        // SAFETY: as above; the part lives in the same struct, too.
        let reachable = unsafe { region.part(0, reachable) }?;
        Some(Self {
            region,
            reachable,
            memory,
        })
    }

    /// What READ and WRITE may reach.
    pub(crate) fn reachable(&self) -> &Region {
        &self.reachable
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn memory(&self) -> &HugeMemory {
        &self.memory
    }
}

/// A view of some of a mapping, which it keeps in place.
#[derive(Debug)]
pub(crate) struct Part {
    // Before the mapping, in the order in which they are dropped.
    region: Region,
    whole: Arc<Mapping>,
}

impl Part {
    /// The `len` bytes from `at` (a multiple of 64); `None` if there are not so many.
    pub(crate) fn new(whole: &Arc<Mapping>, at: usize, len: usize) -> Option<Self> {
        // SAFETY: the bytes stay valid for as long as the mapping, and the struct, which only lends the view out,
        // holds a reference to that.
        let region = unsafe { whole.region.part(at, len) }?;
        Some(Self {
            region,
            whole: Arc::clone(whole),
        })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Of what it is a part.
    pub(crate) fn whole(&self) -> &Mapping {
        &self.whole
    }
}
