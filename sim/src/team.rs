//! Several worlds, of which each has a worker's engine, its clients and its fabric; and the scheduler that leads them.
//!
//! Workers, scheduler and fabrics move on in random order. All the rules are checked in each world. Besides:
//! every worker carries out every order, and they serve the same group whenever they have; what the scheduler
//! orders follows from what it was told; and R7 and R8 hold for all workers together.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scalerpc_core::scheduler::{Board, Follower, Order, Scheduler, Task};

use crate::arena::Arena;
use crate::calm::{LONE_CALLS, LONE_STEPS, OUTLAST_STEPS, ROUNDS};
use crate::config::Config;
use crate::marks::counted;
use crate::oracle::Broken;
use crate::world::{Answers, Report, World, tell};

/// Calls of each connection that are compared.
const COMPARED: usize = 40;
/// Steps in which a connection has had so many answers, of any configuration.
const COMPARED_STEPS: u32 = 20_000;

/// What the workers serve when an order is carried out.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    served: Option<u32>,
    next: Option<u32>,
}

/// How often things are done, in each step, in 1/1000.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// A worker runs.
    work: u32,
    /// A worker looks at the board.
    follow: u32,
    /// The scheduler does.
    attend: u32,
    /// A worker stops for a while.
    stop: u32,
}

/// See the [module](self).
pub struct Team {
    workers: Vec<World>,
    followers: Vec<Follower>,
    /// A worker does nothing before this time.
    asleep_ns: Vec<u64>,
    scheduler: Scheduler,
    board: Arena,
    /// Before the last order, and after it.
    turns: [Turn; 2],
    pace: Pace,
    rng: SmallRng,
    now_ns: u64,
    report: Report,
    trace: bool,
}

