//! Calls from one client: sizes, windows, cancelling, and the end of a connection.

use scalerpc_core::client::{CallError, Cancelled, ClientState};
use scalerpc_core::post::{Completion, WcStatus, WrId, WrKind};
use scalerpc_core::wire::{Placement, Status};

use crate::common::raw::request;
use crate::common::{Ended, Rig, Setup};

fn answer(call: u64, bytes: &[u8]) -> Ended {
    Ended::Answer {
        call,
        status: Status::OK,
        bytes: bytes.to_vec(),
    }
}

fn failed(call: u64, may_have_run: bool) -> Ended {
    Ended::Failed { call, may_have_run }
}

/// Lost calls end in any order.
fn ended_by_number(rig: &mut Rig, seat: u32) -> Vec<Ended> {
    let mut ended = rig.client(seat).ended.clone();
    ended.sort_by_key(|it| match it {
        Ended::Answer { call, .. } | Ended::Failed { call, .. } => *call,
    });
    ended
}

fn setup(window: u32, max: u32) -> Setup {
    let mut setup = Setup::default();
    setup.geometry.window = window;
    setup.geometry.request_max_bytes = max;
    setup.geometry.response_max_bytes = max;
    setup
}

/// One call that is fetched from the staging area, and one that is written straight into the zone.
fn echo_both_ways(setup: Setup, bytes: &[u8]) {
    let mut rig = Rig::with_clients(setup, 1);
    for call in 1..=2 {
        assert_eq!(rig.call(0, bytes), Ok(call));
        rig.settle();
        let ended = rig.client(0).ended.pop();
        assert_eq!(ended, Some(answer(call, bytes)), "{} bytes", bytes.len());
        let served = rig.log.served.pop().unwrap();
        assert_eq!((served.method, served.bytes.as_slice()), (7, bytes));
    }
    let counters = rig.server.counters();
    assert_eq!((counters.staged_calls, counters.direct_writes), (1, 1));
}

/// Field case E1.
#[test]
fn payloads_of_every_boundary_size_come_back_unchanged() {
    let max = 300;
    let sizes = [
        0,
        1,
        2,
        3,
        7,
        8,
        31,
        32,
        33,
        63,
        64,
        65,
        96,
        97,
        128,
        129,
        max - 1,
        max,
    ];
    for placement in [Placement::InOrder, Placement::AnyOrder] {
        for inline_max in [0, 64, usize::MAX] {
            for &len in &sizes {
                let mut setup = setup(4, max);
                setup.limits.placement = placement;
                setup.limits.inline_max = inline_max;
                let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8 | 1).collect();
                echo_both_ways(setup, &bytes);
            }
        }
    }
}

/// Field case E1.
#[test]
fn a_request_past_the_maximum_is_refused_before_any_work_request() {
    for max in [0, 1, 32, 100] {
        let mut rig = Rig::with_clients(setup(4, max), 1);
        let before = rig.client(0).engine.counters();
        for over in [1, 64, 100_000] {
            let refused = rig.call(0, &vec![0xff; max as usize + over]);
            let max = max as usize;
            assert_eq!(refused, Err(CallError::TooLarge { max }));
        }
        assert_eq!(rig.post(0), 0, "nothing is posted");
        let client = rig.client(0);
        assert_eq!(client.engine.counters(), before);
        assert_eq!(
            (client.engine.outstanding(), client.engine.parked()),
            (0, 0)
        );
        assert_eq!(rig.call(0, b""), Ok(1), "no number was used up");
    }
}

/// An answer that does not fit a response becomes a status, and no byte of it travels.
#[test]
fn an_answer_past_the_maximum_says_so() {
    let mut setup = setup(2, 100);
    setup.keep_calls = true;
    let mut rig = Rig::with_clients(setup, 1);
    rig.call(0, b"abc").unwrap();
    rig.turn(0);
    let call = rig.kept.pop_front().unwrap();
    let (exposed, private) = (rig.exposed.region(), rig.private.region());
    let wr = rig.server.reply(call, Status::OK, 101, exposed, private);
    // The line has room for the news of the zone, and no payload.
    assert_eq!(wr.map(|wr| wr.len), Some(64));
}

