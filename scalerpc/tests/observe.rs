//! Snapshots of a server: what a client sees is what there is, and no page can hurt who reads it.
#![allow(clippy::unwrap_used)]

use std::sync::OnceLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use scalerpc::observe::{
    ConnState, METHODS_RESERVED, SNAPSHOT, Snapshot, SnapshotError, SnapshotReader, VERSION,
};
use scalerpc::{CallError, Client, ClientSet, Request, Server, ServerBuilder, Status};

/// A server with a load behind it, and two sets of connections: the first has calls under way, the second is idle.
struct Scene {
    server: Server,
    sets: [ClientSet; 2],
    now_ns: u64,
    /// The highest method that the handler saw.
    highest: u16,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new(builder: ServerBuilder) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let server = builder
            .clients_max(300)
            .group_size(3)
            .window(4)
            .time_slice(Duration::from_millis(1))
            .listen(&path)
            .unwrap();
        let connect = move |connections| {
            let path = path.clone();
            std::thread::spawn(move || ClientSet::connect(&path, connections).unwrap())
        };
        let threads = [connect(7), connect(3)];
        let mut scene = Self {
            server,
            sets: threads.map(|thread| thread.join().unwrap()),
            now_ns: 0,
            highest: 0,
            _dir: dir,
        };
        while scene.server.counters().opened < 10 {
            scene.poll();
        }
        scene
    }

    fn poll(&mut self) {
        self.now_ns += 20_000;
        let highest = &mut self.highest;
        let mut handler = |request: Request<'_>, response: &mut [u8]| {
            *highest = request.method.max(*highest);
            response[0] = 1;
            Ok(1)
        };
        self.server.poll(self.now_ns, &mut handler);
    }

    fn load(&mut self, turns: u32) {
        for _ in 0..turns {
            for connection in 0..7 {
                while self.sets[0].call_async(connection, 5, b"x").is_ok() {}
            }
            self.poll();
            while self.sets[0].poll_completion().is_some() {}
        }
    }

    /// A call by an idle connection.
    fn call(&mut self, method: u16, request: &[u8]) -> Result<Vec<u8>, CallError> {
        let call = self.sets[1].call_async(0, method, request).unwrap();
        loop {
            // Posts; then the answer.
            if let Some(done) = self.sets[1].poll_completion() {
                assert_eq!(done.call, call);
                return done.result.map(<[u8]>::to_vec);
            }
            self.poll();
        }
    }

    /// All requests for pages, and their answers.
    fn pages(&mut self) -> (Vec<Vec<u8>>, Snapshot) {
        let mut reader = SnapshotReader::new();
        let mut pages = Vec::new();
        while let Some(request) = reader.request() {
            let page = self.call(SNAPSHOT, &request).unwrap();
            reader.take(&page).unwrap();
            pages.push(page);
        }
        (pages, reader.finish())
    }
}

#[test]
fn a_client_sees_what_the_server_is() {
    for response_max_bytes in [64, 100, 8192] {
        let mut scene = Scene::new(Server::builder().response_max_bytes(response_max_bytes));
        scene.load(400);
        let (pages, seen) = scene.pages();
        assert!(pages.iter().all(|page| page.len() <= 4096));
        let now = scene.server.snapshot();
        // Seven connections under load, two that never called, and the one that asks.
        assert_eq!(seen.connections.len(), 10);
        assert_eq!(seen.counters.connections, 10);
        assert_eq!(now.counters.connections, 10);
        let asked_by = seen.server.asked_by.unwrap();
        let calls = |snapshot: &Snapshot| -> Vec<(u32, u64)> {
            let all = snapshot.connections.iter();
            let others = all.filter(|(seat, _)| *seat != asked_by);
            others.map(|(seat, conn)| (*seat, conn.calls)).collect()
        };
        // The snapshot took some rounds, in which the others' calls were served.
        let (before, after) = (calls(&seen), calls(&now));
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(b, a)| a.0 == b.0 && a.1 >= b.1)
        );
        assert!(before.iter().filter(|(_, calls)| *calls == 0).count() == 2);
        let idle = seen.connections.iter().filter(|(_, conn)| conn.calls == 0);
        assert!(idle.clone().all(|(_, conn)| conn.state == ConnState::Idle));
        assert_eq!(seen.pools.len(), 2);
        assert_eq!(seen.pools.iter().filter(|pool| pool.processing).count(), 1);
        let members: u32 = seen.groups.iter().map(|(_, group)| group.members).sum();
        assert_eq!(members, 10);
        assert!(seen.histograms.wait_ns.count() > 0);
        assert!(seen.histograms.slice_ns.count() <= now.histograms.slice_ns.count());
        let worst = seen.connections.iter().map(|(_, conn)| conn.worst_wait_ns);
        assert!(worst.max().unwrap() > 0);
        // What does not change.
        assert_eq!(
            scalerpc::observe::ServerView {
                now_ns: 0,
                draining: false,
                asked_by: None,
                ..seen.server
            },
            scalerpc::observe::ServerView {
                now_ns: 0,
                draining: false,
                asked_by: None,
                ..now.server
            }
        );
        assert_eq!(
            (
                now.server.clients_max,
                now.server.group_size,
                now.server.window
            ),
            (300, 3, 4)
        );
        assert_eq!(now.server.time_slice, scene.server.time_slice());
        assert_eq!(now.counters, scene.server.counters());
        assert_eq!(
            scene.highest, 5,
            "the handler saw none of the library's methods"
        );
    }
}

