//! Limits of a connection, and of the calls in flight: a call too many is answered, and does not run.

use scalerpc_core::server::{Limit, OpenConn};
use scalerpc_core::wire::{Placement, Status};
use scalerpc_core::{GeometryConfig, Mapping};

use crate::common::{Ended, Rig, Setup};

const SECOND_NS: u64 = 1_000_000_000;

/// Makes a call, waits for its end, and says how it ended.
fn status(rig: &mut Rig, seat: u32) -> Status {
    rig.call(seat, b"x").unwrap();
    rig.settle();
    match rig.client(seat).ended.pop() {
        Some(Ended::Answer { status, .. }) => status,
        other => panic!("{other:?}"),
    }
}

/// How many of `calls` calls run, one every `every_ns`.
fn run_of(rig: &mut Rig, seat: u32, calls: u32, every_ns: u64) -> usize {
    let mut next_ns = rig.now_ns;
    let mut ran = 0;
    for _ in 0..calls {
        next_ns += every_ns;
        assert!(rig.now_ns <= next_ns, "a call takes longer than that");
        rig.now_ns = next_ns;
        match status(rig, seat) {
            Status::OK => ran += 1,
            status => assert_eq!(status, Status::BUSY),
        }
    }
    ran
}

#[test]
fn a_limit_lets_a_burst_through_and_then_its_rate() {
    for mapping in [Mapping::Virtual, Mapping::Static] {
        let mut setup = Setup::default();
        setup.geometry.mapping = mapping;
        let mut rig = Rig::with_clients(setup, 2);
        rig.serve();
        let limit = Limit {
            calls_per_second: 100,
            burst: 5,
        };
        assert!(rig.server.set_limit(0, Some(limit)));
        // Each takes some tens of microseconds.
        assert_eq!(run_of(&mut rig, 0, 20, 100_000), 5, "the burst");
        rig.now_ns += SECOND_NS;
        assert_eq!(
            run_of(&mut rig, 0, 20, 100_000),
            5,
            "no more than a burst comes back"
        );
        let ran = run_of(&mut rig, 0, 1_000, SECOND_NS / 200);
        assert!(
            (499..=501).contains(&ran),
            "5 s at 100 calls a second: {ran}"
        );
        assert_eq!(run_of(&mut rig, 1, 50, 100_000), 50, "others have no limit");
        assert!(rig.server.set_limit(0, None));
        assert_eq!(run_of(&mut rig, 0, 50, 100_000), 50);
        let counters = rig.server.counters();
        assert_eq!(
            rig.log.served.len() as u64,
            counters.calls - counters.calls_busy
        );
    }
}

#[test]
fn a_limit_of_nothing_lets_nothing_through_and_ends_with_its_connection() {
    let mut rig = Rig::with_clients(Setup::default(), 1);
    let none = Limit {
        calls_per_second: 0,
        burst: 0,
    };
    assert!(rig.server.set_limit(0, Some(none)));
    rig.now_ns += 100 * SECOND_NS;
    assert_eq!(run_of(&mut rig, 0, 10, 100_000), 0);
    rig.fence(0);
    assert!(!rig.server.set_limit(0, Some(none)), "nobody is there");
    assert!(!rig.server.set_limit(u32::MAX, Some(none)), "nor can be");
    rig.open(0);
    assert_eq!(run_of(&mut rig, 0, 10, 100_000), 10);
}

#[test]
fn the_largest_limit_does_not_overflow() {
    let mut rig = Rig::with_clients(Setup::default(), 1);
    let most = Limit {
        calls_per_second: u32::MAX,
        burst: u32::MAX,
    };
    assert!(rig.server.set_limit(0, Some(most)));
    for _ in 0..3 {
        assert_eq!(run_of(&mut rig, 0, 10, 100_000), 10);
        rig.now_ns += u64::MAX / 4;
    }
}

