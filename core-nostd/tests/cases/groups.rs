//! Groups as clients come and go; memory that does not grow with them; and determinism.

use scalerpc_core::server::ServerSizes;
use scalerpc_core::{Geometry, GeometryConfig, Mapping, Memory};

use crate::common::{Rig, Setup};

fn setup(clients: u32) -> Setup {
    let mut setup = Setup::default();
    setup.geometry.clients_max = clients;
    setup.geometry.group_size = 40;
    setup.geometry.request_max_bytes = 32;
    setup.geometry.response_max_bytes = 32;
    setup
}

/// Every client makes a call, and each gets its answer: nobody is in no group.
fn all_are_served(rig: &mut Rig) {
    let open: Vec<u32> = (0..rig.geometry.clients_max())
        .filter(|&seat| rig.clients[seat as usize].is_some())
        .collect();
    let before = rig.log.served.len();
    for &seat in &open {
        rig.call(seat, b"x").expect("the window is empty");
    }
    rig.settle();
    assert_eq!(rig.log.served.len() - before, open.len(), "each once");
}

fn leave(rig: &mut Rig, seat: u32) {
    rig.fence(seat);
    rig.clients[seat as usize] = None;
}

/// Field case F3.
#[test]
fn clients_fill_groups_of_the_default_size() {
    // A group of less than half the default size joins another once it has been served.
    for (clients, groups, merged) in [
        (0, 0, 0),
        (1, 1, 1),
        (39, 1, 1),
        (40, 1, 1),
        (41, 2, 1),
        (79, 2, 2),
        (80, 2, 2),
        (81, 3, 2),
    ] {
        let mut rig = Rig::with_clients(setup(128), clients);
        rig.serve();
        let counters = rig.server.counters();
        assert_eq!(
            (counters.connections, counters.groups),
            (clients.into(), groups)
        );
        assert_eq!(
            (counters.slices, counters.switches),
            (0, 0),
            "nobody has demand"
        );
        for _ in 0..3 {
            all_are_served(&mut rig);
        }
        let counters = rig.server.counters();
        assert_eq!(counters.calls, 3 * u64::from(clients));
        assert_eq!(counters.groups, merged, "{clients} clients");
        assert!(
            counters.switches <= 3 * groups,
            "no empty group takes a slice"
        );
    }
}

/// Field case F3: groups shrink, and are merged once they are small and quiet.
#[test]
fn after_most_of_a_group_have_left_the_rest_join_others() {
    let mut rig = Rig::with_clients(setup(128), 100);
    assert_eq!(rig.server.counters().groups, 3);
    all_are_served(&mut rig);
    for seat in 1..40 {
        leave(&mut rig, seat);
    }
    assert_eq!(rig.server.counters().groups, 3);
    for _ in 0..20 {
        all_are_served(&mut rig);
    }
    let counters = rig.server.counters();
    // 1, 40 and 20 clients: the small ones join, up to 1.5 times the default size.
    assert_eq!(
        (counters.connections, counters.groups),
        (61, 2),
        "{counters:?}"
    );
    assert!(counters.merges >= 1);
}

/// Field case F3: a merged group is served at once, its 60 clients in the 60 zones.
#[test]
fn a_merged_group_fits_the_zones() {
    let mut rig = Rig::with_clients(setup(100), 59);
    all_are_served(&mut rig);
    for _ in 0..20 {
        all_are_served(&mut rig);
    }
    let counters = rig.server.counters();
    assert_eq!((counters.groups, counters.merges), (1, 1), "{counters:?}");
    assert_eq!(rig.geometry.zones(), 60);
}

/// Field case F3: somebody joins or leaves in every slice.
#[test]
fn joining_and_leaving_in_every_slice_loses_nobody() {
    let mut setup = setup(30);
    setup.geometry.group_size = 5;
    let mut rig = Rig::with_clients(setup, 12);
    let mut dice = 1_u64;
    for _ in 0..400 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let seat = (dice >> 33) as u32 % 30;
        match rig.clients[seat as usize] {
            Some(_) => leave(&mut rig, seat),
            None => rig.open(seat),
        }
        rig.now_ns += dice >> 50;
        all_are_served(&mut rig);
        let counters = rig.server.counters();
        let connections = rig.clients.iter().flatten().count() as u64;
        assert_eq!(counters.connections, connections);
        assert!(counters.groups * 7 >= connections, "{counters:?}");
        assert!(counters.groups <= connections && counters.groups <= 7);
    }
    assert!(rig.server.counters().merges > 0);
}

