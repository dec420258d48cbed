//! Against the floor of the hardware, and against others.

use std::error::Error;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;

use crate::cpus::{self, Cpus, Distance, are_two_cores, ping_pong_ns};
use crate::measure::summary;
use crate::peers::{Load, Peer, Runner, Sample};
use crate::plan::{self, Block, GOALS, Goal, Side};
use crate::report::Output;
use crate::results::{Judged, Limit, Results, Row, Turn, Turns};

/// A pause before another look, when the processors are not two cores.
const PAUSE: Duration = Duration::from_millis(200);
/// After so many rounds all sides are made anew: where their memory comes to lie makes a difference of some tenths.
const ROUNDS_TOGETHER: u32 = 4;
/// Of the time of a sample, this part may have passed while its threads wanted to run and could not.
const WAITED_PART: f64 = 0.02;

/// The rates and round trips of scalerpc over shared memory, of the floor of the hardware, and of peers
#[derive(Args)]
pub(crate) struct Peers {
    /// Which peers, separated by commas: floor, stream, ours, static, ucx, iceoryx2, rtrb, fabric [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Only these loads, SIZExWINDOWxCONNECTIONS, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    rows: Vec<Load>,
    /// Only these goals and what they need, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = goal, conflicts_with = "rows")]
    goal: Vec<&'static str>,
    /// Rounds, in each of which every side has a turn [default: 32; quick: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Length of a turn, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    turn_ms: u64,
    /// How long each side runs before it is measured, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=10_000))]
    warm_ms: u64,
    /// How far the two cores are to be from each other [default: as they are at first]
    #[arg(long, value_enum)]
    distance: Option<Distance>,
    /// How long to wait in all for such cores, in seconds [default: 300; quick: 50]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(..=3_600))]
    patience_s: Option<u32>,
    /// Where the programs of peers are [default: peers, in Cargo's target folder]
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

fn goal(text: &str) -> Result<&'static str, String> {
    let ids = GOALS.map(|goal| goal.id);
    let found = ids.into_iter().find(|id| *id == text);
    found.ok_or_else(|| format!("no goal is called {text}: there are {}", ids.join(", ")))
}

impl Peers {
    pub(crate) fn run(&self) -> Result<(), Box<dyn Error>> {
        let (rounds, patience_s) = if self.output.quick {
            (8, 50)
        } else {
            (32, 300)
        };
        let cpus = Cpus::find()?;
        cpus::pin(cpus.clients);
        let distance = self.distance.unwrap_or_else(|| distance_of(cpus));
        let mut stand = Stand {
            cpus,
            distance,
            programs: self.programs()?,
            warm: Duration::from_millis(self.warm_ms),
            turn: Duration::from_millis(self.turn_ms),
            rounds: self.rounds.unwrap_or(rounds),
            patience: Duration::from_secs(self.patience_s.unwrap_or(patience_s).into()),
            ping_pongs: Vec::new(),
        };
        let asked = |peer: &Peer| self.peers.is_empty() || self.peers.contains(peer);
        let peers: Vec<Peer> = Peer::ALL.into_iter().filter(asked).collect();
        let goals = self.goals();
        let blocks = plan::blocks(&peers, self.loads(), &goals);
        if blocks.is_empty() {
            return Err("none of these peers is measured under any of these loads".into());
        }
        let mut results = Results {
            machine: cpus::model(),
            distance,
            rounds: stand.rounds,
            turn_ms: self.turn_ms,
            rounds_lost: 0,
            ping_pong_ns: None,
            rows: Vec::new(),
            goals: Vec::new(),
            missing: Vec::new(),
            limits: limits(&peers, &blocks),
        };
        for block in blocks {
            let turns = stand.measure(&block, &mut results);
            results
                .rows
                .extend(block.iter().filter_map(|&side| Row::new(side, &turns)));
            let judged = goals.iter().filter_map(|goal| Judged::new(goal, &turns));
            results.goals.extend(judged);
        }
        results.ping_pong_ns = summary(&stand.ping_pongs);
        self.output
            .write("peers", &results.table(), &results, &results.figures()?)
    }

    /// Goals about the loads that are measured, or those that are asked for.
    fn goals(&self) -> Vec<Goal> {
        let asked = |goal: &Goal| match self.goal.is_empty() {
            true => {
                self.rows.is_empty()
                    || self.rows.contains(&goal.of.load) && goal.of.load == goal.to.load
            }
            false => self.goal.contains(&goal.id),
        };
        GOALS.into_iter().filter(asked).collect()
    }

    /// `None` for those of the figures.
    fn loads(&self) -> Option<Vec<Load>> {
        (!self.rows.is_empty() || !self.goal.is_empty()).then(|| self.rows.clone())
    }

    fn programs(&self) -> Result<PathBuf, Box<dyn Error>> {
        if let Some(given) = &self.programs {
            return Ok(given.clone());
        }
        let this = std::env::current_exe()?;
        let target = this
            .ancestors()
            .nth(2)
            .ok_or("this program is in no folder")?;
        Ok(target.join("peers"))
    }
}

