//! Seats, zones and tenancies: opened, taken over, quarantined, given back (R2, R3, R4, R6).

use scalerpc_core::Memory;
use scalerpc_core::client::ClientState;
use scalerpc_core::post::{Completion, WcStatus};
use scalerpc_core::server::{ConnState, OpenConn};

use crate::common::raw::head;
use crate::common::wire::Op;
use crate::common::{Rig, Setup};

/// Zones that two seats hold at once would be a block with two writers.
fn assert_zones_are_disjoint(rig: &Rig) {
    let seats = rig.geometry.clients_max();
    let mut held: Vec<u32> = (0..seats).filter_map(|seat| rig.zone(seat)).collect();
    held.sort_unstable();
    assert!(held.windows(2).all(|pair| pair[0] != pair[1]), "{held:?}");
}

/// A client that was served, and has then let the switch event lie: its zone is in quarantine.
fn rig_with_a_silent_client(setup: Setup, clients: u32) -> (Rig, u32) {
    let mut rig = Rig::with_clients(setup, clients);
    rig.call(0, b"1").unwrap();
    rig.settle();
    let zone = rig.zone(0).expect("it is served");
    rig.client(0).stopped = true;
    rig.call(1, b"x").unwrap();
    rig.settle();
    assert_eq!(rig.state(0), ConnState::Leaving);
    (rig, zone)
}

/// Field case C4: the same seat twice, as when the answer to a first request got lost.
#[test]
fn a_seat_opens_once() {
    let mut rig = Rig::with_clients(Setup::default(), 1);
    let again = OpenConn {
        seat: 0,
        owner: 99,
        ring_at: 0,
        staging_at: 0,
        placement: scalerpc_core::wire::Placement::InOrder,
    };
    assert!(!rig.server.open(again));
    let beyond = rig.geometry.clients_max();
    assert!(!rig.server.open(OpenConn {
        seat: beyond,
        ..again
    }));
    let counters = rig.server.counters();
    assert_eq!(
        (counters.opened, counters.connections, counters.groups),
        (1, 1, 1)
    );
    rig.call(0, b"still the first one's").unwrap();
    rig.settle();
    assert_eq!(rig.answered(0), [1]);
}

/// Field case C4: completions of a former tenant's work requests, even after 2048 reopenings.
#[test]
fn completions_of_a_former_tenant_are_ignored() {
    let mut rig = Rig::new(Setup::default());
    rig.open_raw(0);
    let entry = rig.entry(1, 1, 0);
    rig.write_entry(0, 1, entry);
    rig.serve();
    let old = rig.log.raw_reads.pop().unwrap().wr_id;
    for reopened in 1..=5 {
        rig.server.gone(0);
        rig.open_raw(0);
        rig.write_entry(0, 1, entry);
        rig.serve();
        assert_eq!(rig.state(0), ConnState::Fetching);
        let failed = WcStatus::Failed {
            status: 1,
            vendor_err: 0,
        };
        for status in [WcStatus::Success, WcStatus::Flushed, failed] {
            rig.server.completed(Completion { wr_id: old, status });
            assert_eq!(rig.state(0), ConnState::Fetching, "{reopened} {status:?}");
        }
    }
    let wr_id = rig.log.raw_reads.pop().unwrap().wr_id;
    let status = WcStatus::Success;
    rig.server.completed(Completion { wr_id, status });
    assert_eq!(rig.state(0), ConnState::Active, "its own counts");
    assert_eq!(rig.server.counters().failures, 0);
    // A seat that is free, or does not exist, has no completions.
    rig.server.gone(0);
    rig.server.completed(Completion { wr_id, status });
    assert_eq!(rig.state(0), ConnState::Free);
}

