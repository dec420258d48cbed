//! The data path allocates nothing and makes no system call.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod shm_common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use scalerpc_core::post::{ReadWr, WrId, WrKind};
use scalerpc_core::wire::LINE;
use scalerpc_driver::shm::{ShmClient, ShmServer};
use scalerpc_driver::{Fabric, Opened};
use shm_common::*;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what this thread allocates.
struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Both ends of a link with four connections.
struct Ends {
    server: ShmServer,
    client: ShmClient,
    seats: Vec<Opened>,
}

impl Ends {
    fn new(path: &Path) -> Self {
        let mut server = serve(path, 8);
        let client = connect(path, 4);
        let seats = opened(&mut server, 4);
        Self {
            server,
            client,
            seats,
        }
    }

    /// Everything that happens all the time. Returns the number of completions.
    fn steady(&mut self) -> usize {
        let Self {
            server,
            client,
            seats,
        } = self;
        let geometry = *client.geometry();
        let mut done = 0;
        for round in 0..1000u64 {
            for (connection, opened) in (0..).zip(&*seats) {
                let end = geometry.block_end(0, connection, round);
                let mut wr = write_wr(connection, 0, end - LINE, LINE);
                wr.epoch = Some(round + 1);
                wr.signaled = true;
                client.post_write(&wr).unwrap();
                let entry = write_wr(connection, 0, geometry.endpoint(opened.seat), 8);
                client.post_write(&entry).unwrap();
                let mut wr = write_wr(opened.seat, 0, opened.ring_at, 2 * LINE);
                wr.signaled = true;
                server.post_write(&wr).unwrap();
                let wr_id = WrId::new(WrKind::Read, 0, opened.seat, 0);
                let wr = ReadWr {
                    connection: opened.seat,
                    remote: opened.staging_at,
                    stride: LINE,
                    count: 4,
                    first_call: round,
                    pool: 1,
                    zone: connection,
                    wr_id,
                };
                server.post_read(&wr).unwrap();
            }
            assert_eq!(server.poll_event(), None);
            done += std::iter::from_fn(|| client.poll_completion()).count();
            done += std::iter::from_fn(|| server.poll_completion()).count();
        }
        done
    }
}

#[test]
fn posting_and_polling_allocate_nothing() {
    let (_dir, path) = place();
    let mut ends = Ends::new(&path);
    let before = ALLOCATIONS.get();
    let done = ends.steady();
    assert_eq!(ends.client.poll_event(), None);
    let allocated = ALLOCATIONS.get() - before;
    assert_eq!(allocated, 0);
    assert_eq!(done, 1000 * 4 * 3);
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get() - before, 1, "the counter counts");
}

/// Not a test of its own: plays a role in a child process, if there is one to play.
#[test]
fn child_process() {
    let Some((role, path)) = role() else { return };
    let mut ends = Ends::new(&path);
    static THREAD: AtomicI32 = AtomicI32::new(0);
    static DONE: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(move || {
        THREAD.store(
            rustix::thread::gettid().as_raw_nonzero().get(),
            Ordering::SeqCst,
        );
        // SAFETY: a plain request to the kernel: from here on it ends this thread at any call but read,
        // write and exit.
        let strict = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
        assert_eq!(strict, 0);
        ends.steady();
        if role == "noisy" {
            ends.client.poll_event();
        }
        DONE.store(true, Ordering::SeqCst);
        // SAFETY: ends this thread alone, as nothing else is allowed; what it owns stays in memory.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
    let thread = wait_for("the thread", || {
        Some(THREAD.load(Ordering::SeqCst)).filter(|&t| t > 0)
    });
    let task = format!("/proc/self/task/{thread}");
    wait_for("its end", || (!Path::new(&task).exists()).then_some(()));
    say(if DONE.load(Ordering::SeqCst) {
        "outcome done"
    } else {
        "outcome killed"
    });
    sleep_forever();
}

#[test]
fn posting_and_polling_make_no_system_call() {
    let (_dir, path) = place();
    assert_eq!(child("quiet", &path).line("outcome "), "done");
    assert_eq!(
        child("noisy", &path).line("outcome "),
        "killed",
        "calls are noticed"
    );
}
