//! Sizes and addresses: limits, overflow, and ranges that never overlap.

use proptest::prelude::*;
use scalerpc_core::geometry::{CLIENTS_MAX, PAYLOAD_MAX_BYTES, WINDOW_MAX, ZONES_MAX};
use scalerpc_core::post::{Limits, WrId, WrKind};
use scalerpc_core::server::ServerSizes;
use scalerpc_core::wire::{EXT_BYTES, LINE, Placement, TRAILER_BYTES};
use scalerpc_core::{Geometry, GeometryConfig, GeometryError, Mapping};

const CONFIG: GeometryConfig = GeometryConfig {
    clients_max: 16,
    group_size: 4,
    window: 4,
    request_max_bytes: 100,
    response_max_bytes: 100,
    mapping: Mapping::Virtual,
};

fn error_of(config: GeometryConfig) -> GeometryError {
    Geometry::new(config).unwrap_err()
}

type Set = fn(&mut GeometryConfig, u32);

#[test]
fn every_field_has_a_least_and_a_greatest_value() {
    let fields: [(&str, u32, u32, Set); 5] = [
        ("clients_max", 1, CLIENTS_MAX, |it, to| it.clients_max = to),
        ("group_size", 1, ZONES_MAX / 2, |it, to| it.group_size = to),
        ("window", 1, WINDOW_MAX, |it, to| it.window = to),
        ("request_max_bytes", 0, PAYLOAD_MAX_BYTES, |it, to| {
            it.request_max_bytes = to;
        }),
        ("response_max_bytes", 0, PAYLOAD_MAX_BYTES, |it, to| {
            it.response_max_bytes = to;
        }),
    ];
    for (field, min, max, set) in fields {
        for good in [min, max] {
            let mut config = CONFIG;
            set(&mut config, good);
            assert!(Geometry::new(config).is_ok(), "{field} {good}");
        }
        let too_small = min.checked_sub(1);
        for bad in too_small.into_iter().chain([max + 1, u32::MAX]) {
            let mut config = CONFIG;
            set(&mut config, bad);
            let error = error_of(config);
            let expected = GeometryError::OutOfRange {
                field,
                value: bad.into(),
                min: min.into(),
                max: max.into(),
            };
            assert_eq!(error, expected);
            assert!(error.to_string().contains(field));
        }
    }
}

#[test]
fn a_window_is_a_power_of_two() {
    for window in 1..=WINDOW_MAX {
        let config = GeometryConfig { window, ..CONFIG };
        if window.is_power_of_two() {
            assert_eq!(Geometry::new(config).unwrap().window(), window);
        } else {
            let value = window;
            assert_eq!(
                error_of(config),
                GeometryError::WindowNotPowerOfTwo { value }
            );
        }
    }
}

/// Field case B6: everything at its maximum is computed without overflow, or refused.
#[test]
fn the_largest_geometry_is_right_or_refused() {
    for mapping in [Mapping::Virtual, Mapping::Static] {
        let config = GeometryConfig {
            clients_max: CLIENTS_MAX,
            group_size: ZONES_MAX / 2,
            window: WINDOW_MAX,
            request_max_bytes: PAYLOAD_MAX_BYTES,
            response_max_bytes: PAYLOAD_MAX_BYTES,
            mapping,
        };
        if usize::BITS < 64 {
            assert_eq!(error_of(config), GeometryError::TooLarge);
            continue;
        }
        let it = Geometry::new(config).unwrap();
        let zones = u128::from(it.zones());
        let stride = (it.request_block_bytes() as u128).next_multiple_of(64) | 64;
        let zone = u128::from(WINDOW_MAX) * stride;
        let zone = zone.next_multiple_of(64) | 64;
        let clients = u128::from(CLIENTS_MAX);
        let expected = clients + 64 * clients + u128::from(it.pools()) * zones * zone + 64;
        assert_eq!(it.server_exposed_bytes() as u128, expected);
        let last = it.block_end(it.pools() - 1, it.zones() - 1, u64::from(WINDOW_MAX) - 1);
        assert!(last as u128 <= expected && last as u128 > expected - 2 * zone);
    }
}

