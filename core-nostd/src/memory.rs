//! Memory that another party may write at any time.
//!
//! The engines see such memory only through [`Memory`], so that a model checker can stand in for it,
//! and so that the orderings that the protocol relies on are written down in one place. Every access
//! is one aligned 64-bit word, except for the demand map, which is made of single bytes: a word keeps
//! one access width for life.

/// A range of bytes that two parties share, addressed by byte offset from its start.
///
/// Offsets of words are multiples of 8. An implementation may panic on an offset outside of
/// [`len`](Memory::len): the engines compute offsets from a validated
/// [`Geometry`](crate::Geometry), never from a peer's bytes.
pub trait Memory {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// True if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads a word, unordered.
    fn load(&self, at: usize) -> u64;

    /// Loads a word; what its writer did before the matching release is visible afterwards.
    fn load_acquire(&self, at: usize) -> u64;

    /// Loads words that follow each other, unordered.
    #[inline]
    fn load_words<const N: usize>(&self, at: usize) -> [u64; N] {
        core::array::from_fn(|i| self.load(at + 8 * i))
    }

    /// Says that the line at `at` will be read soon. It changes nothing but the time that the read takes.
    #[inline]
    fn prefetch(&self, at: usize) {
        let _ = at;
    }

    /// Says that the line at `at` will be written soon. It changes nothing but the time that the write takes.
    #[inline]
    fn prefetch_write(&self, at: usize) {
        let _ = at;
    }

    /// Stores a word, unordered.
    fn store(&self, at: usize, word: u64);

    /// Stores words that follow each other, unordered but for the last one, which is stored after the others and
    /// after everything that the caller did before (release).
    #[inline]
    fn publish<const N: usize>(&self, at: usize, words: [u64; N]) {
        for (i, word) in words.into_iter().enumerate() {
            match i + 1 == N {
                false => self.store(at + 8 * i, word),
                true => self.store_release(at + 8 * i, word),
            }
        }
    }

    /// Stores a word after everything that the caller did before.
    fn store_release(&self, at: usize, word: u64);

    /// Loads a byte of the demand map, as [`load_acquire`](Memory::load_acquire).
    fn load_byte_acquire(&self, at: usize) -> u8;

    /// The first of the bytes from `at` that differs from what was `seen` of it, by its index (of one that
    /// changes back and forth, perhaps that of a neighbour); what the
    /// byte's writer did before is visible afterwards only after a
    /// [`load_byte_acquire`](Memory::load_byte_acquire) of it.
    fn first_changed(&self, at: usize, seen: &[u8]) -> Option<usize> {
        (0..seen.len()).find(|&i| self.load_byte_acquire(at + i) != seen[i])
    }

    /// Stores a byte of the demand map, as [`store_release`](Memory::store_release).
    fn store_byte_release(&self, at: usize, byte: u8);

    /// Orders all stores before it against all stores after it (a release fence).
    fn fence_release(&self);

    /// Orders everything before it against everything after it (a sequentially consistent fence).
    fn fence_full(&self);

    /// As [`fence_full`](Memory::fence_full), but only if the other party makes this thread pass a full
    /// fence too (as `membarrier(2)` does): the cheap half of an asymmetric pair.
    fn fence_light(&self) {
        self.fence_full();
    }

    /// Copies `len` bytes (a multiple of 8) from `source`, word by word in increasing address order,
    /// unordered but for the last word, which is stored after all others (release).
    fn copy_from(&self, at: usize, source: &Self, source_at: usize, len: usize) {
        for done in (0..len).step_by(8) {
            let word = source.load(source_at + done);
            if done + 8 < len {
                self.store(at + done, word);
            } else {
                // Ordering: the last word is the `valid` of a message; pairs with its poller's acquire.
                self.store_release(at + done, word);
            }
        }
    }

    /// Copies `bytes` to `at` (a multiple of 8), unordered. The last word is padded with zeros, so up
    /// to 7 bytes after the range are written too.
    fn copy_in(&self, at: usize, bytes: &[u8]) {
        for (i, chunk) in bytes.chunks(8).enumerate() {
            self.store(at + 8 * i, word_of(chunk));
        }
    }

