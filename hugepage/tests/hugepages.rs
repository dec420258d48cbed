//! Memory in real hugepages. Root is needed to grow the pool; tests that cannot have the pages that
//! they need say so and pass.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod common;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use common::{OLD_KERNEL, fail_calls};
use rustix::{
    fs::{
        FallocateFlags, FlockOperation, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, flock,
        ftruncate,
    },
    io::Errno,
};
use scalerpc_hugepage::{
    Backing, FallbackReason, HugeMemory, HugepagePool, MemoryError, PagePolicy, Remedy, Sealing,
    Shortage, hugepage_pool, hugepage_sizes,
};

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";
/// Tells a child process, which runs one of the ignored tests below, what to do.
const CHILD_PAGES: &str = "SCALERPC_TEST_CHILD_PAGES";
const CHILD_CGROUP: &str = "SCALERPC_TEST_CHILD_CGROUP";
const CHILD_KERNEL: &str = "SCALERPC_TEST_CHILD_KERNEL";

/// A pool with a known number of pages to be had. One at a time: the pool is the machine's.
struct Pool {
    before: u64,
    page_bytes: usize,
    _file: fs::File,
    _guard: MutexGuard<'static, ()>,
}

impl Pool {
    /// `None`, with a word on the output, when this machine does not let us.
    fn with(test: &str, pages: u64) -> Option<Self> {
        static ONE_TEST: Mutex<()> = Mutex::new(());
        let guard = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        match Self::try_with(pages, guard) {
            Ok(pool) => Some(pool),
            Err(why) => {
                println!("skipped: {test}: {why}");
                None
            }
        }
    }

    fn try_with(pages: u64, guard: MutexGuard<'static, ()>) -> Result<Self, String> {
        let file = fs::File::open(NR_HUGEPAGES).map_err(|error| error.to_string())?;
        // Keeps out other processes that run these tests.
        flock(&file, FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
        let pool = hugepage_pool().map_err(|error| error.to_string())?;
        let before = pool.total - pool.surplus;
        let this = Self {
            before,
            page_bytes: pool.page_bytes,
            _file: file,
            _guard: guard,
        };
        let target = (before + pages).saturating_sub(pool.available());
        if target != before {
            fs::write(NR_HUGEPAGES, target.to_string())
                .map_err(|error| format!("writing {NR_HUGEPAGES}: {error}"))?;
        }
        let got = this.available();
        if got != pages {
            return Err(format!("{pages} hugepages wanted in the pool, {got} got"));
        }
        Ok(this)
    }

    fn available(&self) -> u64 {
        hugepage_pool().unwrap().available()
    }

    fn require(&self, pages: usize) -> Result<HugeMemory, MemoryError> {
        HugeMemory::builder("huge", pages * self.page_bytes)
            .policy(PagePolicy::Require)
            .build()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(NR_HUGEPAGES, self.before.to_string());
    }
}

fn shortage(error: MemoryError) -> Shortage {
    match error {
        MemoryError::HugepagesUnavailable(shortage) => shortage,
        other => panic!("{other}"),
    }
}

fn write(memory: &HugeMemory, offset: usize, byte: u8) {
    assert!(offset < memory.len());
    // SAFETY: the offset is within the mapping.
    let at = unsafe { memory.as_ptr().add(offset) };
    // SAFETY: the byte is mapped, and no reference to it exists.
    unsafe { at.write_volatile(byte) };
}

fn read(memory: &HugeMemory, offset: usize) -> u8 {
    assert!(offset < memory.len());
    // SAFETY: the offset is within the mapping.
    let at = unsafe { memory.as_ptr().add(offset) };
    // SAFETY: the byte is mapped, and no reference to it exists.
    unsafe { at.read_volatile() }
}

/// Bytes of the mapping that are in the page tables as hugepages.
fn mapped_bytes(memory: &HugeMemory) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", memory.as_ptr().as_ptr() as usize);
    let entry = &smaps[smaps.find(&start).unwrap()..];
    let field = |name| {
        let value = entry
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        value
            .trim()
            .strip_suffix(" kB")
            .unwrap()
            .parse::<usize>()
            .unwrap()
            << 10
    };
    field("Shared_Hugetlb:") + field("Private_Hugetlb:")
}

fn nobody_overcommits(test: &str) -> bool {
    let zero = fs::read_to_string("/proc/sys/vm/nr_overcommit_hugepages")
        .is_ok_and(|text| text.trim() == "0");
    if !zero {
        println!("skipped: {test}: the pool may grow by itself (vm.nr_overcommit_hugepages)");
    }
    zero
}

