//! What can go wrong, and what to do about it.

use std::{fmt, io};

use crate::size::PageSize;

/// Why memory could not be made or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Zero bytes were asked for.
    #[error("memory of 0 bytes was asked for")]
    ZeroBytes,
    /// The size, rounded up to whole pages, does not fit the address space or a file.
    #[error("{bytes} bytes in pages of {} do not fit the address space", PageSize(*.page_bytes))]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
        /// Size of the pages that they were rounded up to.
        page_bytes: usize,
    },
    /// The name is longer than a memfd's name may be (249 bytes), or holds a NUL.
    #[error("{name:?} cannot name a memfd: at most 249 bytes, no NUL")]
    BadName {
        /// The name.
        name: String,
    },
    /// The page size is no power of two, or not larger than a normal page.
    #[error("{page_bytes} bytes is no hugepage size: a power of two above the normal page size")]
    BadPageBytes {
        /// The page size asked for.
        page_bytes: usize,
    },
    /// There is no such NUMA node, or it has no memory that this process may use.
    #[error(
        "NUMA node {node} has no memory for this process; \
         see /sys/devices/system/node/has_memory and the process's cpuset"
    )]
    BadNumaNode {
        /// The node asked for.
        node: u32,
    },
    /// There were not enough hugepages.
    #[error("{0}")]
    HugepagesUnavailable(Shortage),
    /// The kernel has no hugepages of this size, or none at all.
    #[error("{}", Unsupported(*.page_bytes, .supported))]
    HugepagesUnsupported {
        /// The page size asked for; `None` for the default hugepage size.
        page_bytes: Option<usize>,
        /// The sizes that the kernel has.
        supported: Vec<usize>,
    },
    /// There is not enough memory in normal pages.
    #[error(
        "wanted {wanted_bytes} bytes in normal pages, {available_bytes} are available; \
         free memory, ask for less, or raise the memory limit of the cgroup"
    )]
    NotEnoughMemory {
        /// Bytes wanted, rounded up to whole pages.
        wanted_bytes: u64,
        /// Bytes that the system could still give (MemAvailable and free swap).
        available_bytes: u64,
    },
    /// The descriptor is no memfd.
    #[error("the descriptor is no memfd")]
    NotMemfd,
    /// The memfd could be truncated under us.
    #[error("the memfd lacks the seals {missing}: its owner could truncate it under a mapping")]
    NotSealed {
        /// The seals that are missing.
        missing: &'static str,
    },
    /// The memfd is smaller than it should be.
    #[error("the memfd holds {actual_bytes} bytes, expected at least {expected_bytes}")]
    TooSmall {
        /// Bytes that it must hold, rounded up to whole pages.
        expected_bytes: u64,
        /// Bytes that it holds.
        actual_bytes: u64,
    },
    /// The memfd's size is no multiple of its page size.
    #[error("the memfd holds {actual_bytes} bytes: not whole pages of {}", PageSize(*.page_bytes))]
    NotWholePages {
        /// Bytes that it holds.
        actual_bytes: u64,
        /// Its page size.
        page_bytes: usize,
    },
    /// The memfd was sealed against further seals before it was sealed against holes.
    #[error("the memfd takes no more seals (F_SEAL_SEAL), and holes can still be punched into it")]
    SealRefused,
    /// The mapping does not have the page size that it should have.
    #[error(
        "the mapping has pages of {}, expected {}",
        PageSize(*.actual_bytes),
        PageSize(*.expected_bytes)
    )]
    PageSizeMismatch {
        /// Page size asked of the kernel.
        expected_bytes: usize,
        /// Page size that the kernel reports.
        actual_bytes: usize,
    },
    /// A system call or a file of the kernel failed in a way that has no variant of its own.
    #[error("{step} failed: {source}")]
    Os {
        /// What was being done.
        step: &'static str,
        /// What the system answered.
        source: io::Error,
    },
}

impl MemoryError {
    pub(crate) fn os(step: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os {
            step,
            source: source.into(),
        }
    }
}

