//! The run: a server, a witness, victims, and what is done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::calls::Rng;
use super::census::{self, Census, HugePages};
use super::process::{Process, Report, wait_for};
use super::{ledger, server};

/// Rounds after which all is brought to rest.
pub const DECK: usize = 20;
const VICTIMS: usize = 3;
const WITNESS_CONNECTIONS: u64 = 2;
/// Calls that somebody must get answered before it counts as progress.
const PROGRESS: u64 = 20;
/// Stops before one is given up that should hit a WRITE.
const TRIES: u32 = 40;
/// What a server's heap may grow by, with what its checks remember.
const HEAP_SLACK: u64 = 2 << 20;
/// The same under address sanitizer, which keeps what has been freed.
const SANITIZED_SLACK: u64 = 64 << 20;

/// What is done in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Kill,
    /// Just started: while it connects, more often than not.
    KillFresh,
    KillStopped,
    KillAll,
    Stop,
    StopAll,
    /// In the middle of a copy into the server's memory, if that can be hit.
    StopWriting,
    Close,
    StopServer,
    KillServer,
    KillStoppedServer,
}

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    KillStopped,
    Stop,
}

struct Victim {
    process: Process,
    /// Servers that had ended when it was started.
    born: u64,
    was_stopped: bool,
}

impl Victim {
    fn stop(&mut self) {
        self.was_stopped = true;
        self.process.stop();
    }

    /// `ended`: servers that have ended so far.
    fn check(&self, report: &Report, ended: u64) {
        // One that is stopped while it connects may be told that it was too slow, on a slow machine.
        check_client(report, ended - self.born, self.was_stopped);
    }
}

/// What there is when only the server and the witness are there, at rest.
#[derive(Clone, Copy)]
struct Baseline {
    server: Census,
    witness: Census,
}

pub struct Arena {
    dir: tempfile::TempDir,
    rng: Rng,
    seed: u64,
    started: Instant,
    /// Of this process.
    descriptors: usize,
    server: Process,
    /// Servers that have ended: the number of the present one.
    generation: u64,
    /// Of the present server, when it was fresh.
    heap: u64,
    /// The most by which that of any server had grown.
    heap_growth: u64,
    witness: Process,
    victims: Vec<Victim>,
    serial: u64,
    baseline: Option<Baseline>,
    hugepages: Option<HugePages>,
    /// All memory that was ever seen.
    memory: BTreeSet<u64>,
    faults: BTreeMap<Fault, u64>,
    /// Sums of what servers and clients said last.
    sums: BTreeMap<String, u64>,
}

fn start_server(dir: &std::path::Path, generation: u64, seed: u64, huge: bool) -> Process {
    let role = format!("server {generation} {seed} {}", u64::from(huge));
    let mut server = Process::spawn(&role, dir);
    server.expect("ready");
    server
}

fn start_witness(dir: &std::path::Path) -> Process {
    let mut witness = Process::spawn(&format!("client 0 {WITNESS_CONNECTIONS} 0 1 0"), dir);
    witness.expect("ready");
    witness
}

impl Arena {
    pub fn open(seed: u64) -> Self {
        let descriptors = census::of("self").descriptors;
        let dir = tempfile::tempdir().unwrap();
        let server = start_server(dir.path(), 0, seed, false);
        let mut arena = Self {
            rng: Rng(!seed),
            seed,
            started: Instant::now(),
            descriptors,
            generation: 0,
            heap: census::private_bytes(&server.pid()),
            heap_growth: 0,
            server,
            witness: start_witness(dir.path()),
            victims: Vec::new(),
            serial: 0,
            baseline: None,
            hugepages: None,
            memory: BTreeSet::new(),
            faults: BTreeMap::new(),
            sums: BTreeMap::new(),
            dir,
        };
        arena.quiet();
        arena
    }

    fn new_victim(&mut self) -> Victim {
        self.serial += 1;
        let connections = 1 + self.rng.below(5);
        let huge = u64::from(self.hugepages.is_some());
        let fickle = u64::from(self.rng.one_in(4));
        let serial = self.serial;
        let role = format!("client {serial} {connections} {huge} 0 {fickle}");
        Victim {
            process: Process::spawn(&role, self.dir.path()),
            born: self.generation,
            was_stopped: false,
        }
    }