/// Calls that were handed out when their connection ended do not answer the next tenant of the seat.
#[test]
fn an_answer_for_a_former_tenant_goes_nowhere_and_its_slot_comes_back() {
    let setup = Setup {
        keep_calls: true,
        ..Setup::default()
    };
    let mut rig = Rig::with_clients(setup, 1);
    for round in 0..100 {
        rig.call(0, b"old").unwrap();
        rig.turn(1_000);
        assert_eq!(rig.kept.len(), 1, "round {round}: no send slot is lost");
        rig.fence(0);
        rig.open(0);
        rig.answer_kept();
        rig.turn(1_000);
        assert!(rig.client(0).ended.is_empty() && rig.client(0).violation.is_none());
    }
}

/// Nothing is ever cleared, so whatever a former tenant left must not count for the next one.
#[test]
fn entries_and_blocks_of_a_former_tenant_never_match() {
    let mut rig = Rig::new(Setup::default());
    let former = rig.open_raw(0);
    rig.activate_raw(0);
    let zone = rig.zone(0).unwrap();
    for number in 1..=8 {
        rig.write_request_to(zone, former, number, head(3), b"old");
    }
    let ran = rig.served(0).len();
    rig.server.gone(0);
    rig.open_raw(0);
    // The former tenant's entries land late, as after a connection that was thought to be dead.
    for number in 1..=3 {
        let entry = rig.entry(1, 1, 0);
        let owner = std::mem::replace(&mut rig.owners[0], former);
        rig.write_entry(0, number, entry);
        rig.owners[0] = owner;
        rig.serve();
        assert_eq!(rig.state(0), ConnState::Idle);
    }
    // The new one gets the same zone. Its own call is not there yet; the old ones are.
    let entry = rig.entry(1, 1, 0);
    rig.write_entry(0, 1, entry);
    rig.serve();
    assert_eq!(rig.zone(0), Some(zone));
    rig.complete_reads(0);
    rig.serve();
    assert_eq!(
        (rig.state(0), rig.served(0).len()),
        (ConnState::Active, ran)
    );
    rig.write_request(0, 1, head(3), b"new");
    rig.serve();
    assert_eq!(rig.log.served.last().unwrap().bytes, b"new");
    assert_eq!(rig.served(0).len(), ran + 1);
}

/// Rule R3.
#[test]
fn a_write_that_lands_after_the_switch_event_runs_once_and_in_the_next_tenancy() {
    let mut rig = Rig::with_clients(Setup::single_groups(2), 2);
    rig.call(0, b"1").unwrap();
    rig.settle();
    rig.client(0).up.held = true;
    for call in 2..=4 {
        assert_eq!(rig.call(0, b"late"), Ok(call));
    }
    rig.post(0);
    assert_eq!(rig.client(0).engine.parked(), 0, "they are on their way");
    // The event goes out; the WRITEs land behind it, in a zone that is in quarantine.
    rig.client(0).stopped = true;
    rig.call(1, b"x").unwrap();
    rig.settle();
    let switched_ns = rig.now_ns;
    rig.client(0).up.held = false;
    rig.deliver(0);
    rig.serve();
    assert_eq!(rig.served(0).len(), 1, "calls after the event do not run");
    rig.poll(0);
    assert_eq!(rig.client(0).engine.parked(), 3, "but are staged again");
    rig.client(0).stopped = false;
    rig.settle();
    let (numbers, times): (Vec<_>, Vec<_>) = rig.served(0).into_iter().unzip();
    assert_eq!(numbers, [1, 2, 3, 4], "each once");
    assert!(times[1] > switched_ns);
    assert_eq!(rig.answered(0), [1, 2, 3, 4]);
}

