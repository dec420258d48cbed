//! Memory that loom sees.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use scalerpc_core::Memory;
use scalerpc_core::wire::LINE;

use crate::membarrier::Membarrier;
use crate::mutant::Op;

/// Words, bytes of the demand map, and lines.
#[derive(Debug)]
struct Words {
    words: Vec<AtomicU64>,
    /// The first bytes of the memory, which are accessed as bytes only.
    bytes: Vec<AtomicU8>,
    /// Who may write to a line, and who holds a reference into it, is a matter of the protocol alone.
    /// Loom checks it as if each line were plain memory: two stores, or a store and a `&[u8]`, that
    /// nothing orders are a failure, even where the words themselves are atomic. Without this a store
    /// that lands late could hide behind the modification order that loom happens to choose, and a
    /// load that is overtaken by a later store could not be seen at all.
    lines: Vec<UnsafeCell<()>>,
}

#[derive(Clone, Debug)]
enum Backing {
    Shared(Rc<Words>),
    /// Only one party ever sees it, so it costs loom nothing.
    Private(Rc<RefCell<Vec<u8>>>),
}

/// A party's view of some memory, and how that party's operations on it are weakened.
#[derive(Clone, Debug)]
pub struct LoomMemory {
    backing: Backing,
    weak: Vec<(Op, Range<usize>)>,
    weak_fence: Option<Op>,
    kernel: Option<Membarrier>,
}

impl LoomMemory {
    /// Zeroed memory that more than one party sees. The first `byte_len` bytes, which are whole lines,
    /// are a demand map.
    pub fn shared(len: usize, byte_len: usize) -> Self {
        let words = Words {
            words: (0..(len - byte_len).div_ceil(8))
                .map(|_| AtomicU64::new(0))
                .collect(),
            bytes: (0..byte_len).map(|_| AtomicU8::new(0)).collect(),
            lines: (0..len.div_ceil(LINE))
                .map(|_| UnsafeCell::new(()))
                .collect(),
        };
        Self::of(Backing::Shared(Rc::new(words)))
    }

    /// Zeroed memory that one party sees.
    pub fn private(len: usize) -> Self {
        Self::of(Backing::Private(Rc::new(RefCell::new(vec![0; len]))))
    }

    fn of(backing: Backing) -> Self {
        Self {
            backing,
            weak: Vec::new(),
            weak_fence: None,
            kernel: None,
        }
    }

    /// The same memory, as a party sees it whose operation on words in `range` is weakened to `op`.
    #[must_use]
    pub fn weaken(&self, op: Option<Op>, range: Range<usize>) -> Self {
        let mut view = self.clone();
        view.weak.extend(op.map(|op| (op, range)));
        view
    }

    /// The same memory, as a party sees it whose fences are weakened to `op`.
    #[must_use]
    pub fn weaken_fences(&self, op: Option<Op>) -> Self {
        let mut view = self.clone();
        view.weak_fence = op;
        view
    }

    /// The same memory, as a party sees it that is interrupted by `kernel`: its light fences do nothing.
    #[must_use]
    pub fn interrupted_by(&self, kernel: &Membarrier) -> Self {
        let mut view = self.clone();
        view.kernel = Some(kernel.clone());
        view
    }

    fn interrupt(&self) {
        if let Some(kernel) = &self.kernel {
            kernel.interrupt();
        }
    }

    /// True if `op` is to be weakened at `at`.
    pub fn is_weak(&self, op: Op, at: usize) -> bool {
        self.weak
            .iter()
            .any(|(weak, range)| *weak == op && range.contains(&at))
    }

    /// The bytes of a message that this party owns now, as [`scalerpc_core::Region::bytes`] gives them
    /// out: a plain reference, so any store that is not ordered against it is a failure.
    #[track_caller]
    pub fn owned_bytes(&self, at: usize, len: usize) -> Vec<u8> {
        if let Backing::Shared(words) = &self.backing {
            for line in at / LINE..(at + len).div_ceil(LINE) {
                words.lines[line].with(|_| ());
            }
        }
        let mut bytes = vec![0; len];
        self.copy_out(at, &mut bytes);
        bytes
    }

