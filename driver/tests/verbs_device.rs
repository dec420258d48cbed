//! Which device, port, GID and MTU are used, on devices that are data; and what is said when none will do.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod fake;

use fake::{Device, Entry, Fake, Live, Port, Which, gid, write_sysfs};
use rdma_core_sys::{
    IBV_GID_TYPE_ROCE_V2, IBV_MTU_1024, IBV_QPF_GRH_REQUIRED, IBV_TRANSPORT_IWARP,
};
use scalerpc_driver::verbs::{
    Errno, GidKind, LinkLayer, Mtu, NoDevice, OpenDevice, Selection, Step, VerbsError,
};

/// What a message has to name.
#[track_caller]
fn says(error: &VerbsError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[track_caller]
fn open(fake: &Fake, selection: &Selection) -> OpenDevice {
    fake.host()
        .open(selection)
        .unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refused(fake: &Fake, selection: &Selection) -> VerbsError {
    let error = fake.host().open(selection).unwrap_err();
    assert_eq!(fake.live(), Live::default(), "something was not given back");
    error
}

fn one(port: Port) -> Fake {
    Fake::new(vec![Device::new("mlx5_0", vec![port])])
}

fn index(index: u32) -> Selection {
    Selection {
        gid_index: Some(index),
        ..Selection::default()
    }
}

fn on(device: &str, port: u8) -> Selection {
    Selection {
        device: Some(device.to_owned()),
        port: Some(port),
        ..Selection::default()
    }
}

// --- GIDs -----------------------------------------------------------------------------------------------------------

#[test]
fn a_routable_roce_v2_gid_is_chosen_and_any_can_be_asked_for() {
    let fake = one(Port::common());
    let device = open(&fake, &Selection::default());
    assert_eq!(
        (device.gid().index, device.gid().kind),
        (3, GidKind::RoceV2)
    );
    assert_eq!(device.gid().bytes, gid("::ffff:10.0.0.1"));
    assert_eq!(
        device.place().to_string(),
        "mlx5_0 port 1, GID 3 (RoCE v2, ::ffff:10.0.0.1), MTU 4096"
    );
    for wanted in 0..4 {
        assert_eq!(open(&fake, &index(wanted)).gid().index, wanted);
    }
    drop(device);
    assert_eq!(fake.live(), Live::default());
}

#[test]
fn ipv4_goes_before_ipv6_and_what_no_router_forwards_is_never_chosen() {
    let table = [
        ("fe80::1", 2),
        ("fd00::7", 2),
        ("::ffff:169.254.3.4", 2),
        ("::ffff:10.0.0.1", 2),
    ];
    assert_eq!(
        open(&one(Port::roce(&table)), &Selection::default())
            .gid()
            .index,
        3
    );
    assert_eq!(
        open(&one(Port::roce(&table[..3])), &Selection::default())
            .gid()
            .index,
        1
    );
    for table in [
        &[("fe80::1", 2), ("::ffff:169.254.3.4", 2)][..],
        &[("::ffff:10.0.0.1", 1)],
        &[("2001:db8::1", 1)],
    ] {
        let fake = one(Port::roce(table));
        let error = refused(&fake, &Selection::default());
        assert!(
            matches!(&error, VerbsError::NoUsableGid { seen, .. } if seen.len() == table.len())
        );
        assert_eq!(open(&fake, &index(0)).gid().index, 0);
    }
}

#[test]
fn holes_unreadable_entries_and_zeros_are_passed_over() {
    let last = Entry::Gid(gid("::ffff:10.0.0.1"), IBV_GID_TYPE_ROCE_V2);
    let zero = Entry::Gid([0; 16], IBV_GID_TYPE_ROCE_V2);
    let table = vec![
        Entry::Unreadable(libc::EIO),
        Entry::Hole,
        zero,
        Entry::Unreadable(libc::EINVAL),
        last,
    ];
    let devices = vec![Device::new("mlx5_0", vec![Port::common().with_gids(table)])];
    let new = Fake::new(devices.clone());
    let root = tempfile::tempdir().unwrap();
    write_sysfs(root.path(), &devices);
    let old = Fake::with_library(devices, &["_ibv_query_gid_ex"]);
    for fake in [new, old] {
        fake.enter();
        let host = fake.host_at(root.path());
        assert_eq!(host.open(&Selection::default()).unwrap().gid().index, 4);
        for wanted in [0, 1, 2, 3, 5, 255, 256, u32::MAX] {
            let error = host.open(&index(wanted)).unwrap_err();
            assert!(
                matches!(error, VerbsError::NoSuchGid { index, entries: 5, .. } if index == wanted)
            );
            says(
                &error,
                &[
                    "mlx5_0 port 1",
                    &wanted.to_string(),
                    "4 (RoCE v2, ::ffff:10.0.0.1)",
                    "--gid-index",
                ],
            );
        }
    }
}

#[test]
fn a_table_of_zeros_is_no_usable_gid() {
    let fake = one(Port::roce(&[("::", 1), ("::", 2)]));
    let error = refused(&fake, &Selection::default());
    let VerbsError::NoUsableGid { device, port, seen } = &error else {
        panic!("{error}")
    };
    assert_eq!((device.as_str(), *port, seen.len()), ("mlx5_0", 1, 0));
    says(
        &error,
        &["mlx5_0 port 1", "none at all", "IP address", "--gid-index"],
    );
    assert!(matches!(
        refused(&one(Port::roce(&[])), &index(0)),
        VerbsError::NoSuchGid { .. }
    ));
}

#[test]
fn an_old_library_takes_the_kinds_from_sysfs() {
    let devices = vec![Device::new(
        "mlx5_0",
        vec![Port::common().down(), Port::common()],
    )];
    let root = tempfile::tempdir().unwrap();
    write_sysfs(root.path(), &devices);
    let fake = Fake::with_library(devices, &["_ibv_query_gid_ex", "_ibv_query_gid_table"]);
    let device = fake
        .host_at(root.path())
        .open(&Selection::default())
        .unwrap();
    assert_eq!((device.gid().index, device.port().number()), (3, 2));
    assert_eq!(
        fake.host_at(root.path())
            .open(&index(0))
            .unwrap()
            .gid()
            .kind,
        GidKind::RoceV1
    );
    // Without either the kinds are not known, and a guess would be a connection that never comes up.
    let error = fake.host().open(&Selection::default()).unwrap_err();
    says(
        &error,
        &[
            "port 1 is DOWN",
            "no GID that is RoCE v2 and routable (it has none at all)",
        ],
    );
}

// --- InfiniBand -----------------------------------------------------------------------------------------------------

#[test]
fn infiniband_goes_by_the_peers_lid() {
    let fake = one(Port::infiniband(3471));
    let device = open(&fake, &Selection::default());
    assert_eq!(device.port().link_layer(), LinkLayer::InfiniBand);
    assert_eq!(
        (device.port().lid(), device.gid().index, device.gid().kind),
        (3471, 0, GidKind::Ib)
    );
    let same_subnet = gid("fe80::2:c903:0:77");
    for peer in [same_subnet, [0; 16]] {
        let route = device.route_to(12, peer);
        assert_eq!((route.dlid, route.is_global, route.port_num), (12, 0, 1));
    }
    let other_subnet = gid("fec0::2:c903:0:77");
    let route = device.route_to(12, other_subnet);
    assert_eq!(
        (route.dlid, route.is_global, route.grh.sgid_index),
        (12, 1, 0)
    );
    // SAFETY: any bytes are a GID.
    assert_eq!(unsafe { route.grh.dgid.raw }, other_subnet);
}

#[test]
fn infiniband_uses_the_gid_where_the_port_demands_it_or_the_user_does() {
    let peer = gid("fe80::2:c903:0:77");
    let fake = one(Port::infiniband(7));
    assert_eq!(open(&fake, &index(0)).route_to(12, peer).is_global, 1);
    let mut port = Port::infiniband(7);
    port.attr.flags = IBV_QPF_GRH_REQUIRED;
    assert_eq!(
        open(&one(port), &Selection::default())
            .route_to(12, peer)
            .is_global,
        1
    );
    // A port whose table cannot be read has its LID still.
    let port = Port::infiniband(7).with_gids(vec![Entry::Unreadable(libc::EIO)]);
    assert_eq!(
        open(&one(port), &Selection::default())
            .route_to(12, peer)
            .dlid,
        12
    );
}

#[test]
fn roce_always_goes_by_gid() {
    let device = open(&one(Port::common()), &Selection::default());
    let route = device.route_to(0, gid("::ffff:10.0.0.2"));
    assert_eq!(
        (
            route.is_global,
            route.grh.sgid_index,
            route.port_num,
            route.dlid
        ),
        (1, 3, 1, 0)
    );
    assert!(route.grh.hop_limit > 1, "it would not leave its network");
}

// --- Devices and ports ----------------------------------------------------------------------------------------------

fn two_by_two() -> Vec<Device> {
    ["mlx5_0", "mlx5_1"]
        .map(|name| Device::new(name, vec![Port::common(), Port::common()]))
        .into()
}

#[test]
fn every_call_is_about_the_port_that_was_asked_for() {
    let fake = Fake::new(two_by_two());
    let device = open(&fake, &on("mlx5_1", 2));
    let calls = fake.calls();
    let about: Vec<_> = calls.iter().filter(|call| call.port.is_some()).collect();
    assert!(about.len() > 4, "{calls:?}");
    assert!(about.iter().all(|call| call.port == Some(2)), "{calls:?}");
    assert!(
        calls
            .iter()
            .all(|call| call.device.is_empty() || call.device == "mlx5_1"),
        "{calls:?}"
    );
    assert_eq!(device.route_to(0, gid("::ffff:10.0.0.2")).port_num, 2);
    assert_eq!((device.place().port, device.port().number()), (Some(2), 2));
}

#[test]
fn names_and_ports_that_are_not_there() {
    let fake = Fake::new(two_by_two());
    let error = refused(&fake, &on("mlx5_2", 1));
    assert!(
        matches!(&error, VerbsError::UnknownDevice { present, .. } if present == &["mlx5_0", "mlx5_1"])
    );
    says(&error, &["mlx5_2", "mlx5_0, mlx5_1"]);
    for port in [0, 3, 255] {
        let error = refused(&fake, &on("mlx5_1", port));
        says(&error, &["mlx5_1 has no port", &port.to_string(), "1 to 2"]);
    }
    let no_ports = Fake::new(vec![Device::new("odd", vec![])]);
    says(
        &refused(&no_ports, &Selection::default()),
        &["odd has no port"],
    );
}

#[test]
fn a_port_that_is_down_is_passed_over_or_named() {
    let devices = vec![
        Device::new("a", vec![Port::common().down()]),
        Device::new("b", vec![Port::common().down(), Port::common()]),
    ];
    let fake = Fake::new(devices);
    let device = open(&fake, &Selection::default());
    assert_eq!((device.name(), device.port().number()), ("b", 2));
    let skipped: Vec<_> = device
        .skipped()
        .iter()
        .map(|one| (one.device.as_str(), one.why.to_string()))
        .collect();
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(skipped[0].1.starts_with("a port 1 is DOWN, not ACTIVE: ") && skipped[1].0 == "b");
    drop(device);
    let error = refused(&fake, &on("b", 1));
    assert!(matches!(error, VerbsError::PortNotActive { port: 1, .. }));
    says(&error, &["b port 1 is DOWN", "ip link set"]);
    let infiniband = one(Port::infiniband(1).down());
    says(
        &refused(&infiniband, &Selection::default()),
        &["subnet manager"],
    );
}

#[test]
fn a_device_that_cannot_be_opened_is_passed_over_and_named() {
    let fake = Fake::new(two_by_two());
    fake.fail(Which::On("ibv_open_device", "mlx5_0"), libc::ENODEV);
    let device = open(&fake, &Selection::default());
    assert_eq!(device.name(), "mlx5_1");
    assert_eq!(device.skipped().len(), 1);
    says(
        &device.skipped()[0].why,
        &[
            "ibv_open_device",
            "open device",
            "mlx5_0",
            "ENODEV (19, No such device)",
        ],
    );
    drop(device);
    // When it was asked for, the other is no answer.
    let error = refused(&fake, &on("mlx5_0", 1));
    assert!(matches!(
        error,
        VerbsError::Failed {
            step: Step::Open,
            errno: Errno(libc::ENODEV),
            ..
        }
    ));
    fake.fail(Which::All("ibv_open_device"), libc::EIO);
    says(
        &refused(&fake, &Selection::default()),
        &["mlx5_0", "ENODEV", "mlx5_1", "EIO (5"],
    );
}

#[test]
fn iwarp_is_named() {
    let mut devices = two_by_two();
    devices[0].transport = IBV_TRANSPORT_IWARP;
    let fake = Fake::new(devices);
    assert_eq!(open(&fake, &Selection::default()).name(), "mlx5_1");
    says(&refused(&fake, &on("mlx5_0", 1)), &["mlx5_0", "iWARP"]);
}

#[test]
fn the_mtu_is_the_ports_or_a_smaller_one_that_was_asked_for() {
    let fake = one(Port::common().with_mtu(IBV_MTU_1024));
    let wanted = |mtu| Selection {
        mtu: Some(mtu),
        ..Selection::default()
    };
    assert_eq!(open(&fake, &Selection::default()).mtu(), Mtu::Bytes1024);
    assert_eq!(open(&fake, &wanted(Mtu::Bytes256)).mtu(), Mtu::Bytes256);
    let error = refused(&fake, &wanted(Mtu::Bytes4096));
    assert!(matches!(
        error,
        VerbsError::MtuTooLarge {
            wanted: Mtu::Bytes4096,
            active: Mtu::Bytes1024,
            ..
        }
    ));
    says(&error, &["mlx5_0 port 1", "1024", "4096", "--mtu"]);
    for mtu in Mtu::ALL {
        assert_eq!(mtu.to_string().parse(), Ok(mtu));
        assert_eq!(Mtu::from_verbs(mtu.to_verbs()), Some(mtu));
    }
    assert_eq!(Mtu::Bytes1024.bytes(), 1024);
    assert!("1500".parse::<Mtu>().is_err() && "".parse::<Mtu>().is_err());
}

// --- No device ------------------------------------------------------------------------------------------------------

#[test]
fn no_device_says_why() {
    let root = tempfile::tempdir().unwrap();
    let fake = Fake::new(vec![]);
    let reason = || match fake.host_at(root.path()).open(&Selection::default()) {
        Err(error @ VerbsError::NoDevice(_)) => {
            assert!(error.to_string().starts_with("no RDMA device: "));
            let VerbsError::NoDevice(reason) = error else {
                unreachable!()
            };
            reason
        }
        other => panic!("{other:?}"),
    };
    let none = reason();
    assert!(matches!(&none, NoDevice::NoneInKernel { .. }), "{none}");
    assert!(
        none.to_string().contains("rdma link add rxe0 type rxe"),
        "{none}"
    );

    write_sysfs(root.path(), &two_by_two());
    let none = reason();
    assert!(
        matches!(&none, NoDevice::NoFiles { devices, .. } if devices.len() == 2),
        "{none}"
    );
    assert!(
        none.to_string()
            .contains("infiniband/uverbs*: load the module ib_uverbs"),
        "{none}"
    );

    let dev = root.path().join("dev/infiniband");
    std::fs::create_dir_all(dev.join("uverbs1")).unwrap();
    // A folder cannot be opened for writing, by anybody.
    let none = reason();
    assert!(
        matches!(&none, NoDevice::NotPermitted { files, .. } if files == &[dev.join("uverbs1")]),
        "{none}"
    );
    assert!(none.to_string().contains("read and write access"), "{none}");

    std::fs::write(dev.join("uverbs0"), "").unwrap();
    let none = reason();
    assert_eq!(
        none,
        NoDevice::NoProvider {
            devices: vec!["mlx5_0".into(), "mlx5_1".into()]
        }
    );
    assert!(
        none.to_string()
            .contains("the kernel has 2 (mlx5_0, mlx5_1)"),
        "{none}"
    );
    assert!(none.to_string().contains("ibverbs-providers"), "{none}");

    fake.fail(Which::All("ibv_get_device_list"), libc::ENOSYS);
    assert!(matches!(reason(), NoDevice::NoProvider { .. }));
    fake.heal();
    fake.fail(Which::All("ibv_get_device_list"), libc::ENOMEM);
    says(
        &refused(&fake, &Selection::default()),
        &["ibv_get_device_list", "list devices", "ENOMEM (12"],
    );
}

#[test]
fn devices_that_may_not_be_opened_are_a_matter_of_permission() {
    // The library answers with ENOENT when it was denied access.
    for errno in [libc::EACCES, libc::EPERM, libc::ENOENT] {
        let root = tempfile::tempdir().unwrap();
        let dev = root.path().join("dev/infiniband");
        let fake = Fake::new(two_by_two());
        fake.fail(Which::All("ibv_open_device"), errno);
        let open = || {
            fake.host_at(root.path())
                .open(&Selection::default())
                .unwrap_err()
        };
        let error = open();
        assert!(
            matches!(&error, VerbsError::NoDevice(NoDevice::NoFiles { devices, .. }) if devices.len() == 2)
        );
        std::fs::create_dir_all(dev.join("uverbs0")).unwrap();
        let error = open();
        let VerbsError::NoDevice(NoDevice::NotPermitted { files, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!(files, &[dev.join("uverbs0")]);
        // Then it is something else.
        std::fs::write(dev.join("uverbs1"), "").unwrap();
        assert!(matches!(open(), VerbsError::NoUsablePort(reasons) if reasons.len() == 2));
    }
}

// --- Errors ---------------------------------------------------------------------------------------------------------

#[test]
fn a_verb_that_returns_its_errno_is_believed_and_not_what_errno_says() {
    for (verb, step) in [
        ("ibv_query_device", Step::Device),
        ("ibv_query_port", Step::Port),
    ] {
        for number in [libc::ENOMEM, libc::EINVAL, -libc::EINVAL] {
            let fake = one(Port::common());
            fake.fail(Which::All(verb), number);
            let error = refused(&fake, &Selection::default());
            let VerbsError::Failed {
                step: at,
                verb: named,
                errno,
                ..
            } = &error
            else {
                panic!("{error}")
            };
            assert_eq!((*at, *named, errno.0), (step, verb, number.abs()));
            let name = if errno.0 == libc::ENOMEM {
                "ENOMEM (12"
            } else {
                "EINVAL (22"
            };
            says(&error, &[verb, &step.to_string(), "mlx5_0", name]);
        }
    }
    // One that returns -1 has set errno.
    let fake = one(Port::common());
    fake.fail(Which::All("ibv_query_port"), -1);
    let error = refused(&fake, &Selection::default());
    assert!(matches!(
        error,
        VerbsError::Failed {
            errno: Errno(libc::ENOENT),
            ..
        }
    ));
}

#[test]
fn each_call_may_fail_and_nothing_is_left_behind() {
    let fake = one(Port::common());
    drop(open(&fake, &Selection::default()));
    let calls = fake.calls().len();
    for k in 1..calls {
        let fake = one(Port::common());
        fake.fail(Which::Nth(k), libc::EIO);
        // A GID that cannot be read is no obstacle unless it is the only one that will do.
        if let Err(error) = fake.host().open(&Selection::default()) {
            says(&error, &["mlx5_0"][..usize::from(k > 1)]);
        }
        assert_eq!(fake.live(), Live::default(), "call {k} failed");
        fake.heal();
        assert_eq!(open(&fake, &Selection::default()).gid().index, 3);
    }
}

#[test]
fn errors_name_the_peer_and_what_to_do() {
    let device = open(&one(Port::common()), &Selection::default());
    let place = device.place().with_peer("10.0.0.2:7000");
    let error = VerbsError::failed(Step::Rtr, "ibv_modify_qp", place, Errno(libc::EINVAL));
    assert_eq!(
        error.to_string(),
        "ibv_modify_qp failed in step `queue pair to RTR` on mlx5_0 port 1, GID 3 (RoCE v2, ::ffff:10.0.0.1), MTU \
         4096, peer 10.0.0.2:7000: EINVAL (22, Invalid argument); the two ends do not fit: compare link layer, GID \
         type and MTU on both (--gid-index, --mtu)"
    );
    assert_eq!(Errno(0).to_string(), "no reason given (errno 0)");
    assert_eq!(Errno(4095).name(), None);
    assert!(Errno(4095).to_string().starts_with("errno 4095 ("));
}
