//! The models; each module says what it is about, and `README.md` what they cost.

mod answers;
mod block;
mod engines;
mod entry;
mod evict;
mod guard;
mod litmus;
mod quiet;
mod ring;
mod switch;
mod wake;

/// A message or an entry was taken that is not whole.
const TORN: &[&str] = &["torn", "Causality violation: Concurrent read and write"];
/// Two writers of a line, or a writer and a reader that owns it.
const RACE: &[&str] = &["Causality violation", "torn"];
/// How often a party looks for something before it gives up on the execution.
const TRIES: usize = 3;
