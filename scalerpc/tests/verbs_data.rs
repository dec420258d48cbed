//! Calls over verbs, where the device is data: what is posted is done at once. No RDMA device is needed.
#![allow(clippy::unwrap_used)]

mod bodies;
#[path = "../../driver/tests/fake/mod.rs"]
mod fake;

use std::fmt::Debug;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use bodies::BackEnd;
use fake::{Device, Fake, Port};
use scalerpc::verbs::{ClientOptions, ServerOptions, VerbsClient, VerbsServer};
use scalerpc::{Client, ClientSet, Connector, PagePolicy, Server, ServerBuilder, SetupError};
use scalerpc_core::client::ClientConn;
use scalerpc_core::wire::Placement;
use scalerpc_driver::Fabric;

/// On a device that does not place bytes in order, as soft-RoCE.
struct AnyOrder;
/// On one that does, and takes nothing inline.
struct InOrder;

/// A fake, of which nothing may have been asked that verbs forbid.
struct Guard(Fake);

impl Drop for Guard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.net().misuse, Vec::<String>::new());
        }
    }
}

type Place = (SocketAddr, Arc<Guard>);

fn listen(builder: ServerBuilder, in_order: bool) -> (Server<VerbsServer>, Place) {
    let fake = Fake::new(vec![Device::new("mlx5_0", vec![Port::common()])]);
    fake.net().in_order = in_order;
    if in_order {
        fake.net().inline_max = 0;
    }
    let server = listen_at(builder, &fake, "127.0.0.1:0");
    let address = server.fabric().local_addr();
    (server, (address, Arc::new(Guard(fake))))
}

fn listen_at(
    builder: ServerBuilder,
    fake: &Fake,
    address: impl ToSocketAddrs + Debug,
) -> Server<VerbsServer> {
    let geometry = builder.geometry().unwrap();
    let options = ServerOptions {
        page_policy: PagePolicy::Never,
        ..ServerOptions::default()
    };
    let fabric = VerbsServer::listen_with(&fake.host(), address, geometry, &options).unwrap();
    builder.build(geometry, fabric).unwrap()
}

fn connect(place: &Place, connections: u32) -> ClientSet<VerbsClient> {
    try_connect(place, connections).unwrap()
}

fn try_connect(place: &Place, connections: u32) -> Result<ClientSet<VerbsClient>, SetupError> {
    let fake = &place.1.0;
    fake.enter();
    let options = ClientOptions {
        page_policy: PagePolicy::Never,
        ..ClientOptions::default()
    };
    let fabric = VerbsClient::connect_with(&fake.host(), place.0, connections, &options)?;
    let geometry = *fabric.geometry();
    let conn = |connection| ClientConn {
        connection,
        seat: fabric.seat(connection),
        owner: fabric.owner(connection),
    };
    let conns: Vec<_> = (0..connections).map(conn).collect();
    ClientSet::over(fabric, geometry, &conns)
}

macro_rules! back_end {
    ($name:ident, $in_order:literal) => {
        impl BackEnd for $name {
            type ServerEnd = VerbsServer;
            type ClientEnd = VerbsClient;
            type Place = Place;
            const SLOWER: u64 = 4;

            fn listen(builder: ServerBuilder) -> (Server<VerbsServer>, Place) {
                listen(builder, $in_order)
            }

            fn listen_again(builder: ServerBuilder, place: &Place) -> Server<VerbsServer> {
                place.1.0.enter();
                listen_at(builder, &place.1.0, place.0)
            }

            fn connect(place: &Place, connections: u32) -> ClientSet<VerbsClient> {
                connect(place, connections)
            }

            fn connector(place: &Place) -> Connector<VerbsClient> {
                let place = place.clone();
                Connector::from_fn(move || try_connect(&place, 1))
            }

            fn client(place: &Place) -> Client<VerbsClient> {
                Client::over(connect(place, 1))
            }
        }
    };
}

back_end!(AnyOrder, false);
back_end!(InOrder, true);

macro_rules! module {
    ($module:ident, $back_end:ident) => {
        mod $module {
            use super::{bodies, $back_end};

            bodies::tests! { $back_end, [allow(clippy::unwrap_used)] }
        }
    };
}

module!(any_order, AnyOrder);
module!(in_order, InOrder);

/// One client's device places bytes in order, as the server's does; the other's does not.
#[test]
fn clients_of_both_kinds_of_devices_are_served_together() {
    let running = bodies::Running::<InOrder>::start(Server::builder().clients_max(4));
    let fake = &running.place.1.0;
    let mut in_order = running.client();
    fake.net().in_order = false;
    let mut any_order = running.client();
    let placements = [&in_order, &any_order].map(|it| it.fabric().limits().placement);
    assert_eq!(placements, [Placement::InOrder, Placement::AnyOrder]);
    for len in [0, 1, 32, 33, 1000, 4096] {
        let request = vec![len as u8; len];
        for client in [&mut in_order, &mut any_order] {
            assert_eq!(client.call(1, &request).unwrap(), request);
        }
    }
    assert_eq!(running.stop().violations, 0);
}
