//! The load generator: right answers are right, wrong ones are found.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use common::{REQUEST_MAX, RESPONSE_MAX, generator, mixed_tree};
use proptest::prelude::*;
use scalerpc_cli::meta::load::{
    Expect, Generator, GeneratorError, MARKER_LEN_MAX, Mix, OWN_NODES, Planned,
};
use scalerpc_cli::meta::service::MetaService;
use scalerpc_cli::meta::tree::Tree;
use scalerpc_cli::meta::wire::Method;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// A client with calls on their way, as a connection has them.
struct Client {
    generator: Generator,
    sent: VecDeque<(Planned, Vec<u8>)>,
    ran: VecDeque<(Expect, Vec<u8>)>,
}

impl Client {
    fn new(tree: &Arc<Tree>, client: u32, seed: u64) -> Self {
        let generator = generator(tree, client, seed);
        Self {
            generator,
            sent: VecDeque::new(),
            ran: VecDeque::new(),
        }
    }

    fn send(&mut self) {
        let mut request = [0; REQUEST_MAX];
        let planned = self.generator.next(&mut request);
        self.sent
            .push_back((planned, request[..planned.len].to_vec()));
    }

    /// The server runs the oldest call.
    fn run(&mut self, service: &mut MetaService) {
        if let Some((planned, request)) = self.sent.pop_front() {
            let mut response = [0; RESPONSE_MAX];
            let len = service
                .handle(planned.method, &request, &mut response)
                .unwrap();
            self.ran
                .push_back((planned.expect, response[..len].to_vec()));
        }
    }

    /// An answer arrives; not always the oldest.
    fn receive(&mut self, pick: usize) {
        if self.ran.is_empty() {
            return;
        }
        let (expect, response) = self.ran.remove(pick % self.ran.len()).unwrap();
        if let Err(wrong) = self.generator.check(&expect, &response) {
            panic!("{wrong}: {} {response:?}", self.generator.describe(&expect));
        }
    }

    /// The connection is lost: none of the outstanding calls will be answered.
    fn lose(&mut self) {
        for (planned, _) in self.sent.drain(..) {
            self.generator.forget(&planned.expect);
        }
        for (expect, _) in self.ran.drain(..) {
            self.generator.forget(&expect);
        }
    }

    fn settle(&mut self, service: &mut MetaService) {
        while !self.sent.is_empty() {
            self.run(service);
        }
        while !self.ran.is_empty() {
            self.receive(0);
        }
    }

