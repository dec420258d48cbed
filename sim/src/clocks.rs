//! A time server and followers, on hosts whose clocks drift; requests and answers take their time, each way another,
//! or are lost.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scalerpc_core::together::{
    Follower, FollowerConfig, REQUEST_BYTES, Refused, Rotation, Status, Taken, TimeAnswer,
    TimeServer,
};

use crate::oracle::Broken;

const MS: u64 = 1_000_000;
/// All of it takes so long.
const END_NS: u64 = 6_500 * MS;
/// After so long without faults a follower has to know the time as well as its delays allow.
const SETTLED_NS: u64 = 2_500 * MS;
const BILLION: i128 = 1_000_000_000;

/// What a host's clock shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostClock {
    offset_ns: u64,
    drift_ppb: i32,
}

impl HostClock {
    /// Off by up to some seconds, and good to 100 ppm.
    pub(crate) fn draw(rng: &mut SmallRng) -> Self {
        Self {
            offset_ns: rng.random_range(0..5_000 * MS),
            drift_ppb: rng.random_range(-100_000..=100_000),
        }
    }

    /// What it shows at a true time.
    pub(crate) fn at(&self, true_ns: u64) -> u64 {
        let gained = i128::from(true_ns) * i128::from(self.drift_ppb) / BILLION;
        (i128::from(true_ns) + gained + i128::from(self.offset_ns)) as u64
    }
}

/// How long messages take.
#[derive(Clone, Copy, Debug)]
struct Delays {
    there_ns: u64,
    back_ns: u64,
    /// Most that comes on top, for a while now and then.
    jitter_ns: u64,
    held_ns: u64,
    /// In 1/1000.
    lost: u32,
    late: u32,
}

impl Delays {
    fn draw(rng: &mut SmallRng) -> Self {
        Self {
            there_ns: rng.random_range(500..50_000),
            back_ns: rng.random_range(500..50_000),
            jitter_ns: [0, 2_000, 1_000_000][rng.random_range(0..3)],
            held_ns: [0, 1_000, 3_000_000][rng.random_range(0..3)],
            lost: [0, 50, 300][rng.random_range(0..3)],
            late: [0, 100][rng.random_range(0..2)],
        }
    }

    /// A follower in good times is off by at most that: it has the best of the answers that are not slow, and those
    /// take no longer than twice the shortest.
    fn bound_ns(&self) -> u64 {
        let trip_ns = self.there_ns + self.back_ns;
        // A burst may bring answers that were all held up, by as much as `is_slow` lets pass.
        let off_ns = trip_ns + 1_000 + (trip_ns + self.held_ns + self.jitter_ns) / 5_000;
        // And the drift comes from such samples, too.
        2 * off_ns + 1_000
    }
}

struct Host {
    clock: HostClock,
    follower: Follower,
    delays: Delays,
    /// The true time at which the last call ends, and the answer that it brings, unless it is lost.
    due: Option<(u64, Vec<u8>)>,
    /// An answer from before, which a broken network may bring again.
    old: Option<Vec<u8>>,
    shown: (u32, u64),
    /// The time server's incarnation that the present era is of, and since when there were no faults.
    era: (u32, u64),
    fine_since_ns: u64,
}

struct Clocks<'a> {
    rng: SmallRng,
    now_ns: u64,
    server: TimeServer,
    server_clock: HostClock,
    incarnation: u64,
    away: bool,
    rotation: Rotation,
    hosts: Vec<Host>,
    marks: &'a mut BTreeMap<&'static str, u64>,
}

/// Plays it.
///
/// # Errors
///
/// What a clock showed that it must not.
pub(crate) fn run(seed: u64, marks: &mut BTreeMap<&'static str, u64>) -> Result<(), Broken> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xc10c5);
    let beat_ns = [20_000, 100_000, 1_000_000][rng.random_range(0..3)];
    let rotation = Rotation::new(beat_ns, rng.random_range(1..=9)).map_err(|it| it.to_string())?;
    let config = FollowerConfig {
        burst: rng.random_range(1..=4),
        ..FollowerConfig::default()
    };
    let server_clock = HostClock::draw(&mut rng);
    let mut hosts = Vec::new();
    for _ in 0..3 {
        hosts.push(Host {
            clock: HostClock::draw(&mut rng),
            follower: Follower::new(config, rotation).map_err(|it| it.to_string())?,
            delays: Delays::draw(&mut rng),
            due: None,
            old: None,
            shown: (0, 0),
            era: (0, 0),
            fine_since_ns: 0,
        });
    }
    let mut clocks = Clocks {
        server: TimeServer::new(1, rotation),
        rng,
        now_ns: 0,
        server_clock,
        incarnation: 1,
        away: false,
        rotation,
        hosts,
        marks,
    };
    let faults_end_ns = match seed % 2 {
        0 => 0,
        _ => END_NS - SETTLED_NS - 500 * MS,
    };
    while clocks.now_ns < END_NS {
        clocks.now_ns += clocks.rng.random_range(1..=MS);
        if clocks.now_ns < faults_end_ns {
            clocks.disturb();
        } else if clocks.away {
            clocks.away = false;
            clocks.spoil();
        }
        for at in 0..clocks.hosts.len() {
            clocks.step(at)?;
        }
    }
    Ok(())
}

