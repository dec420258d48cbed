//! Send queues and send slots: counted, signaled, and never overflowing (R5, R11).

use scalerpc_core::client::ClientState;
use scalerpc_core::post::Limits;

use crate::common::{Rig, Setup};

fn setup(depth: u32, inline_max: usize) -> Setup {
    let mut setup = Setup::default();
    setup.geometry.window = 8;
    setup.limits = Limits {
        sq_depth: depth,
        sge_max: 8,
        inline_max,
        ..setup.limits
    };
    setup
}

/// Field case D1. The rig checks the depth at every post.
#[test]
fn ten_thousand_writes_never_pass_the_depth_and_enough_are_signaled() {
    for depth in 4..=16 {
        for inline_max in [0, usize::MAX] {
            let mut rig = Rig::with_clients(setup(depth, inline_max), 1);
            let mut turn = 0_u32;
            while rig.client(0).engine.counters().answered < 1_000 {
                // For a while nobody polls for completions: on the one side, on the other, on both.
                rig.client(0).up.withheld = turn % 40 > 30;
                rig.client(0).down.withheld = turn % 56 > 40;
                while rig.call(0, &[turn as u8; 20]).is_ok() {}
                rig.turn(100);
                turn += 1;
                assert!(turn < 20_000, "the calls stall");
            }
            let client = rig.client(0);
            for wire in [&client.up, &client.down] {
                assert!(wire.peak <= depth);
                assert!(wire.unsignaled_peak < depth / 2, "depth {depth}");
            }
            let signals_only_by_need = inline_max > 0;
            assert!(!signals_only_by_need || client.up.peak >= depth / 2);
        }
    }
}

/// Field case D1: with completions withheld the queue fills, and nothing is lost or posted past it.
#[test]
fn a_full_send_queue_holds_calls_back_until_a_completion() {
    for depth in 4..=9 {
        let mut rig = Rig::with_clients(setup(depth, usize::MAX), 1);
        rig.call(0, b"first").unwrap();
        rig.settle();
        rig.client(0).up.withheld = true;
        let mut issued = 1;
        for _ in 0..40 {
            issued += u64::from(rig.call(0, b"x").is_ok());
            rig.turn(100);
        }
        let client = rig.client(0);
        assert_eq!(client.up.peak, depth, "it fills to the depth");
        assert!(client.engine.parked() > 0, "and calls are held back");
        client.up.withheld = false;
        rig.settle();
        assert_eq!(rig.answered(0), (1..=issued).collect::<Vec<_>>());
    }
}

/// Field case D1, at the server: a client whose completions do not come stalls only itself, as long as
/// there are send slots.
#[test]
fn a_full_send_queue_at_the_server_stalls_that_client_alone() {
    let mut setup = setup(4, 0);
    setup.geometry.group_size = 8;
    let mut rig = Rig::with_clients(setup, 2);
    for seat in 0..2 {
        rig.call(seat, b"first").unwrap();
    }
    rig.settle();
    rig.client(0).down.withheld = true;
    rig.client(0).stopped = true;
    for _ in 0..8 {
        rig.call(0, b"x").unwrap();
    }
    rig.post(0);
    for _ in 0..50 {
        rig.call(1, b"y").unwrap();
        rig.turn(100);
        rig.clients_turn();
    }
    assert_eq!(rig.client(1).engine.counters().answered, 51);
    assert!(rig.server.counters().stalls > 0, "the other one waits");
    assert!(rig.served(0).len() < 9);
    let client = rig.client(0);
    client.down.withheld = false;
    client.stopped = false;
    rig.settle();
    assert_eq!(rig.answered(0), (1..=9).collect::<Vec<_>>());
}

/// Rule R5: while its WRITEs do not land, no source is written anew; the rig compares each when it
/// lands. Slots of either side must come back for this to end.
#[test]
fn sources_keep_still_until_their_write_is_done() {
    for inline_max in [0, 8, 64, 128] {
        let mut rig = Rig::with_clients(setup(16, inline_max), 4);
        for turn in 0..1_500_u32 {
            for seat in 0..4 {
                let phase = turn.wrapping_mul(seat + 3) % 13;
                rig.client(seat).up.held = phase < 4;
                rig.client(seat).down.held = (2..7).contains(&phase);
                rig.client(seat).down.withheld = phase > 9;
                let bytes = [turn as u8; 70];
                let _ = rig.call(seat, &bytes[..(turn % 71) as usize]);
            }
            rig.turn(3_000);
        }
        for seat in 0..4 {
            let client = rig.client(seat);
            (client.up.held, client.down.held, client.down.withheld) = (false, false, false);
        }
        rig.settle();
        assert!(rig.server.counters().switches < 10, "one group");
    }
}

