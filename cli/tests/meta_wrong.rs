//! Answers of servers that do not work are found to be wrong.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Memory, REQUEST_MAX, RESPONSE_MAX, generator, mixed_tree};
use scalerpc_cli::meta::load::{Generator, PageFault, Planned, WrongAnswer};
use scalerpc_cli::meta::service::MetaService;
use scalerpc_cli::meta::wire::{self, Kind, Method, PageWriter, Request, Status, cookie};
use std::collections::VecDeque;
use std::sync::Arc;

/// Every single-bit change of every answer is found, but for those that make another right answer.
#[test]
fn every_changed_bit_is_found() {
    let tree = mixed_tree();
    let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
    let mut generator = generator(&tree, 0, 11);
    let (mut found, mut spared) = (0_u64, 0_u64);
    for _ in 0..400 {
        let (mut request, mut response) = ([0; REQUEST_MAX], [0; RESPONSE_MAX]);
        let planned = generator.next(&mut request);
        let request = &request[..planned.len];
        let len = service
            .handle(planned.method, request, &mut response)
            .unwrap();
        let right = &response[..len];
        let mut changed = right.to_vec();
        for bit in 0..len * 8 {
            changed[bit / 8] ^= 1 << (bit % 8);
            let verdict = generator.clone().check(&planned.expect, &changed);
            if verdict.is_err() {
                found += 1;
            } else {
                let call = generator.describe(&planned.expect);
                let spare = may_be_right(&planned, request, right, &changed);
                assert!(
                    spare,
                    "{call}: a change of bit {bit} of {right:?} was missed"
                );
                spared += 1;
            }
            changed[bit / 8] ^= 1 << (bit % 8);
        }
        generator.check(&planned.expect, right).unwrap();
    }
    assert!(
        found > 100_000 && spared < found / 50,
        "{found} found, {spared} spared"
    );
}

/// Whether a changed answer could come from another server that works.
fn may_be_right(planned: &Planned, request: &[u8], right: &[u8], changed: &[u8]) -> bool {
    match planned.expect.method() {
        // The number of a new node is for the server to choose, as long as it rises.
        Method::Mknod => {
            let number = |response| wire::decode_number(response).unwrap().unwrap();
            number(changed) > number(right)
        }
        Method::ReadDir => {
            let Request::ReadDir { cookie: from, .. } =
                Request::decode(Method::ReadDir, request).unwrap()
            else {
                return false;
            };
            let page = |response| wire::decode_page(response).unwrap().unwrap();
            let (right, changed) = (page(right), page(changed));
            let number = |next| cookie::created(next).map(|(_, number)| number);
            let same = right.entries().eq(changed.entries());
            // The slot in a cookie is the server's business, and it may say that there is more
            // where nothing turns out to follow.
            let slot = number(right.next).is_some() && number(right.next) == number(changed.next);
            let more = right.next == 0 && changed.next == from + u64::from(changed.count);
            same && (slot || more)
        }
        _ => false,
    }
}

/// What a broken server would do to a page.
#[derive(Clone, Copy, Debug)]
enum Spoil {
    Drop(usize),
    Double(usize),
    Swap(usize),
    Rename(usize),
    CutShort(usize),
    NextOffByOne,
}

fn spoil(response: &[u8], how: Spoil) -> Option<Vec<u8>> {
    let page = wire::decode_page(response).ok()?.ok()?;
    let mut entries: Vec<(Kind, Vec<u8>)> = page
        .entries()
        .map(|(kind, name)| (kind, name.to_vec()))
        .collect();
    let mut next = page.next;
    let count = entries.len();
    match how {
        Spoil::Drop(at) if at < count => drop(entries.remove(at)),
        Spoil::Double(at) if at < count => entries.insert(at, entries[at].clone()),
        Spoil::Swap(at) if at + 1 < count => entries.swap(at, at + 1),
        Spoil::Rename(at) if at < count => entries[at].1.push(b'0'),
        Spoil::CutShort(at) if at < count => {
            entries.truncate(at);
            next = 0;
        }
        Spoil::NextOffByOne if next != 0 => next += 1,
        _ => return None,
    }
    let mut response = vec![0; 2 * RESPONSE_MAX];
    let mut page = PageWriter::new(&mut response)?;
    for (kind, name) in entries {
        assert!(name.len() >= 255 || page.push(kind, &name));
    }
    let len = page.finish(next);
    response.truncate(len);
    Some(response)
}