impl Clocks<'_> {
    fn mark(&mut self, mark: &'static str) {
        *self.marks.entry(mark).or_default() += 1;
    }

    /// Nobody need know the time well for a while.
    fn spoil(&mut self) {
        for host in &mut self.hosts {
            host.fine_since_ns = self.now_ns;
        }
    }

    /// The time server restarts, goes away for a while, or a host's ways change.
    fn disturb(&mut self) {
        if self.rng.random_ratio(1, 3_000) {
            self.incarnation += 1;
            self.server = TimeServer::new(self.incarnation, self.rotation);
            self.server_clock = HostClock::draw(&mut self.rng);
            self.spoil();
        }
        if self.rng.random_ratio(1, 1_500) {
            self.away = !self.away;
            self.spoil();
        }
        if self.rng.random_ratio(1, 2_000) {
            let at = self.rng.random_range(0..self.hosts.len());
            self.hosts[at].delays = Delays::draw(&mut self.rng);
            self.hosts[at].fine_since_ns = self.now_ns;
        }
    }

    fn step(&mut self, at: usize) -> Result<(), Broken> {
        let local_ns = self.hosts[at].clock.at(self.now_ns);
        if self.hosts[at]
            .due
            .as_ref()
            .is_some_and(|it| it.0 <= self.now_ns)
        {
            if let Some((due_ns, answer)) = self.hosts[at].due.take() {
                self.answer(at, due_ns, &answer);
            }
        }
        let before = self.hosts[at].follower.counters().lost;
        if let Some(request) = self.hosts[at].follower.ask(local_ns) {
            self.send(at, &request)?;
        }
        if self.hosts[at].follower.counters().lost > before {
            self.mark("time: answer lost");
        }
        self.check(at)
    }

    /// A request goes out; what comes back, and when, is decided now.
    fn send(&mut self, at: usize, request: &[u8; REQUEST_BYTES]) -> Result<(), Broken> {
        let delays = self.hosts[at].delays;
        let busy = self.rng.random_ratio(1, 3);
        let mut late = || match busy {
            true => self.rng.random_range(0..=delays.jitter_ns),
            false => 0,
        };
        let (there_ns, back_ns) = (delays.there_ns + late(), delays.back_ns + late());
        let held_ns = self.rng.random_range(0..=delays.held_ns);
        let came_ns = self.now_ns + there_ns;
        let left_ns = came_ns + held_ns;
        let clock = self.server_clock;
        let answer = self
            .server
            .answer(request, clock.at(came_ns), clock.at(left_ns))
            .map_err(|it| format!("a request that is in order: {it}"))?;
        let mut answer = answer.to_vec();
        let lost = self.away || self.rng.random_ratio(delays.lost, 1000);
        let replay = self.rng.random_ratio(delays.late, 1000);
        let spoiled = self.rng.random_ratio(delays.late, 2000);
        let host = &mut self.hosts[at];
        if let (true, Some(old)) = (replay, &host.old) {
            // An answer comes again, and the call's own is lost.
            answer.clone_from(old);
        } else if lost {
            host.due = None;
            return Ok(());
        } else if spoiled {
            let byte = self.rng.random_range(0..4);
            answer[byte] ^= 0x80;
        } else {
            host.old = Some(answer.clone());
        }
        host.due = Some((left_ns + back_ns, answer));
        Ok(())
    }

    fn answer(&mut self, at: usize, due_ns: u64, answer: &[u8]) {
        let host = &mut self.hosts[at];
        let local_ns = host.clock.at(due_ns);
        let taken = host.follower.answered(local_ns, answer);
        match taken {
            Ok(Taken::Era) => {
                let incarnation = TimeAnswer::decode(answer).map_or(0, |it| it.incarnation);
                host.era = (host.follower.clock().era(), incarnation);
                host.fine_since_ns = self.now_ns;
                self.mark("time: another time server");
            }
            Ok(Taken::Adjusted) => self.mark("time: clock adjusted"),
            Ok(Taken::Slow) => self.mark("time: answer too slow"),
            Err(Refused::Stale) => self.mark("time: answer to an earlier request"),
            Err(Refused::Malformed(_)) => self.mark("time: answer that cannot be"),
            Err(_) | Ok(Taken::Kept) => {}
        }
    }

    /// The common clock never goes backwards, and is off by no more than the follower says; in good times that is
    /// little.
    fn check(&mut self, at: usize) -> Result<(), Broken> {
        let host = &mut self.hosts[at];
        let local_ns = host.clock.at(self.now_ns);
        let clock = host.follower.clock();
        let shown = (clock.era(), clock.common_ns(local_ns));
        if shown < host.shown {
            return Err(format!(
                "clock: it showed {:?}, and now {shown:?}",
                host.shown
            ));
        }
        host.shown = shown;
        let true_ns = self.server_clock.at(self.now_ns);
        let off_ns = true_ns.abs_diff(shown.1);
        let status = host.follower.status(local_ns);
        let error_ns = match status {
            Status::Own => return Ok(()),
            Status::Following { error_ns } | Status::Alone { error_ns, .. } => error_ns,
        };
        if host.era != (clock.era(), self.incarnation) {
            return Ok(());
        }
        if off_ns > error_ns + 2 {
            return Err(format!(
                "clock: host {at} is off by {off_ns} ns, and says {status:?}, {:?}",
                host.follower.counters()
            ));
        }
        if matches!(status, Status::Alone { .. }) {
            self.mark("time: follower alone");
            return Ok(());
        }
        let fine = self.now_ns - host.fine_since_ns > SETTLED_NS && host.delays.lost < 100;
        let bound_ns = host.delays.bound_ns();
        if fine && !self.away && off_ns > bound_ns {
            return Err(format!(
                "clock: host {at} is off by {off_ns} ns, with {:?}",
                host.delays
            ));
        }
        Ok(())
    }
}
