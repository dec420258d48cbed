//! Messages and endpoint entries of any bytes, against readers that are written as simply as can be.

use scalerpc_core::Memory;
use scalerpc_core::memory::Region;
use scalerpc_core::wire::{
    self, EXT_BYTES, Entry, Ext, FLAG_CANCELLED, FLAG_EXT, Head, LINE, Message, Placement,
    TRAILER_BYTES, Violation,
};

use super::common::arena::Arena;
use super::common::wire::snapshot;
use super::input::Input;

/// The block is not alone: nothing before and after it may be read or written.
const BEFORE: usize = 2 * LINE;
const AFTER: usize = LINE;
const GUARD: u64 = 0x6175_6772_6475_6172;

/// A block of the given bytes between guards.
fn guarded(block: &[u8]) -> Arena {
    let arena = Arena::new(BEFORE + block.len() + AFTER);
    let memory = arena.region();
    for at in (0..memory.len()).step_by(8) {
        memory.store(at, GUARD);
    }
    memory.copy_in(BEFORE, block);
    arena
}

fn guards_hold(memory: &Region, written: std::ops::Range<usize>) {
    for at in (0..memory.len())
        .step_by(8)
        .filter(|at| !written.contains(at))
    {
        assert_eq!(
            memory.load(at),
            GUARD,
            "byte {at} is outside of {written:?}"
        );
    }
}

/// CRC-32C, bit by bit.
fn crc(pieces: &[&[u8]]) -> u32 {
    let mut sum = u32::MAX;
    for byte in pieces.concat() {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = if sum & 1 == 0 {
                sum >> 1
            } else {
                sum >> 1 ^ 0x82f6_3b78
            };
        }
    }
    !sum
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// The checksum that a block should have, if the message that it claims to hold fits.
fn block_crc(block: &[u8]) -> Option<u32> {
    let end = block.len();
    let len = word(block, end - 24) as u32 as usize;
    let ext = match word(block, end - 24) >> 48 & u64::from(FLAG_EXT) {
        0 => 0,
        _ => EXT_BYTES,
    };
    let span = len.checked_add(ext + TRAILER_BYTES)?.div_ceil(LINE) * LINE;
    let start = end.checked_sub(span)?;
    let mut second = block[end - 16..end - 8].to_vec();
    second[..4].fill(0);
    Some(crc(&[
        &block[end - 32..end - 16],
        &second,
        &block[end - 8..],
        &block[start..start + len],
        &block[end - TRAILER_BYTES - ext..end - TRAILER_BYTES],
    ]))
}

/// `wire::observe`, naively. Offsets are those in the block.
fn naive(
    block: &[u8],
    owner: u64,
    valid: u64,
    placement: Placement,
) -> Result<Option<Message>, Violation> {
    let end = block.len();
    if word(block, end - 8) != valid ^ owner || word(block, end - 32) != owner {
        return Ok(None);
    }
    let (first, second) = (word(block, end - 24), word(block, end - 16));
    let head = Head {
        len: first as u32,
        tag: (first >> 32) as u16,
        flags: (first >> 48) as u16,
        slot: (second >> 32) as u32,
    };
    let sum = block_crc(block);
    let known = head.flags < FLAG_CANCELLED << 1;
    if placement == Placement::AnyOrder && (!known || sum != Some(second as u32)) {
        return Ok(None);
    }
    if !known {
        return Err(Violation::Flags);
    }
    let has_ext = head.flags & FLAG_EXT != 0;
    let ext_bytes = if has_ext { EXT_BYTES } else { 0 };
    let span = (head.len as usize + ext_bytes + TRAILER_BYTES).div_ceil(LINE) * LINE;
    if sum.is_none() || span > end {
        return Err(Violation::Length);
    }
    if has_ext && word(block, end - 40) != 0 {
        return Err(Violation::Options);
    }
    let ext = has_ext.then(|| Ext {
        epoch: word(block, end - 64),
        consumed: word(block, end - 56),
        zone: word(block, end - 48) as u32,
        pool: (word(block, end - 48) >> 32) as u32,
    });
    Ok(Some(Message {
        head,
        ext,
        payload: end - span,
    }))
}

/// A block of any bytes, and one with a message that was sealed.
pub fn message(data: &[u8]) {
    let mut input = Input::new(data);
    let placement = input.placement();
    let size = LINE * (1 + input.below(4) as usize);
    let (owner, valid) = (input.word(), input.near(7));
    let (own_trailer, own_crc, forge) = (input.flag(), input.flag(), input.flag());
    if forge {
        forged(
            &mut input,
            placement,
            size,
            owner,
            valid,
            own_trailer,
            own_crc,
        );
    } else {
        sealed(&mut input, placement, size, owner, valid);
    }
}

fn forged(
    input: &mut Input<'_>,
    placement: Placement,
    size: usize,
    owner: u64,
    valid: u64,
    own_trailer: bool,
    own_crc: bool,
) {
    let mut block = vec![0; size];
    // The end of the block comes first: that is where the choices are.
    for (to, from) in block.iter_mut().rev().zip(input.bytes(size)) {
        *to = *from;
    }
    if own_trailer {
        put(&mut block, size - 8, valid ^ owner);
        put(&mut block, size - 32, owner);
    }
    if own_crc {
        let sum = block_crc(&block).unwrap_or(0);
        block[size - 16..size - 12].copy_from_slice(&sum.to_le_bytes());
    }
    let arena = guarded(&block);
    let memory = arena.region();
    let end = BEFORE + size;
    let seen = wire::observe(memory, end, size, owner, valid, placement);
    let expected = naive(&block, owner, valid, placement).map(|message| {
        message.map(|it| Message {
            payload: it.payload + BEFORE,
            ..it
        })
    });
    assert_eq!(seen, expected);
    if let Ok(Some(message)) = seen {
        let payload_end = message.payload + message.head.len as usize;
        assert!(BEFORE <= message.payload && payload_end <= end - TRAILER_BYTES);
    }
}

