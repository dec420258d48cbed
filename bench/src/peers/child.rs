//! Peers that are programs of their own: with two threads, which take turns with everybody else when they are told to.
//!
//! Such a program is called with `SIZE WINDOW CONNECTIONS CLIENT_CPU SERVER_CPU`, and prints `ready`. For each line
//! `WARM_US TIME_US` that comes in it runs, each time until something was answered, and prints
//! `OPERATIONS TIME_NS WAITED_NS`.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Load, PATIENCE, Runner, Sample};
use crate::cpus::Cpus;

/// What it may take to end when it is told to.
const GRACE: Duration = Duration::from_secs(2);

pub(super) struct Program {
    path: PathBuf,
    child: Child,
    /// `None` once it has been told that there are no more turns.
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    pub(super) fn start(path: &Path, load: Load, cpus: Cpus) -> Result<Self, Box<dyn Error>> {
        let Load {
            size,
            window,
            connections,
        } = load;
        let numbers = [
            size,
            window,
            connections,
            cpus.clients as u32,
            cpus.server as u32,
        ];
        let mut child = Command::new(path)
            .args(numbers.map(|it| it.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| format!("{}: {why}", path.display()))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a program without pipes".into());
        };
        // On a thread, since a pipe is read without a timeout.
        let (told, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    break;
                }
            }
        });
        let mut program = Self {
            path: path.into(),
            child,
            stdin: Some(stdin),
            lines,
        };
        match program.line(PATIENCE)?.as_str() {
            "ready" => Ok(program),
            other => Err(program.failure(&format!("it said {other:?} and not that it is ready"))),
        }
    }

    fn line(&mut self, patience: Duration) -> Result<String, Box<dyn Error>> {
        let line = self.lines.recv_timeout(patience);
        line.map_err(|_| self.failure("it said nothing"))
    }

    /// An error, with the last line that the program had to say.
    fn failure(&mut self, what: &str) -> Box<dyn Error> {
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        let last = text.lines().last().unwrap_or_default();
        format!("{}: {what}: {last}", self.path.display()).into()
    }
}

impl Runner for Program {
    fn run(&mut self, warm: Duration, time: Duration) -> Result<Sample, Box<dyn Error>> {
        let stdin = self.stdin.as_mut().ok_or("it has ended")?;
        if let Err(why) = writeln!(stdin, "{} {}", warm.as_micros(), time.as_micros()) {
            return Err(self.failure(&why.to_string()));
        }
        let line = self.line(warm + time + PATIENCE)?;
        let numbers: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[operations, time_ns, waited_ns]) if operations > 0 && time_ns > 0 => Ok(Sample {
                operations,
                time_ns,
                waited_ns,
            }),
            _ => Err(self.failure(&format!("it said {line:?} and not how much it did"))),
        }
    }
}

impl Drop for Program {
    /// The program may have files to remove.
    fn drop(&mut self) {
        drop(self.stdin.take());
        let begun = Instant::now();
        while begun.elapsed() < GRACE && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