#[test]
fn every_spoilt_page_is_found() {
    let tree = mixed_tree();
    let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
    let mut generator = generator(&tree, 0, 5);
    let mut spoilt_pages = 0;
    for _ in 0..4000 {
        let (mut request, mut response) = ([0; REQUEST_MAX], [0; RESPONSE_MAX]);
        let planned = generator.next(&mut request);
        let len = service
            .handle(planned.method, &request[..planned.len], &mut response)
            .unwrap();
        let response = &response[..len];
        let mut ways = vec![Spoil::NextOffByOne];
        for at in 0..60 {
            ways.extend([
                Spoil::Drop(at),
                Spoil::Double(at),
                Spoil::Swap(at),
                Spoil::Rename(at),
                Spoil::CutShort(at),
            ]);
        }
        if planned.expect.method() == Method::ReadDir {
            for how in ways {
                let Some(spoilt) = spoil(response, how) else {
                    continue;
                };
                spoilt_pages += 1;
                let verdict = generator.clone().check(&planned.expect, &spoilt);
                assert!(verdict.is_err(), "{how:?} of {response:?} was missed");
            }
        }
        generator.check(&planned.expect, response).unwrap();
    }
    assert!(spoilt_pages > 4000, "{spoilt_pages}");
}

#[test]
fn an_own_node_that_is_missing_among_others_is_found() {
    // All nodes in one directory, so that they do not fit one page.
    let tree = Arc::new(Memory::new().load());
    let mut service = MetaService::new(Arc::clone(&tree), 64 * 4).unwrap();
    let mut generators: Vec<_> = (0..4).map(|client| generator(&tree, client, 5)).collect();
    let mut dropped = 0;
    for step in 0..6000 {
        let client = step % 4;
        let generator = &mut generators[client];
        let (mut request, mut response) = ([0; REQUEST_MAX], [0; RESPONSE_MAX]);
        let planned = generator.next(&mut request);
        let len = service
            .handle(planned.method, &request[..planned.len], &mut response)
            .unwrap();
        let response = &response[..len];
        if planned.expect.method() == Method::ReadDir {
            let own = format!(".scalerpc-{client}-");
            let names = wire::decode_page(response)
                .unwrap()
                .map(|page| page.entries());
            for (at, (_, name)) in names.into_iter().flatten().enumerate() {
                if name.starts_with(own.as_bytes()) {
                    let spoilt = spoil(response, Spoil::Drop(at)).unwrap();
                    let verdict = generator.clone().check(&planned.expect, &spoilt);
                    assert!(verdict.is_err(), "{at} of {response:?} was not missed");
                    dropped += 1;
                }
            }
        }
        generator.check(&planned.expect, response).unwrap();
    }
    assert!(dropped > 300, "{dropped}");
}

/// A server that works but for one thing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// Says that it created, and does not.
    MknodLies,
    RmnodLies,
    /// Runs one call in 50 before the one ahead of it.
    OutOfOrder,
    /// Runs one call in 50 twice.
    Twice,
    /// Answers one call in 50 with the response to the one before.
    StaleAnswer,
    /// Gives every new node the same number.
    OneNumber,
    /// Lists the created nodes from the first on every page of them.
    StartsAgain,
    /// The same, and all of them at once.
    StartsAgainAtLength,
    /// Lists no created nodes.
    ForgetsCreated,
    /// Says that all is well where a request should be turned down.
    NeverRefuses,
}