/// Field case B6: a pool past 4 GiB.
#[test]
#[cfg(target_pointer_width = "64")]
fn offsets_past_4_gib_are_right() {
    let config = GeometryConfig {
        group_size: 40,
        window: 16,
        request_max_bytes: 8 << 20,
        ..CONFIG
    };
    let it = Geometry::new(config).unwrap();
    // 8 MiB and a trailer are 131 073 lines, an odd number.
    let stride = (8 << 20) + 64;
    assert_eq!(it.request_block_bytes(), stride);
    let zone = 16 * stride + 64;
    let pool = 60 * zone;
    assert!(pool > 5 << 30);
    let pools_at = 64 + 16 * 64;
    assert_eq!(it.server_asleep(), pools_at + 2 * pool);
    assert_eq!(it.server_exposed_bytes(), pools_at + 2 * pool + 64);
    for (pool_index, zone_index, call) in [(0, 39, 0), (0, 59, 15), (1, 0, 16), (1, 59, 47)] {
        let block = (call % 16) as usize;
        let start = pools_at + pool_index as usize * pool + zone_index as usize * zone;
        let end = it.block_end(pool_index, zone_index, call);
        assert_eq!(end, start + (block + 1) * stride);
        assert!(end > 4 << 30);
    }
}

/// Both ends compute the same from what is exchanged.
#[test]
fn equal_configurations_give_equal_geometries() {
    let copy = GeometryConfig { ..CONFIG };
    let (one, other) = (Geometry::new(CONFIG).unwrap(), Geometry::new(copy).unwrap());
    assert_eq!(one, other);
    assert_eq!(one.config(), &copy);
}

#[test]
fn limits_suffice_only_if_a_window_can_be_fetched_beside_an_answer() {
    let geometry = Geometry::new(GeometryConfig {
        window: 16,
        ..CONFIG
    })
    .unwrap();
    let limits = |sq_depth, sge_max| Limits {
        sq_depth,
        sge_max,
        inline_max: 0,
        can_revoke: false,
        placement: Placement::InOrder,
    };
    for (depth, sge_max, enough) in [
        (17, 1, true),
        (16, 1, false),
        (4, 16, true),
        (3, 16, false),
        (6, 3, false),
        (7, 3, true),
        (64, 0, false),
        (0, 1, false),
    ] {
        let suffice = limits(depth, sge_max).suffice(&geometry);
        assert_eq!(suffice, enough, "depth {depth}, {sge_max} elements");
    }
}

/// Field case D8, beside the extremes that `post` tests itself.
#[test]
fn work_request_ids_differ_in_every_part() {
    let mut seen = std::collections::HashSet::new();
    for kind in [WrKind::Write, WrKind::Read] {
        for generation in [0, 1, 2_047] {
            for seat in [0, 1, CLIENTS_MAX - 1] {
                for sequence in [0, 1, u32::MAX] {
                    assert!(seen.insert(WrId::new(kind, generation, seat, sequence)));
                }
            }
        }
    }
}

/// Everything in the server's exposed memory: name, start, bytes.
fn server_ranges(it: &Geometry) -> Vec<(&'static str, usize, usize)> {
    let mut ranges = vec![("asleep", it.server_asleep(), LINE)];
    for seat in 0..it.clients_max() {
        ranges.push(("demand", it.demand_byte(seat), 1));
        ranges.push(("endpoint", it.endpoint(seat), LINE));
    }
    let block = it.request_block_bytes();
    for pool in 0..it.pools() {
        for zone in 0..it.zones() {
            for call in 0..u64::from(it.window()) {
                ranges.push(("block", it.block_end(pool, zone, call) - block, block));
            }
        }
    }
    ranges
}

/// Everything in a client's exposed memory, for three connections.
fn client_ranges(it: &Geometry) -> Vec<(&'static str, usize, usize)> {
    let mut ranges = Vec::new();
    let block = it.response_block_bytes();
    for connection in 0..3 {
        ranges.push(("staging", it.staging(connection), it.staging_bytes()));
        for position in 0..u64::from(it.ring_slots()) {
            let end = it.ring(connection) + it.ring_slot_end(position);
            ranges.push(("ring", end - block, block));
        }
    }
    ranges
}

