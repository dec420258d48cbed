//! Budgets, and calls that are taken back before they are sent.

use scalerpc_core::Memory;
use scalerpc_core::client::{CallError, Cancelled, ClientState};
use scalerpc_core::wire::{Placement, Status};

use crate::common::{Ended, Rig, Setup};

fn late(call: u64) -> Ended {
    Ended::Answer {
        call,
        status: Status::DEADLINE_EXCEEDED,
        bytes: Vec::new(),
    }
}

fn answer(call: u64, bytes: &[u8]) -> Ended {
    Ended::Answer {
        call,
        status: Status::OK,
        bytes: bytes.to_vec(),
    }
}

fn both_placements() -> [Setup; 2] {
    [Placement::InOrder, Placement::AnyOrder].map(|placement| {
        let mut setup = Setup::single_groups(2);
        setup.limits.placement = placement;
        setup
    })
}

/// What counts for a staged call is the time since its entry was accepted: to the nanosecond.
#[test]
fn a_staged_call_is_late_when_it_has_waited_for_its_budget() {
    const WAIT_NS: u64 = 5_000_000;
    for setup in both_placements() {
        for (budget_ns, runs) in [
            (0, false),
            (1, false),
            (WAIT_NS, false),
            (WAIT_NS + 1, true),
            (u64::MAX, true),
        ] {
            let mut rig = Rig::with_clients(setup, 1);
            rig.client(0).down.held = true;
            // On the way it counts for nobody.
            rig.client(0).up.held = true;
            assert_eq!(rig.call_within(0, b"request", budget_ns), Ok(1));
            rig.post(0);
            rig.now_ns += 9_000_000;
            rig.client(0).up.held = false;
            rig.deliver(0);
            let accepted_ns = rig.now_ns;
            // The fetch hangs.
            rig.serve();
            rig.now_ns = accepted_ns + WAIT_NS;
            rig.client(0).down.held = false;
            rig.deliver(0);
            rig.act();
            assert_eq!(rig.now_ns, accepted_ns + WAIT_NS);
            rig.settle();
            let expected = match runs {
                true => answer(1, b"request"),
                false => late(1),
            };
            assert_eq!(rig.client(0).ended, [expected], "budget {budget_ns}");
            assert_eq!(rig.log.served.len(), usize::from(runs));
            assert_eq!(rig.server.counters().calls_late, u64::from(!runs));
        }
    }
}

/// A request that is written straight into the zone is there when the server sees it.
#[test]
fn a_direct_call_is_late_only_without_any_budget_left() {
    for setup in both_placements() {
        let mut rig = Rig::with_clients(setup, 1);
        rig.call(0, b"first").unwrap();
        rig.settle();
        assert_eq!(rig.client(0).engine.state(), ClientState::Process);
        assert_eq!(rig.call_within(0, b"one", 1), Ok(2));
        assert_eq!(rig.call_within(0, b"none", 0), Ok(3));
        assert_eq!(rig.call_within(0, b"some", 1_000), Ok(4));
        assert_eq!(rig.client(0).engine.parked(), 3);
        rig.settle();
        // It waits for the client, and the client's clock tells.
        let expected = [answer(1, b"first"), late(2), late(3), late(4)];
        assert_eq!(rig.client(0).ended, expected);
        rig.client(0).ended.clear();
        assert_eq!(rig.call_within(0, b"one", 1), Ok(5));
        rig.post(0);
        rig.now_ns += 1_000_000;
        rig.settle();
        assert_eq!(rig.client(0).ended, [answer(5, b"one")]);
    }
}

/// Rule R3: what a switch event gives back is staged again, with what is left by the client's own clock.
#[test]
fn a_call_that_is_staged_again_has_only_what_is_left_of_its_budget() {
    for setup in both_placements() {
        for (left_ns, runs) in [(0, false), (1, false), (500_000, true)] {
            let mut rig = Rig::with_clients(setup, 2);
            rig.call(0, b"first").unwrap();
            rig.settle();
            // Its WRITE comes too late for the tenancy.
            rig.client(0).up.held = true;
            assert_eq!(rig.call_within(0, b"late", 10_000_000 + left_ns), Ok(2));
            let made_ns = rig.now_ns;
            rig.lose_the_slice_on_the_way(0, 1);
            rig.now_ns = made_ns + 10_000_000;
            rig.client(0).up.held = false;
            rig.client(0).stopped = false;
            rig.settle();
            let expected = match runs {
                true => answer(2, b"late"),
                false => late(2),
            };
            assert_eq!(rig.client(0).ended.pop(), Some(expected), "{left_ns}");
        }
    }
}

/// A call that was handed out has its deadline with it, for who runs it later.
#[test]
fn a_call_tells_its_deadline_on_the_servers_clock() {
    let mut setup = Setup::single_groups(1);
    setup.keep_calls = true;
    let mut rig = Rig::with_clients(setup, 1);
    rig.call(0, b"no budget").unwrap();
    rig.call_within(0, b"a budget", 5_000_000).unwrap();
    rig.post(0);
    let posted_ns = rig.now_ns;
    rig.serve();
    let deadlines: Vec<_> = rig.kept.iter().map(|call| call.deadline_ns).collect();
    assert_eq!(deadlines[0], u64::MAX);
    // The scan finds the entry at once.
    assert_eq!(deadlines[1], posted_ns + 5_000_000);
}