/// Rule R10.
#[test]
fn a_further_client_costs_one_line_one_byte_and_two_records() {
    assert_eq!(ServerSizes::BYTES_PER_CLIENT, 128 + 64 + 1);
    let geometry = |clients_max| {
        Geometry::new(GeometryConfig {
            clients_max,
            ..GeometryConfig::default()
        })
        .unwrap()
    };
    let (few, many) = (geometry(64), geometry(64_000));
    assert_eq!(few.server_bytes_per_client(), 64 + 1);
    let grown = many.server_exposed_bytes() - few.server_exposed_bytes();
    assert_eq!(grown, (64_000 - 64) * 65);
    assert_eq!(few.server_private_bytes(), many.server_private_bytes());
    assert_eq!((few.zones(), few.pools()), (many.zones(), many.pools()));
    let (few_sizes, many_sizes) = (ServerSizes::of(&few), ServerSizes::of(&many));
    assert_eq!(few_sizes.zones, many_sizes.zones);
    assert_eq!(few_sizes.send_slots, many_sizes.send_slots);
    // The group records: two per group of default size, and some that are not full.
    assert_eq!(many_sizes.groups, 2 * (64_000 / 40) + 4);
}

/// A run with switches, silent clients, held wires, a hostile peer and a reopened seat.
fn eventful_run() -> Vec<String> {
    let mut setup = Setup::default();
    setup.geometry.clients_max = 12;
    setup.limits.can_revoke = true;
    let mut rig = Rig::with_clients(setup, 11);
    rig.log.tracing = true;
    rig.open_raw(11);
    for turn in 0..300_u32 {
        for seat in 0..11 {
            if (turn + seat) % 3 == 0 {
                let _ = rig.call(seat, &turn.to_le_bytes());
            }
            rig.client(seat).up.held = (turn / 5 + seat) % 7 == 0;
            rig.client(seat).stopped = (turn / 40 + seat) % 5 == 0;
        }
        match turn {
            100 => {
                let entry = rig.entry(2, 1, 0);
                rig.write_entry(11, 1, entry);
            }
            150 => rig.fence(3),
            160 => rig.open(3),
            _ => {}
        }
        rig.turn(7_000);
    }
    let counters = rig.server.counters();
    assert!(counters.switches > 5 && counters.zones_revoked > 0 && counters.violations == 1);
    rig.log.trace
}

/// Rule R16.
#[test]
fn the_same_inputs_give_the_same_actions() {
    let (first, second) = (eventful_run(), eventful_run());
    assert!(first.len() > 500, "{}", first.len());
    assert!(first == second);
}

/// Static mapping: a zone for life, no groups, no switches; and a seat's next tenant starts anew.
#[test]
fn with_static_mapping_everybody_is_always_served() {
    let mut setup = setup(6);
    setup.geometry.mapping = Mapping::Static;
    let mut rig = Rig::with_clients(setup, 6);
    for round in 1..=50 {
        all_are_served(&mut rig);
        if round % 10 == 0 {
            let seat = round / 10;
            assert_eq!(rig.zone(seat), Some(seat));
            leave(&mut rig, seat);
            all_are_served(&mut rig);
            rig.open(seat);
        }
    }
    let counters = rig.server.counters();
    assert_eq!(
        (counters.switches, counters.warmup_reads, counters.groups),
        (0, 0, 0)
    );
    assert_eq!(rig.geometry.pools(), 1);
}

/// The scan of the demand map finds each change, wherever a part of it begins and ends.
#[test]
fn the_first_changed_byte_is_found_at_every_offset() {
    let arena = crate::common::arena::Arena::new(256);
    let memory = arena.region();
    for start in 0..20 {
        for len in [0, 1, 7, 8, 9, 40, 64, 100] {
            let seen = vec![0_u8; len];
            assert_eq!(memory.first_changed(start, &seen), None);
            for changed in 0..len {
                memory.store_byte_release(start + changed, 0x80);
                memory.store_byte_release(start + len, 1);
                assert_eq!(memory.first_changed(start, &seen), Some(changed));
                memory.store_byte_release(start + changed, 0);
                assert_eq!(
                    memory.first_changed(start, &seen),
                    None,
                    "a byte past the end"
                );
                memory.store_byte_release(start + len, 0);
            }
        }
    }
}
