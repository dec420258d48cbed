//! How a load is getting on: one line that changes on a terminal, one line a second elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::note;
use crate::report::grouped;

/// Time between two lines where there is no terminal, and over which a rate is taken.
const PERIOD: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    all: Duration,
    since: Instant,
    calls: u64,
}

impl Progress {
    /// Progress of a load that lasts so long.
    pub(crate) fn new(all: Duration) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(all.as_millis() as u64);
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = ProgressStyle::with_template("{bar:24} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self {
            bar,
            all,
            since: Instant::now(),
            calls: 0,
        }
    }

    /// `done` of the time is over. `calls` is a number that grows, of calls that were answered.
    pub(crate) fn tick(&mut self, name: &str, done: Duration, calls: u64, wrong_answers: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done.as_millis() as u64);
        }
        let elapsed = self.since.elapsed();
        if elapsed < PERIOD {
            return;
        }
        let rate = (calls.saturating_sub(self.calls)) as f64 / elapsed.as_secs_f64();
        (self.since, self.calls) = (Instant::now(), calls);
        let line = format!(
            "{:.0}/{:.0} s  {name:<8}{:>10} calls/s  {wrong_answers} wrong answers",
            done.as_secs_f64(),
            self.all.as_secs_f64(),
            grouped(rate as u64),
        );
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None => note(line),
        }
    }

    /// Takes the line away.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
