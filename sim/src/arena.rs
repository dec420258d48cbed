//! Memory of the simulated machines.

use std::ptr::NonNull;

use scalerpc_core::memory::Region;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line(#[allow(dead_code)] [u64; 8]);

/// Zeroed lines, seen through a [`Region`].
pub struct Arena {
    region: Region,
    /// Owns what `region` views, and is never touched otherwise.
    _lines: Box<[Line]>,
}

impl Arena {
    /// At least `bytes` bytes, and at least one line.
    pub fn new(bytes: usize) -> Self {
        let mut lines = vec![Line([0; 8]); bytes.div_ceil(64).max(1)].into_boxed_slice();
        let len = lines.len() * 64;
        let base = NonNull::from(&mut *lines).cast::<u8>();
        // SAFETY: a boxed slice stays where it is when the box moves; it lives as long as `self`, from
        // which `region` is only lent; the lines are aligned to 64 and touched only through regions.
        let region = unsafe { Region::new(base, len) };
        Self {
            region,
            _lines: lines,
        }
    }

    /// The view.
    pub fn region(&self) -> &Region {
        &self.region
    }
}
