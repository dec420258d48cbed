//! What processes have, as the kernel tells it.

use std::collections::BTreeSet;
use std::fs::{File, read_dir, read_link, read_to_string};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const MEMFD: &str = "/memfd:scalerpc-";
const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

/// What one process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub descriptors: usize,
    /// Mappings of the library's memory.
    pub memory_maps: usize,
    /// Bytes of those whose name is that of a client's exposed memory.
    pub client_bytes: u64,
    pub all_maps: usize,
}

/// Counts what a process has; "self" is the caller.
pub fn of(process: &str) -> Census {
    let maps = read_to_string(format!("/proc/{process}/maps")).unwrap();
    let descriptors = read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let bytes = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        Some(number(to)? - number(from)?)
    };
    let client = |line: &&str| line.contains("/memfd:scalerpc-client");
    Census {
        descriptors,
        memory_maps: maps.lines().filter(|line| line.contains(MEMFD)).count(),
        client_bytes: maps.lines().filter(client).filter_map(bytes).sum(),
        all_maps: maps.lines().count(),
    }
}

/// Bytes of a process's heap and stacks that are in memory.
pub fn private_bytes(process: &str) -> u64 {
    let status = read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    1024 * kib.parse::<u64>().unwrap()
}

/// Inodes of the library's memory that a process has mapped.
pub fn memory_inodes(process: &str) -> BTreeSet<u64> {
    // A process that has just ended has nothing.
    let maps = read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let inode = |line: &str| line.split_whitespace().nth(4)?.parse().ok();
    maps.lines()
        .filter(|line| line.contains(MEMFD))
        .filter_map(inode)
        .collect()
}

fn processes() -> impl Iterator<Item = String> {
    read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then_some(name)
    })
}

/// Processes that were started with this text somewhere in their environment.
pub fn processes_with(text: &str) -> Vec<String> {
    let has_text = |process: &String| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    processes().filter(has_text).collect()
}

/// Whoever still has one of these pieces of memory, as a mapping or as a descriptor.
pub fn holders(inodes: &BTreeSet<u64>) -> Vec<String> {
    let has_open = |process: &String| {
        let files = read_dir(format!("/proc/{process}/fd"))
            .into_iter()
            .flatten();
        files.flatten().any(|file| {
            use std::os::unix::fs::MetadataExt;
            let named = read_link(file.path()).is_ok_and(|to| to.to_string_lossy().contains(MEMFD));
            named && std::fs::metadata(file.path()).is_ok_and(|it| inodes.contains(&it.ino()))
        })
    };
    processes()
        .filter(|process| !memory_inodes(process).is_disjoint(inodes) || has_open(process))
        .collect()
}

/// Hugepages that were added to the machine's, and are given back on drop.
pub struct HugePages {
    free: u64,
    /// Gives them back when its standard input ends, even if that is because this process was killed.
    keeper: Child,
    /// Keeps out other tests that change the number.
    _lock: File,
}

impl HugePages {
    pub const COUNT: u64 = 16;

    /// # Errors
    ///
    /// Why there are none to be had.
    pub fn reserve() -> Result<Self, String> {
        let lock = File::open(NR_HUGEPAGES).map_err(|error| error.to_string())?;
        // SAFETY: takes a descriptor that is open, and no pointers.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err("another test has the hugepages".into());
        }
        let before = total();
        let keeper = Command::new("sh")
            .args(["-c", &format!("cat; echo {before} > {NR_HUGEPAGES}")])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            // What ends this process from a terminal does not end that one.
            .process_group(0)
            .spawn()
            .map_err(|error| error.to_string())?;
        let this = Self {
            free: free() + Self::COUNT,
            keeper,
            _lock: lock,
        };
        std::fs::write(NR_HUGEPAGES, (before + Self::COUNT).to_string())
            .map_err(|error| format!("writing {NR_HUGEPAGES}: {error}"))?;
        match total() {
            got if got == before + Self::COUNT => Ok(this),
            got => Err(format!(
                "{} hugepages wanted, {got} got",
                before + Self::COUNT
            )),
        }
    }

    /// True if as many are free as at the start.
    pub fn are_back(&self) -> bool {
        free() >= self.free
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Ends its standard input first.
        let _ = self.keeper.wait();
    }
}

/// Somebody has hugepages mapped, or the library's memory: on a machine with other users their number says
/// nothing.
pub fn somebody_has_memory() -> bool {
    processes().any(|process| {
        let maps = read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.contains(MEMFD) || maps.contains("hugepage")
    })
}

fn total() -> u64 {
    read_to_string(NR_HUGEPAGES)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn free() -> u64 {
    let meminfo = read_to_string("/proc/meminfo").unwrap();
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.map_or(0, |count| count.trim().parse().unwrap())
}