    fn clean_up(&mut self, service: &mut MetaService) {
        loop {
            self.settle(service);
            let mut request = [0; REQUEST_MAX];
            let Some(planned) = self.generator.next_cleanup(&mut request) else {
                break;
            };
            self.sent
                .push_back((planned, request[..planned.len].to_vec()));
        }
        assert_eq!(self.generator.node_count(), 0);
        assert_eq!(self.generator.counters().outstanding(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Clients in any interleaving, with windows of calls, answers out of order and lost
    /// connections: no right answer is called wrong, and in the end nothing is left behind.
    #[test]
    fn right_answers_are_right(
        seed: u64,
        losses in 0..20_u8,
        steps in prop::collection::vec((0..5_usize, any::<u8>()), 200..2000),
    ) {
        let tree = mixed_tree();
        let mut clients: Vec<_> = (0..5).map(|n| Client::new(&tree, n * n, seed)).collect();
        let mut service = MetaService::new(Arc::clone(&tree), 5 * OWN_NODES as u32).unwrap();
        for (client, what) in steps {
            let client = &mut clients[client];
            match what {
                0..100 => client.send(),
                100..170 => client.run(&mut service),
                170..235 => client.receive(usize::from(what)),
                _ if what - 235 < losses => client.lose(),
                _ => client.settle(&mut service),
            }
        }
        for client in &mut clients {
            client.clean_up(&mut service);
            prop_assert_eq!(client.generator.counters().wrong, 0);
        }
        prop_assert_eq!(service.node_count(), 0);
    }
}

#[test]
fn a_long_run_does_everything() {
    let tree = mixed_tree();
    let mut service = MetaService::new(Arc::clone(&tree), 3 * OWN_NODES as u32).unwrap();
    let mut clients: Vec<_> = (0..3).map(|n| Client::new(&tree, n, 1)).collect();
    for _ in 0..20_000 {
        for client in &mut clients {
            client.send();
            client.settle(&mut service);
        }
    }
    let counters = service.counters();
    assert_eq!(counters.bad_requests, 0);
    for method in Method::ALL {
        let (asked, ok) = (
            counters.requests[method as usize - 1],
            counters.ok[method as usize - 1],
        );
        assert!(ok > asked / 2 && ok < asked, "{method}: {ok} of {asked}");
    }
    for client in &clients {
        let counters = client.generator.counters();
        assert_eq!(counters.right, 20_000);
        assert_eq!(counters.planned.iter().sum::<u64>(), 20_000);
        assert_eq!((counters.skipped_long, counters.no_space), (0, 0));
        for (planned, weight) in counters.planned.iter().zip([50, 20, 15, 15]) {
            let expected = 20_000 * weight / 100;
            assert!(
                planned.abs_diff(expected) < 1000,
                "{planned} planned of {expected}"
            );
        }
    }
}

#[test]
fn a_server_without_space_is_not_wrong() {
    let tree = mixed_tree();
    let mut service = MetaService::new(Arc::clone(&tree), 5).unwrap();
    let mut clients: Vec<_> = (0..3).map(|n| Client::new(&tree, n, 1)).collect();
    for _ in 0..1000 {
        for client in &mut clients {
            // Several at once: nodes are asked for that, as it turns out, were never created.
            (0..4).for_each(|_| client.send());
            client.settle(&mut service);
        }
    }
    for client in &mut clients {
        assert!(client.generator.counters().no_space > 50);
        client.clean_up(&mut service);
    }
}

#[test]
fn a_real_tree_is_served_and_checked() {
    let (tree, _) = Tree::load(Path::new("/usr"), Some(30_000)).unwrap();
    let tree = Arc::new(tree);
    let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
    let mut client = Client::new(&tree, 9, 3);
    for _ in 0..20_000 {
        client.send();
        client.settle(&mut service);
    }
    client.clean_up(&mut service);
}

#[test]
fn equal_seeds_give_equal_requests_and_others_do_not() {
    let tree = mixed_tree();
    let requests = |client, seed| {
        let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
        let mut client = Client::new(&tree, client, seed);
        let mut requests = Vec::new();
        for _ in 0..200 {
            client.send();
            requests.push(client.sent[0].1.clone());
            client.settle(&mut service);
        }
        requests
    };
    assert_eq!(requests(1, 2), requests(1, 2));
    assert_ne!(requests(1, 2), requests(1, 3));
    assert_ne!(requests(1, 2), requests(2, 2));
}

#[test]
fn limits_that_are_too_small_are_refused() {
    let tree = mixed_tree();
    let new = |mix: &str, request_max, response_max| {
        let mix = mix.parse().unwrap();
        Generator::new(Arc::clone(&tree), 0, 0, mix, request_max, response_max).map(|_| ())
    };
    assert_eq!(new("stat=1", 10, 46), Ok(()));
    assert_eq!(
        new("stat=1", 9, 46),
        Err(GeneratorError::RequestMax { max: 9, need: 10 })
    );
    assert_eq!(
        new("stat=1", 10, 45),
        Err(GeneratorError::ResponseMax { max: 45, need: 46 })
    );
    let need = 10 + MARKER_LEN_MAX;
    let error = GeneratorError::RequestMax {
        max: need - 1,
        need,
    };
    assert_eq!(new("mknod=1", need - 1, 46), Err(error));
    let error = GeneratorError::ResponseMax {
        max: 267,
        need: 11 + 2 + 255,
    };
    assert_eq!(new("readdir=1", 10, 267), Err(error));
    let none = Mix {
        stat: 0,
        readdir: 0,
        mknod: 0,
        rmnod: 0,
    };
    let error = Generator::new(Arc::clone(&tree), 0, 0, none, 600, 600).unwrap_err();
    assert_eq!(error, GeneratorError::EmptyMix);
}

#[test]
fn paths_that_are_too_long_are_passed_over_and_counted() {
    let tree = mixed_tree();
    let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
    let mut generator = Generator::new(tree, 0, 0, Mix::default(), 60, RESPONSE_MAX).unwrap();
    for _ in 0..5000 {
        let (mut request, mut response) = ([0; 60], [0; RESPONSE_MAX]);
        let planned = generator.next(&mut request);
        let len = service
            .handle(planned.method, &request[..planned.len], &mut response)
            .unwrap();
        generator.check(&planned.expect, &response[..len]).unwrap();
    }
    assert!(generator.counters().skipped_long > 100);
    // A buffer that is shorter than promised is no reason to fail, either.
    for room in 0..60 {
        let (mut request, mut response) = (vec![0; room], [0; RESPONSE_MAX]);
        let planned = generator.next(&mut request);
        let len = service
            .handle(planned.method, &request[..planned.len], &mut response)
            .unwrap();
        generator.check(&planned.expect, &response[..len]).unwrap();
    }
}

/// A call whose connection was lost may even run later, when the node has long been given up.
#[test]
fn a_node_that_turns_up_late_is_not_wrong() {
    let tree = mixed_tree();
    let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
    let mut client = Client::new(&tree, 0, 8);
    let (lost, name) = loop {
        client.send();
        let (planned, request) = client.sent[0].clone();
        let call = client.generator.describe(&planned.expect);
        if call.starts_with("mknod '/' own node") {
            let name = request[2..].to_vec();
            break (client.sent.pop_front().unwrap(), name);
        }
        client.settle(&mut service);
    };
    client.generator.forget(&lost.0.expect);
    client.clean_up(&mut service);
    assert_eq!(service.node_count(), 0);
    service
        .handle(lost.0.method, &lost.1, &mut [0; 64])
        .unwrap();
    let mut seen = 0;
    for _ in 0..2000 {
        client.send();
        client.run(&mut service);
        seen += u32::from(
            client.ran[0]
                .1
                .windows(name.len())
                .any(|window| window == name),
        );
        client.settle(&mut service);
    }
    assert!(seen > 0, "the node was never listed");
}

#[test]
fn small_enough_to_keep_one_for_each_call() {
    assert!(size_of::<Expect>() <= 32);
    assert!(size_of::<Planned>() <= 48);
}

/// Run with `--release -- --ignored --nocapture`: the median of many batches, so that a machine that
/// is busy otherwise disturbs little. To plan and check a `Stat` should take less than 500 ns.
#[test]
#[ignore = "a measurement"]
fn how_long_a_call_takes() {
    // What fits the caches shows the work, all of it the price of memory.
    for limit in [Some(2000), None] {
        measure(limit);
    }
}

fn measure(limit: Option<usize>) {
    const BATCH: usize = 256;
    let (tree, report) = Tree::load(Path::new("/usr"), limit).unwrap();
    println!("{} entries, {} bytes", report.entries, tree.memory_bytes());
    let tree = Arc::new(tree);
    for mix in [
        "stat=1",
        "readdir=1",
        "mknod=1,rmnod=1",
        "stat=50,readdir=20,mknod=15,rmnod=15",
    ] {
        let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
        let (max, parsed) = (512, mix.parse().unwrap());
        let mut generator = Generator::new(Arc::clone(&tree), 0, 1, parsed, max, max).unwrap();
        // Not a power of two apart, or all buffers would share the same few cache sets.
        let stride = max + 64;
        let (mut requests, mut responses) = (vec![0; BATCH * stride], vec![0; BATCH * stride]);
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..4000 {
            let start = std::time::Instant::now();
            let mut planned = [None; BATCH];
            for (planned, request) in planned.iter_mut().zip(requests.chunks_mut(stride)) {
                *planned = Some(generator.next(request));
            }
            let sent = std::time::Instant::now();
            let mut lens = [0; BATCH];
            let buffers = requests.chunks(stride).zip(responses.chunks_mut(stride));
            for ((planned, len), (request, response)) in
                planned.iter().flatten().zip(&mut lens).zip(buffers)
            {
                *len = service
                    .handle(planned.method, &request[..planned.len], response)
                    .unwrap();
            }
            let served = std::time::Instant::now();
            for ((planned, len), response) in planned
                .iter()
                .flatten()
                .zip(lens)
                .zip(responses.chunks(stride))
            {
                generator.check(&planned.expect, &response[..len]).unwrap();
            }
            let spans = [sent - start, served - sent, served.elapsed()];
            for (times, span) in times.iter_mut().zip(spans) {
                times.push(span.as_nanos() as usize / BATCH);
            }
        }
        let [plan, serve, check] = times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2]
        });
        println!("{mix}: {plan} ns to plan, {serve} ns to serve, {check} ns to check");
    }
}
