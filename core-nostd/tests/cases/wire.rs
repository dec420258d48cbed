//! Bytes on the wire: fixed layout, torn and forged messages.

use proptest::prelude::*;
use scalerpc_core::Memory;
use scalerpc_core::wire::{
    self, Entry, Ext, FLAG_ACTIVATE, FLAG_CONTROL, FLAG_EXT, FLAG_SWITCH, Head, LINE, Message,
    Placement, Violation, observe, payload_at, seal, span,
};

use crate::common::arena::Arena;
use crate::common::wire::{land, snapshot};

const OWNER: u64 = 0x0123_4567_89ab_cdef;
const EXT: Ext = Ext {
    epoch: 0x1111_2222_3333_4444,
    consumed: 0x5555_6666_7777_8888,
    zone: 0x9999_aaaa,
    pool: 0xbbbb_cccc,
};

fn head(len: usize, flags: u16) -> Head {
    Head {
        len: len as u32,
        tag: 0xa1a2,
        flags,
        slot: 0xb1b2_b3b4,
    }
}

/// A sealed message at the end of a block of `size` bytes, all of it.
fn sealed(size: usize, payload: &[u8], flags: u16, valid: u64, placement: Placement) -> Arena {
    let arena = Arena::new(size);
    let ext = (flags & FLAG_EXT != 0).then_some(EXT);
    arena
        .region()
        .copy_in(payload_at(size, payload.len(), flags), payload);
    let head = head(payload.len(), flags);
    seal(arena.region(), size, OWNER, head, ext, valid, placement);
    arena
}

fn look(arena: &Arena, size: usize, placement: Placement) -> Result<Option<Message>, Violation> {
    observe(arena.region(), size, size, OWNER, 7, placement)
}

/// Field case E9: every field at its place, little-endian, whatever the host.
#[test]
fn a_message_has_these_very_bytes() {
    let arena = sealed(64, b"abc", 0, 7, Placement::InOrder);
    #[rustfmt::skip]
    let golden: [u8; 64] = [
        b'a', b'b', b'c', 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,           0, 0, 0, 0, 0, 0, 0, 0,
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,
        3, 0, 0, 0, 0xa2, 0xa1, 0, 0,
        0, 0, 0, 0, 0xb4, 0xb3, 0xb2, 0xb1,
        // The number, 7, xor the owner.
        0xe8, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,
    ];
    assert_eq!(snapshot(arena.region(), 0, 64), golden);
}

/// Field case E9.
#[test]
fn a_message_with_an_extension_and_a_checksum_has_these_very_bytes() {
    let flags = FLAG_EXT | FLAG_ACTIVATE;
    let arena = sealed(64, b"", flags, 7, Placement::AnyOrder);
    #[rustfmt::skip]
    let golden: [u8; 64] = [
        0x44, 0x44, 0x33, 0x33, 0x22, 0x22, 0x11, 0x11,
        0x88, 0x88, 0x77, 0x77, 0x66, 0x66, 0x55, 0x55,
        0xaa, 0xaa, 0x99, 0x99, 0xcc, 0xcc, 0xbb, 0xbb,
        0, 0, 0, 0, 0, 0, 0, 0,
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,
        0, 0, 0, 0, 0xa2, 0xa1, 3, 0,
        CRC[0], CRC[1], CRC[2], CRC[3], 0xb4, 0xb3, 0xb2, 0xb1,
        0xe8, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,
    ];
    assert_eq!(snapshot(arena.region(), 0, 64), golden);
    // The checksum covers owner, length to slot, valid, payload, and extension, in this order.
    let covered = [
        &golden[32..40],
        &golden[40..48],
        &[0, 0, 0, 0],
        &golden[52..56],
        &golden[56..64],
        &golden[..32],
    ];
    assert_eq!(crc_32c(&covered.concat()).to_le_bytes(), CRC);
}

const CRC: [u8; 4] = [0xad, 0xad, 0x31, 0x52];

/// CRC-32C, bit by bit.
fn crc_32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// Field case E9.
#[test]
fn an_entry_has_these_very_bytes() {
    assert_eq!(crc_32c(b"123456789"), 0xe306_9283);
    let entry = Entry {
        quiet_epoch: 0x0102,
        first_call: 0x0304_0506,
        staged_at: 0x1_0000_0040,
        stride: 128,
        count: 5,
    };
    for placement in [Placement::InOrder, Placement::AnyOrder] {
        let arena = Arena::new(64);
        entry.seal(arena.region(), 0, OWNER, 9, placement);
        #[rustfmt::skip]
        let mut golden: [u8; 64] = [
            0x02, 0x01, 0, 0, 0, 0, 0, 0,
            0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,
            0x06, 0x05, 0x04, 0x03, 0, 0, 0, 0,
            0x40, 0, 0, 0, 1, 0, 0, 0,
            128, 0, 0, 0, 5, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0,
            9, 0, 0, 0, 0, 0, 0, 0,
        ];
        if placement == Placement::AnyOrder {
            let crc = crc_32c(&[&golden[..40], &golden[56..]].concat());
            golden[40..44].copy_from_slice(&crc.to_le_bytes());
        }
        assert_eq!(snapshot(arena.region(), 0, 64), golden);
        let seen = Entry::observe(arena.region(), 0, OWNER, 9, placement);
        assert_eq!(seen, Some(entry));
        for (owner, number) in [(OWNER ^ 1, 9), (OWNER, 8), (OWNER, 10)] {
            let other = Entry::observe(arena.region(), 0, owner, number, placement);
            assert_eq!(other, None);
        }
    }
}