/// Rule R3: what has landed before the event is taken in the drain, and counts as consumed.
#[test]
fn the_drain_takes_what_has_come_and_the_event_says_so() {
    let mut rig = Rig::with_clients(Setup::single_groups(2), 2);
    rig.call(0, b"1").unwrap();
    rig.settle();
    for call in 2..=4 {
        assert_eq!(rig.call(0, b"in time"), Ok(call));
    }
    rig.call(1, b"x").unwrap();
    rig.now_ns += 200_000;
    rig.clients_turn();
    rig.serve();
    assert_eq!(rig.served(0).len(), 4);
    assert_eq!(rig.state(0), ConnState::Leaving);
    let counters = rig.server.counters();
    assert_eq!(
        (counters.switch_events_ridden, counters.switch_events_extra),
        (1, 0)
    );
    rig.poll(0);
    let engine = &rig.client(0).engine;
    assert_eq!((engine.state(), engine.parked()), (ClientState::Idle, 0));
    assert_eq!(rig.answered(0), [1, 2, 3, 4]);
}

/// Rule R4, with the quiet word, and with the entry that says the same.
#[test]
fn a_zone_is_given_out_only_after_its_tenants_quiet_message() {
    for with_entry in [false, true] {
        let (mut rig, zone) = rig_with_a_silent_client(Setup::single_groups(4), 4);
        // Meanwhile the others are served, in other zones.
        for round in 2..40 {
            for seat in 1..4 {
                rig.call(seat, b"x").unwrap();
            }
            rig.turn(150_000);
            rig.settle();
            assert_zones_are_disjoint(&rig);
            assert_eq!(
                (rig.state(0), rig.zone(0)),
                (ConnState::Leaving, Some(zone))
            );
            assert!(rig.served(1).len() >= round, "others are served");
        }
        if with_entry {
            rig.call(0, b"next").unwrap();
        }
        // Not yet on the server's side: the message is on the wire.
        rig.client(0).up.held = true;
        rig.poll(0);
        rig.post(0);
        rig.turn(1_000);
        assert_eq!(rig.zone(0), Some(zone));
        rig.client(0).up.held = false;
        rig.deliver(0);
        rig.serve();
        let counters = rig.server.counters();
        assert!(counters.zones_quiet > 0);
        assert_eq!((counters.zones_revoked, counters.zones_fenced), (0, 0));
        assert_ne!(rig.state(0), ConnState::Leaving);
    }
}

/// Rules R4 and R6: the back end revokes.
#[test]
fn a_silent_client_has_its_tenancy_revoked_and_keeps_its_connection() {
    let mut setup = Setup::single_groups(2);
    setup.limits.can_revoke = true;
    setup.server.revoke_after_ns = 50_000;
    let (mut rig, zone) = rig_with_a_silent_client(setup, 2);
    // A call that it will write under the old tenancy.
    rig.call(0, b"refused").unwrap();
    rig.turn(40_000);
    assert_eq!(rig.log.revocations, [], "not before its time");
    rig.turn(20_000);
    assert_eq!(rig.log.revocations, [(0, 1)]);
    assert_eq!((rig.state(0), rig.zone(0)), (ConnState::Idle, None));
    assert_eq!(rig.server.counters().zones_revoked, 1);
    // It wakes up, and writes before it has looked at its ring.
    rig.post(0);
    let counters = rig.client(0).engine.counters();
    assert_eq!((counters.refused, counters.direct_writes), (1, 0));
    assert_eq!(rig.client(0).engine.parked(), 1, "the call is parked again");
    assert_eq!(rig.post(0), 0, "and nothing more is tried in this tenancy");
    rig.client(0).stopped = false;
    rig.settle();
    assert_eq!(rig.answered(0), [1, 2]);
    assert_eq!(rig.served(0).len(), 2);
    assert_eq!(rig.log.closed, []);
    assert!(zone < 2 * rig.geometry.zones());
}

