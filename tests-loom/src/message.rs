//! Messages of the models: each says in every payload byte whose it is and which.

use scalerpc_core::wire::{self, Entry, Ext, Head, Message, Placement};
use scalerpc_core::{Geometry, GeometryConfig, Memory};

use crate::memory::LoomMemory;

/// Bytes of every payload.
pub const PAYLOAD: usize = 16;

/// Bytes of a request, and of a response without an extension.
pub const SPAN: usize = wire::span(PAYLOAD, 0);

/// The smallest geometry that has what the models need: three seats, groups of one, two zones per pool.
///
/// # Panics
///
/// If `window` is not a power of two.
pub fn geometry(window: u32) -> Geometry {
    let config = GeometryConfig {
        clients_max: 3,
        group_size: 1,
        window,
        request_max_bytes: PAYLOAD as u32,
        response_max_bytes: PAYLOAD as u32,
        ..GeometryConfig::default()
    };
    Geometry::new(config).expect("the numbers are in range")
}

/// The payload of message `number` of `owner`.
pub fn payload(owner: u64, number: u64) -> [u8; PAYLOAD] {
    let mut bytes = [0; PAYLOAD];
    for (i, word) in bytes.chunks_mut(8).enumerate() {
        word.copy_from_slice(
            &owner
                .rotate_left(8 * i as u32)
                .wrapping_add(number)
                .to_le_bytes(),
        );
    }
    bytes
}

/// The header of message `number`, which differs from one message to the next.
pub fn head(number: u64, flags: u16) -> Head {
    Head {
        len: PAYLOAD as u32,
        tag: number as u16,
        flags,
        slot: number as u32,
    }
}

/// Puts a message at `start` of `memory`, as an engine does in its private memory; returns its bytes.
pub fn put(
    memory: &LoomMemory,
    start: usize,
    owner: u64,
    number: u64,
    ext: Option<Ext>,
    flags: u16,
) -> usize {
    let flags = if ext.is_some() {
        flags | wire::FLAG_EXT
    } else {
        flags
    };
    let span = wire::span(PAYLOAD, flags);
    memory.copy_in(start, &payload(owner, number));
    wire::seal(
        memory,
        start + span,
        owner,
        head(number, flags),
        ext,
        number,
        Placement::InOrder,
    );
    span
}

/// Looks for message `number` of `owner` in the block that ends at `end`, and if it is there checks
/// every part of it.
///
/// # Panics
///
/// If it is there, and not whole.
pub fn look(
    memory: &LoomMemory,
    end: usize,
    size: usize,
    owner: u64,
    number: u64,
) -> Option<Message> {
    let message = wire::observe(memory, end, size, owner, number, Placement::InOrder)
        .expect("torn message: its header cannot be")?;
    let flags = message.head.flags;
    assert_eq!(
        message.head,
        head(number, flags),
        "torn message: its header is another's"
    );
    let mut bytes = [0; PAYLOAD];
    memory.copy_out(message.payload, &mut bytes);
    assert_eq!(
        bytes,
        payload(owner, number),
        "torn message: its payload is another's"
    );
    // As a handler does, which gets a reference.
    memory.owned_bytes(message.payload, PAYLOAD);
    Some(message)
}

/// The entry that stages one call at `staged_at`.
pub fn entry(quiet_epoch: u64, first_call: u64, staged_at: usize) -> Entry {
    Entry {
        quiet_epoch,
        first_call,
        staged_at: staged_at as u64,
        stride: SPAN as u32,
        count: 1,
    }
}

/// Asks up to `tries` times, and lets the others go on in between.
pub fn poll<T>(tries: usize, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..tries {
        if let Some(found) = ask() {
            return Some(found);
        }
        loom::thread::yield_now();
    }
    None
}
