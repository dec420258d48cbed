//! Who is served when: no starvation, no waiting for nobody, bounded waits (R6, R7, R8).

use scalerpc_core::client::ClientState;

use crate::common::{Rig, Setup};

const HANDLER_NS: u64 = 1_000;

fn setup(clients: u32, group_size: u32, window: u32) -> Setup {
    let mut setup = Setup {
        handler_ns: HANDLER_NS,
        ..Setup::default()
    };
    setup.geometry.clients_max = clients;
    setup.geometry.group_size = group_size;
    setup.geometry.window = window;
    setup.limits.sge_max = 16;
    setup
}

/// Runs while `busy` clients keep their windows full, until `done`.
fn run_until(rig: &mut Rig, busy: std::ops::Range<u32>, done: impl Fn(&mut Rig) -> bool) {
    for _ in 0..500_000 {
        if done(rig) {
            return;
        }
        rig.busy_turn(busy.clone());
    }
    panic!("it never comes: {:?}", rig.server.counters());
}

/// Makes one call, and returns how long it waited until its handler began.
fn wait_ns(rig: &mut Rig, busy: std::ops::Range<u32>, seat: u32) -> u64 {
    let (begun_ns, handler_ns) = (rig.now_ns, rig.setup.handler_ns);
    let call = rig.call(seat, b"probe").unwrap();
    run_until(rig, busy, |rig| rig.answered(seat).last() == Some(&call));
    let served = rig.log.served.iter().rev().find(|it| it.seat == seat);
    let at_ns = served.unwrap().at_ns - handler_ns;
    rig.log.served.clear();
    at_ns - begun_ns
}

/// Field case F1: one group saturated, four with one call each.
#[test]
fn groups_with_a_single_call_are_served_within_groups_times_the_slice() {
    let mut rig = Rig::with_clients(setup(20, 4, 4), 20);
    let slice_ns = rig.setup.server.time_slice_ns;
    assert_eq!(rig.server.counters().groups, 5);
    for _ in 0..5 {
        let begun_ns = rig.now_ns;
        let calls: Vec<(u32, u64)> = (4..20)
            .step_by(4)
            .map(|seat| (seat, rig.call(seat, b"one").unwrap()))
            .collect();
        run_until(&mut rig, 0..4, |rig| {
            let mut all = calls.iter();
            all.all(|&(seat, call)| rig.answered(seat).last() == Some(&call))
        });
        let waited_ns = rig.now_ns - begun_ns;
        assert!(waited_ns <= 5 * slice_ns, "{waited_ns}");
    }
}

/// Field case F1: 24 of 25 groups are idle.
#[test]
fn idle_groups_are_skipped_at_once() {
    let mut rig = Rig::with_clients(setup(100, 4, 4), 100);
    assert_eq!(rig.server.counters().groups, 25);
    for seat in [99, 0, 50, 99, 3] {
        let waited_ns = wait_ns(&mut rig, 0..0, seat);
        // A few rounds to find it, and the time in which the last one's group might have gone on.
        let grace_ns = rig.setup.server.idle_switch_ns + 5_000;
        assert!(waited_ns <= grace_ns, "seat {seat} waited {waited_ns}");
    }
    let counters = rig.server.counters();
    assert!(counters.switches <= 5, "a switch per caller: {counters:?}");
}

/// Field case F2.
#[test]
fn one_greedy_client_does_not_keep_its_group_waiting() {
    let mut setup = setup(40, 40, 16);
    setup.handler_ns = 200;
    let mut rig = Rig::with_clients(setup, 40);
    let slice_ns = setup.server.time_slice_ns;
    for seat in 1..40 {
        rig.call(seat, b"one").unwrap();
    }
    run_until(&mut rig, 0..1, |rig| {
        (1..40).all(|seat| !rig.served(seat).is_empty())
    });
    assert!(rig.now_ns <= slice_ns, "all in the first slice");
    assert!(rig.served(0).len() >= 8, "and the greedy one goes on");
    assert_eq!(rig.server.counters().switches, 0);
}

