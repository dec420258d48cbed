//! Servers that keep step: the common clock, the messages about it, and slices that end with its beats.

use proptest::prelude::*;
use scalerpc_core::together::{
    ANSWER_BYTES, BEAT_MAX_NS, BEAT_MIN_NS, BEATS_MAX, COMMON_MAX_NS, Follower, FollowerConfig,
    Malformed, REQUEST_BYTES, Refused, Rotation, RotationError, SliceClock, Status, Taken,
    TimeAnswer, TimeRequest, TimeServer,
};

use crate::common::{Rig, Setup};

const MS: u64 = 1_000_000;
const BEAT_NS: u64 = 100_000;
const HANDLER_NS: u64 = 1_000;

fn rotation(beats: u16) -> Rotation {
    Rotation::new(BEAT_NS, beats).unwrap()
}

fn follower() -> Follower {
    let config = FollowerConfig {
        burst: 1,
        ..FollowerConfig::default()
    };
    Follower::new(config, rotation(4)).unwrap()
}

/// One exchange: the follower asks at `t1`, and hears at `t4` what `server` answered at `t3` after `held`.
fn exchange(
    follower: &mut Follower,
    server: &TimeServer,
    (t1, t3, held, t4): (u64, u64, u64, u64),
) -> Result<Taken, Refused> {
    let request = follower.ask(t1).expect("it asks");
    let answer = server.answer(&request, t3 - held, t3).unwrap();
    follower.answered(t4, &answer)
}

#[test]
fn a_rotation_is_checked() {
    assert_eq!(Rotation::new(999, 1), Err(RotationError::BeatNs(999)));
    let long = BEAT_MAX_NS + 1;
    assert_eq!(Rotation::new(long, 1), Err(RotationError::BeatNs(long)));
    assert_eq!(Rotation::new(1_000, 0), Err(RotationError::Beats(0)));
    assert_eq!(
        Rotation::new(1_000, u16::MAX),
        Err(RotationError::Beats(u16::MAX))
    );
    let largest = Rotation::new(BEAT_MAX_NS, BEATS_MAX).unwrap();
    assert_eq!(largest.beat_of(u32::MAX), (u32::MAX % 65_534) as u16);
    assert!(Rotation::new(BEAT_MIN_NS, 1).is_ok());
}

#[test]
fn a_followers_configuration_is_checked() {
    let bad = |change: fn(&mut FollowerConfig)| {
        let mut config = FollowerConfig::default();
        change(&mut config);
        Follower::new(config, rotation(1)).map(|_| ()).unwrap_err()
    };
    assert_eq!(bad(|it| it.interval_ns = 0).field, "interval_ns");
    assert_eq!(bad(|it| it.burst = 0).field, "burst");
    assert_eq!(bad(|it| it.timeout_ns = 0).field, "timeout_ns");
    assert_eq!(bad(|it| it.alone_after_ns = 0).field, "alone_after_ns");
    assert_eq!(bad(|it| it.drift_max_ppb = 0).field, "drift_max_ppb");
    let error = bad(|it| it.drift_max_ppb = 1_000_001);
    assert!(error.to_string().contains("drift_max_ppb is 1000001"));
}

/// The paper's formula: a beat that ends D after the answer was sent ends D - (T4 - T1 - d) / 2 after T4.
#[test]
fn the_next_switch_comes_half_a_round_trip_earlier_than_the_time_server_says() {
    let (mut follower, server) = (follower(), TimeServer::new(1, rotation(4)));
    let (t1, t4, held) = (7_000_000, 7_050_000, 10_000);
    // D: from 1,234,560,000 to the end of the beat at 1,234,600,000.
    let (t3, left) = (1_234_560_000, 40_000);
    let taken = exchange(&mut follower, &server, (t1, t3, held, t4));
    assert_eq!(taken, Ok(Taken::Era));
    let beat = follower.clock().beat(t4);
    assert_eq!(beat.ends_ns, t4 + left - (t4 - t1 - held) / 2);
    assert_eq!(beat.number, 12_345);
    let Status::Following { error_ns } = follower.status(t4) else {
        panic!("{:?}", follower.status(t4));
    };
    assert!((20_000..20_100).contains(&error_ns), "{error_ns}");
}

