//! Answers that come back from other threads: a list of slots that any thread adds to and one thread empties.
//!
//! A slot is on its way from the server to a thread and back. That thread fills it and then adds it to the list;
//! the server takes the whole list at once. So a slot that was taken cannot be under somebody's compare-and-swap
//! any more, and a head that comes again (ABA) is harmless: a thread that adds looks at nothing but the head's
//! value, which is what its link says. `tests-loom` has a model of it.

/// No slot.
pub const NONE: u32 = u32::MAX;

/// The words of a list: its head, and a link for each slot. The head is [`NONE`] at first.
pub trait AnswerWords {
    /// The head, unordered.
    fn head(&self) -> u32;

    /// Takes the head and leaves [`NONE`]; acquire.
    fn take_head(&self) -> u32;

    /// Puts `slot` in the place of `head`; release. Else, what is there instead.
    fn replace_head(&self, head: u32, slot: u32) -> Result<(), u32>;

    /// The link of a slot, unordered.
    fn link(&self, slot: u32) -> u32;

    /// Sets the link of a slot, unordered.
    fn set_link(&self, slot: u32, next: u32);
}

/// Any thread: adds a slot that is its own, and is the server's from here on.
#[inline]
pub fn push<W: AnswerWords>(words: &W, slot: u32) {
    let mut head = words.head();
    loop {
        words.set_link(slot, head);
        // Ordering: release; partner is the acquire in `take_all`. The link and all that the slot holds come before
        // it. A later one continues the release sequence of those before it, so that the server acquires all of them.
        match words.replace_head(head, slot) {
            Ok(()) => return,
            Err(other) => head = other,
        }
    }
}

/// The server: true if there is nothing to take. One load.
#[inline]
pub fn is_empty<W: AnswerWords>(words: &W) -> bool {
    // Ordering: none; `take_all` acquires.
    words.head() == NONE
}

/// The server: takes all slots, which are its own then. `each` is given the one that was added last first.
#[inline]
pub fn take_all<W: AnswerWords>(words: &W, mut each: impl FnMut(u32)) {
    // Ordering: acquire; partner is the release in `push`.
    let mut slot = words.take_head();
    while slot != NONE {
        // Before the slot is given away: whoever has it next may add it again.
        let next = words.link(slot);
        each(slot);
        slot = next;
    }
}

#[cfg(target_has_atomic = "32")]
mod atomic {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::{AnswerWords, NONE};

    /// The words as this process's atomics. `L` holds the links: one for each slot.
    #[derive(Debug)]
    pub struct AtomicWords<L> {
        head: AtomicU32,
        links: L,
    }

    impl<L: AsRef<[AtomicU32]>> AtomicWords<L> {
        /// An empty list for as many slots as there are links.
        pub fn new(links: L) -> Self {
            Self {
                head: AtomicU32::new(NONE),
                links,
            }
        }
    }

    impl<L: AsRef<[AtomicU32]>> AnswerWords for AtomicWords<L> {
        #[inline]
        fn head(&self) -> u32 {
            self.head.load(Ordering::Relaxed)
        }

        #[inline]
        fn take_head(&self) -> u32 {
            self.head.swap(NONE, Ordering::Acquire)
        }

        #[inline]
        fn replace_head(&self, head: u32, slot: u32) -> Result<(), u32> {
            let (new, old) = (Ordering::Release, Ordering::Relaxed);
            let done = self.head.compare_exchange_weak(head, slot, new, old);
            done.map(|_| ())
        }

        #[inline]
        fn link(&self, slot: u32) -> u32 {
            self.links.as_ref()[slot as usize].load(Ordering::Relaxed)
        }

        #[inline]
        fn set_link(&self, slot: u32, next: u32) {
            self.links.as_ref()[slot as usize].store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(target_has_atomic = "32")]
pub use atomic::AtomicWords;

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn all_that_was_added_is_taken_once_the_last_one_first() {
        let words = AtomicWords::new([const { AtomicU32::new(NONE) }; 4]);
        for round in 0..3 {
            assert!(is_empty(&words));
            for slot in 0..=round {
                push(&words, slot);
            }
            assert!(!is_empty(&words));
            let (mut taken, mut count) = ([NONE; 4], 0);
            take_all(&words, |slot| {
                taken[count] = slot;
                count += 1;
            });
            assert_eq!(count, round as usize + 1);
            for (at, slot) in (0..).zip(&taken[..count]) {
                assert_eq!(*slot, round - at);
            }
        }
        take_all(&words, |slot| panic!("{slot} is still there"));
    }
}
