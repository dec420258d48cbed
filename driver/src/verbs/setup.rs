//! What can go wrong when two ends are joined, and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use scalerpc_hugepage::MemoryError;

use super::errno::Errno;
use super::error::VerbsError;

/// A step of joining two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JoinStep {
    /// Server: listening.
    Listen,
    /// Server: starting the thread that admits clients.
    Start,
    /// Client: connecting over TCP.
    Connect,
    /// Client: waiting for the server's offer.
    Offer,
    /// Client: waiting for seats and the server's queue pairs.
    Seats,
    /// Client: waiting for the server's word to go.
    Go,
}

impl std::fmt::Display for JoinStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Listen => "listen",
            Self::Start => "start",
            Self::Connect => "connect",
            Self::Offer => "offer",
            Self::Seats => "seats",
            Self::Go => "go",
        })
    }
}

/// Why an end could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The device, or something of it.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// This end's own memory could not be made.
    #[error("memory for this end: {0}")]
    Memory(#[from] MemoryError),
    /// Another process listens there.
    #[error("{address} is in use: stop who listens there, or choose another port")]
    AlreadyInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address does not name anything.
    #[error("{address} is no address to connect to or listen at: {source}")]
    BadAddress {
        /// What was given.
        address: String,
        /// What the system answered.
        source: io::Error,
    },
    /// Nobody listens there.
    #[error("nobody answers at {address}: start a server there, or correct the address ({source})")]
    NoServer {
        /// The address.
        address: SocketAddr,
        /// What the system answered.
        source: io::Error,
    },
    /// The two ends speak different versions of the protocol.
    #[error(
        "this end speaks version {ours} of the protocol, the server at {address} version {theirs}: build both from \
         the same release"
    )]
    VersionMismatch {
        /// The address.
        address: SocketAddr,
        /// This end's version.
        ours: u32,
        /// The server's version.
        theirs: u32,
    },
    /// The server has not enough free seats.
    #[error(
        "the server at {address} has {free} free seats, {wanted} were wanted: close connections, or raise the \
         server's clients_max"
    )]
    Busy {
        /// The address.
        address: SocketAddr,
        /// Connections wanted.
        wanted: u32,
        /// Seats free.
        free: u32,
    },
    /// The server refused for another reason.
    #[error("the server at {address} refused: {reason}{}", Detail(*.reason, *.detail))]
    Refused {
        /// The address.
        address: SocketAddr,
        /// Why.
        reason: Refusal,
        /// What the reason says that it is.
        detail: u32,
    },
    /// The peer did not answer in time.
    #[error(
        "no answer within {after:?} from {address} in step {step}: is the server stopped or overloaded?"
    )]
    Timeout {
        /// The address.
        address: SocketAddr,
        /// The step.
        step: JoinStep,
        /// The time allowed for the step.
        after: Duration,
    },
    /// The numbers asked for cannot be served.
    #[error("{what}")]
    BadRequest {
        /// What is wrong with them.
        what: &'static str,
    },
    /// The peer said something that the protocol does not allow, or closed the stream.
    #[error("the server at {address} broke the protocol in step {step}: {what}")]
    Protocol {
        /// The address.
        address: SocketAddr,
        /// The step.
        step: JoinStep,
        /// What it did.
        what: &'static str,
    },
    /// A system call failed in a way that has no variant of its own.
    #[error("{call} for {address} failed in step {step}: {source}")]
    System {
        /// The address.
        address: SocketAddr,
        /// The step.
        step: JoinStep,
        /// The call.
        call: &'static str,
        /// What the system answered.
        source: io::Error,
    },
}

impl SetupError {
    pub(super) fn system(
        address: SocketAddr,
        step: JoinStep,
        call: &'static str,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::System {
            address,
            step,
            call,
            source: source.into(),
        }
    }
}

/// Why a server refused a client. The numbers are part of the protocol, in all its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The versions differ; the server's is in the header.
    Version,
    /// Not enough free seats; the detail says how many are free.
    Busy,
    /// No connections were asked for.
    BadRequest,
    /// The client's memory is too small.
    Memory,
    /// The server has all the clients, or the handshakes under way, that it may have; the detail says how many.
    TooMany,
    /// The client said something that the protocol does not allow.
    Protocol,
    /// A verb failed at the server; the detail is the error's number.
    Device,
    /// The server is out of something else.
    Resources,
    /// The client was too slow; the detail says how many milliseconds it had for a step.
    Late,
    /// A reason that this version does not know.
    Other(u32),
}

impl Refusal {
    const CODES: [(Self, u32); 9] = [
        (Self::Version, 1),
        (Self::Busy, 2),
        (Self::BadRequest, 3),
        (Self::Memory, 4),
        (Self::TooMany, 5),
        (Self::Protocol, 6),
        (Self::Device, 7),
        (Self::Resources, 8),
        (Self::Late, 9),
    ];

    pub(super) fn code(self) -> u32 {
        match self {
            Self::Other(code) => code,
            known => {
                let found = Self::CODES.iter().find(|(reason, _)| *reason == known);
                found.map_or(0, |(_, code)| *code)
            }
        }
    }

    pub(super) fn from_code(code: u32) -> Self {
        let found = Self::CODES.iter().find(|(_, known)| *known == code);
        found.map_or(Self::Other(code), |(reason, _)| *reason)
    }
}

/// What a reason's detail adds to it, in words.
struct Detail(Refusal, u32);

impl std::fmt::Display for Detail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0, i32::try_from(self.1)) {
            (Refusal::Device, Ok(errno)) => write!(f, " ({})", Errno(errno)),
            (Refusal::TooMany, _) => write!(f, " ({})", self.1),
            (Refusal::Late, _) => write!(f, " ({} ms)", self.1),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version => f.write_str("the protocol versions differ"),
            Self::Busy => f.write_str("not enough free seats"),
            Self::BadRequest => f.write_str("a number of connections that cannot be"),
            Self::Memory => f.write_str("the client's memory is too small"),
            Self::TooMany => f.write_str(
                "it has as many clients as it may have: try again later, or raise its links_max",
            ),
            Self::Protocol => f.write_str("the client broke the protocol"),
            Self::Device => f.write_str(
                "its device could not make a queue pair for this client, or not reach it: its own messages say which, \
                 and `rdma resource` how many it has",
            ),
            Self::Resources => f.write_str("it is out of file descriptors or memory"),
            Self::Late => f.write_str(
                "this client was too slow: try again when its host is less busy, or raise the server's \
                 handshake_timeout",
            ),
            Self::Other(code) => write!(f, "reason {code}, unknown to this version"),
        }
    }
}
