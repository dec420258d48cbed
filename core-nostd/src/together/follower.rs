//! The server that follows another one's clock.

use super::clock::{DRIFT_MAX_PPB, Rotation, SliceClock};
use super::samples::{Drift, Sample, Samples, Trips, share_ns};
use super::wire::{Malformed, REQUEST_BYTES, TimeAnswer, TimeRequest};
use crate::mutant::{self, Bug};

/// So many answers in a row that cannot be of the clock that was followed: then it is another one.
const ODD_MAX: u32 = 8;

/// What a follower may be tuned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerConfig {
    /// How often the time is asked for. Default 100 ms, as in the paper.
    pub interval_ns: u64,
    /// Requests of which the surest answer counts, one after the other. Default 4: the first one of a while may wait
    /// until its connection is served, and those that come after it go straight into the pool.
    pub burst: u32,
    /// An answer that takes longer counts as lost. Default 20 ms.
    pub timeout_ns: u64,
    /// Most that the two clocks may drift apart, in nanoseconds per second, up to [`DRIFT_MAX_PPB`]. Default 200,000:
    /// crystals are good to 100 ppm each.
    pub drift_max_ppb: u32,
    /// Without an answer for so long the follower says that it goes on alone. Default 1 s.
    pub alone_after_ns: u64,
}

impl Default for FollowerConfig {
    fn default() -> Self {
        Self {
            interval_ns: 100_000_000,
            burst: 4,
            timeout_ns: 20_000_000,
            drift_max_ppb: 200_000,
            alone_after_ns: 1_000_000_000,
        }
    }
}

/// Which number of a [`FollowerConfig`] cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerConfigError {
    /// Name of the field.
    pub field: &'static str,
    /// What was asked for.
    pub value: u64,
}

impl core::fmt::Display for FollowerConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { field, value } = self;
        write!(
            f,
            "{field} is {value}, but times and counts must not be 0, and drift_max_ppb must be at most {DRIFT_MAX_PPB}"
        )
    }
}

impl core::error::Error for FollowerConfigError {}

/// How well a follower knows the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It has never heard of the time server: it has a clock of its own.
    Own,
    /// It follows, and is off by no more than this.
    Following {
        /// Half of the round trip of the surest answer, what the drift may have come to since, and what the clock is
        /// still to be brought forward or back.
        error_ns: u64,
    },
    /// It has not heard of the time server for a while: its own clock goes on, with the drift that was measured.
    Alone {
        /// It is off by no more than this, unless the drift has changed.
        error_ns: u64,
        /// For how long.
        for_ns: u64,
    },
}

/// What came of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is kept, for when the burst is over.
    Kept,
    /// The clock was set by the surest answer of the burst.
    Adjusted,
    /// The time server is another one than before: a new era begins.
    Era,
    /// Its round trip was much longer than others, so it says nothing.
    Slow,
}

/// Why an answer was not taken. The clock goes on as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no answer.
    Malformed(Malformed),
    /// It is the answer to an earlier request, or to none.
    Stale,
    /// The time server divides its clock in another way: give both the same rotation.
    Rotation(Rotation),
    /// The request was held for longer than the call took.
    Held,
    /// No clock that drifts by no more than it may can show this, after what it showed before.
    Odd,
}

/// What happened so far. All numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowerCounters {
    /// Requests made.
    pub asked: u64,
    /// Answers that were kept.
    pub kept: u64,
    /// Answers that took too long to say anything.
    pub slow: u64,
    /// Answers that were refused.
    pub refused: u64,
    /// Requests that were not answered in time, or whose call failed.
    pub lost: u64,
    /// Times that the clock was set.
    pub adjusted: u64,
    /// Time servers that were followed.
    pub eras: u64,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    at_ns: u64,
}

/// See the [module](super). Its caller makes the calls: [`ask`](Self::ask) says when, and its answer goes to
/// [`answered`](Self::answered).
#[derive(Clone, Copy, Debug)]
pub struct Follower {
    config: FollowerConfig,
    clock: SliceClock,
    /// Of the time server that is followed; 0: none.
    incarnation: u64,
    samples: Samples,
    trips: Trips,
    /// The surest sample of this burst.
    surest: Option<Sample>,
    asked: Option<Asked>,
    last_number: u64,
    burst_left: u32,
    burst_ns: u64,
    next_ns: u64,
    heard_ns: u64,
    odd: u32,
    counters: FollowerCounters,
}