/// Calls that are refused are not what a priority is made of.
#[test]
fn a_refused_call_does_not_count_for_the_priority() {
    let mut setup = Setup::single_groups(2);
    setup.geometry.window = 4;
    let mut rig = Rig::with_clients(setup, 2);
    let none = Limit {
        calls_per_second: 0,
        burst: 0,
    };
    assert!(rig.server.set_limit(0, Some(none)));
    for _ in 0..100 {
        for seat in 0..2 {
            while rig.call(seat, b"x").is_ok() {}
        }
        rig.settle();
        rig.turn(200_000);
    }
    assert_eq!(rig.served(0), []);
    let counters = rig.server.counters();
    assert_eq!(counters.calls_busy, 400);
    assert!(counters.switches > 50, "both are rated: {counters:?}");
}

/// Over all connections; and the place of a call comes back also if its connection has ended.
#[test]
fn no_more_calls_are_in_flight_than_may_be() {
    let setup = Setup {
        keep_calls: true,
        ..Setup::default()
    };
    let mut rig = Rig::with_clients(setup, 3);
    rig.server.set_calls_in_flight_max(2);
    for seat in 0..3 {
        rig.call(seat, b"x").unwrap();
    }
    rig.turn(0);
    assert_eq!((rig.kept.len(), rig.server.calls_in_flight()), (2, 2));
    rig.clients_turn();
    let busy: Vec<_> = (0..3)
        .filter_map(|seat| rig.client(seat).ended.pop())
        .collect();
    let refused = |it: &Ended| matches!(it, Ended::Answer { status: Status::BUSY, bytes, .. } if bytes.is_empty());
    assert!(busy.len() == 1 && refused(&busy[0]), "{busy:?}");
    let gone = rig.kept[0].seat;
    rig.fence(gone);
    assert_eq!(rig.server.calls_in_flight(), 2, "its handler still works");
    rig.answer_kept();
    rig.answer_kept();
    assert_eq!(rig.server.calls_in_flight(), 0);
    let seat = (0..3).find(|&seat| seat != gone).unwrap();
    rig.clients_turn();
    rig.client(seat).ended.clear();
    // Closed: what is in flight ends, and nothing new begins.
    rig.call(seat, b"in flight").unwrap();
    rig.turn(0);
    assert_eq!(rig.server.calls_in_flight(), 1);
    rig.server.set_calls_in_flight_max(0);
    rig.call(seat, b"too late").unwrap();
    rig.turn(0);
    rig.answer_kept();
    rig.clients_turn();
    let ended: Vec<_> = rig.client(seat).ended.drain(..).collect();
    let statuses: Vec<_> = ended
        .iter()
        .map(|it| match it {
            Ended::Answer { status, .. } => *status,
            Ended::Failed { .. } => panic!("{it:?}"),
        })
        .collect();
    assert_eq!(statuses, [Status::BUSY, Status::OK]);
}

/// In a drain, too: the switch event rides on the answer that says so.
#[test]
fn a_call_that_is_refused_in_a_drain_is_answered_with_the_switch_event() {
    let mut rig = Rig::with_clients(Setup::single_groups(2), 2);
    rig.call(0, b"x").unwrap();
    rig.settle();
    let none = Limit {
        calls_per_second: 0,
        burst: 0,
    };
    assert!(rig.server.set_limit(0, Some(none)));
    for _ in 0..50 {
        for seat in 0..2 {
            rig.call(seat, b"x").unwrap();
        }
        rig.settle();
    }
    let counters = rig.server.counters();
    assert_eq!(counters.calls_busy, 50);
    assert_eq!(rig.answered(0).len(), 51);
    assert!(counters.switches > 20, "{counters:?}");
}

#[test]
fn a_seat_without_a_connection_has_no_limit() {
    let setup = Setup {
        geometry: GeometryConfig {
            mapping: Mapping::Static,
            ..Setup::default().geometry
        },
        ..Setup::default()
    };
    let mut rig = Rig::new(setup);
    let limit = Some(Limit {
        calls_per_second: 1,
        burst: 1,
    });
    assert!(!rig.server.set_limit(0, limit));
    assert!(rig.server.open(OpenConn {
        seat: 0,
        owner: 1,
        ring_at: 0,
        staging_at: 0,
        placement: Placement::InOrder,
    }));
    assert!(rig.server.set_limit(0, limit));
}