#[test]
fn require_says_how_many_pages_are_missing_and_what_to_run() {
    let test = "require_says_how_many_pages_are_missing_and_what_to_run";
    let Some(pool) = Pool::with(test, 0) else {
        return;
    };
    if !nobody_overcommits(test) {
        return;
    }
    let error = pool.require(3).unwrap_err();
    let configured: u64 = fs::read_to_string(NR_HUGEPAGES)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let command = format!("sysctl -w vm.nr_hugepages={}", configured + 3);
    assert!(
        error.to_string().contains(&format!("`{command}`")),
        "{error}"
    );
    let shortage = shortage(error);
    assert_eq!((shortage.wanted_pages, shortage.free_pages), (3, 0));
    assert_eq!(shortage.page_bytes, pool.page_bytes);
    assert_eq!(shortage.remedy, Remedy::GrowPool { command });
}

#[test]
fn prefer_falls_back_and_tells_why() {
    let test = "prefer_falls_back_and_tells_why";
    let Some(pool) = Pool::with(test, 0) else {
        return;
    };
    if !nobody_overcommits(test) {
        return;
    }
    let memory = HugeMemory::builder("huge", 5000)
        .policy(PagePolicy::Prefer)
        .build()
        .unwrap();
    let normal = rustix::param::page_size();
    let Backing::Normal {
        page_bytes,
        fallback: Some(FallbackReason::Shortage(why)),
    } = memory.backing()
    else {
        panic!("{:?}", memory.backing());
    };
    assert_eq!(*page_bytes, normal);
    assert_eq!(*why, shortage(pool.require(1).unwrap_err()));
    assert!(
        memory.backing().to_string().contains("sysctl -w"),
        "{}",
        memory.backing()
    );
    // Rounded to the pages in use, not to those that were preferred.
    assert_eq!(memory.len(), 5000_usize.next_multiple_of(normal));
    write(&memory, memory.len() - 1, 1);
}

#[test]
fn hugepages_are_allocated_mapped_and_given_back() {
    let test = "hugepages_are_allocated_mapped_and_given_back";
    let Some(pool) = Pool::with(test, 8) else {
        return;
    };
    for policy in [PagePolicy::Require, PagePolicy::Prefer] {
        let bytes = 8 * pool.page_bytes - 5;
        let memory = HugeMemory::builder("huge", bytes)
            .policy(policy)
            .build()
            .unwrap();
        assert_eq!(memory.len(), 8 * pool.page_bytes);
        assert_eq!(
            *memory.backing(),
            Backing::Huge {
                page_bytes: pool.page_bytes
            }
        );
        assert_eq!(memory.smaps_page_bytes().unwrap(), pool.page_bytes);
        memory.verify().unwrap();
        assert_eq!(mapped_bytes(&memory), memory.len());
        assert_eq!(hugepage_pool().unwrap().free, pool.available());
        assert_eq!(pool.available(), 0);
        for page in 0..8 {
            assert_eq!(read(&memory, page * pool.page_bytes), 0);
            write(&memory, page * pool.page_bytes, 1);
        }
        let fd = memory.try_clone_fd().unwrap();
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
        assert_eq!(
            ftruncate(&fd, 16 * pool.page_bytes as u64),
            Err(Errno::PERM)
        );
        drop((memory, fd));
        assert_eq!(pool.available(), 8);
    }
}

#[test]
fn a_failed_attempt_keeps_no_page() {
    let test = "a_failed_attempt_keeps_no_page";
    let Some(pool) = Pool::with(test, 8) else {
        return;
    };
    if !nobody_overcommits(test) {
        return;
    }
    let held = pool.require(3).unwrap();
    let shortage = shortage(pool.require(6).unwrap_err());
    assert_eq!((shortage.wanted_pages, shortage.free_pages), (6, 5));
    assert_eq!(pool.available(), 5);
    drop(held);
    assert_eq!(pool.available(), 8);
}

/// A hugetlb memfd as a peer could make it: sealed, but without a single page.
fn empty_memfd(bytes: usize) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let fd = rustix::fs::memfd_create("peer", flags).unwrap();
    ftruncate(&fd, bytes as u64).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

