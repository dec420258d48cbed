//! Groups by priority: who is put together, who is moved, and how often.

use scalerpc_core::server::{Class, Grouping, Priority};

use crate::common::{Rig, Setup};

/// Clients of 12 groups of 4; a handler takes a microsecond.
fn setup(grouping: Grouping) -> Setup {
    let mut setup = Setup {
        handler_ns: 1_000,
        ..Setup::default()
    };
    setup.geometry.clients_max = 48;
    setup.server.grouping = grouping;
    setup.server.time_slice_ns = 20_000;
    setup
}

/// Some turns in which `hot` clients keep their windows full, and each other one makes a call now and then.
fn run(rig: &mut Rig, turns: u32, hot: impl Fn(u32) -> bool) {
    let clients = rig.clients.len() as u32;
    for turn in 0..turns {
        for seat in 0..clients {
            if hot(seat) {
                while rig.call(seat, b"hot").is_ok() {}
            } else if (turn + seat) % 50 == 0 {
                // Its window may be full of calls that wait.
                let _ = rig.call(seat, b"cold");
            }
        }
        rig.clients_turn();
        for _ in 0..20 {
            if !rig.act() {
                rig.now_ns += 200;
            }
        }
        if turn % 64 == 63 {
            rig.server.census().unwrap();
            rig.log.served.clear();
        }
    }
}

fn seats_of(rig: &Rig, class: Class) -> Vec<u32> {
    let seats = 0..rig.geometry.clients_max();
    seats
        .filter(|&seat| rig.server.class(seat) == Some(class))
        .collect()
}

#[test]
fn hot_clients_gather_in_groups_of_their_own() {
    let mut rig = Rig::with_clients(setup(Grouping::Priority), 48);
    let is_hot = |seat| seat % 8 == 3;
    run(&mut rig, 30_000, is_hot);
    let hot: Vec<u32> = (0..48).filter(|&seat| is_hot(seat)).collect();
    assert_eq!(seats_of(&rig, Class::High), hot);
    // Six hot clients are three groups of two, half of the default size.
    let groups: Vec<u32> = rig.server.group_sizes(Class::High).collect();
    assert_eq!(groups.iter().sum::<u32>(), 6, "{groups:?}");
    assert!(groups.iter().all(|&size| size <= 3), "{groups:?}");
    let moves = rig.server.counters().moves;
    assert!((6..=12).contains(&moves), "{moves} moves");
    // And none is moved later.
    run(&mut rig, 30_000, is_hot);
    assert_eq!(rig.server.counters().moves, moves);
}

#[test]
fn those_who_turn_cold_are_ordinary_again() {
    let mut rig = Rig::with_clients(setup(Grouping::Priority), 48);
    run(&mut rig, 30_000, |seat| seat < 6);
    assert_eq!(seats_of(&rig, Class::High), [0, 1, 2, 3, 4, 5]);
    run(&mut rig, 60_000, |_| false);
    assert_eq!(seats_of(&rig, Class::High), []);
}

#[test]
fn like_loads_and_groups_by_arrival_move_nobody() {
    let mut even = Rig::with_clients(setup(Grouping::Priority), 48);
    run(&mut even, 20_000, |_| true);
    assert_eq!(even.server.counters().moves, 0);

    let mut arrival = Rig::with_clients(setup(Grouping::Arrival), 48);
    run(&mut arrival, 20_000, |seat| seat % 8 == 3);
    assert_eq!(arrival.server.counters().moves, 0);
    assert_eq!(seats_of(&arrival, Class::Normal).len(), 48);
}

/// Whatever the period at which clients turn hot and cold, they are not moved in every other tenancy.
#[test]
fn clients_that_turn_hot_and_cold_are_seldom_moved() {
    for period in [20, 50, 100, 200, 400, 800, 1_600] {
        let mut rig = Rig::with_clients(setup(Grouping::Priority), 48);
        let (mut before, cycles) = (0, 20_000 / (2 * period));
        for cycle in 0..cycles {
            run(&mut rig, period, |seat| seat < 4);
            run(&mut rig, period, |_| false);
            if cycle == cycles / 4 {
                before = rig.server.counters().moves;
            }
        }
        let counters = rig.server.counters();
        // Of the tenancies that those four had, no more than one in ten moved them, there and back.
        let tenancies = counters.quarantined_zones;
        let moves = counters.moves - before;
        assert!(
            moves <= 8 + tenancies / 10,
            "period {period}: {moves} moves in {tenancies} tenancies"
        );
    }
}

#[test]
fn an_operators_word_counts_more_than_what_is_measured() {
    let mut rig = Rig::with_clients(setup(Grouping::Priority), 48);
    let pinned = Priority {
        class: Some(Class::High),
        ..Priority::default()
    };
    let weighted = Priority {
        weight_log2: 20,
        ..Priority::default()
    };
    assert!(rig.server.set_priority(7, pinned) && rig.server.set_priority(8, weighted));
    assert!(!rig.server.set_priority(48, pinned), "no such seat");
    run(&mut rig, 20_000, |_| true);
    assert_eq!(seats_of(&rig, Class::High), [7, 8]);
    let groups: Vec<u32> = rig.server.group_sizes(Class::High).collect();
    assert_eq!(groups, [2]);
    assert!(rig.server.set_priority(7, Priority::default()));
    run(&mut rig, 20_000, |_| true);
    assert_eq!(seats_of(&rig, Class::High), [8]);
    // It ends with the connection.
    rig.fence(8);
    rig.clients[8] = None;
    rig.open(8);
    run(&mut rig, 20_000, |_| true);
    assert_eq!(seats_of(&rig, Class::High), []);
}

/// Rule R8, with slices twice as long: a call of a cold client waits for no more than its bound.
#[test]
fn cold_clients_wait_no_longer_than_the_bound() {
    let mut rig = Rig::with_clients(setup(Grouping::Priority), 48);
    let is_hot = |seat| seat % 8 == 3;
    run(&mut rig, 30_000, is_hot);
    // Two slices, a round, a drain and the round in which demand is found; for each group, and a pass over the map.
    let zones = rig.geometry.zones() * rig.geometry.window();
    let turn_ns = 2 * 20_000 + u64::from(zones + 64 + 64) * 1_000;
    for seat in [0, 20, 47] {
        let groups = rig.server.counters().groups;
        let bound_ns = groups * turn_ns + 500;
        assert!(
            rig.server
                .wait_bound_ns(groups as u32, rig.setup.handler_ns)
                <= bound_ns
        );
        // Its last call is answered first, and its next one is the probe.
        let begun_ns = rig.now_ns;
        while rig.client(seat).engine.outstanding() > 0 {
            assert!(rig.now_ns - begun_ns <= bound_ns, "seat {seat}");
            run(&mut rig, 1, is_hot);
        }
        let (begun_ns, call) = (rig.now_ns, rig.call(seat, b"probe").unwrap());
        while !rig
            .log
            .served
            .iter()
            .any(|it| it.seat == seat && it.number == call)
        {
            assert!(rig.now_ns - begun_ns <= bound_ns, "seat {seat}");
            run(&mut rig, 1, is_hot);
        }
    }
}
