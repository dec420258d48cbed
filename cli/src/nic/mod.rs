//! A model of what a NIC, and the cache of the processor behind it, cost a server with many connections.
//!
//! No machine here has a NIC, so what a server does to one is played on caches: each operation touches what the
//! NIC needs for it, and what is not there is read over PCIe. **It is a model**, with a few numbers that are fitted to
//! published measurements ([`parameters`] says which, [`points`] how well); it shows how rates change with the number of clients, not what a
//! given machine reaches.
//!
//! - A *verb* costs the NIC its pipeline's time, and one PCIe read for each thing that is missing: the context of
//!   the connection, its work queue elements, the translation of the page. Its cache forgets what was not used for the
//!   longest time.
//! - A *call* costs a thread of the server its own time, and a miss of its cache for each message block that has left
//!   it. Messages that come in are placed into the processor's cache (DDIO), where they push out others: a pool that
//!   does not fit is read from memory.
//! - A server's rate is that of the slowest of three: the threads, and the NIC's two directions.

mod cache;
mod octopus;
mod published;
mod server;
mod verbs;

pub use octopus::{Metadata, octopus};
pub use published::{Parameter, Point, SOURCES, parameters, points};
pub use server::{Design, Served, serve};
pub use verbs::{Verb, Verbs, raw};

/// A NIC, its link to memory, and the processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nic {
    /// What it is like.
    pub name: &'static str,
    /// Bytes of its cache. Fitted.
    pub cache_bytes: usize,
    /// Bytes of a connection's context: 375 (eRPC, NSDI 2019, section 2.2, for a ConnectX).
    pub context_bytes: usize,
    /// Bytes of a work queue element: one cache line, as of a WRITE whose data is inline.
    pub wqe_bytes: usize,
    /// Work queue elements of a connection that are kept with it.
    pub wqes: usize,
    /// Bytes of the translation of a page: one address.
    pub translation_bytes: usize,
    /// Bytes of a page: hugepages.
    pub page_bytes: usize,
    /// An outbound verb with all that it needs in the cache. From the published rate with 10 clients.
    pub outbound_ns: f64,
    /// An inbound verb. Assumed to be half of an outbound one: it takes no work queue element, and nothing of the connection
    /// that is not there, since inbound WRITEs were measured to stay flat.
    pub inbound_ns: f64,
    /// A READ over PCIe, as far as the NIC's pipeline waits for it. Fitted.
    pub pcie_read_ns: f64,
}

/// Like a ConnectX-3. Published for one (ScaleRPC, EuroSys 2019, section 2.2): outbound WRITE 20 M/s with 10 clients and 2 M/s
/// with 800; inbound WRITE and UD SEND do not change.
pub const SMALL: Nic = Nic {
    name: "small cache, like a ConnectX-3",
    cache_bytes: 90 << 10,
    context_bytes: 375,
    wqe_bytes: 64,
    wqes: 16,
    translation_bytes: 8,
    page_bytes: 2 << 20,
    outbound_ns: 50.0,
    inbound_ns: 25.0,
    pcie_read_ns: 240.0,
};

/// Like a ConnectX-5, whose rate of READs with 5,000 connections is half of what it is with few (eRPC, NSDI 2019, figure 1).
pub const LARGE: Nic = Nic {
    name: "large cache, like a ConnectX-5",
    cache_bytes: 5 << 20,
    outbound_ns: 25.0,
    inbound_ns: 12.5,
    pcie_read_ns: 45.0,
    ..SMALL
};

/// The processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Threads that serve. 10, as in the paper's measurements.
    pub threads: u32,
    /// Bytes of its last-level cache into which a NIC may place what comes in: 2 of 20 ways of 30 MiB. Assumed.
    pub ddio_bytes: usize,
    /// A read that misses the last-level cache. Assumed.
    pub miss_ns: f64,
    /// What a call costs a thread besides. Assumed, but for a metadata server: see [`Metadata`].
    pub call_ns: f64,
    /// What the receive queue costs a thread for each datagram: posting, and taking the completion. Assumed.
    pub datagram_ns: f64,
}

/// A server of the kind that the paper measured.
pub const HOST: Host = Host {
    threads: 10,
    ddio_bytes: 3 << 20,
    miss_ns: 90.0,
    call_ns: 400.0,
    datagram_ns: 250.0,
};

/// The messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Calls that each client has outstanding.
    pub window: usize,
    /// Bytes of a message block.
    pub block_bytes: usize,
}

/// Small messages in blocks of 4 KiB, of which each touches a line: what a general server has to have.
pub const LOAD: Load = Load {
    window: 16,
    block_bytes: 4 << 10,
};

impl Nic {
    /// Bytes that the NIC keeps of a connection on which it sends.
    fn active_bytes(&self) -> (usize, usize) {
        (self.context_bytes, self.wqe_bytes * self.wqes)
    }

    /// Connections on which it can send without a read over PCIe.
    pub fn connections(&self) -> usize {
        let (context, wqes) = self.active_bytes();
        self.cache_bytes / (context + wqes)
    }
}