/// Field case F2: small and large messages, both without end.
#[test]
fn neither_small_nor_large_messages_starve() {
    let mut setup = setup(2, 4, 4);
    setup.geometry.request_max_bytes = 16_384;
    let mut rig = Rig::with_clients(setup, 2);
    let large = vec![1; 16_384];
    for _ in 0..200 {
        while rig.call(0, b"small").is_ok() {}
        while rig.call(1, &large).is_ok() {}
        rig.clients_turn();
        for _ in 0..4 {
            rig.act();
        }
    }
    let (small, large) = (rig.served(0).len(), rig.served(1).len());
    assert!(small > 100 && small.abs_diff(large) <= 8, "{small} {large}");
}

/// Rule R7.
#[test]
fn a_lone_caller_is_served_without_a_switch_and_as_among_nobody() {
    let mut costs = Vec::new();
    for (seats, open) in [(1, 1), (10_240, 10_000)] {
        let mut setup = setup(seats, 40, 4);
        setup.handler_ns = 0;
        let mut rig = Rig::new(setup);
        let caller = open / 2;
        for seat in 0..open {
            if seat == caller {
                rig.open(seat);
            } else {
                rig.open_raw(seat);
            }
        }
        rig.call(caller, b"first").unwrap();
        rig.settle();
        assert!(
            rig.now_ns < 20_000,
            "the first call is found fast: {}",
            rig.now_ns
        );
        let mut cost = Vec::new();
        for call in 2..500 {
            rig.call(caller, b"x").unwrap();
            assert_eq!(rig.post(caller), 1, "one WRITE, straight into the zone");
            let mut actions = 0;
            while rig.served(caller).len() < call {
                rig.act();
                actions += 1;
            }
            rig.poll(caller);
            rig.now_ns += 3_000;
            cost.push(actions);
        }
        let counters = rig.server.counters();
        assert_eq!(
            (counters.switches, counters.staged_calls),
            (0, 1),
            "{counters:?}"
        );
        assert_eq!(
            counters.switch_events_extra + counters.switch_events_ridden,
            0
        );
        assert_eq!(rig.client(caller).engine.state(), ClientState::Process);
        costs.push(cost);
    }
    assert_eq!(
        costs[0], costs[1],
        "looks at the server until the call is seen"
    );
    assert!(costs[0].iter().all(|&looks| looks <= 2));
}

/// Rule R7: when nobody else has demand, the group that is served goes on, slice after slice.
#[test]
fn a_lone_group_keeps_running() {
    let mut rig = Rig::with_clients(setup(40, 4, 4), 40);
    run_until(&mut rig, 0..4, |rig| rig.now_ns > 2_000_000);
    let counters = rig.server.counters();
    assert_eq!((counters.switches, counters.warmup_reads), (0, 4));
    assert!(counters.slices >= 10, "{counters:?}");
}

/// Rule R8: over geometries, numbers of groups, and handlers from short to longer than a slice.
#[test]
fn nobody_waits_longer_than_the_bound() {
    for (group_size, window) in [(1, 1), (1, 2), (1, 4), (2, 2), (4, 1), (4, 4), (3, 16)] {
        for handler_ns in [700, 20_000, 300_000] {
            for groups in [2, 3, 5] {
                assert_waits(group_size, window, handler_ns, groups, 8);
            }
        }
    }
}

fn assert_waits(group_size: u32, window: u32, handler_ns: u64, groups: u32, burst: u32) {
    let clients = group_size * groups;
    let mut setup = setup(clients, group_size, window);
    (setup.handler_ns, setup.server.burst) = (handler_ns, burst);
    let mut rig = Rig::with_clients(setup, clients);
    let bound_ns = rig.server.wait_bound_ns(groups, handler_ns);
    assert!(bound_ns >= u64::from(groups) * setup.server.time_slice_ns);
    let probe = clients - 1;
    for i in 0..4 {
        // At different moments of the others' slices.
        let start_ns = rig.now_ns + i * 29_007;
        run_until(&mut rig, 0..probe, |rig| rig.now_ns >= start_ns);
        let waited_ns = wait_ns(&mut rig, 0..probe, probe);
        assert!(
            waited_ns <= bound_ns,
            "{waited_ns} > {bound_ns}: groups of {group_size}, window {window}, {handler_ns} ns"
        );
    }
}

