//! What a server is made from.

use std::path::Path;
use std::time::Duration;

use scalerpc_core::server::{AdaptiveSlice, Grouping, ServerConfig};
use scalerpc_core::{Geometry, GeometryConfig, Mapping};
use scalerpc_driver::shm::{self, ServerOptions, ShmServer};
#[cfg(feature = "verbs")]
use scalerpc_driver::verbs;
use scalerpc_driver::{Fabric, Revocation, store};
use scalerpc_hugepage::PagePolicy;

use super::later::Deferrals;
use super::watch::Watch;
use super::{REVOCATIONS, Server};
use crate::error::SetupError;
use crate::observe::WorkerPlace;
use crate::wait::{Wait, WaitCounters, nanoseconds};
use crate::workers::Workers;

/// Over shared memory slices are this long at first; elsewhere the engine's default holds.
const SHM_SLICE_NS: u64 = 1_000_000;

/// What a server is made from; see [`Server::builder`].
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    geometry: GeometryConfig,
    config: ServerConfig,
    options: ServerOptions,
    copy_requests: bool,
    deferred_max: u32,
    time_slice: Option<Duration>,
    workers: Option<u32>,
    adaptive_slice: AdaptiveSlice,
    observable: bool,
    wait: Wait,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            geometry: GeometryConfig::default(),
            config: ServerConfig::default(),
            options: ServerOptions::default(),
            copy_requests: false,
            deferred_max: 0,
            time_slice: None,
            adaptive_slice: AdaptiveSlice::default(),
            observable: true,
            wait: Wait::default(),
            workers: None,
        }
    }
}

impl ServerBuilder {
    /// Seats for connections. Default 1024.
    pub fn clients_max(mut self, clients_max: u32) -> Self {
        self.geometry.clients_max = clients_max;
        self
    }

    /// Connections that are served together. Default 40, as in the paper's evaluation.
    pub fn group_size(mut self, group_size: u32) -> Self {
        self.geometry.group_size = group_size;
        self
    }

    /// Calls that a connection may have outstanding, a power of two. Default 16.
    pub fn window(mut self, window: u32) -> Self {
        self.geometry.window = window;
        self
    }

    /// Largest request payload. Default 4096.
    pub fn request_max_bytes(mut self, bytes: u32) -> Self {
        self.geometry.request_max_bytes = bytes;
        self
    }

    /// Largest response payload. Default 4096.
    pub fn response_max_bytes(mut self, bytes: u32) -> Self {
        self.geometry.response_max_bytes = bytes;
        self
    }

