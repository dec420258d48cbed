//! RPC servers: this protocol, one that gives each client a zone of its own, and one over datagrams.

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::cache::{Cache, Item};
use super::verbs::{Verb, touch};
use super::{Host, Load, Nic};

/// Calls that fill the caches, and that are counted.
const CALLS: u32 = 60_000;

/// How a server is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Design {
    /// This protocol: groups that share two pools, a slice each.
    Grouped {
        /// Connections that are served together.
        group_size: u32,
        /// A group's turn.
        time_slice_ns: f64,
    },
    /// Reliable connections, each with a zone of its own.
    Static,
    /// Unreliable datagrams: one queue pair for all, and a receive queue.
    Datagrams,
}

/// What a server reaches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Served {
    /// Millions of calls in a second.
    pub rate_mops: f64,
    /// Reads over PCIe for each call.
    pub pcie_reads: f64,
    /// Time for which the NIC is busy, for each call.
    pub nic_ns: f64,
    /// Time for which the threads are busy, for each call, by their number.
    pub threads_ns: f64,
}

/// A server while it is played.
struct Play<'a> {
    nic: &'a Nic,
    cache: Cache,
    inbound_ns: f64,
    outbound_ns: f64,
    reads: u32,
}

impl Play<'_> {
    /// A message comes in and is placed at `to`.
    fn receive(&mut self, to: usize) {
        let page = Item::Page((to / self.nic.page_bytes) as u32);
        let reads = self.cache.touch(page, self.nic.translation_bytes);
        self.inbound_ns += self.nic.inbound_ns + f64::from(reads) * self.nic.pcie_read_ns;
        self.reads += reads;
    }

    fn send(&mut self, verb: Verb, client: u32) {
        let reads = touch(self.nic, &mut self.cache, verb, client);
        self.outbound_ns += self.nic.outbound_ns + f64::from(reads) * self.nic.pcie_read_ns;
        self.reads += reads;
    }

    /// Time for which the busier direction is busy.
    fn nic_ns(&self) -> f64 {
        self.inbound_ns.max(self.outbound_ns)
    }
}

/// The rate of a server whose clients all call all the time.
pub fn serve(nic: &Nic, host: &Host, load: &Load, design: Design, clients: u32) -> Served {
    let clients = clients.max(1);
    let mut play = Play {
        nic,
        cache: Cache::new(nic.cache_bytes),
        inbound_ns: 0.0,
        outbound_ns: 0.0,
        reads: 0,
    };
    let mut rng = SmallRng::seed_from_u64(0x5e2e);
    let zone_bytes = load.window * load.block_bytes;
    let threads_ns = host_ns(host, load, design, clients);
    // The slice's length in calls follows from the rate, which follows from the misses.
    let (mut group, mut slice_left_ns) = (0, 0.0);
    for call in 0..2 * CALLS {
        if call == CALLS {
            (play.inbound_ns, play.outbound_ns, play.reads) = (0.0, 0.0, 0);
        }
        let before_ns = play.nic_ns();
        match design {
            Design::Grouped {
                group_size,
                time_slice_ns,
            } => {
                if slice_left_ns <= 0.0 {
                    slice_left_ns += time_slice_ns;
                    let next = (group + 1) % clients.div_ceil(group_size);
                    if next != group {
                        group = next;
                        let first = group * group_size;
                        switch(&mut play, first..clients.min(first + group_size));
                    }
                }
                let first = group * group_size;
                let client = first + rng.random_range(0..group_size.min(clients - first));
                let zone = (client - first) as usize;
                play.receive(zone * zone_bytes);
                play.send(Verb::OutboundWrite, client);
            }
            Design::Static => {
                let client = rng.random_range(0..clients);
                play.receive(client as usize * zone_bytes);
                play.send(Verb::OutboundWrite, client);
            }
            Design::Datagrams => {
                play.receive(0);
                play.send(Verb::DatagramSend, 0);
            }
        }
        slice_left_ns -= (play.nic_ns() - before_ns).max(threads_ns);
    }
    let nic_ns = play.nic_ns() / f64::from(CALLS);
    Served {
        rate_mops: 1e3 / nic_ns.max(threads_ns),
        pcie_reads: f64::from(play.reads) / f64::from(CALLS),
        nic_ns,
        threads_ns,
    }
}

/// A switch: the endpoint entries of the group come in, and its batches are fetched. (The events for the one before ride on
/// responses.)
fn switch(play: &mut Play<'_>, members: Range<u32>) {
    for client in members {
        // The entry, the demand byte, and the READ, which the NIC needs the same for as for a WRITE.
        play.receive(0);
        play.receive(0);
        play.send(Verb::OutboundWrite, client);
    }
}

/// What a call costs the threads: a block that was pushed out of the cache before it was looked at is a miss.
fn host_ns(host: &Host, load: &Load, design: Design, clients: u32) -> f64 {
    // A message touches its line and the last one of its block.
    let lines_bytes = 128 * load.window;
    let hot_bytes = match design {
        Design::Grouped { group_size, .. } => 2 * group_size.min(clients) as usize * lines_bytes,
        Design::Static => clients as usize * lines_bytes,
        // The receive queue of a thread is a ring of a few hundred buffers.
        Design::Datagrams => host.threads as usize * 512 * 128,
    };
    let resident = (host.ddio_bytes as f64 / hot_bytes as f64).min(1.0);
    let datagram_ns = match design {
        Design::Datagrams => host.datagram_ns,
        Design::Grouped { .. } | Design::Static => 0.0,
    };
    let call_ns = host.call_ns + datagram_ns + 2.0 * (1.0 - resident) * host.miss_ns;
    call_ns / f64::from(host.threads)
}
