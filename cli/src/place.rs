//! Where a server is: at a Unix socket on this host, over shared memory, or at a TCP port, over RDMA.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use scalerpc::{CallError, Client, ClientOptions, Clock, Geometry, ServerBuilder};
use scalerpc_cli::meta::service::MetaService;
use scalerpc_driver::Fabric;

use crate::hosting::{Hosted, Serves, Service};
use crate::options::VerbsArgs;
use crate::output::readable;
use crate::team::Team;
use crate::worker::{Plan, Share, Worker, Works};

/// Time for each step of connecting: with many processes on few cores the last one waits for a while.
const TIMEOUT: Duration = Duration::from_secs(30);
#[cfg(not(feature = "verbs"))]
const NO_VERBS: &str = "--verbs: this build has no RDMA; build it with --features verbs, which needs pkg-config, \
                        libibverbs-dev and libclang-dev (`scalerpc doctor` says what this machine has)";

/// The options that name one.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct PlaceArgs {
    /// The server's Unix socket; it is on this host, and shares memory
    #[arg(long, value_name = "PATH", required_unless_present = "verbs", conflicts_with_all = ["verbs", "device", "port", "gid_index", "mtu"])]
    socket: Option<PathBuf>,
    /// The server's address and TCP port, at which RDMA connections are set up
    #[arg(long, value_name = "HOST:PORT")]
    verbs: Option<String>,
    #[command(flatten)]
    selection: VerbsArgs,
}

impl PlaceArgs {
    pub(crate) fn place(&self) -> Place {
        match (&self.socket, &self.verbs) {
            (Some(socket), _) => Place::Shm(socket.clone()),
            (None, address) => Place::Verbs {
                address: address.clone().unwrap_or_default(),
                selection: self.selection.clone(),
            },
        }
    }
}

/// Where a server is, or is to be.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// On this host, at a socket.
    Shm(PathBuf),
    /// At an address, and by which device it is reached.
    #[cfg_attr(
        not(feature = "verbs"),
        expect(dead_code, reason = "only the feature can use it")
    )]
    Verbs {
        address: String,
        selection: VerbsArgs,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => f.write_str(&readable(path.as_os_str().as_encoded_bytes())),
            Self::Verbs { address, .. } => f.write_str(address),
        }
    }
}

impl Place {
    /// Begins to listen there.
    ///
    /// # Errors
    ///
    /// What the library says, or that this build has no RDMA.
    fn listen(&self, builder: ServerBuilder) -> Result<Box<dyn Serves>, String> {
        match self {
            Self::Shm(path) => {
                let server = builder.listen(path);
                Ok(Box::new(server.map_err(|error| error.to_string())?))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs { address, selection } => {
                let options = scalerpc::verbs::ServerOptions {
                    selection: selection.selection(),
                    handshake_timeout: TIMEOUT,
                    ..Default::default()
                };
                let server = builder.listen_verbs(address.as_str(), &options);
                Ok(Box::new(server.map_err(|error| error.to_string())?))
            }
            #[cfg(not(feature = "verbs"))]
            Self::Verbs { .. } => Err(NO_VERBS.into()),
        }
    }

    /// Begins to serve there, with so many workers; `clock` is that of whoever polls the server.
    ///
    /// # Errors
    ///
    /// As for [`listen`](Self::listen); and over RDMA, that there is one worker only.
    pub(crate) fn host(
        &self,
        builder: ServerBuilder,
        workers: u32,
        service: MetaService,
        clock: Clock,
    ) -> Result<Hosted, String> {
        match (self, workers) {
            (Self::Shm(path), 2..) => {
                let (team, service) = Team::listen(path, builder, service, clock)?;
                let server = Box::new(team);
                Ok(Hosted { server, service })
            }
            _ => Ok(Hosted {
                server: self.listen(builder)?,
                service: Service::Own(Box::new(service)),
            }),
        }
    }

    /// Connects once, for some calls one after the other.
    ///
    /// # Errors
    ///
    /// As for [`listen`](Self::listen).
    pub(crate) fn client(&self) -> Result<Box<dyn Calls>, String> {
        match self {
            Self::Shm(path) => {
                let client = Client::connect(path);
                Ok(Box::new(client.map_err(|error| error.to_string())?))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs { address, selection } => {
                let options = scalerpc::verbs::ClientOptions {
                    selection: selection.selection(),
                    ..Default::default()
                };
                let client = Client::connect_verbs(address.as_str(), &options);
                Ok(Box::new(client.map_err(|error| error.to_string())?))
            }
            #[cfg(not(feature = "verbs"))]
            Self::Verbs { .. } => Err(NO_VERBS.into()),
        }
    }

    /// Connects a share of a load. `address` is where the server is, if that was not known before.
    ///
    /// # Errors
    ///
    /// As for [`listen`](Self::listen).
    pub(crate) fn worker(
        &self,
        plan: &Plan,
        share: Share,
        target: usize,
        address: Option<&str>,
    ) -> Result<Box<dyn Works>, String> {
        let connections = share.connections;
        match self {
            Self::Shm(path) => {
                let options = ClientOptions {
                    page_policy: plan.pages,
                    timeout: TIMEOUT,
                    ..ClientOptions::default()
                };
                let set = scalerpc::ClientSet::connect_with(path, connections, options);
                let set = set.map_err(|error| error.to_string())?;
                Ok(Box::new(Worker::new(set, plan, share, target)?))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs {
                address: known,
                selection,
            } => {
                let options = scalerpc::verbs::ClientOptions {
                    selection: selection.selection(),
                    page_policy: plan.pages,
                    timeout: TIMEOUT,
                    ..Default::default()
                };
                let address = address.unwrap_or(known);
                let set = scalerpc::ClientSet::connect_verbs(address, connections, &options);
                let set = set.map_err(|error| error.to_string())?;
                Ok(Box::new(Worker::new(set, plan, share, target)?))
            }
            #[cfg(not(feature = "verbs"))]
            Self::Verbs { .. } => {
                let _ = address;
                Err(NO_VERBS.into())
            }
        }
    }
}

/// A client of any back end.
pub(crate) trait Calls {
    /// Makes a call, and waits for its answer.
    fn call(&mut self, method: u16, request: &[u8]) -> Result<&[u8], CallError>;
    /// The server's sizes.
    fn geometry(&self) -> &Geometry;
}

impl<F: Fabric> Calls for Client<F> {
    fn call(&mut self, method: u16, request: &[u8]) -> Result<&[u8], CallError> {
        Client::call(self, method, request)
    }

    fn geometry(&self) -> &Geometry {
        Client::geometry(self)
    }
}
