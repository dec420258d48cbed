//! Peers that lie: each wrong field costs the liar its connection, and nobody else anything (R6, R12).

use scalerpc_core::server::ConnState;
use scalerpc_core::wire::{
    Entry, Ext, FLAG_ACTIVATE, FLAG_CANCELLED, FLAG_CONTROL, FLAG_EXT, FLAG_SWITCH, Head,
    Placement, Violation, seal,
};
use scalerpc_core::{Mapping, Memory};

use crate::common::raw::head;
use crate::common::{Rig, Setup};

const LIAR: u32 = 3;

/// Three honest clients with calls under way, and a raw seat in the same group.
fn rig_with_a_liar(placement: Placement) -> Rig {
    let mut setup = Setup::default();
    setup.limits.placement = placement;
    let mut rig = Rig::with_clients(setup, 3);
    rig.open_raw(LIAR);
    for seat in 0..3 {
        rig.call(seat, b"before").unwrap();
    }
    rig.settle();
    rig
}

/// The honest clients' calls go on, and end right.
fn others_are_unaffected(rig: &mut Rig) {
    for _ in 0..5 {
        for seat in 0..3 {
            rig.call(seat, b"after").unwrap();
        }
        rig.settle();
    }
    for seat in 0..3 {
        assert_eq!(rig.answered(seat), [1, 2, 3, 4, 5, 6]);
        assert_eq!(rig.client(seat).violation, None);
        assert_ne!(rig.state(seat), ConnState::Closing);
    }
}

fn evicted_alone(mut rig: Rig, why: Violation) {
    rig.serve();
    assert_eq!(rig.log.closed, [(LIAR, Some(why))]);
    assert_eq!(rig.state(LIAR), ConnState::Closing);
    assert_eq!(rig.server.counters().violations, 1);
    others_are_unaffected(&mut rig);
    assert_eq!(rig.log.closed.len(), 1, "told once");
    rig.server.gone(LIAR);
    assert_eq!(rig.state(LIAR), ConnState::Free);
    rig.open(LIAR);
    rig.call(LIAR, b"a new tenant").unwrap();
    rig.settle();
    assert_eq!(rig.answered(LIAR), [1]);
}

/// With static mapping there is nothing else to do in most rounds, and who lies is ended all the same.
#[test]
fn with_static_mapping_a_liar_is_ended_too() {
    let mut setup = Setup::default();
    setup.geometry.mapping = Mapping::Static;
    let mut rig = Rig::with_clients(setup, 3);
    rig.open_raw(LIAR);
    for seat in 0..3 {
        rig.call(seat, b"before").unwrap();
    }
    rig.settle();
    let end = rig.geometry.block_end(0, LIAR, 1);
    let owner = rig.owners[LIAR as usize];
    let wrong = Head {
        flags: 1 << 9,
        ..head(4)
    };
    let exposed = rig.exposed.region();
    seal(exposed, end, owner, wrong, None, 1, Placement::InOrder);
    // No time passes: it is not found by a look that is due now and then.
    for _round in 0..3 {
        while rig.act() {}
    }
    assert_eq!(rig.log.closed, [(LIAR, Some(Violation::Flags))]);
    others_are_unaffected(&mut rig);
}

/// Every field of an endpoint entry, wrong in turn.
#[test]
fn each_wrong_field_of_an_entry_evicts_its_writer_alone() {
    let rig = rig_with_a_liar(Placement::InOrder);
    let good = rig.entry(1, 1, 0);
    let window = rig.geometry.window();
    let block = rig.geometry.request_block_bytes() as u32;
    let staging = rig.geometry.staging_bytes() as u64;
    let at = |staged_at| Entry { staged_at, ..good };
    let stride = |stride| Entry { stride, ..good };
    let first = |first_call| Entry { first_call, ..good };
    let quiet = |quiet_epoch| Entry {
        quiet_epoch,
        ..good
    };
    let count = |count| Entry { count, ..good };
    let full = Entry {
        count: window,
        stride: block,
        ..good
    };
    let cases = [
        (quiet(1), Violation::Mapping),
        (quiet(u64::MAX), Violation::Mapping),
        (first(0), Violation::Calls),
        (first(2), Violation::Calls),
        (first(u64::MAX), Violation::Calls),
        (count(0), Violation::Calls),
        (count(window + 1), Violation::Calls),
        (count(0x8000_0000), Violation::Calls),
        (count(u32::MAX), Violation::Calls),
        (stride(0), Violation::Staging),
        (stride(1), Violation::Staging),
        (stride(63), Violation::Staging),
        (stride(block + 64), Violation::Staging),
        (stride(0x8000_0000), Violation::Staging),
        (stride(u32::MAX - 63), Violation::Staging),
        (at(8), Violation::Staging),
        (at(staging), Violation::Staging),
        (at(staging - 32), Violation::Staging),
        (at(1 << 32), Violation::Staging),
        (at(u64::MAX), Violation::Staging),
        // The end wraps around to something small.
        (at(u64::MAX - 63), Violation::Staging),
        (
            Entry {
                staged_at: 64,
                ..full
            },
            Violation::Staging,
        ),
        (
            Entry {
                staged_at: u64::MAX - 255,
                ..full
            },
            Violation::Staging,
        ),
    ];
    for placement in [Placement::InOrder, Placement::AnyOrder] {
        for (entry, why) in cases {
            let mut rig = rig_with_a_liar(placement);
            rig.write_entry(LIAR, 1, entry);
            evicted_alone(rig, why);
        }
    }
    for entry in [good, full] {
        let mut rig = rig_with_a_liar(Placement::InOrder);
        rig.write_entry(LIAR, 1, entry);
        rig.serve();
        assert_eq!(rig.state(LIAR), ConnState::Fetching, "a good one is taken");
    }
}

