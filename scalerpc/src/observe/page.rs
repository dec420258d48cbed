//! Pages as a server writes them, and the items that both ends know.

use scalerpc_core::server::{Class, ConnState, ServerEngine};
use scalerpc_core::wire::{Status, Violation};
use scalerpc_core::{Mapping, Store};

use super::{Histograms, VERSION};
use crate::Grouping;
use crate::server::Eviction;

/// Bytes of a request, and of the head of a page.
pub(super) const HEAD_BYTES: usize = 8;
/// A cursor behind the last item.
pub(super) const END: u32 = u32::MAX;
/// For seats, groups and zones: none.
pub(super) const NOBODY: u32 = u32::MAX;
/// Bytes of the longest item: with its head, a page with one of it fits a response of 64 bytes.
const ITEM_MAX_BYTES: usize = 56;
/// Places that are looked at for one page, so that it takes no longer where most of them are empty.
const LOOKS: u32 = 256;

/// What a snapshot is made of, in the order in which it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Section {
    Server,
    Counters,
    Pools,
    Groups,
    Quarantine,
    Connections,
    /// Sums and bounds of the distributions.
    Sums,
    /// Their buckets: the cursor is the number of the distribution, and in its low byte the bucket.
    Buckets,
}

impl Section {
    pub(super) const ALL: [Self; 8] = [
        Self::Server,
        Self::Counters,
        Self::Pools,
        Self::Groups,
        Self::Quarantine,
        Self::Connections,
        Self::Sums,
        Self::Buckets,
    ];

    /// Bytes of an item.
    pub(super) const fn item_bytes(self) -> usize {
        match self {
            Self::Server => 52,
            Self::Counters => 8,
            Self::Pools => 28,
            Self::Groups => 12,
            Self::Quarantine => 28,
            Self::Connections => 44,
            Self::Sums => 24,
            Self::Buckets => 12,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Counters => "counters",
            Self::Pools => "pools",
            Self::Groups => "groups",
            Self::Quarantine => "quarantine",
            Self::Connections => "connections",
            Self::Sums => "sums",
            Self::Buckets => "buckets",
        }
    }
}

/// A value of an enumeration is known by its place.
pub(super) const CLASSES: [Class; 3] = [Class::Low, Class::Normal, Class::High];
pub(super) const STATES: [ConnState; 6] = [
    ConnState::Free,
    ConnState::Idle,
    ConnState::Fetching,
    ConnState::Active,
    ConnState::Leaving,
    ConnState::Closing,
];
pub(super) const VIOLATIONS: [Violation; 8] = [
    Violation::Length,
    Violation::Flags,
    Violation::Calls,
    Violation::Window,
    Violation::Staging,
    Violation::Slot,
    Violation::Mapping,
    Violation::Options,
];
/// The place after the last, for a reason that is no violation, or one that the table lacks.
pub(super) const NO_VIOLATION: u8 = u8::MAX;

pub(super) const SERVER_STATIC: u8 = 1 << 0;
pub(super) const SERVER_BY_ARRIVAL: u8 = 1 << 1;
pub(super) const SERVER_DRAINING: u8 = 1 << 2;
pub(super) const POOL_PROCESSING: u32 = 1 << 0;
pub(super) const POOL_TAKEN: u32 = 1 << 1;
pub(super) const NO_SCORE: u8 = u8::MAX;
pub(super) const NO_WAIT: u64 = u64::MAX;

fn place_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let place = all.iter().position(|other| other == one);
    place.map_or(u8::MAX, |place| place as u8)
}

/// An item in the making.
struct Item {
    bytes: [u8; ITEM_MAX_BYTES],
    len: usize,
}

impl Item {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        self.bytes[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += N;
        self
    }

    fn u8(&mut self, number: u8) -> &mut Self {
        self.put([number])
    }

    fn u16(&mut self, number: u16) -> &mut Self {
        self.put(number.to_le_bytes())
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.put(number.to_le_bytes())
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.put(number.to_le_bytes())
    }
}

