//! Calls for trial, from this process to itself.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scalerpc::{Client, Request, Server};
use scalerpc_driver::Fabric;

use super::finding::Findings;

/// Most calls of the trial.
const CALLS: usize = 200;
/// No more calls are made after this time, on a machine that is busy.
const CALLS_TIME: Duration = Duration::from_millis(300);

/// Writes down what came of it.
pub(super) fn tell(findings: &mut Findings, outcome: Result<(usize, Duration), String>) {
    match outcome {
        Ok((calls, time)) => findings.ok(
            "calls",
            format!(
                "{calls} were made and answered, in {:.1} us at best",
                time.as_secs_f64() * 1e6
            ),
        ),
        Err(error) => findings.fail("calls", error, None),
    }
}

/// How many calls were made, and the shortest time.
pub(super) fn shortest_call<S: Fabric + Send, C: Fabric, E: Display>(
    mut server: Server<S>,
    connect: impl FnOnce() -> Result<Client<C>, E>,
) -> Result<(usize, Duration), String> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server.run(&stop, &mut |request: Request<'_>, response: &mut [u8]| {
                let bytes = request.bytes.len();
                response[..bytes].copy_from_slice(request.bytes);
                Ok(bytes)
            });
        });
        let connected = connect().map_err(|error| error.to_string());
        let shortest = connected.and_then(call_often);
        // Ordering: the flag carries nothing else.
        stop.store(true, Ordering::Relaxed);
        shortest
    })
}

fn call_often<C: Fabric>(mut client: Client<C>) -> Result<(usize, Duration), String> {
    let mut shortest = Duration::MAX;
    let mut calls = 0;
    let began = Instant::now();
    while calls < CALLS && (calls == 0 || began.elapsed() < CALLS_TIME) {
        let request = calls.to_ne_bytes();
        let started = Instant::now();
        let answer = client
            .call(1, &request)
            .map_err(|error| error.to_string())?;
        shortest = shortest.min(started.elapsed());
        if answer != request {
            return Err(format!(
                "call {calls} was answered wrongly: please report this"
            ));
        }
        calls += 1;
    }
    Ok((calls, shortest))
}