    fn fill(&mut self) {
        while self.victims.len() < VICTIMS {
            let mut victim = self.new_victim();
            victim.process.expect("ready");
            self.victims.push(victim);
        }
    }

    /// Any time up to so many microseconds.
    fn pause(&mut self, most_us: u64) {
        std::thread::sleep(Duration::from_micros(self.rng.below(most_us)));
    }

    fn any_victim(&mut self) -> Victim {
        let at = self.rng.below(self.victims.len() as u64) as usize;
        self.victims.swap_remove(at)
    }

    /// One fault. Afterwards the witness and every survivor get right answers again.
    pub fn round(&mut self, fault: Fault) {
        self.fill();
        *self.faults.entry(fault).or_default() += 1;
        self.pause(10_000);
        match fault {
            Fault::Kill => self.any_victim().process.kill(),
            Fault::KillFresh => {
                let mut fresh = self.new_victim();
                self.pause(12_000);
                fresh.process.kill();
            }
            Fault::KillStopped => {
                let mut victim = self.any_victim();
                victim.stop();
                self.witness_goes_on();
                victim.process.kill();
            }
            Fault::KillAll => {
                for mut victim in std::mem::take(&mut self.victims) {
                    victim.process.kill();
                }
            }
            Fault::Stop => self.stop(1),
            Fault::StopAll => self.stop(VICTIMS),
            Fault::StopWriting => self.stop_writing(),
            Fault::Close => {
                let victim = self.any_victim();
                self.close_victim(victim);
            }
            Fault::StopServer => self.stop_server(),
            Fault::KillServer => self.replace_server(End::Kill),
            Fault::KillStoppedServer => self.replace_server(End::KillStopped),
        }
        self.witness_goes_on();
    }

    /// Stops victims; the witness goes on meanwhile, and they go on afterwards.
    fn stop(&mut self, count: usize) {
        let mut before = Vec::new();
        for victim in &mut self.victims[..count] {
            before.push(victim.process.ask()["calls"]);
        }
        self.pause(10_000);
        let stopped = &mut self.victims[..count];
        stopped.iter_mut().for_each(Victim::stop);
        self.pause(50_000);
        self.witness_goes_on();
        let stopped = &self.victims[..count];
        stopped.iter().for_each(|victim| victim.process.go_on());
        for (at, before) in before.into_iter().enumerate() {
            self.victim_goes_on(at, before);
        }
    }

    /// Stops a victim again and again, until it is in the middle of a WRITE: its zone cannot be taken from it
    /// then, and yet the others go on.
    fn stop_writing(&mut self) {
        let mut victim = self.any_victim();
        for _ in 0..TRIES {
            self.pause(1_000);
            victim.stop();
            if !self.somebody_writes() {
                victim.process.go_on();
                continue;
            }
            self.add("stopped in the middle of a WRITE", 1);
            self.pause(50_000);
            self.witness_goes_on();
            if self.rng.one_in(2) {
                victim.process.kill();
                return;
            }
            victim.process.go_on();
            break;
        }
        let before = victim.process.ask()["calls"];
        self.victims.push(victim);
        self.victim_goes_on(self.victims.len() - 1, before);
    }

    /// The server finds a WRITE under way whenever it looks, for milliseconds.
    fn somebody_writes(&mut self) -> bool {
        let mut last = None;
        (0..3).all(|_| {
            let found = self.server.ask()["writes_under_way"];
            std::thread::sleep(Duration::from_millis(2));
            last.replace(found).is_none_or(|last| last < found)
        })
    }

    fn victim_goes_on(&mut self, at: usize, before: u64) {
        let ended = self.generation;
        let victim = &mut self.victims[at];
        wait_for("answers to a victim", || {
            let report = victim.process.ask();
            victim.check(&report, ended);
            (report["calls"] >= before + PROGRESS).then_some(())
        });
    }

