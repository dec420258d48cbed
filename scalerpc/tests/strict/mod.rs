//! An experiment in a process of its own: after a while, threads may neither allocate nor call the kernel.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use scalerpc::observe::{SNAPSHOT, SnapshotReader};
use scalerpc::{ClientSet, Later, Reply, Request, Server, ServerBuilder};
use scalerpc_driver::Fabric;

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

/// Connections of an experiment, in three groups.
pub const CONNECTIONS: u32 = 12;

static WARM: AtomicBool = AtomicBool::new(false);
static CLIENT_DONE: AtomicBool = AtomicBool::new(false);
static SERVER_DONE: AtomicBool = AtomicBool::new(false);
static SWITCHES: AtomicU64 = AtomicU64::new(0);
/// Calls that were answered later.
static LATER: AtomicU64 = AtomicU64::new(0);

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
pub enum Breach {
    None,
    SystemCall,
    Allocation,
}

fn serve<F: Fabric>(mut server: Server<F>, breach: Breach) -> ! {
    let mut now_ns = 0;
    let mut strict = false;
    // Every fourth call is kept until the next one of these.
    let (mut calls, mut kept) = (0_u32, None::<Later>);
    let mut handler = |request: Request<'_>, response: &mut [u8]| -> Reply {
        match breach {
            Breach::None => {}
            // SAFETY: takes nothing, and always succeeds.
            Breach::SystemCall => drop(unsafe { libc::getppid() }),
            Breach::Allocation => drop(std::hint::black_box(Box::new(request.seat))),
        }
        calls += 1;
        if calls % 4 == 0 {
            if let Some((later, postponed)) = request.later() {
                if let Some(mut before) = kept.replace(later) {
                    let (request, response) = before.parts();
                    let len = request.len();
                    response[..len].copy_from_slice(request);
                    before.answer(len);
                    LATER.fetch_add(1, Ordering::Relaxed);
                }
                return postponed.into();
            }
        }
        response[..request.bytes.len()].copy_from_slice(request.bytes);
        Reply::Done(request.bytes.len())
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

fn call<F: Fabric>(mut set: ClientSet<F>, calls: u64) -> ! {
    let warm_calls = calls / 20;
    let (mut ended, mut sent) = (0, 0);
    let request = [7; 40];
    // Now and then somebody asks what the server is doing.
    let page = SnapshotReader::new().request().unwrap();
    while ended < warm_calls + calls {
        for connection in 0..CONNECTIONS {
            while match sent % 64 {
                0 => set.call_async(connection, SNAPSHOT, &page),
                _ => set.call_async(connection, 1, &request),
            }
            .is_ok()
            {
                sent += 1;
            }
        }
        while let Some(completion) = set.poll_completion() {
            let answer = completion.result.unwrap();
            assert!(answer == request || answer.starts_with(&page[..2]));
            ended += 1;
        }
        if ended >= warm_calls && !WARM.load(Ordering::Relaxed) {
            WARM.store(true, Ordering::Relaxed);
            forbid_system_calls();
        }
    }
    assert!(sent >= ended);
    CLIENT_DONE.store(true, Ordering::Relaxed);
    exit_thread()
}

/// What a server of an experiment is made from.
pub fn builder() -> ServerBuilder {
    Server::builder()
        .clients_max(CONNECTIONS)
        .group_size(4)
        .window(4)
        .deferred_max(4)
        // A hundred rounds by the clock of `serve`: short enough for many switches.
        .time_slice(Duration::from_micros(20))
        // A client that is merely slow is neither to be revoked nor fenced: that takes a system call.
        .revoke_after(Duration::MAX)
        .fence_after(Duration::MAX)
}

/// The whole experiment, in a process of its own. Exits with 0 if nothing was allocated and both threads
/// lived to the end.
pub fn experiment<S, C>(server: Server<S>, mut set: ClientSet<C>, calls: u64, breach: Breach) -> !
where
    S: Fabric + Send + 'static,
    C: Fabric + Send + 'static,
{
    set.set_polls_per_check(u32::MAX);
    std::thread::spawn(move || serve(server, breach));
    std::thread::spawn(move || call(set, calls));
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
    let later = LATER.load(Ordering::Relaxed);
    println!("{allocations} allocations, {switches} switches, {later} calls answered later");
    std::process::exit(if allocations == 0 && switches > 0 && later > calls / 10 {
        0
    } else {
        4
    });
}

/// Runs this test binary again, with that test and in that mode; its exit code.
pub fn run(test: &str, mode: &str) -> Option<i32> {
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program)
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(MODE, mode)
        .status()
        .unwrap();
    status.code()
}

const MODE: &str = "SCALERPC_STEADY";

/// What this process is to do, if [`run`] has started it.
pub fn mode() -> Option<Breach> {
    match std::env::var(MODE).as_deref() {
        Ok("clean") => Some(Breach::None),
        Ok("system call") => Some(Breach::SystemCall),
        Ok("allocation") => Some(Breach::Allocation),
        _ => None,
    }
}