/// Rule R4: a revocation that cannot be finished yet frees nothing, and is tried again, each time after
/// twice the time: it may cost a system call.
#[test]
fn a_revocation_that_is_pending_is_asked_for_again() {
    let mut setup = Setup::single_groups(2);
    setup.limits.can_revoke = true;
    setup.server.revoke_after_ns = 50_000;
    setup.revokes = false;
    let (mut rig, zone) = rig_with_a_silent_client(setup, 2);
    for _ in 0..10 {
        rig.turn(60_000);
        assert_eq!(rig.zone(0), Some(zone));
    }
    // After 50, 150 and 350 us, as far as turns allow.
    assert!(
        (2..=4).contains(&rig.log.revocations.len()),
        "{:?}",
        rig.log.revocations
    );
    for times in 4..12 {
        rig.turn(60_000 << times);
        assert_eq!(rig.zone(0), Some(zone));
    }
    assert!(rig.log.revocations.len() >= 9, "{:?}", rig.log.revocations);
    // Of another tenancy, of another seat, of none.
    rig.server.revoked(0, 0);
    rig.server.revoked(1, u64::MAX);
    rig.server.revoked(u32::MAX, u64::MAX);
    assert_eq!(rig.zone(0), Some(zone));
    rig.server.revoked(0, 1);
    assert_eq!(rig.zone(0), None);
    rig.server.revoked(0, 1);
    assert_eq!(rig.server.counters().zones_revoked, 1, "once");
}

/// Rules R4 and R6: where nothing can be revoked, a silent client is fenced after its deadline.
#[test]
fn a_silent_client_is_fenced_where_tenancies_cannot_be_revoked() {
    let mut setup = Setup::single_groups(2);
    setup.server.fence_after_ns = 1_000_000;
    let (mut rig, zone) = rig_with_a_silent_client(setup, 2);
    rig.turn(900_000);
    assert_eq!(rig.log.closed, [], "not before its time");
    rig.turn(200_000);
    assert_eq!(rig.log.closed, [(0, None)]);
    // Until it is gone it holds its zone: it may be writing still.
    rig.turn(5_000_000);
    assert_eq!(
        (rig.state(0), rig.zone(0)),
        (ConnState::Closing, Some(zone))
    );
    rig.fence(0);
    assert_eq!((rig.state(0), rig.zone(0)), (ConnState::Free, None));
    let counters = rig.server.counters();
    assert_eq!((counters.zones_fenced, counters.quarantined_now), (1, 0));
    // Every zone of both pools can be given out again.
    rig.open(0);
    for round in 2..20 {
        for seat in 0..2 {
            rig.call(seat, b"x").unwrap();
        }
        rig.turn(150_000);
        rig.settle();
        assert_zones_are_disjoint(&rig);
        assert!(rig.served(1).len() >= round);
    }
}

/// Rule R6: however many stop, each costs its own zone, and the others go on.
#[test]
fn silent_clients_cost_one_zone_each_and_delay_nobody() {
    let mut setup = Setup::default();
    setup.geometry.clients_max = 12;
    setup.server.fence_after_ns = u64::MAX;
    let mut rig = Rig::with_clients(setup, 12);
    for seat in 0..12 {
        rig.call(seat, b"1").unwrap();
    }
    rig.settle();
    // Two of the first group stop while they are served.
    for seat in 0..2 {
        rig.client(seat).stopped = true;
    }
    let bound_ns = rig.server.wait_bound_ns(3, 0);
    for round in 2..30_u64 {
        let begun_ns = rig.now_ns;
        for seat in 2..12 {
            rig.call(seat, b"x").unwrap();
        }
        rig.settle();
        assert!(rig.now_ns - begun_ns <= bound_ns, "round {round}");
        assert_zones_are_disjoint(&rig);
    }
    let counters = rig.server.counters();
    assert!(counters.quarantined_now <= 2, "{counters:?}");
    assert_eq!(rig.log.closed, []);
}

