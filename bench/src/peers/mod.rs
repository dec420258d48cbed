//! What is measured: ways to send a request to another thread and to get its answer.

mod child;
mod fabric;
mod floor;
mod ours;
mod rings;

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use scalerpc::Mapping;
use serde::Serialize;

use crate::cpus::{Cpus, spawn_server, waited_ns};

/// Sizes of a message, in bytes.
pub(crate) const SIZES: [u32; 5] = [32, 64, 256, 1024, 4096];
/// Programs, in the folder for them.
const UCX: &str = "ucx_am";
const ICEORYX2: &str = "iceoryx2/release/peer-iceoryx2";
/// What messages are made of.
const BYTE: u8 = 7;

/// What the clients' thread keeps going: requests of `size` bytes, whose answers are as long, `window` of them
/// outstanding on each connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize)]
pub(crate) struct Load {
    pub(crate) size: u32,
    pub(crate) window: u32,
    pub(crate) connections: u32,
}

impl Load {
    pub(crate) const fn new(size: u32, window: u32, connections: u32) -> Self {
        Self {
            size,
            window,
            connections,
        }
    }

    pub(crate) fn outstanding(self) -> u32 {
        self.window * self.connections
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.size, self.window, self.connections)
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let said = || {
            format!(
                "{text} is not SIZExWINDOWxCONNECTIONS, as 32x16x64, with a size of {SIZES:?}, a window of up to 64 and \
                 up to 4000 connections"
            )
        };
        let numbers: Vec<u32> = text
            .split('x')
            .map(|it| it.parse().map_err(|_| said()))
            .collect::<Result<_, _>>()?;
        match numbers[..] {
            [size, window @ 1..=64, connections @ 1..=4000] if SIZES.contains(&size) => {
                Ok(Self::new(size, window, connections))
            }
            _ => Err(said()),
        }
    }
}

/// A way to do it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Peer {
    /// No library.
    Floor,
    /// The same, with stores that go around the caches.
    Stream,
    /// As it is by default.
    Ours,
    /// With a zone of its own for each connection, and without groups.
    Static,
    Ucx,
    Iceoryx2,
    Rtrb,
    Fabric,
}

impl Peer {
    pub(crate) const ALL: [Self; 8] = [
        Self::Floor,
        Self::Stream,
        Self::Ours,
        Self::Static,
        Self::Ucx,
        Self::Iceoryx2,
        Self::Rtrb,
        Self::Fabric,
    ];

    /// As in `--peers` and in the JSON.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Stream => "stream",
            Self::Ours => "ours",
            Self::Static => "static",
            Self::Ucx => "ucx",
            Self::Iceoryx2 => "iceoryx2",
            Self::Rtrb => "rtrb",
            Self::Fabric => "fabric",
        }
    }

    /// What a reader sees.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor: slots read in place",
            Self::Stream => "floor, stores around caches",
            Self::Ours => "scalerpc",
            Self::Static => "scalerpc, static mapping",
            Self::Ucx => "UCX active messages",
            Self::Iceoryx2 => "iceoryx2 request-response",
            Self::Rtrb => "two rtrb rings",
            Self::Fabric => "libfabric fi_pingpong",
        }
    }

    /// How many connections it is measured with at most.
    pub(crate) fn connections_max(self) -> u32 {
        match self {
            // It gets slower with each of them, and takes a file for each, too.
            Self::Iceoryx2 => 64,
            Self::Fabric => 1,
            _ => 4_000,
        }
    }

    /// True if it is measured under this load.
    pub(crate) fn does(self, load: Load) -> bool {
        let able = match self {
            // With one connection there is nothing to tell them apart.
            Self::Static => load.connections > 1,
            // A line that is written in part is no case for it.
            Self::Stream => floor::CAN_STREAM && load.size >= 1024,
            Self::Fabric => load.window == 1,
            _ => true,
        };
        able && load.connections <= self.connections_max()
    }

    /// How to get it, where it is missing.
    fn how(self) -> &'static str {
        match self {
            Self::Ucx => "run bench/peers/get-ucx.sh",
            Self::Iceoryx2 => {
                "run cargo build --release --manifest-path bench/peers/iceoryx2/Cargo.toml --target-dir target/peers/iceoryx2"
            }
            Self::Fabric => "install fi_pingpong (Debian: libfabric-bin)",
            Self::Floor | Self::Stream | Self::Ours | Self::Static | Self::Rtrb => {
                "it is part of this program"
            }
        }
    }

    /// Makes both ends, and begins.
    pub(crate) fn start(
        self,
        load: Load,
        cpus: Cpus,
        programs: &Path,
    ) -> Result<Box<dyn Runner>, Box<dyn Error>> {
        let program = |name: &str| child::Program::start(&programs.join(name), load, cpus);
        let started: Result<Box<dyn Runner>, Box<dyn Error>> = match self {
            Self::Floor => floor::start::<false>(load, cpus),
            Self::Stream => floor::start::<true>(load, cpus),
            Self::Ours => ours::Ours::start(load, Mapping::Virtual, cpus).map(boxed),
            Self::Static => ours::Ours::start(load, Mapping::Static, cpus).map(boxed),
            Self::Ucx => program(UCX).map(boxed),
            Self::Iceoryx2 => program(ICEORYX2).map(boxed),
            Self::Rtrb => rings::Rings::start(load, cpus).map(boxed),
            Self::Fabric => fabric::PingPong::start(load, cpus).map(boxed),
        };
        started.map_err(|why| format!("{why}; {}", self.how()).into())
    }
}

