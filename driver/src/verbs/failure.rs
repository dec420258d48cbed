//! How a connection failed, in words.

use std::fmt;

use scalerpc_core::post::WrKind;

use super::errno::Errno;

/// A connection that failed at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its seat (server) or number (client).
    pub connection: u32,
    /// What happened.
    pub why: Why,
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// A work request did not end well.
    Completion {
        /// `ibv_wc_status`.
        status: u32,
        /// The driver's own code.
        vendor_err: u32,
        /// What it was for.
        kind: WrKind,
    },
    /// The device did not take work requests.
    Post(Unposted),
}

/// A chain of work requests of which not all was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unposted {
    /// What the device's driver answered.
    pub errno: Errno,
    /// Work requests before the one that failed: they are with the device.
    pub posted: u32,
    /// That one and those after it: nothing of them has happened.
    pub unposted: u32,
}

/// By number: what a status means, and what it points to.
const STATUSES: [&str; 22] = [
    "success",
    "local length error: a message larger than the peer's or the path's",
    "local queue pair error: the port may be down",
    "local EE context error",
    "local protection error: memory that is not registered for this",
    "flushed: the queue pair had failed before",
    "memory window error",
    "bad response from the peer",
    "local access error",
    "the peer found the request invalid: do both ends agree on sizes and MTU?",
    "the peer does not allow that access to its memory",
    "the peer could not carry it out",
    "the peer did not answer, after all retries: it is gone, or unreachable",
    "the peer was not ready to receive, after all retries",
    "local RDD violation",
    "the peer found the RD request invalid",
    "the peer gave it up",
    "invalid EE context number",
    "invalid EE context state",
    "the device failed",
    "the response took too long",
    "general error",
];

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}: ", self.connection)?;
        match self.why {
            Why::Completion {
                status,
                vendor_err,
                kind,
            } => {
                let kind = match kind {
                    WrKind::Write => "WRITE",
                    WrKind::Read => "READ",
                };
                let words = STATUSES.get(status as usize).unwrap_or(&"unknown");
                write!(
                    f,
                    "a {kind} failed: {words} (status {status}, vendor error {vendor_err:#x})"
                )
            }
            Why::Post(Unposted {
                errno,
                posted,
                unposted,
            }) => write!(
                f,
                "{unposted} work requests could not be posted: {errno}; {posted} before them were"
            ),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use rdma_core_sys::{IBV_WC_GENERAL_ERR, IBV_WC_RETRY_EXC_ERR};

    use super::*;

    #[test]
    fn a_failure_says_what_its_number_means() {
        assert_eq!(STATUSES.len() as u32, IBV_WC_GENERAL_ERR.0 + 1);
        let failure = |status| Failure {
            connection: 7,
            why: Why::Completion {
                status,
                vendor_err: 0x81,
                kind: WrKind::Read,
            },
        };
        assert_eq!(
            failure(IBV_WC_RETRY_EXC_ERR.0).to_string(),
            "connection 7: a READ failed: the peer did not answer, after all retries: it is gone, or unreachable \
             (status 12, vendor error 0x81)"
        );
        assert!(failure(99).to_string().contains("unknown (status 99"));
    }
}
