//! What the data thread and the control thread of a server tell each other.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use scalerpc_core::wire::Placement;

use super::error::VerbsError;
use super::lanes::{QpRef, Remote};
use crate::shared::Counter;

/// A connection that has been set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub(super) seat: u32,
    /// Its number at the client.
    pub(super) number: u32,
    pub(super) owner: u64,
    pub(super) qp: QpRef,
    pub(super) remote: Remote,
    pub(super) peer: SocketAddr,
    pub(super) placement: Placement,
}

/// News for the data thread. Of one seat they come in this order.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    Opened(Opening),
    /// Its queue pair is in ERR, and flushes what is outstanding; unless the device did not take even that.
    Failed {
        seat: u32,
        flushes: bool,
    },
    /// Its queue pair is no more.
    Destroyed(u32),
    /// The client did not finish its handshake. The seat had a queue pair, which is no more.
    Abandoned(u32),
}

/// Orders for the control thread; each names a seat.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Take its queue pair to ERR, if it is not there.
    Fail(u32),
    /// Destroy its queue pair: the data thread does not use it any more.
    Destroy(u32),
}

/// Counters of a server; all but the gauges only ever rise.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) links_open: Counter,
    pub(super) links_admitted: Counter,
    pub(super) refused: Counter,
    pub(super) violations: Counter,
    pub(super) abandoned: Counter,
    pub(super) fenced: Counter,
    pub(super) port_events: Counter,
    pub(super) device_events: Counter,
    last_error: Mutex<Option<VerbsError>>,
}

impl Counts {
    /// A verb failed for a client, who is told no more than that.
    pub(super) fn note(&self, error: VerbsError) {
        *self.last_error() = Some(error);
    }

    pub(super) fn last_error(&self) -> MutexGuard<'_, Option<VerbsError>> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) type Shard = crate::shared::Shard<News>;
pub(super) type Shared = crate::shared::Shared<Order, Counts>;
