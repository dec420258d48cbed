//! Two processors, one for each end, and how quiet they are.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of the clients' and of the server's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpus {
    pub(crate) clients: usize,
    pub(crate) server: usize,
}

impl Cpus {
    /// The first two that this thread may use: so before it is pinned, since threads inherit that.
    pub(crate) fn find() -> Result<Self, Box<dyn Error>> {
        let may = sched_getaffinity(None)?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| may.is_set(cpu));
        match (cpus.next(), cpus.next()) {
            (Some(clients), Some(server)) => Ok(Self { clients, server }),
            _ => Err(
                "a measurement takes two processors, and this process may use one: see taskset(1)"
                    .into(),
            ),
        }
    }
}

/// Keeps the calling thread on a processor.
pub(crate) fn pin(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    // Without it the samples have more spread, which they show.
    let _ = sched_setaffinity(None, &one);
}

/// Begins a thread on the server's processor, and leaves the calling one on that of the clients. A thread that moves
/// itself has to run first where its maker may be spinning.
pub(crate) fn spawn_server<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    cpus: Cpus,
    serve: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    pin(cpus.server);
    let thread = scope.spawn(serve);
    pin(cpus.clients);
    thread
}

/// What the processors call themselves.
pub(crate) fn model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let name = fields.find(|(field, _)| field.trim() == "model name");
    name.map_or("unnamed processors", |(_, name)| name.trim())
        .into()
}

/// For how long the calling thread has wanted to run and could not, in nanoseconds; 0 where the kernel does not say.
pub(crate) fn waited_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1);
    waited.and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// A cache line that one end writes.
#[repr(align(64))]
struct Line(AtomicU64);

/// A message there and back over two cache lines, in nanoseconds: what is far from usual tells of a processor that
/// somebody else has.
pub(crate) fn ping_pong_ns(cpus: Cpus) -> f64 {
    const WARM: u64 = 500;
    const COUNTED: u64 = 3_000;
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let await_number = |line: &Line, number| {
        // Ordering: the lines say nothing but themselves.
        while line.0.load(Ordering::Relaxed) != number {
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        spawn_server(scope, cpus, || {
            for number in 1..=WARM + COUNTED {
                await_number(&there, number);
                back.0.store(number, Ordering::Relaxed);
            }
        });
        let mut begun = Instant::now();
        for number in 1..=WARM + COUNTED {
            there.0.store(number, Ordering::Relaxed);
            await_number(&back, number);
            if number == WARM {
                begun = Instant::now();
            }
        }
        begun.elapsed().as_nanos() as f64 / COUNTED as f64
    })
}
