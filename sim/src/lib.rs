//! A simulated fabric with virtual time, seeds and faults, and the checks that run on it.
//!
//! [`World`] runs the real engines of `scalerpc-core` on reliable connections that are no better than
//! they promise to be, and checks the protocol's rules at every step. The same seed gives the same run.

pub mod arena;
mod beats;
mod calm;
mod client;
mod clocks;
pub mod config;
pub mod fabric;
mod faults;
pub mod marks;
#[cfg(scalerpc_mutant)]
pub mod mutants;
mod net;
pub mod oracle;
mod play;
mod rest;
mod serve;
pub mod team;
mod terms;
pub mod together;
pub mod world;

pub use beats::Beats;
pub use config::Config;
pub use play::{Cast, Played, play};
pub use team::Team;
pub use world::{Report, World};

/// Runs a seed; `trace`: it says what happens.
///
/// # Errors
///
/// Which rule was broken, and how; the seed reproduces it.
pub fn run_seed(seed: u64, trace: bool) -> Result<Report, String> {
    let config = Config::draw(seed);
    World::new(config, trace)
        .and_then(World::run)
        .and_then(|mut report| {
            clocks::run(seed, &mut report.marks)?;
            Ok(report)
        })
        .map_err(|broken| format!("seed {seed}: {broken}\n{config:#?}"))
}

/// As [`run_seed`], for a team of workers.
///
/// # Errors
///
/// As [`run_seed`].
pub fn run_team_seed(seed: u64, trace: bool) -> Result<Report, String> {
    let config = Config::draw_of_worker(seed);
    Team::new(seed, config, trace)
        .and_then(Team::run)
        .map_err(|broken| format!("seed {seed} of a team: {broken}\n{config:#?}"))
}
