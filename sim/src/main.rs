//! `scalerpc-sim`: plays seeds, and stops at the first that breaks a rule.

use std::num::NonZero;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use scalerpc_sim::Cast;

/// Plays simulated runs of ScaleRPC, each drawn from its seed, and checks the protocol's rules.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Play this seed alone, with a trace of what happens
    #[arg(long, conflicts_with_all = ["seeds", "minutes", "mutants"])]
    seed: Option<u64>,
    /// Several workers under one scheduler, instead of one engine
    #[arg(long, conflicts_with = "mutants")]
    team: bool,
    /// Play so many seeds at most
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Threads; as many as there are processors if not given
    #[arg(long)]
    jobs: Option<NonZero<usize>>,
    /// Stop after so many minutes
    #[arg(long)]
    minutes: Option<f64>,
    /// Turn on each deliberate bug whose name contains BUG in turn, and see that it is noticed. Needs
    /// a build with RUSTFLAGS='--cfg scalerpc_mutant'
    #[arg(long, value_name = "BUG", num_args = 0..=1, default_missing_value = "")]
    mutants: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare four servers whose slices keep step with four that do not
    Together {
        /// Of clocks, delays and the order of things
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Virtual time that is measured of each
        #[arg(long, default_value_t = 50)]
        milliseconds: u64,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Together { seed, milliseconds }) = args.command {
        return together(seed, milliseconds);
    }
    if let Some(filter) = &args.mutants {
        return hunt(args.first, filter);
    }
    let cast = if args.team { Cast::Team } else { Cast::One };
    if let Some(seed) = args.seed {
        return replay(cast, seed);
    }
    play(cast, &args)
}

fn play(cast: Cast, args: &Args) -> ExitCode {
    let start = Instant::now();
    let minutes = args.minutes.map(|it| Duration::from_secs_f64(it * 60.0));
    let jobs = args
        .jobs
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZero::get);
    let end = minutes.map(|minutes| start + minutes);
    let played = match scalerpc_sim::play(cast, args.first, args.seeds, jobs, end) {
        Ok(played) => played,
        Err(broken) => {
            eprintln!("{broken}\nreplay it with --seed");
            return ExitCode::FAILURE;
        }
    };
    for (mark, times) in played.marks.all() {
        println!("{times:>14}  {mark}");
    }
    println!(
        "{:>13}‰  longest wait for an answer, of what rule R8 allows",
        played.marks.longest_wait
    );
    println!(
        "{} seeds from {}, {} s: every rule held",
        played.seeds,
        args.first,
        start.elapsed().as_secs()
    );
    if played.seeds >= cast.seeds_for_marks() && played.marks.missing().next().is_some() {
        eprintln!("some paths were never taken, see above");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn together(seed: u64, milliseconds: u64) -> ExitCode {
    use scalerpc_sim::together::{Costs, LOADS, compare};

    let costs = Costs::default();
    println!("{costs:?}, seed {seed}, {milliseconds} ms each");
    println!(
        "load | kop/s, groups as they come | same groups | together | gain over either | | beats apart, us"
    );
    for (name, load) in LOADS {
        match compare(*load, costs, milliseconds * 1_000_000, seed) {
            Ok(compared) => println!("{name} | {compared}"),
            Err(broken) => {
                eprintln!("{name}: {broken}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn replay(cast: Cast, seed: u64) -> ExitCode {
    match cast.run(seed, true) {
        Ok(report) => {
            println!("{report:#?}");
            ExitCode::SUCCESS
        }
        Err(broken) => {
            eprintln!("{broken}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(scalerpc_mutant)]
fn hunt(first: u64, filter: &str) -> ExitCode {
    use scalerpc_sim::mutants;

    let all = mutants::run(first, filter, |caught| println!("{caught}"));
    let escaped = all.iter().filter(|caught| caught.why.is_none()).count();
    println!(
        "{} bugs, {} noticed, {escaped} not noticed",
        all.len(),
        all.len() - escaped
    );
    if escaped == 0 && !all.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(not(scalerpc_mutant))]
fn hunt(_: u64, _: &str) -> ExitCode {
    eprintln!("there are no bugs in this build: build it with RUSTFLAGS='--cfg scalerpc_mutant'");
    ExitCode::from(2)
}
