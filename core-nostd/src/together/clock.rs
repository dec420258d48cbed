//! The common clock as one host sees it, and the beats that it is divided into.

use super::wide;

/// Shortest beat.
pub const BEAT_MIN_NS: u64 = 1_000;
/// Longest beat.
pub const BEAT_MAX_NS: u64 = 1_000_000_000;
/// Most beats of a rotation.
pub const BEATS_MAX: u16 = u16::MAX - 1;
/// The common clock never shows more, so that sums of times do not overflow.
pub const COMMON_MAX_NS: u64 = 1 << 62;
/// Most that a clock may drift against another one, in nanoseconds per second: crystals are held to a tenth of it.
pub const DRIFT_MAX_PPB: u32 = 1_000_000;
/// How much faster or slower the common clock runs while it is brought to what it should show, in nanoseconds per
/// second: a tenth. Beats are then that much shorter or longer.
pub const SLEW_PPB: i32 = 100_000_000;

const BILLION: u64 = 1_000_000_000;

/// Why a [`Rotation`] cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationError {
    /// The beat is shorter than [`BEAT_MIN_NS`] or longer than [`BEAT_MAX_NS`].
    BeatNs(u64),
    /// There are no beats, or more than [`BEATS_MAX`].
    Beats(u16),
}

impl core::fmt::Display for RotationError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::BeatNs(beat_ns) => write!(
                f,
                "a beat of {beat_ns} ns cannot be: it must be from {BEAT_MIN_NS} to {BEAT_MAX_NS} ns"
            ),
            Self::Beats(beats) => write!(
                f,
                "a rotation of {beats} beats cannot be: it must have from 1 to {BEATS_MAX}"
            ),
        }
    }
}

impl core::error::Error for RotationError {}

/// How the common clock is divided: the same at all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    beat_ns: u64,
    beats: u16,
}

impl Rotation {
    /// `beats` beats of `beat_ns` each, and then the first one again.
    ///
    /// A beat is as long as a slice. So many beats let `beats` times the group size of connections have a beat.
    ///
    /// # Errors
    ///
    /// [`RotationError`]: a number is out of its range.
    pub const fn new(beat_ns: u64, beats: u16) -> Result<Self, RotationError> {
        if beat_ns < BEAT_MIN_NS || beat_ns > BEAT_MAX_NS {
            return Err(RotationError::BeatNs(beat_ns));
        }
        if beats == 0 || beats > BEATS_MAX {
            return Err(RotationError::Beats(beats));
        }
        Ok(Self { beat_ns, beats })
    }

    /// Length of a beat.
    pub const fn beat_ns(&self) -> u64 {
        self.beat_ns
    }

    /// Beats of a rotation.
    pub const fn beats(&self) -> u16 {
        self.beats
    }

    /// The beat of a client that has this key, the same at all servers.
    pub const fn beat_of(&self, key: u32) -> u16 {
        (key % self.beats as u32) as u16
    }
}

/// A beat of the common clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Its number, from 0 at the common clock's zero.
    pub number: u64,
    /// When it ends, on the local clock.
    pub ends_ns: u64,
}

/// What the common clock shows, for each time on the local clock.
///
/// It never goes backwards within an *era*, which begins with each time server that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceClock {
    rotation: Rotation,
    era: u32,
    /// At this time on the local clock ...
    from_ns: u64,
    /// ... the common clock shows this.
    common_ns: u64,
    /// How much faster it is than the local clock.
    drift_ppb: i32,
    /// And until `slewed_ns`, this much more.
    slew_ppb: i32,
    slewed_ns: u64,
}

/// A billion times a part of a time. Times are below 2^64 and parts below 2^31, so it does not overflow.
fn product(time_ns: u64, ppb: i32) -> i128 {
    i128::from(time_ns) * i128::from(ppb)
}

impl SliceClock {
    /// The clock of a host that follows nobody: the local one.
    pub const fn own(rotation: Rotation) -> Self {
        Self {
            rotation,
            era: 0,
            from_ns: 0,
            common_ns: 0,
            drift_ppb: 0,
            slew_ppb: 0,
            slewed_ns: 0,
        }
    }

    /// A new era: from `now_ns` on it shows `common_ns`, whatever it showed before.
    pub(super) fn begin_era(&mut self, now_ns: u64, common_ns: u64) {
        *self = Self {
            era: self.era.wrapping_add(1),
            from_ns: now_ns,
            common_ns: common_ns.min(COMMON_MAX_NS),
            ..Self::own(self.rotation)
        };
    }