/// Section 3 of the design: small messages cost little.
#[test]
fn a_request_of_32_bytes_is_one_line() {
    assert_eq!((span(0, 0), span(32, 0), span(33, 0)), (64, 64, 128));
    assert_eq!((span(0, FLAG_EXT), span(1, FLAG_EXT)), (64, 128));
    for len in 0..300 {
        assert_eq!(
            payload_at(1_024, len, 0) % LINE,
            0,
            "payloads begin with a line"
        );
    }
}

/// Field case J1, where `valid` alone is trusted.
#[test]
fn impossible_lengths_and_flags_are_violations() {
    let size = 256;
    let max = size - 32;
    let forged = |len: u32, flags: u16, placement| {
        let arena = sealed(size, b"x", 0, 7, placement);
        let first = u64::from(len) | u64::from(flags) << 48;
        arena.region().store(size - 24, first);
        look(&arena, size, placement)
    };
    for len in [
        max as u32 + 1,
        size as u32,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX,
    ] {
        assert_eq!(forged(len, 0, Placement::InOrder), Err(Violation::Length));
        assert_eq!(forged(len, 0, Placement::AnyOrder), Ok(None));
    }
    let with_ext = max as u32 - 31;
    assert_eq!(
        forged(with_ext, FLAG_EXT, Placement::InOrder),
        Err(Violation::Length)
    );
    for bit in 5..16 {
        assert_eq!(
            forged(1, 1 << bit, Placement::InOrder),
            Err(Violation::Flags)
        );
        assert_eq!(forged(1, 1 << bit, Placement::AnyOrder), Ok(None));
    }
    assert!(matches!(
        forged(max as u32, 0, Placement::InOrder),
        Ok(Some(_))
    ));
    assert!(matches!(forged(0, 0, Placement::InOrder), Ok(Some(_))));
}

/// A message of another owner or another number is nothing at all.
#[test]
fn only_the_message_that_is_awaited_is_seen() {
    let arena = sealed(128, b"abc", 0, 7, Placement::InOrder);
    let at = |owner, valid| observe(arena.region(), 128, 128, owner, valid, Placement::InOrder);
    assert!(matches!(at(OWNER, 7), Ok(Some(_))));
    for (owner, valid) in [
        (OWNER, 6),
        (OWNER, 8),
        (OWNER, 0),
        (!OWNER, 7),
        (0, 7),
        (OWNER, !7),
    ] {
        assert_eq!(at(owner, valid), Ok(None));
    }
}

fn flag_sets() -> impl Strategy<Value = u16> {
    prop_oneof![
        Just(0),
        Just(FLAG_EXT | FLAG_ACTIVATE),
        Just(FLAG_EXT | FLAG_SWITCH),
        Just(FLAG_EXT | FLAG_SWITCH | FLAG_CONTROL),
    ]
}

