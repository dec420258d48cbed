//! Proof that `scalerpc-core` needs neither `std` nor an allocator nor unwinding.
//!
//! This binary has no global allocator: a dependency that brings in `alloc` does not compile, and
//! `ci.sh nostd` refuses every undefined symbol that is not on its short list. It exits with 0, or
//! with the place in [`CHECKS`] (from 1) of the first check that did not hold.
#![no_std]
#![no_main]

mod calls;

use core::cell::UnsafeCell;
use core::hint::black_box;
use core::ptr::NonNull;

use scalerpc_core::wire::{Entry, FLAG_ACTIVATE, FLAG_EXT, Head, Placement};
use scalerpc_core::wire::{Ext, observe, payload_at, seal};
use scalerpc_core::{Geometry, GeometryConfig, GeometryError, Memory, Region};

/// What is run, in this order. One line for each part of the core's API.
const CHECKS: &[fn() -> bool] = &[
    geometry_is_laid_out,
    geometry_is_refused,
    message_arrives_in_order,
    message_arrives_with_crc,
    message_of_another_owner_is_not_seen,
    entry_arrives,
    calls::calls_are_answered,
];

const OWNER: u64 = 0x5ca1_e29c_0000_0001;

fn geometry_is_laid_out() -> bool {
    geometry().is_some_and(|g| {
        let end = g.block_end(g.pools() - 1, g.zones() - 1, 0);
        end % 64 == 0 && end <= g.server_exposed_bytes() && g.server_exposed_bytes() <= BYTES
    })
}

fn geometry_is_refused() -> bool {
    let config = GeometryConfig {
        window: black_box(3),
        ..GeometryConfig::default()
    };
    Geometry::new(config) == Err(GeometryError::WindowNotPowerOfTwo { value: 3 })
}

fn message_arrives_in_order() -> bool {
    message_arrives(black_box(Placement::InOrder), OWNER) == Some(true)
}

fn message_arrives_with_crc() -> bool {
    message_arrives(black_box(Placement::AnyOrder), OWNER) == Some(true)
}

fn message_of_another_owner_is_not_seen() -> bool {
    message_arrives(black_box(Placement::InOrder), OWNER + 1) == Some(false)
}

/// Writes a message of `OWNER` and looks for one of `reader`: did it arrive as it was sent?
fn message_arrives(placement: Placement, reader: u64) -> Option<bool> {
    const PAYLOAD: &[u8] = b"thirty-two bytes of a request...";
    let geometry = geometry()?;
    let memory = memory();
    let end = geometry.block_end(0, 0, 1);
    let head = Head {
        len: PAYLOAD.len() as u32,
        tag: 7,
        flags: FLAG_EXT | FLAG_ACTIVATE,
        slot: 1,
    };
    let ext = Ext {
        epoch: 9,
        ..Ext::default()
    };
    memory.copy_in(payload_at(end, PAYLOAD.len(), head.flags), PAYLOAD);
    seal(&memory, end, OWNER, head, Some(ext), 1, placement);

    let size = geometry.request_block_bytes();
    let Some(message) = observe(&memory, end, size, reader, 1, placement).ok()? else {
        return Some(false);
    };
    let mut payload = [0; PAYLOAD.len()];
    memory.copy_out(message.payload, &mut payload);
    (message.head == head && message.ext == Some(ext) && payload == PAYLOAD).then_some(true)
}

fn entry_arrives() -> bool {
    let Some(geometry) = geometry() else {
        return false;
    };
    let (memory, at) = (memory(), geometry.endpoint(0));
    let entry = Entry {
        quiet_epoch: 8,
        first_call: 2,
        staged_at: 64,
        stride: 64,
        count: 1,
    };
    let placement = black_box(Placement::AnyOrder);
    entry.seal(&memory, at, OWNER, 3, placement);
    Entry::observe(&memory, at, OWNER, 3, placement) == Some(entry)
}

/// A geometry small enough for [`memory`].
fn geometry() -> Option<Geometry> {
    Geometry::new(black_box(GeometryConfig {
        clients_max: 2,
        group_size: 1,
        window: 4,
        request_max_bytes: 64,
        response_max_bytes: 64,
        ..GeometryConfig::default()
    }))
    .ok()
}

/// The bytes that the checks share, one after the other.
const BYTES: usize = 64 << 10;

#[repr(C, align(64))]
struct Bytes(UnsafeCell<[u8; BYTES]>);

// SAFETY: the bytes are reached only through `memory`, and there is one thread.
unsafe impl Sync for Bytes {}

static SHARED: Bytes = Bytes(UnsafeCell::new([0; BYTES]));

fn memory() -> Region {
    let base = NonNull::from(&SHARED.0).cast();
    // SAFETY: a static lives forever, is aligned to 64, and nothing else looks at its bytes.
    unsafe { Region::new(base, BYTES) }
}

#[link(name = "c")]
unsafe extern "C" {
    safe fn abort() -> !;
}

/// Called by the C runtime's start code.
// SAFETY: no other item of this binary or of the C library's API has this name.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    for (at, check) in (1..).zip(black_box(CHECKS)) {
        if !check() {
            return at;
        }
    }
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    abort()
}
