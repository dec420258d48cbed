//! `membarrier(2)`, which makes another party pass a full fence wherever it is.

use std::cell::Cell;
use std::rc::Rc;

use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;

#[derive(Debug)]
struct Bell {
    asked: AtomicBool,
    passed: AtomicBool,
    /// The client's own: it has passed. A second fence could stand in for an ordering that is missing.
    over: Cell<bool>,
}

/// A kernel that interrupts one client, for one barrier.
///
/// The client looks for an interrupt before each of its operations on shared memory, so a barrier may
/// find it between any two of them, and at its end.
#[derive(Clone, Debug)]
pub struct Membarrier(Rc<Bell>);

impl Default for Membarrier {
    fn default() -> Self {
        Self(Rc::new(Bell {
            asked: AtomicBool::new(false),
            passed: AtomicBool::new(false),
            over: Cell::new(false),
        }))
    }
}

impl Membarrier {
    /// Server: asks for the barrier. False if the client has not passed it in so many looks.
    #[must_use]
    pub fn pass(&self, looks: usize) -> bool {
        fence(Ordering::SeqCst);
        self.0.asked.store(true, Ordering::Release);
        for _ in 0..looks {
            if self.0.passed.load(Ordering::Acquire) {
                return true;
            }
            thread::yield_now();
        }
        false
    }

    /// Client: between two operations.
    pub fn interrupt(&self) {
        if !self.0.over.get() && self.0.asked.load(Ordering::Acquire) {
            self.leave();
        }
    }

    /// Client: it runs no more, which is a fence too.
    pub fn leave(&self) {
        self.0.over.set(true);
        fence(Ordering::SeqCst);
        self.0.passed.store(true, Ordering::Release);
    }
}
