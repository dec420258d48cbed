//! Raw verbs: how many operations in a second, to or from so many clients.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::Nic;
use super::cache::{Cache, Item};

/// Operations that fill the cache, and that are counted.
const OPERATIONS: u32 = 60_000;

/// What is done again and again, each time with a client that is drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A WRITE to a client over its reliable connection.
    OutboundWrite,
    /// A WRITE from a client over its reliable connection.
    InboundWrite,
    /// A SEND to a client as an unreliable datagram: one queue pair for all.
    DatagramSend,
}

/// What a verb reaches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Verbs {
    /// Millions in a second.
    pub rate_mops: f64,
    /// Reads over PCIe for each.
    pub pcie_reads: f64,
}

/// The rate of a verb with so many clients.
pub fn raw(nic: &Nic, verb: Verb, clients: u32) -> Verbs {
    let mut cache = Cache::new(nic.cache_bytes);
    let mut rng = SmallRng::seed_from_u64(0x01c);
    let mut act = |cache: &mut Cache| touch(nic, cache, verb, rng.random_range(0..clients.max(1)));
    for _ in 0..OPERATIONS {
        act(&mut cache);
    }
    cache.take_misses();
    for _ in 0..OPERATIONS {
        act(&mut cache);
    }
    let pcie_reads = cache.take_misses() as f64 / f64::from(OPERATIONS);
    let pipeline_ns = match verb {
        Verb::OutboundWrite | Verb::DatagramSend => nic.outbound_ns,
        Verb::InboundWrite => nic.inbound_ns,
    };
    Verbs {
        rate_mops: 1e3 / (pipeline_ns + pcie_reads * nic.pcie_read_ns),
        pcie_reads,
    }
}

/// What a verb needs of the cache; how many reads over PCIe that takes.
pub(super) fn touch(nic: &Nic, cache: &mut Cache, verb: Verb, client: u32) -> u32 {
    let (context, wqes) = nic.active_bytes();
    match verb {
        Verb::OutboundWrite => {
            cache.touch(Item::Context(client), context) + cache.touch(Item::Wqes(client), wqes)
        }
        Verb::InboundWrite => 0,
        Verb::DatagramSend => {
            cache.touch(Item::Context(0), context) + cache.touch(Item::Wqes(0), wqes)
        }
    }
}