/// Field case E2: trailers always travel, so no work request is empty. (The rig looks at each.)
#[test]
fn empty_requests_and_empty_answers_travel_as_whole_lines() {
    for max in [0, 100] {
        let mut rig = Rig::with_clients(setup(4, max), 2);
        for round in 1..=20 {
            for seat in 0..2 {
                assert_eq!(rig.call(seat, b""), Ok(round));
            }
            rig.settle();
        }
        for seat in 0..2 {
            let right: Vec<Ended> = (1..=20).map(|call| answer(call, b"")).collect();
            assert_eq!(rig.client(seat).ended, right);
        }
    }
}

/// Field case E4: with a window of 1 every call goes through the same block.
#[test]
fn a_shorter_message_shows_nothing_of_a_longer_one_before_it() {
    for placement in [Placement::InOrder, Placement::AnyOrder] {
        let mut setup = setup(1, 300);
        setup.limits.placement = placement;
        let mut rig = Rig::with_clients(setup, 1);
        for filler in [0xff, 0x00, 0x01, 0x0f, 0x80] {
            for len in [300, 5, 0, 290, 33, 1] {
                let bytes = vec![filler; len];
                let call = rig.call(0, &bytes).unwrap();
                rig.settle();
                assert_eq!(rig.client(0).ended.pop(), Some(answer(call, &bytes)));
                assert_eq!(rig.log.served.pop().unwrap().bytes, bytes);
            }
        }
    }
}

/// Field case E4: a payload that is itself a sealed request, the very one that comes next.
#[test]
fn a_payload_that_looks_like_the_next_message_is_only_a_payload() {
    for window in [1, 2] {
        let mut rig = Rig::with_clients(setup(window, 192), 1);
        let owner = rig.owners[0];
        for call in 1..=12 {
            let head = crate::common::raw::head(20);
            let forged = request(&rig, owner, call + 1, head, None, &[0xee; 20]);
            let bytes = [forged.as_slice(), forged.as_slice(), &forged[..40]].concat();
            assert_eq!(rig.call(0, &bytes), Ok(call));
            rig.settle();
            assert_eq!(rig.client(0).ended.pop(), Some(answer(call, &bytes)));
        }
        assert_eq!(rig.log.served.len(), 12, "no forged request ran");
    }
}

/// Field case E6: the slot of a call that was given up is not lent to the next one's answer.
#[test]
fn after_a_cancelled_call_the_next_one_gets_its_own_answer() {
    for window in [1, 2, 4] {
        let mut setup = setup(window, 100);
        setup.keep_calls = true;
        let mut rig = Rig::with_clients(setup, 1);
        assert_eq!(rig.call(0, b"first"), Ok(1));
        rig.turn(0);
        assert_eq!(rig.client(0).engine.cancel(1), Cancelled::MayRun);
        assert_eq!(
            rig.client(0).engine.cancel(1),
            Cancelled::Ended,
            "only once"
        );
        assert_eq!(
            rig.client(0).engine.cancel(2),
            Cancelled::Ended,
            "there is no such call"
        );
        if window == 1 {
            // The place in the window is taken until the server has answered.
            assert_eq!(rig.call(0, b"second"), Err(CallError::WindowFull));
            rig.answer_kept();
            rig.turn(0);
        }
        assert_eq!(rig.call(0, b"second"), Ok(2));
        for _ in 0..3 {
            if !rig.kept.is_empty() {
                rig.answer_kept();
            }
            rig.turn(0);
        }
        assert_eq!(rig.client(0).ended, [answer(2, b"second")]);
        let engine = &rig.client(0).engine;
        assert_eq!((engine.outstanding(), engine.counters().cancelled), (0, 1));
    }
}

/// Field case E6, at each stage at which a call may be given up.
#[test]
fn a_cancelled_call_is_never_answered_wherever_it_was() {
    for stage in 0..4 {
        let mut rig = Rig::with_clients(setup(2, 100), 1);
        rig.client(0).down.held = stage == 3;
        rig.call(0, b"one").unwrap();
        if stage >= 1 {
            rig.post(0);
        }
        if stage >= 2 {
            rig.serve();
        }
        let expected = match stage {
            0 => Cancelled::NeverRuns,
            _ => Cancelled::MayRun,
        };
        assert_eq!(rig.client(0).engine.cancel(1), expected);
        rig.client(0).down.held = false;
        rig.settle();
        assert_eq!(rig.served(0).len(), usize::from(stage > 0));
        for call in 2..=9 {
            assert_eq!(rig.call(0, &[call as u8; 9]), Ok(call));
            rig.settle();
            assert_eq!(
                rig.client(0).ended.pop(),
                Some(answer(call, &[call as u8; 9]))
            );
        }
        assert_eq!(rig.client(0).ended, []);
    }
}

