//! What the data threads and the control thread of a server share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use scalerpc_core::wire::LINE;
use scalerpc_core::{Geometry, Region};

use super::fence::ReachingFence;
use super::guard::{self, GUARD_BYTES};
use super::handshake::Grant;
use crate::mapping::Mapping;
use crate::shared::Counter;

/// Bytes of a client's exposed memory for `connections`: what the geometry asks for, then a guard for each
/// connection, then a line with the word that says that the client is asleep. `None` if that does not fit the address space.
pub(super) fn client_bytes(geometry: &Geometry, connections: u32) -> Option<usize> {
    let each = geometry.client_exposed_bytes().checked_add(GUARD_BYTES)?;
    each.checked_mul(connections as usize)?
        .checked_add(LINE)
        .filter(|&bytes| bytes <= isize::MAX as usize)
}

/// Offset of the guard of a connection in its client's exposed memory.
#[inline]
pub(super) fn guard_at(geometry: &Geometry, connections: u32, connection: u32) -> usize {
    geometry.client_exposed_bytes() * connections as usize + GUARD_BYTES * connection as usize
}

/// What a link has in one shard.
#[derive(Debug)]
struct Share {
    shard: u32,
    /// Every guard of its connections says [`guard::ENDED`].
    ended: AtomicBool,
    /// Seats that have not been released.
    held: AtomicU32,
}

/// Offset, in its exposed memory, of the word that says that a client is asleep.
#[inline]
pub(super) fn asleep_at(geometry: &Geometry, connections: u32) -> usize {
    guard_at(geometry, connections, connections)
}

/// A client process's link: its memory and its connections.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    pub(super) process: i32,
    pub(super) grants: Box<[Grant]>,
    shares: Box<[Share]>,
    /// Offset of the first guard; before it is what READ and WRITE may reach.
    guards_at: usize,
    asleep_at: usize,
    mapping: Mapping,
    fence: ReachingFence,
    /// Nothing more is posted.
    down: AtomicBool,
    /// It writes no more.
    fenced: AtomicBool,
    /// Seats in all shards that have not been released.
    held: AtomicU32,
}

impl Link {
    pub(super) fn new(
        (id, process): (u64, i32),
        grants: Box<[Grant]>,
        guards_at: usize,
        mapping: Mapping,
        fence: ReachingFence,
    ) -> Self {
        let mut seats = BTreeMap::new();
        for grant in &grants {
            *seats.entry(grant.shard).or_insert(0) += 1;
        }
        let share = |(shard, held)| Share {
            shard,
            ended: AtomicBool::new(false),
            held: AtomicU32::new(held),
        };
        let held = AtomicU32::new(grants.len() as u32);
        let connections = grants.len();
        Self {
            id,
            process,
            grants,
            shares: seats.into_iter().map(share).collect(),
            guards_at,
            asleep_at: guards_at + GUARD_BYTES * connections,
            mapping,
            fence,
            down: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            held,
        }
    }

    /// The shards in which it has connections.
    pub(super) fn shards(&self) -> impl Iterator<Item = u32> {
        self.shares.iter().map(|share| share.shard)
    }

    /// The first connection of a shard from `connection` on.
    pub(super) fn next_in(&self, shard: u32, connection: u32) -> Option<(u32, Grant)> {
        let rest = self.grants.get(connection as usize..)?;
        let skipped = rest.iter().position(|grant| grant.shard == shard)?;
        Some((connection + skipped as u32, *rest.get(skipped)?))
    }

    fn share(&self, shard: u32) -> Option<&Share> {
        self.shares.iter().find(|share| share.shard == shard)
    }

    /// Offset of the word that says that the client is asleep.
    #[inline]
    pub(super) fn asleep_at(&self) -> usize {
        self.asleep_at
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

    /// The data thread of a shard: ends every connection in it. True the first time.
    ///
    /// Only the thread that revokes the tenancies of a connection may end it, so each shard does that for its own.
    pub(super) fn end(&self, shard: u32) -> bool {
        self.set_down();
        let Some(share) = self.share(shard) else {
            return false;
        };
        if share.ended.load(Ordering::Relaxed) {
            return false;
        }
        let mut first = 0;
        while let Some((connection, _)) = self.next_in(shard, first) {
            guard::raise(self.region(), self.guard(connection), guard::ENDED);
            first = connection + 1;
        }
        // Ordering: release; partner is the acquire in `is_quiet`, whose fence comes after all these words.
        share.ended.store(true, Ordering::Release);
        true
    }

    /// Control thread: true if no connection of an evicted link can write any more.
    pub(super) fn is_quiet(&self) -> bool {
        // Ordering: acquire; partner is the release in `end`.
        let mut ended = self
            .shares
            .iter()
            .map(|it| it.ended.load(Ordering::Acquire));
        ended.all(|ended| ended)
            && self.fence.pass(self.region())
            && (0..self.grants.len() as u32)
                .all(|connection| guard::is_quiet(self.region(), self.guard(connection)))
    }

    /// Control thread: it writes no more, and all shards are about to hear that.
    pub(super) fn set_fenced(&self) {
        self.set_down();
        self.fenced.store(true, Ordering::Relaxed);
    }

    /// Whether that has been said, to a thread that has held the lock around the news of its shard since.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }

    /// One seat less in a shard. True for the last one of the link.
    pub(super) fn let_go(&self, shard: u32) -> bool {
        let Some(share) = self.share(shard) else {
            return false;
        };
        share.held.fetch_sub(1, Ordering::Relaxed);
        self.let_go_of(1)
    }

    /// All the seats less that a shard has left. True if none is left of the link.
    pub(super) fn let_go_all(&self, shard: u32) -> bool {
        let share = self.share(shard);
        match share.map_or(0, |share| share.held.swap(0, Ordering::Relaxed)) {
            0 => false,
            seats => self.let_go_of(seats),
        }
    }

    fn let_go_of(&self, seats: u32) -> bool {
        // Ordering: the mutex around the orders orders what follows.
        self.held.fetch_sub(seats, Ordering::Relaxed) == seats
    }
}

/// News for the data thread of a shard; of one link they come in this order.
#[derive(Debug)]
pub(super) enum News {
    Opened(Arc<Link>),
    /// Another shard has ended it: end it here, too.
    Ended(Arc<Link>),
    Gone(Arc<Link>),
}

impl News {
    pub(super) fn link(&self) -> &Arc<Link> {
        match self {
            Self::Opened(link) | Self::Ended(link) | Self::Gone(link) => link,
        }
    }
}

/// Orders for the control thread; each names a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// A shard has closed its guards: end it.
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

pub(super) type Shard = crate::shared::Shard<News>;
pub(super) type Shared = crate::shared::Shared<Order, Counts>;