#[test]
fn a_quiet_server_is_seen_exactly() {
    let mut scene = Scene::new(Server::builder());
    scene.load(200);
    let is_busy = |scene: &Scene| {
        let calls = (0..7).any(|connection| scene.sets[0].outstanding(connection) > 0);
        calls || scene.server.counters().quarantined_now > 0
    };
    while is_busy(&scene) {
        scene.poll();
        while scene.sets[0].poll_completion().is_some() {}
    }
    // From here on who asks is served, and nobody else.
    scene.pages();
    while is_busy(&scene) {
        scene.poll();
    }
    let (_, seen) = scene.pages();
    let now = scene.server.snapshot();
    // Buckets come last, and no slice has ended since: the one that asks is alone.
    assert_eq!(seen.histograms, now.histograms);
    assert_eq!(seen.quarantine, now.quarantine);
    assert_eq!(seen.groups, now.groups);
    assert!(seen.counters.calls < now.counters.calls);
}

#[test]
fn with_static_mapping_there_is_one_pool_and_no_group() {
    let builder = Server::builder().mapping(scalerpc::Mapping::Static);
    let mut scene = Scene::new(builder);
    scene.load(20);
    let (_, seen) = scene.pages();
    assert_eq!((seen.pools.len(), seen.groups.len()), (1, 0));
    assert_eq!(seen.connections.len(), 10);
    assert_eq!(seen.server.mapping, scalerpc::Mapping::Static);
    let active = |(_, conn): &(u32, scalerpc::observe::ConnView)| conn.state == ConnState::Active;
    assert!(seen.connections.iter().all(active));
}

#[test]
fn what_cannot_be_answered_is_refused_with_a_reason() {
    let first = SnapshotReader::new().request().unwrap();
    let mut scene = Scene::new(Server::builder());
    let unknown = Err(CallError::Status(Status::UNKNOWN_METHOD));
    assert_eq!(scene.call(METHODS_RESERVED + 1, &first), unknown);
    assert_eq!(scene.call(u16::MAX, b""), unknown);
    assert_eq!(scene.call(SNAPSHOT, b""), unknown, "no request for a page");
    // One below is the user's.
    assert_eq!(scene.call(METHODS_RESERVED - 1, b""), Ok(vec![1]));
    // Of another version.
    let mut other = first;
    other[0] = 9;
    let page = scene.call(SNAPSHOT, &other).unwrap();
    assert_eq!(page[..2], VERSION.to_le_bytes());
    assert_eq!(page.len(), 8);
    // A section that does not exist is empty.
    let mut other = first;
    other[2] = 200;
    let page = scene.call(SNAPSHOT, &other).unwrap();
    assert_eq!(page[3..], [0, 255, 255, 255, 255]);
    // A cursor past the end.
    let mut other = first;
    other[2] = 5;
    other[4..].copy_from_slice(&[254, 255, 255, 255]);
    assert_eq!(scene.call(SNAPSHOT, &other).unwrap().len(), 8);

    let mut closed = Scene::new(Server::builder().observable(false));
    assert_eq!(closed.call(SNAPSHOT, &first), unknown);
    assert_eq!(
        closed.server.snapshot().connections.len(),
        10,
        "itself it may"
    );
    let mut small = Scene::new(Server::builder().response_max_bytes(32));
    let refused = Err(CallError::Status(Status::RESPONSE_TOO_LARGE));
    assert_eq!(small.call(SNAPSHOT, &first), refused);
}

#[test]
fn an_ordinary_client_can_ask() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut server = Server::builder().clients_max(4).listen(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let mut client = Client::connect(&path).unwrap();
        client.set_timeout(Duration::from_secs(60));
        let mut reader = SnapshotReader::new();
        while let Some(request) = reader.request() {
            let page = client.call(SNAPSHOT, &request).unwrap();
            reader.take(page).unwrap();
        }
        reader.finish()
    });
    let mut now_ns = 0;
    while !thread.is_finished() {
        now_ns += 1_000;
        server.poll(now_ns, &mut |_: Request<'_>, _: &mut [u8]| {
            Err(Status::BUSY)
        });
    }
    let seen = thread.join().unwrap();
    assert_eq!(seen.connections.len(), 1);
    assert_eq!(seen.server.asked_by, Some(seen.connections[0].0));
}