    /// The witness gets answers, from the present server, and has lost no link but for the end of a
    /// server.
    fn witness_goes_on(&mut self) -> Report {
        let before = self.witness.ask()["calls"];
        let (witness, ended) = (&mut self.witness, self.generation);
        wait_for("answers to the witness", || {
            let report = witness.ask();
            check_client(&report, ended, false);
            let there = report["connected"] == 1 && report["links"] == ended + 1;
            (there && report["calls"] >= before + PROGRESS).then_some(report)
        })
    }

    fn close_victim(&mut self, mut victim: Victim) {
        victim.process.tell("close");
        let report = victim.process.expect("closed");
        victim.check(&report, self.generation);
        victim.process.wait();
        for name in [
            "calls",
            "lost",
            "not_sent",
            "unknown",
            "timed_out",
            "cancelled",
            "links",
        ] {
            self.add(&format!("closed victims: {name}"), report[name]);
        }
    }

    fn add(&mut self, name: &str, more: u64) {
        *self.sums.entry(name.into()).or_default() += more;
    }

    /// Stops the server: calls wait, and its path stays its own.
    fn stop_server(&mut self) {
        self.server.stop();
        assert!(server::is_refused(self.dir.path()), "two servers on a path");
        self.pause(50_000);
        self.server.go_on();
        self.witness_goes_on();
        for at in 0..self.victims.len() {
            let before = self.victims[at].process.ask()["calls"];
            self.victim_goes_on(at, before);
        }
    }

    /// Ends the server, and starts another one on its path at once; clients come by themselves.
    fn replace_server(&mut self, end: End) {
        // Only if the witness has a link is it known how many it loses.
        self.witness_goes_on();
        self.take_note_of_server();
        self.pause(3_000);
        match end {
            End::Kill => {}
            End::KillStopped => {
                self.server.stop();
                self.pause(20_000);
            }
            End::Stop => {
                self.server.tell("stop");
                self.server.expect("stopped");
                self.server.wait();
            }
        }
        if end != End::Stop {
            self.server.kill();
        }
        self.generation += 1;
        let huge = self.hugepages.is_some();
        self.server = start_server(self.dir.path(), self.generation, self.seed, huge);
        self.heap = census::private_bytes(&self.server.pid());
        self.witness_goes_on();
    }

    /// Before a server ends: what it has done, and which memory it has.
    fn take_note_of_server(&mut self) {
        self.memory
            .extend(census::memory_inodes(&self.server.pid()));
        let report = self.server.ask();
        assert_eq!(report["violations"], 0, "{report:?}");
        self.add("servers", 1);
        self.add("servers on hugepages", report["huge"]);
        let counters = [
            "calls",
            "staged",
            "direct",
            "switches",
            "zones_quiet",
            "zones_revoked",
            "zones_fenced",
            "writes_under_way",
            "failed_posts",
            "links_admitted",
            "links_abandoned",
        ];
        for name in counters {
            self.add(&format!("servers: {name}"), report[name]);
        }
    }

