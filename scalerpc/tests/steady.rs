//! Rule R9: the steady state allocates nothing and makes no system call, on either side.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use scalerpc::{ClientSet, Request, Server, Status};

/// Counts what the threads that ask for it allocate.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if COUNTED.with(Cell::get) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONNECTIONS: u32 = 12;
const WARM_CALLS: u64 = 5_000;
const CALLS: u64 = 100_000;

static WARM: AtomicBool = AtomicBool::new(false);
static CLIENT_DONE: AtomicBool = AtomicBool::new(false);
static SERVER_DONE: AtomicBool = AtomicBool::new(false);
static SWITCHES: AtomicU64 = AtomicU64::new(0);

/// From here on the kernel kills this thread at any system call but read, write and exit.
fn forbid_system_calls() {
    COUNTED.with(|counted| counted.set(true));
    // SAFETY: takes no pointers; it changes what this thread may do from here on.
    let outcome = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
    assert_eq!(outcome, 0, "seccomp");
}

/// Ends this thread with the only call that it has left.
fn exit_thread() -> ! {
    // SAFETY: ends the thread at once; nothing that it owns is used by others.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}

/// What the handler does that it should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breach {
    None,
    SystemCall,
    Allocation,
}

fn serve(mut server: Server, breach: Breach) -> ! {
    let mut now_ns = 0;
    let mut strict = false;
    let mut handler = |request: Request<'_>, response: &mut [u8]| -> Result<usize, Status> {
        match breach {
            Breach::None => {}
            // SAFETY: takes nothing, and always succeeds.
            Breach::SystemCall => drop(unsafe { libc::getppid() }),
            Breach::Allocation => drop(std::hint::black_box(Box::new(request.seat))),
        }
        response[..request.bytes.len()].copy_from_slice(request.bytes);
        Ok(request.bytes.len())
    };
    while !CLIENT_DONE.load(Ordering::Relaxed) {
        // Not the system's clock, which may be a system call on some machines.
        now_ns += 200;
        server.poll(now_ns, &mut handler);
        if !strict && WARM.load(Ordering::Relaxed) {
            strict = true;
            SWITCHES.store(server.counters().switches, Ordering::Relaxed);
            forbid_system_calls();
        }
    }
    SWITCHES.store(
        server.counters().switches - SWITCHES.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    SERVER_DONE.store(true, Ordering::Relaxed);
    exit_thread()
}

fn call(mut set: ClientSet) -> ! {
    let (mut ended, mut sent) = (0, 0);
    let request = [7; 40];
    while ended < WARM_CALLS + CALLS {
        for connection in 0..CONNECTIONS {
            while set.call_async(connection, 1, &request).is_ok() {
                sent += 1;
            }
        }
        while let Some(completion) = set.poll_completion() {
            assert_eq!(completion.result, Ok(&request[..]));
            ended += 1;
        }
        if ended >= WARM_CALLS && !WARM.load(Ordering::Relaxed) {
            WARM.store(true, Ordering::Relaxed);
            forbid_system_calls();
        }
    }
    assert!(sent >= ended);
    CLIENT_DONE.store(true, Ordering::Relaxed);
    exit_thread()
}

/// The whole experiment, in a process of its own. Exits with 0 if nothing was allocated and both threads
/// lived to the end.
fn experiment(breach: Breach) -> ! {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let server = Server::builder()
        .clients_max(CONNECTIONS)
        .group_size(4)
        .window(4)
        // A client that is merely slow is not to be revoked: that takes a system call.
        .revoke_after(Duration::MAX)
        .listen(&path)
        .unwrap();
    std::thread::spawn(move || serve(server, breach));
    let mut set = ClientSet::connect(&path, CONNECTIONS).unwrap();
    set.set_polls_per_check(u32::MAX);
    drop(dir);
    std::thread::spawn(move || call(set));
    let start = Instant::now();
    while !(CLIENT_DONE.load(Ordering::Relaxed) && SERVER_DONE.load(Ordering::Relaxed)) {
        if start.elapsed() > Duration::from_secs(if breach == Breach::SystemCall { 5 } else { 240 })
        {
            std::process::exit(3);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    let switches = SWITCHES.load(Ordering::Relaxed);
    println!("{allocations} allocations, {switches} switches");
    std::process::exit(if allocations == 0 && switches > 0 {
        0
    } else {
        4
    });
}

fn run(mode: &str) -> Option<i32> {
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program)
        .args(["--exact", "the_experiment_itself", "--nocapture"])
        .env("SCALERPC_STEADY", mode)
        .status()
        .unwrap();
    status.code()
}

/// Does nothing unless the tests below start it.
#[test]
fn the_experiment_itself() {
    match std::env::var("SCALERPC_STEADY").as_deref() {
        Ok("clean") => experiment(Breach::None),
        Ok("system call") => experiment(Breach::SystemCall),
        Ok("allocation") => experiment(Breach::Allocation),
        _ => {}
    }
}

#[test]
fn a_hundred_thousand_calls_over_three_groups_neither_allocate_nor_call_the_kernel() {
    assert_eq!(
        run("clean"),
        Some(0),
        "3: a thread was killed at a system call; 4: allocations"
    );
}

#[test]
fn the_experiment_notices_system_calls_and_allocations() {
    assert_eq!(run("system call"), Some(3));
    assert_eq!(run("allocation"), Some(4));
}
