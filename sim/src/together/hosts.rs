//! The clocks of the servers' hosts: the first keeps time, the others follow it.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scalerpc_core::together::{
    ANSWER_BYTES, Follower, FollowerConfig, Rotation, SliceClock, Status, TimeServer,
};

use crate::clocks::HostClock;
use crate::oracle::Broken;

/// One request in so many is lost.
const LOST: u32 = 20;
/// Steps in which the clocks settle.
const STEP_NS: u64 = 20_000;

struct Host {
    clock: HostClock,
    follower: Follower,
    /// How long messages to the time server and back take, at least.
    ways_ns: (u64, u64),
    due: Option<(u64, [u8; ANSWER_BYTES])>,
}

/// See the [module](self).
pub(super) struct Hosts {
    rng: SmallRng,
    now_ns: u64,
    server: TimeServer,
    server_clock: SliceClock,
    hosts: Vec<Host>,
}

impl Hosts {
    /// Clocks that have settled, if they may follow at all.
    pub(super) fn settled(
        count: usize,
        rotation: Rotation,
        settle_ns: u64,
        seed: u64,
    ) -> Result<Self, Broken> {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x4057);
        let server = TimeServer::new(1, rotation);
        let mut hosts = Vec::new();
        for _ in 0..count {
            let follower = Follower::new(FollowerConfig::default(), rotation);
            hosts.push(Host {
                clock: HostClock::draw(&mut rng),
                follower: follower.map_err(|it| it.to_string())?,
                ways_ns: (
                    rng.random_range(1_000..4_000),
                    rng.random_range(1_000..4_000),
                ),
                due: None,
            });
        }
        let mut this = Self {
            rng,
            now_ns: 0,
            server_clock: server.clock(),
            server,
            hosts,
        };
        while this.now_ns < settle_ns {
            let now_ns = this.now_ns + STEP_NS;
            for at in 0..count {
                this.pass(at, now_ns)?;
            }
            this.now_ns = now_ns;
        }
        Ok(this)
    }

    pub(super) fn count(&self) -> usize {
        self.hosts.len()
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn local_ns(&self, at: usize, now_ns: u64) -> u64 {
        self.hosts[at].clock.at(now_ns)
    }

    /// The common clock as this host knows it.
    pub(super) fn clock(&self, at: usize) -> &SliceClock {
        match at {
            0 => &self.server_clock,
            at => self.hosts[at].follower.clock(),
        }
    }

    /// Time goes on at a host. True if its clock was adjusted.
    pub(super) fn pass(&mut self, at: usize, now_ns: u64) -> Result<bool, Broken> {
        if at == 0 {
            return Ok(false);
        }
        let time_server = self.hosts[0].clock;
        let host = &mut self.hosts[at];
        let mut adjusted = false;
        if let Some((_, answer)) = host.due.take_if(|it| it.0 <= now_ns) {
            let before = *host.follower.clock();
            let taken = host.follower.answered(host.clock.at(now_ns), &answer);
            taken.map_err(|it| format!("an answer was refused: {it:?}"))?;
            adjusted = *host.follower.clock() != before;
        }
        if let Some(request) = host.follower.ask(host.clock.at(now_ns)) {
            let rng = &mut self.rng;
            // One in four is held up, on either way.
            let mut late = || match rng.random_ratio(1, 4) {
                true => rng.random_range(0..20_000),
                false => rng.random_range(0..300),
            };
            let came_ns = now_ns + host.ways_ns.0 + late();
            let left_ns = came_ns + late() / 4;
            let (came, left) = (time_server.at(came_ns), time_server.at(left_ns));
            let answer = self.server.answer(&request, came, left);
            let answer = answer.map_err(|it| it.to_string())?;
            let back_ns = host.ways_ns.1 + late();
            host.due = (!rng.random_ratio(1, LOST)).then_some((left_ns + back_ns, answer));
        }
        Ok(adjusted)
    }

    /// By how much a beat that ends about now ends earlier or later here than at the time server, in true time.
    ///
    /// # Errors
    ///
    /// That is more than the follower says.
    pub(super) fn beats_apart_ns(&self, at: usize, now_ns: u64) -> Result<u64, Broken> {
        if at == 0 {
            return Ok(0);
        }
        let local_ns = self.local_ns(at, now_ns);
        let beat = self.clock(at).beat(local_ns);
        let common_ns = (beat.number + 1) * self.clock(at).rotation().beat_ns();
        // To the end of the beat on each clock; what the clocks drift meanwhile is below a nanosecond or so.
        let here_ns = beat.ends_ns.saturating_sub(local_ns);
        let there_ns = i128::from(common_ns) - i128::from(self.local_ns(0, now_ns));
        let apart_ns = (i128::from(here_ns) - there_ns).unsigned_abs() as u64;
        match self.hosts[at].follower.status(local_ns) {
            // A beat is longer while the clock is brought back, which the status does not foresee.
            Status::Following { error_ns } if apart_ns <= error_ns + error_ns / 4 + 100 => {
                Ok(apart_ns)
            }
            status => Err(format!("beats are {apart_ns} ns apart, and {status:?}")),
        }
    }
}