/// Field case C11: a client dies while the READ of its batch is under way.
#[test]
fn a_fetch_that_never_ends_holds_nobody_up() {
    let mut rig = Rig::with_clients(Setup::default(), 4);
    rig.client(0).down.held = true;
    rig.call(0, b"never fetched").unwrap();
    rig.clients_turn();
    rig.serve();
    assert_eq!(rig.state(0), ConnState::Fetching);
    assert!(matches!(rig.client(0).down.ops.front(), Some(Op::Read(_))));
    rig.client(0).stopped = true;
    for call in 1..=20 {
        for seat in 1..4 {
            assert_eq!(rig.call(seat, b"x"), Ok(call));
        }
        rig.settle();
    }
    let slice_ns = rig.setup.server.time_slice_ns;
    assert!(
        rig.served(1)[0].1 <= slice_ns + 1_000,
        "at most a slice late"
    );
    let zone = rig.zone(0);
    rig.fence(0);
    assert_eq!(rig.served(0), []);
    assert!(zone.is_some() && rig.zone(0).is_none());
}

/// The endpoint line of a seat that is gone is the back end's to clear; the engine reads no more of it.
#[test]
fn demand_of_a_free_seat_is_nobodys() {
    let mut rig = Rig::new(Setup::default());
    let entry = rig.entry(1, 1, 0);
    for seat in 0..rig.geometry.clients_max() {
        rig.write_entry(seat, 1, entry);
        let at = rig.geometry.demand_byte(seat);
        rig.exposed.region().store_byte_release(at, 0xff);
    }
    assert_eq!(rig.serve(), 0);
    assert_eq!(rig.server.counters().connections, 0);
}

/// Rule R4: a batch of several READs is fetched when all are done; until then they write to the zone.
#[test]
fn a_batch_is_fetched_when_its_last_read_is_done() {
    let mut setup = Setup::default();
    setup.limits.sge_max = 1;
    let mut rig = Rig::new(setup);
    rig.open_raw(0);
    let entry = rig.entry(1, 4, 0);
    rig.write_entry(0, 1, entry);
    rig.serve();
    let reads = std::mem::take(&mut rig.log.raw_reads);
    assert_eq!(reads.len(), 4);
    for (i, wr) in reads.iter().enumerate() {
        assert_eq!(rig.state(0), ConnState::Fetching, "{i} are done");
        let (first, remote) = (1 + i as u64, 64 * i);
        assert_eq!((wr.first_call, wr.count, wr.remote), (first, 1, remote));
        let (wr_id, status) = (wr.wr_id, WcStatus::Success);
        rig.server.completed(Completion { wr_id, status });
    }
    assert_eq!(rig.state(0), ConnState::Active);
}

/// Rules R3 and R11: an event that the full send queue has no room for is owed, and goes out later. Until
/// then its client does not know, so nothing of it is asked, and no further call of it runs.
#[test]
fn a_switch_event_that_finds_no_room_is_sent_later() {
    let mut setup = Setup::single_groups(2);
    setup.geometry.window = 8;
    setup.limits.sge_max = 8;
    setup.limits.sq_depth = 4;
    setup.limits.can_revoke = true;
    setup.server.revoke_after_ns = 50_000;
    let mut rig = Rig::with_clients(setup, 2);
    rig.call(0, b"1").unwrap();
    rig.settle();
    rig.client(0).down.withheld = true;
    for call in 2..=8 {
        assert_eq!(rig.call(0, b"x"), Ok(call));
    }
    rig.clients_turn();
    rig.serve();
    let ran = rig.served(0).len();
    assert!(ran < 8, "the send queue is full");
    rig.call(1, b"other").unwrap();
    for _ in 0..10 {
        rig.turn(60_000);
    }
    assert_eq!(rig.answered(1), [1], "the other one does not wait for it");
    assert_eq!(rig.state(0), ConnState::Leaving);
    assert_eq!(
        rig.client(0).engine.state(),
        ClientState::Process,
        "it was not told"
    );
    assert_eq!(rig.log.revocations, [], "so it is not yet due");
    assert_eq!(rig.served(0).len(), ran);
    rig.client(0).down.withheld = false;
    rig.settle();
    assert_eq!(rig.answered(0), (1..=8).collect::<Vec<_>>());
    let numbers = rig.served(0).into_iter().map(|(number, _)| number);
    assert!(numbers.eq(1..=8), "each once");
    assert_eq!(rig.log.closed, []);
}
