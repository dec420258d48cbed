//! `futex(2)` on a word that says who is asleep: to compare and fall asleep is one step, and so is to change and wake.

use std::rc::Rc;

use loom::sync::{Condvar, Mutex};
use scalerpc_core::Memory;
use scalerpc_driver::shm::asleep::ASLEEP;

use crate::memory::LoomMemory;
use crate::mutant::{Mutation, Step};

#[derive(Debug)]
struct Bucket {
    /// The sleeper is in the kernel's queue.
    queued: Mutex<bool>,
    bell: Condvar,
}

/// A kernel's queue for one word, whose owner is the only one to sleep there.
#[derive(Clone, Debug)]
pub struct Futex(Rc<Bucket>);

impl Default for Futex {
    fn default() -> Self {
        Self(Rc::new(Bucket {
            queued: Mutex::new(false),
            bell: Condvar::new(),
        }))
    }
}

impl Futex {
    /// `futex::sleep`, without a timeout: a sleeper whom nobody wakes is a deadlock, which loom finds.
    ///
    /// # Panics
    ///
    /// Never: no holder of the lock panics.
    pub fn sleep(&self, memory: &LoomMemory, at: usize, mutation: Mutation) {
        let mut queued = self.0.queued.lock().expect("nobody panics under the lock");
        if memory.load(at) != ASLEEP && !mutation.skips(Step::CompareBeforeSleep) {
            return;
        }
        *queued = true;
        while *queued {
            queued = self
                .0
                .bell
                .wait(queued)
                .expect("nobody panics under the lock");
        }
    }

    /// `futex::wake`.
    ///
    /// # Panics
    ///
    /// Never: no holder of the lock panics.
    pub fn wake(&self, memory: &LoomMemory, at: usize, mutation: Mutation) {
        let mut queued = self.0.queued.lock().expect("nobody panics under the lock");
        if !mutation.skips(Step::ClearBeforeWake) {
            memory.store_by_kernel(at, 0);
        }
        *queued = false;
        self.0.bell.notify_one();
    }
}
