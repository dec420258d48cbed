//! What can go wrong when an end is set up, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scalerpc_hugepage::MemoryError;

/// A step of setting up an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Server: taking the lock next to the socket.
    Lock,
    /// Server: making the socket and listening on it.
    Listen,
    /// Server: starting the thread that admits clients.
    Start,
    /// Client: connecting to the socket.
    Connect,
    /// Client: saying how many connections it wants.
    Hello,
    /// Client: waiting for the server's offer, and mapping the server's memory.
    Offer,
    /// Client: passing its memory to the server.
    Region,
    /// Client: waiting for its seats.
    Welcome,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Lock => "lock",
            Self::Listen => "listen",
            Self::Start => "start",
            Self::Connect => "connect",
            Self::Hello => "hello",
            Self::Offer => "offer",
            Self::Region => "region",
            Self::Welcome => "welcome",
        })
    }
}

/// Why an end could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A live server listens there.
    #[error(
        "{} is in use by a live server: stop that one, or choose another path",
        .path.display()
    )]
    AlreadyInUse {
        /// The path.
        path: PathBuf,
    },
    /// Nobody listens there.
    #[error(
        "nobody listens at {}: start a server there, or correct the path ({source})",
        .path.display()
    )]
    NoServer {
        /// The path.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The path does not fit the address of a socket.
    #[error(
        "{} has {bytes} bytes, a socket's path has at most {max}: choose a shorter one, or one \
         relative to the working directory",
        .path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
        /// The longest possible.
        max: usize,
    },
    /// The socket or its lock cannot be made there.
    #[error(
        "cannot make {}: {source}; its directory must exist and be writable for this user",
        .path.display()
    )]
    NotWritable {
        /// The file that could not be made.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The client may not connect to the socket.
    #[error(
        "no permission to connect to {}: run as the user who started the server ({source})",
        .path.display()
    )]
    NotPermitted {
        /// The path.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// There is something else than a socket; it was left alone.
    #[error(
        "{} exists and is not a socket: remove it, or choose another path",
        .path.display()
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The two ends speak different versions of the protocol.
    #[error(
        "this end speaks version {ours} of the protocol, the server at {} version {theirs}: \
         build both from the same release",
        .path.display()
    )]
    VersionMismatch {
        /// The path.
        path: PathBuf,
        /// This end's version.
        ours: u32,
        /// The server's version.
        theirs: u32,
    },
    /// The server has not enough free seats.
    #[error(
        "the server at {} has {free} free seats, {wanted} were wanted: close connections, or raise \
         the server's clients_max",
        .path.display()
    )]
    Busy {
        /// The path.
        path: PathBuf,
        /// Connections wanted.
        wanted: u32,
        /// Seats free.
        free: u32,
    },
    /// The server has as many links as it may have.
    #[error(
        "the server at {} has all the {max} links that it may have: put more connections into one \
         link, or raise the server's links_max",
        .path.display()
    )]
    TooManyLinks {
        /// The path.
        path: PathBuf,
        /// Links that the server may have.
        max: u32,
    },
    /// The server refused for another reason.
    #[error("the server at {} refused: {reason}", .path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: Refusal,
    },
    /// The peer did not answer in time.
    #[error(
        "no answer within {after:?} from {} in step {step}: is the server (process {pid}) stopped \
         or overloaded?",
        .path.display()
    )]
    Timeout {
        /// The path.
        path: PathBuf,
        /// The step.
        step: Step,
        /// The server's process, 0 if unknown.
        pid: i32,
        /// The time allowed for the whole set-up.
        after: Duration,
    },
    /// The memory that the server passed cannot be used.
    #[error("the memory of the server at {} (process {pid}) is unusable: {source}", .path.display())]
    PeerMemory {
        /// The path.
        path: PathBuf,
        /// The server's process, 0 if unknown.
        pid: i32,
        /// What is wrong with it.
        source: MemoryError,
    },
    /// This end's own memory could not be made.
    #[error("memory for this end: {0}")]
    Memory(#[from] MemoryError),
    /// The numbers asked for cannot be served.
    #[error("{what}")]
    BadRequest {
        /// What is wrong with them.
        what: &'static str,
    },
    /// The peer said something that the protocol does not allow, or closed the socket.
    #[error(
        "the server at {} (process {pid}) broke the protocol in step {step}: {what}",
        .path.display()
    )]
    Protocol {
        /// The path.
        path: PathBuf,
        /// The server's process, 0 if unknown.
        pid: i32,
        /// The step.
        step: Step,
        /// What it did.
        what: &'static str,
    },
    /// A system call failed in a way that has no variant of its own.
    #[error("{call} for {} failed in step {step}: {source}", .path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The step.
        step: Step,
        /// The call.
        call: &'static str,
        /// What the system answered.
        source: io::Error,
    },
}

impl SetupError {
    pub(super) fn system(
        path: &Path,
        step: Step,
        call: &'static str,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::System {
            path: path.into(),
            step,
            call,
            source: source.into(),
        }
    }
}

/// Why a server refused a link. The numbers are part of the protocol, in all its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The versions differ; the server's is in the header.
    Version,
    /// Not enough free seats; the detail says how many are free.
    Busy,
    /// The link asked for no connections, or for too many.
    BadRequest,
    /// The client's memory is unusable: not sealed, too small, or not a memfd.
    Memory,
    /// The server has all the links that it may have; the detail says how many that is.
    TooManyLinks,
    /// The client said something that the protocol does not allow.
    Protocol,
    /// The server is out of something: file descriptors, or memory.
    Resources,
    /// A reason that this version does not know.
    Other(u32),
}

impl Refusal {
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Version => 1,
            Self::Busy => 2,
            Self::BadRequest => 3,
            Self::Memory => 4,
            Self::TooManyLinks => 5,
            Self::Protocol => 6,
            Self::Resources => 7,
            Self::Other(code) => code,
        }
    }

    pub(super) fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Busy,
            3 => Self::BadRequest,
            4 => Self::Memory,
            5 => Self::TooManyLinks,
            6 => Self::Protocol,
            7 => Self::Resources,
            code => Self::Other(code),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version => f.write_str("the protocol versions differ"),
            Self::Busy => f.write_str("not enough free seats"),
            Self::BadRequest => f.write_str("a number of connections that cannot be"),
            Self::Memory => f.write_str("the client's memory is unusable (size, seals or kind)"),
            Self::TooManyLinks => f.write_str("too many links"),
            Self::Protocol => f.write_str("the client broke the protocol"),
            Self::Resources => f.write_str(
                "it is out of file descriptors or memory: raise its limits (ulimit -n), or put more \
                 connections into one link",
            ),
            Self::Other(code) => write!(f, "reason {code}, unknown to this version"),
        }
    }
}
