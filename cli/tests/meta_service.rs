//! The service against a naive model of a file system, and against bad requests.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Memory, all, mixed, odd_names, path_of};
use proptest::prelude::*;
use scalerpc_cli::meta::service::{MetaService, NODE_LIMIT_MAX, ServiceError, UNKNOWN_METHOD};
use scalerpc_cli::meta::tree::Tree;
use scalerpc_cli::meta::wire::{
    self, Answer, Attr, Kind, METHOD_MKNOD, METHOD_READDIR, METHOD_RMNOD, METHOD_STAT, Method,
    Request, Status, cookie,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Calls a service, with fresh buffers each time.
struct Caller {
    service: MetaService,
    response_max: usize,
}

type Listing = Vec<(Kind, Vec<u8>)>;

impl Caller {
    fn new(tree: Tree, node_limit: u32) -> Self {
        Self {
            service: MetaService::new(Arc::new(tree), node_limit).unwrap(),
            response_max: 600,
        }
    }

    fn call(&mut self, request: Request<'_>) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let len = request.encode(&mut bytes).unwrap();
        let mut response = vec![0xee; self.response_max];
        let method = request.method() as u16;
        let len = self
            .service
            .handle(method, &bytes[..len], &mut response)
            .unwrap();
        assert!(
            response[len..].iter().all(|byte| *byte == 0xee),
            "written past the response"
        );
        response.truncate(len);
        response
    }

    fn stat(&mut self, path: &[u8]) -> Answer<Attr> {
        wire::decode_attr(&self.call(Request::Stat { path })).unwrap()
    }

    fn mknod(&mut self, path: &[u8]) -> Answer<u64> {
        wire::decode_number(&self.call(Request::Mknod { path })).unwrap()
    }

    fn rmnod(&mut self, path: &[u8]) -> Answer<u64> {
        wire::decode_number(&self.call(Request::Rmnod { path })).unwrap()
    }

    fn page(&mut self, path: &[u8], cookie: u64) -> Answer<(Listing, u64)> {
        let response = self.call(Request::ReadDir { cookie, path });
        let page = wire::decode_page(&response).unwrap()?;
        let entries = page.entries().map(|(kind, name)| (kind, name.to_vec()));
        Ok((entries.collect(), page.next))
    }

    /// All pages from here on.
    fn list_from(&mut self, path: &[u8], mut cookie: u64) -> Answer<Listing> {
        let mut listing = Vec::new();
        loop {
            let (entries, next) = self.page(path, cookie)?;
            assert!(next == 0 || !entries.is_empty(), "a page without progress");
            listing.extend(entries);
            if next == 0 {
                return Ok(listing);
            }
            cookie = next;
        }
    }
}

/// The same file system, written for plainness: a map of whole paths.
struct Model {
    nodes: BTreeMap<Vec<u8>, Attr>,
    last_number: u64,
    limit: usize,
}

impl Model {
    fn new(tree: &Tree, limit: usize) -> Self {
        let nodes = all(tree)
            .map(|id| (path_of(tree, id), tree.attr(id)))
            .collect();
        Self {
            nodes,
            last_number: 0,
            limit,
        }
    }

    fn parent(path: &[u8]) -> &[u8] {
        path.iter()
            .rposition(|byte| *byte == b'/')
            .map_or(b"", |slash| &path[..slash])
    }

    /// Whether everything on the way to `path` is a directory.
    fn way(&self, path: &[u8]) -> Answer<()> {
        for (at, byte) in path.iter().enumerate() {
            if *byte == b'/' {
                match self.nodes.get(&path[..at]) {
                    None => return Err(Status::NotFound),
                    Some(attr) if attr.kind != Kind::Dir => return Err(Status::NotADirectory),
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    fn stat(&self, path: &[u8]) -> Answer<Attr> {
        self.way(path)?;
        self.nodes.get(path).copied().ok_or(Status::NotFound)
    }

    fn mknod(&mut self, path: &[u8]) -> Answer<u64> {
        self.way(path)?;
        if self.nodes.contains_key(path) {
            return Err(Status::Exists);
        }
        if self.nodes.values().filter(|attr| attr.number > 0).count() >= self.limit {
            return Err(Status::NoSpace);
        }
        self.last_number += 1;
        self.nodes
            .insert(path.to_vec(), Attr::created(self.last_number));
        Ok(self.last_number)
    }

    fn rmnod(&mut self, path: &[u8]) -> Answer<u64> {
        let attr = self.stat(path)?;
        if attr.kind == Kind::Dir {
            return Err(Status::IsADirectory);
        }
        self.nodes.remove(path);
        Ok(attr.number)
    }

    fn list(&self, path: &[u8]) -> Answer<Listing> {
        if self.stat(path)?.kind != Kind::Dir {
            return Err(Status::NotADirectory);
        }
        let children = self
            .nodes
            .iter()
            .filter(|(child, _)| !child.is_empty() && Self::parent(child) == path);
        let mut children: Vec<_> = children.collect();
        // Stable: loaded ones, all with number 0, stay sorted by name.
        children.sort_by_key(|(_, attr)| attr.number);
        let name = |child: &[u8]| child.rsplit(|byte| *byte == b'/').next().unwrap().to_vec();
        Ok(children
            .iter()
            .map(|(child, attr)| (attr.kind, name(child)))
            .collect())
    }
}

/// A small tree, from names of which many are equal at different levels.
fn trees() -> impl Strategy<Value = Memory> {
    prop::collection::vec(
        (any::<prop::sample::Index>(), 0..15_usize, 0..4_usize),
        0..25,
    )
    .prop_map(|entries| {
        use std::os::unix::ffi::OsStringExt;
        let mut memory = Memory::new();
        let mut dirs = vec![Vec::new()];
        for (dir, name, kind) in entries {
            let mut path: Vec<u8> = dir.get(&dirs).clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&odd_names()[name]);
            let os_path = std::ffi::OsString::from_vec(path.clone());
            if memory.nodes.contains_key(std::path::Path::new(&os_path)) {
                continue;
            }
            let kind = [Kind::Dir, Kind::Dir, Kind::File, Kind::Symlink][kind];
            memory.add(os_path, kind);
            if kind == Kind::Dir {
                dirs.push(path);
            }
        }
        memory
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_sequence_is_answered_as_the_model_does(
        mut memory in trees(),
        limit in 0..6_u32,
        ops in prop::collection::vec(
            (0..4_usize, any::<prop::sample::Index>(), prop::option::of(0..15_usize), any::<u64>()),
            1..120,
        ),
    ) {
        let tree = memory.load();
        let mut paths: Vec<Vec<u8>> = all(&tree).map(|id| path_of(&tree, id)).collect();
        let mut model = Model::new(&tree, limit as usize);
        let mut caller = Caller::new(tree, limit);
        for (method, base, below, random) in ops {
            let mut path = base.get(&paths).clone();
            if let Some(name) = below {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend(&odd_names()[name]);
                paths.push(path.clone());
            }
            match Method::ALL[method] {
                Method::Stat => prop_assert_eq!(caller.stat(&path), model.stat(&path)),
                Method::Mknod => prop_assert_eq!(caller.mknod(&path), model.mknod(&path)),
                Method::Rmnod => prop_assert_eq!(caller.rmnod(&path), model.rmnod(&path)),
                Method::ReadDir => {
                    caller.response_max = 11 + 2 + 255 + (random % 600) as usize;
                    prop_assert_eq!(caller.list_from(&path, 0), model.list(&path));
                }
            }
            let created = model.nodes.values().filter(|attr| attr.number > 0).count();
            prop_assert_eq!(caller.service.node_count(), created);
        }
    }

    #[test]
    fn arbitrary_bytes_are_answered(
        calls in prop::collection::vec(
            (1..5_u16, prop::collection::vec(0..8_u8, 0..40), 0..80_usize),
            1..30,
        ),
    ) {
        let mut service = MetaService::new(Arc::new(mixed().load()), 4).unwrap();
        for (method, request, room) in calls {
            let mut response = vec![0; room];
            let len = service.handle(method, &request, &mut response).unwrap();
            prop_assert!(len <= room && (len > 0 || room == 0));
            prop_assert!(room == 0 || Status::from_u8(response[0]).is_some());
        }
    }
}

#[test]
fn bad_requests_are_told_so() {
    let mut service = MetaService::new(Arc::new(mixed().load()), 4).unwrap();
    let paths: [&[u8]; 13] = [
        b"/",
        b"/big",
        b"big/",
        b"big//entry-1",
        b".",
        b"..",
        b"big/.",
        b"big/..",
        b"./big",
        b"../big",
        b"a\0",
        &[b'x'; 256],
        b"//",
    ];
    let mut bad = 0;
    let mut expect_bad = |method: u16, request: &[u8]| {
        let mut response = [0xee; 100];
        assert_eq!(service.handle(method, request, &mut response), Ok(1));
        assert_eq!(
            response[0],
            Status::BadRequest as u8,
            "{method} {request:?}"
        );
        bad += 1;
        assert_eq!(service.counters().bad_requests, bad);
    };
    for path in paths {
        let mut bytes = [0; 300];
        for method in [METHOD_STAT, METHOD_MKNOD, METHOD_RMNOD] {
            let len = Request::Stat { path }.encode(&mut bytes).unwrap();
            expect_bad(method, &bytes[..len]);
        }
        let len = Request::ReadDir { path, cookie: 0 }
            .encode(&mut bytes)
            .unwrap();
        expect_bad(METHOD_READDIR, &bytes[..len]);
    }
    for method in Method::ALL {
        expect_bad(method as u16, b"");
        expect_bad(method as u16, b"\x05");
        expect_bad(method as u16, b"\xff\xffbig");
        expect_bad(method as u16, b"\x01\x00");
        expect_bad(method as u16, b"\x00\x00\x00");
    }
    // A cookie past the last loaded child.
    let mut bytes = [0; 64];
    for cookie in [301, u64::MAX >> 1] {
        let len = Request::ReadDir {
            path: b"big",
            cookie,
        }
        .encode(&mut bytes)
        .unwrap();
        expect_bad(METHOD_READDIR, &bytes[..len]);
    }
}

#[test]
fn unknown_methods_are_the_one_refusal() {
    let mut service = MetaService::new(Arc::new(mixed().load()), 4).unwrap();
    for method in [0, 5, 255, u16::MAX] {
        assert_eq!(
            service.handle(method, b"\0\0", &mut [0; 64]),
            Err(UNKNOWN_METHOD)
        );
    }
    assert_eq!(service.counters().unknown_methods, 4);
    assert_eq!(service.counters().requests, [0; 4]);
}

#[test]
fn the_limit_of_nodes_is_checked_and_kept() {
    let tree = Arc::new(mixed().load());
    let limit = NODE_LIMIT_MAX + 1;
    let error = MetaService::new(Arc::clone(&tree), limit).unwrap_err();
    assert_eq!(error, ServiceError::NodeLimit { limit });
    let mut caller = Caller::new(mixed().load(), 3);
    for round in 0..5_u64 {
        for n in 0..3 {
            assert_eq!(
                caller.mknod(format!("big/new-{n}").as_bytes()),
                Ok(round * 3 + n + 1)
            );
        }
        assert_eq!(caller.mknod(b"big/new-3"), Err(Status::NoSpace));
        // What is there is there, whether or not there is space.
        assert_eq!(caller.mknod(b"big/new-0"), Err(Status::Exists));
        for n in [1, 0, 2] {
            assert_eq!(
                caller.rmnod(format!("big/new-{n}").as_bytes()),
                Ok(round * 3 + n + 1)
            );
        }
        assert_eq!(caller.service.node_count(), 0);
    }
    assert_eq!(caller.service.node_limit(), 3);
}

#[test]
fn a_response_that_does_not_fit_changes_nothing() {
    let mut caller = Caller::new(mixed().load(), 3);
    for room in 0..60 {
        caller.response_max = room;
        let status = |response: &[u8]| response.first().copied().map(Status::from_u8);
        let small = if room == 0 {
            None
        } else {
            Some(Some(Status::TooSmall))
        };
        let response = caller.call(Request::Stat { path: b"big" });
        assert_eq!(
            status(&response) == Some(Some(Status::Ok)),
            room >= wire::STAT_RESPONSE_LEN
        );
        let response = caller.call(Request::ReadDir {
            path: b"big",
            cookie: 0,
        });
        // The first name of "big" is "entry-0".
        assert_eq!(
            status(&response) == Some(Some(Status::Ok)),
            room >= 11 + 2 + 7
        );
        let response = caller.call(Request::Mknod { path: b"new" });
        if room >= wire::NUMBER_RESPONSE_LEN {
            assert!(wire::decode_number(&response).unwrap().is_ok());
            let response = caller.call(Request::Rmnod { path: b"new" });
            assert!(wire::decode_number(&response).unwrap().is_ok());
        } else {
            assert_eq!(status(&response), small);
            assert_eq!(caller.service.node_count(), 0);
            let response = caller.call(Request::Rmnod {
                path: b"big/entry-1",
            });
            assert_eq!(status(&response), small);
        }
    }
    caller.response_max = 100;
    assert!(caller.stat(b"big/entry-1").is_ok());
}

#[test]
fn pages_from_every_index_hold_what_is_left() {
    let mut caller = Caller::new(mixed().load(), 3);
    caller.response_max = 200;
    let whole = caller.list_from(b"big", 0).unwrap();
    assert_eq!(whole.len(), 300);
    for from in 0..=300 {
        assert_eq!(
            caller.list_from(b"big", from as u64).unwrap(),
            whole[from..]
        );
    }
}

#[test]
fn a_listing_skips_and_doubles_nothing_while_others_come_and_go() {
    let mut caller = Caller::new(mixed().load(), 100);
    let mut kept = Vec::new();
    for n in 0..100 {
        let name = format!("new-{n}");
        caller.mknod(format!("big/{name}").as_bytes()).unwrap();
        if n % 2 == 1 {
            kept.push(name.into_bytes());
        }
    }
    caller.response_max = 200;
    let (mut cookie, mut listed, mut n, mut pages) = (0, Vec::new(), 0, 0);
    loop {
        let (entries, next) = caller.page(b"big", cookie).unwrap();
        listed.extend(entries.into_iter().map(|(_, name)| name));
        pages += 1;
        if next == 0 {
            break;
        }
        cookie = next;
        // Before the page, on it or after it, and the very one the cookie names, sooner or later.
        for _ in 0..3 {
            if n < 100 {
                caller.rmnod(format!("big/new-{n}").as_bytes()).unwrap();
                n += 2;
            }
        }
        caller
            .mknod(format!("big/later-{pages}").as_bytes())
            .unwrap();
    }
    assert!(pages > 20);
    for name in &kept {
        assert_eq!(listed.iter().filter(|it| *it == name).count(), 1);
    }
    let total = listed.len();
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), total, "an entry was listed twice");
}

#[test]
fn made_up_cookies_are_answered() {
    let mut caller = Caller::new(mixed().load(), 10);
    caller.mknod(b"big/one").unwrap();
    caller.mknod(b"deep/elsewhere").unwrap();
    let number = caller.mknod(b"big/two").unwrap();
    assert_eq!(
        caller
            .page(b"big", cookie::after_created(0, number))
            .unwrap(),
        (vec![], 0)
    );
    let two = (Kind::File, b"two".to_vec());
    // Slots that hold another node, a node of another directory, nothing, or are none.
    for slot in [0, 1, 2, 5, 9, 10, cookie::SLOTS_MAX - 1] {
        let page = caller.page(b"big", cookie::after_created(slot, 1)).unwrap();
        assert_eq!(page, (vec![two.clone()], 0));
        let all = caller
            .page(b"big", cookie::after_created(slot, 0))
            .unwrap()
            .0;
        assert_eq!(all.len(), 2);
        let none = caller
            .page(b"big", cookie::after_created(slot, u64::MAX))
            .unwrap();
        assert_eq!(none, (vec![], 0));
    }
}

#[test]
fn a_loaded_file_can_be_removed_and_made_anew() {
    let mut caller = Caller::new(mixed().load(), 10);
    assert_eq!(caller.rmnod(b"big"), Err(Status::IsADirectory));
    assert_eq!(caller.rmnod(b""), Err(Status::IsADirectory));
    assert_eq!(caller.mknod(b""), Err(Status::Exists));
    assert_eq!(caller.rmnod(b"big/entry-5"), Ok(0));
    assert_eq!(caller.rmnod(b"big/entry-5"), Err(Status::NotFound));
    assert_eq!(caller.stat(b"big/entry-5/x"), Err(Status::NotFound));
    let number = caller.mknod(b"big/entry-5").unwrap();
    assert_eq!(caller.stat(b"big/entry-5"), Ok(Attr::created(number)));
    assert_eq!(caller.stat(b"big/entry-5/x"), Err(Status::NotADirectory));
    assert_eq!(caller.stat(b"big/entry-5/x/y"), Err(Status::NotADirectory));
    let listing = caller.list_from(b"big", 0).unwrap();
    assert_eq!(listing.len(), 300);
    assert_eq!(listing[299], (Kind::File, b"entry-5".to_vec()));
}
