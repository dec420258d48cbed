//! Runs the command as its users do, and leaves no process behind.
#![allow(dead_code, reason = "every test crate uses its own part")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// No test waits longer, however busy the machine is.
pub const LONGEST: Duration = Duration::from_secs(180);

pub fn command<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scalerpc"));
    command.args(args).stdin(Stdio::null());
    command
}

/// What a command came to.
#[derive(Debug)]
pub struct Done {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| panic!("ended by a signal: {self:?}"))
    }

    /// The last line of standard output, as the one JSON object that it must be.
    pub fn json(&self) -> Value {
        let objects = self
            .stdout
            .lines()
            .filter(|line| line.starts_with('{'))
            .count();
        assert_eq!(objects, 1, "{self:?}");
        let last = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that it ended with this code, and with a message that has all these parts.
    #[track_caller]
    pub fn fails(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code(), code, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
        }
    }
}

/// Runs the command to its end.
pub fn run<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Done {
    Running::start(command(args)).wait()
}

type Lines = Arc<(Mutex<Vec<String>>, Condvar)>;

/// A command that runs; it is killed when this is dropped.
pub struct Running {
    child: Child,
    lines: Lines,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdout = child.stdout.take().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let lines = Lines::default();
        let to = lines.clone();
        Self {
            child,
            lines,
            stdout: Some(std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stdout.read_to_end(&mut bytes).unwrap();
                String::from_utf8(bytes).unwrap()
            })),
            stderr: Some(std::thread::spawn(move || {
                for line in stderr.lines() {
                    to.0.lock().unwrap().push(line.unwrap());
                    to.1.notify_all();
                }
            })),
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for a line of standard error with this start, and returns the rest of it.
    pub fn stderr_line(&self, start: &str) -> String {
        let until = Instant::now() + LONGEST;
        let mut lines = self.lines.0.lock().unwrap();
        loop {
            if let Some(rest) = lines.iter().find_map(|line| line.strip_prefix(start)) {
                return rest.to_owned();
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no line {start:?} in {lines:?}");
            lines = self
                .lines
                .1
                .wait_timeout(lines, left.min(Duration::from_millis(50)))
                .unwrap()
                .0;
        }
    }

    /// The client processes that it has announced.
    pub fn clients(&self) -> Vec<i32> {
        let pids = self.stderr_line("client processes: ");
        pids.split(' ').map(|pid| pid.parse().unwrap()).collect()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Done {
        let until = Instant::now() + LONGEST;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > until => {
                    panic!(
                        "it does not end; it said {:?}",
                        self.lines.0.lock().unwrap()
                    )
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let stdout = self.stdout.take().unwrap().join().unwrap();
        self.stderr.take().unwrap().join().unwrap();
        let stderr = self.lines.0.lock().unwrap().join("\n");
        Done {
            status,
            stdout,
            stderr,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of a process that has ended already this does nothing. Its children end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // One that nobody has waited for yet runs no more.
    stat.is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
}

/// Waits until it is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONGEST;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A small tree, and room for sockets next to it.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        for sub in ["a", "a/b", "c", "empty"] {
            std::fs::create_dir_all(tree.join(sub)).unwrap();
            for file in 0..20 {
                let name = format!("file-{file}");
                if sub != "empty" {
                    std::fs::write(tree.join(sub).join(name), vec![b'x'; file]).unwrap();
                }
            }
        }
        // More than a page.
        for file in 0..300 {
            std::fs::write(tree.join("c").join(format!("entry-{file}")), b"").unwrap();
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    /// A server of the tree, which is up.
    pub fn serve(&self, socket: &Path, more: &[&str]) -> Running {
        let mut command = command(["serve", "--socket"]);
        command
            .arg(socket)
            .arg("--tree")
            .arg(self.tree())
            .args(more);
        let running = Running::start(command);
        running.stderr_line("serving at ");
        running
    }

    /// A demo with this tree.
    pub fn demo(&self, args: &[&str]) -> Running {
        let mut command = command(["demo", "--json", "--tree"]);
        command.arg(self.tree()).args(args);
        Running::start(command)
    }
}

pub fn number(json: &Value, field: &str) -> u64 {
    let found = field.split('.').fold(json, |json, name| &json[name]);
    found
        .as_u64()
        .unwrap_or_else(|| panic!("{field} is {found} in {json}"))
}

pub fn call<I: AsRef<OsStr>>(socket: &Path, args: impl IntoIterator<Item = I>) -> Done {
    let mut command = command(["call", "--socket"]);
    command.arg(socket).args(args);
    Running::start(command).wait()
}
