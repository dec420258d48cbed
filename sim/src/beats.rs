//! Slices that keep step, in a world of one server: connections have beats, and the common clock jumps as it likes.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scalerpc_core::together::{Follower, FollowerConfig, Rotation, TimeServer};

use crate::oracle::Broken;
use crate::world::{World, tell};

/// What of it is drawn from the seed.
#[derive(Clone, Copy, Debug)]
pub struct Beats {
    /// Beats of a rotation; each is as long as a slice.
    pub beats: u16,
    /// Chance per step that an operator gives a connection a beat, in 1/1000.
    pub set: u32,
    /// Chance per step that the common clock is another one, in 1/1000; in calm times, too.
    pub jump: u32,
}

impl Beats {
    /// In every third run. It has a source of its own, so that the other runs are as they were without.
    pub(crate) fn draw(seed: u64) -> Option<Self> {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xbea7);
        rng.random_ratio(1, 3).then(|| Self {
            beats: rng.random_range(1..=4),
            set: rng.random_range(5..=200),
            jump: [0, 1, 50, 500][rng.random_range(0..4)],
        })
    }
}

/// The common clock of a world.
pub(crate) struct CommonClock {
    follower: Follower,
    rng: SmallRng,
    beats: Beats,
}

impl CommonClock {
    pub(crate) fn new(beats: Option<Beats>, seed: u64, beat_ns: u64) -> Option<Self> {
        let beats = beats?;
        let rotation = Rotation::new(beat_ns, beats.beats).ok()?;
        Some(Self {
            follower: Follower::new(FollowerConfig::default(), rotation).ok()?,
            rng: SmallRng::seed_from_u64(seed ^ 0xc10c),
            beats,
        })
    }

    /// So many turns may another group have before one at the head of the queue.
    pub(crate) fn turns(&self) -> u64 {
        u64::from(self.beats.beats) + 1
    }
}

impl World {
    /// The engine has a common clock from the beginning.
    pub(crate) fn begin_beats(&mut self) {
        if let Some(common) = &self.common {
            self.server.set_slice_clock(Some(common.follower.clock()));
        }
    }

    /// An operator gives a connection a beat.
    pub(crate) fn set_beats(&mut self, seat: usize) {
        let Some(common) = &mut self.common else {
            return;
        };
        if !common.rng.random_ratio(common.beats.set, 1000) {
            return;
        }
        // One more than there are: it never comes.
        let beat = common.rng.random_range(0..=common.beats.beats + 1);
        let beat = (beat > 0).then(|| beat - 1);
        if self.server.set_beat(seat as u32, beat) {
            tell!(self, "{seat:>3} ~ has beat {beat:?}");
            self.mark("beat set");
        }
    }

    /// The common clock is another one from now on, perhaps: another time server is followed.
    pub(crate) fn jump(&mut self) -> Result<(), Broken> {
        let Some(common) = &mut self.common else {
            return Ok(());
        };
        if !common.rng.random_ratio(common.beats.jump, 1000) {
            return Ok(());
        }
        // The follower is asked at times of its own, which do not matter here.
        let now_ns = self.now_ns.max(1);
        common.follower.failed(now_ns);
        let Some(request) = common.follower.ask(u64::MAX) else {
            return Err("a follower does not ask".into());
        };
        let server = TimeServer::new(common.rng.random(), *common.follower.clock().rotation());
        let shows_ns = common.rng.random_range(0..1 << 62);
        let answer = server.answer(&request, shows_ns, shows_ns);
        let answer = answer.map_err(|what| what.to_string())?;
        let taken = common.follower.answered(now_ns, &answer);
        if taken.is_ok() {
            self.server.set_slice_clock(Some(common.follower.clock()));
            tell!(self, "    ~ the common clock shows {shows_ns}");
            self.mark("common clock jumped");
        }
        Ok(())
    }
}