/// Too few hugepages: how many were wanted, how many there are, and what to run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// Size of the pages.
    pub page_bytes: usize,
    /// Pages wanted.
    pub wanted_pages: u64,
    /// Pages that are free and not promised to another mapping.
    pub free_pages: u64,
    /// The NUMA node that the pages had to come from.
    pub numa_node: Option<u32>,
    /// What would help.
    pub remedy: Remedy,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wanted_pages,
            free_pages,
            ..
        } = self;
        write!(
            f,
            "wanted {wanted_pages} hugepages of {}",
            PageSize(self.page_bytes)
        )?;
        if let Some(node) = self.numa_node {
            write!(f, " on NUMA node {node}")?;
        }
        write!(f, ", {free_pages} are free; {}", self.remedy)
    }
}

/// What helps against a shortage of hugepages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// The pool is too small.
    GrowPool {
        /// The command to run as root.
        command: String,
    },
    /// The pool holds enough pages: a limit on this process is in the way.
    LiftLimit {
        /// Size of the pages.
        page_bytes: usize,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GrowPool { command } => write!(
                f,
                "run `{command}` as root (if the pool stays smaller, memory is fragmented: \
                 reserve the pages at boot)"
            ),
            Self::LiftLimit { page_bytes } => {
                let size = cgroup_size(*page_bytes);
                write!(
                    f,
                    "that is enough, so a limit is in the way: raise hugetlb.{size}.max and \
                     hugetlb.{size}.rsvd.max of this process's cgroup, or `ulimit -v`"
                )
            }
        }
    }
}

/// The page size as cgroup file names spell it.
fn cgroup_size(page_bytes: usize) -> String {
    PageSize(page_bytes)
        .to_string()
        .replace(" ", "")
        .replace("iB", "B")
}

struct Unsupported<'a>(Option<usize>, &'a [usize]);

impl fmt::Display for Unsupported<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(page_bytes, supported) = *self;
        match page_bytes {
            Some(size) => write!(f, "this kernel has no hugepages of {}", PageSize(size))?,
            None => write!(f, "this kernel has no hugepages")?,
        }
        if supported.is_empty() {
            return write!(f, " (no support for memfds of hugepages)");
        }
        write!(f, "; it has pages of")?;
        for (index, &size) in supported.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {}", PageSize(size))?;
        }
        match page_bytes {
            Some(size) => write!(f, "; boot with hugepagesz={}K to get these", size >> 10),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_says_what_to_run() {
        let shortage = Shortage {
            page_bytes: 2 << 20,
            wanted_pages: 32,
            free_pages: 5,
            numa_node: Some(1),
            remedy: Remedy::GrowPool {
                command: "sysctl -w vm.nr_hugepages=91".into(),
            },
        };
        let text = MemoryError::HugepagesUnavailable(shortage).to_string();
        assert!(
            text.starts_with(
                "wanted 32 hugepages of 2 MiB on NUMA node 1, 5 are free; \
                 run `sysctl -w vm.nr_hugepages=91` as root"
            ),
            "{text}"
        );
    }

    #[test]
    fn limit_names_the_cgroup_files() {
        let text = |page_bytes| Remedy::LiftLimit { page_bytes }.to_string();
        assert!(
            text(2 << 20).contains("hugetlb.2MB.max"),
            "{}",
            text(2 << 20)
        );
        assert!(
            text(1 << 30).contains("hugetlb.1GB.rsvd.max"),
            "{}",
            text(1 << 30)
        );
        assert!(
            text(64 << 10).contains("hugetlb.64KB.max"),
            "{}",
            text(64 << 10)
        );
    }

    #[test]
    fn unsupported_lists_what_there_is() {
        let error = MemoryError::HugepagesUnsupported {
            page_bytes: Some(1 << 30),
            supported: vec![64 << 10, 2 << 20],
        };
        assert_eq!(
            error.to_string(),
            "this kernel has no hugepages of 1 GiB; it has pages of 64 KiB, 2 MiB; \
             boot with hugepagesz=1048576K to get these"
        );
    }
}