    /// Copies from `at` (a multiple of 8) to `bytes`, unordered.
    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (i, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = self.load(at + 8 * i).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// The word that holds up to 8 bytes, first byte lowest, padded with zeros.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(target_has_atomic = "64")]
pub use region::Region;

#[cfg(target_has_atomic = "64")]
#[allow(unsafe_code)]
mod region {
    use core::ptr::NonNull;
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, compiler_fence, fence};

    use super::{Memory, word_of};
    use crate::wire::LINE;

    /// [`Memory`] over raw bytes: a mapping that other threads, processes or a NIC write to.
    ///
    /// A `Region` is a view: it neither owns nor frees the bytes. It is not `Copy`, so that whoever lends
    /// it out decides how long it is used. Words are little-endian.
    #[derive(Debug)]
    pub struct Region {
        base: NonNull<u8>,
        len: usize,
    }

    // SAFETY: a Region only gives atomic access, and raw access through `unsafe` methods whose callers
    // prove exclusive ownership; `new` requires the bytes to stay valid wherever the view travels.
    unsafe impl Send for Region {}
    // SAFETY: as for Send.
    unsafe impl Sync for Region {}

    impl Region {
        /// Views `len` bytes at `base`.
        ///
        /// # Safety
        ///
        /// - `base` is aligned to 64 and valid for reads and writes of `len` bytes for as long as this
        ///   view is used, whatever other parties do (no truncation, no unmapping).
        /// - This process accesses the bytes only through `Region`s in that time.
        pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
            assert!(
                base.addr().get() % 64 == 0,
                "a region starts on a cache line"
            );
            assert!(
                len <= isize::MAX as usize,
                "a region fits the address space"
            );
            Self { base, len }
        }

        /// The first byte.
        pub fn base(&self) -> NonNull<u8> {
            self.base
        }

        /// A view of the `len` bytes from `at` (a multiple of 64), or `None` if they are not inside.
        ///
        /// # Safety
        ///
        /// As for [`new`](Region::new): the bytes stay valid for as long as the part is used, too.
        pub unsafe fn part(&self, at: usize, len: usize) -> Option<Self> {
            let end = at.checked_add(len)?;
            if end > self.len || at % 64 != 0 {
                return None;
            }
            // SAFETY: at <= len, so the address is inside the range that `new` requires to be valid.
            let base = unsafe { self.base.add(at) };
            Some(Self { base, len })
        }

        /// The bytes of a message that this party owns now.
        ///
        /// # Safety
        ///
        /// Until the reference is gone no party writes to the range: its `valid` word was acquired, and
        /// the protocol keeps its writer away until this party lets go of it.
        ///
        /// # Panics
        ///
        /// If the range is not inside the region.
        #[inline]
        pub unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
            let first = self.check(at, len);
            // SAFETY: `check` put the range inside the region, which is valid for reads; the caller
            // proves that nobody writes to it meanwhile.
            unsafe { core::slice::from_raw_parts(first.as_ptr(), len) }
        }