#[test]
fn a_received_memfd_of_hugepages() {
    let test = "a_received_memfd_of_hugepages";
    let Some(pool) = Pool::with(test, 4) else {
        return;
    };
    let ours = pool.require(4).unwrap();
    let theirs = HugeMemory::adopt_fd(ours.try_clone_fd().unwrap(), 3 * pool.page_bytes + 1);
    let theirs = theirs.unwrap();
    assert_eq!(theirs.len(), 4 * pool.page_bytes);
    assert_eq!(
        *theirs.backing(),
        Backing::Huge {
            page_bytes: pool.page_bytes
        }
    );
    theirs.verify().unwrap();
    assert_eq!(mapped_bytes(&theirs), theirs.len());
    write(&ours, 3 * pool.page_bytes, 5);
    assert_eq!(read(&theirs, 3 * pool.page_bytes), 5);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(
        fallocate(ours.fd(), punch, 0, pool.page_bytes as u64),
        Err(Errno::PERM)
    );
    assert_eq!(ours.seal_for_good().unwrap(), Sealing::Complete);

    if nobody_overcommits(test) {
        let empty = empty_memfd(2 * pool.page_bytes);
        for map in [HugeMemory::map_fd, HugeMemory::adopt_fd] {
            let error = map(empty.try_clone().unwrap(), 2 * pool.page_bytes).unwrap_err();
            let shortage = shortage(error);
            assert_eq!((shortage.wanted_pages, shortage.free_pages), (2, 0));
        }
    }
    drop((ours, theirs));
    assert_eq!(pool.available(), 4);
    let filled = HugeMemory::adopt_fd(empty_memfd(2 * pool.page_bytes), 1).unwrap();
    assert_eq!(mapped_bytes(&filled), pool.page_bytes);
    assert_eq!(pool.available(), 3);
}

#[test]
fn a_forked_child_writes_with_an_empty_pool() {
    let Some(pool) = Pool::with("a_forked_child_writes_with_an_empty_pool", 2) else {
        return;
    };
    let memory = pool.require(2).unwrap();
    assert_eq!(pool.available(), 0);
    write(&memory, 0, 1);
    // SAFETY: the child only writes to memory and exits, which is safe after a fork of a process
    // with threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        write(&memory, 0, 2);
        write(&memory, pool.page_bytes, 3);
        // SAFETY: ends the child at once, running no destructor of the parent's objects.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` lives through the call, and the child is ours.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    assert_eq!((read(&memory, 0), read(&memory, pool.page_bytes)), (2, 3));
    // And the parent after the child.
    write(&memory, pool.page_bytes, 4);
}

#[test]
fn numa_node_of_hugepages() {
    let Some(pool) = Pool::with("numa_node_of_hugepages", 2) else {
        return;
    };
    let build = |node, pages| {
        HugeMemory::builder("numa", pages * pool.page_bytes)
            .policy(PagePolicy::Require)
            .numa_node(Some(node))
            .build()
    };
    match HugepagePool::read(pool.page_bytes, Some(0)) {
        Ok(node) if node.available() == 2 => {}
        other => {
            println!("skipped: numa_node_of_hugepages: pages not on node 0: {other:?}");
            return;
        }
    }
    let memory = build(0, 2).unwrap();
    let start = format!("{:x} ", memory.as_ptr().as_ptr() as usize);
    let numa_maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let entry = numa_maps
        .lines()
        .find(|line| line.starts_with(&start))
        .unwrap();
    assert!(
        entry.contains("bind:0") && entry.contains("N0=2"),
        "{entry}"
    );
    let error = build(0, 1).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("/sys/devices/system/node/node0/hugepages"),
        "{error}"
    );
    assert_eq!(shortage(error).numa_node, Some(0));
}

#[test]
fn gigantic_pages_name_their_own_pool() {
    let test = "gigantic_pages_name_their_own_pool";
    let gib = 1 << 30;
    let default = hugepage_pool().map(|pool| pool.page_bytes);
    if !hugepage_sizes().contains(&gib) || default.is_ok_and(|default| default == gib) {
        println!("skipped: {test}: this kernel has no 1 GiB pages next to the default ones");
        return;
    }
    let pool = HugepagePool::read(gib, None).unwrap();
    let pages = pool.available() + 1;
    let error = HugeMemory::builder("gib", usize::try_from(pages).unwrap() * gib - 1)
        .policy(PagePolicy::Require)
        .page_bytes(Some(gib))
        .build()
        .unwrap_err();
    let target = pool.total + 1;
    let want =
        format!("`echo {target} > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages`");
    assert!(error.to_string().contains(&want), "{error}");
    assert!(error.to_string().contains("hugepages of 1 GiB"), "{error}");
}

