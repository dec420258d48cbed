//! What is done with an input: the same for the fuzzer, for proptest, and for the corpora.

#[path = "../../common/mod.rs"]
mod common;

use std::sync::{Arc, LazyLock};

use scalerpc_cli::meta::service::MetaService;
use scalerpc_cli::meta::tree::Tree;
use scalerpc_cli::meta::wire::{self, Malformed, Method, PageWriter, Request, Status};

use common::{REQUEST_MAX, RESPONSE_MAX};

/// So few that the server runs out of them.
const NODES: u32 = 6;
const CALLS_MAX: usize = 64;

static TREE: LazyLock<Arc<Tree>> = LazyLock::new(common::mixed_tree);

/// Takes up to `len` bytes off the front.
fn take<'a>(data: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (piece, rest) = data.split_at(len.min(data.len()));
    *data = rest;
    piece
}

fn byte(data: &mut &[u8]) -> u8 {
    take(data, 1).first().copied().unwrap_or(0)
}

/// A server gets one request after the other: `method, room / 4, length, request`.
pub fn request(mut data: &[u8]) {
    let mut service = MetaService::new(Arc::clone(&TREE), NODES).unwrap();
    for _ in 0..CALLS_MAX {
        if data.is_empty() {
            break;
        }
        let method = u16::from(byte(&mut data) % 6);
        let room = 4 * usize::from(byte(&mut data));
        let len = usize::from(byte(&mut data));
        let request = take(&mut data, len);
        let known = Method::from_u16(method);
        let decoded = known.map(|method| Request::decode(method, request));
        if let Some(Ok(decoded)) = decoded {
            assert_eq!(Some(decoded.method()), known);
            let mut again = vec![0; request.len()];
            assert_eq!(decoded.encode(&mut again), Some(request.len()));
            assert_eq!(again, request);
        }
        // More than the response may take, to see that it does not.
        let mut response = vec![0xee; room + 8];
        let answered = service.handle(method, request, &mut response[..room]);
        assert_eq!(response[room..], [0xee; 8]);
        assert!(service.node_count() <= NODES as usize);
        let Some(known) = known else {
            assert!(answered.is_err());
            continue;
        };
        let response = &response[..answered.unwrap()];
        if response.is_empty() {
            assert_eq!(room, 0);
            continue;
        }
        let status = status_of(known, response).expect("a server answers what can be read");
        // One that is well-formed may be bad all the same: a page that cannot be, the root anew.
        let malformed = decoded.is_some_and(|it| it.is_err());
        assert!(!malformed || status == Status::BadRequest);
    }
}

fn status_of(method: Method, response: &[u8]) -> Result<Status, Malformed> {
    Ok(match method {
        Method::Stat => wire::decode_attr(response)?.err(),
        Method::ReadDir => wire::decode_page(response)?.err(),
        Method::Mknod | Method::Rmnod => wire::decode_number(response)?.err(),
    }
    .unwrap_or(Status::Ok))
}

/// Responses of any bytes are read, and judged by a client: the first byte says which.
pub fn response(mut data: &[u8]) {
    match byte(&mut data) % 4 {
        0 => {
            if let Ok(Ok(attr)) = wire::decode_attr(data) {
                let mut again = [0; wire::STAT_RESPONSE_LEN];
                assert_eq!(wire::encode_attr(&attr, &mut again), Some(data.len()));
                assert_eq!(again, *data);
            }
        }
        1 => {
            if let Ok(Ok(number)) = wire::decode_number(data) {
                let mut again = [0; wire::NUMBER_RESPONSE_LEN];
                assert_eq!(wire::encode_number(number, &mut again), Some(data.len()));
                assert_eq!(again, *data);
            }
        }
        2 => {
            if let Ok(Ok(page)) = wire::decode_page(data) {
                let mut again = vec![0; data.len()];
                let mut writer = PageWriter::new(&mut again).unwrap();
                for (kind, name) in page.entries() {
                    assert!(writer.push(kind, name));
                }
                assert_eq!(writer.count(), page.count);
                assert_eq!(writer.finish(page.next), data.len());
                assert_eq!(again, data);
            }
        }
        _ => judge(data),
    }
}

/// A client's calls get right answers, changed ones, and any bytes.
fn judge(mut data: &[u8]) {
    let mut generator = common::generator(&TREE, 0, byte(&mut data).into());
    let mut service = MetaService::new(Arc::clone(&TREE), NODES).unwrap();
    let (mut lied, mut calls) = (false, 0);
    while !data.is_empty() && calls < CALLS_MAX as u64 {
        calls += 1;
        let mut request = [0; REQUEST_MAX];
        let planned = generator.next(&mut request);
        let mut response = vec![0; RESPONSE_MAX];
        let request = &request[..planned.len];
        let len = service
            .handle(planned.method, request, &mut response)
            .unwrap();
        response.truncate(len);
        match byte(&mut data) {
            0..=0x7f => {}
            0x80..=0xbf => {
                lied = true;
                let at = usize::from(byte(&mut data)) + 256 * usize::from(byte(&mut data) & 1);
                response[at % len] = byte(&mut data);
            }
            0xc0..=0xdf => {
                lied = true;
                response.truncate(usize::from(byte(&mut data)) % len);
            }
            _ => {
                lied = true;
                let len = byte(&mut data).into();
                response = take(&mut data, len).to_vec();
            }
        }
        let verdict = generator.check(&planned.expect, &response);
        assert!(
            lied || verdict.is_ok(),
            "a right answer is wrong: {verdict:?}"
        );
    }
    let counters = generator.counters();
    assert_eq!(
        (counters.outstanding(), counters.right + counters.wrong),
        (0, calls)
    );
}
