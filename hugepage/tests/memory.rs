//! Memory in normal pages: sizes, seals, and memfds from other processes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod common;

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    slice,
};

use common::{OLD_KERNEL, Rule, with_failing_calls};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate},
    io::Errno,
};
use scalerpc_hugepage::{
    Backing, HugeMemory, MemoryError, PagePolicy, Sealing, hugepage_pool, seal_for_good,
};

const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn page() -> usize {
    rustix::param::page_size()
}

fn normal(bytes: usize) -> HugeMemory {
    HugeMemory::builder("test", bytes)
        .policy(PagePolicy::Never)
        .build()
        .unwrap()
}

/// A memfd as a peer could make it.
fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("peer", flags).unwrap();
    ftruncate(&fd, bytes as u64).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
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

/// A field of the mapping's entry in smaps, in bytes.
fn smaps_field(memory: &HugeMemory, field: &str) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", memory.as_ptr().as_ptr() as usize);
    let entry = &smaps[smaps.find(&start).unwrap()..];
    let value = entry
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .unwrap();
    value
        .trim_matches([':', ' '])
        .strip_suffix(" kB")
        .unwrap()
        .parse::<usize>()
        .unwrap()
        << 10
}

#[test]
fn new_memory_is_zeroed_whole_pages_that_all_exist() {
    let memory = normal(5 * page() - 7);
    assert_eq!(memory.len(), 5 * page());
    assert_eq!(memory.page_bytes(), page());
    assert_eq!(
        *memory.backing(),
        Backing::Normal {
            page_bytes: page(),
            fallback: None
        }
    );
    assert_eq!(memory.as_ptr().as_ptr() as usize % page(), 0);
    assert_eq!(smaps_field(&memory, "Rss"), memory.len());
    // SAFETY: mapped for `len` bytes, and nobody else has the descriptor.
    let bytes = unsafe { slice::from_raw_parts(memory.as_ptr().as_ptr(), memory.len()) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    memory.verify().unwrap();
    assert_eq!(memory.smaps_page_bytes().unwrap(), page());
}

#[test]
fn every_page_is_allocated_before_it_is_mapped() {
    let memory = normal(9 * page());
    let blocks = rustix::fs::fstat(memory.fd()).unwrap().st_blocks;
    assert_eq!(blocks as usize * 512, memory.len());
}

#[test]
fn impossible_requests_are_typed_errors() {
    for policy in [PagePolicy::Never, PagePolicy::Prefer, PagePolicy::Require] {
        let build = |bytes| {
            HugeMemory::builder("test", bytes)
                .policy(policy)
                .build()
                .unwrap_err()
        };
        assert!(matches!(build(0), MemoryError::ZeroBytes));
        if policy != PagePolicy::Never && hugepage_pool().is_err() {
            println!("skipped: impossible_requests_are_typed_errors: no hugepages ({policy})");
            continue;
        }
        let error = build(usize::MAX);
        assert!(
            matches!(
                error,
                MemoryError::TooLarge {
                    bytes: usize::MAX,
                    ..
                }
            ),
            "{error}"
        );
    }
    let build = |name: &str| {
        HugeMemory::builder(name, 1)
            .policy(PagePolicy::Never)
            .build()
    };
    assert!(matches!(
        build("a\0b").unwrap_err(),
        MemoryError::BadName { .. }
    ));
    assert!(matches!(
        build(&"x".repeat(250)).unwrap_err(),
        MemoryError::BadName { .. }
    ));
    build(&"x".repeat(249)).unwrap();
    for page_bytes in [0, 3 << 20, 1, page()] {
        let error = HugeMemory::builder("test", 1)
            .page_bytes(Some(page_bytes))
            .build();
        assert!(
            matches!(error.unwrap_err(), MemoryError::BadPageBytes { .. }),
            "{page_bytes}"
        );
    }
}

#[test]
fn more_memory_than_there_is_gets_refused_before_any_is_taken() {
    // So that a broken check takes no memory from this machine.
    let rules = [Rule {
        call: libc::SYS_fallocate,
        when: &[],
        errno: libc::EIO,
    }];
    with_failing_calls("more_memory_than_there_is", &rules, || {
        let build = |bytes| {
            HugeMemory::builder("test", bytes)
                .policy(PagePolicy::Never)
                .build()
        };
        for error in [
            build(1 << 46).unwrap_err(),
            HugeMemory::map_fd(memfd(1 << 46, FIXED_SIZE), 1 << 46).unwrap_err(),
        ] {
            let MemoryError::NotEnoughMemory {
                wanted_bytes,
                available_bytes,
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!(wanted_bytes, 1 << 46);
            assert!((1..wanted_bytes).contains(&available_bytes));
        }
        assert!(matches!(
            build(1).unwrap_err(),
            MemoryError::Os {
                step: "fallocate",
                ..
            }
        ));
    });
}

#[test]
fn running_out_on_the_way_is_a_typed_error() {
    for call in [libc::SYS_fallocate, libc::SYS_madvise] {
        let rules = [Rule {
            call,
            when: &[],
            errno: libc::ENOMEM,
        }];
        with_failing_calls("running_out_on_the_way_is_a_typed_error", &rules, || {
            let error = HugeMemory::builder("test", 1)
                .policy(PagePolicy::Never)
                .build()
                .unwrap_err();
            assert!(
                matches!(error, MemoryError::NotEnoughMemory { .. }),
                "{error}"
            );
        });
    }
}

#[test]
fn an_old_kernel_will_do() {
    with_failing_calls("an_old_kernel_will_do", OLD_KERNEL, || {
        let ours = normal(4 * page());
        assert_eq!(smaps_field(&ours, "Rss"), ours.len());
        let theirs = HugeMemory::adopt_fd(ours.try_clone_fd().unwrap(), 4 * page()).unwrap();
        assert_eq!(smaps_field(&theirs, "Rss"), theirs.len());
        for _ in 0..2 {
            assert_eq!(theirs.seal_for_good().unwrap(), Sealing::HolesPossible);
        }
        assert_eq!(
            fcntl_add_seals(ours.fd(), SealFlags::WRITE),
            Err(Errno::PERM)
        );
        assert_eq!(ftruncate(ours.fd(), 0), Err(Errno::PERM));
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(
            seal_for_good(reader).unwrap_err(),
            MemoryError::NotMemfd
        ));
    });
}

#[test]
fn page_sizes_that_the_kernel_lacks() {
    let odd = page() * 2;
    let build = |policy| {
        HugeMemory::builder("test", 1)
            .policy(policy)
            .page_bytes(Some(odd))
            .build()
    };
    let error = build(PagePolicy::Require).unwrap_err();
    assert!(
        matches!(&error, MemoryError::HugepagesUnsupported { page_bytes, .. }
            if *page_bytes == Some(odd)),
        "{error}"
    );
    let memory = build(PagePolicy::Prefer).unwrap();
    assert!(!memory.backing().is_huge());
    assert!(
        memory.backing().to_string().contains(&error.to_string()),
        "{}",
        memory.backing()
    );
}

#[test]
fn nobody_can_resize_the_memory() {
    let memory = normal(4 * page());
    let fd = memory.try_clone_fd().unwrap();
    assert_eq!(ftruncate(&fd, page() as u64), Err(Errno::PERM));
    assert_eq!(ftruncate(&fd, 8 * page() as u64), Err(Errno::PERM));
    // Seals stay open for the receiver, who is to add the last ones.
    fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).unwrap();
}

