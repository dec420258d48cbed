//! Requests and responses: there and back, and arbitrary bytes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use proptest::prelude::*;
use scalerpc_cli::meta::wire::{
    self, Attr, Kind, Malformed, Method, PAGE_HEADER_LEN, PageWriter, Request, Status, cookie,
};

fn kinds() -> impl Strategy<Value = Kind> {
    (1..=4_u8).prop_map(|number| Kind::from_u8(number).unwrap())
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..=255)
        .prop_filter("valid", |name| wire::name_is_valid(name))
}

fn name_lists() -> impl Strategy<Value = Vec<Vec<u8>>> {
    // Short ones mostly: a random long name has a '/' or a NUL more often than not.
    prop::collection::vec(
        prop_oneof![9 => "[a-z. ]{1,9}[a-z]".prop_map(String::into_bytes), 1 => names()],
        0..12,
    )
}

fn attrs() -> impl Strategy<Value = Attr> {
    (kinds(), any::<[u32; 3]>(), any::<[u64; 3]>(), any::<i64>()).prop_map(
        |(kind, [mode, uid, gid], [size, ino, number], mtime_ns)| Attr {
            kind,
            mode,
            uid,
            gid,
            size,
            mtime_ns,
            ino,
            number,
        },
    )
}

fn methods() -> impl Strategy<Value = Method> {
    (0..4_usize).prop_map(|index| Method::ALL[index])
}

fn request(method: Method, cookie: u64, path: &[u8]) -> Request<'_> {
    match method {
        Method::Stat => Request::Stat { path },
        Method::ReadDir => Request::ReadDir { cookie, path },
        Method::Mknod => Request::Mknod { path },
        Method::Rmnod => Request::Rmnod { path },
    }
}

