//! What the hardware gives: two threads that pass messages through slots, with no library in between.
//!
//! A connection has `window` slots for requests, which the clients' thread writes, and as many for answers, which the
//! server's does. A payload begins on a line, and the word behind it says which message it is: written last, and in the
//! same line where there is room. Messages are read in place.

use std::cell::UnsafeCell;
use std::error::Error;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{BYTE, Load, Runner, Sample, check, take_turn};
use crate::cpus::Cpus;

const LINE: usize = 64;
/// Of the word behind the payload.
const WORD: usize = 8;

#[repr(align(64))]
struct Line(#[expect(dead_code)] UnsafeCell<[u8; LINE]>);

/// The slots of all connections, in one direction. The size of a message is constant, so that copying one is not a call.
struct Slots<const SIZE: usize>(Box<[Line]>);

// SAFETY: a payload is written by one thread before it stores the word behind it with release, and read by the other one
// after it has loaded that word with acquire. It is written again only after an answer to what was read has come.
unsafe impl<const SIZE: usize> Sync for Slots<SIZE> {}

impl<const SIZE: usize> Slots<SIZE> {
    const LINES: usize = (SIZE + WORD).div_ceil(LINE);

    fn new(slots: usize) -> Self {
        let line = || Line(UnsafeCell::new([0; LINE]));
        Self((0..slots * Self::LINES).map(|_| line()).collect())
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        let lines = &self.0[slot * Self::LINES..(slot + 1) * Self::LINES];
        lines.as_ptr().cast_mut().cast()
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: a slot is longer than its payload by a word at least.
        let word = unsafe { self.slot(slot).add(SIZE) };
        // SAFETY: it is aligned, since slots begin on lines and sizes are multiples of a word; it lives as long as
        // `self`; and nobody touches it otherwise.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// The message in a slot, once it is the one with this number. It may be looked at until it is answered.
    #[inline]
    fn read(&self, slot: usize, number: u64) -> Option<&[u8; SIZE]> {
        // Ordering: acquire, with the release in `write`.
        let is_there = self.word(slot).load(Ordering::Acquire) == number;
        // SAFETY: as said at `Sync`.
        is_there.then(|| unsafe { &*self.slot(slot).cast_const().cast() })
    }

    /// Only for who has seen the answer to what is in the slot, or the request that is to be answered.
    #[inline]
    fn write<const STREAM: bool>(&self, slot: usize, number: u64, payload: &[u8; SIZE]) {
        let to = self.slot(slot);
        match STREAM {
            // SAFETY: a slot has room for it, and the other end does not look at it before the word is there; slots and
            // sizes are multiples of what is stored at once.
            true => unsafe { stream(payload.as_ptr(), to, SIZE) },
            // SAFETY: as above.
            false => unsafe { ptr::copy_nonoverlapping(payload.as_ptr(), to, SIZE) },
        }
        // Ordering: release, with the acquire in `read`.
        self.word(slot).store(number, Ordering::Release);
    }
}

/// Whether [`stream`] is there.
pub(super) const CAN_STREAM: bool = cfg!(target_arch = "x86_64");

/// Copies with stores that go around the caches.
///
/// # Safety
///
/// As of [`ptr::copy_nonoverlapping`]; `to` and `bytes` are multiples of 16.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..bytes).step_by(16) {
        // SAFETY: what is copied is in bounds, says the caller.
        let from = unsafe { from.add(at) };
        // SAFETY: as above.
        let to = unsafe { to.add(at) };
        // SAFETY: as above; this load may be unaligned.
        let piece = unsafe { _mm_loadu_si128(from.cast()) };
        // SAFETY: as above; and the place is aligned.
        unsafe { _mm_stream_si128(to.cast(), piece) };
    }
    // SAFETY: every processor of this kind has it. Without it such stores may come after the word behind the payload.
    unsafe { _mm_sfence() };
}

/// There are no such stores here.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

/// The next message of a connection: its number, from 1, and its slot of the connection's.
#[derive(Clone, Copy)]
struct Next {
    number: u64,
    slot: usize,
}

impl Next {
    fn advance(&mut self, window: usize) {
        self.number += 1;
        self.slot = if self.slot + 1 == window {
            0
        } else {
            self.slot + 1
        };
    }
}

struct Floor<const SIZE: usize, const STREAM: bool> {
    load: Load,
    cpus: Cpus,
    requests: Slots<SIZE>,
    answers: Slots<SIZE>,
    /// By connection, what the server waits for, and what the clients do.
    served: Vec<Next>,
    awaited: Vec<Next>,
}

/// The floor; with `STREAM`, payloads are stored around the caches.
pub(super) fn start<const STREAM: bool>(
    load: Load,
    cpus: Cpus,
) -> Result<Box<dyn Runner>, Box<dyn Error>> {
    Ok(match load.size {
        32 => Box::new(Floor::<32, STREAM>::new(load, cpus)),
        64 => Box::new(Floor::<64, STREAM>::new(load, cpus)),
        256 => Box::new(Floor::<256, STREAM>::new(load, cpus)),
        1024 => Box::new(Floor::<1024, STREAM>::new(load, cpus)),
        4096 => Box::new(Floor::<4096, STREAM>::new(load, cpus)),
        size => return Err(format!("there is no floor for messages of {size} bytes").into()),
    })
}

impl<const SIZE: usize, const STREAM: bool> Floor<SIZE, STREAM> {
    fn new(load: Load, cpus: Cpus) -> Self {
        let slots = load.outstanding() as usize;
        let connections = load.connections as usize;
        let first = || {
            // With room behind, so that what the two ends write is not in the same lines.
            let mut first = Vec::with_capacity(connections + 2 * LINE / size_of::<Next>());
            first.resize(connections, Next { number: 1, slot: 0 });
            first
        };
        let requests = Slots::new(slots);
        for slot in 0..slots {
            let number = slot as u64 % u64::from(load.window) + 1;
            requests.write::<false>(slot, number, &[BYTE; SIZE]);
        }
        Self {
            load,
            cpus,
            requests,
            answers: Slots::new(slots),
            served: first(),
            awaited: first(),
        }
    }
}

impl<const SIZE: usize, const STREAM: bool> Runner for Floor<SIZE, STREAM> {
    fn run(&mut self, warm: Duration, time: Duration) -> Result<Sample, Box<dyn Error>> {
        /// Looks at a connection between two at the clock.
        const LOOKS: usize = 256;
        let Self {
            load,
            requests,
            answers,
            served,
            awaited,
            ..
        } = self;
        let (requests, answers, load) = (&*requests, &*answers, *load);
        let window = load.window as usize;
        let rounds = LOOKS.div_ceil(awaited.len());
        let serve = move || {
            for (connection, next) in served.iter_mut().enumerate() {
                let slot = connection * window + next.slot;
                if let Some(request) = requests.read(slot, next.number) {
                    answers.write::<STREAM>(slot, next.number, request);
                    next.advance(window);
                }
            }
        };
        take_turn(self.cpus, [warm, time], serve, move || {
            let mut answered = 0;
            for _ in 0..rounds {
                for (connection, next) in awaited.iter_mut().enumerate() {
                    let slot = connection * window + next.slot;
                    if let Some(answer) = answers.read(slot, next.number) {
                        check(answer, load)?;
                        let number = next.number + window as u64;
                        requests.write::<STREAM>(slot, number, &[BYTE; SIZE]);
                        next.advance(window);
                        answered += 1;
                    }
                }
            }
            Ok(answered)
        })
    }
}