    /// How connections are given blocks. Default [`Mapping::Virtual`].
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.geometry.mapping = mapping;
        self
    }

    /// How long a group is served while others wait. Default: it follows what a switch costs, see
    /// [`adaptive_slice`](Self::adaptive_slice); and it begins with 1 ms over shared memory, else 100 us as in the
    /// paper's evaluation.
    ///
    /// Over shared memory a switch costs copies and no NIC cache gains by it: with 400 clients in 4
    /// processes on 2 cores, slices of 100 us had 0.64 to 0.73 of the throughput of static mapping, slices
    /// of 1 ms 0.91 to 0.95 (`scalerpc demo --slice-us`, 2-core Sapphire Rapids VM).
    pub fn time_slice(mut self, slice: Duration) -> Self {
        self.time_slice = Some(slice);
        self
    }

    /// Bounds of a slice whose length was not given by [`time_slice`](Self::time_slice), and which part of the time
    /// switches are to take at most. Default 50 us to 10 ms, and 5 %.
    pub fn adaptive_slice(mut self, slice: AdaptiveSlice) -> Self {
        self.adaptive_slice = slice;
        self
    }

    /// How connections are put into groups. Default [`Grouping::Priority`].
    pub fn grouping(mut self, grouping: Grouping) -> Self {
        self.config.grouping = grouping;
        self
    }

    /// Calls that may be in flight, that is with handlers and not answered, over all connections. One more does not run, and
    /// is answered with [`Status::BUSY`](crate::Status::BUSY). Default: no limit but that of the windows.
    ///
    /// It bounds what calls that are answered later may hold, such as I/O that is under way. A handler that knows better, by the
    /// method or by the state of its queues, refuses a call itself, with `Err(Status::BUSY)`, before it has done anything.
    pub fn calls_in_flight_max(mut self, calls: u32) -> Self {
        self.config.calls_in_flight_max = calls;
        self
    }

    /// Calls that handlers may [keep](crate::Request::later) at the same time, to answer them later from any thread. Each
    /// takes a request and a response of the largest size, and some 300 bytes, which the server gets when it is made.
    /// Default 0: none can be kept, and none of that is there. With [workers](Self::workers) each has as many.
    pub fn deferred_max(mut self, calls: u32) -> Self {
        self.deferred_max = calls;
        self
    }

    /// A group from which nothing has come for this long yields to one that is ready. Default 10 us.
    pub fn idle_switch(mut self, idle: Duration) -> Self {
        self.config.idle_switch_ns = nanoseconds(idle);
        self
    }

    /// A client that has not answered the end of its tenancy for this long has it revoked, where the
    /// back end can do that; its connection stays. Default 200 us.
    pub fn revoke_after(mut self, after: Duration) -> Self {
        self.config.revoke_after_ns = nanoseconds(after);
        self
    }

    /// Where it cannot, a client that has not answered for this long is fenced, which ends its
    /// connection. If its tenancy ended only because nobody called, the time begins when somebody lacks its place. Default
    /// 1 s.
    pub fn fence_after(mut self, after: Duration) -> Self {
        self.config.fence_after_ns = nanoseconds(after);
        self
    }

    /// What [`Server::run`] does while there is nothing to do. Default [`Wait::Sleep`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Pages of the server's memory. Default [`PagePolicy::Prefer`].
    pub fn page_policy(mut self, policy: PagePolicy) -> Self {
        self.options.page_policy = policy;
        self
    }

    /// NUMA node of the server's memory. Default: the kernel's choice.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.options.numa_node = Some(node);
        self
    }

    /// Links, that is client processes, that may be open at once.
    pub fn links_max(mut self, links_max: u32) -> Self {
        self.options.links_max = links_max;
        self
    }

    /// Copies each request out of the pool before the handler sees it. Default false: it is read in
    /// place.
    ///
    /// In place, a client that breaks the protocol can change the bytes while the handler looks at them.
    /// Over shared memory any process that may open the socket can do that to any request. Where clients
    /// are not trusted that far, and the handler would not stand it, let requests be copied.
    pub fn copy_requests(mut self, copy: bool) -> Self {
        self.copy_requests = copy;
        self
    }

    /// Answers clients that ask what it is doing, as `scalerpc top` does: see [`observe`](crate::observe). Default
    /// true.
    ///
    /// A client learns how many others there are and what each asks for, but no byte of their calls and no nonce. A
    /// page costs the server no more than a short handler: it has 4 KiB at most, and at most 256 places are looked at
    /// for it. Where clients must not know of each other, say false; methods from
    /// [`METHODS_RESERVED`](crate::observe::METHODS_RESERVED) on stay the library's.
    pub fn observable(mut self, observable: bool) -> Self {
        self.observable = observable;
        self
    }

    /// Threads that serve, for [`listen_workers`](Self::listen_workers): 1 to 64. Each has an equal part of
    /// [`clients_max`](Self::clients_max) and [`group_size`](Self::group_size), rounded up. Default 1.
    ///
    /// A core for each worker, less one for what else the machine does, is what they are made for: workers that
    /// share a core hold each other up at every switch.
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Listens at a Unix socket for clients on this host, over shared memory, and serves them with several
    /// [`workers`](Self::workers).
    ///
    /// # Errors
    ///
    /// As [`listen`](Self::listen); or there cannot be such a number of workers.
    pub fn listen_workers(mut self, path: impl AsRef<Path>) -> Result<Workers, SetupError> {
        self.config.time_slice_ns = SHM_SLICE_NS;
        let workers = self.workers.take().unwrap_or(1);
        self.geometry.clients_max = self.geometry.clients_max.div_ceil(workers.max(1));
        self.geometry.group_size = self.geometry.group_size.div_ceil(workers.max(1));
        self.config.led = true;
        let geometry = Geometry::new(self.geometry)?;
        let options = self.options.clone();
        let shards = ShmServer::listen_shards(path, geometry, workers, options)?;
        let server = |fabric| self.clone().build(geometry, fabric);
        Workers::new(shards.into_iter().map(server).collect::<Result<_, _>>()?)
    }

    /// Listens at a Unix socket for clients on this host, over shared memory.
    ///
    /// # Errors
    ///
    /// [`SetupError`]: the sizes cannot be used, the memory is not to be had, the path is taken, too long or not
    /// writable, or more than one worker is wanted.
    pub fn listen(mut self, path: impl AsRef<Path>) -> Result<Server, SetupError> {
        if self.workers.is_some_and(|workers| workers != 1) {
            let what = "a server of several workers is made by listen_workers";
            return Err(shm::SetupError::BadRequest { what }.into());
        }
        self.config.time_slice_ns = SHM_SLICE_NS;
        let geometry = Geometry::new(self.geometry)?;
        let fabric = ShmServer::listen(path, geometry, self.options.clone())?;
        self.build(geometry, fabric)
    }

    /// Listens for clients that connect to `address` over TCP, and serves them over RDMA reliable connections.
    ///
    /// Pages, NUMA node and `links_max` are this builder's; those in `options` are not looked at.
    ///
    /// # Errors
    ///
    /// [`SetupError`]: the sizes cannot be used, there is no usable device, the memory is not to be had or may not be
    /// registered, the address is taken, or more than one worker is wanted, which this back end does not have.
    #[cfg(feature = "verbs")]
    pub fn listen_verbs(
        self,
        address: impl std::net::ToSocketAddrs + std::fmt::Debug,
        options: &verbs::ServerOptions,
    ) -> Result<Server<verbs::VerbsServer>, SetupError> {
        if self.workers.is_some_and(|workers| workers != 1) {
            let what = "the back end over verbs serves with one worker: leave workers at 1";
            return Err(verbs::SetupError::BadRequest { what }.into());
        }
        let geometry = Geometry::new(self.geometry)?;
        let options = verbs::ServerOptions {
            page_policy: self.options.page_policy,
            numa_node: self.options.numa_node,
            links_max: self.options.links_max,
            ..options.clone()
        };
        let fabric = verbs::VerbsServer::listen(address, geometry, &options)?;
        self.build(geometry, fabric)
    }

    /// The sizes that have been chosen so far, for a back end that [`build`](Self::build) is to get.
    ///
    /// # Errors
    ///
    /// [`SetupError::Geometry`]: they cannot be used.
    pub fn geometry(&self) -> Result<Geometry, SetupError> {
        Ok(Geometry::new(self.geometry)?)
    }

    /// A server over another back end, whose memory has this geometry's sizes.
    ///
    /// # Errors
    ///
    /// [`SetupError::WindowTooDeep`] if the back end cannot hold a window of work requests.
    pub fn build<F: Fabric>(self, geometry: Geometry, fabric: F) -> Result<Server<F>, SetupError> {
        let mut config = self.config;
        match self.time_slice {
            Some(slice) => config.time_slice_ns = nanoseconds(slice),
            None => config.adaptive_slice = Some(self.adaptive_slice),
        }
        let engine = store::server_engine(geometry, config, fabric.limits()).ok_or(
            SetupError::WindowTooDeep {
                window: geometry.window(),
            },
        )?;
        let scratch = if self.copy_requests {
            geometry.request_max_bytes()
        } else {
            0
        };
        let deferrals = (self.deferred_max > 0).then(|| {
            let waker = fabric.waker();
            Box::new(Deferrals::new(self.deferred_max, &geometry, waker))
        });
        Ok(Server {
            engine,
            fabric,
            deferrals,
            scratch: self.copy_requests.then(|| vec![0; scratch].into()),
            last_eviction: None,
            place: WorkerPlace::ALONE,
            observable: self.observable,
            watch: Watch::default(),
            #[cfg(feature = "metrics")]
            published: super::metrics::Published::default(),
            revocations: [Revocation::default(); REVOCATIONS],
            wait: self.wait,
            waits: WaitCounters::default(),
        })
    }
}
