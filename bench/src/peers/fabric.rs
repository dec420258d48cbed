//! `fi_pingpong` of libfabric, with its provider for shared memory: two processes, anew for each turn.

use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use super::{Load, Runner, Sample};
use crate::cpus::{Cpus, pin};

const PROGRAM: &str = "fi_pingpong";
/// More than a message there and back takes, so that a turn is not longer than those of others.
const ROUND_TRIP: Duration = Duration::from_micros(8);
/// How often the client tries to reach the server, which needs some time to listen.
const ATTEMPTS: u32 = 40;

pub(super) struct PingPong {
    load: Load,
    cpus: Cpus,
}

impl PingPong {
    pub(super) fn start(load: Load, cpus: Cpus) -> Result<Self, Box<dyn Error>> {
        let version = Command::new(PROGRAM).arg("-h").output();
        version.map_err(|why| format!("{PROGRAM}: {why}"))?;
        Ok(Self { load, cpus })
    }

    fn command(&self, iterations: u128) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["-p", "shm", "-e", "rdm"]);
        command.args(["-S", &self.load.size.to_string()]);
        command.args(["-I", &iterations.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn once(&self, iterations: u128) -> Result<Sample, Box<dyn Error>> {
        let free = TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port()
            .to_string();
        // Processes are where they are made.
        pin(self.cpus.server);
        let server = self.command(iterations).args(["-B", &free]).spawn();
        pin(self.cpus.clients);
        let mut server = Ends(server?);
        for _ in 0..ATTEMPTS {
            let mut client = self.command(iterations);
            let done = client.args(["-P", &free, "127.0.0.1"]).output()?;
            if done.status.success() {
                return sample(&done);
            }
            if let Some(status) = server.0.try_wait()? {
                return Err(format!("{PROGRAM} as a server ended with {status}").into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err(format!("{PROGRAM} does not reach its server").into())
    }
}

/// A process that does not outlive what it is for.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`, where a transfer is one way.
fn sample(done: &Output) -> Result<Sample, Box<dyn Error>> {
    let text = String::from_utf8_lossy(&done.stdout);
    let said = || format!("{PROGRAM} said {text:?}");
    let fields: Vec<&str> = text
        .lines()
        .nth(1)
        .ok_or_else(said)?
        .split_whitespace()
        .collect();
    let one_way_us: f64 = fields
        .get(6)
        .ok_or_else(said)?
        .parse()
        .map_err(|_| said())?;
    /// It names two digits behind the point of a microsecond only, so the number of operations is free.
    const OPERATIONS: u64 = 1_000_000;
    Ok(Sample {
        operations: OPERATIONS,
        time_ns: (2.0 * one_way_us * 1_000.0 * OPERATIONS as f64) as u64,
        waited_ns: 0,
    })
}

impl Runner for PingPong {
    fn run(&mut self, warm: Duration, time: Duration) -> Result<Sample, Box<dyn Error>> {
        let both = (warm + time).as_nanos() / ROUND_TRIP.as_nanos();
        self.once(both.max(100))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn what_the_program_says_becomes_a_round_trip() {
        let said = |stdout: &str| Output {
            status: ExitStatus::from_raw(0),
            stdout: stdout.into(),
            stderr: Vec::new(),
        };
        let table = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                     32      20k     =20k     1.2m        0.16s      8.16       3.92       0.26\n";
        let of = sample(&said(table)).unwrap();
        assert_eq!(of.time_ns / of.operations, 7_840);
        for wrong in [
            "",
            "bytes\n",
            "bytes\n32 20k =20k 1.2m 0.16s 8.16 soon 0.26\n",
        ] {
            assert!(sample(&said(wrong)).is_err(), "{wrong}");
        }
    }
}
