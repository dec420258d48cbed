//! What a follower has heard of the common clock, and what follows from it.

use super::wide;

/// Samples that are kept: at ten a second, of the last 1.6 s.
const KEPT: usize = 16;
/// Round trips of which the shortest counts.
const TRIPS: usize = 8;
/// A round trip is slow if it is longer than twice the shortest one, and so much more.
const SLOW_NS: u64 = 1_000;
/// A drift is never known better than this, since crystals change with temperature.
const DRIFT_WANDER_PPB: u32 = 1_000;
const BILLION: u64 = 1_000_000_000;

/// At `local_ns` the common clock showed `common_ns`, give or take `error_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) local_ns: u64,
    pub(super) common_ns: u64,
    pub(super) error_ns: u64,
}

/// A part of a time, rounded up.
pub(super) fn share_ns(time_ns: u64, ppb: u32) -> u64 {
    let share = wide::div_ceil(u128::from(time_ns) * u128::from(ppb), BILLION);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// How much faster the common clock is than the local one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drift {
    pub(super) ppb: i32,
    pub(super) error_ppb: u32,
}

impl Sample {
    /// The same at a later time.
    pub(super) fn at(&self, now_ns: u64, drift: Drift) -> Self {
        let age_ns = now_ns.saturating_sub(self.local_ns);
        let gained_ns = i128::from(age_ns)
            + wide::div_floor(i128::from(age_ns) * i128::from(drift.ppb), BILLION);
        let common_ns = i128::from(self.common_ns) + gained_ns;
        Self {
            local_ns: now_ns.max(self.local_ns),
            common_ns: u64::try_from(common_ns).unwrap_or(u64::MAX),
            error_ns: self
                .error_ns
                .saturating_add(share_ns(age_ns, drift.error_ppb))
                .saturating_add(u64::from(age_ns > 0)),
        }
    }

    /// How much the common clock has gained on the local one since `earlier`.
    fn gained_since(&self, earlier: &Self) -> i128 {
        (i128::from(self.common_ns) - i128::from(earlier.common_ns))
            - (i128::from(self.local_ns) - i128::from(earlier.local_ns))
    }

    /// True if both can be of one clock, which drifts by no more than `drift_max_ppb`.
    pub(super) fn agrees_with(&self, earlier: &Self, drift_max_ppb: u32) -> bool {
        let age_ns = self.local_ns.saturating_sub(earlier.local_ns);
        let room_ns = u128::from(self.error_ns)
            + u128::from(earlier.error_ns)
            + u128::from(share_ns(age_ns, drift_max_ppb))
            + 1;
        self.gained_since(earlier).unsigned_abs() <= room_ns
    }
}

/// Samples of one era.
#[derive(Clone, Copy, Debug)]
pub(super) struct Samples {
    kept: [Sample; KEPT],
    len: usize,
    next: usize,
    drift: Drift,
}

impl Samples {
    pub(super) fn new(drift_max_ppb: u32) -> Self {
        Self {
            kept: [Sample::default(); KEPT],
            len: 0,
            next: 0,
            drift: Drift {
                ppb: 0,
                error_ppb: drift_max_ppb,
            },
        }
    }

    pub(super) fn drift(&self) -> Drift {
        self.drift
    }

    fn all(&self) -> &[Sample] {
        &self.kept[..self.len]
    }

    /// The sample that says most surely what the common clock shows at `now_ns`, and what it says.
    pub(super) fn surest(&self, now_ns: u64) -> Option<Sample> {
        let then = self.all().iter().map(|it| it.at(now_ns, self.drift));
        then.min_by_key(|it| it.error_ns)
    }

    /// Keeps a sample in place of the oldest one.
    pub(super) fn keep(&mut self, sample: Sample, drift_max_ppb: u32) {
        self.find_drift(&sample, drift_max_ppb);
        self.kept[self.next] = sample;
        self.next = (self.next + 1) % KEPT;
        self.len = (self.len + 1).min(KEPT);
    }

    /// The drift between the new sample and that earlier one with which it can be told best.
    fn find_drift(&mut self, new: &Sample, drift_max_ppb: u32) {
        if crate::mutant::is(crate::mutant::Bug::DriftIgnored) {
            self.drift.error_ppb = DRIFT_WANDER_PPB;
            return;
        }
        let told = |old: &Sample| {
            let apart_ns = new.local_ns.saturating_sub(old.local_ns);
            if apart_ns == 0 {
                return None;
            }
            let error_ns = u128::from(new.error_ns) + u128::from(old.error_ns) + 1;
            let error_ppb = wide::div_ceil(error_ns * u128::from(BILLION), apart_ns);
            let ppb = wide::div(new.gained_since(old) * i128::from(BILLION), apart_ns);
            Some((error_ppb, ppb))
        };
        let best = self.all().iter().filter_map(told).min();
        let Some((error_ppb, ppb)) = best else { return };
        let limit = i128::from(drift_max_ppb);
        let ppb = ppb.clamp(-limit, limit) as i32;
        let error_ppb = u32::try_from(error_ppb).unwrap_or(u32::MAX);
        if error_ppb < drift_max_ppb {
            self.drift = Drift {
                ppb,
                error_ppb: error_ppb.max(DRIFT_WANDER_PPB),
            };
        }
    }
}

/// The latest round trips.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trips {
    kept: [u64; TRIPS],
    len: usize,
    next: usize,
}

impl Trips {
    /// Counts a round trip. True if it is much longer than the shortest of the latest ones: then it says less
    /// than they did.
    pub(super) fn is_slow(&mut self, trip_ns: u64) -> bool {
        self.kept[self.next] = trip_ns;
        self.next = (self.next + 1) % TRIPS;
        self.len = (self.len + 1).min(TRIPS);
        let shortest_ns = self.kept[..self.len].iter().min().copied().unwrap_or(0);
        trip_ns > shortest_ns.saturating_mul(2).saturating_add(SLOW_NS)
    }
}
