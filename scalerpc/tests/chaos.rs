//! Processes that are killed, stopped and closed at any instruction, over shared memory.
//!
//! A server and a witness live through it; whoever else comes is a victim. Every process checks every call,
//! so each answer says that nobody was disturbed; now and then all is brought to rest, and what the
//! server has then must be what it had at first.
//!
//! `SCALERPC_CHAOS_ROUNDS=1000 cargo test --release -p scalerpc --test chaos -- --nocapture` is the long
//! form. `SCALERPC_CHAOS_SEED` chooses the order of the faults; the instruction that a signal hits is up to
//! the kernel.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod chaos {
    pub mod arena;
    pub mod calls;
    pub mod census;
    pub mod client;
    pub mod ledger;
    pub mod process;
    pub mod server;
}

use chaos::arena::{Arena, DECK, Fault};
use chaos::calls::Rng;
use chaos::client::Manner;
use chaos::process::role;
use chaos::{client, server};

/// Faults that are dealt, in the order that the seed makes of them, again and again.
const FAULTS: [Fault; DECK] = [
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::KillFresh,
    Fault::KillFresh,
    Fault::KillStopped,
    Fault::KillStopped,
    Fault::KillAll,
    Fault::Stop,
    Fault::Stop,
    Fault::Stop,
    Fault::StopWriting,
    Fault::StopAll,
    Fault::Close,
    Fault::Close,
    Fault::StopServer,
    Fault::KillServer,
    Fault::KillStoppedServer,
];

/// Hugepages are the machine's, so they are only borrowed for one deck in so many.
const HUGE_EVERY: u64 = 10;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Not a test of its own: plays a role in a child process, if there is one to play.
#[test]
fn child_process() {
    let Some((words, dir)) = role() else { return };
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    match words[0].as_str() {
        "server" => server::play(&dir, number(1), number(2), number(3) == 1),
        "client" => client::play(
            &dir,
            Manner {
                serial: number(1),
                connections: number(2) as u32,
                huge: number(3) == 1,
                patient: number(4) == 1,
                fickle: number(5) == 1,
            },
        ),
        other => panic!("no such role: {other}"),
    }
}

#[test]
fn whoever_is_killed_stopped_or_closed_disturbs_nobody_and_leaves_nothing() {
    if role().is_some() {
        return;
    }
    let rounds = number("SCALERPC_CHAOS_ROUNDS", 60);
    let seed = number("SCALERPC_CHAOS_SEED", 1);
    println!("SCALERPC_CHAOS_ROUNDS={rounds} SCALERPC_CHAOS_SEED={seed}");
    let mut rng = Rng(seed);
    let mut arena = Arena::open(seed);
    let mut left = rounds;
    for deck in 0.. {
        if left == 0 {
            break;
        }
        let huge = deck % HUGE_EVERY == 0 && arena.borrow_hugepages();
        let mut faults = FAULTS;
        for last in (1..DECK).rev() {
            faults.swap(last, rng.below(last as u64 + 1) as usize);
        }
        for fault in faults.into_iter().take(left as usize) {
            arena.round(fault);
            left -= 1;
        }
        arena.quiet();
        if huge {
            arena.return_hugepages();
        }
    }
    arena.close();
}