impl Team {
    /// A team of one to four workers, each with a world of this configuration. `trace`: it says what happens.
    ///
    /// # Errors
    ///
    /// If the configuration cannot be used.
    pub fn new(seed: u64, config: Config, trace: bool) -> Result<Self, Broken> {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x7ea7);
        let count = rng.random_range(1..=4);
        let worker = |at: u64| {
            let seed = seed.wrapping_mul(4).wrapping_add(at);
            World::new(Config { seed, ..config }, trace)
        };
        let workers = (0..count).map(worker).collect::<Result<Vec<_>, _>>()?;
        let pace = Pace {
            work: rng.random_range(100..=1000),
            follow: rng.random_range(50..=1000),
            attend: rng.random_range(50..=1000),
            stop: if rng.random() { 2 } else { 0 },
        };
        Ok(Self {
            followers: (0..workers.len()).map(Follower::new).collect(),
            asleep_ns: vec![0; workers.len()],
            scheduler: Scheduler::new(config.server.time_slice_ns),
            board: Arena::new(Board::<scalerpc_core::Region>::bytes(workers.len())),
            turns: [Turn::default(); 2],
            workers,
            pace,
            rng,
            now_ns: 0,
            report: Report::default(),
            trace,
        })
    }

    fn config(&self) -> &Config {
        &self.workers[0].config
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// Which rule was broken, and how.
    pub fn run(mut self) -> Result<Report, Broken> {
        for _ in 0..self.config().steps {
            self.step()?;
        }
        self.calm_down()?;
        for world in self.workers {
            let report = world.finish();
            let marks = counted(&report.counters).into_iter().chain(report.marks);
            for (mark, times) in marks {
                *self.report.marks.entry(mark).or_default() += times;
            }
            self.report.steps += report.steps;
            self.report.longest_wait = self.report.longest_wait.max(report.longest_wait);
        }
        Ok(self.report)
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        self.rng.random_ratio(per_mille.min(1000), 1000)
    }

    fn mark(&mut self, mark: &'static str) {
        *self.report.marks.entry(mark).or_default() += 1;
    }

    fn step(&mut self) -> Result<(), Broken> {
        let step_ns = self.config().chances.step_ns;
        self.now_ns += self.rng.random_range(0..=step_ns);
        for at in 0..self.workers.len() {
            if self.chance(self.pace.stop) {
                self.asleep_ns[at] = self.now_ns + self.rng.random_range(0..=100 * step_ns);
                self.mark("worker stopped for a while");
            }
            if self.asleep_ns[at] > self.now_ns {
                continue;
            }
            if self.chance(self.pace.work) {
                self.workers[at].now_ns = self.now_ns;
                self.workers[at].step_now()?;
            }
            if self.chance(self.pace.follow) {
                self.follow(at);
            }
        }
        if self.chance(self.pace.attend) {
            self.attend()?;
        }
        self.check()
    }

    fn follow(&mut self, at: usize) {
        self.followers[at].follow(&mut self.workers[at].server, self.board.region());
    }

    /// A look of the scheduler. What it orders must follow from what it was told.
    fn attend(&mut self) -> Result<(), Broken> {
        let count = self.workers.len();
        let Some(board) = Board::new(self.board.region(), count) else {
            return Err("the board is too short".into());
        };
        let last = self.scheduler.order();
        let reports: Vec<_> = (0..count).map(|at| board.report(at)).collect();
        let Some(order) = board.attend(&mut self.scheduler, self.now_ns) else {
            return Ok(());
        };
        tell!(self, "    ^ {:?}", order.task);
        if reports.iter().any(|it| it.acknowledged != last.sequence) {
            return Err(format!(
                "{order:?} was given before {last:?} was carried out"
            ));
        }
        let [_, turn] = self.turns;
        match order.task {
            Task::Switch => {
                if !reports.iter().any(|it| it.ready) {
                    return Err("R7: a switch to a group of which nobody is ready".into());
                }
                if !reports.iter().all(|it| it.done) {
                    return Err("R8: a slice was cut short".into());
                }
                self.mark("order to switch");
            }
            Task::Next(group) => {
                let wished = |it| it == Some(group);
                let mut wishes = reports.iter().map(|it| it.wish.map(|wish| wish.group));
                if !wishes.any(wished) {
                    return Err(format!("R7: group {group} is next, and has no demand"));
                }
                let coming = reports.iter().any(|it| it.coming);
                self.mark(match (turn.next, coming) {
                    (None, _) => "order of a group",
                    (Some(_), true) => "group replaced: it hangs",
                    (Some(_), false) => "group replaced: nobody wants it any more",
                });
            }
        }
        let after = match order.task {
            Task::Switch => Turn {
                served: turn.next,
                next: None,
            },
            Task::Next(group) => Turn {
                next: Some(group),
                ..turn
            },
        };
        self.turns = [turn, after];
        Ok(())
    }

    /// Every worker is where the order that it has carried out has put it.
    fn check(&mut self) -> Result<(), Broken> {
        let order = self.scheduler.order();
        let (mut serving, mut without) = (0, 0);
        for at in 0..self.workers.len() {
            let world = &mut self.workers[at];
            world.audit()?;
            let done = world.server.report().acknowledged;
            let before = Order {
                sequence: order.sequence.wrapping_sub(1),
                ..order
            };
            let turn = match done {
                it if it == order.sequence => self.turns[1],
                it if it == before.sequence => self.turns[0],
                it => return Err(format!("worker {at} has carried out {it}, not {order:?}")),
            };
            for pool in (0..2).filter_map(|pool| world.server.pool(pool)) {
                let right = match pool.processing {
                    true => pool.group == turn.served,
                    false => turn.next.is_none() || pool.group == turn.next,
                };
                if !right {
                    return Err(format!(
                        "R8: worker {at} has {pool:?} after order {done}, and it should be {turn:?}"
                    ));
                }
                if pool.processing && done == order.sequence {
                    serving += u32::from(pool.active > 0);
                    without += u32::from(pool.active == 0);
                }
            }
        }
        if serving > 1 {
            self.mark("served by several workers at once");
        }
        if serving == 1 && without > 0 {
            self.mark("all clients of one worker");
        }
        Ok(())
    }

    fn calm_down(&mut self) -> Result<(), Broken> {
        tell!(self, "--- calm");
        for world in &mut self.workers {
            world.now_ns = self.now_ns;
            world.begin_calm()?;
        }
        self.settle()?;
        let groups = self.groups();
        let most = if cfg!(debug_assertions) { 100 } else { 600 };
        let burst = self.config().chances.burst;
        for _ in 0..(40 * (groups + 1)).min(most) {
            self.calm_step(|_, _| burst)?;
        }
        self.settle()?;
        self.outlast_the_silent()?;
        self.settle()?;
        self.lone()
    }

    /// Groups that any worker has members of.
    fn groups(&self) -> u32 {
        let mut groups = BTreeSet::new();
        for world in &self.workers {
            let seats = 0..world.geometry.clients_max();
            groups.extend(seats.filter_map(|seat| world.server.conn(seat)?.group));
        }
        groups.len() as u32
    }

    /// Longest time for a rotation of all groups (rule R8). Fetches of the dead hang, and zones of the silent
    /// are not there: each of their groups may be waited for, for a slice.
    fn rotation_ns(&self) -> u64 {
        let mut peers = self.workers.iter().flat_map(|it| it.peers.iter().flatten());
        let hangs = peers.any(|peer| !peer.is_honest());
        let turn_ns = self.workers[0].turn_ns(hangs);
        Scheduler::wait_bound_ns(self.groups() + 1, turn_ns, self.workers[0].calm_ns())
    }

    fn calm_step(&mut self, calls: impl Fn(usize, usize) -> u32) -> Result<(), Broken> {
        self.now_ns += self.workers[0].calm_ns();
        for (at, world) in self.workers.iter_mut().enumerate() {
            world.now_ns = self.now_ns;
            world.calm_clients(|seat| calls(at, seat))?;
        }
        for _ in 0..ROUNDS {
            for at in 0..self.workers.len() {
                self.workers[at].calm_round()?;
                self.follow(at);
            }
            self.attend()?;
        }
        self.check()?;
        let rotation_ns = self.rotation_ns();
        for world in &mut self.workers {
            let bound_ns = world.bound_of(rotation_ns);
            world.check_waits(bound_ns)?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Broken> {
        tell!(self, "--- settle");
        let mut quiet = 0;
        while quiet < 20 {
            self.calm_step(|_, _| 0)?;
            let busy = self.workers.iter().any(World::is_busy);
            quiet = if busy { 0 } else { quiet + 1 };
        }
        Ok(())
    }

    fn outlast_the_silent(&mut self) -> Result<(), Broken> {
        tell!(self, "--- outlast");
        let before_ns = self.now_ns;
        for world in &mut self.workers {
            world.begin_to_outlast();
            self.now_ns = world.now_ns;
        }
        for _ in 0..OUTLAST_STEPS {
            self.calm_step(|_, _| 0)?;
        }
        let mut workers = self.workers.iter();
        workers.try_for_each(|world| world.check_outlasted(before_ns))
    }

    /// One client of all calls: there is no order after its first answer, and nothing to wait for (rule R7).
    fn lone(&mut self) -> Result<(), Broken> {
        tell!(self, "--- lone");
        let mut peers = self.workers.iter().flat_map(|it| it.peers.iter().flatten());
        if peers.any(|peer| !peer.is_honest()) {
            return Ok(());
        }
        let mut callers = self.workers.iter().enumerate();
        let Some(caller) = callers.find_map(|(at, it)| Some((at, it.lone_caller()?))) else {
            return Ok(());
        };
        let mut order = self.scheduler.order();
        for call in 0..LONE_CALLS {
            self.calm_step(|at, seat| u32::from((at, seat) == caller))?;
            let mut steps = 1;
            while self.workers.iter().any(World::is_busy) {
                self.calm_step(|_, _| 0)?;
                steps += 1;
            }
            if call == 0 {
                order = self.scheduler.order();
            } else if steps > LONE_STEPS {
                return Err(format!("R7: a call of a lone client took {steps} steps"));
            }
            // Longer than a slice, so that one ends.
            for _ in 0..10 {
                self.calm_step(|_, _| 0)?;
            }
        }
        if self.scheduler.order() != order {
            return Err("R7: a lone client saw an order".into());
        }
        self.mark("lone caller among workers");
        Ok(())
    }
}

fn nonce(seed: u64, client: usize) -> u64 {
    SmallRng::seed_from_u64(seed ^ (client as u64) << 32).random()
}

/// The first answers of each of `clients` connections; `Err` if they do not come.
fn first(answers: Option<&Answers>, clients: usize) -> Result<Answers, Broken> {
    let mut answers = answers.cloned().unwrap_or_default();
    if answers.len() < clients || answers.values().any(|it| it.len() < COMPARED) {
        return Err("some calls are not answered".into());
    }
    for of_one in answers.values_mut() {
        of_one.truncate(COMPARED);
    }
    Ok(answers)
}

/// Plays the calls of a seed to one engine, and to a team: each connection must have the same answers, in the same
/// order. Nothing goes wrong but that everything comes at random times.
///
/// # Errors
///
/// What differs.
pub fn same_answers(seed: u64) -> Result<(), Broken> {
    let config = Config::draw_of_worker(seed).without_faults();
    let mut team = Team::new(seed, config, false)?;
    let (workers, seats) = (team.workers.len(), config.geometry.clients_max as usize);
    let mut alone = config;
    alone.server.led = false;
    alone.geometry.clients_max *= workers as u32;
    let mut one = World::new(alone, false)?;
    one.answers = Some(Answers::new());
    for world in &mut team.workers {
        world.answers = Some(Answers::new());
    }
    for client in 0..workers * seats {
        let owner = nonce(seed, client);
        one.connect_as(client, owner)?;
        team.workers[client / seats].connect_as(client % seats, owner)?;
    }
    for _ in 0..config.steps {
        one.step()?;
        team.step()?;
    }
    let burst = config.chances.burst;
    let mut steps = 0;
    let one = loop {
        match first(one.answers.as_ref(), workers * seats) {
            Ok(answers) => break answers,
            Err(broken) if steps > COMPARED_STEPS => return Err(broken),
            Err(_) => one.calm_step(|_| burst)?,
        }
        steps += 1;
    };
    let mut steps = 0;
    let team = loop {
        let mut answers = Answers::new();
        let all = team
            .workers
            .iter()
            .flat_map(|it| it.answers.iter().flatten());
        answers.extend(all.map(|(owner, of_one)| (*owner, of_one.clone())));
        match first(Some(&answers), workers * seats) {
            Ok(answers) => break answers,
            Err(broken) if steps > COMPARED_STEPS => return Err(broken),
            Err(_) => team.calm_step(|_, _| burst)?,
        }
        steps += 1;
    };
    let differs = one
        .iter()
        .find(|(owner, of_one)| team.get(owner) != Some(of_one));
    match differs {
        Some((owner, _)) => Err(format!("the answers of connection {owner:#x} differ")),
        None => Ok(()),
    }
}
