//! Bindings to libibverbs, for reliable connections.
//!
//! Without its feature `verbs` this crate is empty: it then needs neither libclang nor the headers of
//! rdma-core, and neither does what depends on it.
//!
//! With it:
//!
//! - The types and constants are those of the system's `<infiniband/verbs.h>`, of rdma-core 28 or newer, by
//!   bindgen. Enums are newtypes or plain constants, never Rust enums: a device may answer with a value that the
//!   headers do not know.
//! - `Verbs` is libibverbs, loaded at run time. A program that was built with the feature starts where the
//!   library is missing, and `Verbs::load` says so. What older libraries lack is an `Option`, or a method that
//!   answers for it.
//! - The verbs that C has in its headers, as macros or inline functions, are written here by hand: bindings to the
//!   symbols of the same names would be bindings to something else. `ibv_post_send` and its like go straight to
//!   the device's driver.
//!
//! Names are those of C. So are the rules for errors: a verb that returns `int` returns 0 or the value of `errno`
//! and does not set `errno`, unless its documentation says otherwise; one that returns a pointer returns null and
//! sets `errno`.

#[cfg(all(feature = "verbs", not(target_os = "linux")))]
compile_error!("libibverbs is a library of Linux: build without the feature `verbs`");

#[cfg(feature = "verbs")]
mod bindings;
#[cfg(feature = "verbs")]
mod by_hand;
#[cfg(feature = "verbs")]
mod error;
#[cfg(feature = "verbs")]
mod inline;
#[cfg(feature = "verbs")]
mod library;

#[cfg(feature = "verbs")]
pub use bindings::types::*;
#[cfg(feature = "verbs")]
pub use by_hand::*;
#[cfg(feature = "verbs")]
pub use error::LoadError;
#[cfg(feature = "verbs")]
pub use inline::*;
#[cfg(feature = "verbs")]
pub use library::{LIBRARY, Verbs};
