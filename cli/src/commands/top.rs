//! `scalerpc top`: what a running server is doing.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use super::{Outcome, Verdict};
use crate::output::{Output, note};
use crate::place::{Place, PlaceArgs};
use crate::top::sampler::Sampler;
use crate::top::screen::{self, Look};
use crate::top::view::{Sample, Sort, View};
use crate::top::{json, terminal};

/// Size of the screen where there is none.
const WIDTH: usize = 80;
const HEIGHT: usize = 40;
const INTERVAL_SECONDS_MAX: f64 = 3_600.0;

/// Show what a running server is doing
///
/// Rates and distributions are of the time between two refreshes. On a terminal it is a screen with keys; when output
/// goes elsewhere it is blocks of text. It is a client like any other, and takes one of the server's seats.
#[derive(Args, Clone, Debug)]
#[command(after_help = TOP_HELP)]
pub(crate) struct Top {
    #[command(flatten)]
    place: PlaceArgs,
    /// Time between two refreshes, in seconds; fractions are fine
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// End after so many refreshes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Of a server with several workers, the one that is shown, from 0
    #[arg(long, value_name = "N", default_value = "0")]
    worker: u16,
    /// What connections are sorted by
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Print one JSON object for each refresh
    #[arg(long)]
    json: bool,
}

const TOP_HELP: &str = "\
Keys:
  q  end                  c  sort by calls per second
  p  pause, and go on     w  by the longest wait, a by the present one, s by seat
  n  the next worker

Marks: * the group that is served, + the one whose turn is next; `this` is the
connection of this command. With NO_COLOR set there are no colours.

Examples:
  scalerpc top --socket /tmp/meta.sock
  scalerpc top --socket /tmp/meta.sock --json --count 2 --interval 0.5
  scalerpc top --socket /tmp/meta.sock --worker 3

Exit codes:
  0  it was ended, or all refreshes were printed
  1  the server went away meanwhile, or output could not be written
  2  bad usage, there is no server, or it does not say what it is doing";

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    // Written so that what is no number fails as well.
    if !(0.05..=INTERVAL_SECONDS_MAX).contains(&seconds) {
        return Err(format!("must be from 0.05 to {INTERVAL_SECONDS_MAX}"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

impl Top {
    pub(crate) fn run(&self) -> Outcome {
        let place = self.place.place();
        let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        if !self.json && has_terminal {
            return terminal::run(&place, self.worker, self.interval, self.sort, self.count);
        }
        self.print(&place)
    }

    /// One block or object for each interval.
    fn print(&self, place: &Place) -> Outcome {
        let mut sampler = Sampler::new(place.clone());
        let first = sampler.take(self.worker);
        let mut before = first.map_err(|problem| problem.text().to_owned())?;
        let mut output = Output::new();
        let mut left = self.count;
        while left != Some(0) && output.is_wanted() {
            std::thread::sleep(self.interval);
            let now = match sampler.take(self.worker) {
                Ok(now) => now,
                Err(problem) => {
                    note(format_args!(
                        "scalerpc: the server at {place} went away: {}",
                        problem.text()
                    ));
                    return Ok(Verdict::Bad);
                }
            };
            self.print_one(&now, &before, &place.to_string(), &mut output);
            before = now;
            left = left.map(|left| left - 1);
        }
        let wrote = output.finish();
        if let Err(error) = &wrote {
            note(format_args!(
                "scalerpc: output could not be written: {error}"
            ));
        }
        Ok(Verdict::good_if(wrote.is_ok()))
    }

    fn print_one(&self, now: &Sample, before: &Sample, place: &str, output: &mut Output) {
        let view = View::new(now, Some(before), self.sort);
        if self.json {
            output.line(json::object(&view, place).to_string());
        } else {
            let look = Look {
                width: WIDTH,
                height: HEIGHT,
                colour: false,
                sort: self.sort,
            };
            for line in screen::lines(&view, place, &look) {
                output.line(line.to_string().trim_end());
            }
            output.line("");
        }
        output.flush();
    }
}
