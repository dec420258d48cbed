//! What a recorder is told when metrics are published.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use scalerpc::observe::Histograms;
use scalerpc::{ClientSet, Request, Server};

/// Everything that was told, by name.
#[derive(Default)]
struct Told {
    numbers: BTreeMap<String, f64>,
    /// Values and how often each came.
    values: BTreeMap<String, Vec<(f64, usize)>>,
    units: BTreeMap<String, Unit>,
    labels: Vec<String>,
}

type All = Arc<Mutex<Told>>;

#[derive(Default)]
struct Notes(All);

struct Note {
    to: All,
    name: String,
}

impl Note {
    fn of(to: &All, key: &Key) -> Arc<Self> {
        let labels = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()));
        to.lock().unwrap().labels.extend(labels);
        Arc::new(Self {
            to: to.clone(),
            name: key.name().to_owned(),
        })
    }

    fn put(&self, number: f64) {
        self.to
            .lock()
            .unwrap()
            .numbers
            .insert(self.name.clone(), number);
    }
}

impl CounterFn for Note {
    fn increment(&self, _: u64) {
        unreachable!("counters are told as they are");
    }

    fn absolute(&self, value: u64) {
        self.put(value as f64);
    }
}

impl GaugeFn for Note {
    fn increment(&self, _: f64) {
        unreachable!("gauges are told as they are");
    }

    fn decrement(&self, _: f64) {
        unreachable!("gauges are told as they are");
    }

    fn set(&self, value: f64) {
        self.put(value);
    }
}

impl HistogramFn for Note {
    fn record(&self, value: f64) {
        self.record_many(value, 1);
    }

    fn record_many(&self, value: f64, count: usize) {
        let mut told = self.to.lock().unwrap();
        told.values
            .entry(self.name.clone())
            .or_default()
            .push((value, count));
    }
}

impl Recorder for Notes {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.0
            .lock()
            .unwrap()
            .units
            .insert(key.as_str().to_owned(), unit.unwrap());
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe_counter(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe_counter(key, unit, description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Note::of(&self.0, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Note::of(&self.0, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Note::of(&self.0, key))
    }
}

const CONNECTIONS: u32 = 6;

/// Rounds in which all windows are kept full.
fn load(server: &mut Server, set: &mut ClientSet, now_ns: &mut u64) {
    for _ in 0..500 {
        *now_ns += 20_000;
        for connection in 0..CONNECTIONS {
            while set.call_async(connection, 1, b"x").is_ok() {}
        }
        server.poll(*now_ns, &mut |_: Request<'_>, _: &mut [u8]| Ok(0));
        while set.poll_completion().is_some() {}
    }
}

#[test]
fn every_number_is_published_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut server = Server::builder()
        .clients_max(8)
        .group_size(2)
        .listen(&path)
        .unwrap();
    let connecting = std::thread::spawn(move || ClientSet::connect(&path, CONNECTIONS).unwrap());
    let mut set = connecting.join().unwrap();
    let mut now_ns = 0;
    load(&mut server, &mut set, &mut now_ns);
    let notes = Notes::default();
    let count = |name: &str| -> u64 {
        let told = notes.0.lock().unwrap();
        let values = told.values.get(name).map_or(&[][..], |values| values);
        values.iter().map(|(_, count)| *count as u64).sum()
    };
    for round in 0..2 {
        metrics::with_local_recorder(&notes, || server.publish_metrics("one"));
        let seen = server.snapshot();
        {
            let told = notes.0.lock().unwrap();
            assert_eq!(
                told.numbers["scalerpc_calls_total"],
                seen.counters.calls as f64
            );
            assert_eq!(
                told.numbers["scalerpc_switches_total"],
                seen.counters.switches as f64
            );
            assert_eq!(told.numbers["scalerpc_connections"], f64::from(CONNECTIONS));
            // All counters and gauges, and nothing else.
            let fields = size_of_val(&seen.counters) / size_of::<u64>();
            assert_eq!(told.numbers.len(), fields);
            assert_eq!(told.units.len(), fields + Histograms::NAMES.len());
            assert_eq!(told.units["scalerpc_wait_ns"], Unit::Nanoseconds);
            assert_eq!(told.units["scalerpc_calls_per_slice"], Unit::Count);
            assert!(told.labels.iter().all(|label| label == "server=one"));
            let longest = seen.histograms.wait_ns.max().unwrap() as f64;
            assert!(
                told.values["scalerpc_wait_ns"]
                    .iter()
                    .all(|(value, _)| *value <= longest)
            );
        }
        // What was told the last time does not come again.
        for (name, histogram) in Histograms::NAMES.into_iter().zip(seen.histograms.all()) {
            let name = format!("scalerpc_{name}");
            assert_eq!(count(&name), histogram.count(), "{name}, round {round}");
        }
        assert!(count("scalerpc_slice_ns") > 10);
        load(&mut server, &mut set, &mut now_ns);
    }
}
