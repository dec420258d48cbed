//! What the data thread and the control thread of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use scalerpc_core::{Geometry, Region};

use super::fence::ServerFence;
use super::guard::{self, GUARD_BYTES};
use super::handshake::Grant;
use crate::mapping::Mapping;
use crate::shared::Counter;

/// Bytes of a client's exposed memory for `connections`: what the geometry asks for, then a guard for each
/// connection. `None` if that does not fit the address space.
pub(super) fn client_bytes(geometry: &Geometry, connections: u32) -> Option<usize> {
    let each = geometry.client_exposed_bytes().checked_add(GUARD_BYTES)?;
    each.checked_mul(connections as usize)
        .filter(|&bytes| bytes <= isize::MAX as usize)
}

/// Offset of the guard of a connection in its client's exposed memory.
#[inline]
pub(super) fn guard_at(geometry: &Geometry, connections: u32, connection: u32) -> usize {
    geometry.client_exposed_bytes() * connections as usize + GUARD_BYTES * connection as usize
}

/// A client process's link: its memory and its connections.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    pub(super) process: i32,
    pub(super) grants: Box<[Grant]>,
    /// Offset of the first guard; before it is what READ and WRITE may reach.
    guards_at: usize,
    mapping: Mapping,
    fence: ServerFence,
    /// Nothing more is posted.
    down: AtomicBool,
    /// The data thread wants it to end; its guards say so already.
    evicted: AtomicBool,
    /// Seats that the data thread has not released.
    held: AtomicU32,
}

impl Link {
    pub(super) fn new(
        (id, process): (u64, i32),
        grants: Box<[Grant]>,
        guards_at: usize,
        mapping: Mapping,
        fence: ServerFence,
    ) -> Self {
        let held = AtomicU32::new(grants.len() as u32);
        let (down, evicted) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            id,
            process,
            grants,
            guards_at,
            mapping,
            fence,
            down,
            evicted,
            held,
        }
    }

    #[inline]
    pub(super) fn region(&self) -> &Region {
        self.mapping.region()
    }

    /// Offset of a connection's guard.
    pub(super) fn guard(&self, connection: u32) -> usize {
        self.guards_at + GUARD_BYTES * connection as usize
    }

    /// Bytes that READ and WRITE may reach.
    #[inline]
    pub(super) fn reachable_bytes(&self) -> usize {
        self.guards_at
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.mapping.memory().len()
    }

    // The flag carries no data: what a post does to the mapping of a link that has just gone down harms
    // nobody, as the mapping stays until the last seat is released.
    #[inline]
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    pub(super) fn set_down(&self) {
        self.down.store(true, Ordering::Relaxed);
    }

    /// Data thread: ends every connection. True the first time.
    pub(super) fn evict(&self) -> bool {
        self.set_down();
        if self.evicted.swap(true, Ordering::Relaxed) {
            return false;
        }
        for connection in 0..self.grants.len() as u32 {
            guard::raise(self.region(), self.guard(connection), guard::ENDED);
        }
        true
    }

    /// Control thread: true if no connection of an evicted link can write any more.
    pub(super) fn is_quiet(&self) -> bool {
        self.fence.pass(self.region())
            && (0..self.grants.len() as u32)
                .all(|connection| guard::is_quiet(self.region(), self.guard(connection)))
    }

    /// Data thread: one seat less. True for the last.
    pub(super) fn let_go(&self) -> bool {
        // Ordering: the mutex around the commands orders what follows.
        self.held.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

/// News for the data thread.
#[derive(Debug)]
pub(super) enum News {
    Opened(Arc<Link>),
    Gone(Arc<Link>),
}

impl News {
    pub(super) fn link(&self) -> &Arc<Link> {
        match self {
            Self::Opened(link) | Self::Gone(link) => link,
        }
    }
}

/// Orders for the control thread; each names a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Its guards are closed: end it.
    Evict(u64),
    /// All its seats have been released.
    Forget(u64),
}

/// Counters of a server; all but the gauges only ever rise.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) links_open: Counter,
    pub(super) links_admitted: Counter,
    pub(super) client_bytes: Counter,
    pub(super) refused: Counter,
    pub(super) violations: Counter,
    pub(super) abandoned: Counter,
    pub(super) fenced: Counter,
}

/// What both threads hold.
pub(super) type Shared = crate::shared::Shared<News, Order, Counts>;