const SIZE: usize = 512;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_sealed_is_observed(
        payload in prop::collection::vec(any::<u8>(), 0..=SIZE - 64),
        flags in flag_sets(), in_order in any::<bool>(),
    ) {
        let placement = if in_order { Placement::InOrder } else { Placement::AnyOrder };
        let arena = sealed(SIZE, &payload, flags, 7, placement);
        let message = look(&arena, SIZE, placement).unwrap().unwrap();
        prop_assert_eq!(message.head, head(payload.len(), flags));
        prop_assert_eq!(message.ext, (flags != 0).then_some(EXT));
        prop_assert_eq!(snapshot(arena.region(), message.payload, payload.len()), payload);
    }

    /// Field case J1: whatever is there, nobody reads outside of the block.
    #[test]
    fn a_message_that_is_accepted_lies_inside_its_block(
        noise in prop::collection::vec(any::<u8>(), SIZE), len in prop_oneof![0..600_u32, any::<u32>()],
        flags in prop_oneof![0..16_u16, any::<u16>()], block in 1..8_usize, in_order in any::<bool>(),
        matches in any::<bool>(),
    ) {
        let placement = if in_order { Placement::InOrder } else { Placement::AnyOrder };
        let (arena, size) = (Arena::new(SIZE), block * LINE);
        land(arena.region(), 0, &noise);
        if matches {
            arena.region().store(SIZE - 32, OWNER);
            arena.region().store(SIZE - 24, u64::from(len) | u64::from(flags) << 48);
            arena.region().store(SIZE - 8, 7);
        }
        let seen = observe(arena.region(), SIZE, size, OWNER, 7, placement);
        if let Ok(Some(message)) = seen {
            prop_assert!(matches && in_order);
            let len = message.head.len as usize;
            let ext = if message.ext.is_some() { 32 } else { 0 };
            prop_assert!(message.payload >= SIZE - size);
            prop_assert!(message.payload + len + ext + 32 <= SIZE);
        }
        let entry = Entry::observe(arena.region(), SIZE - LINE, OWNER, 7, placement);
        prop_assert!(entry.is_none() || noise[SIZE - 56..SIZE - 48] == OWNER.to_le_bytes());
    }

    /// A WRITE whose bytes land in any order: what is torn or flipped has not arrived.
    #[test]
    fn with_a_checksum_a_damaged_message_does_not_arrive(
        payload in prop::collection::vec(any::<u8>(), 1..=SIZE - 64), flags in flag_sets(),
        flip in any::<prop::sample::Index>(), line in any::<prop::sample::Index>(),
        before in any::<u8>(),
    ) {
        let whole = sealed(SIZE, &payload, flags, 7, Placement::AnyOrder);
        let start = payload_at(SIZE, payload.len(), flags);
        let bytes = snapshot(whole.region(), start, SIZE - start);
        // A single bit, of those that mean something: the pad does not.
        let pad = payload.len()..bytes.len() - 32 - if flags == 0 { 0 } else { 32 };
        let bit = flip.index(bytes.len() * 8);
        if !pad.contains(&(bit / 8)) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let arena = Arena::new(SIZE);
            land(arena.region(), start, &flipped);
            prop_assert_eq!(look(&arena, SIZE, Placement::AnyOrder), Ok(None));
        }
        // A line that is not there yet: what was there before differs from it.
        let missing = line.index(bytes.len() / LINE) * LINE..;
        let missing = missing.start..missing.start + LINE;
        let mut torn = bytes.clone();
        torn[missing.clone()].fill(before);
        let meaning = |bytes: &[u8]| [&bytes[..pad.start], &bytes[pad.end..]].concat();
        if meaning(&torn) != meaning(&bytes) {
            let arena = Arena::new(SIZE);
            land(arena.region(), start, &torn);
            prop_assert_eq!(look(&arena, SIZE, Placement::AnyOrder), Ok(None));
        }
    }

    /// A WRITE whose bytes land in increasing order, on top of an older message of the same owner.
    #[test]
    fn a_prefix_of_a_message_is_never_observed(
        old in prop::collection::vec(any::<u8>(), 0..=SIZE - 64),
        new in prop::collection::vec(any::<u8>(), 0..=SIZE - 64), flags in flag_sets(),
    ) {
        let arena = sealed(SIZE, &old, flags, 5, Placement::InOrder);
        let whole = sealed(SIZE, &new, flags, 7, Placement::InOrder);
        let start = payload_at(SIZE, new.len(), flags);
        for at in (start..SIZE).step_by(8) {
            prop_assert_eq!(look(&arena, SIZE, Placement::InOrder), Ok(None));
            arena.region().store(at, whole.region().load(at));
        }
        let message = look(&arena, SIZE, Placement::InOrder).unwrap().unwrap();
        prop_assert_eq!(snapshot(arena.region(), message.payload, new.len()), new);
    }

    /// Entries too.
    #[test]
    fn with_a_checksum_a_damaged_entry_does_not_arrive(
        words in any::<[u64; 3]>(), halves in any::<[u32; 2]>(), bit in 0..64 * 8_usize,
    ) {
        let entry = Entry {
            quiet_epoch: words[0],
            first_call: words[1],
            staged_at: words[2],
            stride: halves[0],
            count: halves[1],
        };
        let arena = Arena::new(LINE);
        entry.seal(arena.region(), 0, OWNER, 3, Placement::AnyOrder);
        let see = || Entry::observe(arena.region(), 0, OWNER, 3, Placement::AnyOrder);
        prop_assert_eq!(see(), Some(entry));
        let word = bit / 64 * 8;
        arena.region().store(word, arena.region().load(word) ^ 1 << (bit % 64));
        // The word at 48 means nothing.
        prop_assert_eq!(see(), (word == 48).then_some(entry));
    }
}

/// The tags that answers carry.
#[test]
fn statuses_of_handlers_and_of_the_protocol_do_not_meet() {
    use wire::Status;
    let protocol = [
        Status::OK,
        Status::UNKNOWN_METHOD,
        Status::RESPONSE_TOO_LARGE,
        Status::BUSY,
    ];
    for code in 0..=255 {
        assert!(!protocol.contains(&Status::application(code)));
        assert_eq!(
            Status::application(code).to_string(),
            format!("application status {code}")
        );
    }
}