#[test]
fn a_received_memfd_shares_its_bytes() {
    let ours = normal(3 * page());
    let theirs = HugeMemory::map_fd(ours.try_clone_fd().unwrap(), 2 * page() + 1).unwrap();
    assert_eq!(theirs.len(), 3 * page());
    assert_ne!(theirs.as_ptr(), ours.as_ptr());
    assert_eq!(smaps_field(&theirs, "Rss"), theirs.len());
    write(&ours, 2 * page() + 5, 42);
    assert_eq!(read(&theirs, 2 * page() + 5), 42);
    write(&theirs, 7, 43);
    assert_eq!(read(&ours, 7), 43);
    // Others can map it still.
    HugeMemory::map_fd(ours.try_clone_fd().unwrap(), 1).unwrap();
}

#[test]
fn only_what_was_agreed_is_mapped() {
    let theirs = HugeMemory::map_fd(memfd(1 << 46, FIXED_SIZE), page()).unwrap();
    assert_eq!(theirs.len(), page());
}

#[test]
fn unsealed_memfds_are_refused() {
    let map = |seals| HugeMemory::map_fd(memfd(page(), seals), page()).unwrap_err();
    for (seals, want) in [
        (SealFlags::empty(), "F_SEAL_SHRINK | F_SEAL_GROW"),
        (SealFlags::SHRINK, "F_SEAL_GROW"),
        (SealFlags::GROW, "F_SEAL_SHRINK"),
    ] {
        let error = map(seals);
        assert!(
            matches!(error, MemoryError::NotSealed { missing } if missing == want),
            "{seals:?}: {error}"
        );
    }
}

#[test]
fn memfds_of_a_wrong_size_are_refused() {
    let map = |bytes, expected| HugeMemory::map_fd(memfd(bytes, FIXED_SIZE), expected);
    let error = map(2 * page(), 2 * page() + 1).unwrap_err();
    let (expected, actual) = (3 * page() as u64, 2 * page() as u64);
    assert!(
        matches!(error, MemoryError::TooSmall { expected_bytes, actual_bytes }
            if (expected_bytes, actual_bytes) == (expected, actual)),
        "{error}"
    );
    assert!(matches!(
        map(0, 1).unwrap_err(),
        MemoryError::TooSmall { .. }
    ));
    assert!(matches!(
        map(page() + 1, 1).unwrap_err(),
        MemoryError::NotWholePages { .. }
    ));
    assert!(matches!(
        map(page(), 0).unwrap_err(),
        MemoryError::ZeroBytes
    ));
    assert!(matches!(
        map(page(), usize::MAX).unwrap_err(),
        MemoryError::TooLarge { .. }
    ));
}

