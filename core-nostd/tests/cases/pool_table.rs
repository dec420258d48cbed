//! The transition table of the two pools, which swap their roles: every pair of phases and every event.

use std::fmt::Write as _;

use scalerpc_core::Memory;
use scalerpc_core::post::{Completion, WcStatus};
use scalerpc_core::server::{ConnState, ZoneState};

use crate::common::raw::head;
use crate::common::{Rig, Setup};
use crate::tables::compare;

/// Two groups of two: seats 0 and 1, seats 2 and 3.
const SEATS: u32 = 4;

/// What the pool that is processed and the pool in warmup are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Nobody's, nobody's.
    EmptyEmpty,
    EmptyFetching,
    /// A group is served, and no other wants to be.
    ServingEmpty,
    /// Another group has the pool in warmup, and who had demand in it is gone.
    ServingChosen,
    ServingFetching,
    ServingReady,
    /// One of the group that is served is about to join, and the others are gone.
    JoiningEmpty,
    JoiningFetching,
    /// The group that is served has nobody left who is.
    ForsakenEmpty,
    /// A fetch has outlasted its tenancy: another group is served in its pool.
    ServingEmptyLate,
    /// The group that is served has been told in part that its slice is over.
    DrainingReady,
    /// The same, and who was to be served next is gone.
    DrainingChosen,
}

const STARTS: [Start; 12] = [
    Start::EmptyEmpty,
    Start::EmptyFetching,
    Start::ServingEmpty,
    Start::ServingChosen,
    Start::ServingFetching,
    Start::ServingReady,
    Start::JoiningEmpty,
    Start::JoiningFetching,
    Start::ForsakenEmpty,
    Start::ServingEmptyLate,
    Start::DrainingReady,
    Start::DrainingChosen,
];

const EVENTS: [&str; 14] = [
    "nothing",
    "demand in the first group",
    "demand in the second group",
    "READs done",
    "READs done of the second group",
    "READs failed",
    "requests of the first group",
    "nothing has come for a while",
    "the slice is over",
    "all former tenants are quiet",
    "seat 0 is gone",
    "the first group is gone",
    "the second group is gone",
    "all are gone",
];

fn rig() -> Rig {
    let mut setup = Setup::default();
    setup.geometry.clients_max = SEATS;
    setup.geometry.group_size = 2;
    setup.server.idle_switch_ns = 20_000;
    setup.server.fence_after_ns = u64::MAX;
    let mut rig = Rig::new(setup);
    for seat in 0..SEATS {
        rig.open_raw(seat);
    }
    rig
}

fn server_at(start: Start) -> Rig {
    let mut rig = rig();
    match start {
        Start::EmptyEmpty => {}
        Start::EmptyFetching => rig.demand_raw(0),
        Start::ServingEmpty => serve_first_group(&mut rig),
        Start::ServingChosen => {
            serve_first_group(&mut rig);
            rig.demand_raw(2);
            rig.server.gone(2);
        }
        Start::ServingFetching => {
            serve_first_group(&mut rig);
            rig.demand_raw(2);
        }
        Start::ServingReady => {
            serve_first_group(&mut rig);
            rig.demand_raw(2);
            rig.complete_reads(2);
        }
        Start::JoiningEmpty | Start::JoiningFetching => {
            rig.activate_raw(0);
            rig.demand_raw(1);
            rig.server.gone(0);
            if start == Start::JoiningFetching {
                rig.demand_raw(2);
            }
        }
        Start::ForsakenEmpty => {
            rig.activate_raw(0);
            rig.server.gone(0);
            rig.serve();
        }
        Start::ServingEmptyLate => {
            rig.demand_raw(2);
            rig.now_ns += rig.setup.server.time_slice_ns;
            rig.demand_raw(0);
            rig.complete_reads(0);
            rig.serve();
        }
        Start::DrainingReady | Start::DrainingChosen => {
            serve_first_group(&mut rig);
            rig.demand_raw(2);
            rig.complete_reads(2);
            rig.now_ns += rig.setup.server.idle_switch_ns;
            // Up to the first switch event; there are two.
            let drains = (0..100).any(|_| rig.act() && is_draining(&rig));
            assert!(drains, "nothing ends the slice");
            if start == Start::DrainingChosen {
                rig.server.gone(2);
            }
        }
    }
    rig
}

/// Calls of the first group run, in pool B.
fn serve_first_group(rig: &mut Rig) {
    rig.activate_raw(0);
    rig.demand_raw(1);
    rig.complete_reads(1);
    rig.serve();
}

fn is_draining(rig: &Rig) -> bool {
    rig.server.census().expect("it adds up").draining
}

