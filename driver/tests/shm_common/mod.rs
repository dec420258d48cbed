//! Helpers for the tests of the shared memory back end.
#![allow(dead_code, reason = "each test binary uses some of them")]

pub mod raw;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use scalerpc_core::memory::Memory;
use scalerpc_core::post::{Completion, WrId, WrKind, WriteWr};
use scalerpc_core::{Geometry, GeometryConfig};
use scalerpc_driver::shm::{ClientOptions, ServerOptions, ShmClient, ShmServer};
use scalerpc_driver::{Fabric, FabricEvent, Opened, Revocation};
use scalerpc_hugepage::PagePolicy;

/// Long enough for any machine; nothing waits this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A small geometry with so many seats.
pub fn geometry(clients_max: u32) -> Geometry {
    Geometry::new(GeometryConfig {
        clients_max,
        group_size: 4,
        window: 4,
        request_max_bytes: 200,
        response_max_bytes: 200,
        ..GeometryConfig::default()
    })
    .unwrap()
}

pub fn server_options() -> ServerOptions {
    ServerOptions {
        page_policy: PagePolicy::Never,
        ..ServerOptions::default()
    }
}

pub fn client_options() -> ClientOptions {
    ClientOptions {
        page_policy: PagePolicy::Never,
        timeout: PATIENCE,
        ..ClientOptions::default()
    }
}

/// A directory of its own, and a path in it.
pub fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    (dir, path)
}

pub fn serve(path: &Path, clients_max: u32) -> ShmServer {
    ShmServer::listen(path, geometry(clients_max), server_options()).unwrap()
}

/// Shards with so many seats each.
pub fn serve_shards(path: &Path, shards: u32, clients_max: u32) -> Vec<ShmServer> {
    ShmServer::listen_shards(path, geometry(clients_max), shards, server_options()).unwrap()
}

pub fn connect(path: &Path, connections: u32) -> ShmClient {
    ShmClient::connect(path, connections, client_options()).unwrap()
}

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

/// The next `count` connections that are opened.
pub fn opened(server: &mut ShmServer, count: usize) -> Vec<Opened> {
    (0..count)
        .map(|_| {
            wait_for("Opened", || match server.poll_event()? {
                FabricEvent::Opened(opened) => Some(opened),
                gone @ FabricEvent::Gone { .. } => panic!("{gone:?} instead of Opened"),
            })
        })
        .collect()
}

/// The next `count` connections that are gone, in any order; sorted.
pub fn gone(fabric: &mut impl Fabric, count: usize) -> Vec<u32> {
    let mut seats: Vec<u32> = (0..count)
        .map(|_| {
            wait_for("Gone", || match fabric.poll_event()? {
                FabricEvent::Gone { connection } => Some(connection),
                opened @ FabricEvent::Opened(_) => panic!("{opened:?} instead of Gone"),
            })
        })
        .collect();
    seats.sort_unstable();
    seats
}

/// Waits for all connections of a link to go, and releases their seats.
pub fn gone_and_released(server: &mut ShmServer, count: usize) {
    for seat in gone(server, count) {
        server.release(seat);
    }
}

/// No news for a while.
pub fn assert_quiet(fabric: &mut impl Fabric, what: &str) {
    for _ in 0..100 {
        assert_eq!(fabric.poll_event(), None, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn write_wr(connection: u32, local: usize, remote: usize, len: usize) -> WriteWr {
    let wr_id = WrId::new(WrKind::Write, 0, connection, 0);
    WriteWr {
        connection,
        local,
        remote,
        len,
        epoch: None,
        signaled: false,
        wr_id,
    }
}

/// All completions that are there.
pub fn completions(fabric: &mut impl Fabric) -> Vec<Completion> {
    std::iter::from_fn(|| fabric.poll_completion()).collect()
}

/// Revokes one tenancy; true if that is done.
pub fn revoke(server: &mut impl Fabric, seat: u32, epoch: u64) -> bool {
    let mut it = [Revocation {
        seat,
        epoch,
        done: false,
    }];
    server.revoke_all(&mut it);
    it[0].done
}

/// Fills words from `at` with numbers from `first` on.
pub fn fill(memory: &impl Memory, at: usize, len: usize, first: u64) {
    for (number, word) in (first..).zip((at..at + len).step_by(8)) {
        memory.store(word, number);
    }
}

/// The words of a range.
pub fn words(memory: &impl Memory, at: usize, len: usize) -> Vec<u64> {
    (at..at + len)
        .step_by(8)
        .map(|word| memory.load(word))
        .collect()
}

/// Names the role of a child process; see [`child`].
pub const ROLE: &str = "SCALERPC_TEST_ROLE";
pub const PATH: &str = "SCALERPC_TEST_PATH";

/// Runs this test binary again in a role: its test `child_process` then plays it. Killed on drop.
pub struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

/// Starts a process.
pub fn child(role: &str, path: &Path) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, role)
        .env(PATH, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Process { child, lines }
}

/// The role and the path of this process, if it is a child.
pub fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(PATH)?.into()))
}

/// In a child: says a line that its parent waits for.
pub fn say(line: &str) {
    // On a line of its own: the test harness writes too.
    println!("\n{line}");
}

/// In a child: sleeps until the parent is done with it.
pub fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(PATIENCE);
    }
}

impl Process {
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Waits for a line.
    pub fn expect(&mut self, wanted: &str) {
        for line in &mut self.lines {
            if line.unwrap() == wanted {
                return;
            }
        }
        panic!("the child ended without saying {wanted}");
    }

    /// The next line that begins so, without its beginning.
    pub fn line(&mut self, prefix: &str) -> String {
        for line in &mut self.lines {
            if let Some(rest) = line.unwrap().strip_prefix(prefix) {
                return rest.to_owned();
            }
        }
        panic!("the child ended without saying {prefix}..");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets a child go on that reads its standard input to the end.
    pub fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
