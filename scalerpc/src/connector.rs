//! Connecting again, with patience.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use scalerpc_driver::Fabric;
use scalerpc_driver::shm::{ClientOptions, ShmClient};
#[cfg(feature = "verbs")]
use scalerpc_driver::verbs;

use crate::error::SetupError;
use crate::set::ClientSet;

/// The first pause between two attempts; each one is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Opens connections to one server as often as that is needed: at first, and after they were lost.
///
/// A connection that is lost stays lost: its calls end with an error each, which says whether they may have run. Then drop
/// the set and connect anew. The new connections have calls numbered from 1 and nothing of the old ones, so no answer
/// of those can come to them.
///
/// ```no_run
/// # use std::time::Duration;
/// # fn main() -> Result<(), scalerpc::SetupError> {
/// let connector = scalerpc::Connector::shm("/run/meta.sock", 8, Default::default());
/// let mut set = connector.connect()?;
/// // ... calls, until one ends with `CallError::Unknown` or `CallError::NotSent` ...
/// drop(set);
/// set = connector.connect_within(Duration::from_secs(30))?;
/// # drop(set);
/// # Ok(())
/// # }
/// ```
pub struct Connector<F: Fabric> {
    dial: Box<dyn Fn() -> Result<ClientSet<F>, SetupError> + Send + Sync>,
}

impl Connector<ShmClient> {
    /// To the server at a Unix socket, over shared memory, with so many connections.
    pub fn shm(path: impl Into<PathBuf>, connections: u32, options: ClientOptions) -> Self {
        let path = path.into();
        Self::from_fn(move || ClientSet::connect_with(&path, connections, options.clone()))
    }
}

#[cfg(feature = "verbs")]
impl Connector<verbs::VerbsClient> {
    /// To the server at a TCP address (`host:port`, resolved anew for each attempt), over RDMA, with so many connections.
    pub fn verbs(
        address: impl Into<String>,
        connections: u32,
        options: verbs::ClientOptions,
    ) -> Self {
        let address = address.into();
        Self::from_fn(move || ClientSet::connect_verbs(address.as_str(), connections, &options))
    }
}

impl<F: Fabric> Connector<F> {
    /// By any means.
    pub fn from_fn(
        dial: impl Fn() -> Result<ClientSet<F>, SetupError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            dial: Box::new(dial),
        }
    }

    /// One attempt.
    ///
    /// # Errors
    ///
    /// [`SetupError`], as of the functions of [`ClientSet`] that connect.
    pub fn connect(&self) -> Result<ClientSet<F>, SetupError> {
        (self.dial)()
    }

    /// Attempts until one succeeds, whatever the others fail of: a server that starts again is not there for a while,
    /// nor is its name, or it has no seat before it has noticed what became of the old connections. Between them this
    /// thread sleeps, for 10 ms at first, then twice as long each time, up to a second; a random part of that is left
    /// out, so that not all clients of a server come at once.
    ///
    /// # Errors
    ///
    /// That of the last attempt, if `patience` is over. An attempt that is under way then is not cut short.
    pub fn connect_within(&self, patience: Duration) -> Result<ClientSet<F>, SetupError> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let error = match self.connect() {
                Ok(set) => return Ok(set),
                Err(error) => error,
            };
            // From half of the pause to all of it.
            let part = RandomState::new().hash_one(begun) % 512 + 512;
            let slept = pause.mul_f64(part as f64 / 1024.0);
            if begun.elapsed() + slept >= patience {
                return Err(error);
            }
            std::thread::sleep(slept);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}

impl<F: Fabric> std::fmt::Debug for Connector<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}
