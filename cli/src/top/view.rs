//! What there is to show: a snapshot, beside the one before it.

use std::time::Duration;

use clap::ValueEnum;
use scalerpc::Class;
use scalerpc::observe::{ConnState, ConnView, Histogram, Histograms, Snapshot};

/// A snapshot, and when it was taken.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Since the beginning of the command.
    pub(crate) at: Duration,
    pub(crate) snapshot: Snapshot,
}

/// By what connections are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Calls per second, most first
    #[default]
    Calls,
    /// The longest wait so far, longest first
    Worst,
    /// The present wait, longest first
    Waits,
    /// The seat
    Seat,
}

impl Sort {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls/s",
            Self::Worst => "worst wait",
            Self::Waits => "waits",
            Self::Seat => "seat",
        }
    }
}

/// Events per second; `None` before there are two snapshots of the same server.
pub(crate) type Rate = Option<f64>;

/// A connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnRow {
    pub(crate) seat: u32,
    pub(crate) conn: ConnView,
    pub(crate) calls: Rate,
    /// It is the one that asks.
    pub(crate) is_mine: bool,
}

/// A group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRow {
    pub(crate) group: u32,
    pub(crate) class: Class,
    pub(crate) members: u32,
    pub(crate) waiting: u32,
    pub(crate) calls: Rate,
    /// A pool is this group's: `Some(true)` if it is processed, `Some(false)` if it is in warmup.
    pub(crate) served: Option<bool>,
}

/// How many zones are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zones {
    pub(crate) all: u32,
    pub(crate) free: u32,
    pub(crate) quarantined: u32,
}

impl Zones {
    pub(crate) fn mapped(&self) -> u32 {
        // The parts of a snapshot are taken one after the other.
        self.all.saturating_sub(self.free + self.quarantined)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) now: &'a Snapshot,
    /// Time that the rates and the distributions are about.
    pub(crate) period: Option<Duration>,
    pub(crate) calls: Rate,
    pub(crate) direct: Rate,
    pub(crate) staged: Rate,
    pub(crate) switches: Rate,
    pub(crate) slices: Rate,
    pub(crate) stalls: Rate,
    pub(crate) zones: Zones,
    pub(crate) groups: Vec<GroupRow>,
    /// Sorted.
    pub(crate) connections: Vec<ConnRow>,
    /// Since the snapshot before this one; of the first, since the server began.
    pub(crate) recent: Box<Histograms>,
}

impl<'a> View<'a> {
    pub(crate) fn new(now: &'a Sample, before: Option<&Sample>, sort: Sort) -> Self {
        // It may be another server, at the same place, or another worker: then nothing is known of the time before.
        let before = before.filter(|before| is_later(&now.snapshot, &before.snapshot));
        let period = before.map(|before| now.at.saturating_sub(before.at));
        let period = period.filter(|period| !period.is_zero());
        let rate = |now: u64, before: Option<u64>| -> Rate {
            Some(now.saturating_sub(before?) as f64 / period?.as_secs_f64())
        };
        let (snapshot, old) = (&now.snapshot, before.map(|before| &before.snapshot));
        let counters = snapshot.counters;
        let of = |count: fn(&scalerpc::Counters) -> u64| {
            rate(count(&counters), old.map(|old| count(&old.counters)))
        };
        let mut connections = connections(snapshot, old, &rate);
        let groups = groups(snapshot, &connections);
        sort_by(&mut connections, sort);
        let mut recent = snapshot.histograms.clone();
        if let Some(old) = old {
            let all = recent.all_mut().into_iter().zip(old.histograms.all());
            all.for_each(|(now, old)| *now = now.since(old));
        }
        Self {
            period,
            calls: of(|counters| counters.calls),
            direct: of(|counters| counters.direct_writes),
            staged: of(|counters| counters.staged_calls),
            switches: of(|counters| counters.switches),
            slices: of(|counters| counters.slices),
            stalls: of(|counters| counters.stalls),
            zones: zones(snapshot),
            groups,
            connections,
            recent,
            now: snapshot,
        }
    }

    /// Distributions with their names, without the unit.
    pub(crate) fn distributions(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        Histograms::NAMES.into_iter().zip(self.recent.all())
    }

    /// The group that is told apart by its calls: how many there are of each class.
    pub(crate) fn groups_of(&self, class: Class) -> usize {
        let of_class = self.groups.iter().filter(|group| group.class == class);
        of_class.count()
    }
}

