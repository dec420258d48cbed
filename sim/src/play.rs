//! Plays many seeds, on several threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::marks::{Marks, SEEDS_FOR_MARKS, TEAM_SEEDS_FOR_MARKS};

/// What was played, and found to be in order.
#[derive(Debug)]
pub struct Played {
    /// How many seeds.
    pub seeds: u64,
    /// The paths that they took.
    pub marks: Marks,
}

impl Played {
    fn of(cast: Cast) -> Self {
        Self {
            seeds: 0,
            marks: cast.marks(),
        }
    }
}

/// Who plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// One server engine.
    One,
    /// Several of them, under one scheduler.
    Team,
}

impl Cast {
    /// Runs a seed; `trace`: it says what happens.
    ///
    /// # Errors
    ///
    /// Which rule was broken, and how.
    pub fn run(self, seed: u64, trace: bool) -> Result<crate::Report, String> {
        match self {
            Self::One => crate::run_seed(seed, trace),
            Self::Team => crate::run_team_seed(seed, trace),
        }
    }

    /// Marks for what it does.
    pub fn marks(self) -> Marks {
        match self {
            Self::One => Marks::default(),
            Self::Team => Marks::of_teams(),
        }
    }

    /// Seeds after which every path must have been taken.
    pub fn seeds_for_marks(self) -> u64 {
        match self {
            Self::One => SEEDS_FOR_MARKS,
            Self::Team => TEAM_SEEDS_FOR_MARKS,
        }
    }

    /// Runs a seed; a panic is as bad as a broken rule.
    pub(crate) fn run_caught(self, seed: u64) -> Result<crate::Report, String> {
        catch_unwind(AssertUnwindSafe(|| self.run(seed, false))).unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("seed {seed}: panic: {}", words.unwrap_or("?")))
        })
    }
}

/// Plays `count` seeds from `first` on so many threads, or fewer if `end` comes before.
///
/// # Errors
///
/// What the lowest seed that broke a rule says. Each seed is as it would be alone; which other ones were
/// played before they all stopped is not.
pub fn play(
    cast: Cast,
    first: u64,
    count: u64,
    jobs: usize,
    end: Option<Instant>,
) -> Result<Played, String> {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let mut played = Played::of(cast);
        // Ordering: none; the threads share nothing else, and are joined.
        while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let seed = first.wrapping_add(index);
            match cast.run_caught(seed) {
                Ok(report) => played.marks.add(&report),
                Err(broken) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err((seed, broken));
                }
            }
            played.seeds += 1;
        }
        Ok(played)
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|it| it.join()).collect()
    });
    let (mut sum, mut worst) = (Played::of(cast), None::<(u64, String)>);
    for end in ends {
        match end {
            Ok(Ok(played)) => {
                sum.seeds += played.seeds;
                sum.marks.merge(&played.marks);
            }
            Ok(Err(broken)) => {
                if worst.as_ref().is_none_or(|(seed, _)| broken.0 < *seed) {
                    worst = Some(broken);
                }
            }
            Err(_) => return Err("a thread of the simulation itself panicked".into()),
        }
    }
    match worst {
        Some((_, broken)) => Err(broken),
        None => Ok(sum),
    }
}
