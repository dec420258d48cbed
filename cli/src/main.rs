//! The command `scalerpc`: a demo, a server, a client, a benchmark, a check of the machine, and a model of a NIC.

mod commands;
mod fleet;
mod hosting;
mod measured;
mod messages;
mod options;
mod output;
mod place;
mod progress;
mod remote;
mod report;
mod rounds;
mod sys;
mod team;
mod top;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::Verdict;

/// RPC that does not slow down as clients are added, shown on a metadata server
///
/// Clients ask a server for the metadata of a real directory tree, over shared memory on this host.
/// Start with `scalerpc demo`; `scalerpc doctor` says what this machine can do.
#[derive(Parser)]
#[command(name = "scalerpc", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(commands::demo::Demo),
    Serve(commands::serve::Serve),
    Call(commands::call::Call),
    Bench(commands::bench::Bench),
    Top(commands::top::Top),
    Doctor(commands::doctor::Doctor),
    Model(commands::model::Model),
}

/// What every command's help ends with.
const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  a wrong answer, a call that failed, or output that could not be written
  2  bad usage, or something that is needed is not there; nothing was changed

Nobody has to read all of the output: a closed pipe (`scalerpc demo | head -1`)
ends the output, and changes neither the work nor its exit code.";

fn main() -> ExitCode {
    let verdict = match Cli::parse().command {
        Command::Demo(demo) => demo.run(),
        Command::Serve(serve) => serve.run(),
        Command::Call(call) => call.run(),
        Command::Bench(bench) => bench.run(),
        Command::Top(top) => top.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Model(model) => model.run(),
    };
    match verdict {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::from(1),
        Err(message) => {
            output::note(format_args!("scalerpc: {message}"));
            ExitCode::from(2)
        }
    }
}
