//! How clients connect, over each back end.

use std::path::Path;

use scalerpc_core::client::ClientConn;
use scalerpc_driver::shm::{ClientOptions, ShmClient};
#[cfg(feature = "verbs")]
use scalerpc_driver::verbs;

use crate::client::Client;
use crate::error::SetupError;
use crate::set::ClientSet;

impl ClientSet {
    /// Connects to the server at a Unix socket on this host, with that many connections.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names the step that failed, and what helps.
    pub fn connect(path: impl AsRef<Path>, connections: u32) -> Result<Self, SetupError> {
        Self::connect_with(path, connections, ClientOptions::default())
    }

    /// As [`connect`](Self::connect), with options.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_with(
        path: impl AsRef<Path>,
        connections: u32,
        options: ClientOptions,
    ) -> Result<Self, SetupError> {
        let fabric = ShmClient::connect(path, connections, options)?;
        let geometry = *fabric.geometry();
        let conn = |connection| ClientConn {
            connection,
            seat: fabric.seat(connection),
            owner: fabric.owner(connection),
        };
        let conns: Vec<_> = (0..connections).map(conn).collect();
        Self::over(fabric, geometry, &conns)
    }
}

#[cfg(feature = "verbs")]
impl ClientSet<verbs::VerbsClient> {
    /// Connects over RDMA to the server that listens at `address`, with that many connections.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names the step that failed, and what helps.
    pub fn connect_verbs(
        address: impl std::net::ToSocketAddrs + std::fmt::Debug,
        connections: u32,
        options: &verbs::ClientOptions,
    ) -> Result<Self, SetupError> {
        let fabric = verbs::VerbsClient::connect(address, connections, options)?;
        let geometry = *fabric.geometry();
        let conn = |connection| ClientConn {
            connection,
            seat: fabric.seat(connection),
            owner: fabric.owner(connection),
        };
        let conns: Vec<_> = (0..connections).map(conn).collect();
        Self::over(fabric, geometry, &conns)
    }
}

impl Client {
    /// Connects to the server at a Unix socket on this host.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names the step that failed, and what helps.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, SetupError> {
        ClientSet::connect(path, 1).map(Self::over)
    }
}

#[cfg(feature = "verbs")]
impl Client<verbs::VerbsClient> {
    /// Connects over RDMA to the server that listens at `address`.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names the step that failed, and what helps.
    pub fn connect_verbs(
        address: impl std::net::ToSocketAddrs + std::fmt::Debug,
        options: &verbs::ClientOptions,
    ) -> Result<Self, SetupError> {
        ClientSet::connect_verbs(address, 1, options).map(Self::over)
    }
}
