//! A load in short rounds that take turns between the servers: so what disturbs the machine for a while
//! disturbs all of them alike.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scalerpc::Clock;

use crate::fleet::Fleet;
use crate::measured::Load;
use crate::messages::{Order, Report};
use crate::progress::Progress;

/// Longest round. An interrupt waits for the end of one.
const ROUND_NS: u64 = 500_000_000;

/// What is loaded, and for how long.
pub(crate) struct Rounds<'a> {
    /// A name for each server.
    pub(crate) names: &'a [&'static str],
    /// How long each of them is loaded.
    pub(crate) each: Duration,
    /// Set when it is to end early.
    pub(crate) stop: &'a AtomicBool,
    /// The clock that all processes share.
    pub(crate) clock: Clock,
}

/// Is told when a server's round begins and ends.
pub(crate) trait Watch {
    /// Before it.
    fn begin(&mut self, target: usize) -> Result<(), String>;
    /// After it.
    fn end(&mut self, target: usize) -> Result<(), String>;
}

/// For servers that are elsewhere.
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn begin(&mut self, _: usize) -> Result<(), String> {
        Ok(())
    }

    fn end(&mut self, _: usize) -> Result<(), String> {
        Ok(())
    }
}

impl Rounds<'_> {
    /// Carries out the load; what the clients see is added to `loads`, one for each server.
    ///
    /// # Errors
    ///
    /// What `watch` says.
    pub(crate) fn run(
        &self,
        fleet: &mut Fleet,
        loads: &mut [Load],
        watch: &mut dyn Watch,
    ) -> Result<(), String> {
        let each_ns = self.each.as_nanos() as u64;
        let turns = each_ns.div_ceil(ROUND_NS).max(1);
        let round_ns = each_ns / turns;
        let mut progress = Progress::new(self.each * loads.len() as u32);
        let mut before_ns = 0;
        for _ in 0..turns {
            for target in 0..loads.len() {
                if self.stop.load(Ordering::Relaxed) || fleet.is_done_for() {
                    progress.finish();
                    return Ok(());
                }
                watch.begin(target)?;
                self.round(fleet, loads, target, round_ns, before_ns, &mut progress);
                watch.end(target)?;
                before_ns += round_ns;
            }
        }
        progress.finish();
        Ok(())
    }

    fn round(
        &self,
        fleet: &mut Fleet,
        loads: &mut [Load],
        target: usize,
        round_ns: u64,
        before_ns: u64,
        progress: &mut Progress,
    ) {
        let start_ns = self.clock.now_ns();
        let until_ns = start_ns + round_ns;
        // Shared by the two callbacks, which are never called at once.
        let loads = std::cell::RefCell::new(loads);
        let on_report = &mut |report: &Report| {
            if let Some(load) = loads.borrow_mut().get_mut(report.target) {
                load.add(report);
            }
        };
        let on_tick = &mut || {
            let done_ns = before_ns + self.clock.now_ns().saturating_sub(start_ns).min(round_ns);
            progress.tick(Duration::from_nanos(done_ns), self.names, &loads.borrow());
        };
        fleet.carry_out(
            Order::Load { target, until_ns },
            until_ns,
            on_report,
            on_tick,
        );
        if let Some(load) = loads.borrow_mut().get_mut(target) {
            load.end_round(round_ns);
        }
    }
}
