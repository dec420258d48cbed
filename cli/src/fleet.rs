//! The client processes, as their parent sees them: orders out, news in, and what became of each.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::Pid;
use scalerpc::Clock;

use crate::messages::{News, Order, Report};
use crate::sys::{self, Ended};
use crate::worker::{self, Plan, Share};

/// Longest time for all processes to connect.
const CONNECT_NS: u64 = 60_000_000_000;
/// A process that is late by this much is looked at: one that is stopped is not waited for.
const LATE_NS: u64 = 200_000_000;
/// A process that runs and is late by this much has failed. It gives its calls up before that.
const HUNG_NS: u64 = 20_000_000_000;
/// Longest time for a process to end when it has been told to.
const EXIT: Duration = Duration::from_secs(5);
/// How often the caller of a round gets to draw something.
const TICK: Duration = Duration::from_millis(50);

/// Something that arrived from a process.
enum Arrived {
    News(News),
    /// Its end of the line is closed: it has ended, or will.
    End,
}

/// What became of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It runs.
    Alive,
    /// It has ended when it was told to.
    Finished,
    /// It has ended before its time.
    Ended(Ended),
    /// It was stopped at the end, and did not go on in time.
    Stopped,
    /// It did not answer, though it was not stopped.
    Hung,
}

/// A client process.
struct Member {
    pid: Pid,
    link: UnixStream,
    fate: Fate,
    /// It has an order that it has not carried out.
    is_busy: bool,
    connections: u32,
    /// Its connections that are up, on the server of which it reported last.
    up: u32,
}

/// A client process, for a report.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// Its id.
    pub(crate) pid: i32,
    /// Connections that it had.
    pub(crate) connections: u32,
    /// What became of it.
    pub(crate) fate: Fate,
}

impl Lost {
    /// True if it is the fault of this program.
    pub(crate) fn is_failure(&self) -> bool {
        match self.fate {
            Fate::Alive | Fate::Finished | Fate::Stopped => false,
            Fate::Ended(ended) => !ended.is_from_outside(),
            Fate::Hung => true,
        }
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "client process {} ({} connections) ",
            self.pid, self.connections
        )?;
        match self.fate {
            Fate::Alive => f.write_str("is alive"),
            Fate::Finished => f.write_str("has done its work"),
            Fate::Ended(ended) => write!(f, "{ended}"),
            Fate::Stopped => f.write_str("was stopped and did not go on before the end"),
            Fate::Hung => f.write_str("did not carry out its orders, and was killed"),
        }
    }
}

/// All client processes. Those that are left are killed when it is dropped.
pub(crate) struct Fleet {
    members: Vec<Member>,
    arrivals: Receiver<(usize, Arrived)>,
    /// Held so that the channel does not end, and given to the readers.
    arrived: Sender<(usize, Arrived)>,
    clock: Clock,
    failures: Vec<String>,
}

impl Fleet {
    /// Starts the processes. There may be no other threads yet.
    ///
    /// # Errors
    ///
    /// Where the system has no room for them.
    pub(crate) fn start(
        plan: &Plan,
        clients: u32,
        processes: u32,
        first_client: u32,
    ) -> Result<Self, String> {
        // A line for each, and what shared memory needs: a socket, memory and a pidfd for each target.
        let targets = plan.targets.len() as u64;
        sys::allow_open_files(64 + u64::from(processes) * (1 + 3 * targets))?;
        let (arrived, arrivals) = channel();
        let mut fleet = Self {
            members: Vec::new(),
            arrivals,
            arrived,
            clock: plan.clock,
            failures: Vec::new(),
        };
        let mut next = 0;
        for index in 0..processes {
            let connections = clients / processes + u32::from(index < clients % processes);
            let share = Share {
                connections,
                first_client: first_client.wrapping_add(next),
            };
            next += connections;
            let member = Self::start_one(plan, share)
                .map_err(|error| format!("client process {} of {processes}: {error}", index + 1))?;
            fleet.members.push(member);
        }
        Ok(fleet)
    }

    fn start_one(plan: &Plan, share: Share) -> io::Result<Member> {
        let (link, theirs) = UnixStream::pair()?;
        let mut theirs = Some(theirs);
        let pid = sys::fork(|| match theirs.take() {
            Some(theirs) => worker::run(plan, share, theirs),
            None => 1,
        })?;
        // Only the child holds its end now, so that its death can be seen.
        drop(theirs);
        Ok(Member {
            pid,
            link,
            fate: Fate::Alive,
            is_busy: false,
            connections: share.connections,
            up: share.connections,
        })
    }

