//! What the system says about RDMA devices and limits, without any library.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// The names of the RDMA devices that the kernel has; `sys` is where sysfs is mounted.
#[must_use]
pub fn rdma_devices(sys: &Path) -> Vec<String> {
    names(&sys.join("class/infiniband"))
}

/// What the kernel says about a port, in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelPort {
    /// Its number.
    pub number: u8,
    /// Its state, such as `ACTIVE`.
    pub state: String,
    /// What carries its packets: `InfiniBand` or `Ethernet`.
    pub link_layer: String,
}

/// The ports of a device; `sys` is where sysfs is mounted.
#[must_use]
pub fn rdma_ports(sys: &Path, device: &str) -> Vec<KernelPort> {
    let dir = sys.join("class/infiniband").join(device).join("ports");
    let port = |name: String| {
        let read = |file: &str| fs::read_to_string(dir.join(&name).join(file)).unwrap_or_default();
        let state = read("state");
        Some(KernelPort {
            number: name.parse().ok()?,
            // `4: ACTIVE`
            state: state
                .trim()
                .rsplit(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
            link_layer: read("link_layer").trim().to_owned(),
        })
    };
    let mut ports: Vec<_> = names(&dir).into_iter().filter_map(port).collect();
    ports.sort_by_key(|port| port.number);
    ports
}

/// The files through which programs reach RDMA devices; `dev` is where device files are.
#[must_use]
pub fn uverbs_files(dev: &Path) -> Vec<PathBuf> {
    let dir = dev.join("infiniband");
    names(&dir)
        .into_iter()
        .filter(|name| name.starts_with("uverbs"))
        .map(|name| dir.join(name))
        .collect()
}

/// True if this process may open the file for reading and writing. It is opened for that, and closed again.
#[must_use]
pub fn can_open(path: &Path) -> bool {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .is_ok()
}

/// How much memory this process may lock, which is also how much it may register with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLock {
    /// `RLIMIT_MEMLOCK`, in bytes; `None` if there is no limit.
    pub limit_bytes: Option<u64>,
    /// What is registered already.
    pub pinned_bytes: u64,
    /// The limit does not apply: the process has `CAP_IPC_LOCK`.
    pub exempt: bool,
}

impl MemoryLock {
    /// As it is now.
    #[must_use]
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut this = Self::from_status(&status);
        this.limit_bytes = getrlimit(Resource::Memlock).current;
        this
    }

    fn from_status(status: &str) -> Self {
        const CAP_IPC_LOCK: u32 = 14;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(':')?.split_whitespace().next()
        };
        let pinned_kib = field("VmPin").and_then(|kib| kib.parse::<u64>().ok());
        let capabilities = field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        Self {
            limit_bytes: None,
            pinned_bytes: pinned_kib.unwrap_or(0).saturating_mul(1024),
            exempt: capabilities.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1),
        }
    }

    /// True if so many more bytes may be registered.
    #[must_use]
    pub fn allows(&self, bytes: u64) -> bool {
        match self.limit_bytes {
            Some(limit) if !self.exempt => self.pinned_bytes.saturating_add(bytes) <= limit,
            _ => true,
        }
    }
}

/// The names in a folder, sorted; none if it is not there.
fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn ports_are_read_as_the_kernel_writes_them() {
        let root = tempfile::tempdir().unwrap();
        assert!(rdma_devices(root.path()).is_empty() && rdma_ports(root.path(), "a").is_empty());
        for (port, state) in [(10, "1: DOWN"), (2, "4: ACTIVE")] {
            let dir = root.path().join(format!("class/infiniband/a/ports/{port}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("state"), format!("{state}\n")).unwrap();
            fs::write(dir.join("link_layer"), "Ethernet\n").unwrap();
        }
        assert_eq!(rdma_devices(root.path()), ["a"]);
        let ports = rdma_ports(root.path(), "a");
        let ports: Vec<_> = ports
            .iter()
            .map(|port| (port.number, port.state.as_str()))
            .collect();
        assert_eq!(ports, [(2, "ACTIVE"), (10, "DOWN")]);
        assert_eq!(rdma_ports(root.path(), "a")[0].link_layer, "Ethernet");
    }

    #[test]
    fn the_limit_counts_what_is_pinned_and_spares_the_privileged() {
        let status =
            "Name:\tx\nVmLck:\t     7 kB\nVmPin:\t      64 kB\nCapEff:\t0000000000000000\n";
        let mut lock = MemoryLock::from_status(status);
        assert_eq!((lock.pinned_bytes, lock.exempt), (65536, false));
        lock.limit_bytes = Some(131_072);
        assert!(lock.allows(65536) && !lock.allows(65537) && !lock.allows(u64::MAX));
        let root = MemoryLock::from_status("CapEff:\t0000000000004000\n");
        assert!(root.exempt);
        let root = MemoryLock {
            limit_bytes: Some(1),
            ..root
        };
        assert!(root.allows(u64::MAX));
        assert!(!MemoryLock::from_status("CapEff:\t0000000000002000\n").exempt);
    }
}
