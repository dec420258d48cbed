//! What the loom models share: a [`Memory`](scalerpc_core::Memory) that loom sees, a table of mutants,
//! and the runner that explores a model as it is and then once with each mutant.
//!
//! The models are in `tests/models`. `README.md` lists them, with what each costs and how a failure is
//! replayed.

pub mod check;
pub mod futex;
pub mod membarrier;
pub mod memory;
pub mod message;
pub mod mutant;
pub mod rig;
pub mod shm;
pub mod world;

pub use check::{Model, seen};
pub use memory::LoomMemory;
pub use mutant::{Change, Mutant, Mutation, Op, Party, Place, Step};
pub use world::World;