/// The largest request fits with a budget, too, wherever the lines of a block end.
#[test]
fn every_request_may_have_a_budget() {
    for max in [0, 1, 31, 32, 33, 63, 64, 65, 96, 100, 128] {
        for mut setup in both_placements() {
            setup.geometry.request_max_bytes = max;
            setup.geometry.response_max_bytes = max;
            let mut rig = Rig::with_clients(setup, 1);
            let largest = vec![7; max as usize];
            for call in 1..=20 {
                assert_eq!(rig.call_within(0, &largest, u64::MAX), Ok(call));
                rig.settle();
                assert_eq!(rig.client(0).ended.pop(), Some(answer(call, &largest)));
            }
            let larger = vec![7; max as usize + 1];
            let refused = CallError::TooLarge { max: max as usize };
            assert_eq!(rig.call_within(0, &larger, 1), Err(refused));
        }
    }
}

/// Requests without options are as they ever were: one line for 32 bytes.
#[test]
fn a_request_without_options_has_no_extension() {
    let mut rig = Rig::with_clients(Setup::single_groups(1), 1);
    rig.call(0, &[1; 32]).unwrap();
    rig.settle();
    let spans = |rig: &mut Rig| {
        let client = rig.client(0);
        let (exposed, private) = (client.exposed.region(), client.private.region());
        let wr = client.engine.next_write(exposed, private).unwrap();
        let end = wr.local + wr.len;
        (wr.len, private.load(end - 24) >> 48)
    };
    rig.call(0, &[1; 32]).unwrap();
    assert_eq!(spans(&mut rig), (64, 0));
    rig.call_within(0, &[1; 32], 9).unwrap();
    assert_eq!(spans(&mut rig), (128, 1));
    rig.call(0, &[1; 32]).unwrap();
    assert_eq!(rig.client(0).engine.cancel(4), Cancelled::NeverRuns);
    assert_eq!(spans(&mut rig), (64, 1 << 4));
}

/// At each stage at which a call may be parked, and with and without a budget.
#[test]
fn a_call_that_is_cancelled_while_it_is_parked_never_runs() {
    for setup in both_placements() {
        for budget_ns in [None, Some(1_000_000_000)] {
            let call = |rig: &mut Rig, bytes: &[u8]| match budget_ns {
                Some(budget_ns) => rig.call_within(0, bytes, budget_ns).unwrap(),
                None => rig.call(0, bytes).unwrap(),
            };
            // Before it is staged, after it was staged, and while the zone is written to.
            for parked_in in [ClientState::Idle, ClientState::Warmup, ClientState::Process] {
                let mut rig = Rig::with_clients(setup, 1);
                if parked_in == ClientState::Process {
                    call(&mut rig, b"before");
                    rig.settle();
                }
                if parked_in == ClientState::Warmup {
                    call(&mut rig, b"before");
                    rig.post(0);
                }
                assert_eq!(rig.client(0).engine.state(), parked_in);
                let first = call(&mut rig, &[1; 100]);
                let second = call(&mut rig, &[2; 90]);
                let engine = &mut rig.client(0).engine;
                assert_eq!(engine.cancel(first), Cancelled::NeverRuns);
                assert_eq!(engine.cancel(first), Cancelled::Ended);
                rig.settle();
                let expected = answer(second, &[2; 90]);
                assert_eq!(rig.client(0).ended.pop(), Some(expected), "{parked_in:?}");
                assert!(rig.served(0).iter().all(|(number, _)| *number != first));
                assert_eq!(rig.server.counters().calls_cancelled, 1);
                // Its place in the window has come back.
                for _ in 0..2 * setup.geometry.window {
                    call(&mut rig, b"after");
                    rig.settle();
                }
            }
        }
    }
}

/// Rule R3: a call that a switch event gave back is parked; and one that was cancelled before does not run then.
#[test]
fn a_cancelled_call_that_is_staged_again_does_not_run() {
    for setup in both_placements() {
        for cancelled_after in [false, true] {
            let mut rig = Rig::with_clients(setup, 2);
            rig.call(0, b"first").unwrap();
            rig.settle();
            rig.client(0).up.held = true;
            rig.call(0, b"late").unwrap();
            rig.post(0);
            if !cancelled_after {
                let engine = &mut rig.client(0).engine;
                assert_eq!(engine.cancel(2), Cancelled::MayRun, "nobody can know yet");
            }
            rig.client(0).stopped = true;
            rig.call(1, b"x").unwrap();
            rig.turn(200_000);
            rig.settle();
            rig.poll(0);
            if cancelled_after {
                assert_eq!(rig.client(0).engine.cancel(2), Cancelled::NeverRuns);
            }
            rig.client(0).up.held = false;
            rig.client(0).stopped = false;
            rig.settle();
            assert_eq!(rig.client(0).ended, [answer(1, b"first")]);
            assert_eq!(rig.served(0).len(), 1);
        }
    }
}

/// After the connection was lost a parked call is still one that never runs.
#[test]
fn cancelling_after_a_loss_tells_what_may_have_run() {
    let mut rig = Rig::with_clients(Setup::single_groups(1), 1);
    rig.call(0, b"staged").unwrap();
    rig.post(0);
    rig.call(0, b"parked").unwrap();
    let engine = &mut rig.client(0).engine;
    engine.lost();
    assert_eq!(engine.cancel(1), Cancelled::MayRun);
    assert_eq!(engine.cancel(2), Cancelled::NeverRuns);
    assert_eq!(engine.take_failed(), None);
    assert_eq!(engine.outstanding(), 0);
}
