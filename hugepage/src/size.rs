//! Page arithmetic and how sizes are written.

use std::fmt;

/// `bytes` rounded up to whole pages of `page_bytes`.
///
/// `None` when the result does not fit the address space (more than `isize::MAX`), or when
/// `page_bytes` is 0.
///
/// Mapping, registration and unmapping all have to use the rounded length: the kernel refuses to
/// unmap part of a hugepage, and a NIC driver to register it.
///
/// ```
/// use scalerpc_hugepage::round_up_to_pages;
///
/// assert_eq!(round_up_to_pages(3, 2 << 20), Some(2 << 20));
/// assert_eq!(round_up_to_pages(usize::MAX, 2 << 20), None);
/// ```
#[must_use]
pub fn round_up_to_pages(bytes: usize, page_bytes: usize) -> Option<usize> {
    bytes
        .checked_next_multiple_of(page_bytes)
        .filter(|&len| isize::try_from(len).is_ok())
}

/// A page size in the unit that people use for it.
pub(crate) struct PageSize(pub(crate) usize);

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0 % (1 << shift) == 0 {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_whole_pages() {
        // 3_779_571_220 is no multiple of 2 MiB: registering that many bytes fails.
        assert_eq!(
            round_up_to_pages(3_779_571_220, 2 << 20),
            Some(3_781_165_056)
        );
        assert_eq!(
            round_up_to_pages(3_779_571_220, 64 << 10),
            Some(3_779_592_192)
        );
        assert_eq!(round_up_to_pages(1, 64 << 10), Some(64 << 10));
        assert_eq!(round_up_to_pages(2 << 20, 2 << 20), Some(2 << 20));
        assert_eq!(round_up_to_pages((2 << 20) + 1, 2 << 20), Some(4 << 20));
        assert_eq!(round_up_to_pages(5 << 30, 1 << 30), Some(5 << 30));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let max = isize::MAX as usize;
        assert_eq!(round_up_to_pages(usize::MAX, 2 << 20), None);
        assert_eq!(round_up_to_pages(max, 2 << 20), None);
        assert_eq!(
            round_up_to_pages(max - (2 << 20) + 1, 2 << 20),
            Some(max - (2 << 20) + 1)
        );
        assert_eq!(round_up_to_pages(1, 0), None);
    }

    #[test]
    fn sizes_read_well() {
        let text = |bytes| PageSize(bytes).to_string();
        assert_eq!(text(2 << 20), "2 MiB");
        assert_eq!(text(1 << 30), "1 GiB");
        assert_eq!(text(64 << 10), "64 KiB");
        assert_eq!(text(1000), "1000 B");
    }
}