impl Follower {
    /// A follower that has heard nothing yet.
    ///
    /// # Errors
    ///
    /// [`FollowerConfigError`] names the field that cannot be used.
    pub fn new(config: FollowerConfig, rotation: Rotation) -> Result<Self, FollowerConfigError> {
        let drift = u64::from(config.drift_max_ppb);
        let times = [
            ("interval_ns", config.interval_ns),
            ("burst", config.burst.into()),
            ("timeout_ns", config.timeout_ns),
            ("drift_max_ppb", drift),
            ("alone_after_ns", config.alone_after_ns),
        ];
        for (field, value) in times {
            if value == 0 || (field == "drift_max_ppb" && drift > DRIFT_MAX_PPB.into()) {
                return Err(FollowerConfigError { field, value });
            }
        }
        Ok(Self {
            config,
            clock: SliceClock::own(rotation),
            incarnation: 0,
            samples: Samples::new(config.drift_max_ppb),
            trips: Trips::default(),
            surest: None,
            asked: None,
            last_number: 0,
            burst_left: 0,
            burst_ns: 0,
            next_ns: 0,
            heard_ns: 0,
            odd: 0,
            counters: FollowerCounters::default(),
        })
    }

    /// The common clock, as it is known now. It is worth a look after each answer.
    pub fn clock(&self) -> &SliceClock {
        &self.clock
    }

    /// What happened so far.
    pub fn counters(&self) -> FollowerCounters {
        self.counters
    }

    /// How well it knows the time.
    pub fn status(&self, now_ns: u64) -> Status {
        let Some(sure) = self.samples.surest(now_ns) else {
            return Status::Own;
        };
        let target_ns = self.clock.slew_left_ns(now_ns);
        let error_ns = sure.error_ns.saturating_add(target_ns).saturating_add(2);
        let for_ns = now_ns.saturating_sub(self.heard_ns);
        if for_ns > self.config.alone_after_ns {
            Status::Alone { error_ns, for_ns }
        } else {
            Status::Following { error_ns }
        }
    }

    /// The request that is to be sent now, if one is: a call of the method [`TIME_METHOD`](super::TIME_METHOD).
    pub fn ask(&mut self, now_ns: u64) -> Option<[u8; REQUEST_BYTES]> {
        if let Some(asked) = self.asked {
            if now_ns.saturating_sub(asked.at_ns) <= self.config.timeout_ns {
                return None;
            }
            self.failed(now_ns);
        }
        if now_ns < self.next_ns {
            return None;
        }
        if self.burst_left == 0 {
            self.burst_left = self.config.burst;
            self.burst_ns = now_ns;
        }
        self.last_number += 1;
        self.asked = Some(Asked {
            number: self.last_number,
            at_ns: now_ns,
        });
        self.counters.asked += 1;
        let number = self.last_number;
        Some(TimeRequest { number }.encode())
    }

    /// The call that was made last has failed. A burst ends with that.
    pub fn failed(&mut self, now_ns: u64) {
        if self.asked.take().is_some() {
            self.counters.lost += 1;
            self.end_burst(now_ns);
        }
    }

    /// An answer has come.
    ///
    /// # Errors
    ///
    /// Why it was not taken.
    pub fn answered(&mut self, now_ns: u64, answer: &[u8]) -> Result<Taken, Refused> {
        let taken = self.take(now_ns, answer);
        match taken {
            Err(_) => self.counters.refused += 1,
            Ok(Taken::Slow) => self.counters.slow += 1,
            Ok(_) => self.counters.kept += 1,
        }
        if taken.is_ok() {
            self.heard_ns = now_ns;
        }
        if matches!(taken, Err(Refused::Stale)) {
            return taken;
        }
        // The request has been answered, well or badly.
        self.asked = None;
        if taken.is_err() {
            self.end_burst(now_ns);
            return taken;
        }
        self.burst_left = self.burst_left.saturating_sub(1);
        self.next_ns = now_ns;
        let adjusted = self.burst_left == 0 && self.end_burst(now_ns);
        match taken {
            Ok(Taken::Kept | Taken::Slow) if adjusted => Ok(Taken::Adjusted),
            taken => taken,
        }
    }