#[test]
fn what_is_no_memfd_is_refused() {
    let map = |fd: OwnedFd| HugeMemory::map_fd(fd, 1).unwrap_err();
    let file = tempfile::tempfile().unwrap();
    file.set_len(page() as u64).unwrap();
    let error = map(file.into());
    // A file of tmpfs can be asked for its seals, and has none of these.
    assert!(
        matches!(error, MemoryError::NotMemfd | MemoryError::NotSealed { .. }),
        "{error}"
    );
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(matches!(map(reader), MemoryError::NotMemfd));
    let dir = fs::File::open("/proc/self").unwrap();
    assert!(matches!(map(dir.into()), MemoryError::NotMemfd));
}

#[test]
fn a_read_only_descriptor_is_an_error() {
    let memory = normal(page());
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&memory.fd())
    );
    let fd = fs::File::open(path).unwrap();
    let error = HugeMemory::map_fd(fd.into(), page()).unwrap_err();
    assert!(
        matches!(
            error,
            MemoryError::Os {
                step: "mapping the memfd",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn sealed_for_good_means_no_holes() {
    let ours = normal(4 * page());
    let punch = || fallocate(ours.fd(), PUNCH, 0, page() as u64);
    write(&ours, 0, 1);
    punch().unwrap();
    assert_eq!(read(&ours, 0), 0);
    let theirs = HugeMemory::map_fd(ours.try_clone_fd().unwrap(), 4 * page()).unwrap();
    assert_eq!(theirs.seal_for_good().unwrap(), Sealing::Complete);
    write(&ours, 0, 2);
    assert_eq!(punch(), Err(Errno::PERM));
    assert_eq!(read(&theirs, 0), 2);
    assert_eq!(
        fcntl_add_seals(ours.fd(), SealFlags::WRITE),
        Err(Errno::PERM)
    );
    assert_eq!(seal_for_good(ours.fd()).unwrap(), Sealing::Complete);
    let late = HugeMemory::map_fd(ours.try_clone_fd().unwrap(), 1);
    assert!(late.is_err(), "mapped for writing after the seal");
}

#[test]
fn adopting_fills_what_the_maker_left_out_and_seals() {
    let fd = memfd(4 * page(), FIXED_SIZE);
    let maker = fd.try_clone().unwrap();
    let memory = HugeMemory::adopt_fd(fd, 4 * page()).unwrap();
    assert_eq!(smaps_field(&memory, "Rss"), memory.len());
    assert_eq!(fallocate(&maker, PUNCH, 0, page() as u64), Err(Errno::PERM));
    assert_eq!(ftruncate(&maker, 0), Err(Errno::PERM));
    write(&memory, 3 * page(), 9);
}

#[test]
fn adopting_refuses_locked_seals() {
    let fd = memfd(page(), FIXED_SIZE | SealFlags::SEAL);
    assert!(matches!(
        HugeMemory::adopt_fd(fd, page()).unwrap_err(),
        MemoryError::SealRefused
    ));
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(matches!(
        seal_for_good(reader.as_fd()).unwrap_err(),
        MemoryError::NotMemfd
    ));
}

#[test]
fn memory_outlives_its_maker_while_mapped() {
    let ours = normal(page());
    write(&ours, 1, 77);
    let theirs = HugeMemory::map_fd(ours.try_clone_fd().unwrap(), page()).unwrap();
    drop(ours);
    assert_eq!(read(&theirs, 1), 77);
}

#[test]
fn dropping_unmaps_and_closes() {
    let memory = HugeMemory::builder("test-drop", page())
        .policy(PagePolicy::Never)
        .build();
    let maps = || {
        fs::read_to_string("/proc/self/maps")
            .unwrap()
            .contains("memfd:test-drop")
    };
    let fds = || {
        let links = fs::read_dir("/proc/self/fd").unwrap();
        links
            .filter_map(|link| fs::read_link(link.ok()?.path()).ok())
            .any(|target| target.to_string_lossy().contains("memfd:test-drop"))
    };
    assert!(maps() && fds());
    drop(memory.unwrap());
    assert!(!maps() && !fds());
}

#[test]
fn numa_nodes() {
    let build = |node| {
        HugeMemory::builder("numa", page())
            .policy(PagePolicy::Never)
            .numa_node(Some(node))
            .build()
    };
    let memory = match build(0) {
        Ok(memory) => memory,
        Err(error) => {
            println!("skipped: numa_nodes: {error}");
            return;
        }
    };
    let start = format!("{:x} ", memory.as_ptr().as_ptr() as usize);
    let numa_maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let entry = numa_maps
        .lines()
        .find(|line| line.starts_with(&start))
        .unwrap();
    assert!(entry.contains("prefer:0"), "{entry}");
    for node in [1000, 1024, u32::MAX] {
        let error = build(node).unwrap_err();
        assert!(
            matches!(error, MemoryError::BadNumaNode { node: n } if n == node),
            "{error}"
        );
    }
}
