//! Answers of other threads: each slot that is added is taken once, with all that its thread put into it.

use std::cell::Cell;
use std::rc::Rc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use scalerpc_core::answers::{self, AnswerWords, NONE};
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, seen};

use super::{RACE, TRIES};

const SLOTS: usize = 2;
const LOST: &[&str] = &["was lost", "twice", "Causality violation"];

/// A list and what is in its slots.
struct Words {
    head: AtomicU32,
    links: [AtomicU32; SLOTS],
    answers: [UnsafeCell<u32>; SLOTS],
}

impl Words {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            head: AtomicU32::new(NONE),
            links: std::array::from_fn(|_| AtomicU32::new(NONE)),
            answers: std::array::from_fn(|_| UnsafeCell::new(0)),
        })
    }
}

/// The list as one party has it.
#[derive(Clone)]
pub struct View {
    words: Rc<Words>,
    op: Option<Op>,
}

impl View {
    /// An empty list, as it is.
    pub fn new() -> Self {
        Self {
            words: Words::new(),
            op: None,
        }
    }
}

impl AnswerWords for View {
    fn head(&self) -> u32 {
        self.words.head.load(Ordering::Relaxed)
    }

    fn take_head(&self) -> u32 {
        match self.op {
            Some(Op::SwapAcquire) => self.words.head.swap(NONE, Ordering::Relaxed),
            Some(Op::OneStep) => {
                let head = self.words.head.load(Ordering::Acquire);
                self.words.head.store(NONE, Ordering::Relaxed);
                head
            }
            _ => self.words.head.swap(NONE, Ordering::Acquire),
        }
    }

    fn replace_head(&self, head: u32, slot: u32) -> Result<(), u32> {
        if self.op == Some(Op::OneStep) {
            let now = self.words.head.load(Ordering::Relaxed);
            if now != head {
                return Err(now);
            }
            self.words.head.store(slot, Ordering::Release);
            return Ok(());
        }
        let release = match self.op {
            Some(Op::SwapRelease) => Ordering::Relaxed,
            _ => Ordering::Release,
        };
        let words = &self.words.head;
        let done = words.compare_exchange(head, slot, release, Ordering::Relaxed);
        done.map(|_| ())
    }

    fn link(&self, slot: u32) -> u32 {
        self.words.links[slot as usize].load(Ordering::Relaxed)
    }

    fn set_link(&self, slot: u32, next: u32) {
        self.words.links[slot as usize].store(next, Ordering::Relaxed);
    }
}

/// Two threads add a slot each, and the server takes them.
fn add_and_take(mutation: Mutation) {
    let words = Words::new();
    let view = |party| View {
        words: Rc::clone(&words),
        op: mutation.op(party, Place::Answers),
    };
    let threads: Vec<_> = [Party::Client, Party::Tenant]
        .into_iter()
        .zip(0_u32..)
        .map(|(party, slot)| {
            let own = view(party);
            thread::spawn(move || {
                own.words.answers[slot as usize].with_mut(|answer| {
                    // SAFETY: the slot is this thread's until it is added; loom checks that.
                    unsafe { *answer = 100 + slot }
                });
                answers::push(&own, slot);
            })
        })
        .collect();
    let server = view(Party::Server);
    let taken: [Cell<u32>; SLOTS] = std::array::from_fn(|_| Cell::new(0));
    let take = || {
        let mut count = 0;
        answers::take_all(&server, |slot| {
            let times = &taken[slot as usize];
            assert_eq!(times.get(), 0, "slot {slot} came twice");
            times.set(1);
            count += 1;
            server.words.answers[slot as usize].with(|answer| {
                // SAFETY: the slot is the server's from here on; loom checks that.
                assert_eq!(unsafe { *answer }, 100 + slot, "torn");
            });
        });
        if count == SLOTS {
            seen("both at once");
        }
    };
    for _ in 0..TRIES {
        if !answers::is_empty(&server) {
            seen("something while threads run");
            take();
        }
        thread::yield_now();
    }
    for thread in threads {
        thread.join().expect("the other thread ended");
    }
    take();
    assert!(
        taken.iter().all(|times| times.get() == 1),
        "a slot was lost"
    );
}

#[test]
fn each_answer_is_taken_once_and_whole() {
    Model {
        name: "answers",
        bound: None,
        body: add_and_take,
        must_see: &["both at once", "something while threads run"],
        mutants: &[
            Mutant::weaken(Party::Client, Op::SwapRelease, Place::Answers, RACE),
            Mutant::weaken(Party::Server, Op::SwapAcquire, Place::Answers, RACE),
            Mutant::weaken(Party::Client, Op::OneStep, Place::Answers, LOST),
            Mutant::weaken(Party::Server, Op::OneStep, Place::Answers, LOST),
        ],
    }
    .check();
}
