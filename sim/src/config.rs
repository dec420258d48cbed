//! What a run is made of, drawn from its seed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scalerpc_core::post::Limits;
use scalerpc_core::server::{AdaptiveSlice, Grouping, ServerConfig};
use scalerpc_core::wire::Placement;
use scalerpc_core::{Geometry, GeometryConfig, Mapping};

use crate::beats::Beats;
use crate::fabric::Unkind;

/// One run. Each seed draws its own (swarm testing): a fault that never meets a certain geometry in one
/// run meets it in another.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Of everything that is random.
    pub seed: u64,
    /// Sizes.
    pub geometry: GeometryConfig,
    /// Times and bursts.
    pub server: ServerConfig,
    /// What the fabric can do.
    pub limits: Limits,
    /// Steps with faults, before the run is brought to its end.
    pub steps: u32,
    /// Chances per step.
    pub chances: Chances,
    /// Of the fabric.
    pub unkind: Unkind,
    /// Slices that keep step with other servers'.
    pub beats: Option<Beats>,
}

/// How likely things are, in each step, in 1/1000; except where said.
#[derive(Clone, Copy, Debug)]
pub struct Chances {
    /// A client makes a call.
    pub call: u32,
    /// Three clients of four call so many times less often.
    pub coolness: u32,
    /// An operator gives a connection another priority.
    pub operate: u32,
    /// A call is cancelled.
    pub cancel: u32,
    /// A client stops, for a random time.
    pub stop: u32,
    /// A client dies.
    pub die: u32,
    /// Most nanoseconds until the fabric notices that.
    pub death_ns: u64,
    /// A connection fails.
    pub fail: u32,
    /// A client writes what it must not.
    pub lie: u32,
    /// A client stops, and never goes on.
    pub mute: u32,
    /// A handler answers later.
    pub defer: u32,
    /// Such a call keeps its send slot until then: in 1/1000 of those calls.
    pub keep: u32,
    /// A seat that is free is taken by a new client.
    pub connect: u32,
    /// An operation moves on: in 1/1000 for each connection.
    pub deliver: u32,
    /// A call has a budget, of up to so many nanoseconds.
    pub budget: u32,
    /// See there.
    pub budget_ns: u64,
    /// A client is polled.
    pub poll: u32,
    /// Calls per burst of a client.
    pub burst: u32,
    /// Most nanoseconds of a step.
    pub step_ns: u64,
}

