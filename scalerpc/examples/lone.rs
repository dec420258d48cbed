//! A lone caller among thousands of idle connections: does it notice them?
//!
//! `cargo run --release -p scalerpc --example lone -- [IDLE]` measures round trips of one connection to a
//! server without any other, and of one to a server with IDLE (default 2000) idle connections, in turns,
//! and prints the ratio of the medians.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use scalerpc::{ClientSet, Clock, Request, Server, SetupError, Status};

const ROUNDS: usize = 60;
const CALLS: usize = 4_000;
const TIMEOUT: Duration = Duration::from_secs(30);

fn echo(request: Request<'_>, response: &mut [u8]) -> Result<usize, Status> {
    response[..request.bytes.len()].copy_from_slice(request.bytes);
    Ok(request.bytes.len())
}

fn median(sorted: &mut [f64]) -> f64 {
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let idle: u32 = std::env::args()
        .nth(1)
        .map_or(Ok(2000), |arg| arg.parse())?;
    let dir = std::env::temp_dir().join(format!("scalerpc-lone-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let result = measure(&dir, idle);
    std::fs::remove_dir_all(&dir)?;
    let (mut alone, mut among) = result?;
    let (alone, among) = (median(&mut alone), median(&mut among));
    println!("round trip of 32 bytes, median of {ROUNDS} rounds of {CALLS} calls");
    println!("  alone                {alone:8.0} ns");
    println!("  among {idle:5} idle     {among:8.0} ns");
    println!("  ratio                {:8.2}", among / alone);
    Ok(())
}

type Samples = (Vec<f64>, Vec<f64>);

fn measure(dir: &std::path::Path, idle: u32) -> Result<Samples, Box<dyn std::error::Error>> {
    let paths = [dir.join("alone"), dir.join("among")];
    let seats = [1, idle + 1];
    let servers: Result<Vec<Server>, SetupError> = (0..2)
        .map(|i| Server::builder().clients_max(seats[i]).listen(&paths[i]))
        .collect();
    let mut servers = servers?;
    // One thread serves both, so that they share a core; it polls the one that is being measured.
    let (which, stop) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (polled, stopped) = (which.clone(), stop.clone());
    let thread = std::thread::spawn(move || {
        let clock = Clock::start();
        while !stopped.load(Ordering::Relaxed) {
            servers[polled.load(Ordering::Relaxed)].poll(clock.now_ns(), &mut echo);
        }
    });
    let mut sets = Vec::new();
    for i in 0..2 {
        which.store(i, Ordering::Relaxed);
        let mut set = ClientSet::connect(&paths[i], seats[i])?;
        set.call(0, 1, &[7; 32], TIMEOUT)?;
        sets.push(set);
    }
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (i, set) in sets.iter_mut().enumerate() {
            which.store(i, Ordering::Relaxed);
            set.call(0, 1, &[7; 32], TIMEOUT)?;
            let start = Instant::now();
            for _ in 0..CALLS {
                set.call(0, 1, &[7; 32], TIMEOUT)?;
            }
            samples[i].push(start.elapsed().as_nanos() as f64 / CALLS as f64);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let _ = thread.join();
    let [alone, among] = samples;
    Ok((alone, among))
}