fn boxed(runner: impl Runner + 'static) -> Box<dyn Runner> {
    Box::new(runner)
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ids = Self::ALL.map(Self::id).join(", ");
        let found = Self::ALL.into_iter().find(|peer| peer.id() == text);
        found.ok_or_else(|| format!("no peer is called {text}: there are {ids}"))
    }
}

/// What a peer did while it had its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Requests that were answered.
    pub(crate) operations: u64,
    pub(crate) time_ns: u64,
    /// For how long its threads wanted to run and could not.
    pub(crate) waited_ns: u64,
}

/// Both ends of a peer. They do nothing, and take no processor, but in `run`.
pub(crate) trait Runner {
    /// Runs for some time uncounted, and then for so long.
    fn run(&mut self, warm: Duration, time: Duration) -> Result<Sample, Box<dyn Error>>;
}

/// What anybody may take to begin, or more than a turn to end it.
const PATIENCE: Duration = Duration::from_secs(20);

/// What one end writes, in lines of its own: also those that processors fetch in pairs.
#[repr(align(128))]
struct Apart<T>(T);

/// Lets both ends of a peer that is in this process look for messages: the server on a thread of its own, the clients,
/// which tell how many requests were answered, on this one. A look should be worth some microseconds, so that those at
/// the clock cost little.
fn take_turn(
    cpus: Cpus,
    [warm, time]: [Duration; 2],
    mut serve: impl FnMut() + Send,
    mut call: impl FnMut() -> Result<u64, Box<dyn Error>>,
) -> Result<Sample, Box<dyn Error>> {
    /// Ends the server's loop, however the clients' one ends.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            // Ordering: it says nothing but itself, here and at the other end.
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let Apart(stopped) = &Apart(AtomicBool::new(false));
    thread::scope(|scope| {
        let stop = Stop(stopped);
        let server = spawn_server(scope, cpus, move || {
            let waited = waited_ns();
            while !stopped.load(Ordering::Relaxed) {
                serve();
            }
            waited_ns() - waited
        });
        let mut run = |time: Duration| -> Result<(u64, u64), Box<dyn Error>> {
            let (begun, mut operations) = (Instant::now(), 0);
            loop {
                operations += call()?;
                let passed = begun.elapsed();
                // Where others have the processors, the first answer may take longer than the turn.
                if passed >= time && operations > 0 {
                    return Ok((operations, passed.as_nanos() as u64));
                } else if passed >= time + PATIENCE {
                    return Err("nothing was answered".into());
                }
            }
        };
        run(warm)?;
        let waited = waited_ns();
        let (operations, time_ns) = run(time)?;
        let waited = waited_ns() - waited;
        drop(stop);
        let others = server.join().map_err(|_| "the server's thread panicked")?;
        Ok(Sample {
            operations,
            time_ns,
            waited_ns: waited + others,
        })
    })
}

/// An error unless an answer is what was asked.
fn check(answer: &[u8], load: Load) -> Result<(), Box<dyn Error>> {
    let ends = [answer.first(), answer.last()];
    if answer.len() == load.size as usize && ends == [Some(&BYTE); 2] {
        Ok(())
    } else {
        Err(format!(
            "an answer of {} bytes that begins and ends with {ends:?}, to a request of {} bytes of {BYTE}",
            answer.len(),
            load.size
        )
        .into())
    }
}