/// What happens between two rounds; then the server has its turn.
fn happen(rig: &mut Rig, event: &str) {
    match event {
        "nothing" => {}
        "demand in the first group" => fresh_demand(rig, 0),
        "demand in the second group" => fresh_demand(rig, 2),
        "READs done" | "READs failed" => end_reads(rig, event == "READs done"),
        "READs done of the second group" => rig.complete_reads(2),
        "requests of the first group" => {
            for seat in [0, 1] {
                let number = rig.served(seat).len() as u64 + 1;
                if rig.zone(seat).is_some() {
                    rig.write_request(seat, number, head(3), b"abc");
                }
            }
        }
        "nothing has come for a while" => {
            // Time is charged in parts of a slice.
            rig.now_ns += rig.setup.server.idle_switch_ns;
        }
        "the slice is over" => {
            for _ in 0..5 {
                rig.now_ns += rig.setup.server.time_slice_ns / 4;
                let _ = rig.act();
            }
        }
        "all former tenants are quiet" => {
            for zone in 0..2 * rig.geometry.zones() {
                let view = rig.server.zone(zone).expect("it exists");
                if view.state == ZoneState::Quarantined {
                    let at = rig.geometry.endpoint(view.seat);
                    rig.exposed.region().store_release(at, view.epoch);
                }
            }
        }
        "seat 0 is gone" => rig.server.gone(0),
        "the first group is gone" => (0..2).for_each(|seat| rig.server.gone(seat)),
        "the second group is gone" => (2..4).for_each(|seat| rig.server.gone(seat)),
        "all are gone" => (0..4).for_each(|seat| rig.server.gone(seat)),
        other => unreachable!("{other}"),
    }
    rig.serve();
}

/// Demand of a seat of the group that is not served and has none yet; none, if there is no such seat.
fn fresh_demand(rig: &mut Rig, first: u32) {
    let idle = (first..first + 2).find(|&seat| rig.state(seat) == ConnState::Idle);
    if let Some(seat) = idle {
        rig.demand_raw(seat);
    }
}

fn end_reads(rig: &mut Rig, well: bool) {
    let failed = WcStatus::Failed {
        status: 1,
        vendor_err: 0,
    };
    let status = if well { WcStatus::Success } else { failed };
    for wr in std::mem::take(&mut rig.log.raw_reads) {
        let wr_id = wr.wr_id;
        rig.server.completed(Completion { wr_id, status });
    }
}

/// The phases of the pool that is processed and of the one in warmup, and whether a fetch is late; which pool
/// the former is; and how many zones of each are in quarantine.
fn phases(rig: &Rig) -> (String, u32, [usize; 2]) {
    let pools = [0, 1].map(|pool| rig.server.pool(pool).expect("there are two"));
    let processed = u32::from(pools[1].processing);
    let [now, next] = [pools[processed as usize], pools[1 - processed as usize]];
    let now = match (now.epoch, now.active, now.fetching) {
        (None, ..) => "Empty",
        _ if is_draining(rig) => "Draining",
        (_, 1.., _) => "Serving",
        (_, 0, 1..) => "Joining",
        (_, 0, 0) => "Forsaken",
    };
    let next = match (next.epoch, next.active, next.fetching) {
        (None, ..) => "Empty",
        (_, 1.., _) => "Ready",
        (_, 0, 1..) => "Fetching",
        (_, 0, 0) => "Chosen",
    };
    let zones = rig.geometry.zones();
    let held = [processed, 1 - processed].map(|pool| {
        (pool * zones..(pool + 1) * zones)
            .filter_map(|zone| rig.server.zone(zone))
            .filter(|zone| zone.state == ZoneState::Quarantined)
            .count()
    });
    let late = (0..2 * zones).any(|zone| {
        let (view, pool) = (rig.server.zone(zone), rig.server.pool(zone / zones));
        let (view, pool) = view.zip(pool).expect("they exist");
        view.state == ZoneState::Mapped
            && rig.state(view.seat) == ConnState::Fetching
            && pool.epoch != Some(view.epoch)
    });
    let late = if late { "Late" } else { "" };
    (format!("{now}{next}{late}"), processed, held)
}

#[test]
fn the_pools_transitions_are_those_of_the_table() {
    let mut table = String::from(
        "# state (processed, in warmup) | event | new state | swapped | quarantined in each | calls run | switch events of their own | slices | switches | guests\n\
         # Serving: seats 0 and 1, and a call of seat 0 has run. Fetching, Ready, Chosen, Late: seat 2's batch.\n",
    );
    for start in STARTS {
        for event in EVENTS {
            let mut rig = server_at(start);
            let (from, processed, _) = phases(&rig);
            assert_eq!(from, format!("{start:?}"));
            let (before, events) = (rig.server.counters(), rig.log.raw_writes.len());
            let ran = rig.log.served.len();
            happen(&mut rig, event);
            assert!(rig.server.census().is_ok(), "{start:?}, {event}");
            let counters = rig.server.counters();
            let (to, now_processed, [now, next]) = phases(&rig);
            let swapped = if now_processed == processed {
                "-"
            } else {
                "swapped"
            };
            let answers = rig.log.served.len() - ran;
            let events = rig.log.raw_writes.len() - events - answers;
            let slices = counters.slices - before.slices;
            let switches = counters.switches - before.switches;
            let guests = counters.guests - before.guests;
            writeln!(
                table,
                "{from:<16} | {event:<30} | {to:<16} | {swapped:<7} | {now} {next} | {answers} | {events} | {slices} | {switches} | {guests}"
            )
            .expect("a string takes it");
        }
    }
    compare("pool.txt", &table);
}
