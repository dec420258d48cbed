//! Memory that another process made.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FsWord, fstat, fstatfs};

use crate::{
    error::MemoryError,
    memory::{HugeMemory, check_available, normal_error},
    policy::Backing,
    pool::HugepagePool,
    seal,
    size::round_up_to_pages,
    sys::{self, Failed, Pages},
};

/// Unit of `st_blocks`, whatever the file system.
const STAT_BLOCK_BYTES: u64 = 512;

/// What becomes of the seals of a received memfd.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holes {
    /// Others are still to map it.
    Possible,
    /// Nobody else is: seal it.
    Forbidden,
}

impl HugeMemory {
    /// Maps `expected_bytes` (rounded up to whole pages) of a memfd that another process made, and
    /// leaves its seals as they are.
    ///
    /// The process is not trusted: the memfd must be sealed against resizing and be large enough,
    /// and pages that it did not allocate are allocated here. It can still punch holes afterwards;
    /// see the crate's documentation. Use [`adopt_fd`](Self::adopt_fd) where the maker and the
    /// caller are the only users of the memory.
    ///
    /// # Errors
    ///
    /// [`MemoryError::NotMemfd`], [`MemoryError::NotSealed`], [`MemoryError::TooSmall`],
    /// [`MemoryError::NotWholePages`], or, when pages are missing, the errors of a shortage.
    pub fn map_fd(fd: OwnedFd, expected_bytes: usize) -> Result<Self, MemoryError> {
        receive(fd, expected_bytes, Holes::Possible)
    }

    /// As [`map_fd`](Self::map_fd), then [seals the memory for good](Self::seal_for_good), and only
    /// then makes sure that every page exists. From here on nothing that the maker does can make an
    /// access fault.
    ///
    /// On a kernel older than 5.1 holes stay possible: [`seal_for_good`](Self::seal_for_good) can be
    /// called again to learn whether they are.
    ///
    /// # Errors
    ///
    /// As [`map_fd`](Self::map_fd), and [`MemoryError::SealRefused`].
    pub fn adopt_fd(fd: OwnedFd, expected_bytes: usize) -> Result<Self, MemoryError> {
        receive(fd, expected_bytes, Holes::Forbidden)
    }
}

fn receive(fd: OwnedFd, expected_bytes: usize, holes: Holes) -> Result<HugeMemory, MemoryError> {
    if expected_bytes == 0 {
        return Err(MemoryError::ZeroBytes);
    }
    // Seals first: only behind them is the size that is checked next the size for good.
    seal::check_fixed_size(&fd)?;
    let pages = pages_of(&fd)?;
    let page_bytes = pages.page_bytes();
    let len = round_up_to_pages(expected_bytes, page_bytes).ok_or(MemoryError::TooLarge {
        bytes: expected_bytes,
        page_bytes,
    })?;
    let missing_bytes = check_size(&fd, len, page_bytes)?;
    if let Pages::Normal { .. } = pages {
        check_available(missing_bytes)?;
    }
    let backing = match pages {
        Pages::Normal { .. } => Backing::Normal {
            page_bytes,
            fallback: None,
        },
        Pages::Huge { .. } => Backing::Huge { page_bytes },
    };
    fill(fd, len, page_bytes, backing, holes).map_err(|failed| match (failed, pages) {
        (Failed::Short, Pages::Huge { .. }) => {
            let wanted_pages = (len / page_bytes) as u64;
            match HugepagePool::read(page_bytes, None) {
                Ok(pool) => MemoryError::HugepagesUnavailable(pool.shortage(wanted_pages, None)),
                Err(error) => error,
            }
        }
        (failed, _) => normal_error(failed, len as u64),
    })
}

fn fill(
    fd: OwnedFd,
    len: usize,
    page_bytes: usize,
    backing: Backing,
    holes: Holes,
) -> Result<HugeMemory, Failed> {
    let map = sys::map(fd.as_fd(), len)?;
    if holes == Holes::Forbidden {
        // After mapping, as the seal forbids new writable mappings; before allocating, as a page
        // could be taken away again in between.
        let _: seal::Sealing = seal::seal_for_good(&fd)?;
    }
    sys::reserve(fd.as_fd(), len, page_bytes)?;
    sys::prefault(&map, page_bytes)?;
    Ok(HugeMemory::from_parts(map, fd, backing))
}

/// The pages of a memfd, as the kernel knows them.
fn pages_of(fd: &OwnedFd) -> Result<Pages, MemoryError> {
    const HUGETLBFS: FsWord = libc::HUGETLBFS_MAGIC as FsWord;
    const TMPFS: FsWord = libc::TMPFS_MAGIC as FsWord;
    let fs = fstatfs(fd).map_err(|errno| MemoryError::os("fstatfs of a memfd", errno))?;
    match fs.f_type {
        HUGETLBFS => {
            let page_bytes = usize::try_from(fs.f_bsize).ok().filter(|&bytes| bytes != 0);
            Ok(Pages::Huge {
                page_bytes: page_bytes.ok_or(MemoryError::NotMemfd)?,
            })
        }
        TMPFS => Ok(Pages::Normal {
            page_bytes: rustix::param::page_size(),
        }),
        _ => Err(MemoryError::NotMemfd),
    }
}

/// Checks that the memfd holds `len` bytes in whole pages. Returns how many of them are not
/// allocated yet.
fn check_size(fd: &OwnedFd, len: usize, page_bytes: usize) -> Result<u64, MemoryError> {
    let stat = fstat(fd).map_err(|errno| MemoryError::os("fstat of a memfd", errno))?;
    let expected_bytes = len as u64;
    // The kernel reports neither as negative; 0 fails the check if it ever did.
    let actual_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let allocated = u64::try_from(stat.st_blocks)
        .unwrap_or(0)
        .saturating_mul(STAT_BLOCK_BYTES);
    if actual_bytes % page_bytes as u64 != 0 {
        return Err(MemoryError::NotWholePages {
            actual_bytes,
            page_bytes,
        });
    }
    if actual_bytes < expected_bytes {
        return Err(MemoryError::TooSmall {
            expected_bytes,
            actual_bytes,
        });
    }
    Ok(expected_bytes.saturating_sub(allocated))
}