#[test]
fn a_follower_goes_on_alone_and_says_so() {
    let (mut follower, server) = (follower(), TimeServer::new(1, rotation(4)));
    assert_eq!(follower.status(5), Status::Own);
    assert_eq!(follower.clock().common_ns(5), 5);
    exchange(&mut follower, &server, (0, 1_000 * MS, 0, 2_000)).unwrap();
    // From here on nobody answers.
    let mut now_ns = 2_000;
    for _ in 0..30 {
        now_ns += 100 * MS;
        assert!(follower.ask(now_ns).is_some(), "it goes on asking");
    }
    let Status::Alone { error_ns, for_ns } = follower.status(now_ns) else {
        panic!("{:?}", follower.status(now_ns));
    };
    assert_eq!(for_ns, 3_000 * MS);
    // Half a round trip, and 200 ppm of three seconds.
    assert!((601_000..602_100).contains(&error_ns), "{error_ns}");
    assert_eq!(follower.clock().common_ns(now_ns), 4_000 * MS + 1_000);
    assert_eq!(follower.counters().lost, 29);
}

#[test]
fn only_the_answer_to_the_last_request_counts() {
    let (mut follower, server) = (follower(), TimeServer::new(1, rotation(4)));
    let first = follower.ask(0).unwrap();
    assert_eq!(follower.ask(20 * MS), None, "one request at a time");
    let late = server.answer(&first, 1_000, 1_000).unwrap();
    let second = follower.ask(150 * MS).unwrap();
    assert_eq!(
        follower.answered(150 * MS + 1, &late),
        Err(Refused::Stale),
        "the first answer, late"
    );
    let answer = server.answer(&second, 150 * MS, 150 * MS).unwrap();
    assert_eq!(follower.answered(150 * MS + 9, &answer), Ok(Taken::Era));
    assert_eq!(
        follower.answered(150 * MS + 9, &answer),
        Err(Refused::Stale),
        "the same again"
    );
}

#[test]
fn answers_that_cannot_be_change_nothing() {
    let (mut follower, server) = (follower(), TimeServer::new(1, rotation(4)));
    exchange(&mut follower, &server, (0, 1_000 * MS, 0, 2_000)).unwrap();
    let before = *follower.clock();
    let next = 101 * MS;
    // A second off, of the same time server.
    let odd = exchange(&mut follower, &server, (next, 2_100 * MS, 0, next + 2_000));
    assert_eq!(odd, Err(Refused::Odd));
    let next = 202 * MS;
    let held = (next, 1_202 * MS, 9_000, next + 2_000);
    assert_eq!(exchange(&mut follower, &server, held), Err(Refused::Held));
    let other = TimeServer::new(1, rotation(5));
    let next = 303 * MS;
    assert_eq!(
        exchange(&mut follower, &other, (next, 1_303 * MS, 0, next + 2_000)),
        Err(Refused::Rotation(rotation(5)))
    );
    assert!(follower.ask(404 * MS).is_some());
    assert_eq!(
        follower.answered(404 * MS, b"no answer"),
        Err(Refused::Malformed(Malformed::Length(9)))
    );
    assert_eq!(*follower.clock(), before);
    assert_eq!(follower.counters().refused, 4);
}

#[test]
fn a_clock_that_is_often_odd_is_another_clock() {
    let (mut follower, server) = (follower(), TimeServer::new(1, rotation(4)));
    exchange(&mut follower, &server, (0, 1_000 * MS, 0, 2_000)).unwrap();
    let era = follower.clock().era();
    for n in 1..=8 {
        let t1 = n * 101 * MS;
        let odd = exchange(&mut follower, &server, (t1, 500 * MS + t1, 0, t1 + 2_000));
        assert_eq!(odd, Err(Refused::Odd));
        assert_eq!(follower.clock().era() > era, n == 8, "after {n}");
    }
    let now_ns = 8 * 101 * MS + 2_000;
    assert_eq!(
        follower.clock().common_ns(now_ns),
        500 * MS + now_ns - 1_000
    );
}

