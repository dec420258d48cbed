//! Pages as whoever asked reads them. Every number is the peer's, and is checked.

use std::time::Duration;

use scalerpc_core::Mapping;
use scalerpc_core::geometry::{CLIENTS_MAX, ZONES_MAX};

use super::page::{
    CLASSES, END, HEAD_BYTES, NO_SCORE, NO_VIOLATION, NO_WAIT, NOBODY, POOL_PROCESSING, POOL_TAKEN,
    SERVER_BY_ARRIVAL, SERVER_DRAINING, SERVER_STATIC, STATES, Section, VIOLATIONS,
};
use super::{
    ConnView, GroupView, Histogram, Histograms, PoolView, QuarantineView, ServerView, Snapshot,
    VERSION,
};
use crate::server::Eviction;
use crate::{Counters, Grouping};

/// Counters that a later version may have, at most.
const COUNTERS_MAX: u32 = 1 << 10;

/// Why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The server speaks another version of this.
    #[error(
        "the server's snapshots have version {version}, and this build reads {VERSION}: build both from the same release"
    )]
    Version {
        /// The server's.
        version: u16,
    },
    /// The page is not what a server writes.
    #[error("a page of the server's snapshot is malformed (section {section}, {what})")]
    Malformed {
        /// What the page is about.
        section: &'static str,
        /// What is wrong.
        what: &'static str,
    },
}

/// Reads a snapshot page by page; see the [module](super).
///
/// It ends, whatever a server sends: cursors only grow, and what they count is bounded.
#[derive(Debug)]
pub struct SnapshotReader {
    /// Place in [`Section::ALL`]; past its end there is nothing more to ask for.
    section: usize,
    cursor: u32,
    snapshot: Snapshot,
    sums: [(u64, u64, u64); Histograms::NAMES.len()],
    buckets: [Vec<(u8, u64)>; Histograms::NAMES.len()],
}

impl Default for SnapshotReader {
    fn default() -> Self {
        Self::new()
    }
}

impl SnapshotReader {
    /// One that has read nothing yet.
    pub fn new() -> Self {
        let server = ServerView {
            now_ns: 0,
            clients_max: 0,
            group_size: 0,
            window: 0,
            zones: 0,
            groups_max: 0,
            mapping: Mapping::Virtual,
            grouping: Grouping::Priority,
            time_slice: Duration::ZERO,
            draining: false,
            worker: 0,
            workers: 0,
            asked_by: None,
            last_eviction: None,
        };
        Self {
            section: 0,
            cursor: 0,
            snapshot: Snapshot {
                server,
                counters: Counters::default(),
                pools: Vec::new(),
                groups: Vec::new(),
                quarantine: Vec::new(),
                connections: Vec::new(),
                histograms: Box::default(),
            },
            sums: Default::default(),
            buckets: Default::default(),
        }
    }

    /// The request for the next page, or `None` if the snapshot is complete.
    pub fn request(&self) -> Option<[u8; HEAD_BYTES]> {
        let section = *Section::ALL.get(self.section)?;
        let ([v0, v1], [c0, c1, c2, c3]) = (VERSION.to_le_bytes(), self.cursor.to_le_bytes());
        Some([v0, v1, section as u8, 0, c0, c1, c2, c3])
    }