/// Field case E7: ring, zone, record and number wrap around many times.
#[test]
fn order_and_answers_survive_every_wrap_for_each_window() {
    for window in (0..=6).map(|bits| 1 << bits) {
        let mut setup = setup(window, 32);
        setup.limits.sge_max = 16;
        let mut rig = Rig::with_clients(setup, 1);
        // Numbers on the wire keep 16 bits of a call's number: one window goes past that.
        let calls = if window == 64 { 66_000 } else { 1_500 };
        let mut issued = 0_u64;
        while rig.client(0).ended.len() < calls {
            let burst = 1 + issued % u64::from(window + 2);
            for _ in 0..burst {
                if rig.call(0, &(issued + 1).to_le_bytes()).is_ok() {
                    issued += 1;
                }
            }
            rig.clients_turn();
            while rig.act() {}
        }
        rig.settle();
        let ended = &rig.client(0).ended;
        assert_eq!(ended.len() as u64, issued);
        for (call, ended) in (1..).zip(ended) {
            assert_eq!(*ended, answer(call, &call.to_le_bytes()));
        }
        let numbers = rig.served(0).into_iter().map(|(number, _)| number);
        assert!(numbers.eq(1..=issued), "in call order, each once");
    }
}

/// Field case E7: the number of an endpoint entry has 8 bits in the demand map.
#[test]
fn endpoint_entries_are_seen_past_the_wrap_of_their_byte() {
    let mut rig = Rig::with_clients(Setup::single_groups(2), 2);
    for round in 1..=700 {
        for seat in 0..2 {
            assert_eq!(rig.call(seat, b"x"), Ok(round));
        }
        rig.settle();
        rig.turn(200_000);
    }
    for seat in 0..2 {
        let counters = rig.client(seat).engine.counters();
        assert!(counters.entries > 300, "{counters:?}");
        assert_eq!(counters.answered, 700);
    }
}

/// Field case D5.
#[test]
fn a_full_window_refuses_and_each_answer_lets_exactly_one_call_in() {
    let mut setup = setup(4, 100);
    setup.keep_calls = true;
    let mut rig = Rig::with_clients(setup, 1);
    for call in 1..=4 {
        assert_eq!(rig.call(0, b"x"), Ok(call));
    }
    rig.turn(0);
    for next in 5..=30 {
        for _ in 0..3 {
            assert_eq!(rig.call(0, b"x"), Err(CallError::WindowFull));
        }
        rig.answer_kept();
        rig.clients_turn();
        assert_eq!(rig.call(0, b"x"), Ok(next));
        for _ in 0..2 {
            assert_eq!(rig.call(0, b"x"), Err(CallError::WindowFull));
        }
        rig.turn(0);
    }
    assert_eq!(rig.answered(0), (1..=26).collect::<Vec<_>>());
}

/// Section 3 of the design: a slow call never blocks the ring.
#[test]
fn a_call_that_is_answered_late_costs_one_place_of_the_window() {
    let mut setup = setup(4, 100);
    setup.keep_calls = true;
    let mut rig = Rig::with_clients(setup, 1);
    rig.call(0, b"first").unwrap();
    rig.turn(0);
    rig.answer_kept();
    rig.clients_turn();
    rig.call(0, b"slow").unwrap();
    rig.turn(0);
    let slow = rig.kept.pop_front().unwrap();
    let mut fast = 0;
    for round in 0..50 {
        let before = fast;
        while rig.call(0, b"fast").is_ok() {
            fast += 1;
        }
        // One may have to wait for the completion of the WRITE that used its slot before.
        assert!((2..=3).contains(&(fast - before)), "round {round}");
        rig.turn(0);
        while !rig.kept.is_empty() {
            rig.answer_kept();
        }
        rig.turn(0);
    }
    rig.kept.push_back(slow);
    rig.answer_kept();
    rig.turn(0);
    let expected: Vec<u64> = [1].into_iter().chain(3..=2 + fast).chain([2]).collect();
    assert_eq!(rig.answered(0), expected);
}