#[test]
fn messages_about_time_are_checked() {
    let request = TimeRequest { number: 7 }.encode();
    assert_eq!(TimeRequest::decode(&request), Ok(TimeRequest { number: 7 }));
    let changed = |at: usize| {
        let mut bytes = request;
        bytes[at] ^= 7;
        TimeRequest::decode(&bytes)
    };
    assert!(matches!(changed(0), Err(Malformed::Magic(_))));
    assert_eq!(changed(4), Err(Malformed::Reserved));
    assert_eq!(changed(8), Err(Malformed::Zero));
    let server = TimeServer::new(0, rotation(4));
    let answer = server.answer(&request, 5, 9).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut bytes = answer;
        bytes[at] = byte;
        TimeAnswer::decode(&bytes)
    };
    assert_eq!(changed(0, b'S').unwrap().held_ns, 4);
    assert_eq!(changed(4, 0), Err(Malformed::Rotation));
    assert_eq!(changed(6, 1), Err(Malformed::Reserved));
    assert_eq!(changed(8, 0), Err(Malformed::Zero));
    assert_eq!(changed(16, 0), Err(Malformed::Zero));
    let over = u64::from_le_bytes([9, 0, 0, 0, 0, 0, 0, 0x40]);
    assert_eq!(changed(31, 0x40), Err(Malformed::Time(over)));
    assert_eq!(changed(32, 10), Err(Malformed::Time(10)));
    assert_eq!(changed(47, 1), Err(Malformed::Rotation));
    for len in (0..REQUEST_BYTES).chain([REQUEST_BYTES + 1]) {
        let bytes = vec![0; len];
        assert_eq!(TimeRequest::decode(&bytes), Err(Malformed::Length(len)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_encoded_is_decoded(
        number in 1..=u64::MAX,
        incarnation in 1..=u64::MAX,
        now_ns in 0..=COMMON_MAX_NS,
        held in 0..=u64::MAX,
        beat_ns in BEAT_MIN_NS..=BEAT_MAX_NS,
        beats in 1..=BEATS_MAX,
    ) {
        let request = TimeRequest { number };
        prop_assert_eq!(TimeRequest::decode(&request.encode()), Ok(request));
        let rotation = Rotation::new(beat_ns, beats).unwrap();
        let held_ns = held % (now_ns + 1);
        let answer = TimeAnswer { number, incarnation, now_ns, held_ns, rotation };
        prop_assert_eq!(TimeAnswer::decode(&answer.encode()), Ok(answer));
    }

    /// Against an oracle that knows both clocks: the follower is off by no more than it says, and the common clock
    /// never goes backwards.
    #[test]
    fn a_follower_is_off_by_no_more_than_it_says(
        offset_ns in 0..10_000 * MS,
        drift_ppb in -190_000i64..190_000,
        ways in prop::collection::vec((100u64..100_000, 0u64..50_000, 100u64..100_000, 0u8..10), 1..60),
    ) {
        // The time server's clock, at a time of the follower's.
        let common = |local_ns: u64| {
            (i128::from(local_ns) + i128::from(local_ns) * i128::from(drift_ppb) / 1_000_000_000) as u64 + offset_ns
        };
        let (mut follower, server) = (follower(), TimeServer::new(9, rotation(4)));
        let (mut now_ns, mut shown) = (0, (0, 0));
        for (there, held, back, fate) in ways {
            now_ns += 101 * MS;
            let request = follower.ask(now_ns).unwrap();
            let (t2, t3) = (now_ns + there, now_ns + there + held);
            let answer = server.answer(&request, common(t2), common(t3)).unwrap();
            let t4 = t3 + back;
            // An answer does not set it back, either.
            shown = shown.max((follower.clock().era(), follower.clock().common_ns(t4)));
            match fate {
                0 => follower.failed(t4),
                _ => prop_assert!(follower.answered(t4, &answer).is_ok()),
            }
            for at_ns in [t4, t4 + 1, t4 + 100_000, t4 + 50 * MS] {
                let clock = follower.clock();
                let then = (clock.era(), clock.common_ns(at_ns));
                prop_assert!(then >= shown, "{shown:?}, then {then:?}");
                shown = then;
                if let Status::Following { error_ns } | Status::Alone { error_ns, .. } = follower.status(at_ns) {
                    let off_ns = common(at_ns).abs_diff(then.1);
                    prop_assert!(off_ns <= error_ns, "off by {off_ns} ns, says {error_ns}");
                }
            }
        }
    }

    #[test]
    fn beats_follow_each_other_without_a_gap(
        t3 in 0..COMMON_MAX_NS,
        gained in -200_000i64..200_000,
        from in 0..1_000 * MS,
    ) {
        let (mut follower, server) = (follower(), TimeServer::new(1, rotation(4)));
        exchange(&mut follower, &server, (from, t3, 0, from + 100)).unwrap();
        let (then, shows) = (from + 1_000 * MS, (t3 + 1_000 * MS).saturating_add_signed(gained));
        // Drift, and the clock is being brought to what it should show.
        let _ = exchange(&mut follower, &server, (then, shows.min(COMMON_MAX_NS), 0, then + 100));
        let clock = follower.clock();
        let mut now_ns = then;
        for _ in 0..50 {
            let beat = clock.beat(now_ns);
            prop_assert!(beat.ends_ns > now_ns);
            prop_assert_eq!(clock.beat(beat.ends_ns - 1).number, beat.number);
            prop_assert_eq!(clock.beat(beat.ends_ns).number, beat.number + 1);
            now_ns = beat.ends_ns;
        }
    }

    /// Answers of any bytes: nothing panics, and within an era the clock does not go backwards.
    #[test]
    fn any_answers_are_survived(
        answers in prop::collection::vec((prop::array::uniform32(any::<u8>()), any::<u8>(), 0..5 * MS), 1..40),
    ) {
        let mut follower = follower();
        let (mut now_ns, mut shown) = (0u64, (0, 0));
        for (bytes, kind, took) in answers {
            now_ns += 101 * MS;
            let request = follower.ask(now_ns).unwrap();
            let mut answer = [0; ANSWER_BYTES];
            answer[..8].copy_from_slice(&TimeServer::new(1, rotation(4)).answer(&request, 0, 0).unwrap()[..8]);
            answer[8..16].copy_from_slice(&request[8..]);
            answer[16] = kind % 3;
            answer[24..40].copy_from_slice(&bytes[..16]);
            answer[31] &= bytes[16] | 0x3f;
            answer[39] &= bytes[17] & 1;
            answer[40..].copy_from_slice(&BEAT_NS.to_le_bytes());
            if kind > 250 {
                answer[(kind % 48) as usize] ^= bytes[18];
            }
            let _ = follower.answered(now_ns + took, &answer);
            for at_ns in [now_ns + took, now_ns + took + 50 * MS, now_ns.saturating_mul(1 << 20)] {
                let clock = follower.clock();
                let _ = (clock.beat(at_ns), follower.status(at_ns));
            }
            let then = (follower.clock().era(), follower.clock().common_ns(now_ns + took));
            prop_assert!(then >= shown);
            shown = then;
        }
    }
}

/// Three groups: of beat 0, of beat 1, and of none.
fn three_groups(beats: u16) -> Rig {
    let setup = Setup {
        handler_ns: HANDLER_NS,
        ..Setup::default()
    };
    three_groups_with(setup, beats)
}

fn three_groups_with(mut setup: Setup, beats: u16) -> Rig {
    setup.geometry.clients_max = 12;
    setup.geometry.group_size = 4;
    setup.geometry.window = 4;
    setup.limits.sge_max = 16;
    let mut rig = Rig::with_clients(setup, 12);
    let clock = SliceClock::own(rotation(beats));
    rig.server.set_slice_clock(Some(&clock));
    for seat in 0..8 {
        // Out of the order of arrival: even seats are of one beat.
        assert!(rig.server.set_beat(seat, Some((seat % 2) as u16)));
        assert_eq!(rig.server.beat_of(seat), Some((seat % 2) as u16));
    }
    rig
}

/// Runs while these clients keep their windows full.
fn run(rig: &mut Rig, busy: std::ops::Range<u32>, rounds: u32, mut each: impl FnMut(&mut Rig)) {
    for _ in 0..rounds {
        rig.busy_turn(busy.clone());
        each(rig);
    }
}

#[test]
fn connections_of_one_beat_are_one_group_and_are_served_in_their_beat() {
    let mut rig = three_groups(2);
    assert_eq!(rig.server.counters().groups, 3);
    run(&mut rig, 0..8, 10_000, |_| {});
    let served = &rig.log.served;
    let in_beat = served
        .iter()
        .filter(|it| (it.at_ns - HANDLER_NS) / BEAT_NS % 2 == u64::from(it.seat % 2))
        .count();
    // The rest is what a drain takes, and what is done before the first beat ends.
    assert!(
        in_beat * 100 >= served.len() * 75,
        "{in_beat} of {}",
        served.len()
    );
    let beats = rig.now_ns / BEAT_NS;
    let switches = rig.server.counters().switches;
    assert!(
        switches.abs_diff(beats) <= 2,
        "{switches} switches, {beats} beats"
    );
}

/// By itself the queue would go round the other way.
#[test]
fn a_group_goes_first_in_its_beat() {
    let mut rig = three_groups(3);
    for seat in 0..12 {
        assert!(rig.server.set_beat(seat, Some(2 - (seat % 3) as u16)));
    }
    run(&mut rig, 0..12, 10_000, |_| {});
    let served = &rig.log.served;
    let in_beat = served
        .iter()
        .filter(|it| (it.at_ns - HANDLER_NS) / BEAT_NS % 3 == u64::from(2 - it.seat % 3))
        .count();
    assert!(
        in_beat * 100 >= served.len() * 75,
        "{in_beat} of {}",
        served.len()
    );
}

/// One group is served, and another one has the other pool, when the demand of the group comes whose beat it is.
#[test]
fn a_group_whose_demand_comes_late_is_served_in_its_beat() {
    let mut setup = Setup {
        handler_ns: HANDLER_NS,
        ..Setup::default()
    };
    setup.server.idle_switch_ns = u64::MAX;
    let mut rig = three_groups_with(setup, 4);
    rig.server.set_beat(9, Some(2));
    run(&mut rig, 1..2, 5, |_| {});
    rig.call(9, b"next").unwrap();
    run(&mut rig, 1..2, 5, |_| {});
    assert!(rig.zone(9).is_some() && rig.served(9).is_empty(), "fetched");
    rig.call(0, b"late").unwrap();
    run(&mut rig, 1..2, 40, |_| {});
    let (number, at_ns) = rig.served(0)[0];
    assert_eq!(number, 1);
    assert!(at_ns < BEAT_NS, "served at {at_ns} ns");
}

/// Rule R8, where groups of all beats always have demand.
#[test]
fn a_group_without_a_beat_waits_no_longer_than_the_bound() {
    let mut first = 0;
    for beats in [1, 2, 3] {
        let mut rig = three_groups(beats);
        let bound_ns = rig.server.wait_bound_ns(3, HANDLER_NS);
        run(&mut rig, 0..8, 1_000, |_| {});
        for probe in 0..5 {
            let begun_ns = rig.now_ns;
            let call = rig.call(9, b"probe").unwrap();
            let mut waited_ns = None;
            run(&mut rig, 0..8, 4_000, |rig| {
                if waited_ns.is_none() && rig.answered(9).last() == Some(&call) {
                    waited_ns = Some(rig.now_ns - begun_ns);
                }
            });
            let waited_ns =
                waited_ns.unwrap_or_else(|| panic!("{beats} beats: probe {probe} starves"));
            assert!(
                waited_ns <= bound_ns,
                "{beats} beats: {waited_ns} ns of {bound_ns}"
            );
        }
        first += rig.server.counters().beats_first;
    }
    assert!(first > 0, "nobody ever went first");
}

/// Rule R7: there is no switch while no other group has demand, in whatever beat.
#[test]
fn a_lone_group_is_served_in_every_beat() {
    let mut rig = three_groups(2);
    run(&mut rig, 1..2, 10_000, |_| {});
    assert!(rig.now_ns > 5 * BEAT_NS);
    assert_eq!(rig.server.counters().switches, 0);
    let beats: std::collections::BTreeSet<_> =
        rig.log.served.iter().map(|it| it.at_ns / BEAT_NS).collect();
    assert!(beats.len() as u64 >= rig.now_ns / BEAT_NS, "{beats:?}");
}

#[test]
fn a_beat_is_given_while_calls_are_under_way_and_taken_back() {
    let mut rig = three_groups(2);
    run(&mut rig, 0..12, 2_000, |rig| {
        rig.server.census().unwrap();
    });
    // Waiting, served or quiet: each is moved when it can be.
    for seat in 8..12 {
        assert!(rig.server.set_beat(seat, Some(1)));
        rig.server.census().unwrap();
    }
    run(&mut rig, 0..12, 4_000, |rig| {
        rig.server.census().unwrap();
    });
    assert!(rig.server.counters().moves >= 4);
    assert!(rig.server.set_beat(9, None));
    assert_eq!(rig.server.beat_of(9), None);
    rig.server.set_slice_clock(None);
    assert!(rig.server.slice_clock().is_none());
    run(&mut rig, 0..12, 2_000, |rig| {
        rig.server.census().unwrap();
    });
    rig.settle();
    assert!(!rig.server.set_beat(99, Some(0)), "there is no such seat");
}