/// A connection's own staging area is not at the start of its client's memory: nothing before it counts.
#[test]
fn another_connections_staging_area_is_out_of_bounds() {
    for (staged_at, good) in [(0, false), (4_096, true), (4_032, false)] {
        let mut rig = Rig::new(Setup::default());
        let opened = rig.server.open(scalerpc_core::server::OpenConn {
            seat: 0,
            owner: 5,
            ring_at: 0,
            staging_at: 4_096,
            placement: Placement::InOrder,
        });
        assert!(opened);
        rig.owners[0] = 5;
        let entry = Entry {
            staged_at,
            ..rig.entry(1, 1, 0)
        };
        rig.write_entry(0, 1, entry);
        rig.serve();
        let taken = rig.state(0) == ConnState::Fetching;
        assert_eq!(taken, good, "{staged_at}");
    }
}

/// Bytes of the demand map and entries with the wrong number or owner mean nothing.
#[test]
fn a_changed_byte_without_its_entry_is_ignored() {
    let mut rig = rig_with_a_liar(Placement::InOrder);
    for byte in [1, 2, 0x80, 0xff] {
        let at = rig.geometry.demand_byte(LIAR);
        rig.exposed.region().store_byte_release(at, byte);
        rig.serve();
    }
    for number in [0, 2, u64::MAX, 1 << 8 | 1] {
        let entry = rig.entry(1, 1, 0);
        rig.write_entry(LIAR, number, entry);
        rig.serve();
    }
    assert_eq!((rig.state(LIAR), rig.zone(LIAR)), (ConnState::Idle, None));
    others_are_unaffected(&mut rig);
}

/// Field case J1, at the server.
#[test]
fn an_impossible_request_evicts_its_writer_alone() {
    let max = Setup::default().geometry.request_max_bytes;
    // A block is whole lines: more than the maximum fits, and is refused all the same.
    let block_max = (max + 64).next_multiple_of(64) - 32;
    assert!(block_max > max);
    let flags = |flags| Head { flags, ..head(3) };
    let cases = [
        (head(max + 1), Violation::Length),
        (head(block_max), Violation::Length),
        (head(block_max + 1), Violation::Length),
        (head(0x8000_0000), Violation::Length),
        (head(u32::MAX), Violation::Length),
        (flags(1 << 5), Violation::Flags),
        (flags(1 << 15), Violation::Flags),
        (flags(FLAG_EXT | FLAG_CANCELLED), Violation::Flags),
        (flags(FLAG_EXT | FLAG_SWITCH), Violation::Flags),
        // Its payload would be the extension, and there is none.
        (flags(FLAG_CANCELLED), Violation::Options),
        (
            Head {
                len: 0,
                ..flags(FLAG_CANCELLED)
            },
            Violation::Options,
        ),
        (flags(FLAG_ACTIVATE), Violation::Flags),
        (flags(FLAG_SWITCH), Violation::Flags),
        (flags(FLAG_CONTROL), Violation::Flags),
    ];
    for (head, why) in cases {
        let mut rig = rig_with_a_liar(Placement::InOrder);
        rig.activate_raw(LIAR);
        assert_eq!(rig.state(LIAR), ConnState::Active);
        forge(&mut rig, head, 2);
        let ran = rig.served(LIAR).len();
        rig.serve();
        assert_eq!(rig.served(LIAR).len(), ran, "it does not run");
        evicted_alone(rig, why);
    }
}

/// Every word of a request's extension but the budget must be zero.
#[test]
fn an_impossible_extension_evicts_its_writer_alone() {
    for placement in [Placement::InOrder, Placement::AnyOrder] {
        for word in 0..4 {
            let mut rig = rig_with_a_liar(placement);
            rig.activate_raw(LIAR);
            let head = Head {
                flags: FLAG_EXT,
                ..head(3)
            };
            let one = |at| u64::from(word == at);
            let ext = Ext {
                epoch: u64::MAX,
                consumed: one(1),
                zone: one(2) as u32,
                pool: 0,
            };
            let zone = rig.zone(LIAR).unwrap();
            let owner = rig.owners[LIAR as usize];
            rig.write_options_to(zone, owner, 2, head, Some(ext), b"abc");
            if word == 3 {
                // Nobody who means well writes there, so there is no checksum for it.
                let zones = rig.geometry.zones();
                let end = rig.geometry.block_end(zone / zones, zone % zones, 2);
                rig.exposed.region().store(end - 40, 1);
            }
            rig.serve();
            let ran = rig.served(LIAR).len();
            match (word, placement) {
                (0, _) => assert_eq!(ran, 2, "a good one runs"),
                (3, Placement::AnyOrder) => assert_eq!(ran, 1, "it has not arrived"),
                _ => {
                    assert_eq!(ran, 1, "it does not run");
                    evicted_alone(rig, Violation::Options);
                }
            }
        }
    }
}

