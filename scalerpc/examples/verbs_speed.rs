//! Calls over RDMA beside plain WRITEs, on one device of one machine.
//!
//! `ci/soft-roce-vm -c 4 -- target/release/examples/verbs_speed rxe0 10.77.0.1` measures in turns, as root, with perftest
//! installed: the round trip of a call beside two one-way WRITEs of `ib_write_lat`, and calls per second with 16
//! outstanding, at two WRITEs each, beside the WRITEs per second of `ib_write_bw`. Medians of all rounds are printed.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scalerpc::verbs::{ClientOptions, Selection, ServerOptions, VerbsClient};
use scalerpc::{CallError, ClientSet, Request, Server, Status};

const ROUNDS: usize = 7;
const LATENCY_CALLS: usize = 400;
const RATE_CALLS: u32 = 4_000;
const WINDOW: u32 = 16;
/// With its trailer a message of 64 bytes.
const PAYLOAD: [u8; 32] = [7; 32];
const TIMEOUT: Duration = Duration::from_secs(30);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (Some(device), Some(address)) = (args.next(), args.next()) else {
        return Err("which device, and which address of it?".into());
    };
    let selection = Selection {
        device: Some(device.clone()),
        ..Selection::default()
    };
    let options = ServerOptions {
        selection: selection.clone(),
        ..ServerOptions::default()
    };
    let builder = Server::builder().clients_max(4).window(WINDOW);
    let mut server = builder.listen_verbs((address.as_str(), 0), &options)?;
    let place = server.fabric().local_addr();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let echo = |request: Request<'_>, response: &mut [u8]| -> Result<usize, Status> {
            response[..request.bytes.len()].copy_from_slice(request.bytes);
            Ok(request.bytes.len())
        };
        server.run(&stopped, &mut { echo });
    });
    let options = ClientOptions {
        selection,
        ..ClientOptions::default()
    };
    let mut set = ClientSet::connect_verbs(place, 1, &options)?;
    let result = measure(&mut set, &device, &address);
    // Ordering: the flag carries nothing else.
    stop.store(true, Ordering::Relaxed);
    drop(set);
    let _ = thread.join();
    let [mut calls_us, mut writes_us, mut calls, mut writes] = result?;
    let [calls_us, writes_us] = [median(&mut calls_us), median(&mut writes_us)];
    let [calls, writes] = [median(&mut calls), median(&mut writes)];
    println!("medians of {ROUNDS} rounds, messages of 64 bytes, {device}");
    println!("  a call, there and back          {calls_us:10.1} us");
    println!("  two WRITEs, one after the other {writes_us:10.1} us");
    println!(
        "  ratio                           {:10.2}",
        calls_us / writes_us
    );
    println!("  calls with {WINDOW} outstanding       {calls:10.0} /s, two WRITEs each");
    println!("  WRITEs of ib_write_bw           {writes:10.0} /s");
    println!(
        "  ratio of WRITEs                 {:10.2}",
        2.0 * calls / writes
    );
    Ok(())
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn measure(
    set: &mut ClientSet<VerbsClient>,
    device: &str,
    address: &str,
) -> Result<[Vec<f64>; 4], Failure> {
    let mut samples: [Vec<f64>; 4] = Default::default();
    let count = LATENCY_CALLS.to_string();
    for _ in 0..ROUNDS {
        samples[0].push(round_trip(set)?);
        let latency = perftest("ib_write_lat", device, address, &["-n", &count])?;
        // Bytes, iterations, shortest, longest, typical, ...
        samples[1].push(2.0 * column(&latency, 4)?);
        samples[2].push(rate(set)?);
        let rate = perftest("ib_write_bw", device, address, &["-n", "5000"])?;
        // Bytes, iterations, peak, average, millions of messages per second.
        samples[3].push(1e6 * column(&rate, 4)?);
    }
    Ok(samples)
}

/// The median of some calls, one after the other, in microseconds.
fn round_trip(set: &mut ClientSet<VerbsClient>) -> Result<f64, CallError> {
    let mut samples = Vec::with_capacity(LATENCY_CALLS);
    for _ in 0..LATENCY_CALLS {
        let begun = Instant::now();
        set.call(0, 1, &PAYLOAD, TIMEOUT)?;
        samples.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&mut samples))
}

/// Calls per second with a full window.
fn rate(set: &mut ClientSet<VerbsClient>) -> Result<f64, CallError> {
    let (mut sent, mut ended) = (0, 0);
    let begun = Instant::now();
    while ended < RATE_CALLS {
        while sent < RATE_CALLS && set.call_async(0, 1, &PAYLOAD).is_ok() {
            sent += 1;
        }
        while let Some(completion) = set.poll_completion() {
            completion.result?;
            ended += 1;
        }
    }
    Ok(f64::from(RATE_CALLS) / begun.elapsed().as_secs_f64())
}

/// Ends its process with it.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The line of results of one of perftest's programs.
fn perftest(program: &str, device: &str, address: &str, more: &[&str]) -> Result<String, Failure> {
    let command = || {
        let mut command = Command::new(program);
        command
            .args(["-d", device, "-x", "1", "-s", "64", "-F"])
            .args(more);
        command.stdin(Stdio::null());
        command
    };
    let _server = Ending(
        command()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    // Only a connection shows that the server is up, and it takes just one.
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        let output = command().arg(address).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = said
            .lines()
            .find(|line| line.trim_start().starts_with("64 "));
        if let Some(line) = line {
            return Ok(line.to_owned());
        }
    }
    Err(format!("{program} came to nothing").into())
}

fn column(line: &str, at: usize) -> Result<f64, Failure> {
    let number = line.split_whitespace().nth(at);
    Ok(number
        .ok_or_else(|| format!("unknown output: {line}"))?
        .parse()?)
}
