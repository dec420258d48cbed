//! Measurements of scalerpc and their figures. Speeds are ratios of one run, whose sides take turns.

mod callgrind;
mod commands;
mod cpus;
mod figure;
mod measure;
mod model;
mod peers;
mod plan;
mod report;
mod results;
mod rig;
mod stage;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measurements of scalerpc, as ratios of one run
///
/// Without a command: rates and round trips over shared memory, beside what the hardware gives and what peers do.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    peers: commands::peers::Peers,
}

#[derive(Subcommand)]
enum Command {
    Sweep(commands::sweep::Sweep),
    Skew(commands::skew::Skew),
    Octopus(commands::octopus::Octopus),
    Costs(commands::costs::Costs),
    Counts(commands::counts::Counts),
    #[command(hide = true)]
    Counted(rig::Counted),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        None => arguments.peers.run(),
        Some(Command::Sweep(sweep)) => sweep.run(),
        Some(Command::Skew(skew)) => skew.run(),
        Some(Command::Octopus(octopus)) => octopus.run(),
        Some(Command::Costs(costs)) => costs.run(),
        Some(Command::Counts(counts)) => counts.run(),
        Some(Command::Counted(counted)) => counted.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