/// Writes a request whose trailer says what `head` says, whatever its payload.
fn forge(rig: &mut Rig, head: Head, number: u64) {
    rig.write_request(LIAR, number, self::head(3), b"abc");
    let zone = rig.zone(LIAR).unwrap();
    let zones = rig.geometry.zones();
    let end = rig.geometry.block_end(zone / zones, zone % zones, number);
    let first = u64::from(head.len) | u64::from(head.tag) << 32 | u64::from(head.flags) << 48;
    rig.exposed.region().store(end - 24, first);
}

/// Field case J1: where messages carry a checksum, one that does not match has not arrived.
#[test]
fn an_impossible_request_with_a_checksum_never_arrives() {
    for len in [97, 0x8000_0000, u32::MAX] {
        let mut rig = rig_with_a_liar(Placement::AnyOrder);
        rig.activate_raw(LIAR);
        forge(&mut rig, head(len), 2);
        rig.serve();
        assert_eq!(rig.state(LIAR), ConnState::Active);
        assert_eq!(rig.served(LIAR).len(), 1);
        others_are_unaffected(&mut rig);
    }
}

/// Rule R12: whoever does not wait for answers cannot have more calls in hand than the window holds.
#[test]
fn a_call_beyond_the_window_evicts_its_writer_alone() {
    let setup = Setup {
        keep_calls: true,
        ..Setup::default()
    };
    let mut rig = Rig::with_clients(setup, 1);
    rig.open_raw(1);
    rig.activate_raw(1);
    let window = u64::from(rig.geometry.window());
    for number in 2..=window {
        rig.write_request(1, number, head(1), b"x");
        rig.serve();
    }
    assert_eq!(rig.kept.len() as u64, window);
    assert_eq!(rig.log.closed, []);
    rig.write_request(1, window + 1, head(1), b"x");
    rig.serve();
    assert_eq!(rig.kept.len() as u64, window);
    assert_eq!(rig.log.closed, [(1, Some(Violation::Window))]);
    rig.call(0, b"another").unwrap();
    rig.turn(0);
    rig.answer_kept();
    assert_eq!(rig.served(0).len(), 1);
}

/// Calls out of turn are never taken, and do not spin.
#[test]
fn requests_out_of_turn_are_not_taken() {
    let mut rig = rig_with_a_liar(Placement::InOrder);
    rig.activate_raw(LIAR);
    for number in [1, 3, 4, 6, u64::MAX] {
        rig.write_request(LIAR, number, head(3), b"xyz");
    }
    rig.serve();
    assert_eq!(rig.served(LIAR).len(), 1);
    others_are_unaffected(&mut rig);
}

/// Field case J4's kind: one key for all pools means that a client can write anywhere in them.
#[test]
fn a_well_formed_message_in_anothers_block_is_nothing_there() {
    for placement in [Placement::InOrder, Placement::AnyOrder] {
        let mut rig = rig_with_a_liar(placement);
        rig.activate_raw(LIAR);
        let liar = rig.owners[LIAR as usize];
        let zone = rig.zone(0).expect("the victim is served");
        for number in 1..=9 {
            rig.write_request_to(zone, liar, number, head(5), b"trash");
        }
        rig.serve();
        assert_eq!(rig.served(0).len(), 1, "nothing of it runs as the victim's");
        others_are_unaffected(&mut rig);
        let bytes: Vec<_> = rig.log.served.iter().filter(|it| it.seat == 0).collect();
        assert!(bytes.iter().all(|it| it.bytes != b"trash"));
        assert_eq!(
            rig.state(LIAR),
            ConnState::Active,
            "nor does the liar's own zone change"
        );
    }
}

/// An entry under a tenancy that lasts, and a quiet word for one that was never told.
#[test]
fn a_quiet_word_of_another_tenancy_frees_nothing() {
    let mut setup = Setup::single_groups(2);
    setup.server.fence_after_ns = u64::MAX;
    let mut rig = Rig::with_clients(setup, 1);
    rig.open_raw(1);
    rig.activate_raw(1);
    rig.call(0, b"x").unwrap();
    rig.settle();
    assert_eq!(rig.state(1), ConnState::Leaving);
    let (zone, at) = (rig.zone(1), rig.geometry.endpoint(1));
    for wrong in [0, 2, 3, u64::MAX] {
        rig.exposed.region().store_release(at, wrong);
        rig.turn(1_000);
        assert_eq!((rig.state(1), rig.zone(1)), (ConnState::Leaving, zone));
    }
    rig.exposed.region().store_release(at, 1);
    rig.turn(1_000);
    assert_eq!((rig.state(1), rig.zone(1)), (ConnState::Idle, None));
}