/// What is at a cursor.
enum Found {
    Item,
    /// Nothing, but there may be more behind it.
    Gap,
    End,
}

/// Which of a server's workers it is.
#[derive(Clone, Copy)]
pub(crate) struct WorkerPlace {
    pub(crate) worker: u16,
    pub(crate) workers: u16,
}

impl WorkerPlace {
    /// The only one.
    pub(crate) const ALONE: Self = Self {
        worker: 0,
        workers: 1,
    };
}

/// What a page is written from.
pub(crate) struct Source<'a, S: Store> {
    pub(crate) engine: &'a ServerEngine<S>,
    pub(crate) last_eviction: Option<Eviction>,
    pub(crate) place: WorkerPlace,
    /// Who asks.
    pub(crate) seat: Option<u32>,
}

/// Answers a request for a page, with as many items as there is room for.
///
/// A page of another version than was asked for is empty, but says its own; and so is that of a section that does not
/// exist.
pub(crate) fn write_page<S: Store>(
    source: &Source<'_, S>,
    request: &[u8],
    page: &mut [u8],
) -> Result<usize, Status> {
    let &[v0, v1, section, _, c0, c1, c2, c3] = request else {
        return Err(Status::UNKNOWN_METHOD);
    };
    let version = u16::from_le_bytes([v0, v1]);
    let known = Section::ALL.get(usize::from(section)).copied();
    let known = known.filter(|_| version == VERSION);
    let bytes = known.map_or(0, Section::item_bytes);
    if page.len() < HEAD_BYTES + bytes {
        return Err(Status::RESPONSE_TOO_LARGE);
    }
    let (head, items) = page.split_at_mut(HEAD_BYTES);
    let mut cursor = u32::from_le_bytes([c0, c1, c2, c3]);
    let mut used = 0;
    if let Some(section) = known {
        let mut looks = LOOKS;
        while cursor != END && looks > 0 && items.len() - used >= bytes {
            looks -= 1;
            let mut item = Item {
                bytes: [0; ITEM_MAX_BYTES],
                len: 0,
            };
            cursor = match source.write_item(section, cursor, &mut item) {
                Found::End => END,
                found => {
                    if let Found::Item = found {
                        debug_assert_eq!(item.len, bytes, "{section:?}");
                        items[used..used + bytes].copy_from_slice(&item.bytes[..bytes]);
                        used += bytes;
                    }
                    cursor + 1
                }
            };
        }
    } else {
        cursor = END;
    }
    head[..2].copy_from_slice(&VERSION.to_le_bytes());
    head[2..4].copy_from_slice(&[section, bytes as u8]);
    head[4..].copy_from_slice(&cursor.to_le_bytes());
    Ok(HEAD_BYTES + used)
}

