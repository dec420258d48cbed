//! How a load is getting on: one line that changes on a terminal, one line a second elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::measured::Load;
use crate::output::note;
use crate::report::grouped;

/// Time between two lines where there is no terminal.
const PERIOD: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    all: Duration,
    last_line: Instant,
}

impl Progress {
    /// Progress of a load that lasts so long.
    pub(crate) fn new(all: Duration) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(all.as_millis() as u64);
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = ProgressStyle::with_template("{bar:16} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self {
            bar,
            all,
            last_line: Instant::now(),
        }
    }

    /// `done` of the time is over.
    pub(crate) fn tick(&mut self, done: Duration, names: &[&str], loads: &[Load]) {
        let is_due = self.last_line.elapsed() >= PERIOD;
        let line = match &self.bar {
            Some(bar) => {
                bar.set_position(done.as_millis() as u64);
                bar
            }
            None if is_due => {
                self.last_line = Instant::now();
                return note(self.line(done, names, loads));
            }
            None => return,
        };
        line.set_message(self.line(done, names, loads));
    }

    fn line(&self, done: Duration, names: &[&str], loads: &[Load]) -> String {
        let mut line = format!("{:.0}/{:.0} s", done.as_secs_f64(), self.all.as_secs_f64());
        let mut wrong = 0;
        for (name, load) in names.iter().zip(loads) {
            wrong += load.wrong_answers;
            if let Some(rate) = load.rounds.last() {
                line.push_str(&format!("  {name} {}/s", grouped(*rate)));
            }
        }
        line.push_str(&format!("  {} wrong", grouped(wrong)));
        line
    }

    /// Takes the line away.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