/// Of the same worker, and nothing that only grows has shrunk.
fn is_later(now: &Snapshot, before: &Snapshot) -> bool {
    let pairs = [
        (now.counters.calls, before.counters.calls),
        (now.counters.opened, before.counters.opened),
        (now.counters.slices, before.counters.slices),
        (now.server.now_ns, before.server.now_ns),
    ];
    now.server.worker == before.server.worker && pairs.iter().all(|(now, before)| now >= before)
}

fn connections(
    now: &Snapshot,
    old: Option<&Snapshot>,
    rate: &dyn Fn(u64, Option<u64>) -> Rate,
) -> Vec<ConnRow> {
    let row = |&(seat, conn): &(u32, ConnView)| {
        let before = old.map(|old| {
            let found = old
                .connections
                .binary_search_by_key(&seat, |(seat, _)| *seat);
            let calls = found.map_or(0, |at| old.connections[at].1.calls);
            // Fewer than before: the seat has another connection now.
            if calls > conn.calls { 0 } else { calls }
        });
        ConnRow {
            seat,
            conn,
            calls: rate(conn.calls, before),
            is_mine: now.server.asked_by == Some(seat),
        }
    };
    now.connections.iter().map(row).collect()
}

fn groups(now: &Snapshot, connections: &[ConnRow]) -> Vec<GroupRow> {
    let row = |&(group, view): &(u32, scalerpc::observe::GroupView)| GroupRow {
        group,
        class: view.class,
        members: view.members,
        waiting: 0,
        calls: None,
        served: now
            .pools
            .iter()
            .filter(|pool| pool.group == Some(group))
            .map(|pool| pool.processing)
            .max(),
    };
    let mut rows: Vec<GroupRow> = now.groups.iter().map(row).collect();
    for it in connections {
        let group = it.conn.group;
        let at = group.and_then(|group| rows.binary_search_by_key(&group, |row| row.group).ok());
        if let Some(at) = at {
            rows[at].waiting += u32::from(it.conn.waited_ns.is_some());
            if let Some(calls) = it.calls {
                *rows[at].calls.get_or_insert(0.0) += calls;
            }
        }
    }
    // Those that are served, then those that wait, then the rest.
    rows.sort_by_key(|row| {
        (
            row.served.map(|now| !now).unwrap_or(true),
            row.served.is_none(),
            row.waiting == 0,
        )
    });
    rows
}

fn zones(now: &Snapshot) -> Zones {
    let pools = now.pools.len() as u32;
    let free: usize = now.pools.iter().map(|pool| pool.free).sum();
    Zones {
        all: now.server.zones.saturating_mul(pools),
        free: free as u32,
        quarantined: now.quarantine.len() as u32,
    }
}

fn sort_by(rows: &mut [ConnRow], sort: Sort) {
    let key = |row: &ConnRow| match sort {
        // In thousandths, as whole numbers can be sorted.
        Sort::Calls => row
            .calls
            .map_or(row.conn.calls, |calls| (calls * 1e3) as u64),
        Sort::Worst => row.conn.worst_wait_ns,
        Sort::Waits => row
            .conn
            .waited_ns
            .map_or(0, |waited_ns| waited_ns.saturating_add(1)),
        Sort::Seat => 0,
    };
    // Stable: what is equal stays in the order of the seats.
    rows.sort_by_key(|row| std::cmp::Reverse(key(row)));
}

/// A class in a word.
pub(crate) fn class_name(class: Class) -> &'static str {
    match class {
        Class::Low => "low",
        Class::Normal => "normal",
        Class::High => "high",
    }
}

/// A state in a word.
pub(crate) fn state_name(conn: &ConnView) -> &'static str {
    match conn.state {
        ConnState::Free => "free",
        ConnState::Idle if conn.waited_ns.is_some() => "waiting",
        ConnState::Idle => "idle",
        ConnState::Fetching => "fetching",
        ConnState::Active => "active",
        ConnState::Leaving => "leaving",
        ConnState::Closing => "closing",
    }
}

/// A distribution's name without its unit, in words, and whether it is of times.
pub(crate) fn title(name: &'static str) -> (String, bool) {
    match name.strip_suffix("_ns") {
        Some(name) => (name.replace('_', " "), true),
        None => (name.replace('_', " "), false),
    }
}
