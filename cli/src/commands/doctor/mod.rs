//! `scalerpc doctor`: what this machine can do, and what to run where it cannot.

mod finding;
mod rdma;
mod shm;
mod trial;
#[cfg(feature = "verbs")]
mod verbs;

use clap::Args;
use serde::Serialize;

use super::{Outcome, Verdict};
use crate::options::VerbsArgs;
use crate::output::{Output, note};
use finding::Findings;

/// Say what this machine can do, and what to run where it cannot
///
/// Each finding is `ok`, `warn` (it works, or is not asked for) or `fail`. The checks use what they check: memory is
/// made and sealed, a call goes through a server of its own, and a WRITE through the RDMA device. Nothing stays.
///
/// RDMA is asked for by --verbs, or by naming a device, port, GID or MTU.
#[derive(Args, Clone, Debug)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct Doctor {
    /// RDMA has to work
    #[arg(long)]
    verbs: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    selection: VerbsArgs,
}

const DOCTOR_HELP: &str = "\
Examples:
  scalerpc doctor
  scalerpc doctor --device mlx5_0 --port 1
  scalerpc doctor --verbs --json | jq '.rdma.findings[] | select(.level != \"ok\")'

Exit codes:
  0  shared memory works, and so does RDMA if it was asked for
  1  something of that does not
  2  bad usage";

#[derive(Serialize)]
struct SectionJson<'a> {
    usable: bool,
    asked_for: bool,
    findings: &'a Findings,
}

#[derive(Serialize)]
struct DoctorJson<'a> {
    version: &'static str,
    good: bool,
    shared_memory: SectionJson<'a>,
    rdma: SectionJson<'a>,
}

impl Doctor {
    pub(crate) fn run(&self) -> Outcome {
        let asked = self.verbs || self.selection.is_given();
        let shm = shm::check();
        let mut rdma = rdma::check(&self.selection);
        let (shm_works, rdma_works) = (shm.are_good(), rdma.are_good());
        if !asked {
            // Nobody misses it.
            rdma.soften();
        }
        let good = shm_works && (rdma_works || !asked);
        let mut output = Output::new();
        if self.json {
            let section = |findings, usable, asked_for| SectionJson {
                usable,
                asked_for,
                findings,
            };
            let json = DoctorJson {
                version: env!("CARGO_PKG_VERSION"),
                good,
                shared_memory: section(&shm, shm_works, true),
                rdma: section(&rdma, rdma_works, asked),
            };
            output.line(serde_json::to_string(&json).map_err(|error| error.to_string())?);
        } else {
            let works = |works| if works { "works" } else { "does not work" };
            output.line(format!("Shared memory {}", works(shm_works)));
            output.line(shm.text());
            let unasked = if asked {
                ""
            } else {
                " (and was not asked for)"
            };
            let unasked = if rdma_works { "" } else { unasked };
            output.line(format!("\nRDMA {}{unasked}", works(rdma_works)));
            output.line(rdma.text());
        }
        if let Err(error) = output.finish() {
            note(format_args!("scalerpc: standard output: {error}"));
            return Ok(Verdict::Bad);
        }
        Ok(Verdict::good_if(good))
    }
}