    fn take(&mut self, now_ns: u64, answer: &[u8]) -> Result<Taken, Refused> {
        let answer = TimeAnswer::decode(answer).map_err(Refused::Malformed)?;
        let asked = self.asked.filter(|asked| asked.number == answer.number);
        let asked = match (asked, self.asked) {
            (None, Some(any)) if mutant::is(Bug::StaleTimeTaken) => any,
            (Some(asked), _) => asked,
            (None, _) => return Err(Refused::Stale),
        };
        if answer.rotation != *self.clock.rotation() {
            return Err(Refused::Rotation(answer.rotation));
        }
        let took_ns = now_ns.saturating_sub(asked.at_ns);
        let off_ns = share_ns(took_ns, self.config.drift_max_ppb) + 1;
        if answer.held_ns > took_ns.saturating_add(off_ns) {
            return Err(Refused::Held);
        }
        let held_ns = match mutant::is(Bug::HoldingForgotten) {
            true => 0,
            false => answer.held_ns,
        };
        let trip_ns = took_ns.saturating_sub(held_ns);
        let slow = self.trips.is_slow(trip_ns);
        let back_ns = trip_ns / 2;
        let sample = Sample {
            local_ns: now_ns,
            common_ns: match mutant::is(Bug::OffsetWrongSign) {
                true => answer.now_ns.saturating_sub(back_ns),
                false => answer.now_ns.saturating_add(back_ns),
            },
            // The two clocks have counted the call's time differently, too.
            error_ns: back_ns.saturating_add(1).saturating_add(off_ns),
        };
        if answer.incarnation != self.incarnation {
            self.begin_era(answer.incarnation, sample);
            return Ok(Taken::Era);
        }
        self.check(&sample, answer.incarnation)?;
        if slow {
            return Ok(Taken::Slow);
        }
        let drift = self.samples.drift();
        let surer = |other: Sample| other.at(now_ns, drift).error_ns > sample.error_ns;
        if self.surest.is_none_or(surer) {
            self.surest = Some(sample);
        }
        Ok(Taken::Kept)
    }

    /// What the time server shows can be, after what it showed before. If it often cannot, its clock was set anew.
    fn check(&mut self, sample: &Sample, incarnation: u64) -> Result<(), Refused> {
        let unknown = Drift {
            ppb: 0,
            error_ppb: 0,
        };
        let before = self.samples.surest(sample.local_ns);
        let earlier = before.unwrap_or(sample.at(sample.local_ns, unknown));
        // `surest` is of now already, with what it may have drifted; the rest is for a drift that has changed.
        let age_ns = sample.local_ns.saturating_sub(self.heard_ns);
        let room_ns = share_ns(age_ns, self.config.drift_max_ppb.saturating_mul(2));
        let room = Sample {
            error_ns: earlier.error_ns.saturating_add(room_ns),
            ..earlier
        };
        if sample.agrees_with(&room, self.config.drift_max_ppb) {
            self.odd = 0;
            return Ok(());
        }
        self.odd += 1;
        if self.odd >= ODD_MAX {
            self.begin_era(incarnation, *sample);
        }
        Err(Refused::Odd)
    }

    /// Another clock is followed from now on.
    fn begin_era(&mut self, incarnation: u64, sample: Sample) {
        self.incarnation = incarnation;
        self.samples = Samples::new(self.config.drift_max_ppb);
        self.samples.keep(sample, self.config.drift_max_ppb);
        self.trips = Trips::default();
        self.surest = None;
        self.odd = 0;
        self.clock.begin_era(sample.local_ns, sample.common_ns);
        self.counters.eras += 1;
    }

    /// The clock is set by what the burst brought. False if that is nothing.
    fn end_burst(&mut self, now_ns: u64) -> bool {
        self.burst_left = 0;
        self.next_ns = self.burst_ns.saturating_add(self.config.interval_ns);
        let Some(sample) = self.surest.take() else {
            return false;
        };
        self.samples.keep(sample, self.config.drift_max_ppb);
        if let Some(sure) = self.samples.surest(now_ns) {
            let drift_ppb = self.samples.drift().ppb;
            self.clock.adjust(now_ns, sure.common_ns, drift_ppb);
            self.counters.adjusted += 1;
        }
        true
    }
}
