//! What a posted WRITE and a polled completion cost, in instructions, beside a C program that does the same on the same
//! device's driver. Callgrind counts; a run of twice the rounds, less one of the rounds, leaves out what comes before.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod fake;
mod verbs_common;

use std::ffi::{CString, OsStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::OnceLock;

use rdma_core_sys::{ibv_context_ops, ibv_cq, ibv_qp, ibv_send_wr, ibv_wc};
use scalerpc_driver::Fabric;
use verbs_common::{fake, pair, wr_id, write};

/// Tells the child what to do: the provider, rounds, bytes, and of how many WRITEs one is signaled.
const CHILD: &str = "SCALERPC_COST_CHILD";
/// WRITEs in a round: a chain.
const CHAIN: u32 = 16;
const ROUNDS: u64 = 2_000;
/// What is measured, and how many instructions more than the C program the driver may take: for the checks of each
/// range, the chains of many queue pairs, and the copy of what goes inline, whose source is free when a post returns.
const WRITES: [(&str, usize, f64); 2] = [
    ("WRITE of 64 B, inline", 64, 110.0),
    ("WRITE of 512 B", 512, 75.0),
];
const COMPLETION_MORE: f64 = 48.0;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

static PROVIDER: OnceLock<(PostSend, PollCq)> = OnceLock::new();

fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: the handle is live, and the name ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null());
    found
}

fn load(path: &str) {
    let path = CString::new(path).unwrap();
    // SAFETY: the library has no constructors.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{path:?}");
    let post = symbol(library, "provider_post_send");
    let poll = symbol(library, "provider_poll_cq");
    // SAFETY: it is a function of this type.
    let post = unsafe { std::mem::transmute::<*mut c_void, PostSend>(post) };
    // SAFETY: as above.
    let poll = unsafe { std::mem::transmute::<*mut c_void, PollCq>(poll) };
    assert!(PROVIDER.set((post, poll)).is_ok());
}

fn provider(ops: &mut ibv_context_ops) {
    if let Some(&(post, poll)) = PROVIDER.get() {
        ops.post_send = Some(post);
        ops.poll_cq = Some(poll);
    }
}

/// Not a test by itself: what the child of the test below runs, under Callgrind.
#[test]
fn child() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    let parts: Vec<&str> = task.split(' ').collect();
    let [path, rounds, bytes, every] = parts[..] else {
        panic!("{task}");
    };
    let (rounds, bytes): (u32, usize) = (rounds.parse().unwrap(), bytes.parse().unwrap());
    let every: u32 = every.parse().unwrap();
    load(path);
    let fake = fake();
    fake.net().operations = Some(provider);
    let (_server, mut client, _) = pair(&fake, 1);
    let (mut sequence, mut completions) = (0, 0_u64);
    let mut wr = write(0, 1, bytes);
    for _ in 0..rounds {
        for i in 0..CHAIN {
            sequence += 1;
            wr.wr_id = wr_id(0, sequence);
            wr.signaled = (i + 1) % every == 0;
            (wr.local, wr.remote) = (64 * i as usize, 64 * i as usize);
            client.post_write(&wr).unwrap();
        }
        assert_eq!(client.flush(), None);
        while let Some(completion) = client.poll_completion() {
            completions += u64::from(completion.wr_id.sequence());
        }
    }
    println!("{completions}");
    // The provider does not flush: there is nothing to wait for.
    exit(0);
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    said.into_owned()
}

/// Instructions of a program.
fn instructions(program: &Path, args: &[&str], task: &str) -> u64 {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(args)
        .env(CHILD, task);
    let said = run(&mut command);
    let line = said.lines().find(|line| line.contains("Collected :"));
    let number = line.and_then(|line| line.split_whitespace().last());
    number.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

struct Programs {
    c: PathBuf,
    provider: PathBuf,
    own: PathBuf,
}

impl Programs {
    fn build(dir: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs_cost");
        let (c, provider) = (dir.join("loop"), dir.join("libprovider.so"));
        let cc = |args: &[&OsStr]| {
            run(Command::new("cc")
                .args(["-O2", "-Wall", "-Werror"])
                .args(args))
        };
        let (loop_c, provider_c) = (source.join("loop.c"), source.join("provider.c"));
        cc(&[
            "-shared".as_ref(),
            "-fPIC".as_ref(),
            "-o".as_ref(),
            provider.as_ref(),
            provider_c.as_ref(),
        ]);
        cc(&[
            "-o".as_ref(),
            c.as_ref(),
            loop_c.as_ref(),
            provider.as_ref(),
        ]);
        let own = std::env::current_exe().unwrap();
        Self { c, provider, own }
    }

    /// Instructions of a round: by the C program, and by the driver.
    fn round(&self, bytes: usize, every: u32) -> [f64; 2] {
        let c = |rounds: u64| {
            let args = [rounds.to_string(), bytes.to_string(), every.to_string()];
            instructions(&self.c, &args.each_ref().map(String::as_str), "")
        };
        let driver = |rounds: u64| {
            let task = format!("{} {rounds} {bytes} {every}", self.provider.display());
            instructions(&self.own, &["child", "--exact", "--nocapture"], &task)
        };
        let each =
            |count: &dyn Fn(u64) -> u64| (count(2 * ROUNDS) - count(ROUNDS)) as f64 / ROUNDS as f64;
        [each(&c), each(&driver)]
    }
}

#[test]
fn a_write_and_a_completion_cost_little_more_than_in_c() {
    if cfg!(debug_assertions) {
        // Only optimized code is compared; ci.sh runs these tests in release, too.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let programs = Programs::build(dir.path());
    println!("instructions                     C    driver   more");
    let mut too_many = Vec::new();
    for (what, bytes, more) in WRITES {
        let few = programs.round(bytes, CHAIN);
        let all = programs.round(bytes, 1);
        let completion: [f64; 2] =
            std::array::from_fn(|i| (all[i] - few[i]) / f64::from(CHAIN - 1));
        let write: [f64; 2] = std::array::from_fn(|i| (few[i] - completion[i]) / f64::from(CHAIN));
        for (what, [c, driver], more) in [
            (what, write, more),
            ("its completion", completion, COMPLETION_MORE),
        ] {
            println!("{what:<24} {c:>9.1} {driver:>9.1} {:>6.1}", driver - c);
            if driver - c > more {
                too_many.push(what);
            }
        }
    }
    assert!(too_many.is_empty(), "more than they may: {too_many:?}");
}
