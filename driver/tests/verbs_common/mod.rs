//! Both ends over a fake device, in one thread.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::time::{Duration, Instant};

use scalerpc_core::post::{Completion, WrId, WrKind, WriteWr};
use scalerpc_core::{Geometry, GeometryConfig};
use scalerpc_driver::verbs::{ClientOptions, ServerOptions, SetupError, VerbsClient, VerbsServer};
use scalerpc_driver::{Fabric, FabricEvent, Opened};
use scalerpc_hugepage::PagePolicy;

use crate::fake::{Device, Fake, Live, Port};

/// Nothing waits this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn fake() -> Fake {
    Fake::new(vec![Device::new("mlx5_0", vec![Port::common()])])
}

pub fn geometry() -> Geometry {
    Geometry::new(GeometryConfig {
        clients_max: 8,
        group_size: 4,
        window: 4,
        request_max_bytes: 500,
        response_max_bytes: 500,
        ..GeometryConfig::default()
    })
    .unwrap()
}

pub fn server_options() -> ServerOptions {
    ServerOptions {
        page_policy: PagePolicy::Never,
        handshake_timeout: PATIENCE,
        ..ServerOptions::default()
    }
}

pub fn client_options() -> ClientOptions {
    ClientOptions {
        page_policy: PagePolicy::Never,
        timeout: PATIENCE,
        ..ClientOptions::default()
    }
}

pub fn listen(fake: &Fake) -> Result<VerbsServer, SetupError> {
    VerbsServer::listen_with(&fake.host(), "127.0.0.1:0", geometry(), &server_options())
}

pub fn connect(
    fake: &Fake,
    server: &VerbsServer,
    connections: u32,
) -> Result<VerbsClient, SetupError> {
    let address = server.local_addr();
    VerbsClient::connect_with(&fake.host(), address, connections, &client_options())
}

/// What a server that was polled has said.
#[derive(Default)]
pub struct Heard {
    pub opened: Vec<Opened>,
    pub gone: Vec<u32>,
    pub completions: Vec<Completion>,
}

impl Heard {
    /// Polls until something is so. Seats of connections that are gone are released.
    pub fn until(
        &mut self,
        server: &mut VerbsServer,
        what: &str,
        mut is_so: impl FnMut(&Self, &VerbsServer) -> bool,
    ) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self, server) {
            while let Some(completion) = server.poll_completion() {
                self.completions.push(completion);
            }
            match server.poll_event() {
                Some(FabricEvent::Opened(opened)) => self.opened.push(opened),
                Some(FabricEvent::Gone { connection }) => {
                    self.gone.push(connection);
                    server.release(connection);
                }
                None => std::thread::yield_now(),
            }
            assert!(Instant::now() < until, "waited in vain for {what}");
        }
    }
}

/// Polls a client until so many of its connections are gone; what has completed by then.
pub fn until_gone(client: &mut VerbsClient, count: usize) -> (Vec<Completion>, Vec<u32>) {
    let until = Instant::now() + PATIENCE;
    let (mut completions, mut gone) = (Vec::new(), Vec::new());
    while gone.len() < count {
        while let Some(completion) = client.poll_completion() {
            completions.push(completion);
        }
        if let Some(FabricEvent::Gone { connection }) = client.poll_event() {
            gone.push(connection);
        }
        assert!(Instant::now() < until, "{gone:?} of {count} are gone");
    }
    (completions, gone)
}

/// A server, and a client with so many connections, all of which the server has heard of.
pub fn pair(fake: &Fake, connections: u32) -> (VerbsServer, VerbsClient, Heard) {
    let mut server = listen(fake).unwrap();
    let client = connect(fake, &server, connections).unwrap();
    let mut heard = Heard::default();
    heard.until(&mut server, "the connections", |heard, _| {
        heard.opened.len() == connections as usize
    });
    (server, client, heard)
}

pub fn wr_id(connection: u32, sequence: u32) -> WrId {
    WrId::new(WrKind::Write, 0, connection, sequence)
}

/// A WRITE of `len` bytes from the start of private memory to the first zone of the server.
pub fn write(connection: u32, sequence: u32, len: usize) -> WriteWr {
    WriteWr {
        connection,
        local: 0,
        remote: geometry().block_end(0, 0, 0) - geometry().request_block_bytes(),
        len,
        epoch: None,
        signaled: true,
        wr_id: wr_id(connection, sequence),
    }
}

/// Everything has been given back, and nothing was done that may not be.
#[track_caller]
pub fn assert_clean(fake: &Fake) {
    assert_eq!(fake.live(), Live::default());
    assert_eq!(fake.net().misuse, Vec::<String>::new());
}
