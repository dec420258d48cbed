//! Memory and how it is made.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

use memmap2::MmapRaw;

use crate::{
    error::MemoryError,
    policy::{Backing, FallbackReason, PagePolicy},
    pool::{self, HugepagePool, hugepage_pool},
    seal::{self, Sealing},
    size::round_up_to_pages,
    smaps,
    sys::{self, Failed, Pages},
};

/// What `memfd_create` takes: a path component of the kernel less its own prefix.
const MAX_NAME_BYTES: usize = 249;

/// A memfd and a shared, writable mapping of it, every page of which exists.
///
/// The memory is zeroed when it is made. It goes away when the last mapping and the last descriptor
/// are gone, however their owners ended. It serves as private memory too, if the descriptor is given
/// to nobody.
///
/// Access is through raw pointers only: whoever else maps the memory may write to it at any time,
/// so references into it are sound only where a protocol proves that nobody does.
#[derive(Debug)]
pub struct HugeMemory {
    map: MmapRaw,
    fd: OwnedFd,
    backing: Backing,
}

// A descriptor, a mapping (an address range that belongs to the process, not to a thread; it is
// unmapped once, on drop) and plain data: nothing here is tied to a thread, and the shared methods
// only read. Both traits are derived; this keeps it so.
const _: () = {
    const fn assert_send_sync<T: Send + Sync>() {}
    assert_send_sync::<HugeMemory>();
};

impl HugeMemory {
    /// Starts to describe new memory. The name shows up in `/proc/*/maps` and `/proc/*/fd`.
    pub fn builder(name: impl Into<String>, bytes: usize) -> Builder {
        Builder {
            name: name.into(),
            bytes,
            policy: PagePolicy::default(),
            page_bytes: None,
            numa_node: None,
        }
    }

    pub(crate) fn from_parts(map: MmapRaw, fd: OwnedFd, backing: Backing) -> Self {
        Self { map, fd, backing }
    }

    /// The first byte; aligned to the page size. Valid for [`len`](Self::len) bytes until `self`
    /// is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        sys::start(&self.map)
    }

    /// Bytes mapped: what was asked for, rounded up to whole pages. Register this many with a NIC.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there is no empty memory")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Size of the pages in use.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.backing.page_bytes()
    }

    /// The pages in use, and why they are not what was preferred.
    #[must_use]
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The memfd, to be passed to another process.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Another descriptor of the memfd. It keeps the memory alive after `self` is dropped.
    ///
    /// # Errors
    ///
    /// Whatever duplicating a descriptor answers, such as that there are too many.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Seals the memory for good; see [`seal_for_good`](crate::seal_for_good).
    ///
    /// # Errors
    ///
    /// See [`seal_for_good`](crate::seal_for_good).
    pub fn seal_for_good(&self) -> Result<Sealing, MemoryError> {
        seal::seal_for_good(&self.fd)
    }

    /// The page size that `/proc/self/smaps` reports for the mapping. Slow in a process with many
    /// mappings.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or does not show the mapping.
    pub fn smaps_page_bytes(&self) -> io::Result<usize> {
        let start = self.as_ptr().as_ptr() as usize;
        smaps::page_bytes(&(start..start + self.len()))
    }

    /// Checks that the kernel used the pages that [`backing`](Self::backing) claims. Done once for
    /// new memory that is made of hugepages.
    ///
    /// # Errors
    ///
    /// [`MemoryError::PageSizeMismatch`], or [`MemoryError::Os`] when the kernel does not tell.
    pub fn verify(&self) -> Result<(), MemoryError> {
        let actual_bytes = self
            .smaps_page_bytes()
            .map_err(|error| MemoryError::os("reading /proc/self/smaps", error))?;
        let expected_bytes = self.page_bytes();
        if actual_bytes == expected_bytes {
            return Ok(());
        }
        Err(MemoryError::PageSizeMismatch {
            expected_bytes,
            actual_bytes,
        })
    }
}

impl AsFd for HugeMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// Describes new memory.
#[derive(Debug, Clone)]
#[must_use = "build() makes the memory"]
pub struct Builder {
    name: String,
    bytes: usize,
    policy: PagePolicy,
    page_bytes: Option<usize>,
    numa_node: Option<u32>,
}