/// Peers that are left out of loads with more connections.
fn limits(peers: &[Peer], blocks: &[Block]) -> Vec<Limit> {
    let sides = || blocks.iter().flatten();
    let most = sides().map(|side| side.load.connections).max().unwrap_or(0);
    let less = peers.iter().filter(|peer| peer.connections_max() < most);
    less.map(|&peer| Limit {
        peer,
        connections_max: peer.connections_max(),
    })
    .collect()
}

/// That of most of some looks at two cores, and far where nothing says so.
fn distance_of(cpus: Cpus) -> Distance {
    const LOOKS: usize = 9;
    const TRIES: usize = 10 * LOOKS;
    let tries = (0..TRIES).filter(|_| are_two_cores(cpus));
    let took: Vec<f64> = tries.map(|_| ping_pong_ns(cpus)).take(LOOKS).collect();
    let median = summary(&took).map_or(0.0, |it| it.median);
    let mut all = Distance::ALL.into_iter();
    let found = all.find(|it| it.ping_pong_ns().contains(&median));
    found.unwrap_or(Distance::Far)
}

type Running = (Side, Box<dyn Runner>);
/// And why.
type Failed = (Side, String);

/// What a look at the processors has shown.
#[derive(Clone, Copy)]
struct Look {
    ping_pong_ns: f64,
    /// They are two cores, as far from each other as they should be.
    fit: bool,
}

/// Where sides take turns.
struct Stand {
    cpus: Cpus,
    distance: Distance,
    programs: PathBuf,
    warm: Duration,
    turn: Duration,
    rounds: u32,
    /// What is left of it.
    patience: Duration,
    ping_pongs: Vec<f64>,
}

impl Stand {
    /// A side that fails is missed, and has no turns.
    fn measure(&mut self, block: &Block, results: &mut Results) -> Turns {
        let (mut block, mut turns) = (block.clone(), Turns::new());
        let mut rounds_left = self.rounds;
        while rounds_left > 0 {
            let mut failed = Vec::new();
            let mut running = self.start(&block, &mut failed);
            for _ in 0..rounds_left.min(ROUNDS_TOGETHER) {
                let steady = self.round(&mut running, &mut turns, &mut failed);
                results.rounds_lost += u32::from(!steady);
                rounds_left -= 1;
            }
            for (side, why) in failed {
                block.retain(|&it| it != side);
                turns.remove(&side);
                results.miss(side, why);
            }
        }
        turns
    }

    fn start(&self, block: &Block, failed: &mut Vec<Failed>) -> Vec<Running> {
        let mut running = Vec::new();
        for &side in block {
            let begun = side.peer.start(side.load, self.cpus, &self.programs);
            let warmed = begun.and_then(|mut runner| {
                runner.run(self.warm, Duration::from_millis(1))?;
                Ok(runner)
            });
            match warmed {
                Ok(runner) => running.push((side, runner)),
                Err(why) => failed.push((side, why.to_string())),
            }
        }
        running
    }

    /// True if it was on two cores, as far from each other as in all rounds that count.
    fn round(
        &mut self,
        running: &mut Vec<Running>,
        turns: &mut Turns,
        failed: &mut Vec<Failed>,
    ) -> bool {
        let before = self.await_cores();
        let mut samples = Vec::with_capacity(running.len());
        // The order turns round, so that what drifts meets all of them alike.
        running.reverse();
        running.retain_mut(
            |(side, runner)| match runner.run(self.turn / 8, self.turn) {
                Ok(sample) => {
                    samples.push((*side, sample));
                    true
                }
                Err(why) => {
                    failed.push((*side, why.to_string()));
                    false
                }
            },
        );
        let after = self.look();
        let looks = [before, after];
        self.ping_pongs.extend(looks.map(|it| it.ping_pong_ns));
        let steady = looks.iter().all(|it| it.fit);
        for (side, sample) in samples {
            turns.entry(side).or_default().push(turn(sample, steady));
        }
        steady
    }

    /// A look, perhaps after some patience where the processors are not as they should be.
    fn await_cores(&mut self) -> Look {
        loop {
            let look = self.look();
            if look.fit || self.patience.is_zero() {
                return look;
            }
            self.patience = self.patience.saturating_sub(PAUSE);
            thread::sleep(PAUSE);
        }
    }

    fn look(&self) -> Look {
        let ping_pong_ns = ping_pong_ns(self.cpus);
        let near_or_far = self.distance.ping_pong_ns().contains(&ping_pong_ns);
        Look {
            ping_pong_ns,
            fit: near_or_far && are_two_cores(self.cpus),
        }
    }
}

fn turn(sample: Sample, steady: bool) -> Turn {
    let waited = sample.waited_ns as f64 / sample.time_ns as f64;
    Turn {
        rate_ops: sample.operations as f64 * 1e9 / sample.time_ns as f64,
        quiet: steady && waited <= WAITED_PART,
    }
}
