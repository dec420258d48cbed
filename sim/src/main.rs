//! `scalerpc-sim`: plays seeds, and stops at the first that breaks a rule.

use std::num::NonZero;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use scalerpc_sim::marks::SEEDS_FOR_MARKS;

/// Plays simulated runs of ScaleRPC, each drawn from its seed, and checks the protocol's rules.
#[derive(Debug, Parser)]
struct Args {
    /// Play this seed alone, with a trace of what happens
    #[arg(long, conflicts_with_all = ["seeds", "minutes", "mutants"])]
    seed: Option<u64>,
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

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(filter) = &args.mutants {
        return hunt(args.first, filter);
    }
    if let Some(seed) = args.seed {
        return replay(seed);
    }
    play(&args)
}

fn play(args: &Args) -> ExitCode {
    let start = Instant::now();
    let minutes = args.minutes.map(|it| Duration::from_secs_f64(it * 60.0));
    let jobs = args
        .jobs
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZero::get);
    let end = minutes.map(|minutes| start + minutes);
    let played = match scalerpc_sim::play(args.first, args.seeds, jobs, end) {
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
    if played.seeds >= SEEDS_FOR_MARKS && played.marks.missing().next().is_some() {
        eprintln!("some paths were never taken, see above");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn replay(seed: u64) -> ExitCode {
    match scalerpc_sim::run_seed(seed, true) {
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
