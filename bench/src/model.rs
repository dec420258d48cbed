//! A model of a NIC in virtual time: the real engines in one thread, and a price for what they do.
//!
//! A price list is no device. What it shows is the share of a slice that has work in it, and how often queue pairs
//! come back to a cache that is too small for all of them.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use scalerpc::{ClientSet, Request, Server, ServerBuilder};
use serde::Serialize;

use crate::stage::{Load, PAYLOAD, echo};

/// What things take, in nanoseconds, and the size of the cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Prices {
    /// A round of the server, whatever is in it.
    pub(crate) round_ns: u64,
    pub(crate) call_ns: u64,
    /// A switch event.
    pub(crate) event_ns: u64,
    pub(crate) read_ns: u64,
    /// A call on a queue pair that is not in the cache.
    pub(crate) miss_ns: u64,
    /// Queue pairs that the cache holds; the one that was used longest ago makes room.
    pub(crate) cached: usize,
    /// From an answer to the next request of its client.
    pub(crate) client_ns: u64,
}

impl Default for Prices {
    fn default() -> Self {
        Self {
            round_ns: 50,
            call_ns: 100,
            event_ns: 50,
            read_ns: 100,
            miss_ns: 400,
            cached: 64,
            client_ns: 4_000,
        }
    }
}

/// Queue pairs by when they were used last.
#[derive(Default)]
struct Cache {
    used: HashMap<u32, u64>,
    order: BTreeMap<u64, u32>,
    time: u64,
    misses: u64,
}

impl Cache {
    fn touch(&mut self, seat: u32, room: usize) {
        self.time += 1;
        match self.used.insert(seat, self.time) {
            Some(before) => {
                self.order.remove(&before);
            }
            None => {
                self.misses += 1;
                if self.used.len() > room {
                    if let Some((_, oldest)) = self.order.pop_first() {
                        self.used.remove(&oldest);
                    }
                }
            }
        }
        self.order.insert(self.time, seat);
    }
}

/// Calls in a second of virtual time, after as long a time to come to rest.
pub(crate) fn throughput(
    builder: ServerBuilder,
    clients: u32,
    load: Load,
    prices: Prices,
    time_ns: u64,
) -> Result<f64, Box<dyn Error>> {
    let (mut server, mut set, _dir) = connect(builder, clients)?;
    let (mut now_ns, mut client_ns, mut begun) = (0, 0, None);
    let pause_ns = load.cold_pause.as_nanos() as u64;
    let mut due: BTreeMap<(u64, u32), u32> = (0..clients)
        .map(|client| {
            let hot = load.is_hot(client);
            let first_ns = if hot {
                0
            } else {
                pause_ns * u64::from(client) / u64::from(clients)
            };
            ((first_ns, client), if hot { load.hot_calls } else { 1 })
        })
        .collect();
    let mut cache = Cache::default();
    while now_ns < 2 * time_ns {
        if now_ns >= client_ns {
            client_ns = now_ns + prices.client_ns;
            while let Some(completion) = set.poll_completion() {
                let client = completion.connection;
                completion.result?;
                let next_ns = if load.is_hot(client) {
                    now_ns
                } else {
                    now_ns + pause_ns
                };
                *due.entry((next_ns, client)).or_default() += 1;
            }
            while let Some(entry) = due.first_entry().filter(|it| it.key().0 <= now_ns) {
                let ((_, client), calls) = entry.remove_entry();
                for _ in 0..calls {
                    set.call_async(client, 1, &PAYLOAD)?;
                }
            }
            // Posts what is to be posted; whatever has come meanwhile is taken next time.
            set.flush();
        }
        let (before, misses) = (server.counters(), cache.misses);
        server.poll(now_ns, &mut |request: Request<'_>, response: &mut [u8]| {
            cache.touch(request.seat, prices.cached);
            echo(request, response)
        });
        let after = server.counters();
        now_ns += prices.round_ns
            + (after.calls - before.calls) * prices.call_ns
            + (after.switch_events_extra - before.switch_events_extra) * prices.event_ns
            + (after.warmup_reads - before.warmup_reads) * prices.read_ns
            + (cache.misses - misses) * prices.miss_ns;
        if begun.is_none() && now_ns >= time_ns {
            begun = Some((now_ns, after.calls));
        }
    }
    let (begun_ns, begun_calls) = begun.unwrap_or_default();
    let calls = server.counters().calls - begun_calls;
    Ok(calls as f64 * 1e9 / (now_ns - begun_ns) as f64)
}

type Ends = (Server, ClientSet, tempfile::TempDir);

/// A server and its clients, with a thread that polls it only while they connect.
fn connect(builder: ServerBuilder, clients: u32) -> Result<Ends, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model");
    let mut server = builder.listen(&path)?;
    let stop = Arc::<AtomicBool>::default();
    let stopped = stop.clone();
    let thread = thread::spawn(move || {
        // Ordering: it says nothing but itself.
        while !stopped.load(Ordering::Relaxed) || server.counters().connections < clients.into() {
            server.poll(0, &mut echo);
            thread::yield_now();
        }
        server
    });
    let set = ClientSet::connect(&path, clients);
    if set.is_err() {
        return Err(set.err().map_or("no clients".into(), Into::into));
    }
    // Ordering: as above.
    stop.store(true, Ordering::Relaxed);
    let server = thread
        .join()
        .map_err(|_| "the server's thread ended early")?;
    Ok((server, set?, dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_forgets_what_was_used_longest_ago() {
        let mut cache = Cache::default();
        for seat in [1, 2, 1, 3, 1, 2] {
            cache.touch(seat, 2);
        }
        // 3 takes the place of 2, which comes back.
        assert_eq!(cache.misses, 4);
    }
}
