//! The clients' role: calls as fast as they are answered, every answer checked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use scalerpc::{
    Backoff, CallError, ClientOptions, ClientSet, ClientState, Completion, PagePolicy, SetupError,
};
use scalerpc_driver::shm;

use super::calls::{Name, Rng};
use super::census::{self, Census};
use super::ledger;
use super::process::{Commands, PATIENCE, say};

const ASK_EVERY: Duration = Duration::from_millis(10);

/// What happened in this process.
#[derive(Default)]
struct Tally {
    calls: u64,
    links: u64,
    lost: u64,
    not_sent: u64,
    unknown: u64,
    timed_out: u64,
    cancelled: u64,
    busy: u64,
    failed_setups: u64,
    /// Longest times without news while a call was open, by what the news was.
    worst_answer: Duration,
    worst_error: Duration,
}

/// One link to a server.
struct Link {
    set: ClientSet,
    client: u64,
    /// By connection: calls that were made, and the numbers of those that have not ended.
    made: Vec<u64>,
    open: Vec<BTreeSet<u64>>,
    news: Instant,
    /// When a patient client last asked whether the server is there. The others leave that to the library,
    /// which counts polls.
    asked: Instant,
}

impl Link {
    fn name(&self, connection: u32, number: u64) -> Name {
        Name {
            client: self.client,
            connection: u64::from(connection),
            number,
        }
    }

    fn next(&self, connection: u32) -> (Name, Vec<u8>) {
        let name = self.name(connection, self.made[connection as usize] + 1);
        let request = name.request(self.set.geometry().request_max_bytes());
        (name, request)
    }

    fn is_open(&self) -> bool {
        self.open.iter().any(|open| !open.is_empty())
    }

    fn is_lost(&self) -> bool {
        (0..self.set.len()).any(|connection| self.set.state(connection) == ClientState::Lost)
    }

    /// Makes a call and does not wait for it. False if the window is full, or the connection lost.
    fn call(&mut self, connection: u32) -> bool {
        let (name, request) = self.next(connection);
        match self.set.call_async(connection, name.method(), &request) {
            Ok(id) => {
                assert_eq!(id.0, name.number, "the library counts otherwise");
                self.made[connection as usize] = name.number;
                self.open[connection as usize].insert(name.number);
                true
            }
            Err(CallError::WindowFull | CallError::NotSent) => false,
            Err(error) => panic!("{name:?}: {error}"),
        }
    }

    /// A call that is waited for, but not for long.
    fn wait_for_call(&mut self, connection: u32, timeout: Duration, tally: &mut Tally, dir: &Path) {
        let (name, request) = self.next(connection);
        let answer = name.answer(name.number, self.set.geometry().response_max_bytes());
        let state = self.set.state(connection);
        let outcome = self.set.call(connection, name.method(), &request, timeout);
        match outcome {
            Ok(bytes) => {
                assert_eq!(bytes, answer, "{name:?}");
                tally.calls += 1;
            }
            Err(CallError::TimedOut) => tally.timed_out += 1,
            Err(CallError::DeadlineExceeded) => {
                check_not_run(dir, name);
                tally.timed_out += 1;
            }
            // Not accepted.
            Err(CallError::WindowFull) => return,
            Err(CallError::NotSent) if state == ClientState::Lost => return,
            Err(CallError::NotSent) => {
                check_not_run(dir, name);
                tally.not_sent += 1;
            }
            Err(CallError::Unknown) => tally.unknown += 1,
            Err(error) => panic!("{name:?}: {error}"),
        }
        self.made[connection as usize] = name.number;
        self.news = Instant::now();
    }

    fn cancel(&mut self, connection: u32) -> bool {
        let Some(&number) = self.open[connection as usize].last() else {
            return false;
        };
        // False: it has ended, and its completion will come.
        let outcome = self.set.cancel(connection, scalerpc::CallId(number));
        let cancelled = outcome != scalerpc::Cancelled::Ended;
        if cancelled {
            self.open[connection as usize].remove(&number);
        }
        cancelled
    }

