//! The model checker sees the orderings that the other models rely on, and nothing weaker passes.

use loom::thread;
use scalerpc_core::Memory;
use scalerpc_tests_loom::{LoomMemory, Model, Mutant, Mutation, Op, Party, Place, seen};

const X: usize = 64;
const Y: usize = 128;
const ALL: std::ops::Range<usize> = 0..256;

/// A line of bytes, and three lines of words.
fn memory() -> LoomMemory {
    LoomMemory::shared(256, 64)
}

fn view(memory: &LoomMemory, mutation: Mutation, party: Party) -> LoomMemory {
    memory
        .weaken(mutation.op(party, Place::Litmus), ALL)
        .weaken_fences(mutation.op(party, Place::Fence))
}

/// Store buffering, the core of the guard: with a full fence on each side, at least one of two parties
/// sees the other's store.
#[test]
fn store_buffering() {
    const LOST: &[&str] = &["both missed the other's store"];
    fn body(mutation: Mutation) {
        let memory = memory();
        let (mine, theirs) = (
            view(&memory, mutation, Party::Client),
            view(&memory, mutation, Party::Server),
        );
        let other = thread::spawn(move || {
            theirs.store(Y, 1);
            theirs.fence_full();
            theirs.load(X)
        });
        mine.store(X, 1);
        mine.fence_full();
        let y = mine.load(Y);
        let x = other.join().expect("the other thread ended");
        assert!(x == 1 || y == 1, "both missed the other's store");
        if x == 1 && y == 1 {
            seen("both stores");
        }
    }
    Model {
        name: "litmus: store buffering",
        bound: None,
        body,
        must_see: &["both stores"],
        mutants: &[
            Mutant::weaken(Party::Client, Op::FenceFull, Place::Fence, LOST),
            Mutant::weaken(Party::Server, Op::FenceFull, Place::Fence, LOST),
            Mutant::weaken(Party::Client, Op::FenceFullAsAcqRel, Place::Fence, LOST),
            Mutant::weaken(Party::Server, Op::FenceFullAsAcqRel, Place::Fence, LOST),
        ],
    }
    .check();
}

const STALE: &[&str] = &["stale behind the flag"];

/// Message passing by a release store and an acquire load.
#[test]
fn message_passing() {
    fn body(mutation: Mutation) {
        let memory = memory();
        let (reader, writer) = (
            view(&memory, mutation, Party::Client),
            view(&memory, mutation, Party::Server),
        );
        let other = thread::spawn(move || {
            writer.store(X, 1);
            writer.store_release(Y, 1);
        });
        if reader.load_acquire(Y) == 1 {
            assert_eq!(reader.load(X), 1, "stale behind the flag");
            seen("the flag");
        }
        other.join().expect("the other thread ended");
    }
    Model {
        name: "litmus: release store",
        bound: None,
        body,
        must_see: &["the flag"],
        mutants: &[
            Mutant::weaken(Party::Server, Op::StoreRelease, Place::Litmus, STALE),
            Mutant::weaken(Party::Client, Op::LoadAcquire, Place::Litmus, STALE),
        ],
    }
    .check();
}

/// Message passing by a release fence before a relaxed store.
#[test]
fn message_passing_by_a_fence() {
    fn body(mutation: Mutation) {
        let memory = memory();
        let (reader, writer) = (
            view(&memory, mutation, Party::Client),
            view(&memory, mutation, Party::Server),
        );
        let other = thread::spawn(move || {
            writer.store(X, 1);
            writer.fence_release();
            writer.store(Y, 1);
        });
        if reader.load_acquire(Y) == 1 {
            assert_eq!(reader.load(X), 1, "stale behind the flag");
            seen("the flag");
        }
        other.join().expect("the other thread ended");
    }
    Model {
        name: "litmus: release fence",
        bound: None,
        body,
        must_see: &["the flag"],
        mutants: &[
            Mutant::weaken(Party::Server, Op::FenceRelease, Place::Fence, STALE),
            Mutant::weaken(Party::Client, Op::LoadAcquire, Place::Litmus, STALE),
        ],
    }
    .check();
}

/// Message passing by a byte.
#[test]
fn message_passing_by_a_byte() {
    fn body(mutation: Mutation) {
        let memory = memory();
        let (reader, writer) = (
            view(&memory, mutation, Party::Client),
            view(&memory, mutation, Party::Server),
        );
        let other = thread::spawn(move || {
            writer.store(X, 1);
            writer.store_byte_release(3, 1);
        });
        if reader.load_byte_acquire(3) == 1 {
            assert_eq!(reader.load(X), 1, "stale behind the flag");
            seen("the flag");
        }
        other.join().expect("the other thread ended");
    }
    Model {
        name: "litmus: byte",
        bound: None,
        body,
        must_see: &["the flag"],
        mutants: &[
            Mutant::weaken(Party::Server, Op::ByteStoreRelease, Place::Litmus, STALE),
            Mutant::weaken(Party::Client, Op::ByteLoadAcquire, Place::Litmus, STALE),
        ],
    }
    .check();
}

/// A line has one writer at a time, and none while somebody holds a reference into it: loom sees two
/// parties at one line unless something orders them.
#[test]
fn a_line_changes_hands() {
    const RACE: &[&str] = &["Causality violation"];
    fn body(mutation: Mutation) {
        let memory = memory();
        let (second, first) = (
            view(&memory, mutation, Party::Client),
            view(&memory, mutation, Party::Server),
        );
        let other = thread::spawn(move || {
            first.store(X, 1);
            let _ = first.owned_bytes(X, 8);
            first.store_release(Y, 1);
        });
        if second.load_acquire(Y) == 1 {
            second.store(X, 2);
            seen("the second writer");
        }
        other.join().expect("the other thread ended");
    }
    Model {
        name: "litmus: ownership",
        bound: None,
        body,
        must_see: &["the second writer"],
        mutants: &[
            Mutant::weaken(Party::Server, Op::StoreRelease, Place::Litmus, RACE),
            Mutant::weaken(Party::Client, Op::LoadAcquire, Place::Litmus, RACE),
        ],
    }
    .check();
}

/// What loom does not see: a load that is overtaken by a later store of the same party (load
/// buffering). So the models check by ownership of lines, not by values, that nobody stores to what
/// somebody still reads.
#[test]
fn load_buffering_is_invisible() {
    fn body(_: Mutation) {
        let memory = memory();
        let other_view = memory.clone();
        let other = thread::spawn(move || {
            let x = other_view.load(X);
            other_view.store(Y, 1);
            x
        });
        let y = memory.load(Y);
        memory.store(X, 1);
        let x = other.join().expect("the other thread ended");
        assert!(x == 0 || y == 0, "loom has learnt to see load buffering");
    }
    Model {
        name: "litmus: load buffering",
        bound: None,
        body,
        must_see: &[],
        mutants: &[],
    }
    .check();
}