/// Slow calls that fill all but one place of the window leave that one usable, as often as one likes.
#[test]
fn the_last_place_of_a_window_of_slow_calls_stays_usable() {
    for slow_calls in 1..=3 {
        let mut setup = setup(4, 100);
        setup.keep_calls = true;
        let mut rig = Rig::with_clients(setup, 1);
        rig.call(0, b"first").unwrap();
        rig.turn(0);
        rig.answer_kept();
        rig.turn(0);
        for _ in 0..slow_calls {
            rig.call(0, b"slow").unwrap();
        }
        rig.turn(0);
        let slow: Vec<_> = rig.kept.drain(..).collect();
        for round in 0..10 {
            assert!(
                rig.call(0, b"fast").is_ok(),
                "{slow_calls} slow, round {round}"
            );
            rig.turn(0);
            rig.answer_kept();
            rig.turn(0);
        }
        drop(slow);
    }
}

/// Field case D9: staged calls may have been fetched, parked ones cannot.
#[test]
fn when_the_connection_is_lost_each_call_ends_once_and_says_if_it_may_have_run() {
    let mut rig = Rig::with_clients(setup(8, 100), 1);
    for call in 1..=5 {
        assert_eq!(rig.call(0, b"out"), Ok(call));
    }
    rig.post(0);
    for call in 6..=8 {
        assert_eq!(rig.call(0, b"parked"), Ok(call));
    }
    assert_eq!(
        (
            rig.client(0).engine.outstanding(),
            rig.client(0).engine.parked()
        ),
        (8, 3)
    );
    rig.fence(0);
    let expected: Vec<Ended> = (1..=8).map(|call| failed(call, call <= 5)).collect();
    assert_eq!(ended_by_number(&mut rig, 0), expected);
    assert_eq!(rig.call(0, b"late"), Err(CallError::Lost));
    assert_eq!(rig.post(0), 0, "nothing is posted any more");
    rig.poll(0);
    assert_eq!(rig.client(0).ended.len(), 8, "and nothing ends twice");
    assert!(!rig.client(0).engine.is_busy());
}

/// Field case D9, in state Process: some answered, some written, some parked by a full send queue.
#[test]
fn a_loss_in_state_process_tells_written_calls_from_parked_ones() {
    let mut setup = setup(8, 100);
    setup.limits.sq_depth = 4;
    setup.keep_calls = true;
    let mut rig = Rig::with_clients(setup, 1);
    rig.call(0, b"1").unwrap();
    rig.turn(0);
    rig.answer_kept();
    rig.clients_turn();
    assert_eq!(rig.client(0).engine.state(), ClientState::Process);
    rig.client(0).up.withheld = true;
    for _ in 2..=8 {
        rig.call(0, b"more").unwrap();
    }
    assert_eq!(rig.client(0).engine.cancel(3), Cancelled::NeverRuns);
    let written = rig.post(0) as u64;
    assert!((1..7).contains(&written), "the queue is full: {written}");
    rig.fence(0);
    let mut expected = vec![answer(1, b"1")];
    let lost = (2..=8).filter(|&call| call != 3);
    expected.extend(lost.map(|call| failed(call, call <= 1 + written)));
    assert_eq!(ended_by_number(&mut rig, 0), expected);
}

/// Field case D9: a call that a switch event gave back has certainly not run.
#[test]
fn a_call_that_a_switch_event_gave_back_was_not_sent() {
    let mut rig = Rig::with_clients(Setup::single_groups(2), 2);
    rig.call(0, b"1").unwrap();
    rig.settle();
    rig.client(0).up.held = true;
    rig.call(0, b"late").unwrap();
    rig.lose_the_slice_on_the_way(0, 1);
    rig.fence(0);
    assert_eq!(rig.client(0).ended, [answer(1, b"1"), failed(2, false)]);
    assert_eq!(rig.served(0).len(), 1);
}

/// A failed or flushed work request is the end of the connection.
#[test]
fn a_bad_completion_loses_the_connection() {
    let bad = WcStatus::Failed {
        status: 12,
        vendor_err: 0x81,
    };
    for status in [WcStatus::Flushed, bad] {
        let mut rig = Rig::with_clients(setup(2, 100), 1);
        rig.call(0, b"x").unwrap();
        rig.post(0);
        let wr_id = WrId::new(WrKind::Write, 0, 0, 2);
        let engine = &mut rig.client(0).engine;
        engine.completed(Completion { wr_id, status });
        assert_eq!(engine.state(), ClientState::Lost);
        rig.poll(0);
        assert_eq!(rig.client(0).ended, [failed(1, true)]);
    }
}
