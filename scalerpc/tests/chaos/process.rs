//! Child processes: this test binary again, in a role. The two ends talk in lines.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Long enough for any machine; nothing waits this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(120);

const ROLE: &str = "SCALERPC_CHAOS_ROLE";
const DIR: &str = "SCALERPC_CHAOS_DIR";
/// Begins the lines that are meant for the other end: the test harness writes to the same pipe.
const MARK: &str = "chaos: ";

/// What a process says of itself, by name.
pub type Report = BTreeMap<String, u64>;

/// Asks until the answer is there.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The role of this process and the run's directory, if it is a child.
pub fn role() -> Option<(Vec<String>, std::path::PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    let words = role.split(' ').map(str::to_owned).collect();
    Some((words, std::env::var_os(DIR)?.into()))
}

/// However the parent ends, the child does not outlive it, stopped or not.
fn end_with_parent() -> std::io::Result<()> {
    // SAFETY: takes no pointers; it is about the calling process alone.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A child. Killed on drop.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    role: String,
}

impl Process {
    pub fn spawn(role: &str, dir: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "child_process",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: what is called between fork and exec neither allocates nor takes a lock.
        unsafe { command.pre_exec(end_with_parent) };
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let said = line.split_once(MARK).map(|(_, said)| said.to_owned());
                if said.is_some_and(|said| sender.send(said).is_err()) {
                    break;
                }
            }
        });
        let role = role.to_owned();
        Self { child, lines, role }
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub fn tell(&mut self, command: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        if let Err(error) = writeln!(stdin, "{command}") {
            panic!("{} ended before {command}: {error}", self.role);
        }
    }

    /// The next line, which must begin so; what follows is a report.
    pub fn expect(&mut self, word: &str) -> Report {
        let line = match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("{} does not say {word}", self.role),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().unwrap();
                panic!("{} ended without saying {word}: {status}", self.role)
            }
        };
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(word), "{}: {line}", self.role);
        let number = |word: &str| {
            let (name, number) = word.split_once('=')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        words.map(|word| number(word).unwrap()).collect()
    }

    pub fn ask(&mut self) -> Report {
        self.tell("report");
        self.expect("report")
    }

    fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers; the child has not been waited for, so the number is still its own.
        let outcome = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(outcome, 0, "{}", self.role);
    }

    /// Stops the process, and waits until it has stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        wait_for("a stop", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            let state = stat.rsplit_once(") ").unwrap().1.as_bytes()[0];
            assert_ne!(state, b'Z', "{} ended by itself", self.role);
            (state == b'T').then_some(())
        });
    }

    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// SIGKILL, and waits for the end. A process that has ended before is an error.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        let status = self.child.wait().unwrap();
        assert_eq!(
            status.signal(),
            Some(libc::SIGKILL),
            "{}: {status}",
            self.role
        );
    }

    /// Waits for an orderly end.
    pub fn wait(&mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}: {status}", self.role);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a child: what the parent says.
pub struct Commands {
    lines: Receiver<String>,
}

impl Commands {
    pub fn listen() -> Self {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { lines }
    }

    /// The next command, if there is one. The end of the pipe ends this process.
    pub fn next(&self) -> Option<String> {
        match self.lines.try_recv() {
            Ok(line) => Some(line),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => std::process::exit(0),
        }
    }

    /// Waits for the parent to close the pipe, and ends this process.
    pub fn end(&self) -> ! {
        while self.lines.recv().is_ok() {}
        std::process::exit(0)
    }
}

/// In a child: says a line to the parent.
pub fn say(word: &str, report: &[(&str, u64)]) {
    let mut line = format!("\n{MARK}{word}");
    for (name, number) in report {
        line.push_str(&format!(" {name}={number}"));
    }
    println!("{line}");
}
