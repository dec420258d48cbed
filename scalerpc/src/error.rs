//! Errors: rich ones for setting up, small ones that are `Copy` for calls.

use scalerpc_core::GeometryError;
use scalerpc_core::wire::Status;
use scalerpc_driver::shm;
#[cfg(feature = "verbs")]
use scalerpc_driver::verbs;

/// Why a server or a client could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The sizes cannot be used.
    #[error("geometry: {0}")]
    Geometry(#[from] GeometryError),
    /// The shared-memory back end could not be set up.
    #[error(transparent)]
    Shm(#[from] shm::SetupError),
    /// The back end over verbs could not be set up.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] verbs::SetupError),
    /// A [`SlowPool`](crate::SlowPool) could not start its threads.
    #[error(
        "a thread for slow calls could not be started: {error}: ask for fewer, or raise the limits on processes and memory"
    )]
    SlowThread {
        /// What the system said.
        error: std::io::Error,
    },
    /// The back end's queues are too short for the window.
    #[error(
        "a window of {window} calls does not fit the back end's send queue: use a smaller window"
    )]
    WindowTooDeep {
        /// The window.
        window: u32,
    },
}

/// How a call ended, or why it was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Not accepted: the request is larger than the server takes. Nothing was sent.
    #[error(
        "the request is larger than the {max} bytes that the server takes: split it, or raise the \
         server's request_max_bytes"
    )]
    TooLarge {
        /// Largest request, in bytes.
        max: usize,
    },
    /// Not accepted: as many calls are outstanding as the window allows; or, over a back end whose WRITEs take a
    /// while, that of an answered call is not known to be done, and its memory is still in use. Poll first.
    #[error("the window is full: poll for a completion first")]
    WindowFull,
    /// The connection is down, and the call certainly did not run.
    #[error("the connection to the server is down; the call was not sent: connect again")]
    NotSent,
    /// The connection went down, and the call may have run or not.
    #[error(
        "the connection to the server was lost; whether the call ran is unknown: connect again"
    )]
    Unknown,
    /// No answer came in time. The call may still run; its answer will be dropped.
    #[error("no answer in time; the call may still run")]
    TimedOut,
    /// The call's deadline came before the call was run: it has not run, and never will.
    #[error("the call's deadline came before it was run; it has not run, and never will")]
    DeadlineExceeded,
    /// The server answered with a status other than [`Status::OK`].
    #[error("{0}")]
    Status(Status),
}

impl CallError {
    /// What a status other than [`Status::OK`] means.
    pub(crate) fn of(status: Status) -> Self {
        match status {
            Status::DEADLINE_EXCEEDED => Self::DeadlineExceeded,
            status => Self::Status(status),
        }
    }

    /// True if the call certainly did not run, so that to make it again is safe.
    pub fn is_certainly_not_run(&self) -> bool {
        match self {
            Self::TooLarge { .. } | Self::WindowFull | Self::NotSent | Self::DeadlineExceeded => {
                true
            }
            Self::Unknown | Self::TimedOut => false,
            Self::Status(status) => matches!(
                *status,
                Status::UNKNOWN_METHOD | Status::BUSY | Status::CANCELLED
            ),
        }
    }

    /// True if the call has run, or may have: to make it again could do twice what it does.
    pub fn may_have_run(&self) -> bool {
        !self.is_certainly_not_run()
    }

    /// True if the call did not run, and may succeed if it is made again: after a poll ([`WindowFull`](Self::WindowFull)),
    /// over a new connection ([`NotSent`](Self::NotSent)), or after a pause ([`Status::BUSY`]).
    ///
    /// False for a call whose deadline has come, which nobody waits for, and for one that would fail again.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::WindowFull | Self::NotSent | Self::Status(Status::BUSY)
        )
    }
}

impl From<scalerpc_core::client::CallError> for CallError {
    fn from(error: scalerpc_core::client::CallError) -> Self {
        use scalerpc_core::client::CallError as Core;
        match error {
            Core::TooLarge { max } => Self::TooLarge { max },
            Core::WindowFull => Self::WindowFull,
            Core::Lost => Self::NotSent,
        }
    }
}