fn run_with(flaw: Flaw, seed: u64) -> Option<WrongAnswer> {
    let (tree, mix) = match flaw {
        // So many nodes in one directory that they do not fit one page.
        Flaw::StartsAgain | Flaw::StartsAgainAtLength => {
            (Arc::new(Memory::new().load()), "readdir=3,mknod=3,rmnod=1")
        }
        _ => (mixed_tree(), "stat=50,readdir=20,mknod=15,rmnod=15"),
    };
    let (shared, mix) = (Arc::clone(&tree), mix.parse().unwrap());
    let mut service = MetaService::new(Arc::clone(&tree), 256).unwrap();
    let mut generator = Generator::new(shared, 0, seed, mix, REQUEST_MAX, RESPONSE_MAX).unwrap();
    let mut window = VecDeque::new();
    let mut last = vec![Status::BadRequest as u8];
    for step in 0..4000 {
        while window.len() < 8 {
            let mut request = [0; REQUEST_MAX];
            let planned = generator.next(&mut request);
            window.push_back((planned, request[..planned.len].to_vec()));
        }
        let now = step % 50 == 49;
        if now && flaw == Flaw::OutOfOrder {
            window.swap(0, 1);
        }
        let (planned, request) = window.pop_front().unwrap();
        let mut response = vec![0; RESPONSE_MAX];
        let mut handle = |request: &[u8], response: &mut [u8]| {
            service.handle(planned.method, request, response).unwrap()
        };
        let mut len = match Request::decode(planned.expect.method(), &request) {
            Ok(Request::ReadDir { path, cookie })
                if matches!(flaw, Flaw::StartsAgain | Flaw::StartsAgainAtLength)
                    && cookie::created(cookie).is_some() =>
            {
                if flaw == Flaw::StartsAgainAtLength {
                    response.resize(10 * RESPONSE_MAX, 0);
                }
                let mut again = [0; REQUEST_MAX];
                let cookie = cookie::after_created(0, 0);
                let len = Request::ReadDir { path, cookie }
                    .encode(&mut again)
                    .unwrap();
                handle(&again[..len], &mut response)
            }
            _ => handle(&request, &mut response),
        };
        let (method, ok) = (planned.expect.method(), response[0] == Status::Ok as u8);
        match flaw {
            Flaw::MknodLies if method == Method::Mknod && ok => {
                let path = &request[2..];
                let mut undo = [0; REQUEST_MAX];
                let undo_len = Request::Rmnod { path }.encode(&mut undo).unwrap();
                service
                    .handle(wire::METHOD_RMNOD, &undo[..undo_len], &mut [0; 64])
                    .unwrap();
            }
            Flaw::RmnodLies if method == Method::Rmnod && ok => {
                service
                    .handle(wire::METHOD_MKNOD, &request, &mut [0; 64])
                    .unwrap();
            }
            Flaw::Twice if now => len = handle(&request, &mut response),
            Flaw::OneNumber if method == Method::Mknod && ok => {
                len = wire::encode_number(7, &mut response).unwrap();
            }
            Flaw::ForgetsCreated if method == Method::ReadDir && ok => {
                let page = wire::decode_page(&response[..len]).unwrap().unwrap();
                let real = |name: &[u8]| !name.starts_with(b".scalerpc");
                let mut without = vec![0; RESPONSE_MAX];
                let mut out = PageWriter::new(&mut without).unwrap();
                for (kind, name) in page.entries().filter(|(_, name)| real(name)) {
                    out.push(kind, name);
                }
                len = out.finish(page.next);
                response = without;
            }
            Flaw::NeverRefuses if !ok => {
                len = wire::encode_number(0, &mut response).unwrap();
            }
            _ => {}
        }
        response.truncate(len);
        if now && flaw == Flaw::StaleAnswer {
            std::mem::swap(&mut response, &mut last);
        } else {
            last.clone_from(&response);
        }
        if let Err(wrong) = generator.check(&planned.expect, &response) {
            return Some(wrong);
        }
    }
    None
}

