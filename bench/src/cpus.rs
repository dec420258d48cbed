//! Two processors, one for each end, and how quiet they are.

use std::error::Error;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

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

/// How far the two cores are from each other. Hosts move a virtual machine from one to the other at times, and all ratios
/// are others then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distance {
    /// They share a cache: 100 to 130 ns where it was measured
    Near,
    /// They do not, or it is a slow one: 280 to 520 ns where it was measured
    Far,
}

impl Distance {
    pub(crate) const ALL: [Self; 2] = [Self::Near, Self::Far];

    /// What a [`ping_pong_ns`] takes. Above is a processor that somebody else has.
    pub(crate) fn ping_pong_ns(self) -> Range<f64> {
        match self {
            Self::Near => 60.0..200.0,
            Self::Far => 200.0..600.0,
        }
    }
}

/// Whether the processors are two cores: two threads of one core share its units, and so does who has it besides.
pub(crate) fn are_two_cores(cpus: Cpus) -> bool {
    /// Of what each does alone, two cores do all at the same time, and two threads of one core about half.
    const PART: f64 = 0.8;
    let barrier = Barrier::new(2);
    // Each by itself: they may be of two kinds.
    let pace_at = |server: bool| {
        let turns = [false, true].map(|turn| {
            barrier.wait();
            if turn == server { pace() } else { 0.0 }
        });
        barrier.wait();
        pace() >= PART * turns[usize::from(server)]
    };
    thread::scope(|scope| {
        let server = spawn_server(scope, cpus, || pace_at(true));
        let clients = pace_at(false);
        server.join().is_ok_and(|server| server && clients)
    })
}

/// What the calling thread computes in a nanosecond: as many steps at once as a core has units for.
fn pace() -> f64 {
    const STEPS: u64 = 2_000;
    const TIME: Duration = Duration::from_millis(2);
    let mut words: [u64; 8] = black_box([1, 2, 3, 4, 5, 6, 7, 8]);
    let (begun, mut steps) = (Instant::now(), 0);
    loop {
        for _ in 0..STEPS {
            for word in &mut words {
                *word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (*word >> 7);
            }
        }
        words = black_box(words);
        steps += STEPS;
        let passed = begun.elapsed();
        if passed >= TIME {
            return steps as f64 / passed.as_nanos() as f64;
        }
    }
}

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
