//! A client process: many connections, each with some calls outstanding all the time, and a judgement of
//! every answer.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use scalerpc::{Backoff, CallError, CallId, ClientSet, Clock, PagePolicy};
use scalerpc_cli::meta::load::{Expect, Generator, Mix, Planned};
use scalerpc_cli::meta::tree::Tree;
use scalerpc_driver::Fabric;

use crate::messages::{Latencies, METHODS, News, Order, Report};
use crate::place::Place;

/// How often a process reports while it works.
const REPORT_NS: u64 = 250_000_000;
/// After so long without any answer the calls that are out are given up. Time in which this process did
/// not run does not count.
const GIVE_UP_NS: u64 = 10_000_000_000;
/// Longest step of that time: a process that was stopped sees one long step.
const STEP_MAX_NS: u64 = 50_000_000;
/// Problems that are told in words.
const EXAMPLES_MAX: usize = 4;

/// What every client process is told before it starts.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Where the servers are.
    pub(crate) targets: Vec<Place>,
    /// What the servers serve.
    pub(crate) tree: Arc<Tree>,
    /// How often each method is called.
    pub(crate) mix: Mix,
    /// The seed of all requests.
    pub(crate) seed: u64,
    /// Calls that each connection has outstanding; `None` for as many as the server's window, up to
    /// [`Plan::WINDOW`].
    pub(crate) window: Option<u32>,
    /// Pages of the clients' memory.
    pub(crate) pages: PagePolicy,
    /// The clock that all processes share.
    pub(crate) clock: Clock,
}

impl Plan {
    /// Calls that a connection has outstanding by default.
    pub(crate) const WINDOW: u32 = 4;
}

/// The connections of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// How many.
    pub(crate) connections: u32,
    /// The number of the first one as a client of the tree.
    pub(crate) first_client: u32,
}

/// Carries out orders until there are no more; returns the exit code.
pub(crate) fn run(plan: &Plan, share: Share, link: UnixStream) -> i32 {
    match serve(plan, share, &link) {
        Ok(()) => 0,
        Err(message) => {
            // If the parent is gone too, nobody is left to be told.
            let _ = send(&link, &News::Failed(message));
            1
        }
    }
}

fn serve(plan: &Plan, share: Share, link: &UnixStream) -> Result<(), String> {
    let mut workers = Vec::new();
    let mut line = String::new();
    let mut orders = BufReader::new(link);
    loop {
        line.clear();
        let read = orders.read_line(&mut line);
        if read.map_err(|error| format!("no orders: {error}"))? == 0 {
            return Ok(());
        }
        let order = serde_json::from_str(&line).map_err(|error| format!("order: {error}"))?;
        match order {
            Order::Connect { addresses } => {
                for (target, place) in plan.targets.iter().enumerate() {
                    let address = addresses.get(target).map(String::as_str);
                    workers.push(place.worker(plan, share, target, address)?);
                }
                send(link, &News::Connected)?;
            }
            Order::Load { target, until_ns } => {
                let worker: Option<&mut Box<dyn Works>> = workers.get_mut(target);
                worker
                    .ok_or("no such target")?
                    .load(Task::Load { until_ns }, link)?;
            }
            Order::CleanUp { target, until_ns } => {
                let worker = workers.get_mut(target);
                worker
                    .ok_or("no such target")?
                    .load(Task::CleanUp { until_ns }, link)?;
            }
            Order::Exit => return Ok(()),
        }
    }
}

fn send(mut link: &UnixStream, news: &News) -> Result<(), String> {
    let mut line = serde_json::to_vec(news).map_err(|error| error.to_string())?;
    line.push(b'\n');
    link.write_all(&line)
        .map_err(|error| format!("no parent: {error}"))
}

/// What the calls are for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    Load { until_ns: u64 },
    CleanUp { until_ns: u64 },
}

