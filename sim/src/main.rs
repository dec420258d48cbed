//! `scalerpc-sim`: plays seeds, and stops at the first that breaks a rule.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use scalerpc_sim::marks::Marks;

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
    let end = args
        .minutes
        .map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let mut marks = Marks::default();
    let mut played = 0;
    for seed in args.first..args.first.saturating_add(args.seeds) {
        if end.is_some_and(|end| start.elapsed() >= end) {
            break;
        }
        match scalerpc_sim::run_seed(seed, false) {
            Ok(report) => marks.add(&report),
            Err(broken) => {
                eprintln!("{broken}\nreplay it with --seed {seed}");
                return ExitCode::FAILURE;
            }
        }
        played += 1;
    }
    for (mark, times) in marks.all() {
        println!("{times:>14}  {mark}");
    }
    println!(
        "{:>13}‰  longest wait for an answer, of what rule R8 allows",
        marks.longest_wait
    );
    let seconds = start.elapsed().as_secs();
    println!(
        "{played} seeds from {}, {seconds} s: every rule held",
        args.first
    );
    if played >= 300 && marks.missing().next().is_some() {
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

    let all = mutants::run(first, filter, |caught| {
        let why = caught.why.as_deref().unwrap_or("NOT NOTICED");
        let seconds = caught.took.as_secs_f64();
        println!(
            "{:<24} {:>5} seeds {seconds:>6.1} s  {why}",
            caught.name, caught.seeds
        );
    });
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