impl<S: Store> Source<'_, S> {
    fn write_item(&self, section: Section, cursor: u32, item: &mut Item) -> Found {
        match section {
            Section::Server if cursor == 0 => self.write_server(item),
            Section::Server => Found::End,
            Section::Counters => match self
                .engine
                .counters()
                .values()
                .get(cursor as usize)
                .copied()
            {
                Some(count) => {
                    item.u64(count);
                    Found::Item
                }
                None => Found::End,
            },
            Section::Pools => self.write_pool(cursor, item),
            Section::Groups => self.write_group(cursor, item),
            Section::Quarantine => self.write_quarantine(cursor, item),
            Section::Connections => self.write_connection(cursor, item),
            Section::Sums | Section::Buckets => self.write_histogram(section, cursor, item),
        }
    }

    fn write_server(&self, item: &mut Item) -> Found {
        let (engine, geometry) = (self.engine, self.engine.geometry());
        let config = engine.config();
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = flag(geometry.mapping() == Mapping::Static, SERVER_STATIC)
            | flag(config.grouping == Grouping::Arrival, SERVER_BY_ARRIVAL)
            | flag(engine.is_draining(), SERVER_DRAINING);
        let (evicted, why) = match self.last_eviction {
            None => (NOBODY, NO_VIOLATION),
            Some(Eviction { seat, why }) => (
                seat,
                why.map_or(NO_VIOLATION, |why| place_of(&VIOLATIONS, &why)),
            ),
        };
        item.u64(engine.now_ns()).u64(config.time_slice_ns);
        item.u32(geometry.clients_max()).u32(geometry.group_size());
        item.u32(geometry.window()).u32(geometry.zones());
        item.u32(engine.groups_max());
        item.u32(self.seat.unwrap_or(NOBODY)).u32(evicted);
        item.u16(self.place.worker).u16(self.place.workers);
        item.u8(flags).u8(why).u16(0);
        Found::Item
    }

    fn write_pool(&self, cursor: u32, item: &mut Item) -> Found {
        let pools = self.engine.geometry().pools();
        let pool = self.engine.pool(cursor).filter(|_| cursor < pools);
        let Some(pool) = pool else {
            return Found::End;
        };
        let mut flags = if pool.processing { POOL_PROCESSING } else { 0 };
        flags |= if pool.epoch.is_some() { POOL_TAKEN } else { 0 };
        item.u64(pool.epoch.unwrap_or(0));
        item.u32(pool.group.unwrap_or(NOBODY))
            .u32(pool.active as u32);
        item.u32(pool.fetching).u32(pool.free as u32).u32(flags);
        Found::Item
    }

    fn write_group(&self, cursor: u32, item: &mut Item) -> Found {
        if cursor >= self.engine.groups_max() {
            return Found::End;
        }
        let Some(group) = self.engine.group(cursor) else {
            return Found::Gap;
        };
        item.u32(cursor).u32(group.members);
        item.u8(place_of(&CLASSES, &group.class));
        item.u8(group.has_demand.into()).u16(0);
        Found::Item
    }

    fn write_quarantine(&self, cursor: u32, item: &mut Item) -> Found {
        let Some(held) = self.engine.quarantined(cursor) else {
            return Found::End;
        };
        item.u64(held.epoch).u64(held.age_ns);
        item.u32(held.zone).u32(held.seat);
        item.u8(held.tries).u8(held.event_owed.into()).u16(0);
        Found::Item
    }

    fn write_connection(&self, cursor: u32, item: &mut Item) -> Found {
        if cursor >= self.engine.geometry().clients_max() {
            return Found::End;
        }
        let Some(conn) = self.engine.conn(cursor) else {
            return Found::Gap;
        };
        item.u64(conn.calls);
        item.u64(conn.waited_ns.unwrap_or(NO_WAIT));
        item.u64(conn.worst_wait_ns);
        item.u32(cursor).u32(conn.group.unwrap_or(NOBODY));
        item.u32(conn.zone.unwrap_or(NOBODY));
        item.u16(conn.answers_owed);
        item.u8(place_of(&STATES, &conn.state));
        item.u8(place_of(&CLASSES, &conn.class));
        item.u8(conn.score.unwrap_or(NO_SCORE)).u8(0).u16(0);
        Found::Item
    }

    fn write_histogram(&self, section: Section, cursor: u32, item: &mut Item) -> Found {
        let all: [_; Histograms::NAMES.len()] = self.engine.histograms().all();
        if section == Section::Sums {
            let Some(histogram) = all.get(cursor as usize) else {
                return Found::End;
            };
            item.u64(histogram.sum());
            item.u64(histogram.min().unwrap_or(0));
            item.u64(histogram.max().unwrap_or(0));
            return Found::Item;
        }
        let Some(histogram) = all.get(cursor as usize / 256) else {
            return Found::End;
        };
        match histogram.bucket(cursor as u8) {
            0 => Found::Gap,
            count => {
                item.u32(cursor).u64(count);
                Found::Item
            }
        }
    }
}