/// An entry that is not written inline is done when *its* completion says so, not when the byte after
/// it, which was, is on its way.
#[test]
fn the_entry_image_is_not_free_because_the_byte_after_it_went_inline() {
    for inline_max in [1, 8, 63] {
        let mut setup = Setup::single_groups(2);
        setup.limits.inline_max = inline_max;
        let mut rig = Rig::with_clients(setup, 2);
        rig.client(0).up.withheld = true;
        for seat in 0..2 {
            rig.call(seat, b"1").unwrap();
        }
        for _ in 0..4 {
            rig.turn(200_000);
        }
        let engine = &rig.client(0).engine;
        assert_eq!(engine.state(), ClientState::Idle);
        assert_eq!(
            (engine.counters().answered, engine.counters().entries),
            (1, 1)
        );
        rig.call(0, b"2").unwrap();
        rig.turn(1_000);
        let entries = rig.client(0).engine.counters().entries;
        assert_eq!(
            entries, 1,
            "inline_max {inline_max}: no completion has come"
        );
        rig.client(0).up.withheld = false;
        rig.settle();
        assert_eq!(rig.answered(0), [1, 2]);
    }
}

/// Rule R6: a client whose completions do not come (its host is dead, its connection not yet given up)
/// may not use up the send slots that all share.
#[test]
fn a_client_without_completions_does_not_use_up_the_send_slots() {
    let mut setup = setup(64, 0);
    setup.geometry.window = 16;
    let mut rig = Rig::with_clients(setup, 2);
    for seat in 0..2 {
        rig.call(seat, b"first").unwrap();
    }
    rig.settle();
    rig.client(0).down.withheld = true;
    rig.client(0).stopped = true;
    for _ in 0..16 {
        rig.call(0, b"x").unwrap();
    }
    rig.post(0);
    rig.serve();
    rig.call(1, b"y").unwrap();
    for _ in 0..20 {
        rig.turn(1_000);
    }
    assert_eq!(rig.answered(1), [1, 2]);
}

/// Rule R11: calls that are handed out and answered later have a place in the send queue, all of them.
#[test]
fn calls_that_are_answered_late_do_not_overflow_the_send_queue() {
    let mut setup = setup(4, usize::MAX);
    setup.keep_calls = true;
    let mut rig = Rig::with_clients(setup, 1);
    rig.call(0, b"first").unwrap();
    rig.turn(0);
    rig.answer_kept();
    rig.turn(0);
    while rig.call(0, b"x").is_ok() {}
    rig.turn(0);
    rig.client(0).down.withheld = true;
    while !rig.kept.is_empty() {
        rig.answer_kept();
    }
    rig.client(0).down.withheld = false;
    rig.setup.keep_calls = false;
    rig.settle();
}

/// Rule R5: an answer shows that its request has landed, but only a completion shows that the request's
/// WRITE will not read its source again.
#[test]
fn a_request_slot_is_not_reused_before_its_completion() {
    for window in [1, 2, 4, 8] {
        let mut setup = setup(64, 0);
        setup.geometry.window = window;
        let mut rig = Rig::with_clients(setup, 1);
        rig.call(0, b"staged").unwrap();
        rig.settle();
        rig.client(0).up.withheld = true;
        let mut taken = 0;
        for _ in 0..3 * window {
            taken += u32::from(rig.call(0, b"x").is_ok());
            rig.turn(100);
        }
        assert_eq!(rig.client(0).engine.outstanding(), 0, "all are answered");
        assert_eq!(taken, window, "each slot once");
        rig.client(0).up.withheld = false;
        rig.turn(100);
        assert!(rig.call(0, b"x").is_ok());
    }
}

/// Field case D10: devices name inline limits of any size. A message up to the limit leaves its slot at once, one
/// past it when its completion has come; the rig watches the sources of the latter.
#[test]
fn messages_of_exactly_the_inline_limit_and_past_it() {
    for inline_max in [0, 1, 60, 63, 64, 65, 102, 127, 128, 129, 220] {
        let mut rig = Rig::with_clients(setup(64, inline_max), 1);
        rig.call(0, b"first").unwrap();
        rig.settle();
        rig.client(0).down.withheld = true;
        rig.client(0).up.withheld = true;
        let before = rig.server.census().unwrap().slots_held;
        // Of one line, and of two.
        for bytes in [&[1; 32][..], &[2; 33], &[], &[3; 96]] {
            rig.call(0, bytes).unwrap();
            rig.turn(100);
        }
        let lines = |size: usize| 64 * (size + 32).div_ceil(64);
        let past = [32, 33, 0, 96]
            .into_iter()
            .filter(|&size| lines(size) > inline_max)
            .count();
        let held = rig.server.census().unwrap().slots_held - before;
        assert_eq!(held as usize, past, "limit {inline_max}");
        rig.turn(100);
        let accepted = (0..8).filter(|_| rig.call(0, b"more").is_ok()).count();
        assert_eq!(accepted, 8 - past, "limit {inline_max}");
        rig.client(0).down.withheld = false;
        rig.client(0).up.withheld = false;
        rig.settle();
        for call in 0..200_u32 {
            rig.call(0, &vec![call as u8; (call % 101) as usize])
                .unwrap();
            rig.settle();
        }
        assert_eq!(rig.client(0).ended.len(), 205 + accepted);
    }
}