#[test]
fn every_flaw_of_a_server_is_found() {
    for seed in 0..3 {
        assert_eq!(run_with(Flaw::None, seed), None);
        for flaw in [
            Flaw::MknodLies,
            Flaw::RmnodLies,
            Flaw::OutOfOrder,
            Flaw::Twice,
            Flaw::StaleAnswer,
            Flaw::OneNumber,
            Flaw::ForgetsCreated,
            Flaw::NeverRefuses,
            Flaw::StartsAgain,
            Flaw::StartsAgainAtLength,
        ] {
            assert!(
                run_with(flaw, seed).is_some(),
                "{flaw:?} was missed with seed {seed}"
            );
        }
    }
}

/// One answer that was wrong does not make later, right ones wrong.
#[test]
fn one_wrong_answer_stays_one() {
    let tree = mixed_tree();
    let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
    let mut generator = generator(&tree, 0, 2);
    let mut spoilt = 0;
    for step in 0..20_000 {
        let (mut request, mut response) = ([0; REQUEST_MAX], [0; RESPONSE_MAX]);
        let planned = generator.next(&mut request);
        let mut len = service
            .handle(planned.method, &request[..planned.len], &mut response)
            .unwrap();
        if step % 17 == 0 {
            spoilt += 1;
            len = 0;
        }
        assert_eq!(
            generator.check(&planned.expect, &response[..len]).is_err(),
            len == 0
        );
    }
    assert_eq!(generator.counters().wrong, spoilt);
}

#[test]
fn nodes_of_others_are_accepted_and_nothing_else() {
    let tree = mixed_tree();
    let mix = "readdir=1".parse().unwrap();
    let mut generator =
        Generator::new(Arc::clone(&tree), 4, 1, mix, REQUEST_MAX, RESPONSE_MAX).unwrap();
    let mut judged = 0;
    while judged < 20 {
        let mut service = MetaService::new(Arc::clone(&tree), 64).unwrap();
        let mut request = [0; REQUEST_MAX];
        let planned = generator.next(&mut request);
        let Ok(Request::ReadDir { path, cookie: 0 }) =
            Request::decode(Method::ReadDir, &request[..planned.len])
        else {
            generator.forget(&planned.expect);
            continue;
        };
        let cases = [
            (".scalerpc-3-1", None),
            (".scalerpc-40-12", None),
            (".scalerpc-4-1", Some(PageFault::Unexpected)),
            (".scalerpc-3-01", Some(PageFault::Unknown)),
            ("stray", Some(PageFault::Unknown)),
        ];
        for (name, fault) in cases {
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let path = [path, slash, name.as_bytes()].concat();
            let mut response = [0; RESPONSE_MAX];
            let mut call = |request: Request<'_>| {
                let mut bytes = [0; REQUEST_MAX];
                let len = request.encode(&mut bytes).unwrap();
                let method = request.method() as u16;
                let len = service
                    .handle(method, &bytes[..len], &mut response)
                    .unwrap();
                response[..len].to_vec()
            };
            call(Request::Mknod { path: &path });
            let Request::ReadDir { path: dir, .. } =
                Request::decode(Method::ReadDir, &request[..planned.len]).unwrap()
            else {
                continue;
            };
            let listed = call(Request::ReadDir {
                path: dir,
                cookie: 0,
            });
            call(Request::Rmnod { path: &path });
            match (generator.clone().check(&planned.expect, &listed), fault) {
                (Ok(()), None) => judged += 1,
                (Err(WrongAnswer::Page { fault, .. }), Some(expected)) => {
                    assert_eq!(fault, expected);
                    judged += 1;
                }
                // The page was full before the node, or the directory is not there.
                (Ok(()), Some(_)) if response_is_full(&listed) => {}
                (Err(WrongAnswer::Status { .. }), _) => {}
                (verdict, fault) => panic!("{name}: {verdict:?} and not {fault:?}"),
            }
        }
        generator.forget(&planned.expect);
    }
}

fn response_is_full(response: &[u8]) -> bool {
    wire::decode_page(response)
        .unwrap()
        .is_ok_and(|page| page.next != 0)
}