    /// Takes one completion, and checks it.
    fn take(&mut self, tally: &mut Tally, dir: &Path) -> bool {
        let response_max = self.set.geometry().response_max_bytes();
        let Some(Completion {
            connection,
            call,
            result,
        }) = self.set.poll_completion()
        else {
            return false;
        };
        let name = Name {
            client: self.client,
            connection: u64::from(connection),
            number: call.0,
        };
        let error = match result {
            Ok(bytes) => {
                assert_eq!(bytes, name.answer(call.0, response_max), "{name:?}");
                None
            }
            Err(error) => Some(error),
        };
        let was_open = self.open[connection as usize].remove(&call.0);
        assert!(was_open, "{name:?} has ended twice, or was never made");
        match error {
            None => tally.calls += 1,
            Some(CallError::NotSent) => {
                check_not_run(dir, name);
                tally.not_sent += 1;
            }
            Some(CallError::Unknown) => tally.unknown += 1,
            Some(error) => panic!("{name:?}: {error}"),
        }
        if error.is_some() {
            assert_eq!(self.set.state(connection), ClientState::Lost, "{name:?}");
        }
        let worst = match error {
            None => &mut tally.worst_answer,
            Some(_) => &mut tally.worst_error,
        };
        *worst = self.news.elapsed().max(*worst);
        self.news = Instant::now();
        true
    }

    /// Every connection of a link is lost, and takes no more calls.
    fn check_lost(&mut self) {
        for connection in 0..self.set.len() {
            assert_eq!(self.set.outstanding(connection), 0, "{connection}");
            let refused = self.set.call_async(connection, 0, b"");
            assert_eq!(refused, Err(CallError::NotSent), "{connection}");
        }
    }
}

/// A call that ended without having been sent has not run.
fn check_not_run(dir: &Path, name: Name) {
    let last = ledger::last_run(dir, name.client, name.connection);
    assert!(last < name.number, "{name:?} was not sent, but {last} ran");
}

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub serial: u64,
    pub connections: u32,
    pub huge: bool,
    /// Waits for each call to be answered, however long it takes.
    pub patient: bool,
    /// Closes its link now and then, and opens another.
    pub fickle: bool,
}

struct Client {
    dir: PathBuf,
    manner: Manner,
    rng: Rng,
    tally: Tally,
    before: Census,
    link: Option<Link>,
    paused: bool,
    /// When there was no link to be had.
    trying: Option<Instant>,
}

