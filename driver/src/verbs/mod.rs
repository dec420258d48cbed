//! The back end over RDMA verbs: devices, ports and GIDs.

mod context;
mod device;
mod errno;
mod error;
mod gid;
mod mtu;
mod probe;

pub use context::Context;
pub use device::{Capabilities, Host, LinkLayer, OpenDevice, Port, Selection, Skipped};
pub use errno::Errno;
pub use error::{NoDevice, Place, Step, VerbsError};
pub use gid::{Gid, GidKind};
pub use mtu::{Mtu, ParseMtuError};
pub use probe::{Ended, Trial};