impl Builder {
    /// Whether to use hugepages; [`PagePolicy::Prefer`] unless told.
    pub fn policy(mut self, policy: PagePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Size of the hugepages, such as 2 MiB or 1 GiB; `None` for the system's default. Normal
    /// pages have one size only, which this does not change.
    pub fn page_bytes(mut self, page_bytes: Option<usize>) -> Self {
        self.page_bytes = page_bytes;
        self
    }

    /// The NUMA node that the memory shall be on; `None` for the kernel's choice.
    ///
    /// Hugepages come from that node, or the shortage is reported. Normal pages are taken from
    /// elsewhere when the node is full.
    pub fn numa_node(mut self, node: Option<u32>) -> Self {
        self.numa_node = node;
        self
    }

    /// Makes the memory: allocates every page, maps them all, and fixes the size.
    ///
    /// # Errors
    ///
    /// See [`MemoryError`]. Whatever was allocated has been given back by then.
    pub fn build(self) -> Result<HugeMemory, MemoryError> {
        self.check()?;
        let fallback = match self.policy {
            PagePolicy::Never => None,
            PagePolicy::Require => return self.build_huge(),
            PagePolicy::Prefer => match self.build_huge() {
                Ok(memory) => return Ok(memory),
                Err(error) => Some(FallbackReason::from_error(error)?),
            },
        };
        self.build_normal(fallback)
    }

    fn check(&self) -> Result<(), MemoryError> {
        if self.bytes == 0 {
            return Err(MemoryError::ZeroBytes);
        }
        if self.name.len() > MAX_NAME_BYTES || self.name.contains('\0') {
            return Err(MemoryError::BadName {
                name: self.name.clone(),
            });
        }
        match self.page_bytes {
            Some(page_bytes)
                if !page_bytes.is_power_of_two() || page_bytes <= rustix::param::page_size() =>
            {
                Err(MemoryError::BadPageBytes { page_bytes })
            }
            _ => Ok(()),
        }
    }

    fn build_huge(&self) -> Result<HugeMemory, MemoryError> {
        let page_bytes = match self.page_bytes {
            Some(page_bytes) => page_bytes,
            None => hugepage_pool()?.page_bytes,
        };
        let len = self.rounded(page_bytes)?;
        let pages = Pages::Huge { page_bytes };
        let fd = sys::create(&self.name, pages)?;
        match self.fill(fd, len, pages, Backing::Huge { page_bytes }) {
            Ok(memory) => {
                memory.verify()?;
                Ok(memory)
            }
            // The descriptor is closed by now, so the pool is back at what it was.
            Err(Failed::Short) => {
                let pool = HugepagePool::read(page_bytes, self.numa_node)?;
                let shortage = pool.shortage((len / page_bytes) as u64, self.numa_node);
                Err(MemoryError::HugepagesUnavailable(shortage))
            }
            Err(Failed::Other(error)) => Err(error),
        }
    }

    fn build_normal(&self, fallback: Option<FallbackReason>) -> Result<HugeMemory, MemoryError> {
        let page_bytes = rustix::param::page_size();
        let len = self.rounded(page_bytes)?;
        check_available(len as u64)?;
        let pages = Pages::Normal { page_bytes };
        let fd = sys::create(&self.name, pages)?;
        self.fill(
            fd,
            len,
            pages,
            Backing::Normal {
                page_bytes,
                fallback,
            },
        )
        .map_err(|failed| normal_error(failed, len as u64))
    }

    fn rounded(&self, page_bytes: usize) -> Result<usize, MemoryError> {
        let bytes = self.bytes;
        round_up_to_pages(bytes, page_bytes).ok_or(MemoryError::TooLarge { bytes, page_bytes })
    }

    /// Sizes, seals, maps and fills a memfd. Closes it when a step fails: pages already taken would
    /// otherwise stay taken.
    fn fill(
        &self,
        fd: OwnedFd,
        len: usize,
        pages: Pages,
        backing: Backing,
    ) -> Result<HugeMemory, Failed> {
        let page_bytes = pages.page_bytes();
        sys::resize(&fd, len, page_bytes)?;
        seal::fix_size(&fd)?;
        // Mapped before the pages are allocated, because the node is chosen through the mapping.
        let map = sys::map(fd.as_fd(), len)?;
        if let Some(node) = self.numa_node {
            sys::bind(&map, node, pages)?;
        }
        sys::reserve(fd.as_fd(), len, page_bytes)?;
        sys::prefault(&map, page_bytes)?;
        Ok(HugeMemory::from_parts(map, fd, backing))
    }
}

/// Refuses what the system cannot give. Without this, allocating would go on until the kernel kills
/// a process.
pub(crate) fn check_available(wanted_bytes: u64) -> Result<(), MemoryError> {
    let available_bytes = pool::available_bytes()?;
    if wanted_bytes <= available_bytes {
        return Ok(());
    }
    Err(MemoryError::NotEnoughMemory {
        wanted_bytes,
        available_bytes,
    })
}

pub(crate) fn normal_error(failed: Failed, wanted_bytes: u64) -> MemoryError {
    match failed {
        Failed::Other(error) => error,
        Failed::Short => match pool::available_bytes() {
            Ok(available_bytes) => MemoryError::NotEnoughMemory {
                wanted_bytes,
                available_bytes,
            },
            Err(error) => error,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_false_claim_is_found_out() {
        let mut memory = HugeMemory::builder("unit", 1)
            .policy(PagePolicy::Never)
            .build()
            .unwrap();
        memory.verify().unwrap();
        memory.backing = Backing::Huge {
            page_bytes: 2 << 20,
        };
        let error = memory.verify().unwrap_err();
        assert!(
            matches!(
                error,
                MemoryError::PageSizeMismatch {
                    expected_bytes: 0x20_0000,
                    ..
                }
            ),
            "{error}"
        );
    }
}
