//! Servers that share nothing, one for each core: for programs whose data is divided among their threads.
//!
//! `cargo run --release -p scalerpc --example thread_per_core`
//!
//! Each server has a path, a thread that stays on its core, and its part of the keys; a client finds the server of
//! a key by a hash. What all the servers together keep hot is one budget: the connections that are served at the same time.
//! It is divided among them, as `group_size`. They decide by themselves whose turn it is. (Where any connection may
//! ask for anything, one server with several workers fits better: `ServerBuilder::workers`.)

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use scalerpc::{Backoff, CallError, ClientSet, Counters, Request, Server, Status};

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Connections that are served at the same time, by all servers together.
const BUDGET: u32 = 40;
/// Connections of each client thread to each server.
const CONNECTIONS: u32 = 50;
const CLIENTS: u32 = 2;
/// Calls that each client thread makes.
const CALLS: u64 = 20_000;
const SERVERS_MAX: usize = 8;

const ADD: u16 = 1;

/// Any hash will do that is the same in all processes.
fn server_of(key: u64, servers: usize) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
    (hash % servers as u64) as usize
}

/// The cores that this process may use.
fn cores() -> Result<Vec<usize>, Fault> {
    let allowed = sched_getaffinity(None)?;
    let cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    Ok(cores.take(SERVERS_MAX).collect())
}

/// Keeps this thread on a core.
fn pin(core: usize) -> Result<(), Fault> {
    let mut one = CpuSet::new();
    one.set(core);
    Ok(sched_setaffinity(None, &one)?)
}

/// Adds to the sums of this server's keys, and answers with the new one. No lock: nobody else has these keys.
fn handler(
    number: usize,
    servers: usize,
) -> impl FnMut(Request<'_>, &mut [u8]) -> Result<usize, Status> {
    let mut sums: HashMap<u64, u64> = HashMap::new();
    move |request, response| {
        let words = request.bytes.split_first_chunk();
        let (Some((key, more)), ADD) = (words, request.method) else {
            return Err(Status::UNKNOWN_METHOD);
        };
        let key = u64::from_le_bytes(*key);
        let Ok(more) = more.try_into().map(u64::from_le_bytes) else {
            return Err(Status::application(1));
        };
        if server_of(key, servers) != number {
            return Err(Status::application(2));
        }
        let sum = sums.entry(key).or_default();
        *sum = sum.wrapping_add(more);
        response[..8].copy_from_slice(&sum.to_le_bytes());
        Ok(8)
    }
}

/// One client thread: its own keys, calls to all servers, every answer checked.
fn call(paths: &[PathBuf], client: u32) -> Result<(), Fault> {
    let mut sets = Vec::new();
    for path in paths {
        sets.push(ClientSet::connect(path, CONNECTIONS)?);
    }
    let mut sums: HashMap<u64, u64> = HashMap::new();
    // What is to be answered, by server, connection and call.
    let mut awaited = HashMap::new();
    let (mut number, mut answers) = (0, 0);
    let mut backoff = Backoff::default();
    while answers < CALLS {
        while number < CALLS {
            let key = (u64::from(client) << 32) + number % 1000;
            let server = server_of(key, paths.len());
            // A key's calls take one connection: so they run in their order.
            let connection = (key % u64::from(CONNECTIONS)) as u32;
            let request = [key, number].map(u64::to_le_bytes).concat();
            let call = match sets[server].call_async(connection, ADD, &request) {
                Ok(call) => call,
                Err(CallError::WindowFull) => break,
                Err(error) => return Err(error.into()),
            };
            let sum = sums.entry(key).or_default();
            *sum += number;
            awaited.insert((server, connection, call), *sum);
            number += 1;
        }
        backoff.idle();
        for (server, set) in sets.iter_mut().enumerate() {
            while let Some(completion) = set.poll_completion() {
                let call = (server, completion.connection, completion.call);
                let sum = awaited.remove(&call).ok_or("an answer to no call")?;
                let answer = completion.result?;
                if answer != sum.to_le_bytes() {
                    return Err(format!("{answer:?} instead of {sum}").into());
                }
                answers += 1;
                backoff.busy();
            }
        }
    }
    Ok(())
}

/// Serves on all cores until the clients are done. What each server counted.
pub fn serve_and_call(dir: &Path) -> Result<Vec<Counters>, Fault> {
    let cores = cores()?;
    let paths: Vec<_> = (0..cores.len())
        .map(|n| dir.join(format!("server-{n}")))
        .collect();
    let group_size = (BUDGET / cores.len() as u32).max(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, count) = (&stop, cores.len());
        let mut servers = Vec::new();
        let outcome = (|| {
            for ((number, core), path) in cores.into_iter().enumerate().zip(&paths) {
                let builder = Server::builder()
                    .clients_max(CLIENTS * CONNECTIONS)
                    .group_size(group_size);
                let mut server = builder.listen(path)?;
                servers.push(scope.spawn(move || {
                    pin(core)?;
                    server.run(stop, &mut handler(number, count));
                    Ok(server.counters())
                }));
            }
            let paths = &paths;
            let clients = (0..CLIENTS).map(|client| scope.spawn(move || call(paths, client)));
            let clients: Vec<_> = clients.collect();
            clients.into_iter().try_for_each(|client| {
                let outcome = client.join();
                outcome.unwrap_or_else(|_| Err("a client has panicked".into()))
            })
        })();
        stop.store(true, Ordering::Relaxed);
        let counters: Result<Vec<_>, Fault> = servers
            .into_iter()
            .map(|server| {
                let outcome = server.join();
                outcome.unwrap_or_else(|_| Err("a server has panicked".into()))
            })
            .collect();
        outcome.and(counters)
    })
}

#[allow(dead_code, reason = "a test has this file, too")]
fn main() -> Result<(), Fault> {
    let dir = std::env::temp_dir().join(format!("scalerpc-cores-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let counters = serve_and_call(&dir);
    std::fs::remove_dir_all(&dir)?;
    let counters = counters?;
    println!("{BUDGET} connections at the same time, by all servers together");
    for (number, counters) in counters.iter().enumerate() {
        let Counters {
            opened,
            calls,
            switches,
            ..
        } = counters;
        println!("server {number}: {opened} connections, {calls} calls, {switches} switches");
    }
    let calls: u64 = counters.iter().map(|counters| counters.calls).sum();
    println!("{calls} answers, all of them right");
    Ok(())
}
