//! Memory for the words that the workers of a server and their scheduler share.

use scalerpc_core::Region;
use scalerpc_core::scheduler::Board;
use scalerpc_hugepage::{HugeMemory, MemoryError, PagePolicy};

use crate::mapping::Mapping;

/// Zeroed memory of this process for a [`Board`].
#[derive(Debug)]
pub struct BoardMemory(Mapping);

impl BoardMemory {
    /// Memory for so many workers.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]: it is not to be had.
    pub fn new(workers: usize) -> Result<Self, MemoryError> {
        let bytes = Board::<Region>::bytes(workers);
        let memory = HugeMemory::builder("scalerpc-board", bytes).policy(PagePolicy::Never);
        // The builder rounds up, so the view always fits.
        let mapping = Mapping::new(memory.build()?, bytes, bytes);
        mapping.map(Self).ok_or(MemoryError::ZeroBytes)
    }

    /// The memory.
    #[inline]
    pub fn region(&self) -> &Region {
        self.0.region()
    }
}
