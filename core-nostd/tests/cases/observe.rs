//! What can be seen of an engine while it runs.

use proptest::prelude::*;
use scalerpc_core::histogram::{BUCKETS, Histogram};
use scalerpc_core::server::{Class, ConnState, Histograms};

use crate::common::{Rig, Setup};

fn of(values: &[u64]) -> Histogram {
    let mut histogram = Histogram::new();
    values.iter().for_each(|&value| histogram.record(value));
    histogram
}

/// Values of all magnitudes.
fn values() -> impl Strategy<Value = Vec<u64>> {
    let value = (any::<u64>(), 0..64_u32).prop_map(|(bits, shift)| bits >> shift);
    prop::collection::vec(value, 1..200)
}

#[test]
fn buckets_follow_one_another_without_a_gap() {
    assert_eq!(Histogram::bucket_min(0), 0);
    for bucket in 0..=u8::MAX {
        let (min, max) = (Histogram::bucket_min(bucket), Histogram::bucket_max(bucket));
        assert_eq!(Histogram::bucket_of(min), bucket);
        assert_eq!(Histogram::bucket_of(max), bucket);
        if bucket < u8::MAX {
            assert_eq!(Histogram::bucket_min(bucket + 1), max + 1);
            assert!(max - min <= min / 8, "{min} to {max}");
        }
    }
    assert_eq!(Histogram::bucket_max(u8::MAX), u64::MAX);
    assert_eq!(BUCKETS, 256);
}

proptest! {
    #[test]
    fn a_quantile_is_not_too_low_and_at_most_an_eighth_too_high(mut values in values(), per_mille in 1..1001_u32) {
        let histogram = of(&values);
        values.sort_unstable();
        let rank = (values.len() * per_mille as usize).div_ceil(1000);
        let exact = values[rank - 1];
        let found = histogram.quantile(per_mille).unwrap();
        prop_assert!(found >= exact);
        if exact < Histogram::bucket_min(u8::MAX) {
            prop_assert!(found - exact <= exact / 8, "{found} for {exact}");
        }
        let sum = values.iter().fold(0_u64, |sum, &value| sum.saturating_add(value));
        prop_assert_eq!(histogram.sum(), sum);
        prop_assert_eq!(histogram.count(), values.len() as u64);
        prop_assert_eq!((histogram.min(), histogram.max()), (Some(values[0]), values.last().copied()));
    }

    #[test]
    fn what_two_have_counted_can_be_added_and_taken_away(one in values(), two in values()) {
        let mut both = of(&one);
        both.merge(&of(&two));
        let all: Vec<u64> = one.iter().chain(&two).copied().collect();
        prop_assert_eq!(both, of(&all));
        let later = both.since(&of(&one));
        prop_assert!(later.buckets().eq(of(&two).buckets()));
        prop_assert_eq!(later.count(), two.len() as u64);
        let [min, max] = [two.iter().min(), two.iter().max()].map(|it| *it.unwrap());
        let bounds = (Histogram::bucket_of(later.min().unwrap()), Histogram::bucket_of(later.max().unwrap()));
        prop_assert_eq!(bounds, (Histogram::bucket_of(min), Histogram::bucket_of(max)));
    }

    #[test]
    fn any_parts_make_one(sum: u64, min: u64, max: u64, buckets: Vec<(u8, u64)>, per_mille: u32) {
        let made = Histogram::from_parts(sum, min, max, buckets);
        prop_assert!(made.min() <= made.max());
        prop_assert!(made.quantile(per_mille) <= made.max());
        let again = Histogram::from_parts(made.sum(), made.min().unwrap_or(0), made.max().unwrap_or(0), made.buckets());
        prop_assert_eq!(again, made);
    }
}

#[test]
fn without_values_there_is_no_quantile() {
    let none = Histogram::new();
    assert_eq!(
        (none.quantile(500), none.min(), none.max()),
        (None, None, None)
    );
    assert_eq!(none.since(&none), none);
    assert_eq!(Histograms::default().all().len(), Histograms::NAMES.len());
}

/// Clients in groups of one, none of which yields; a handler takes 10 us, a slice 100 us.
fn rig(clients: u32) -> Rig {
    let mut setup = Setup::single_groups(clients);
    setup.handler_ns = 10_000;
    setup.server.idle_switch_ns = u64::MAX;
    Rig::with_clients(setup, clients)
}

/// Keeps windows full for a while.
fn load(rig: &mut Rig, clients: u32, turns: u32) {
    for _ in 0..turns {
        for seat in 0..clients {
            while rig.call(seat, b"x").is_ok() {}
        }
        rig.clients_turn();
        for _ in 0..8 {
            if !rig.act() {
                rig.now_ns += 200;
            }
        }
        rig.server.census().unwrap();
    }
}