fn sealed(input: &mut Input<'_>, placement: Placement, size: usize, owner: u64, valid: u64) {
    let flags = u16::from(input.byte() & 0x1f);
    let ext = (flags & FLAG_EXT != 0).then(|| Ext {
        epoch: input.word(),
        consumed: input.word(),
        zone: input.word() as u32,
        pool: input.word() as u32,
    });
    let (tag, slot) = (input.word() as u16, input.word() as u32);
    let (flip, wrong) = (input.word() as usize, input.word());
    let ext_bytes = if ext.is_some() { EXT_BYTES } else { 0 };
    let payload = input.bytes(size - TRAILER_BYTES - ext_bytes);
    let head = Head {
        len: payload.len() as u32,
        tag,
        flags,
        slot,
    };

    let arena = guarded(&vec![0x55; size]);
    let memory = arena.region();
    let end = BEFORE + size;
    let start = wire::payload_at(end, payload.len(), flags);
    assert_eq!(end - start, wire::span(payload.len(), flags));
    memory.copy_in(start, payload);
    wire::seal(memory, end, owner, head, ext, valid, placement);
    guards_hold(memory, BEFORE..end);
    let before = snapshot(memory, BEFORE, start - BEFORE);
    assert!(
        before.iter().all(|&byte| byte == 0x55),
        "before the message"
    );

    let expected = Message {
        head,
        ext,
        payload: start,
    };
    let look = |owner, valid| wire::observe(memory, end, size, owner, valid, placement);
    assert_eq!(look(owner, valid), Ok(Some(expected)));
    assert_eq!(
        snapshot(memory, start, payload.len().next_multiple_of(8))[..payload.len()],
        *payload
    );
    if wrong != 0 {
        assert_eq!(look(owner, valid ^ wrong), Ok(None), "another number");
        assert_eq!(look(owner ^ wrong, valid), Ok(None), "another owner");
        assert_eq!(
            look(owner ^ wrong, valid ^ wrong),
            Ok(None),
            "the same last word"
        );
    }

    // One bit of it changes.
    let bit = flip % (8 * (end - start));
    let at = start + bit / 64 * 8;
    memory.store(at, memory.load(at) ^ 1 << (bit % 64));
    let block = snapshot(memory, BEFORE, size);
    let seen = look(owner, valid);
    let expected = naive(&block, owner, valid, placement).map(|message| {
        message.map(|it| Message {
            payload: it.payload + BEFORE,
            ..it
        })
    });
    assert_eq!(seen, expected);
    let byte = start + bit / 8;
    let pad = start + payload.len()..end - TRAILER_BYTES - ext_bytes;
    if placement == Placement::AnyOrder && !pad.contains(&byte) {
        assert_eq!(seen, Ok(None), "a changed bit counts as not arrived");
    }
}

/// A line of any bytes, and one with an entry that was sealed.
pub fn entry(data: &[u8]) {
    let mut input = Input::new(data);
    let placement = input.placement();
    let (owner, number) = (input.word(), input.near(1));
    let (own_words, own_crc) = (input.flag(), input.flag());
    let mut line = [0; LINE];
    for (to, from) in line.iter_mut().zip(input.bytes(LINE)) {
        *to = *from;
    }
    if own_words {
        put(&mut line, 8, owner);
        put(&mut line, 56, number);
    }
    let sum = u64::from(crc(&[&line[..40], &number.to_le_bytes()]));
    if own_crc {
        put(&mut line, 40, sum);
    }
    let arena = guarded(&line);
    let memory = arena.region();
    let seen = Entry::observe(memory, BEFORE, owner, number, placement);
    let own = word(&line, 8) == owner && word(&line, 56) == number;
    let whole = placement == Placement::InOrder || word(&line, 40) == sum;
    let expected = (own && whole).then(|| Entry {
        quiet_epoch: word(&line, 0),
        first_call: word(&line, 16),
        staged_at: word(&line, 24),
        stride: word(&line, 32) as u32,
        count: (word(&line, 32) >> 32) as u32,
    });
    assert_eq!(seen, expected);

    let Some(entry) = expected else { return };
    let arena = guarded(&line);
    let memory = arena.region();
    entry.seal(memory, BEFORE, owner, number, placement);
    guards_hold(memory, BEFORE..BEFORE + LINE);
    let look = |owner, number| Entry::observe(memory, BEFORE, owner, number, placement);
    assert_eq!(look(owner, number), Some(entry));
    assert_eq!(look(owner.wrapping_add(1), number), None);
    assert_eq!(look(owner, number.wrapping_add(1)), None);
    if placement == Placement::AnyOrder {
        let bit = usize::from(input.byte()) + (usize::from(input.byte()) << 8);
        // The word between the checksum and the number says nothing.
        let (at, bit) = (bit / 64 % 8 * 8, bit % 64);
        memory.store(BEFORE + at, memory.load(BEFORE + at) ^ 1 << bit);
        assert_eq!(
            look(owner, number).is_some(),
            at == 48,
            "bit {bit} of word {at}"
        );
    }
}