    /// Stores a word in the name of another party, as a kernel does for it: the line has an owner all the same.
    pub fn store_by_kernel(&self, at: usize, word: u64) {
        match &self.backing {
            Backing::Shared(words) => {
                let at = at / 8 - words.bytes.len() / 8;
                words.words[at].store(word, Ordering::Relaxed);
            }
            Backing::Private(_) => self.store(at, word),
        }
    }

    #[track_caller]
    fn load_as(&self, at: usize, ordering: Ordering) -> u64 {
        assert!(at % 8 == 0, "words are aligned");
        match &self.backing {
            Backing::Shared(words) => {
                self.interrupt();
                words.words[at / 8 - words.bytes.len() / 8].load(ordering)
            }
            Backing::Private(bytes) => {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes.borrow()[at..at + 8]);
                u64::from_le_bytes(word)
            }
        }
    }

    #[track_caller]
    fn store_as(&self, at: usize, word: u64, ordering: Ordering) {
        assert!(at % 8 == 0, "words are aligned");
        match &self.backing {
            Backing::Shared(words) => {
                self.interrupt();
                // Before the store, so that a party that acquires it has the check behind it.
                words.lines[at / LINE].with_mut(|_| ());
                words.words[at / 8 - words.bytes.len() / 8].store(word, ordering);
            }
            Backing::Private(bytes) => {
                bytes.borrow_mut()[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

impl Memory for LoomMemory {
    fn len(&self) -> usize {
        match &self.backing {
            Backing::Shared(words) => words.bytes.len() + 8 * words.words.len(),
            Backing::Private(bytes) => bytes.borrow().len(),
        }
    }

    #[track_caller]
    fn load(&self, at: usize) -> u64 {
        self.load_as(at, Ordering::Relaxed)
    }

    #[track_caller]
    fn load_acquire(&self, at: usize) -> u64 {
        let ordering = match self.is_weak(Op::LoadAcquire, at) {
            true => Ordering::Relaxed,
            false => Ordering::Acquire,
        };
        self.load_as(at, ordering)
    }

    #[track_caller]
    fn store(&self, at: usize, word: u64) {
        self.store_as(at, word, Ordering::Relaxed);
    }

    #[track_caller]
    fn store_release(&self, at: usize, word: u64) {
        let ordering = match self.is_weak(Op::StoreRelease, at) {
            true => Ordering::Relaxed,
            false => Ordering::Release,
        };
        self.store_as(at, word, ordering);
    }

    #[track_caller]
    fn load_byte_acquire(&self, at: usize) -> u8 {
        match &self.backing {
            Backing::Shared(words) => {
                words.bytes[at].load(match self.is_weak(Op::ByteLoadAcquire, at) {
                    true => Ordering::Relaxed,
                    false => Ordering::Acquire,
                })
            }
            Backing::Private(bytes) => bytes.borrow()[at],
        }
    }

    #[track_caller]
    fn store_byte_release(&self, at: usize, byte: u8) {
        match &self.backing {
            Backing::Shared(words) => {
                let ordering = match self.is_weak(Op::ByteStoreRelease, at) {
                    true => Ordering::Relaxed,
                    false => Ordering::Release,
                };
                words.bytes[at].store(byte, ordering);
            }
            Backing::Private(bytes) => bytes.borrow_mut()[at] = byte,
        }
    }

    fn fence_release(&self) {
        if self.weak_fence != Some(Op::FenceRelease) {
            fence(Ordering::Release);
        }
    }

    fn fence_full(&self) {
        match self.weak_fence {
            Some(Op::FenceFull) => {}
            Some(Op::FenceFullAsAcqRel) => fence(Ordering::AcqRel),
            _ => fence(Ordering::SeqCst),
        }
    }
    fn fence_light(&self) {
        if self.kernel.is_none() {
            self.fence_full();
        }
    }
}