    /// From `now_ns` on it is brought to `common_ns`, which drifts so much: by a step forward if it is behind by
    /// more than a beat, else by running faster or slower for a while.
    pub(super) fn adjust(&mut self, now_ns: u64, common_ns: u64, drift_ppb: i32) {
        let shown_ns = self.common_ns(now_ns);
        let common_ns = common_ns.min(COMMON_MAX_NS);
        let limit = DRIFT_MAX_PPB as i32;
        self.from_ns = now_ns;
        self.common_ns = shown_ns;
        self.drift_ppb = drift_ppb.clamp(-limit, limit);
        let behind_ns = common_ns.saturating_sub(shown_ns);
        let ahead_ns = shown_ns.saturating_sub(common_ns);
        let backwards =
            ahead_ns > 0 && crate::mutant::is(crate::mutant::Bug::CommonClockGoesBackwards);
        if behind_ns > self.rotation.beat_ns || backwards {
            self.common_ns = common_ns;
            self.slewed_ns = now_ns;
            return;
        }
        let off_ns = behind_ns.max(ahead_ns);
        let slewed_ns = off_ns.saturating_mul(BILLION / u64::from(SLEW_PPB.unsigned_abs()));
        self.slew_ppb = if ahead_ns > 0 { -SLEW_PPB } else { SLEW_PPB };
        self.slewed_ns = now_ns.saturating_add(slewed_ns);
    }

    /// How the common clock is divided.
    pub const fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    /// Grows with each time server that is followed; 0 before the first.
    pub const fn era(&self) -> u32 {
        self.era
    }

    /// How much faster than the local clock the common clock is held to be, in nanoseconds per second.
    pub const fn drift_ppb(&self) -> i32 {
        self.drift_ppb
    }

    /// What the common clock shows at a time on the local clock. Before its last adjustment that is what it showed
    /// then.
    pub fn common_ns(&self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.from_ns);
        let slewed_ns = passed_ns.min(self.slewed_ns.saturating_sub(self.from_ns));
        let common_ns = i128::from(self.common_ns)
            + i128::from(passed_ns)
            // Rounded once: by two nanoseconds it could go backwards.
            + wide::div_floor(
                product(passed_ns, self.drift_ppb) + product(slewed_ns, self.slew_ppb),
                BILLION,
            );
        common_ns.clamp(0, u64::MAX.into()) as u64
    }

    /// How far the common clock still is from what it is being brought to.
    pub(super) fn slew_left_ns(&self, now_ns: u64) -> u64 {
        let left_ns = self.slewed_ns.saturating_sub(now_ns.max(self.from_ns));
        wide::div(product(left_ns, self.slew_ppb), BILLION).unsigned_abs() as u64 + 1
    }

    /// The first time on the local clock at which the common clock shows `common_ns` or more.
    pub fn local_ns(&self, common_ns: u64) -> u64 {
        let ahead_ns = common_ns.saturating_sub(self.common_ns);
        let turn_ns = self.slewed_ns.max(self.from_ns);
        let until_turn_ns = self.common_ns(turn_ns).saturating_sub(self.common_ns);
        let at = |ahead_ns: u64, ppb: i32| {
            // More than nine tenths of a billion: a clock is never slower.
            let ahead = i128::from(ahead_ns) * i128::from(BILLION);
            let passed = wide::div(ahead, BILLION.saturating_add_signed(ppb.into()));
            u64::try_from(passed).unwrap_or(u64::MAX)
        };
        let mut local_ns = if ahead_ns <= until_turn_ns {
            let ppb = self.drift_ppb.saturating_add(self.slew_ppb);
            self.from_ns.saturating_add(at(ahead_ns, ppb))
        } else {
            turn_ns.saturating_add(at(ahead_ns - until_turn_ns, self.drift_ppb))
        };
        // Parts are rounded down, so it is a nanosecond off, or two.
        while local_ns < u64::MAX && self.common_ns(local_ns) < common_ns {
            local_ns += 1;
        }
        while local_ns > self.from_ns && self.common_ns(local_ns - 1) >= common_ns {
            local_ns -= 1;
        }
        local_ns
    }

    /// The beat at a time on the local clock.
    pub fn beat(&self, now_ns: u64) -> Beat {
        let number = self.common_ns(now_ns) / self.rotation.beat_ns;
        Beat {
            number,
            ends_ns: self.beat_ends_ns(number),
        }
    }

    /// When a beat ends, on the local clock.
    pub fn beat_ends_ns(&self, number: u64) -> u64 {
        let end_ns = number
            .saturating_add(1)
            .saturating_mul(self.rotation.beat_ns);
        self.local_ns(end_ns)
    }
}
