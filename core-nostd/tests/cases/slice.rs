//! Slices that follow what a switch costs, in virtual time with a price for everything that the server does.

use scalerpc_core::server::{AdaptiveSlice, Counters};

use crate::common::{Rig, Setup};

/// What a call, and each of a READ and a switch event, take.
#[derive(Clone, Copy)]
struct Prices {
    call_ns: u64,
    switch_ns: u64,
}

const ADAPTIVE: AdaptiveSlice = AdaptiveSlice {
    min_ns: 5_000,
    max_ns: 2_000_000,
    share_permille: 50,
};

fn rig(adaptive_slice: Option<AdaptiveSlice>) -> Rig {
    let mut setup = Setup::default();
    setup.geometry.clients_max = 16;
    setup.server.time_slice_ns = 20_000;
    setup.server.adaptive_slice = adaptive_slice;
    // A round of dear READs is no silence.
    setup.server.idle_switch_ns = 1_000_000;
    Rig::with_clients(setup, 16)
}

fn work(counters: &Counters) -> [u64; 2] {
    let of_switches = counters.warmup_reads + counters.quarantined_zones;
    [counters.calls, of_switches]
}

/// Until there have been `switches` more, with all windows full. Returns the lengths that the slice had at each, and
/// the part of the time that went into switches, in 1/1000.
fn run(rig: &mut Rig, switches: u64, prices: Prices) -> (Vec<u64>, u64) {
    let (mut lengths, mut spent_ns, begun_ns) = (Vec::new(), 0, rig.now_ns);
    let end = rig.server.counters().switches + switches;
    while rig.server.counters().switches < end {
        for seat in 0..16 {
            while rig.call(seat, b"x").is_ok() {}
        }
        rig.clients_turn();
        let before = rig.server.counters();
        while rig.act() {}
        let after = rig.server.counters();
        let [calls, of_switches] = work(&after);
        let [calls_before, of_switches_before] = work(&before);
        let cost_ns = (of_switches - of_switches_before) * prices.switch_ns;
        rig.now_ns += (calls - calls_before) * prices.call_ns + cost_ns + 20;
        spent_ns += cost_ns;
        if after.switches > before.switches {
            lengths.push(rig.server.time_slice_ns());
        }
    }
    let passed_ns = rig.now_ns - begun_ns;
    (lengths, spent_ns * 1_000 / passed_ns)
}

const CHEAP: Prices = Prices {
    call_ns: 100,
    switch_ns: 200,
};
const DEAR: Prices = Prices {
    switch_ns: 5_000,
    ..CHEAP
};

/// Eight costs for a switch between groups of four: a READ and an event for each.
fn wanted_ns(prices: Prices) -> u64 {
    8 * prices.switch_ns * 95 / 5
}

#[test]
fn an_adaptive_slice_comes_to_rest_where_switches_take_their_share() {
    for prices in [CHEAP, DEAR] {
        let mut rig = rig(Some(ADAPTIVE));
        run(&mut rig, 60, prices);
        let (lengths, share) = run(&mut rig, 40, prices);
        let (first, wanted) = (lengths[0], wanted_ns(prices));
        assert!(lengths.iter().all(|&it| it == first), "{lengths:?}");
        assert!(
            (wanted * 9 / 10..=wanted * 5 / 3).contains(&first),
            "{first} ns instead of {wanted}"
        );
        // It may be longer by half than it had to be.
        assert!((30..=55).contains(&share), "{share}");
    }
}

#[test]
fn an_adaptive_slice_follows_the_cost_of_a_switch_up_and_down() {
    let mut rig = rig(Some(ADAPTIVE));
    run(&mut rig, 50, CHEAP);
    let at_rest = |rig: &mut Rig, prices| {
        let (lengths, _) = run(rig, 90, prices);
        let changes = lengths.windows(2).filter(|it| it[0] != it[1]);
        // An eighth at a time, and never to and fro.
        assert!(
            lengths.is_sorted() || lengths.iter().rev().is_sorted(),
            "{lengths:?}"
        );
        assert!(changes.count() < 60, "{lengths:?}");
        rig.server.time_slice_ns()
    };
    let cheap_ns = at_rest(&mut rig, CHEAP);
    let dear_ns = at_rest(&mut rig, DEAR);
    assert!(dear_ns > 15 * cheap_ns, "{cheap_ns}, then {dear_ns}");
    let cheap_again_ns = at_rest(&mut rig, CHEAP);
    assert!(
        cheap_again_ns <= cheap_ns * 5 / 3,
        "{cheap_ns}, then {cheap_again_ns}"
    );
}

#[test]
fn an_adaptive_slice_keeps_to_its_bounds_and_a_fixed_one_to_its_length() {
    let narrow = AdaptiveSlice {
        min_ns: 100_000,
        max_ns: 150_000,
        ..ADAPTIVE
    };
    let mut rig_narrow = rig(Some(narrow));
    // Where it begins counts as little as where it would go.
    assert_eq!(rig_narrow.server.time_slice_ns(), 100_000);
    run(&mut rig_narrow, 50, DEAR);
    assert_eq!(rig_narrow.server.time_slice_ns(), 150_000);
    // Rule R8 is about the longest slice that there may be.
    assert!(rig_narrow.server.wait_bound_ns(1, 0) >= 2 * 150_000);
    run(&mut rig_narrow, 50, CHEAP);
    assert_eq!(rig_narrow.server.time_slice_ns(), 100_000);

    let mut fixed = rig(None);
    run(&mut fixed, 50, DEAR);
    assert_eq!(fixed.server.time_slice_ns(), 20_000);
    assert_eq!(fixed.server.time_slice_bounds_ns(), (20_000, 20_000));
}

#[test]
fn numbers_that_cannot_be_are_made_ones_that_can() {
    let odd = AdaptiveSlice {
        min_ns: 0,
        max_ns: 0,
        share_permille: 0,
    };
    let mut rig = rig(Some(odd));
    run(&mut rig, 20, CHEAP);
    assert_eq!(rig.server.time_slice_bounds_ns(), (1, 1));
    let all = AdaptiveSlice {
        share_permille: u32::MAX,
        max_ns: u64::MAX,
        ..odd
    };
    let mut rig = self::rig(Some(all));
    run(&mut rig, 200, DEAR);
    assert!(rig.server.time_slice_ns() < 10_000);
}

/// A thread that did not run for a while now and then has no longer slices for it.
#[test]
fn pauses_hardly_count_as_the_cost_of_a_switch() {
    let mut rig = rig(Some(ADAPTIVE));
    run(&mut rig, 200, CHEAP);
    let before_ns = rig.server.time_slice_ns();
    for _ in 0..20 {
        run(&mut rig, 20, CHEAP);
        rig.now_ns += 4_000_000;
    }
    let after_ns = rig.server.time_slice_ns();
    assert!(
        after_ns <= before_ns * 5 / 4,
        "{before_ns}, then {after_ns}"
    );
}

/// Rounds that last longer than a group may be silent, because of slow handlers, are no silence.
#[test]
fn a_group_with_slow_handlers_is_not_idle() {
    let free = Prices {
        call_ns: 0,
        switch_ns: 0,
    };
    let mut setup = rig(None).setup;
    setup.handler_ns = 2_000_000;
    setup.server.time_slice_ns = 100_000_000;
    let mut rig = Rig::with_clients(setup, 16);
    run(&mut rig, 10, free);
    let counters = rig.server.counters();
    // Fifty calls fit into a slice.
    let calls = counters.calls / counters.switches;
    assert!(calls >= 40, "{calls} calls in a tenancy");
}
