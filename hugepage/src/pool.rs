//! The kernel's pool of hugepages.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::error::{MemoryError, Remedy, Shortage};

const MEMINFO: &str = "/proc/meminfo";
const SYSFS_POOLS: &str = "/sys/kernel/mm/hugepages";
const SYSFS_NODES: &str = "/sys/devices/system/node";

/// What the kernel says about its hugepages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugepagePool {
    /// Size of a page.
    pub page_bytes: usize,
    /// Pages in the pool, the surplus ones included.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
    /// Free pages that are promised to a mapping. Not kept per NUMA node: 0 there.
    pub reserved: u64,
    /// Pages above the configured size of the pool; they leave it when they are freed.
    pub surplus: u64,
}

impl HugepagePool {
    /// Pages that are free and not promised to anybody.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }

    /// The pool of pages of `page_bytes`, on one NUMA node or in all.
    ///
    /// # Errors
    ///
    /// [`MemoryError::HugepagesUnsupported`] when the kernel has no pages of this size (or there
    /// is no such node), [`MemoryError::Os`] when its files cannot be read.
    pub fn read(page_bytes: usize, numa_node: Option<u32>) -> Result<Self, MemoryError> {
        match Self::read_dir(&pool_dir(page_bytes, numa_node), page_bytes) {
            Ok(pool) => Ok(pool),
            // Where sysfs is hidden, meminfo still knows the pool of the default size.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = read_meminfo()?;
                parse_meminfo(&text)
                    .filter(|pool| pool.page_bytes == page_bytes && numa_node.is_none())
                    .ok_or_else(|| unsupported(Some(page_bytes)))
            }
            Err(error) => Err(MemoryError::os(
                "reading the hugepage pool from sysfs",
                error,
            )),
        }
    }

    fn read_dir(dir: &Path, page_bytes: usize) -> io::Result<Self> {
        let count = |file: &str| -> io::Result<u64> {
            let text = fs::read_to_string(dir.join(file))?;
            text.trim()
                .parse()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        };
        let reserved = match count("resv_hugepages") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            other => other?,
        };
        Ok(Self {
            page_bytes,
            total: count("nr_hugepages")?,
            free: count("free_hugepages")?,
            reserved,
            surplus: count("surplus_hugepages")?,
        })
    }

    /// What to tell somebody who wanted `wanted_pages` of this pool and did not get them.
    pub(crate) fn shortage(&self, wanted_pages: u64, numa_node: Option<u32>) -> Shortage {
        let page_bytes = self.page_bytes;
        let free_pages = self.available();
        let remedy = match wanted_pages.checked_sub(free_pages) {
            None | Some(0) => Remedy::LiftLimit { page_bytes },
            Some(missing) => {
                let configured = self.total.saturating_sub(self.surplus);
                let target = configured.saturating_add(missing);
                Remedy::GrowPool {
                    command: grow_command(page_bytes, numa_node, target),
                }
            }
        };
        Shortage {
            page_bytes,
            wanted_pages,
            free_pages,
            numa_node,
            remedy,
        }
    }
}

/// The pool of hugepages of the default size.
///
/// # Errors
///
/// [`MemoryError::HugepagesUnsupported`] when the kernel has none, [`MemoryError::Os`] when
/// `/proc/meminfo` cannot be read.
pub fn hugepage_pool() -> Result<HugepagePool, MemoryError> {
    parse_meminfo(&read_meminfo()?).ok_or_else(|| unsupported(None))
}

