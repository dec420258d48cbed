//! The server's transition table for one connection: every state and every event.

use std::fmt::Write as _;

use scalerpc_core::Memory;
use scalerpc_core::post::{Completion, WcStatus};
use scalerpc_core::server::{ConnState, OpenConn};
use scalerpc_core::wire::{Entry, FLAG_CONTROL};

use crate::common::raw::head;
use crate::common::{Rig, Setup};
use crate::tables::compare;

/// The seat that the table is about; seat 1, in another group, makes the demand that ends its slices.
const SEAT: u32 = 0;
const OTHER: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Free,
    Idle,
    Waiting,
    Fetching,
    Active,
    Leaving,
    Closing,
}

const STARTS: [Start; 7] = [
    Start::Free,
    Start::Idle,
    Start::Waiting,
    Start::Fetching,
    Start::Active,
    Start::Leaving,
    Start::Closing,
];

const EVENTS: [&str; 17] = [
    "open",
    "entry",
    "entry with wrong calls",
    "entry of the past",
    "READ done",
    "READ failed",
    "completion of a former tenant",
    "request",
    "request with flags",
    "slice over",
    "quiet word",
    "quiet word of the past",
    "revoked",
    "revoked an earlier one",
    "failed",
    "left",
    "gone",
];

/// A server whose seat 0 is in this state.
fn server_at(start: Start) -> Rig {
    let mut setup = Setup::single_groups(2);
    setup.limits.can_revoke = true;
    setup.revokes = false;
    setup.server.revoke_after_ns = 1_000_000;
    let mut rig = Rig::new(setup);
    if start == Start::Free {
        return rig;
    }
    // A former tenant, whose work requests may still complete.
    rig.open_raw(SEAT);
    rig.server.gone(SEAT);
    rig.open_raw(SEAT);
    match start {
        Start::Free | Start::Idle => {}
        Start::Waiting => {
            // The other one's fetch has the pool that is in warmup.
            rig.open_raw(OTHER);
            rig.demand_raw(OTHER);
            rig.demand_raw(SEAT);
        }
        Start::Fetching => rig.demand_raw(SEAT),
        Start::Active => rig.activate_raw(SEAT),
        Start::Leaving => {
            rig.activate_raw(SEAT);
            rig.end_the_slice_for(OTHER);
        }
        Start::Closing => {
            rig.server.failed(SEAT);
            rig.serve();
        }
    }
    let state = match start {
        Start::Free => ConnState::Free,
        Start::Idle | Start::Waiting => ConnState::Idle,
        Start::Fetching => ConnState::Fetching,
        Start::Active => ConnState::Active,
        Start::Leaving => ConnState::Leaving,
        Start::Closing => ConnState::Closing,
    };
    assert_eq!(rig.state(SEAT), state);
    rig
}

fn happen(rig: &mut Rig, start: Start, event: &str) -> String {
    // In these two states one entry was taken, with one call that ran in epoch 1.
    let again = matches!(start, Start::Active | Start::Leaving);
    let entry = match again {
        true => rig.entry(2, 1, 1),
        false => rig.entry(1, 1, 0),
    };
    let number = if again { 2 } else { 1 };
    let mut outcome = "-";
    match event {
        "open" => {
            let opened = rig.server.open(OpenConn {
                seat: SEAT,
                owner: 9,
                ring_at: 0,
                staging_at: 0,
                placement: scalerpc_core::wire::Placement::InOrder,
            });
            outcome = if opened { "opened" } else { "taken" };
        }
        "entry" => rig.write_entry(SEAT, number, entry),
        "entry with wrong calls" => {
            let first_call = entry.first_call + 1;
            rig.write_entry(
                SEAT,
                number,
                Entry {
                    first_call,
                    ..entry
                },
            );
        }
        "entry of the past" => rig.write_entry(SEAT, number - 1, entry),
        "READ done" | "READ failed" => outcome = end_read(rig, event == "READ done"),
        "completion of a former tenant" => {
            let wr_id =
                scalerpc_core::post::WrId::new(scalerpc_core::post::WrKind::Read, 1, SEAT, 1);
            let status = WcStatus::Flushed;
            rig.server.completed(Completion { wr_id, status });
        }
        "request" | "request with flags" => {
            let mut head = head(3);
            head.flags = if event == "request" { 0 } else { FLAG_CONTROL };
            match rig.zone(SEAT) {
                Some(_) => rig.write_request(SEAT, number, head, b"abc"),
                None => outcome = "no zone",
            }
        }
        "slice over" => rig.end_the_slice_for(OTHER),
        "quiet word" | "quiet word of the past" => {
            let word = if event == "quiet word" { 1 } else { 0 };
            let at = rig.geometry.endpoint(SEAT);
            rig.exposed.region().store_release(at, word);
        }
        "revoked" => rig.server.revoked(SEAT, 1),
        "revoked an earlier one" => rig.server.revoked(SEAT, 0),
        "failed" => rig.server.failed(SEAT),
        "left" => drop(rig.server.left(SEAT)),
        "gone" => rig.server.gone(SEAT),
        other => unreachable!("{other}"),
    }
    outcome.into()
}

fn end_read(rig: &mut Rig, well: bool) -> &'static str {
    let mut reads = rig.log.raw_reads.iter();
    let Some(at) = reads.position(|wr| wr.connection == SEAT) else {
        return "no READ";
    };
    let wr_id = rig.log.raw_reads.remove(at).wr_id;
    let failed = WcStatus::Failed {
        status: 1,
        vendor_err: 0,
    };
    let status = if well { WcStatus::Success } else { failed };
    rig.server.completed(Completion { wr_id, status });
    "-"
}

#[test]
fn the_servers_transitions_are_those_of_the_table() {
    let mut table = String::from(
        "# state | event | outcome | new state | has a zone | calls run | READs | WRITEs | closed\n\
         # Waiting is Idle with demand. Active and Leaving: one call has run, in epoch 1.\n",
    );
    for start in STARTS {
        for event in EVENTS {
            let mut rig = server_at(start);
            let (reads, writes) = (reads_of(&rig), writes_of(&rig));
            let (ran, closed) = (rig.served(SEAT).len(), rig.log.closed.len());
            let outcome = happen(&mut rig, start, event);
            rig.serve();
            let closed = match rig.log.closed[closed..].iter().find(|it| it.0 == SEAT) {
                Some((_, Some(why))) => format!("{why:?}"),
                Some((_, None)) if rig.server.counters().failures == 0 => "for it has left".into(),
                Some((_, None)) => "for a failure".into(),
                None => "-".into(),
            };
            let start = format!("{start:?}");
            let state = format!("{:?}", rig.state(SEAT));
            let zone = if rig.zone(SEAT).is_some() {
                "zone"
            } else {
                "-"
            };
            let ran = rig.served(SEAT).len() - ran;
            let reads = rig.server.counters().warmup_reads - reads;
            let writes = writes_of(&rig) - writes;
            writeln!(
                table,
                "{start:<8} | {event:<29} | {outcome:<7} | {state:<8} | {zone:<4} | {ran} | {reads} | {writes} | {closed}"
            )
            .expect("a string takes it");
        }
    }
    compare("server.txt", &table);
}

fn reads_of(rig: &Rig) -> u64 {
    rig.server.counters().warmup_reads
}

/// WRITEs to the seat: answers and switch events.
fn writes_of(rig: &Rig) -> usize {
    let mut writes = rig.log.raw_writes.iter();
    writes.by_ref().filter(|wr| wr.connection == SEAT).count()
}
