//! What happened so far, for the program's `metrics` recorder.

use metrics::{SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram};
use metrics::{gauge, histogram};
use scalerpc_core::histogram::Histogram;
use scalerpc_core::server::Histograms;
use scalerpc_driver::Fabric;

use super::Server;
use crate::Counters;

/// What the recorder was told last.
#[derive(Debug, Default)]
pub(super) struct Published {
    histograms: Box<Histograms>,
    is_described: bool,
}

impl<F: Fabric> Server<F> {
    /// Gives everything that is counted to the recorder that the program has installed, with the label `server`.
    ///
    /// It is for now and then, such as once a second or before a scrape: nothing is published by itself, and never
    /// with a call. It allocates. All numbers come from the engine, so they are the same as in
    /// [`snapshot`](Self::snapshot).
    ///
    /// | name | kind | unit |
    /// |---|---|---|
    /// | `scalerpc_calls_total`, `scalerpc_direct_writes_total`, `scalerpc_staged_calls_total` | counter | calls |
    /// | `scalerpc_warmup_reads_total` | counter | READs |
    /// | `scalerpc_slices_total`, `scalerpc_switches_total` | counter | slices, switches |
    /// | `scalerpc_switch_events_ridden_total`, `scalerpc_switch_events_extra_total` | counter | events |
    /// | `scalerpc_quarantined_zones_total`, `scalerpc_zones_quiet_total`, `scalerpc_zones_revoked_total`, `scalerpc_zones_fenced_total` | counter | zones |
    /// | `scalerpc_opened_total`, `scalerpc_gone_total`, `scalerpc_violations_total`, `scalerpc_failures_total`, `scalerpc_guests_total`, `scalerpc_moves_total` | counter | connections |
    /// | `scalerpc_merges_total` | counter | groups |
    /// | `scalerpc_stalls_total` | counter | looks in vain |
    /// | `scalerpc_rests_total` | counter | drains |
    /// | `scalerpc_beats_first_total` | counter | turns |
    /// | `scalerpc_calls_late_total`, `scalerpc_calls_busy_total`, `scalerpc_calls_cancelled_total` | counter | calls that did not run |
    /// | `scalerpc_connections` | gauge | connections |
    /// | `scalerpc_groups` | gauge | groups |
    /// | `scalerpc_quarantined_now` | gauge | zones |
    /// | `scalerpc_slice_ns`, `scalerpc_drain_ns`, `scalerpc_wait_ns`, `scalerpc_fetch_ns`, `scalerpc_quarantine_ns` | histogram | nanoseconds |
    /// | `scalerpc_calls_per_slice` | histogram | calls |
    ///
    /// [`Counters`] and [`Histograms`] say what each is. Values of histograms are at most 1/8 too
    /// high, and come as many at once as there were since the last time.
    pub fn publish_metrics(&mut self, server: impl Into<SharedString>) {
        let server = server.into();
        if !self.published.is_described {
            self.published.is_described = true;
            describe();
        }
        let counted = Counters::NAMES
            .into_iter()
            .zip(self.engine.counters().values());
        for (at, (name, count)) in counted.enumerate() {
            if at < Counters::GAUGES {
                let name = format!("scalerpc_{name}");
                gauge!(name, "server" => server.clone()).set(count as f64);
            } else {
                let name = format!("scalerpc_{name}_total");
                counter!(name, "server" => server.clone()).absolute(count);
            }
        }
        let now = self.engine.histograms();
        let pairs = now.all().into_iter().zip(self.published.histograms.all());
        for (name, (now, before)) in Histograms::NAMES.into_iter().zip(pairs) {
            let to = histogram!(format!("scalerpc_{name}"), "server" => server.clone());
            for (bucket, count) in now.since(before).buckets() {
                let value = Histogram::bucket_max(bucket).min(now.max().unwrap_or(0));
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                to.record_many(value as f64, count);
            }
        }
        *self.published.histograms = *now;
    }
}

fn describe() {
    for (at, name) in Counters::NAMES.into_iter().enumerate() {
        let words = name.replace('_', " ");
        if at < Counters::GAUGES {
            describe_gauge!(format!("scalerpc_{name}"), Unit::Count, words);
        } else {
            let name = format!("scalerpc_{name}_total");
            describe_counter!(name, Unit::Count, words);
        }
    }
    for name in Histograms::NAMES {
        let (words, unit) = match name.strip_suffix("_ns") {
            Some(name) => (name.replace('_', " "), Unit::Nanoseconds),
            None => (name.replace('_', " "), Unit::Count),
        };
        describe_histogram!(format!("scalerpc_{name}"), unit, words);
    }
}