/// The hugepage sizes that the kernel has, in ascending order; empty where sysfs does not tell.
#[must_use]
pub fn hugepage_sizes() -> Vec<usize> {
    let Ok(entries) = fs::read_dir(SYSFS_POOLS) else {
        return Vec::new();
    };
    let mut sizes: Vec<usize> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let kib = name
                .to_str()?
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?;
            kib.parse::<usize>().ok()?.checked_mul(1 << 10)
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

/// Bytes that the system could still give to somebody, in normal pages.
pub(crate) fn available_bytes() -> Result<u64, MemoryError> {
    let text = read_meminfo()?;
    let kib = |key| meminfo_value(&text, key);
    // MemAvailable came with Linux 3.14; memfds came later.
    let available = kib("MemAvailable").ok_or_else(|| {
        MemoryError::os(
            "reading MemAvailable",
            io::Error::from(io::ErrorKind::InvalidData),
        )
    })?;
    let swap = kib("SwapFree").unwrap_or(0);
    Ok(available.saturating_add(swap).saturating_mul(1 << 10))
}

pub(crate) fn unsupported(page_bytes: Option<usize>) -> MemoryError {
    MemoryError::HugepagesUnsupported {
        page_bytes,
        supported: hugepage_sizes(),
    }
}

fn pool_dir(page_bytes: usize, numa_node: Option<u32>) -> PathBuf {
    let pool = format!("hugepages-{}kB", page_bytes >> 10);
    match numa_node {
        None => Path::new(SYSFS_POOLS).join(pool),
        Some(node) => Path::new(SYSFS_NODES)
            .join(format!("node{node}"))
            .join("hugepages")
            .join(pool),
    }
}

fn grow_command(page_bytes: usize, numa_node: Option<u32>, target: u64) -> String {
    let is_default = read_meminfo()
        .ok()
        .and_then(|text| parse_meminfo(&text))
        .is_some_and(|pool| pool.page_bytes == page_bytes);
    // sysctl reaches only the pool of the default size.
    if is_default && numa_node.is_none() {
        return format!("sysctl -w vm.nr_hugepages={target}");
    }
    format!(
        "echo {target} > {}/nr_hugepages",
        pool_dir(page_bytes, numa_node).display()
    )
}

fn read_meminfo() -> Result<String, MemoryError> {
    fs::read_to_string(MEMINFO).map_err(|error| MemoryError::os("reading /proc/meminfo", error))
}

fn parse_meminfo(text: &str) -> Option<HugepagePool> {
    let page_kib = usize::try_from(meminfo_value(text, "Hugepagesize")?).ok()?;
    Some(HugepagePool {
        page_bytes: page_kib.checked_mul(1 << 10)?,
        total: meminfo_value(text, "HugePages_Total")?,
        free: meminfo_value(text, "HugePages_Free")?,
        reserved: meminfo_value(text, "HugePages_Rsvd")?,
        surplus: meminfo_value(text, "HugePages_Surp")?,
    })
}

fn meminfo_value(text: &str, key: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO_TEXT: &str = "MemTotal:       24683584 kB\n\
        MemAvailable:   24401920 kB\n\
        HugePages_Total:      64\n\
        HugePages_Free:       40\n\
        HugePages_Rsvd:        8\n\
        HugePages_Surp:        4\n\
        Hugepagesize:       2048 kB\n\
        Hugetlb:          131072 kB\n";

    fn pool() -> HugepagePool {
        parse_meminfo(MEMINFO_TEXT).unwrap()
    }

    #[test]
    fn meminfo_is_understood() {
        let want = HugepagePool {
            page_bytes: 2 << 20,
            total: 64,
            free: 40,
            reserved: 8,
            surplus: 4,
        };
        assert_eq!(pool(), want);
        assert_eq!(pool().available(), 32);
        assert_eq!(
            meminfo_value(MEMINFO_TEXT, "MemAvailable"),
            Some(24_401_920)
        );
        assert_eq!(parse_meminfo("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn remedy_grows_the_configured_pool_by_what_is_missing() {
        let shortage = pool().shortage(100, Some(3));
        assert_eq!((shortage.wanted_pages, shortage.free_pages), (100, 32));
        // 60 configured (64 less 4 surplus), 68 missing.
        let command = "echo 128 > /sys/devices/system/node/node3/hugepages/\
                       hugepages-2048kB/nr_hugepages";
        assert_eq!(
            shortage.remedy,
            Remedy::GrowPool {
                command: command.into()
            }
        );
    }

    #[test]
    fn enough_free_pages_mean_that_a_limit_is_in_the_way() {
        let page_bytes = 2 << 20;
        assert_eq!(
            pool().shortage(32, None).remedy,
            Remedy::LiftLimit { page_bytes }
        );
        assert!(matches!(
            pool().shortage(33, None).remedy,
            Remedy::GrowPool { .. }
        ));
    }

    #[test]
    fn sysfs_and_meminfo_agree() {
        let Ok(default) = hugepage_pool() else {
            println!("skipped: sysfs_and_meminfo_agree: no hugepages in this kernel");
            return;
        };
        let pool = HugepagePool::read(default.page_bytes, None).unwrap();
        assert_eq!(pool.page_bytes, default.page_bytes);
        assert!(hugepage_sizes().contains(&default.page_bytes));
    }

    #[test]
    fn a_size_that_no_kernel_has_is_unsupported() {
        let error = HugepagePool::read(8 << 10, None).unwrap_err();
        assert!(
            matches!(
                error,
                MemoryError::HugepagesUnsupported {
                    page_bytes: Some(8192),
                    ..
                }
            ),
            "{error}"
        );
    }
}
