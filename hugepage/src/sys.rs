//! The system calls behind a piece of memory.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU8, Ordering},
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create},
    io::{Errno, retry_on_intr},
    mm::{Advice, madvise},
};

use crate::{error::MemoryError, pool::unsupported};

/// `MFD_HUGE_SHIFT`: where the flags of `memfd_create` carry log2 of the page size.
const MFD_HUGE_SHIFT: u32 = 26;

/// `fallocate` undoes its work when a signal comes. Small steps let a process with a fast timer
/// signal get ahead.
const RESERVE_STEP_BYTES: usize = 16 << 20;

/// More nodes than any kernel can be built for.
const MAX_NUMA_NODES: usize = 1024;

/// Why a step failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Not enough pages: the caller knows of which kind.
    Short,
    /// Anything else.
    Other(MemoryError),
}

impl Failed {
    fn from_errno(step: &'static str, errno: Errno) -> Self {
        match errno {
            // EFAULT is what populating says where a touch would have raised SIGBUS.
            Errno::NOSPC | Errno::NOMEM | Errno::FAULT => Self::Short,
            other => Self::Other(MemoryError::os(step, other)),
        }
    }
}

impl From<MemoryError> for Failed {
    fn from(error: MemoryError) -> Self {
        Self::Other(error)
    }
}

/// How a memfd is to be laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pages {
    Normal { page_bytes: usize },
    Huge { page_bytes: usize },
}

impl Pages {
    pub(crate) fn page_bytes(self) -> usize {
        match self {
            Self::Normal { page_bytes } | Self::Huge { page_bytes } => page_bytes,
        }
    }
}

/// An empty memfd.
pub(crate) fn create(name: &str, pages: Pages) -> Result<OwnedFd, MemoryError> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if let Pages::Huge { page_bytes } = pages {
        let size = MemfdFlags::from_bits_retain(page_bytes.ilog2() << MFD_HUGE_SHIFT);
        flags |= MemfdFlags::HUGETLB | size;
    }
    // Kernels from 6.3 want to be told that nothing in here is to be executed, and may be
    // configured to refuse memfds otherwise; older ones do not know the flag.
    let made = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        other => other,
    };
    made.map_err(|errno| match (errno, pages) {
        (Errno::INVAL | Errno::NODEV, Pages::Huge { page_bytes }) => unsupported(Some(page_bytes)),
        _ => MemoryError::os("memfd_create", errno),
    })
}

pub(crate) fn resize(fd: impl AsFd, len: usize, page_bytes: usize) -> Result<(), MemoryError> {
    retry_on_intr(|| ftruncate(&fd, len as u64)).map_err(|errno| match errno {
        Errno::FBIG | Errno::INVAL => MemoryError::TooLarge {
            bytes: len,
            page_bytes,
        },
        other => MemoryError::os("sizing the memfd", other),
    })
}

/// Maps `len` bytes, which have to be whole pages of the memfd: memmap2 unmaps exactly what it
/// mapped, and ignores the kernel's refusal to unmap part of a hugepage.
pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<MmapRaw, Failed> {
    MmapOptions::new()
        .len(len)
        .map_raw(fd.as_raw_fd())
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => Failed::from_errno("mapping the memfd", errno),
            None => Failed::Other(MemoryError::os("mapping the memfd", error)),
        })
}

/// Says where the pages that are still to be allocated shall come from.
///
/// Hugepages must come from the node: a shortage is an error that can be handled. Normal pages
/// only prefer it: with a binding, a full node would have the kernel kill a process.
pub(crate) fn bind(map: &MmapRaw, node: u32, pages: Pages) -> Result<(), MemoryError> {
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;
    let bit = node as usize;
    let mut mask: [libc::c_ulong; MAX_NUMA_NODES / WORD_BITS] = [0; MAX_NUMA_NODES / WORD_BITS];
    let Some(word) = mask.get_mut(bit / WORD_BITS) else {
        return Err(MemoryError::BadNumaNode { node });
    };
    *word = 1 << (bit % WORD_BITS);
    let mode = match pages {
        Pages::Huge { .. } => libc::MPOL_BIND,
        Pages::Normal { .. } => libc::MPOL_PREFERRED,
    };
    // SAFETY: the kernel reads the mask, which holds MAX_NUMA_NODES bits (it takes the count to be
    // one too large), and sets the policy of a range that `map` owns; memory is not changed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            map.as_mut_ptr(),
            map.len(),
            mode,
            mask.as_ptr(),
            MAX_NUMA_NODES + 1,
            0,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINVAL) => Err(MemoryError::BadNumaNode { node }),
        _ => Err(MemoryError::os("mbind", error)),
    }
}