    /// The ids of all processes.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.members
            .iter()
            .map(|member| member.pid.as_raw_nonzero().get())
            .collect()
    }

    /// Has all processes connect, and waits for that. `addresses` are those of the targets, if they were not
    /// known before.
    ///
    /// # Errors
    ///
    /// What a process reports, or that one has ended.
    pub(crate) fn connect(&mut self, addresses: Vec<String>) -> Result<(), String> {
        let order = Order::Connect { addresses };
        for index in 0..self.members.len() {
            let link = self.members[index].link.try_clone();
            let link = link.map_err(|error| format!("client processes: {error}"))?;
            let arrived = self.arrived.clone();
            std::thread::Builder::new()
                .name("client-news".into())
                .spawn(move || read_news(index, link, &arrived))
                .map_err(|error| format!("a thread for a client process: {error}"))?;
            self.order(index, &order);
        }
        let until_ns = self.clock.now_ns() + CONNECT_NS;
        while self.members.iter().any(|member| member.is_busy) {
            self.take(&mut |_| {});
            if let Some(failure) = self.failures.first() {
                return Err(failure.clone());
            }
            if let Some(lost) = self.lost().first() {
                return Err(format!("{lost} before it had connected"));
            }
            if self.clock.now_ns() > until_ns {
                return Err("not all client processes could connect within a minute".into());
            }
        }
        Ok(())
    }

    /// Gives all processes an order and waits until they have carried it out, at most a little longer
    /// than `until_ns`. `on_report` gets every report, `on_tick` a chance to draw something.
    pub(crate) fn carry_out(
        &mut self,
        order: Order,
        until_ns: u64,
        on_report: &mut dyn FnMut(&Report),
        on_tick: &mut dyn FnMut(),
    ) {
        let mut late = Vec::new();
        for index in 0..self.members.len() {
            if self.members[index].is_busy {
                late.push(index);
            }
            self.order(index, &order);
        }
        loop {
            let late_ns = self.clock.now_ns().saturating_sub(until_ns);
            let waits = |member: &Member| {
                let is_stopped = late_ns > LATE_NS && sys::is_stopped(member.pid);
                member.is_busy && member.fate == Fate::Alive && !is_stopped
            };
            if !self.members.iter().any(waits) {
                return;
            }
            if late_ns > HUNG_NS {
                self.end_members(Fate::Hung, |member| {
                    member.is_busy && !sys::is_stopped(member.pid)
                });
            }
            // A process that was late for the last round joins what is left of this one.
            for index in self.take(on_report) {
                if self.clock.now_ns() < until_ns && late.contains(&index) {
                    late.retain(|other| *other != index);
                    self.order(index, &order);
                }
            }
            on_tick();
        }
    }

    /// Gives processes that are late so long to finish.
    pub(crate) fn wait_for_late(&mut self, ns: u64, on_report: &mut dyn FnMut(&Report)) {
        let until_ns = self.clock.now_ns() + ns;
        let is_late = |member: &Member| member.is_busy && member.fate == Fate::Alive;
        while self.clock.now_ns() < until_ns && self.members.iter().any(is_late) {
            self.take(on_report);
        }
    }

    /// Ends all processes.
    pub(crate) fn finish(&mut self) {
        self.end_members(Fate::Stopped, |member| sys::is_stopped(member.pid));
        self.end_members(Fate::Hung, |member| member.is_busy);
        for member in &mut self.members {
            if member.fate == Fate::Alive {
                tell(member, &Order::Exit);
                member.fate = match sys::wait_at_most(member.pid, EXIT) {
                    Some(Ended::Exited(0)) => Fate::Finished,
                    Some(ended) => Fate::Ended(ended),
                    None => continue,
                };
            }
        }
        self.end_members(Fate::Hung, |_| true);
    }

    /// True if no process is left, or all connections are down.
    pub(crate) fn is_done_for(&self) -> bool {
        let mut members = self.members.iter();
        members.all(|member| member.fate != Fate::Alive || member.up == 0)
    }

    /// What processes have reported as reasons why they cannot go on.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// The processes that are not there any more, or did not do what they were told.
    pub(crate) fn lost(&self) -> Vec<Lost> {
        let lost = self
            .members
            .iter()
            .filter(|member| !matches!(member.fate, Fate::Alive | Fate::Finished));
        lost.map(|member| Lost {
            pid: member.pid.as_raw_nonzero().get(),
            connections: member.connections,
            fate: member.fate.clone(),
        })
        .collect()
    }

    fn order(&mut self, index: usize, order: &Order) {
        let member = &mut self.members[index];
        // One that is busy has been stopped: orders would pile up.
        if member.fate == Fate::Alive && !member.is_busy {
            member.is_busy = true;
            tell(member, order);
        }
    }

    /// Takes news for a tick; returns who has finished.
    fn take(&mut self, on_report: &mut dyn FnMut(&Report)) -> Vec<usize> {
        let mut finished = Vec::new();
        let mut wait = TICK;
        loop {
            let (index, arrived) = match self.arrivals.recv_timeout(wait) {
                Ok(arrived) => arrived,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return finished,
            };
            // What is there already is taken without waiting.
            wait = Duration::ZERO;
            let member = &mut self.members[index];
            match arrived {
                Arrived::News(News::Report(report)) => {
                    on_report(&report);
                    member.up = report.connections;
                    if report.done {
                        member.is_busy = false;
                        finished.push(index);
                    }
                }
                Arrived::News(News::Connected) => member.is_busy = false,
                Arrived::News(News::Failed(message)) => self.failures.push(message),
                Arrived::End if member.fate == Fate::Alive => {
                    member.fate = Fate::Ended(sys::wait(member.pid));
                    member.is_busy = false;
                }
                Arrived::End => {}
            }
        }
    }

    fn end_members(&mut self, fate: Fate, which: impl Fn(&Member) -> bool) {
        for member in &mut self.members {
            if member.fate == Fate::Alive && which(member) {
                sys::kill(member.pid);
                let _ = sys::wait(member.pid);
                member.fate = fate.clone();
                member.is_busy = false;
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.end_members(Fate::Finished, |_| true);
    }
}

fn tell(member: &mut Member, order: &Order) {
    if let Ok(mut line) = serde_json::to_vec(&order) {
        line.push(b'\n');
        // That it has ended is seen at its end of the line.
        let _ = member.link.write_all(&line);
    }
}

fn read_news(index: usize, link: UnixStream, arrived: &Sender<(usize, Arrived)>) {
    for line in BufReader::new(link).lines() {
        let news = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let Some(news) = news else {
            break;
        };
        if arrived.send((index, Arrived::News(news))).is_err() {
            return;
        }
    }
    // Nobody listens any more when the parent is about to end.
    let _ = arrived.send((index, Arrived::End));
}