    /// Takes the page that was asked for.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`]: it cannot be used, and the snapshot will not be complete.
    pub fn take(&mut self, page: &[u8]) -> Result<(), SnapshotError> {
        let Some(&section) = Section::ALL.get(self.section) else {
            return Ok(());
        };
        let no = |what| SnapshotError::Malformed {
            section: section.name(),
            what,
        };
        let Some((&[v0, v1, echo, bytes, c0, c1, c2, c3], items)) = page.split_first_chunk() else {
            return Err(no("it has no head"));
        };
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(SnapshotError::Version { version });
        }
        let (bytes, next) = (usize::from(bytes), u32::from_le_bytes([c0, c1, c2, c3]));
        if echo != section as u8 {
            return Err(no("it is of another section"));
        }
        if bytes < section.item_bytes() || items.len() % bytes != 0 {
            return Err(no("its length"));
        }
        if next != END && (next <= self.cursor || next > self.cursor_max(section)) {
            return Err(no("its cursor"));
        }
        let limit = next.min(self.cursor_max(section));
        for item in items.chunks_exact(bytes) {
            self.take_item(section, limit, &mut Fields(item))
                .ok_or_else(|| no("an item"))?;
        }
        if next == END {
            self.section += 1;
            self.cursor = 0;
        } else {
            self.cursor = next;
        }
        if section == Section::Server && next == END && self.snapshot.server.workers == 0 {
            return Err(no("it is empty"));
        }
        Ok(())
    }

    /// The snapshot: what was read of it, if it is not complete.
    pub fn finish(mut self) -> Snapshot {
        let all = self.snapshot.histograms.all_mut();
        for (i, histogram) in all.into_iter().enumerate() {
            let (sum, min, max) = self.sums[i];
            *histogram = Histogram::from_parts(sum, min, max, self.buckets[i].drain(..));
        }
        self.snapshot
    }

    /// Cursors of a section end here.
    fn cursor_max(&self, section: Section) -> u32 {
        let server = &self.snapshot.server;
        let distributions = Histograms::NAMES.len() as u32;
        match section {
            Section::Server => 1,
            Section::Counters => COUNTERS_MAX,
            Section::Pools => 2,
            Section::Groups => server.groups_max,
            Section::Quarantine => 2 * server.zones,
            Section::Connections => server.clients_max,
            // There may be more of a later version, which are passed over.
            Section::Sums => distributions.max(COUNTERS_MAX),
            Section::Buckets => distributions.max(COUNTERS_MAX) * 256,
        }
    }

    /// Takes an item, whose place is from the present cursor up to `limit`; `None` if it cannot be. Places grow, so
    /// the cursor goes along.
    fn take_item(&mut self, section: Section, limit: u32, item: &mut Fields<'_>) -> Option<()> {
        let place = match section {
            Section::Groups => item.clone().u32()?,
            Section::Connections => item.clone().skip(24)?.u32()?,
            Section::Buckets => item.clone().u32()?,
            _ => self.cursor,
        };
        if place < self.cursor || place >= limit {
            return None;
        }
        self.cursor = place + 1;
        match section {
            Section::Server => self.take_server(item)?,
            Section::Counters if (place as usize) < Counters::LEN => {
                let values = self.snapshot.counters.values_mut();
                *values.into_iter().nth(place as usize)? = item.u64()?;
            }
            Section::Counters => {}
            Section::Pools => self.snapshot.pools.push(pool(item)?),
            Section::Groups => self.snapshot.groups.push((place, group(item.skip(4)?)?)),
            Section::Quarantine => {
                let held = quarantine(item)?;
                let known = held.zone < 2 * self.snapshot.server.zones;
                known.then(|| self.snapshot.quarantine.push(held))?;
            }
            Section::Connections => {
                let conn = connection(item)?;
                self.snapshot.connections.push((place, conn));
            }
            Section::Sums => {
                let sums = (item.u64()?, item.u64()?, item.u64()?);
                if let Some(to) = self.sums.get_mut(place as usize) {
                    *to = sums;
                }
            }
            Section::Buckets => {
                let count = item.skip(4)?.u64()?;
                if let Some(to) = self.buckets.get_mut(place as usize / 256) {
                    to.push((place as u8, count));
                }
            }
        }
        Some(())
    }

    fn take_server(&mut self, item: &mut Fields<'_>) -> Option<()> {
        let (now_ns, slice_ns) = (item.u64()?, item.u64()?);
        let (clients_max, group_size) = (item.u32()?, item.u32()?);
        let (window, zones, groups_max) = (item.u32()?, item.u32()?, item.u32()?);
        let (asked_by, evicted) = (item.index()?, item.index()?);
        let (worker, workers) = (item.u16()?, item.u16()?);
        let (flags, why) = (item.u8()?, item.u8()?);
        // Of groups there are two for each full one, and some.
        let groups_bound = 2 * u64::from(clients_max) + 64;
        let possible = (1..=CLIENTS_MAX).contains(&clients_max)
            && (1..=ZONES_MAX.max(CLIENTS_MAX)).contains(&zones)
            && u64::from(groups_max) <= groups_bound
            && worker < workers;
        let why = match why {
            NO_VIOLATION => None,
            why => Some(*VIOLATIONS.get(usize::from(why))?),
        };
        self.snapshot.server = possible.then_some(ServerView {
            now_ns,
            clients_max,
            group_size,
            window,
            zones,
            groups_max,
            mapping: match flags & SERVER_STATIC {
                0 => Mapping::Virtual,
                _ => Mapping::Static,
            },
            grouping: match flags & SERVER_BY_ARRIVAL {
                0 => Grouping::Priority,
                _ => Grouping::Arrival,
            },
            time_slice: Duration::from_nanos(slice_ns),
            draining: flags & SERVER_DRAINING != 0,
            worker,
            workers,
            asked_by,
            last_eviction: evicted.map(|seat| Eviction { seat, why }),
        })?;
        Some(())
    }
}

fn pool(item: &mut Fields<'_>) -> Option<PoolView> {
    let (epoch, group) = (item.u64()?, item.index()?);
    let (active, fetching) = (item.u32()?, item.u32()?);
    let (free, flags) = (item.u32()?, item.u32()?);
    Some(PoolView {
        processing: flags & POOL_PROCESSING != 0,
        group,
        epoch: (flags & POOL_TAKEN != 0).then_some(epoch),
        active: active as usize,
        fetching,
        free: free as usize,
    })
}

fn group(item: &mut Fields<'_>) -> Option<GroupView> {
    let members = item.u32()?;
    let class = *CLASSES.get(usize::from(item.u8()?))?;
    Some(GroupView {
        class,
        members,
        has_demand: item.u8()? != 0,
    })
}

fn quarantine(item: &mut Fields<'_>) -> Option<QuarantineView> {
    let (epoch, age_ns) = (item.u64()?, item.u64()?);
    Some(QuarantineView {
        zone: item.u32()?,
        seat: item.u32()?,
        epoch,
        age_ns,
        tries: item.u8()?,
        event_owed: item.u8()? != 0,
    })
}

fn connection(item: &mut Fields<'_>) -> Option<ConnView> {
    let (calls, waited_ns, worst_wait_ns) = (item.u64()?, item.u64()?, item.u64()?);
    let (_seat, group, zone) = (item.u32()?, item.index()?, item.index()?);
    let answers_owed = item.u16()?;
    let state = *STATES.get(usize::from(item.u8()?))?;
    let class = *CLASSES.get(usize::from(item.u8()?))?;
    let score = item.u8()?;
    Some(ConnView {
        state,
        zone,
        group,
        class,
        score: (score != NO_SCORE).then_some(score),
        calls,
        answers_owed,
        waited_ns: (waited_ns != NO_WAIT).then_some(waited_ns),
        worst_wait_ns,
    })
}

/// What is left of an item.
#[derive(Clone)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn skip(&mut self, bytes: usize) -> Option<&mut Self> {
        self.0 = self.0.get(bytes..)?;
        Some(self)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// A number of something, or that of nothing.
    fn index(&mut self) -> Option<Option<u32>> {
        self.u32().map(|index| (index != NOBODY).then_some(index))
    }
}