    /// Ends all victims, lets the witness rest, and counts: only the witness's link is left of them all.
    pub fn quiet(&mut self) {
        self.memory
            .extend(census::memory_inodes(&self.server.pid()));
        for mut victim in std::mem::take(&mut self.victims) {
            match self.rng.below(3) {
                0 => self.close_victim(victim),
                1 => victim.process.kill(),
                _ => {
                    victim.stop();
                    victim.process.kill();
                }
            }
        }
        self.witness.tell("pause");
        self.witness.expect("paused");
        let witness = census::of(&self.witness.pid());
        let expected = [
            ("connections", WITNESS_CONNECTIONS),
            ("quarantined", 0),
            ("seats_free", u64::from(server::SEATS) - WITNESS_CONNECTIONS),
            ("links", 1),
            ("client_bytes", witness.client_bytes),
            ("violations", 0),
            ("refused", 0),
        ];
        let patience = Instant::now() + super::process::PATIENCE;
        loop {
            let report = self.server.ask();
            let wrong = expected
                .iter()
                .find(|(name, number)| report[*name] != *number);
            let now = Baseline {
                server: census::of(&self.server.pid()),
                witness,
            };
            let same = *self.baseline.get_or_insert(now);
            let grown = same.difference(&now);
            if wrong.is_none() && grown.is_none() {
                break;
            }
            assert!(
                Instant::now() < patience,
                "at rest {wrong:?} is expected, {report:?} is so; {grown:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        let heap = census::private_bytes(&self.server.pid());
        let slack = match std::env::var_os("ASAN_OPTIONS") {
            None => HEAP_SLACK,
            Some(_) => SANITIZED_SLACK,
        };
        assert!(heap <= self.heap + slack, "{} grew to {heap}", self.heap);
        self.heap_growth = heap.saturating_sub(self.heap).max(self.heap_growth);
        self.forget_ledgers();
        self.witness.tell("resume");
        self.witness_goes_on();
        self.add("times at rest", 1);
    }

    /// Nobody looks at those of former servers any more.
    fn forget_ledgers(&self) {
        for generation in 0..self.generation {
            ledger::remove(self.dir.path(), generation);
        }
    }

    /// True if there are hugepages now, and a server that has some.
    pub fn borrow_hugepages(&mut self) -> bool {
        match HugePages::reserve() {
            Ok(pages) => {
                self.hugepages = Some(pages);
                self.replace_server(End::Stop);
                true
            }
            Err(why) => {
                println!("hugepages skipped: {why}");
                false
            }
        }
    }

    /// The victims have ended, and the server does now: all pages are free again.
    pub fn return_hugepages(&mut self) {
        let Some(pages) = self.hugepages.take() else {
            return;
        };
        self.replace_server(End::Stop);
        let until = Instant::now() + Duration::from_secs(20);
        while !pages.are_back() {
            if Instant::now() > until {
                let foreign = census::somebody_has_memory();
                assert!(foreign, "hugepages are lost");
                println!("hugepages not counted: other processes have some");
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The orderly end; nothing is left of anybody.
    pub fn close(mut self) {
        self.quiet();
        self.take_note_of_server();
        let witness = self.witness_goes_on();
        self.witness.tell("close");
        self.witness.expect("closed");
        self.witness.wait();
        self.server.tell("stop");
        self.server.expect("stopped");
        self.server.wait();
        ledger::remove(self.dir.path(), self.generation);
        let left: Vec<_> = std::fs::read_dir(self.dir.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        // The directory's name is in the environment of every child.
        let text = self.dir.path().to_str().unwrap();
        assert_eq!(census::processes_with(text), [""; 0]);
        assert_eq!(census::holders(&self.memory), [""; 0], "memory");
        println!(
            "{:.1} s; faults: {:?}",
            self.started.elapsed().as_secs_f64(),
            self.faults
        );
        println!(
            "{} pieces of memory were seen, none is left",
            self.memory.len()
        );
        println!("witness: {witness:?}");
        println!(
            "a server's heap grew by at most {} KiB",
            self.heap_growth >> 10
        );
        for (name, number) in &self.sums {
            println!("{name}: {number}");
        }
        let Self {
            dir,
            server,
            witness,
            descriptors,
            ..
        } = self;
        drop((dir, server, witness));
        // The threads that read what children say are about to end, too.
        wait_for("descriptors of this process", || {
            (census::of("self").descriptors <= descriptors).then_some(())
        });
    }
}

/// What a client says of itself, when so many servers have ended in its life.
fn check_client(report: &Report, ended: u64, may_be_late: bool) {
    let lost = report["lost"];
    assert!(lost <= ended, "a link was lost for no reason: {report:?}");
    if ended == 0 && !may_be_late {
        assert_eq!(report["failed_setups"], 0, "{report:?}");
    }
    assert_eq!(report["busy"], 0, "seats are missing: {report:?}");
}

impl Baseline {
    fn difference(&self, now: &Self) -> Option<String> {
        let pairs = [(self.server, now.server), (self.witness, now.witness)];
        let same = |(then, now): &(Census, Census)| {
            then.descriptors == now.descriptors
                && then.memory_maps == now.memory_maps
                // The allocator's come and go, a sanitizer's above all.
                && now.all_maps <= then.all_maps + then.all_maps / 2
        };
        let grown = pairs.iter().find(|pair| !same(pair));
        grown.map(|(then, now)| format!("{then:?} has become {now:?}"))
    }
}