/// Everything in a client's private memory, for three connections.
fn private_ranges(it: &Geometry) -> Vec<(&'static str, usize, usize)> {
    let mut ranges = Vec::new();
    for connection in 0..3 {
        ranges.push(("entry and words", it.entry_image(connection), 2 * LINE));
        for slot in 0..it.window() {
            let block = it.request_block_bytes();
            ranges.push(("request", it.request_slot(connection, slot), block));
        }
    }
    ranges
}

fn send_ranges(it: &Geometry) -> Vec<(&'static str, usize, usize)> {
    let slots = (0..it.send_slots()).map(|slot| it.send_slot(slot));
    slots
        .map(|at| ("send", at, it.response_block_bytes()))
        .collect()
}

fn assert_disjoint(mut ranges: Vec<(&'static str, usize, usize)>, bytes: usize) {
    ranges.sort_by_key(|range| range.1);
    for &(name, at, len) in &ranges {
        assert!(at + len <= bytes, "{name} ends outside");
        assert!(len == 1 || at % LINE == 0, "{name} is aligned");
    }
    for pair in ranges.windows(2) {
        let ((one, at, len), (other, next, _)) = (pair[0], pair[1]);
        assert!(at + len <= next, "{one} at {at} overlaps {other} at {next}");
    }
}

fn small_configs() -> impl Strategy<Value = GeometryConfig> {
    let sizes = prop_oneof![Just(0_u32), 1..70_u32, 70..700_u32];
    (
        1..70_u32,
        1..9_u32,
        0..5_u32,
        sizes.clone(),
        sizes,
        any::<bool>(),
    )
        .prop_map(
            |(clients_max, group_size, window, request, response, virtualized)| GeometryConfig {
                clients_max,
                group_size,
                window: 1 << window,
                request_max_bytes: request,
                response_max_bytes: response,
                mapping: if virtualized {
                    Mapping::Virtual
                } else {
                    Mapping::Static
                },
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn ranges_are_inside_aligned_and_disjoint(config in small_configs()) {
        let it = Geometry::new(config).unwrap();
        assert_disjoint(server_ranges(&it), it.server_exposed_bytes());
        assert_disjoint(client_ranges(&it), 3 * it.client_exposed_bytes());
        assert_disjoint(private_ranges(&it), 3 * it.client_private_bytes());
        assert_disjoint(send_ranges(&it), it.server_private_bytes());
    }

    #[test]
    fn strides_spread_over_the_cache_sets(config in small_configs()) {
        let it = Geometry::new(config).unwrap();
        let odd = |bytes: usize| bytes % LINE == 0 && (bytes / LINE) % 2 == 1;
        if it.zones() > 1 {
            prop_assert!(odd(it.block_end(0, 1, 0) - it.block_end(0, 0, 0)));
        }
        if it.window() > 1 {
            prop_assert!(odd(it.block_end(0, 0, 1) - it.block_end(0, 0, 0)));
        }
        prop_assert!(odd(it.ring_slot_end(1) - it.ring_slot_end(0)));
        prop_assert!(odd(it.send_slot(1) - it.send_slot(0)));
        prop_assert!(odd(it.staging(1) - it.staging(0)));
    }

    #[test]
    fn rings_hold_a_window_and_the_control_messages(config in small_configs()) {
        let it = Geometry::new(config).unwrap();
        prop_assert!(it.ring_slots() >= it.window() + 2);
        prop_assert!(it.ring_slots().is_power_of_two());
        let max = it.response_max_bytes() + TRAILER_BYTES + EXT_BYTES;
        prop_assert!(it.response_block_bytes() >= max);
        prop_assert!(it.request_block_bytes() >= it.request_max_bytes() + TRAILER_BYTES);
        prop_assert_eq!(it.ring_slot_end(u64::MAX), it.ring_slot_end(u64::from(it.ring_slots()) - 1));
        let (last, first) = (u64::MAX, u64::from(it.window()) - 1);
        prop_assert_eq!(it.block_end(0, 0, last), it.block_end(0, 0, first));
    }

    /// One group more than full groups can be, so that a new client always finds one.
    #[test]
    fn there_is_a_group_for_every_client(config in small_configs()) {
        let it = Geometry::new(config).unwrap();
        let sizes = ServerSizes::of(&it);
        prop_assert!(sizes.groups * it.group_size() as usize > sizes.seats);
        prop_assert_eq!(sizes.zones, (it.pools() * it.zones()) as usize);
    }
}