/// Allocates every page of the memfd's first `len` bytes. Pages that exist keep their contents.
pub(crate) fn reserve(fd: BorrowedFd<'_>, len: usize, page_bytes: usize) -> Result<(), Failed> {
    let step = RESERVE_STEP_BYTES.max(page_bytes);
    let mut offset = 0;
    while offset < len {
        let bytes = step.min(len - offset);
        retry_on_intr(|| fallocate(fd, FallocateFlags::empty(), offset as u64, bytes as u64))
            .map_err(|errno| Failed::from_errno("fallocate", errno))?;
        offset += bytes;
    }
    Ok(())
}

/// Puts every page of the mapping into the page tables. Contents do not change.
pub(crate) fn prefault(map: &MmapRaw, page_bytes: usize) -> Result<(), Failed> {
    let populate = || {
        // SAFETY: the range is what `map` mapped, whole pages; populating keeps the contents.
        unsafe {
            madvise(
                map.as_mut_ptr().cast(),
                map.len(),
                Advice::LinuxPopulateWrite,
            )
        }
    };
    match retry_on_intr(populate) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL) => {
            // Older than 5.14. The pages were allocated before, so touching them needs none.
            touch(map, page_bytes);
            Ok(())
        }
        Err(errno) => Err(Failed::from_errno("populating the mapping", errno)),
    }
}

/// Write-faults every page by hand. The pages must be allocated.
fn touch(map: &MmapRaw, page_bytes: usize) {
    for offset in (0..map.len()).step_by(page_bytes) {
        // SAFETY: the offset is below the length of the mapping that starts at this pointer.
        let byte = unsafe { map.as_mut_ptr().add(offset) };
        // SAFETY: the byte is mapped for as long as `map` lives, and this crate accesses it no
        // other way meanwhile; another process may, and for it this is an atomic access too.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        // Changes nothing whatever the byte holds, and yet asks the MMU for write access.
        // Ordering: Relaxed, as nothing is published.
        let _ = byte.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The first byte of the mapping.
pub(crate) fn start(map: &MmapRaw) -> NonNull<u8> {
    // SAFETY: mmap without MAP_FIXED does not place a mapping at address 0.
    unsafe { NonNull::new_unchecked(map.as_mut_ptr()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn mapped(pages: usize) -> (OwnedFd, MmapRaw, usize) {
        let page_bytes = rustix::param::page_size();
        let fd = create("unit", Pages::Normal { page_bytes }).unwrap();
        resize(&fd, pages * page_bytes, page_bytes).unwrap();
        let map = map(fd.as_fd(), pages * page_bytes).unwrap();
        (fd, map, page_bytes)
    }

    /// Bytes of the mapping that are in the page tables.
    fn resident_bytes(map: &MmapRaw) -> usize {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", map.as_ptr() as usize);
        let entry = &smaps[smaps.find(&start).unwrap()..];
        let rss = entry
            .lines()
            .find_map(|line| line.strip_prefix("Rss:"))
            .unwrap();
        rss.trim()
            .strip_suffix(" kB")
            .unwrap()
            .parse::<usize>()
            .unwrap()
            << 10
    }

    #[test]
    fn touching_maps_every_page_and_keeps_contents() {
        let (fd, map, page_bytes) = mapped(8);
        rustix::io::pwrite(&fd, b"abc", 3 * page_bytes as u64).unwrap();
        assert_eq!(resident_bytes(&map), 0);
        touch(&map, page_bytes);
        assert_eq!(resident_bytes(&map), map.len());
        let mut bytes = [0; 3];
        rustix::io::pread(&fd, &mut bytes, 3 * page_bytes as u64).unwrap();
        assert_eq!(&bytes, b"abc");
    }

    #[test]
    fn prefaulting_maps_every_page() {
        let (_fd, map, page_bytes) = mapped(8);
        prefault(&map, page_bytes).unwrap();
        assert_eq!(resident_bytes(&map), map.len());
    }

    #[test]
    fn reserving_allocates_every_page() {
        // More than one step, and the last one shorter.
        let pages = RESERVE_STEP_BYTES / rustix::param::page_size() + 3;
        let (fd, map, page_bytes) = mapped(pages);
        let allocated = || rustix::fs::fstat(&fd).unwrap().st_blocks as usize * 512;
        assert_eq!(allocated(), 0);
        reserve(fd.as_fd(), map.len(), page_bytes).unwrap();
        assert_eq!(allocated(), map.len());
    }

    #[test]
    fn populating_where_a_touch_would_fault_is_an_error() {
        let (fd, map, page_bytes) = mapped(2);
        // A mapping past the end of the file: touching its second page raises SIGBUS.
        resize(&fd, page_bytes, page_bytes).unwrap();
        assert!(matches!(prefault(&map, page_bytes), Err(Failed::Short)));
    }
}
