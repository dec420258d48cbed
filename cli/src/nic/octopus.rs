//! A metadata server like Octopus, whose calls cost so much that the connections matter or do not.

use super::server::{Design, Served, serve};
use super::{HOST, Host, LOAD, Nic};

/// Calls of a metadata server, with what one costs a thread.
///
/// The costs are fitted: with them a server with a zone for each connection loses what Octopus was seen to lose
/// ([`Metadata::published_fall_percent`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Attributes of a path.
    Stat,
    /// Names in a directory.
    ReadDir,
    /// A new file.
    Mknod,
}

impl Metadata {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Stat, Self::ReadDir, Self::Mknod];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stat => "Stat",
            Self::ReadDir => "ReadDir",
            Self::Mknod => "Mknod",
        }
    }

    /// What Octopus was seen to lose of its rate between 40 and 120 clients, in percent (ScaleRPC, EuroSys 2019, section
    /// 1): "almost 50%" of Stat and ReadDir, which is taken for 48, and 5% of Mknod.
    pub fn published_fall_percent(self) -> f64 {
        match self {
            Self::Stat | Self::ReadDir => 48.0,
            Self::Mknod => 5.0,
        }
    }

    /// What a call costs a thread.
    pub fn call_ns(self) -> f64 {
        match self {
            Self::Stat => 1_400.0,
            Self::ReadDir => 1_440.0,
            Self::Mknod => 2_590.0,
        }
    }
}

/// The rate of a metadata server whose clients make one kind of call.
pub fn octopus(nic: &Nic, call: Metadata, design: Design, clients: u32) -> Served {
    let host = Host {
        call_ns: call.call_ns(),
        ..HOST
    };
    serve(nic, &host, &LOAD, design, clients)
}
