//! Takes snapshots of a server, one after the other.

use std::time::Instant;

use scalerpc::observe::{METHODS_RESERVED, SNAPSHOT, Snapshot, SnapshotReader};
use scalerpc::{CallError, Status};

use super::view::Sample;
use crate::place::{Calls, Place};

/// Why there is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The server cannot be reached, or is there no more: that may change.
    Gone(String),
    /// It does not answer such questions.
    Refused(String),
}

impl Problem {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Gone(text) | Self::Refused(text) => text,
        }
    }
}

/// Connections are given to workers in turn, unless others come in between.
const TURNS: usize = 2;

/// A connection to a worker of a server, made when it is needed.
pub(crate) struct Sampler {
    place: Place,
    client: Option<(u16, Box<dyn Calls>)>,
    begun: Instant,
}

impl Sampler {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            client: None,
            begun: Instant::now(),
        }
    }

    /// Takes a snapshot of this worker, from 0.
    pub(crate) fn take(&mut self, worker: u16) -> Result<Sample, Problem> {
        let at = self.begun.elapsed();
        let snapshot = match self.client.take().filter(|(of, _)| *of == worker) {
            Some((_, mut client)) => {
                let snapshot = read(client.as_mut())?;
                self.client = Some((worker, client));
                snapshot
            }
            None => self.find(worker)?,
        };
        Ok(Sample { at, snapshot })
    }

    /// Connects until it is that worker's turn.
    fn find(&mut self, worker: u16) -> Result<Snapshot, Problem> {
        // Their workers have had their turn, and a seat is held until the end.
        let mut others = Vec::new();
        loop {
            let mut client = self.place.client().map_err(Problem::Gone)?;
            let snapshot = read(client.as_mut())?;
            let (got, workers) = (snapshot.server.worker, snapshot.server.workers);
            if got == worker {
                self.client = Some((worker, client));
                return Ok(snapshot);
            }
            if worker >= workers {
                return Err(Problem::Refused(format!(
                    "there is no worker {worker}: the server has {workers}, and they count from 0"
                )));
            }
            others.push(client);
            if others.len() >= TURNS * usize::from(workers) {
                return Err(Problem::Gone(format!(
                    "worker {worker} gives out no seat: all of its seats are taken"
                )));
            }
        }
    }
}

fn read(client: &mut dyn Calls) -> Result<Snapshot, Problem> {
    let mut reader = SnapshotReader::new();
    while let Some(request) = reader.request() {
        let page = client.call(SNAPSHOT, &request).map_err(problem)?;
        let taken = reader.take(page);
        taken.map_err(|error| Problem::Refused(error.to_string()))?;
    }
    Ok(reader.finish())
}

fn problem(error: CallError) -> Problem {
    match error {
        CallError::Status(Status::UNKNOWN_METHOD) => Problem::Refused(format!(
            "the server does not say what it is doing: it was made with `observable(false)`, or from a release that \
             does not know method {METHODS_RESERVED:#x}"
        )),
        CallError::Status(Status::RESPONSE_TOO_LARGE) => Problem::Refused(
            "the server's responses are too small for a snapshot: raise its response_max_bytes to 64".into(),
        ),
        CallError::TooLarge { max } => Problem::Refused(format!(
            "the server takes requests of {max} bytes at most: raise its request_max_bytes to 8"
        )),
        CallError::TimedOut => Problem::Gone("the server does not answer: is it stopped?".into()),
        error => Problem::Gone(error.to_string()),
    }
}