impl Task {
    /// True if another call may be made.
    fn goes_on(self, now_ns: u64) -> bool {
        let (Self::Load { until_ns } | Self::CleanUp { until_ns }) = self;
        now_ns < until_ns
    }
}

/// A call that is out.
#[derive(Clone, Copy)]
struct Pending {
    sent_ns: u64,
    expect: Expect,
}

/// The calls of a connection that are out, each with what belongs to it.
struct Calls<T> {
    places: Box<[Option<(CallId, T)>]>,
}

impl<T: Clone> Calls<T> {
    /// Room for that many.
    fn new(window: u32) -> Self {
        Self {
            places: vec![None; window as usize].into(),
        }
    }

    fn room(&self) -> usize {
        self.places.len()
    }

    /// The place in which a call is looked for first. As answers come in order it is nearly always
    /// there.
    fn first_place(&self, call: CallId) -> usize {
        (call.0 % self.places.len() as u64) as usize
    }

    /// Puts a call that is not there yet; nothing happens if there is no room.
    #[inline]
    fn put(&mut self, call: CallId, what: T) {
        let first = self.first_place(call);
        let free = if self.places[first].is_none() {
            Some(first)
        } else {
            self.places.iter().position(Option::is_none)
        };
        if let Some(free) = free {
            self.places[free] = Some((call, what));
        }
    }

    /// Takes a call that has ended.
    #[inline]
    fn take(&mut self, call: CallId) -> Option<T> {
        let is_it = |place: &Option<(CallId, T)>| place.as_ref().is_some_and(|it| it.0 == call);
        let first = self.first_place(call);
        let place = if is_it(&self.places[first]) {
            first
        } else {
            self.places.iter().position(is_it)?
        };
        self.places[place].take().map(|(_, what)| what)
    }

    /// Takes all of them.
    fn drain(&mut self) -> impl Iterator<Item = (CallId, T)> {
        self.places.iter_mut().filter_map(Option::take)
    }
}

/// One connection.
struct Conn {
    generator: Generator,
    calls: Calls<Pending>,
    /// No more calls are made on it.
    is_down: bool,
}

/// What has happened since the last report.
struct Since {
    latencies: [Latencies; METHODS],
    in_time: u64,
    wrong_answers: u64,
    errors: u64,
    examples: Vec<String>,
}

impl Since {
    fn new() -> Option<Self> {
        let none = Latencies::new()?;
        Some(Self {
            latencies: std::array::from_fn(|_| none.clone()),
            in_time: 0,
            wrong_answers: 0,
            errors: 0,
            examples: Vec::new(),
        })
    }

    #[cold]
    fn error(&mut self, what: &dyn Fn() -> String) {
        self.errors += 1;
        self.example(what);
    }

    #[cold]
    fn wrong(&mut self, what: &dyn Fn() -> String) {
        self.wrong_answers += 1;
        self.example(what);
    }

    fn example(&mut self, what: &dyn Fn() -> String) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(what());
        }
    }
}

/// All connections of this process to one server, over any back end.
pub(crate) trait Works {
    /// Makes calls as long as the task goes on, and takes all answers.
    fn load(&mut self, task: Task, link: &UnixStream) -> Result<(), String>;
}

/// All connections of this process to one server.
pub(crate) struct Worker<F: Fabric> {
    target: usize,
    set: ClientSet<F>,
    conns: Vec<Conn>,
    request: Vec<u8>,
    outstanding: u64,
    /// Connections that owe a call: the memory for it was still in use.
    later: VecDeque<u32>,
    since: Since,
    clock: Clock,
    report_at_ns: u64,
    /// How long no answer has come, and when that was last looked at.
    silent_ns: u64,
    looked_ns: u64,
}