impl Client {
    fn connect(&mut self) {
        let options = ClientOptions {
            page_policy: if self.manner.huge {
                PagePolicy::Prefer
            } else {
                PagePolicy::Never
            },
            timeout: PATIENCE,
            ..ClientOptions::default()
        };
        let connections = self.manner.connections;
        match ClientSet::connect_with(self.dir.join("s"), connections, options) {
            Ok(set) => {
                self.tally.links += 1;
                self.trying = None;
                self.link = Some(Link {
                    client: (self.manner.serial << 32) | self.tally.links,
                    made: vec![0; connections as usize],
                    open: vec![BTreeSet::new(); connections as usize],
                    news: Instant::now(),
                    asked: Instant::now(),
                    set,
                });
            }
            Err(SetupError::Shm(shm::SetupError::Busy { .. })) => self.tally.busy += 1,
            Err(SetupError::Shm(_)) => self.tally.failed_setups += 1,
            Err(error) => panic!("{error}"),
        }
        if self.link.is_none() {
            let since = *self.trying.get_or_insert_with(Instant::now);
            assert!(since.elapsed() < PATIENCE, "nobody takes the path over");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Closes the link, whatever is under way; nothing is left of it in this process.
    fn close(&mut self) {
        self.link = None;
        let now = census::of("self");
        assert_eq!(
            (now.descriptors, now.memory_maps),
            (self.before.descriptors, 0),
            "a link has left something"
        );
    }

    fn make_calls(&mut self) {
        let Some(link) = &mut self.link else { return };
        for connection in 0..link.set.len() {
            if self.rng.one_in(4) {
                continue;
            }
            for _ in 0..=self.rng.below(4) {
                if !link.call(connection) {
                    break;
                }
            }
            if self.manner.patient {
                continue;
            }
            if self.rng.one_in(64) && link.cancel(connection) {
                self.tally.cancelled += 1;
            }
            if self.rng.one_in(256) {
                let timeout = Duration::from_micros(self.rng.below(2000));
                link.wait_for_call(connection, timeout, &mut self.tally, &self.dir);
            }
        }
    }

    /// True if something has happened.
    fn step(&mut self) -> bool {
        if self.link.is_none() {
            self.connect();
            return false;
        }
        if !self.paused {
            self.make_calls();
        }
        let Some(link) = &mut self.link else {
            return false;
        };
        let mut news = false;
        while link.take(&mut self.tally, &self.dir) {
            news = true;
        }
        if !link.is_open() {
            link.news = Instant::now();
        }
        if self.manner.patient && !news && link.asked.elapsed() > ASK_EVERY {
            link.asked = Instant::now();
            link.set.take_events();
        }
        assert!(link.news.elapsed() < PATIENCE, "a call does not end");
        if link.is_lost() {
            // All that is still open ends now.
            link.set.take_events();
            while link.take(&mut self.tally, &self.dir) {}
            let all = (0..link.set.len()).all(|it| link.set.state(it) == ClientState::Lost);
            if all && !link.is_open() {
                link.check_lost();
                self.tally.lost += 1;
                self.close();
            }
        } else if self.manner.fickle && self.rng.one_in(200) {
            self.close();
        }
        news
    }

    fn report(&self, word: &str) {
        let tally = &self.tally;
        let is_up = self.link.as_ref().is_some_and(|link| !link.is_lost());
        say(
            word,
            &[
                ("connected", u64::from(is_up)),
                ("calls", tally.calls),
                ("links", tally.links),
                ("lost", tally.lost),
                ("not_sent", tally.not_sent),
                ("unknown", tally.unknown),
                ("timed_out", tally.timed_out),
                ("cancelled", tally.cancelled),
                ("busy", tally.busy),
                ("failed_setups", tally.failed_setups),
                ("worst_answer_us", tally.worst_answer.as_micros() as u64),
                ("worst_error_us", tally.worst_error.as_micros() as u64),
            ],
        );
    }

    /// Ends in an orderly way; with calls under way, now and then.
    fn end(mut self, commands: &Commands) -> ! {
        self.paused = true;
        let at_once = !self.manner.patient && self.rng.one_in(2);
        while !at_once && self.link.as_ref().is_some_and(Link::is_open) {
            self.step();
        }
        self.close();
        self.report("closed");
        commands.end()
    }
}

/// Calls until it is told to end.
pub fn play(dir: &Path, manner: Manner) -> ! {
    let commands = Commands::listen();
    let mut client = Client {
        dir: dir.into(),
        rng: Rng(manner.serial),
        manner,
        tally: Tally::default(),
        before: census::of("self"),
        link: None,
        paused: false,
        trying: None,
    };
    say("ready", &[]);
    let mut backoff = Backoff::default();
    let mut asked_to_pause = false;
    loop {
        if client.step() {
            backoff.busy();
        } else {
            backoff.idle();
        }
        if asked_to_pause && client.link.as_ref().is_some_and(|link| !link.is_open()) {
            asked_to_pause = false;
            client.report("paused");
        }
        match commands.next().as_deref() {
            None => {}
            Some("report") => client.report("report"),
            Some("pause") => (client.paused, asked_to_pause) = (true, true),
            Some("resume") => client.paused = false,
            Some("close") => client.end(&commands),
            Some(other) => panic!("{other}"),
        }
    }
}