impl Config {
    /// The run of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        // Apart, so that a seed is what it is whether its calls have terms or not.
        let mut terms = SmallRng::seed_from_u64(seed ^ 0x7e12);
        let window = 1 << rng.random_range(0..7);
        let mapping = if rng.random_ratio(1, 12) {
            Mapping::Static
        } else {
            Mapping::Virtual
        };
        let mut geometry = GeometryConfig {
            clients_max: rng.random_range(1..=24),
            group_size: rng.random_range(1..=8),
            window,
            request_max_bytes: [0, 1, 32, 33, 100, 300][rng.random_range(0..6)],
            response_max_bytes: [0, 8, 32, 64, 200][rng.random_range(0..5)],
            mapping,
        };
        let mut server = ServerConfig {
            time_slice_ns: [1_000, 20_000, 100_000][rng.random_range(0..3)],
            adaptive_slice: None,
            idle_switch_ns: [0, 500, 10_000][rng.random_range(0..3)],
            revoke_after_ns: [0, 5_000, 200_000][rng.random_range(0..3)],
            fence_after_ns: [100_000, 1_000_000, 100_000_000][rng.random_range(0..3)],
            rest_after_ns: None,
            burst: rng.random_range(1..=8),
            grouping: Grouping::Priority,
            led: false,
            calls_in_flight_max: match terms.random_ratio(1, 4) {
                true => terms.random_range(1..=6),
                false => u32::MAX,
            },
        };
        let sge_max = rng.random_range(1..=8);
        let limits = Limits {
            sq_depth: (window.div_ceil(sge_max) + 1).max(4) + rng.random_range(0..16),
            sge_max,
            inline_max: [0, 64, usize::MAX][rng.random_range(0..3)],
            can_revoke: rng.random(),
            placement: if rng.random() {
                Placement::InOrder
            } else {
                Placement::AnyOrder
            },
        };
        let mut chances = Chances {
            cancel: rare(&mut rng, 20),
            stop: rare(&mut rng, 5),
            die: rare(&mut rng, 3),
            death_ns: [10_000, 1_000_000, 100_000_000][rng.random_range(0..3)],
            fail: rare(&mut rng, 3),
            lie: rare(&mut rng, 20),
            mute: rare(&mut rng, 2),
            defer: rare(&mut rng, 300),
            keep: rare(&mut rng, 1000),
            budget: rare(&mut terms, 500),
            budget_ns: [1_000, 50_000, 1_000_000][terms.random_range(0..3)],
            connect: 50,
            call: rng.random_range(20..=900),
            coolness: 1,
            operate: rare(&mut rng, 2),
            deliver: rng.random_range(50..=900),
            poll: rng.random_range(50..=900),
            burst: rng.random_range(1..=2 * window),
            step_ns: [50, 1_000, 20_000][rng.random_range(0..3)],
        };
        let unkind = Unkind {
            late: rare(&mut rng, 950),
            refuse: rare(&mut rng, 2),
            hesitate: rare(&mut rng, 500),
            fence_ns: [1, 10_000, 100_000, 2_000_000][rng.random_range(0..4)],
        };
        if rng.random_ratio(1, 4) {
            server.grouping = Grouping::Arrival;
        }
        if rng.random() {
            server.adaptive_slice = Some(AdaptiveSlice {
                min_ns: server.time_slice_ns / [1, 4][rng.random_range(0..2)],
                max_ns: server.time_slice_ns * [1, 2, 8][rng.random_range(0..3)],
                share_permille: [1, 50, 500, 999][rng.random_range(0..4)],
            });
        }
        if rng.random() {
            chances.coolness = 1 << rng.random_range(3..8);
        }
        let slice_ns = server.time_slice_ns;
        server.rest_after_ns =
            [None, Some(0), Some(slice_ns / 3), Some(3 * slice_ns)][rng.random_range(0..4)];
        if rng.random_ratio(1, 8) {
            server.idle_switch_ns = 0;
            geometry.clients_max = 24;
            chances.throng(window);
        }
        Self {
            seed,
            geometry,
            server,
            limits,
            // Debug builds are an order of magnitude slower.
            steps: if cfg!(debug_assertions) { 600 } else { 3_000 },
            chances,
            unkind,
            beats: Beats::draw(seed),
        }
    }

    /// The run of a seed for a worker of a team, of which there are several.
    pub fn draw_of_worker(seed: u64) -> Self {
        let mut config = Self::draw(seed);
        config.geometry.mapping = Mapping::Virtual;
        config.geometry.clients_max = config.geometry.clients_max.div_ceil(2);
        config.server.led = true;
        // Whose turn it is is the scheduler's to say.
        config.beats = None;
        config.steps /= 2;
        config
    }

    /// Nothing goes wrong: every call is answered, in order.
    #[must_use]
    pub fn without_faults(mut self) -> Self {
        let chances = &mut self.chances;
        (chances.stop, chances.mute, chances.die) = (0, 0, 0);
        (chances.fail, chances.lie) = (0, 0);
        (chances.cancel, chances.defer, chances.connect) = (0, 0, 0);
        (chances.budget, chances.operate) = (0, 0);
        self.server.calls_in_flight_max = u32::MAX;
        self.unkind.refuse = 0;
        self.server.fence_after_ns = u64::MAX;
        self
    }

    /// The geometry, which a drawn configuration always has.
    pub fn sizes(&self) -> Result<Geometry, String> {
        Geometry::new(self.geometry).map_err(|error| error.to_string())
    }
}

impl Chances {
    /// Everybody calls all the time, and nothing goes wrong.
    fn throng(&mut self, window: u32) {
        (self.stop, self.mute, self.die, self.fail, self.lie) = (0, 0, 0, 0, 0);
        (self.connect, self.call, self.burst) = (1000, 900, window);
    }
}

/// Half of the runs go without; the others have up to `top`.
fn rare(rng: &mut SmallRng, top: u32) -> u32 {
    match rng.random() {
        true => rng.random_range(0..=top),
        false => 0,
    }
}