/// Pages of a real server.
fn real_pages() -> &'static Vec<Vec<u8>> {
    static PAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PAGES.get_or_init(|| {
        let mut scene = Scene::new(Server::builder().response_max_bytes(256));
        scene.load(300);
        scene.pages().0
    })
}

/// Reads pages until they are used up, one is refused, or the snapshot is complete.
fn read<'a>(pages: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Snapshot>, SnapshotError> {
    let mut reader = SnapshotReader::new();
    for page in pages {
        if reader.request().is_none() {
            break;
        }
        reader.take(page)?;
    }
    let complete = reader.request().is_none();
    Ok(complete.then(|| reader.finish()))
}

#[test]
fn each_number_of_a_page_is_checked() {
    let pages = real_pages();
    assert!(read(pages.iter().map(|page| &page[..])).unwrap().is_some());
    // The first page: its head, and then the server itself.
    let with = |at: usize, bytes: &[u8]| {
        let mut page = pages[0].clone();
        page[at..at + bytes.len()].copy_from_slice(bytes);
        SnapshotReader::new().take(&page)
    };
    let malformed = |what| {
        let section = "server";
        Err(SnapshotError::Malformed { section, what })
    };
    assert_eq!(with(0, &[7]), Err(SnapshotError::Version { version: 7 }));
    assert_eq!(with(2, &[1]), malformed("it is of another section"));
    assert_eq!(with(3, &[0]), malformed("its length"));
    assert_eq!(with(3, &[53]), malformed("its length"));
    assert_eq!(with(4, &[0, 0, 0, 0]), malformed("its cursor"));
    assert_eq!(with(4, &[2, 0, 0, 0]), malformed("its cursor"));
    // Too many seats and groups; no seats, no zones; the worker's number; a violation that does not exist.
    assert_eq!(with(24, &[0xff; 4]), malformed("an item"));
    assert_eq!(with(40, &[0xff; 4]), malformed("an item"));
    assert_eq!(with(24, &[0; 4]), malformed("an item"));
    assert_eq!(with(36, &[0; 4]), malformed("an item"));
    assert_eq!(with(52, &[1]), malformed("an item"));
    assert_eq!(with(57, &[99]), malformed("an item"));
    assert_eq!(with(57, &[0]), Ok(()), "one that does");
    let mut reader = SnapshotReader::new();
    assert_eq!(reader.take(&[]), malformed("it has no head"));
    let empty = [1, 0, 0, 52, 255, 255, 255, 255];
    assert_eq!(reader.take(&empty), malformed("it is empty"));
}

#[test]
fn items_and_fields_of_a_later_version_are_passed_over() {
    let longer = real_pages().iter().map(|page| {
        let (head, items) = page.split_at(8);
        let bytes = usize::from(head[3]);
        let mut longer = head.to_vec();
        longer[3] += 4;
        for item in items.chunks(bytes) {
            longer.extend(item);
            longer.extend([0xee; 4]);
        }
        longer
    });
    let longer: Vec<_> = longer.collect();
    let seen = read(longer.iter().map(|page| &page[..])).unwrap();
    let plain = read(real_pages().iter().map(|page| &page[..])).unwrap();
    assert_eq!(seen, plain);
    assert!(seen.is_some());
}

proptest! {
    /// Whatever a page says, it is refused, or is within what the server said of itself; and asking comes to an end.
    #[test]
    fn no_page_can_hurt_who_reads_it(changes in prop::collection::vec((any::<Index>(), any::<Index>(), any::<u8>()), 1..6)) {
        let mut pages = real_pages().clone();
        for (page, at, byte) in changes {
            let page = page.get_mut(&mut pages);
            let at = at.index(page.len());
            page[at] = byte;
        }
        if let Ok(Some(seen)) = read(pages.iter().map(|page| &page[..])) {
            let server = seen.server;
            prop_assert!(seen.connections.is_sorted_by_key(|(seat, _)| *seat));
            prop_assert!(seen.connections.iter().all(|(seat, _)| *seat < server.clients_max));
            prop_assert!(seen.groups.iter().all(|(group, _)| *group < server.groups_max));
            prop_assert!(seen.quarantine.iter().all(|it| it.zone < 2 * server.zones));
        }
    }

    #[test]
    fn noise_is_no_page(section in 0..8_u8, noise: Vec<u8>) {
        let mut page = vec![1, 0, section];
        page.extend(noise);
        let mut reader = SnapshotReader::new();
        // Where it comes to that section.
        for real in real_pages() {
            let Some(request) = reader.request() else { break };
            if request[2] == section {
                let before = request;
                let taken = reader.take(&page);
                prop_assert!(taken.is_err() || reader.request() != Some(before));
                break;
            }
            reader.take(real).unwrap();
        }
    }
}