#[test]
fn slices_and_waits_are_as_long_as_the_rotation_makes_them() {
    let mut rig = rig(3);
    load(&mut rig, 3, 3_000);
    let counters = rig.server.counters();
    assert!(counters.switches > 100, "{counters:?}");
    let seen = rig.server.histograms();
    // A slice, then a drain of a window at most.
    let slice = seen.slice_ns;
    assert_eq!(slice.count(), seen.calls_per_slice.count());
    assert_eq!(seen.drain_ns.count(), counters.switches);
    let slice_ns = slice.quantile(500).unwrap();
    assert!((90_000..200_000).contains(&slice_ns), "{slice_ns}");
    // 10 us each.
    let calls = seen.calls_per_slice;
    assert!(
        (8..=16).contains(&calls.quantile(500).unwrap()),
        "{calls:?}"
    );
    assert!(
        counters.calls - calls.sum() < 40,
        "all but the last slice's"
    );
    // Two others are served before.
    let wait_ns = seen.wait_ns.quantile(500).unwrap();
    assert!((slice_ns..3 * slice_ns).contains(&wait_ns), "{wait_ns}");
    let bound_ns = rig.server.wait_bound_ns(3, 10_000);
    assert!(seen.wait_ns.max().unwrap() < bound_ns, "rule R8");
    for seat in 0..3 {
        let conn = rig.server.conn(seat).unwrap();
        let worst = conn.worst_wait_ns;
        assert!((wait_ns / 2..bound_ns).contains(&worst), "{conn:?}");
        assert!(conn.waited_ns.is_none_or(|waited| waited < bound_ns));
    }
    let worst = (0..3).map(|seat| rig.server.conn(seat).unwrap().worst_wait_ns);
    assert!(worst.max() >= seen.wait_ns.max());
}

#[test]
fn a_lone_caller_is_in_no_distribution_but_that_of_waits() {
    let mut rig = rig(2);
    load(&mut rig, 1, 100);
    let seen = rig.server.histograms();
    assert_eq!((seen.drain_ns.count(), seen.quarantine_ns.count()), (0, 0));
    assert_eq!((seen.wait_ns.count(), seen.fetch_ns.count()), (1, 1));
    let conn = rig.server.conn(0).unwrap();
    assert_eq!((conn.state, conn.waited_ns), (ConnState::Active, None));
    assert_eq!(conn.calls, rig.server.counters().calls);
    assert_eq!((conn.class, conn.score), (Class::Normal, None));
    assert_eq!(
        conn.group,
        rig.server
            .pool(0)
            .unwrap()
            .group
            .or(rig.server.pool(1).unwrap().group)
    );
    let idle = rig.server.conn(1).unwrap();
    assert_eq!(
        (idle.state, idle.calls, idle.zone),
        (ConnState::Idle, 0, None)
    );
    assert_ne!(idle.group, conn.group);
    assert_eq!(rig.server.group(idle.group.unwrap()).unwrap().members, 1);
    assert!(rig.server.conn(2).is_none(), "there is no such seat");
}

#[test]
fn silence_is_no_slice() {
    let mut rig = rig(1);
    load(&mut rig, 1, 10);
    rig.settle();
    let before = rig.server.histograms().slice_ns.count();
    for _ in 0..10_000 {
        rig.now_ns += 1_000;
        rig.act();
    }
    let counters = rig.server.counters();
    assert!(counters.slices > 50, "time goes on: {counters:?}");
    assert!(rig.server.histograms().slice_ns.count() <= before + 1);
}

#[test]
fn a_zone_in_quarantine_grows_older_until_it_is_free() {
    let mut rig = rig(2);
    load(&mut rig, 2, 30);
    // Whoever is told now that its slice is over does not hear it.
    rig.client(0).stopped = true;
    load(&mut rig, 1, 200);
    for _ in 0..400 {
        while rig.call(1, b"x").is_ok() {}
        rig.clients_turn();
        rig.act();
        rig.now_ns += 500;
    }
    let held = (0..).map_while(|place| rig.server.quarantined(place));
    let held = held.filter(|it| it.seat == 0).last().unwrap();
    assert_eq!(Some(held.zone), rig.zone(0));
    assert!(held.age_ns >= 150_000, "{held:?}");
    let count = rig.server.histograms().quarantine_ns.count();
    rig.fence(0);
    let seen = rig.server.histograms().quarantine_ns;
    assert_eq!(seen.count(), count + 1);
    assert!(seen.max().unwrap() >= held.age_ns);
    rig.server.census().unwrap();
}
