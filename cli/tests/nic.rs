//! The NIC model against what was published, and what follows from it.

use scalerpc_cli::nic::{
    Design, HOST, LARGE, LOAD, Metadata, SMALL, Verb, octopus, parameters, points, raw, serve,
};

const GROUPED: Design = Design::Grouped {
    group_size: 40,
    time_slice_ns: 100_000.0,
};

#[test]
fn every_published_number_is_met_within_a_tenth() {
    let points = points();
    assert_eq!(points.len(), 8);
    for it in points {
        let off = (it.model / it.published - 1.0).abs();
        assert!(off <= 0.1, "{it:?}");
    }
}

#[test]
fn inbound_writes_and_datagrams_stay_flat() {
    let mops = |verb, clients| raw(&SMALL, verb, clients).rate_mops;
    for verb in [Verb::InboundWrite, Verb::DatagramSend] {
        for clients in [40, 100, 400, 800] {
            assert_eq!(mops(verb, clients), mops(verb, 10), "{verb:?} {clients}");
        }
    }
}

#[test]
fn every_parameter_has_a_value_for_each_nic_or_for_all_and_a_source() {
    for it in parameters(&[SMALL, LARGE], &HOST, &LOAD) {
        assert!([1, 2].contains(&it.values.len()), "{it:?}");
        assert!(it.values.iter().all(|value| *value > 0.0), "{it:?}");
        assert!(!it.source.is_empty(), "{it:?}");
    }
}

#[test]
fn groups_keep_their_rate_where_zones_for_each_lose_it() {
    for nic in [SMALL, LARGE] {
        let rate = |design, clients| serve(&nic, &HOST, &LOAD, design, clients).rate_mops;
        assert!(rate(GROUPED, 10_000) > 0.95 * rate(GROUPED, 400));
        assert!(rate(GROUPED, 400) > 0.75 * rate(GROUPED, 40));
        assert!(rate(Design::Static, 10_000) < 0.6 * rate(Design::Static, 40));
        assert_eq!(rate(Design::Datagrams, 10_000), rate(Design::Datagrams, 40));
    }
}

#[test]
fn metadata_over_groups_keeps_its_rate_from_40_to_400_clients() {
    for call in Metadata::ALL {
        let rate = |clients| octopus(&SMALL, call, GROUPED, clients).rate_mops;
        assert!(
            rate(400) > 0.9 * rate(40),
            "{call:?}: {} {}",
            rate(400),
            rate(40)
        );
    }
}