        /// Bytes that this party alone may read or write now.
        ///
        /// # Safety
        ///
        /// Until the reference is gone no other party, and no other reference of this one, reads or
        /// writes the range.
        ///
        /// # Panics
        ///
        /// If the range is not inside the region.
        #[inline]
        #[allow(clippy::mut_from_ref)]
        pub unsafe fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
            let first = self.check(at, len);
            // SAFETY: `check` put the range inside the region, which is valid for writes; the caller
            // proves that it is not aliased.
            unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), len) }
        }

        #[inline(always)]
        fn check(&self, at: usize, len: usize) -> NonNull<u8> {
            assert!(
                at <= self.len && len <= self.len - at,
                "access past the end of a region"
            );
            // SAFETY: at <= len of the region, which is one valid range.
            unsafe { self.base.add(at) }
        }

        #[inline(always)]
        fn words(&self, at: usize, len: usize) -> &[AtomicU64] {
            assert!(at % 8 == 0, "words are aligned");
            let first = self.check(at, len).cast::<AtomicU64>();
            // SAFETY: the range is valid and aligned to 8 (the base to 64, `at` to 8); AtomicU64 has
            // the size and alignment of u64 here and any bytes are a valid value; shared mutation
            // through atomics needs no exclusivity.
            unsafe { core::slice::from_raw_parts(first.as_ptr(), len / 8) }
        }

        #[inline(always)]
        fn word(&self, at: usize) -> &AtomicU64 {
            &self.words(at, 8)[0]
        }

        /// [`Memory::copy_in`] of at least a line.
        #[inline(never)]
        fn copy_in_lines(&self, at: usize, bytes: &[u8]) {
            let to = NonNull::from(self.words(at, bytes.len() & !7)).cast();
            let lines = bytes.len() / LINE;
            // SAFETY: the range is inside of the region and aligned, or `words` would have panicked, and both hold so
            // many lines. All access to the region's words is atomic, or by who owns them.
            let done = 8 * unsafe { wide::copy_lines(to, NonNull::from(bytes).cast(), lines) };
            self.copy_in_words(at + done, &bytes[done..]);
        }

        #[inline(always)]
        fn copy_in_words(&self, at: usize, bytes: &[u8]) {
            let words = self.words(at, (bytes.len() + 7) & !7);
            let (whole, rest) = words.split_at(bytes.len() / 8);
            let chunks = bytes.chunks_exact(8);
            if let Some(last) = rest.first() {
                last.store(word_of(chunks.remainder()).to_le(), Ordering::Relaxed);
            }
            for (word, chunk) in whole.iter().zip(chunks) {
                word.store(word_of(chunk).to_le(), Ordering::Relaxed);
            }
        }

        #[inline]
        fn byte(&self, at: usize) -> &AtomicU8 {
            &self.byte_range(at, 1)[0]
        }

        #[inline]
        fn byte_range(&self, at: usize, len: usize) -> &[AtomicU8] {
            let first = self.check(at, len).cast::<AtomicU8>();
            // SAFETY: the range is valid; AtomicU8 has the size and alignment of u8, any byte is a valid
            // value, and shared mutation through atomics needs no exclusivity.
            unsafe { core::slice::from_raw_parts(first.as_ptr(), len) }
        }
    }

    /// Bytes of the demand map that are compared at once.
    const PART: usize = 16;

    /// What the compiler does word by word, or byte by byte, because that is how atomics are made, and the machine can
    /// do in one: a line takes 12 instructions instead of 22 to copy, and of the demand map a fifth to look at.
    #[cfg(all(
        target_arch = "x86_64",
        target_feature = "sse2",
        target_pointer_width = "64",
        not(miri)
    ))]
    mod wide {
        use core::ptr::NonNull;
        use core::sync::atomic::AtomicU8;

        use super::{LINE, PART};

        /// Copies lines in increasing order, unordered. Returns how many words it has copied: all of them.
        ///
        /// # Safety
        ///
        /// `to`, which is aligned to 8, is valid for writes of so many lines, and `from` for reads. Others may access
        /// words of either at the same time, by atomics.
        #[inline(never)]
        pub(super) unsafe fn copy_lines(to: NonNull<u8>, from: NonNull<u8>, lines: usize) -> usize {
            if lines == 0 {
                return 0;
            }
            // SAFETY: it reads and writes so many lines, which are valid, and changes only registers besides. A word
            // that is aligned to 8 is in one half of a register, and no part of it is loaded or stored apart from the
            // rest: each access is what relaxed ones of two atomic words would be, and they come in increasing order.
            // There is SSE2.
            unsafe {
                core::arch::asm!(
                    "2:",
                    "movdqu {a}, [{from}]",
                    "movdqu {b}, [{from} + 16]",
                    "movdqu {c}, [{from} + 32]",
                    "movdqu {d}, [{from} + 48]",
                    "movdqu [{to}], {a}",
                    "movdqu [{to} + 16], {b}",
                    "movdqu [{to} + 32], {c}",
                    "movdqu [{to} + 48], {d}",
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {left}",
                    "jnz 2b",
                    from = inout(reg) from.as_ptr() => _,
                    to = inout(reg) to.as_ptr() => _,
                    left = inout(reg) lines => _,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack),
                );
            }
            lines * LINE / 8
        }

        #[inline(always)]
        pub(super) fn prefetch(line: *const u8) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: it is a hint, which reads nothing that the program could see, and may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }

        #[inline(always)]
        pub(super) fn prefetch_write(line: *const u8) {
            // SAFETY: it is a hint, which may name any address, and changes nothing. Where a processor does not know it
            // it does nothing.
            unsafe {
                core::arch::asm!(
                    "prefetchw [{line}]",
                    line = in(reg) line,
                    options(nostack, preserves_flags, readonly),
                );
            }
        }

        /// True if a byte of the demand map is not what was seen of it. The slices have [`PART`] bytes.
        #[inline(always)]
        pub(super) fn differ(now: &[AtomicU8], seen: &[u8]) -> bool {
            debug_assert!(now.len() == PART && seen.len() == PART);
            let equal: u32;
            // SAFETY: it reads the sixteen bytes of either slice, and writes two registers. Each byte of `now` is
            // loaded whole, as a relaxed atomic load would; no order among them is promised to anybody. There is SSE2.
            unsafe {
                core::arch::asm!(
                    "movdqu {a}, [{now}]",
                    "movdqu {b}, [{seen}]",
                    "pcmpeqb {a}, {b}",
                    "pmovmskb {equal:e}, {a}",
                    now = in(reg) now.as_ptr(),
                    seen = in(reg) seen.as_ptr(),
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    equal = lateout(reg) equal,
                    options(nostack, readonly, preserves_flags),
                );
            }
            equal != 0xffff
        }
    }

    /// As it is elsewhere.
    #[cfg(not(all(
        target_arch = "x86_64",
        target_feature = "sse2",
        target_pointer_width = "64",
        not(miri)
    )))]
    mod wide {
        use core::ptr::NonNull;
        use core::sync::atomic::{AtomicU8, Ordering};

        /// Copies nothing: the caller goes on word by word.
        ///
        /// # Safety
        ///
        /// None is needed here.
        #[inline(always)]
        pub(super) unsafe fn copy_lines(_: NonNull<u8>, _: NonNull<u8>, _: usize) -> usize {
            0
        }

        #[inline(always)]
        pub(super) fn prefetch(_: *const u8) {}

        #[inline(always)]
        pub(super) fn prefetch_write(_: *const u8) {}

        #[inline(always)]
        pub(super) fn differ(now: &[AtomicU8], seen: &[u8]) -> bool {
            let differ =
                |sum, (now, seen): (&AtomicU8, &u8)| sum | (now.load(Ordering::Relaxed) ^ seen);
            now.iter().zip(seen).fold(0, differ) != 0
        }
    }

    impl Memory for Region {
        #[inline]
        fn len(&self) -> usize {
            self.len
        }

        #[inline(always)]
        fn load(&self, at: usize) -> u64 {
            u64::from_le(self.word(at).load(Ordering::Relaxed))
        }

        #[inline(always)]
        fn load_acquire(&self, at: usize) -> u64 {
            u64::from_le(self.word(at).load(Ordering::Acquire))
        }

        #[inline(always)]
        fn prefetch(&self, at: usize) {
            wide::prefetch(self.base.as_ptr().wrapping_add(at));
        }

        #[inline(always)]
        fn prefetch_write(&self, at: usize) {
            wide::prefetch_write(self.base.as_ptr().wrapping_add(at));
        }

        #[inline(always)]
        fn store(&self, at: usize, word: u64) {
            self.word(at).store(word.to_le(), Ordering::Relaxed);
        }

        #[inline(always)]
        fn store_release(&self, at: usize, word: u64) {
            self.word(at).store(word.to_le(), Ordering::Release);
        }

        // One check of the range instead of one for each word: of a trailer's four, that is 20 instructions.
        #[inline(always)]
        fn load_words<const N: usize>(&self, at: usize) -> [u64; N] {
            let words = self.words(at, 8 * N);
            core::array::from_fn(|i| u64::from_le(words[i].load(Ordering::Relaxed)))
        }

        #[inline(always)]
        fn publish<const N: usize>(&self, at: usize, words: [u64; N]) {
            let cells = self.words(at, 8 * N);
            for (i, (cell, word)) in cells.iter().zip(words).enumerate() {
                // Ordering: as in the trait.
                let last = i + 1 == N;
                cell.store(
                    word.to_le(),
                    if last {
                        Ordering::Release
                    } else {
                        Ordering::Relaxed
                    },
                );
            }
        }

        #[inline]
        fn load_byte_acquire(&self, at: usize) -> u8 {
            self.byte(at).load(Ordering::Acquire)
        }

        #[inline]
        fn first_changed(&self, at: usize, seen: &[u8]) -> Option<usize> {
            let bytes = self.byte_range(at, seen.len());
            // One branch for so many bytes: nearly always nothing has changed.
            let mut parts = bytes.chunks_exact(PART).zip(seen.chunks_exact(PART));
            let part = parts.position(|(now, seen)| wide::differ(now, seen));
            let start = part.unwrap_or(bytes.len() / PART) * PART;
            let end = bytes.len().min(start + PART);
            let mut rest = bytes[start..end].iter().zip(&seen[start..end]);
            match rest.position(|(now, &seen)| now.load(Ordering::Relaxed) != seen) {
                Some(changed) => Some(start + changed),
                // A peer that lies may have put the byte back meanwhile: then some byte of the part is named, so that
                // the caller goes on behind it.
                None => part.map(|_| end - 1),
            }
        }

        #[inline]
        fn store_byte_release(&self, at: usize, byte: u8) {
            self.byte(at).store(byte, Ordering::Release);
        }

        #[inline]
        fn fence_release(&self) {
            fence(Ordering::Release);
        }

        #[inline]
        fn fence_full(&self) {
            fence(Ordering::SeqCst);
        }

        #[inline]
        fn fence_light(&self) {
            compiler_fence(Ordering::SeqCst);
        }

        #[inline]
        fn copy_from(&self, at: usize, source: &Self, source_at: usize, len: usize) {
            debug_assert!(len % 8 == 0, "whole words are copied");
            let (to, from) = (self.words(at, len), source.words(source_at, len));
            let Some((last, _)) = to.split_last() else {
                return;
            };
            // All lines but the last, which has the last word.
            let lines = (len - 8) / LINE;
            let rest = match lines {
                0 => 0,
                // SAFETY: the ranges are inside of their regions and aligned, or `words` would have panicked, and hold
                // more than so many lines. All access to a region's words is atomic, or by who owns them.
                _ => unsafe {
                    wide::copy_lines(NonNull::from(to).cast(), NonNull::from(from).cast(), lines)
                },
            };
            for (to, from) in to[rest..to.len() - 1].iter().zip(&from[rest..]) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            // Ordering: as in the trait.
            last.store(
                from[to.len() - 1].load(Ordering::Relaxed),
                Ordering::Release,
            );
        }

        #[inline]
        fn copy_in(&self, at: usize, bytes: &[u8]) {
            match bytes.len() {
                0..LINE => self.copy_in_words(at, bytes),
                _ => self.copy_in_lines(at, bytes),
            }
        }

        #[inline]
        fn copy_out(&self, at: usize, bytes: &mut [u8]) {
            let words = self.words(at, bytes.len().next_multiple_of(8));
            let (whole, rest) = words.split_at(bytes.len() / 8);
            let mut chunks = bytes.chunks_exact_mut(8);
            for (word, chunk) in whole.iter().zip(&mut chunks) {
                chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            let tail = chunks.into_remainder();
            if let Some(last) = rest.first() {
                let word = last.load(Ordering::Relaxed).to_ne_bytes();
                tail.copy_from_slice(&word[..tail.len()]);
            }
        }
    }
}