/// Rule R8: the bound does not overflow.
#[test]
fn the_bound_saturates() {
    let rig = Rig::new(Setup::default());
    assert_eq!(rig.server.wait_bound_ns(u32::MAX, u64::MAX), u64::MAX);
    // One pass over the demand map: half a microsecond for each line of it.
    let lines = u64::from(rig.geometry.clients_max()).div_ceil(64);
    assert_eq!(rig.server.wait_bound_ns(0, 1), 500 * lines);
}

/// Rule R6, field case F5's kind: a client that floods its group cannot delay another group.
#[test]
fn a_flood_in_one_group_delays_another_by_its_slice_at_most() {
    let mut rig = Rig::with_clients(setup(8, 4, 16), 8);
    rig.setup.handler_ns = 300;
    for _ in 0..10 {
        let waited_ns = wait_ns(&mut rig, 0..4, 7);
        let drain_ns = 4 * 16 * rig.setup.handler_ns;
        let slice_ns = rig.setup.server.time_slice_ns;
        assert!(waited_ns <= slice_ns + drain_ns + 10_000, "{waited_ns}");
    }
}

/// Field case F5: calls of 10 ms whose answers come later, from elsewhere, cost nobody else a thing.
#[test]
fn calls_that_are_answered_later_do_not_slow_the_others_down() {
    const SLOW_NS: u64 = 10_000_000;
    let longest_ns = |slow: bool| {
        let mut rig = Rig::with_clients(setup(8, 4, 4), 8);
        rig.setup.keep_calls = true;
        let (mut longest_ns, mut slow_ones) = (0, 0);
        let mut due = std::collections::VecDeque::new();
        let mut begun_ns = [0; 8];
        for _ in 0..20_000 {
            for seat in 0..8 {
                if (seat > 0 || slow) && rig.client(seat).engine.outstanding() == 0 {
                    begun_ns[seat as usize] = rig.now_ns;
                    rig.call(seat, b"x").unwrap();
                }
            }
            rig.clients_turn();
            while rig.act() {
                if let Some(call) = rig.kept.pop_front() {
                    if call.seat == 0 {
                        due.push_back((rig.now_ns + SLOW_NS, call));
                        slow_ones += 1;
                        continue;
                    }
                    longest_ns = longest_ns.max(rig.now_ns - begun_ns[call.seat as usize]);
                    rig.kept.push_back(call);
                    rig.answer_kept();
                }
            }
            rig.now_ns += 200;
            if due.front().is_some_and(|(at_ns, _)| *at_ns <= rig.now_ns) {
                rig.kept.extend(due.pop_front().map(|(_, call)| call));
                rig.answer_kept();
            }
        }
        assert!(slow_ones > 1 || !slow);
        longest_ns
    };
    let (with_ns, without_ns) = (longest_ns(true), longest_ns(false));
    let slice_ns = setup(8, 4, 4).server.time_slice_ns;
    assert!(
        with_ns < without_ns + slice_ns,
        "{with_ns} instead of {without_ns} ns"
    );
}

/// As when a virtual machine was paused: the clock leaps, for whatever is under way. Nobody is at fault.
#[test]
fn a_clock_that_leaps_ends_no_connection() {
    let mut setup = setup(8, 2, 4);
    setup.limits.can_revoke = true;
    let mut rig = Rig::with_clients(setup, 8);
    let (mut issued, mut leaps) = ([0_u64; 8], 0);
    for turn in 0..2_000_u64 {
        for seat in 0..8 {
            issued[seat as usize] += u64::from(rig.call(seat, b"x").is_ok());
        }
        rig.clients_turn();
        for _ in 0..6 {
            // While a switch event is on its way, and the zone in quarantine.
            let held = rig.server.counters().quarantined_now > 0;
            if held && turn >= leaps * 50 {
                rig.now_ns += 3_600_000_000_000;
                leaps += 1;
            }
            if !rig.act() {
                rig.now_ns += 200;
            }
        }
    }
    rig.settle();
    assert!(leaps > 10, "{leaps}");
    assert_eq!(rig.log.closed, []);
    for seat in 0..8 {
        let all: Vec<u64> = (1..=issued[seat as usize]).collect();
        assert_eq!(rig.answered(seat), all);
    }
}
