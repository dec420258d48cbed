//! The transition table of a zone: every state and every event.

use std::fmt::Write as _;

use scalerpc_core::Memory;
use scalerpc_core::post::{Completion, WcStatus};
use scalerpc_core::server::{ConnState, ZoneState};
use scalerpc_core::wire::FLAG_CONTROL;

use crate::common::raw::head;
use crate::common::{Rig, Setup};
use crate::tables::compare;

/// The seat that has the zone, or would get it.
const SEAT: u32 = 0;
/// Seat of another group, whose demand ends slices.
const OTHER: u32 = 1;

const REVOKE_AFTER_NS: u64 = 1_000_000;
const FENCE_AFTER_NS: u64 = 20_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Free,
    Fetching,
    /// The fetch has outlasted its tenancy.
    FetchingLate,
    /// Fetched, in the pool in warmup.
    Fetched,
    Served,
    /// In quarantine, and the switch event found no room.
    EventOwed,
    Quarantined,
    /// The same where the back end cannot revoke.
    Unrevocable,
    /// In quarantine; a revocation was asked for.
    Revoking,
    /// Its tenant is being fenced while it may write.
    Closing,
    /// Its former tenant is being fenced.
    ClosingQuarantined,
}

const STARTS: [Start; 11] = [
    Start::Free,
    Start::Fetching,
    Start::FetchingLate,
    Start::Fetched,
    Start::Served,
    Start::EventOwed,
    Start::Quarantined,
    Start::Unrevocable,
    Start::Revoking,
    Start::Closing,
    Start::ClosingQuarantined,
];

const EVENTS: [&str; 18] = [
    "entry",
    "entry of another epoch",
    "READ done",
    "READ failed",
    "request",
    "request with flags",
    "slice over",
    "WRITEs done",
    "WRITE failed",
    "quiet word",
    "quiet word of the past",
    "revocation due",
    "revoked",
    "revoked an earlier one",
    "fence due",
    "failed",
    "gone",
    "gone and opened again",
];

fn setup(start: Start) -> Setup {
    let mut setup = Setup::single_groups(2);
    setup.limits.can_revoke = start != Start::Unrevocable;
    setup.revokes = false;
    setup.server.revoke_after_ns = REVOKE_AFTER_NS;
    setup.server.fence_after_ns = FENCE_AFTER_NS;
    if start == Start::EventOwed {
        setup.geometry.window = 8;
        setup.limits.sge_max = 8;
        setup.limits.sq_depth = 4;
    }
    setup
}

/// A server with a zone in this state, and the zone.
fn server_at(start: Start) -> (Rig, u32) {
    let mut rig = Rig::new(setup(start));
    rig.open_raw(SEAT);
    match start {
        // The first zone of the pool in warmup is the one that is given out.
        Start::Free => return (rig, rig_first_zone()),
        Start::Fetching => rig.demand_raw(SEAT),
        Start::FetchingLate => {
            rig.demand_raw(SEAT);
            rig.end_the_slice_for(OTHER);
        }
        Start::Fetched => {
            rig.open_raw(OTHER);
            rig.activate_raw(OTHER);
            rig.demand_raw(SEAT);
            rig.complete_reads(SEAT);
        }
        Start::Served | Start::Closing => rig.activate_raw(SEAT),
        Start::EventOwed => {
            rig.activate_raw(SEAT);
            for number in 2..=8 {
                rig.write_request(SEAT, number, head(3), b"abc");
            }
            rig.serve();
            rig.end_the_slice_for(OTHER);
        }
        Start::Quarantined | Start::Unrevocable | Start::Revoking | Start::ClosingQuarantined => {
            rig.activate_raw(SEAT);
            rig.end_the_slice_for(OTHER);
        }
    }
    if start == Start::Revoking {
        rig.pass(REVOKE_AFTER_NS);
    }
    let zone = rig.zone(SEAT).expect("the seat has a zone");
    if matches!(start, Start::Closing | Start::ClosingQuarantined) {
        rig.server.failed(SEAT);
        rig.serve();
    }
    (rig, zone)
}

/// The pool in warmup is the second one at first.
fn rig_first_zone() -> u32 {
    Rig::new(setup(Start::Free)).geometry.zones()
}

/// The zone's state, as far as this engine tells states apart.
fn state(rig: &Rig, zone: u32) -> Start {
    let view = rig.server.zone(zone).expect("the zone exists");
    let pool = rig.server.pool(zone / rig.geometry.zones());
    let pool = pool.expect("the pool exists");
    let closing = rig.state(view.seat) == ConnState::Closing;
    match (view.state, rig.state(view.seat)) {
        (ZoneState::Free, _) => Start::Free,
        (ZoneState::Mapped, _) if closing => Start::Closing,
        (ZoneState::Mapped, ConnState::Fetching) if pool.epoch == Some(view.epoch) => {
            Start::Fetching
        }
        (ZoneState::Mapped, ConnState::Fetching) => Start::FetchingLate,
        (ZoneState::Mapped, ConnState::Active) if pool.processing => Start::Served,
        (ZoneState::Mapped, ConnState::Active) => Start::Fetched,
        (ZoneState::Quarantined, _) if closing => Start::ClosingQuarantined,
        (ZoneState::Quarantined, _) if view.event_owed => Start::EventOwed,
        (ZoneState::Quarantined, _) if view.tries > 0 => Start::Revoking,
        (ZoneState::Quarantined, _) if !rig.setup.limits.can_revoke => Start::Unrevocable,
        (ZoneState::Quarantined, _) => Start::Quarantined,
        (ZoneState::Mapped, other) => unreachable!("a zone of a connection that is {other:?}"),
    }
}

