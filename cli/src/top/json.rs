//! A view as a JSON object.

use serde_json::{Map, Value, json};

use super::view::{ConnRow, GroupRow, View, class_name, state_name};
use scalerpc::observe::Histogram;
use scalerpc::{Counters, Mapping};

/// Times are in nanoseconds, rates per second; what is not known is null.
pub(crate) fn object(view: &View<'_>, place: &str) -> Value {
    let server = &view.now.server;
    let distributions: Map<String, Value> = view
        .distributions()
        .zip(view.now.histograms.all())
        .map(|((name, recent), all)| {
            let both = json!({"recent": distribution(recent), "all": distribution(all)});
            (name.to_owned(), both)
        })
        .collect();
    let eviction = server.last_eviction.map(|eviction| {
        let why = eviction.why.map(|why| why.to_string());
        json!({"seat": eviction.seat, "violation": why})
    });
    json!({
        "place": place,
        "seconds": view.period.map(|period| period.as_secs_f64()),
        "server": {
            "now_ns": server.now_ns, "clients_max": server.clients_max, "group_size": server.group_size,
            "window": server.window, "zones_per_pool": server.zones,
            "mapping": if server.mapping == Mapping::Static { "static" } else { "virtual" },
            "time_slice_ns": server.time_slice.as_nanos() as u64, "draining": server.draining,
            "worker": server.worker, "workers": server.workers, "this_seat": server.asked_by,
            "last_eviction": eviction,
        },
        "rates": {
            "calls": view.calls, "direct_writes": view.direct, "staged_calls": view.staged,
            "switches": view.switches, "slices": view.slices, "stalls": view.stalls,
        },
        "counters": counters(&view.now.counters),
        "pools": pools(view),
        "zones": {
            "all": view.zones.all, "free": view.zones.free, "mapped": view.zones.mapped(),
            "quarantined": view.zones.quarantined,
        },
        "quarantine": quarantine(view),
        "groups": view.groups.iter().map(group).collect::<Vec<_>>(),
        "connections": view.connections.iter().map(connection).collect::<Vec<_>>(),
        "histograms": distributions,
    })
}

fn distribution(histogram: &Histogram) -> Value {
    json!({
        "count": histogram.count(), "sum": histogram.sum(),
        "min": histogram.min(), "p50": histogram.quantile(500), "p99": histogram.quantile(990),
        "max": histogram.max(),
    })
}

fn counters(counters: &Counters) -> Value {
    let counted = Counters::NAMES.into_iter().zip(counters.values());
    counted
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect::<Map<_, _>>()
        .into()
}

fn pools(view: &View<'_>) -> Vec<Value> {
    let pools = view.now.pools.iter().map(|pool| {
        json!({
            "processing": pool.processing, "group": pool.group, "epoch": pool.epoch, "active": pool.active,
            "fetching": pool.fetching, "free": pool.free,
        })
    });
    pools.collect()
}

fn quarantine(view: &View<'_>) -> Vec<Value> {
    let held = view.now.quarantine.iter().map(|held| {
        json!({
            "zone": held.zone, "seat": held.seat, "epoch": held.epoch, "age_ns": held.age_ns,
            "revocations": held.tries, "event_owed": held.event_owed,
        })
    });
    held.collect()
}

fn group(row: &GroupRow) -> Value {
    json!({
        "group": row.group, "class": class_name(row.class), "members": row.members, "waiting": row.waiting,
        "calls_per_s": row.calls,
    })
}

fn connection(row: &ConnRow) -> Value {
    let conn = &row.conn;
    json!({
        "seat": row.seat, "group": conn.group, "class": class_name(conn.class), "state": state_name(conn),
        "score": conn.score, "calls": conn.calls, "calls_per_s": row.calls, "answers_owed": conn.answers_owed,
        "waited_ns": conn.waited_ns, "worst_wait_ns": conn.worst_wait_ns, "this": row.is_mine,
    })
}