proptest! {
    #[test]
    fn requests_there_and_back(method in methods(), cookie: u64, path in name_lists()) {
        let path = path.join(&b'/');
        let request = request(method, cookie, &path);
        let mut bytes = vec![0xee; wire::REQUEST_OVERHEAD_MAX + path.len()];
        let len = request.encode(&mut bytes).unwrap();
        prop_assert_eq!(Request::decode(method, &bytes[..len]), Ok(request));
        prop_assert_eq!(request.method(), method);
        // No shorter, no longer.
        for shorter in 0..len {
            prop_assert_eq!(Request::decode(method, &bytes[..shorter]), Err(Malformed::Short));
            prop_assert_eq!(request.encode(&mut bytes.clone()[..shorter]), None);
        }
        bytes.truncate(len);
        bytes.push(0);
        prop_assert_eq!(Request::decode(method, &bytes), Err(Malformed::Trailing));
    }

    #[test]
    fn attributes_there_and_back(attr in attrs()) {
        let mut bytes = [0xee; wire::STAT_RESPONSE_LEN + 1];
        let len = wire::encode_attr(&attr, &mut bytes).unwrap();
        prop_assert_eq!(len, wire::STAT_RESPONSE_LEN);
        prop_assert_eq!(wire::decode_attr(&bytes[..len]), Ok(Ok(attr)));
        prop_assert_eq!(wire::decode_attr(&bytes), Err(Malformed::Trailing));
        for shorter in 0..len {
            prop_assert_eq!(wire::decode_attr(&bytes[..shorter]), Err(Malformed::Short));
            prop_assert_eq!(wire::encode_attr(&attr, &mut [0; 64][..shorter]), None);
        }
    }

    #[test]
    fn pages_there_and_back(
        entries in name_lists().prop_flat_map(|names| {
            let kinds = prop::collection::vec(kinds(), names.len());
            (kinds, Just(names))
        }),
        next: u64,
        room in 0..600_usize,
    ) {
        let mut bytes = vec![0xee; room];
        let Some(mut page) = PageWriter::new(&mut bytes) else {
            prop_assert!(room < PAGE_HEADER_LEN);
            return Ok(());
        };
        let mut used = PAGE_HEADER_LEN;
        let mut fit = Vec::new();
        for (kind, name) in entries.0.iter().zip(&entries.1) {
            let fits = used + 2 + name.len() <= room;
            prop_assert_eq!(page.push(*kind, name), fits);
            if !fits {
                break;
            }
            used += 2 + name.len();
            fit.push((*kind, name.as_slice()));
        }
        prop_assert_eq!(usize::from(page.count()), fit.len());
        let len = page.finish(next);
        prop_assert_eq!(len, used);
        let page = wire::decode_page(&bytes[..len]).unwrap().unwrap();
        prop_assert_eq!(page.next, next);
        prop_assert_eq!(page.entries().collect::<Vec<_>>(), fit);
        for shorter in 0..len {
            prop_assert!(matches!(wire::decode_page(&bytes[..shorter]), Err(Malformed::Short)));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), small: bool) {
        let mut bytes = bytes;
        if small {
            // Lengths and kinds that make sense get further.
            bytes.iter_mut().for_each(|byte| *byte %= 5);
        }
        for method in Method::ALL {
            if let Ok(request) = Request::decode(method, &bytes) {
                let mut again = vec![0; bytes.len()];
                prop_assert_eq!(request.encode(&mut again), Some(bytes.len()));
                prop_assert_eq!(&again, &bytes);
            }
        }
        if let Ok(Ok(attr)) = wire::decode_attr(&bytes) {
            let mut again = vec![0; bytes.len()];
            prop_assert_eq!(wire::encode_attr(&attr, &mut again), Some(bytes.len()));
            prop_assert_eq!(&again, &bytes);
        }
        if let Ok(Ok(page)) = wire::decode_page(&bytes) {
            prop_assert_eq!(page.entries().count(), usize::from(page.count));
        }
        let _ = wire::decode_number(&bytes);
    }

    #[test]
    fn valid_is_what_the_naive_rule_says(
        path in prop::collection::vec(prop::sample::select(b"a./\0".to_vec()), 0..9),
    ) {
        let text = String::from_utf8(path.clone()).unwrap();
        let naive = text.is_empty()
            || !text.split('/').any(|name| ["", ".", ".."].contains(&name) || name.contains('\0'));
        prop_assert_eq!(wire::path_is_valid(&path), naive);
    }

    #[test]
    fn cookies_there_and_back(slot in 0..cookie::SLOTS_MAX, number in 0..=cookie::NUMBER_MAX, index in 0..u64::MAX >> 1) {
        prop_assert_eq!(cookie::created(cookie::after_created(slot, number)), Some((slot, number)));
        prop_assert_eq!(cookie::created(index), None);
    }
}

#[test]
fn statuses_and_methods_and_kinds_are_told_apart() {
    for number in 0..=u8::MAX {
        if let Some(status) = Status::from_u8(number) {
            assert_eq!(status as u8, number);
            let mut byte = [0];
            assert_eq!(wire::encode_status(status, &mut byte), 1);
            if status != Status::Ok {
                assert_eq!(wire::decode_attr(&byte), Ok(Err(status)));
                assert_eq!(wire::decode_number(&byte), Ok(Err(status)));
                assert!(matches!(wire::decode_page(&byte), Ok(Err(it)) if it == status));
            }
        } else {
            assert_eq!(wire::decode_attr(&[number]), Err(Malformed::Status(number)));
        }
        assert!(Kind::from_u8(number).is_none_or(|kind| kind as u8 == number));
    }
    assert_eq!(wire::encode_status(Status::NotFound, &mut []), 0);
    for number in 0..=u16::MAX {
        assert!(Method::from_u16(number).is_none_or(|method| method as u16 == number));
    }
    assert!(
        Method::ALL
            .iter()
            .all(|method| Method::from_u16(*method as u16) == Some(*method))
    );
}

#[test]
fn names_at_the_limit() {
    assert!(wire::name_is_valid(&[b'x'; 255]));
    assert!(!wire::name_is_valid(&[b'x'; 256]));
    assert!(wire::name_is_valid(b"..."));
    // Longer than the length field can say.
    let path = vec![b'x'; 65_536];
    assert_eq!(
        Request::Stat { path: &path }.encode(&mut vec![0; 70_000]),
        None
    );
}