impl<F: Fabric> Works for Worker<F> {
    fn load(&mut self, task: Task, link: &UnixStream) -> Result<(), String> {
        let mut now_ns = self.clock.now_ns();
        self.report_at_ns = now_ns + REPORT_NS;
        (self.silent_ns, self.looked_ns) = (0, now_ns);
        if task.goes_on(now_ns) {
            for conn in 0..self.conns.len() as u32 {
                for _ in 0..self.conns[conn as usize].calls.room() {
                    self.call(conn, task, now_ns);
                }
            }
        }
        let mut backoff = Backoff::default();
        while self.outstanding > 0 || !self.later.is_empty() {
            for _ in 0..self.later.len() {
                if let Some(conn) = self.later.pop_front() {
                    self.call(conn, task, now_ns);
                }
            }
            if self.take_one(task, &mut now_ns) {
                backoff.busy();
            } else {
                backoff.idle();
                // While answers come the time is looked at with each of them.
                if backoff.is_long() {
                    now_ns = self.clock.now_ns();
                    self.count_silence(now_ns);
                }
            }
            if now_ns >= self.report_at_ns {
                self.report_at_ns = now_ns + REPORT_NS;
                self.report(false, link)?;
            }
        }
        self.report(true, link)
    }
}

impl<F: Fabric> Worker<F> {
    /// Prepares the load of connections that are up.
    ///
    /// # Errors
    ///
    /// Where the server's sizes do not allow it.
    pub(crate) fn new(
        set: ClientSet<F>,
        plan: &Plan,
        share: Share,
        target: usize,
    ) -> Result<Self, String> {
        let geometry = *set.geometry();
        let window = plan.window.unwrap_or(Plan::WINDOW.min(geometry.window()));
        if window > geometry.window() {
            return Err(format!(
                "--window {window}: the server lets a connection have {} calls outstanding; use no \
                 more, or start the server with a larger window",
                geometry.window()
            ));
        }
        let conn = |number: u32| {
            let client = share.first_client.wrapping_add(number);
            let (request_max, response_max) =
                (geometry.request_max_bytes(), geometry.response_max_bytes());
            let tree = Arc::clone(&plan.tree);
            let generator =
                Generator::new(tree, client, plan.seed, plan.mix, request_max, response_max);
            Ok(Conn {
                generator: generator.map_err(|error| error.to_string())?,
                calls: Calls::new(window),
                is_down: false,
            })
        };
        Ok(Self {
            target,
            set,
            conns: (0..share.connections)
                .map(conn)
                .collect::<Result<_, String>>()?,
            request: vec![0; geometry.request_max_bytes()],
            outstanding: 0,
            later: VecDeque::new(),
            since: Since::new().ok_or("no histogram")?,
            clock: plan.clock,
            report_at_ns: 0,
            silent_ns: 0,
            looked_ns: 0,
        })
    }

    /// Takes a completion, judges it, and makes the next call in its place.
    fn take_one(&mut self, task: Task, now_ns: &mut u64) -> bool {
        let Some(completion) = self.set.poll_completion() else {
            return false;
        };
        *now_ns = self.clock.now_ns();
        (self.silent_ns, self.looked_ns) = (0, *now_ns);
        let number = completion.connection;
        let conn = &mut self.conns[number as usize];
        let Some(pending) = conn.calls.take(completion.call) else {
            // A call that was given up before.
            return true;
        };
        self.outstanding -= 1;
        match completion.result {
            Ok(answer) => {
                let method = pending.expect.method();
                let latency_ns = now_ns.saturating_sub(pending.sent_ns);
                if let Task::Load { until_ns } = task {
                    self.since.latencies[method as usize - 1].record(latency_ns);
                    self.since.in_time += u64::from(*now_ns < until_ns);
                }
                if let Err(why) = conn.generator.check(&pending.expect, answer) {
                    let call = conn.generator.describe(&pending.expect);
                    self.since
                        .wrong(&|| format!("connection {number}: {call}: {why}"));
                }
            }
            Err(error) => {
                let call = conn.generator.describe(&pending.expect);
                self.since
                    .error(&|| format!("connection {number}: {call}: {error}"));
                conn.is_down |= matches!(error, CallError::NotSent | CallError::Unknown);
                conn.generator.forget(&pending.expect);
            }
        }
        self.call(number, task, *now_ns);
        true
    }