/// Runs one of the ignored tests below in another process.
fn child(test: &str, pages: usize) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "--nocapture", test])
        .env(CHILD_PAGES, pages.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

fn child_memory() -> Option<Result<HugeMemory, MemoryError>> {
    let pages: usize = env::var(CHILD_PAGES).ok()?.parse().unwrap();
    let bytes = pages * hugepage_pool().unwrap().page_bytes;
    Some(
        HugeMemory::builder("child", bytes)
            .policy(PagePolicy::Require)
            .build(),
    )
}

#[test]
#[ignore = "runs in a child process of killed_processes_leave_no_page_behind"]
fn child_holds_pages_until_killed() {
    let Some(memory) = child_memory() else { return };
    let memory = memory.unwrap();
    let _other = HugeMemory::map_fd(memory.try_clone_fd().unwrap(), memory.len()).unwrap();
    println!("\nholding");
    // Ends with the parent, whatever happens to it.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn killed_processes_leave_no_page_behind() {
    let Some(pool) = Pool::with("killed_processes_leave_no_page_behind", 32) else {
        return;
    };
    let segments = || fs::read_to_string("/proc/sysvipc/shm").ok();
    let before = segments();
    for _ in 0..10 {
        let mut child = child("child_holds_pages_until_killed", 32).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let holding = lines.map_while(Result::ok).any(|line| line == "holding");
        let while_held = pool.available();
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(holding, "the child did not get its pages");
        assert_eq!(while_held, 0);
        assert_eq!(pool.available(), 32);
        assert_eq!(segments(), before);
    }
}

/// A cgroup that limits hugepages.
struct Cgroup {
    dir: PathBuf,
    /// The file that had to be told about hugetlb, if it had.
    enabled: Option<PathBuf>,
}

impl Cgroup {
    fn limit(pages: usize) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| e.to_string())?;
        let root = mounts
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ').skip(1);
                let dir = words.next()?;
                (words.next()? == "cgroup2").then(|| PathBuf::from(dir))
            })
            .next()
            .ok_or("no cgroup2 is mounted")?;
        let io = |step: &str, result: std::io::Result<()>| {
            result.map_err(|error| format!("{step}: {error}"))
        };
        let control = root.join("cgroup.subtree_control");
        let text = fs::read_to_string(&control).map_err(|error| error.to_string())?;
        let enabled = !text
            .split_whitespace()
            .any(|controller| controller == "hugetlb");
        if enabled {
            io("enabling hugetlb", fs::write(&control, "+hugetlb"))?;
        }
        let dir = root.join(format!("scalerpc-test-{}", std::process::id()));
        let this = Self {
            dir,
            enabled: enabled.then_some(control),
        };
        io("making a cgroup", fs::create_dir(&this.dir))?;
        let file = this.dir.join("hugetlb.2MB.max");
        io(
            "limiting 2 MiB pages",
            fs::write(file, (pages * (2 << 20)).to_string()),
        )?;
        Ok(this)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
        if let Some(control) = &self.enabled {
            let _ = fs::write(control, "-hugetlb");
        }
    }
}

#[test]
#[ignore = "runs in a child process of a_cgroup_limit_is_an_error_and_no_sigbus"]
fn child_runs_into_its_limit() {
    let Some(cgroup) = env::var_os(CHILD_CGROUP) else {
        return;
    };
    fs::write(
        Path::new(&cgroup).join("cgroup.procs"),
        std::process::id().to_string(),
    )
    .unwrap();
    if env::var_os(CHILD_KERNEL).is_some() {
        fail_calls(OLD_KERNEL).unwrap();
    }
    let Some(memory) = child_memory() else { return };
    let error = memory.unwrap_err();
    assert!(error.to_string().contains("hugetlb.2MB.max"), "{error}");
    let shortage = shortage(error);
    assert!(
        matches!(shortage.remedy, Remedy::LiftLimit { .. }),
        "{shortage}"
    );
    // What failed half way gave its pages back: they count against the limit.
    let page_bytes = shortage.page_bytes;
    let memory = HugeMemory::builder("rest", 2 * page_bytes)
        .policy(PagePolicy::Require)
        .build();
    let memory = memory.unwrap();
    write(&memory, page_bytes, 1);
    // A sparse memfd maps without complaint, and would fault at the third page.
    let error = HugeMemory::map_fd(empty_memfd(page_bytes), page_bytes).unwrap_err();
    assert!(
        matches!(error, MemoryError::HugepagesUnavailable(_)),
        "{error}"
    );
}

#[test]
fn a_cgroup_limit_is_an_error_and_no_sigbus() {
    let test = "a_cgroup_limit_is_an_error_and_no_sigbus";
    let Some(pool) = Pool::with(test, 8) else {
        return;
    };
    let cgroup = match Cgroup::limit(2) {
        Ok(cgroup) => cgroup,
        Err(why) => {
            println!("skipped: {test}: {why}");
            return;
        }
    };
    for old_kernel in [false, true] {
        let mut child = child("child_runs_into_its_limit", 4);
        child.env(CHILD_CGROUP, &cgroup.dir);
        if old_kernel {
            child.env(CHILD_KERNEL, "old");
        }
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {text}", output.status);
        assert!(text.contains("1 passed"), "{text}");
        assert_eq!(pool.available(), 8);
    }
}
