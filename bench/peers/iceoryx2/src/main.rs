//! Requests and responses over iceoryx2, between two threads and over shared memory that processes can share.
//!
//! `peer-iceoryx2 SIZE WINDOW CONNECTIONS CLIENT_CPU SERVER_CPU` prints `ready`. For each line `WARM_US TIME_US` it runs,
//! and prints `OPERATIONS TIME_NS WAITED_NS`: the last is for how long its threads wanted to run and could not. A
//! connection is a client of the one service.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory;

type Answers = PendingResponse<ipc::Service, [u8], (), [u8], ()>;
type Calls = Client<ipc::Service, [u8], (), [u8], ()>;
type Service = PortFactory<ipc::Service, [u8], (), [u8], ()>;

/// What messages are made of.
const BYTE: u8 = 7;
/// Looks at a connection between two at the clock.
const LOOKS: usize = 256;

#[derive(Clone, Copy)]
struct Load {
    size: usize,
    window: usize,
    connections: usize,
}

/// A line of its own, also where processors fetch them in pairs.
#[repr(align(128))]
struct Stop(AtomicBool);

static STOP: Stop = Stop(AtomicBool::new(false));

unsafe extern "C" {
    /// Of libc, which is linked anyway.
    fn sched_setaffinity(pid: i32, bytes: usize, mask: *const u64) -> i32;
}

fn pin(cpu: usize) {
    let mut mask = [0_u64; 16];
    mask[cpu / 64] = 1 << (cpu % 64);
    // SAFETY: the mask is as long as it says. Without success the samples have more spread, which they show.
    unsafe { sched_setaffinity(0, size_of_val(&mask), mask.as_ptr()) };
}

fn waited_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1);
    waited.and_then(|it| it.parse().ok()).unwrap_or(0)
}

fn service(node: &Node<ipc::Service>, load: Load) -> Result<Service, Box<dyn Error>> {
    let name = format!("scalerpc-bench/{}", process::id());
    let builder = node.service_builder(&name.as_str().try_into()?);
    Ok(builder
        .request_response::<[u8], [u8]>()
        .max_servers(1)
        .max_clients(load.connections)
        .max_active_requests_per_client(load.window)
        .max_loaned_requests(1)
        .max_response_buffer_size(1)
        .max_borrowed_responses_per_pending_response(1)
        .enable_safe_overflow_for_requests(false)
        .enable_safe_overflow_for_responses(false)
        .open_or_create()?)
}

fn serve(load: Load, begin: &Receiver<()>, ended: &Sender<u64>) -> Result<(), Box<dyn Error>> {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = service(&node, load)?;
    let server = service
        .server_builder()
        .initial_max_slice_len(load.size)
        .create()?;
    ended.send(0)?;
    while begin.recv().is_ok() {
        let waited = waited_ns();
        // Ordering: it says nothing but itself, here and at the other end.
        while !STOP.0.load(Ordering::Relaxed) {
            while let Some(request) = server.receive()? {
                let response = request.loan_slice_uninit(load.size)?;
                response.write_from_slice(request.payload()).send()?;
            }
        }
        ended.send(waited_ns() - waited)?;
    }
    Ok(())
}

fn call(calls: &Calls, payload: &[u8]) -> Result<Answers, Box<dyn Error>> {
    let request = calls.loan_slice_uninit(payload.len())?;
    Ok(request.write_from_slice(payload).send()?)
}

/// The clients' end: one client for each connection, and what it waits for, the oldest first.
struct Clients {
    payload: Vec<u8>,
    all: Vec<(Calls, VecDeque<Answers>)>,
}

impl Clients {
    fn new(service: &Service, load: Load) -> Result<Self, Box<dyn Error>> {
        let payload = vec![BYTE; load.size];
        let mut all = Vec::new();
        for _ in 0..load.connections {
            let calls = service
                .client_builder()
                .initial_max_slice_len(load.size)
                .create()?;
            let mut awaited = VecDeque::with_capacity(load.window);
            for _ in 0..load.window {
                awaited.push_back(call(&calls, &payload)?);
            }
            all.push((calls, awaited));
        }
        Ok(Self { payload, all })
    }

    fn run(&mut self, time: Duration) -> Result<(u64, u64), Box<dyn Error>> {
        let rounds = LOOKS.div_ceil(self.all.len());
        let (begun, mut operations) = (Instant::now(), 0);
        loop {
            for _ in 0..rounds {
                for (calls, awaited) in &mut self.all {
                    let Some(oldest) = awaited.front() else {
                        continue;
                    };
                    let Some(response) = oldest.receive()? else {
                        continue;
                    };
                    let bytes = response.payload();
                    let ends = [bytes.first(), bytes.last()];
                    if bytes.len() != self.payload.len() || ends != [Some(&BYTE); 2] {
                        return Err(format!("a response of {} bytes: {ends:?}", bytes.len()).into());
                    }
                    drop(response);
                    awaited.pop_front();
                    awaited.push_back(call(calls, &self.payload)?);
                    operations += 1;
                }
            }
            let passed = begun.elapsed();
            if passed >= time && operations > 0 {
                return Ok((operations, passed.as_nanos() as u64));
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: peer-iceoryx2 SIZE WINDOW CONNECTIONS CLIENT_CPU SERVER_CPU";
    let numbers: Result<Vec<usize>, _> = std::env::args().skip(1).map(|it| it.parse()).collect();
    let Ok(&[size, window, connections, client_cpu, server_cpu]) = numbers.as_deref() else {
        return Err(usage.into());
    };
    let load = Load {
        size,
        window,
        connections,
    };
    let (begin, begins) = channel();
    let (ends, ended) = channel();
    set_log_level(LogLevel::Error);
    let server = thread::spawn(move || {
        pin(server_cpu);
        if let Err(error) = serve(load, &begins, &ends) {
            eprintln!("server: {error}");
            process::exit(1);
        }
    });
    pin(client_cpu);
    ended.recv()?;
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = service(&node, load)?;
    let mut clients = Clients::new(&service, load)?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    for line in std::io::stdin().lock().lines() {
        let numbers: Result<Vec<u64>, _> = line?.split_whitespace().map(str::parse).collect();
        let Ok(&[warm_us, time_us]) = numbers.as_deref() else {
            return Err("not WARM_US TIME_US".into());
        };
        STOP.0.store(false, Ordering::Relaxed);
        begin.send(())?;
        clients.run(Duration::from_micros(warm_us))?;
        let waited = waited_ns();
        let (operations, time_ns) = clients.run(Duration::from_micros(time_us))?;
        let waited = waited_ns() - waited;
        STOP.0.store(true, Ordering::Relaxed);
        let waited = waited + ended.recv()?;
        writeln!(out, "{operations} {time_ns} {waited}")?;
    }
    // Both ends have files to remove.
    drop((begin, clients));
    server.join().map_err(|_| "the server panicked")?;
    Ok(())
}
