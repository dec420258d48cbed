//! Rest: when a caller of the server may sleep, and until when.

use scalerpc_core::server::ConnState;
use scalerpc_core::{Mapping, Memory};

use crate::common::{Rig, Setup};

const REST_AFTER_NS: u64 = 50_000;

/// A client that was served, and has no more calls; then some time has passed.
fn silent(setup: Setup, stopped: bool) -> Rig {
    let mut rig = Rig::with_clients(setup, 2);
    rig.call(0, b"x").expect("the window is empty");
    rig.settle();
    assert_eq!(rig.state(0), ConnState::Active);
    rig.client(0).stopped = stopped;
    for _ in 0..2 * REST_AFTER_NS / 1_000 {
        rig.turn(1_000);
    }
    rig
}

fn resting() -> Setup {
    let mut setup = Setup::default();
    setup.server.rest_after_ns = Some(REST_AFTER_NS);
    setup.limits.can_revoke = true;
    setup
}

#[test]
fn a_silent_group_is_drained_so_that_the_server_rests() {
    let mut rig = silent(resting(), false);
    assert_eq!(rig.server.counters().rests, 1);
    assert_eq!(rig.state(0), ConnState::Idle);
    assert!(rig.server.rests());
    assert_eq!(rig.server.next_due_ns(), None);
    assert!(!rig.server.has_demand(rig.exposed.region()));
    // Who calls then is served as ever.
    rig.call(0, b"y").expect("the window is empty");
    rig.clients_turn();
    rig.deliver(0);
    rig.clients_turn();
    rig.deliver(0);
    assert!(rig.server.has_demand(rig.exposed.region()));
    rig.settle();
    assert_eq!(rig.answered(0), [1, 2]);
    assert!(!rig.server.rests());
}

#[test]
fn nobody_is_drained_for_rest_unless_that_is_asked_for() {
    let mut setup = resting();
    setup.server.rest_after_ns = None;
    let rig = silent(setup, false);
    assert_eq!(rig.server.counters().rests, 0);
    assert_eq!(rig.state(0), ConnState::Active);
    assert!(!rig.server.rests());
}

/// Clients in groups of their own, each pool with two zones, and tenancies that cannot be revoked.
fn unrevocable() -> Setup {
    let mut setup = Setup::single_groups(5);
    setup.server.rest_after_ns = Some(REST_AFTER_NS);
    setup.server.fence_after_ns = FENCE_AFTER_NS;
    setup.limits.can_revoke = false;
    setup
}

const FENCE_AFTER_NS: u64 = 1_000_000;

fn pass(rig: &mut Rig, time_ns: u64) {
    for _ in 0..time_ns / 10_000 {
        rig.turn(10_000);
    }
}

/// One after the other comes, is served, and stops: until four have all zones of both pools.
fn take_all_zones(rig: &mut Rig) {
    for seat in 0..4 {
        rig.call(seat, b"x").expect("the window is empty");
        rig.settle();
        rig.client(seat).stopped = true;
        pass(rig, 2 * FENCE_AFTER_NS);
        assert_eq!(rig.state(seat), ConnState::Leaving);
        assert!(rig.server.rests());
    }
}

#[test]
fn who_is_drained_for_rest_is_not_fenced_while_nobody_lacks_its_zone() {
    let mut rig = silent(unrevocable(), true);
    assert_eq!(rig.server.counters().rests, 1);
    assert_eq!(rig.state(0), ConnState::Leaving);
    assert!(rig.server.rests());
    assert_eq!(rig.server.next_due_ns(), None, "nothing is due");
    pass(&mut rig, 10 * FENCE_AFTER_NS);
    // Others come and go meanwhile.
    for _ in 0..4 {
        rig.call(1, b"x").expect("the window is empty");
        rig.settle();
        pass(&mut rig, 2 * FENCE_AFTER_NS);
        assert_eq!(rig.state(1), ConnState::Idle);
        assert!(rig.server.rests());
    }
    assert_eq!(
        (&rig.log.closed[..], rig.state(0)),
        (&[][..], ConnState::Leaving)
    );
    // It writes its next call to the zone that it still has, and hears then that it has to wake the server.
    rig.client(0).stopped = false;
    rig.call(0, b"y").expect("the window is empty");
    rig.settle();
    assert_eq!(rig.answered(0), [1, 2]);
    assert_eq!(rig.server.counters().zones_fenced, 0);
}

#[test]
fn who_is_drained_for_rest_has_the_usual_time_once_somebody_lacks_its_zone() {
    let mut rig = Rig::with_clients(unrevocable(), 5);
    take_all_zones(&mut rig);
    assert_eq!(rig.log.closed, [], "nobody has lacked a zone");
    rig.call(4, b"x").expect("the window is empty");
    pass(&mut rig, FENCE_AFTER_NS - 100_000);
    assert_eq!(rig.log.closed, [], "not before its time");
    assert!(!rig.server.rests(), "somebody waits");
    pass(&mut rig, 200_000);
    assert_eq!(rig.log.closed.len(), 4);
    for seat in 0..4 {
        rig.fence(seat);
    }
    rig.settle();
    assert_eq!(rig.answered(4), [1]);
}

/// Or else it would lose it just before a zone comes free, time and again.
#[test]
fn who_is_next_keeps_the_turn_while_no_zone_is_free() {
    let mut setup = unrevocable();
    setup.geometry.clients_max = 7;
    let mut rig = Rig::with_clients(setup, 7);
    take_all_zones(&mut rig);
    for seat in 4..7 {
        rig.call(seat, b"x").expect("the window is empty");
    }
    rig.turn(100);
    rig.turn(100);
    let next = |rig: &Rig| {
        let pools = (0..2).filter_map(|pool| rig.server.pool(pool));
        let mut next = pools.filter(|it| !it.processing);
        next.next().map(|it| (it.group, it.epoch))
    };
    let first = next(&rig);
    assert!(
        matches!(first, Some((Some(_), _))),
        "some wait, so one is next"
    );
    for _ in 0..20 {
        rig.turn(100);
        assert_eq!(next(&rig), first);
    }
}

#[test]
fn a_zone_in_quarantine_says_when_it_is_due() {
    let mut setup = resting();
    setup.server.revoke_after_ns = 1_000_000;
    let mut rig = silent(setup, true);
    assert_eq!(rig.state(0), ConnState::Leaving);
    assert!(rig.server.rests());
    let due_ns = rig.server.next_due_ns().expect("a zone is in quarantine");
    assert!(due_ns > rig.now_ns && due_ns <= rig.now_ns + 1_000_000);
    rig.turn(due_ns - rig.now_ns);
    assert_eq!(rig.state(0), ConnState::Idle);
    assert_eq!(rig.server.counters().zones_revoked, 1);
}

#[test]
fn a_byte_without_an_entry_is_no_demand() {
    let rig = silent(resting(), false);
    let byte = rig.geometry.demand_byte(1);
    rig.exposed.region().store_byte_release(byte, 77);
    assert!(!rig.server.has_demand(rig.exposed.region()));
}

/// With static mapping nobody is drained, but the caller may take naps.
#[test]
fn a_server_with_static_mapping_is_silent_when_nothing_has_come_for_long_enough() {
    let mut setup = Setup::default();
    setup.geometry.mapping = Mapping::Static;
    setup.server.rest_after_ns = Some(1_000);
    let mut rig = Rig::with_clients(setup, 2);
    for _ in 0..3 {
        rig.call(0, b"a call").unwrap();
        rig.settle();
        for _ in 0..20 {
            rig.now_ns += 200;
            rig.serve();
        }
        assert!(rig.server.is_silent());
    }
}