    /// Makes a call, if there is one to make.
    #[inline]
    fn call(&mut self, number: u32, task: Task, now_ns: u64) {
        let conn = &mut self.conns[number as usize];
        if conn.is_down || !task.goes_on(now_ns) {
            return;
        }
        let planned = match task {
            Task::Load { .. } => Some(conn.generator.next(&mut self.request)),
            Task::CleanUp { .. } => conn.generator.next_cleanup(&mut self.request),
        };
        let Some(Planned {
            method,
            len,
            expect,
        }) = planned
        else {
            return;
        };
        match self.set.call_async(number, method, &self.request[..len]) {
            Ok(call) => {
                self.outstanding += 1;
                let sent_ns = now_ns;
                conn.calls.put(call, Pending { sent_ns, expect });
            }
            Err(CallError::WindowFull) => {
                conn.generator.forget(&expect);
                self.later.push_back(number);
            }
            Err(error) => {
                conn.generator.forget(&expect);
                conn.is_down |= matches!(error, CallError::NotSent);
                self.since
                    .error(&|| format!("connection {number}: {error}"));
            }
        }
    }

    /// Gives the calls up that are out, if there has been no answer for too long.
    #[cold]
    fn count_silence(&mut self, now_ns: u64) {
        self.silent_ns += now_ns.saturating_sub(self.looked_ns).min(STEP_MAX_NS);
        self.looked_ns = now_ns;
        if self.silent_ns < GIVE_UP_NS {
            return;
        }
        for (number, conn) in self.conns.iter_mut().enumerate() {
            let state = self.set.state(number as u32);
            for (number_of_call, pending) in conn.calls.drain() {
                let call = conn.generator.describe(&pending.expect);
                let seconds = GIVE_UP_NS / 1_000_000_000;
                self.since.error(&|| {
                    format!(
                        "connection {number} ({state:?}), call {}: {call}: no answer, and none to any \
                         other call, for {seconds} s",
                        number_of_call.0
                    )
                });
                conn.generator.forget(&pending.expect);
                conn.is_down = true;
            }
        }
        self.outstanding = 0;
    }

    fn report(&mut self, done: bool, link: &UnixStream) -> Result<(), String> {
        let since = &mut self.since;
        let mut latencies = since.latencies.iter_mut();
        let report = Report {
            target: self.target,
            methods: std::array::from_fn(|_| {
                latencies.next().map(Latencies::take).unwrap_or_default()
            }),
            in_time: std::mem::take(&mut since.in_time),
            wrong_answers: std::mem::take(&mut since.wrong_answers),
            errors: std::mem::take(&mut since.errors),
            examples: std::mem::take(&mut since.examples),
            connections: self.conns.iter().filter(|conn| !conn.is_down).count() as u32,
            done,
        };
        send(link, &News::Report(Box::new(report)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_in_whatever_order_they_end() {
        let mut calls = Calls::new(4);
        for call in 1..=4 {
            calls.put(CallId(call), call);
        }
        assert_eq!(calls.take(CallId(9)), None);
        // Call 1 takes long, and the later ones go on: two of them have the same first place.
        for call in 2..20 {
            assert_eq!(calls.take(CallId(call)), Some(call));
            assert_eq!(calls.take(CallId(call)), None);
            calls.put(CallId(call + 3), call + 3);
        }
        assert_eq!(calls.take(CallId(1)), Some(1));
        let mut left: Vec<_> = calls.drain().collect();
        left.sort_unstable();
        assert_eq!(left, [20, 21, 22].map(|call| (CallId(call), call)));
        assert_eq!(calls.drain().count(), 0);
    }
}