/// What the tenant does, or what happens to it.
fn happen(rig: &mut Rig, start: Start, zone: u32, event: &str) {
    let ran = rig.served(SEAT).len() as u64;
    let epoch = rig.server.zone(zone).map_or(0, |it| it.epoch);
    // A connection that was not served yet has been told of no tenancy.
    let told = if ran == 0 { 0 } else { epoch };
    let number = if ran == 0 && start == Start::Free {
        1
    } else {
        2
    };
    match event {
        "entry" | "entry of another epoch" => {
            let quiet = if event == "entry" { told } else { told + 7 };
            let entry = rig.entry(ran + 1, 1, quiet);
            rig.write_entry(SEAT, number, entry);
        }
        "READ done" | "READ failed" => end(rig, event == "READ done", true),
        "WRITEs done" | "WRITE failed" => end(rig, event == "WRITEs done", false),
        "request" | "request with flags" => {
            let mut head = head(3);
            head.flags = if event == "request" { 0 } else { FLAG_CONTROL };
            let owner = rig.owners[SEAT as usize];
            rig.write_request_to(zone, owner, ran + 1, head, b"abc");
        }
        "slice over" => rig.end_the_slice_for(OTHER),
        "quiet word" | "quiet word of the past" => {
            let word = if event == "quiet word" { epoch } else { 0 };
            let at = rig.geometry.endpoint(SEAT);
            rig.exposed.region().store_release(at, word);
        }
        // Twice the time, if it was asked for once.
        "revocation due" => rig.pass(2 * REVOKE_AFTER_NS),
        "revoked" => rig.server.revoked(SEAT, epoch),
        "revoked an earlier one" => rig.server.revoked(SEAT, epoch.saturating_sub(1)),
        "fence due" => rig.pass(FENCE_AFTER_NS),
        "failed" => rig.server.failed(SEAT),
        "gone" => rig.server.gone(SEAT),
        "gone and opened again" => {
            rig.server.gone(SEAT);
            rig.open_raw(SEAT);
        }
        other => unreachable!("{other}"),
    }
    rig.serve();
}

/// Ends all READs, or the signaled WRITEs, to the seat.
fn end(rig: &mut Rig, well: bool, reads: bool) {
    let failed = WcStatus::Failed {
        status: 1,
        vendor_err: 0,
    };
    let status = if well { WcStatus::Success } else { failed };
    let mut ids = Vec::new();
    if reads {
        let mine = rig.log.raw_reads.iter().filter(|wr| wr.connection == SEAT);
        ids.extend(mine.map(|wr| wr.wr_id));
        rig.log.raw_reads.retain(|wr| wr.connection != SEAT);
    } else {
        let mine = rig.log.raw_writes.iter();
        ids.extend(
            mine.filter(|wr| wr.connection == SEAT && wr.signaled)
                .map(|wr| wr.wr_id),
        );
    }
    for wr_id in ids {
        rig.server.completed(Completion { wr_id, status });
    }
}

#[test]
fn a_zones_transitions_are_those_of_the_table() {
    let mut table = String::from(
        "# state | event | new state | zones free in its pool | calls run | WRITEs | revocations asked for | freed by | closed\n\
         # Served and what follows it: one call has run; EventOwed: as many as the send queue had room for.\n",
    );
    for start in STARTS {
        for event in EVENTS {
            let (mut rig, zone) = server_at(start);
            assert_eq!(state(&rig, zone), start);
            let before = rig.server.counters();
            let (ran, writes) = (rig.served(SEAT).len(), writes_of(&rig));
            let (asked, closed) = (rig.log.revocations.len(), rig.log.closed.len());
            happen(&mut rig, start, zone, event);
            assert!(rig.server.census().is_ok(), "{start:?}, {event}");
            let counters = rig.server.counters();
            let freed = match () {
                () if counters.zones_quiet > before.zones_quiet => "quiet",
                () if counters.zones_revoked > before.zones_revoked => "revocation",
                () if counters.zones_fenced > before.zones_fenced => "fence",
                () => "-",
            };
            let closed = match rig.log.closed[closed..].iter().find(|it| it.0 == SEAT) {
                Some((_, Some(why))) => format!("{why:?}"),
                Some((_, None)) => "for a failure".into(),
                None => "-".into(),
            };
            let free = rig.server.pool(zone / rig.geometry.zones());
            let free = free.expect("the pool exists").free;
            let ran = rig.served(SEAT).len() - ran;
            let writes = writes_of(&rig) - writes;
            let asked = rig.log.revocations.len() - asked;
            let (start, state) = (format!("{start:?}"), format!("{:?}", state(&rig, zone)));
            writeln!(
                table,
                "{start:<18} | {event:<22} | {state:<18} | {free} | {ran} | {writes} | {asked} | {freed:<10} | {closed}"
            )
            .expect("a string takes it");
        }
    }
    compare("zone.txt", &table);
}

/// WRITEs to the seat: answers and switch events.
fn writes_of(rig: &Rig) -> usize {
    let writes = rig.log.raw_writes.iter();
    writes.filter(|wr| wr.connection == SEAT).count()
}
