//! `scalerpc-sim FIRST COUNT`: runs seeds, and stops at the first that breaks a rule.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let (Some(Ok(first)), Some(Ok(count))) = (numbers.next(), numbers.next()) else {
        eprintln!("usage: scalerpc-sim FIRST_SEED COUNT");
        return ExitCode::from(2);
    };
    for seed in first..first + count {
        if let Err(broken) = scalerpc_sim::run_seed(seed) {
            eprintln!("{broken}");
            return ExitCode::FAILURE;
        }
    }
    println!("{count} seeds from {first}: every rule held");
    ExitCode::SUCCESS
}
