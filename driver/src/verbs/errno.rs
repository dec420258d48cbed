//! Errors of the system, with their names.

use std::{fmt, io};

/// An error number of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// Names, of those that verbs answer with.
macro_rules! names {
    ($($name:ident)*) => {
        const NAMES: &[(i32, &str)] = &[$((libc::$name, stringify!($name))),*];
    };
}

names! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENFILE EMFILE
    ENOTTY EFBIG ENOSPC EROFS EPIPE EDOM ERANGE ENOSYS ENODATA ETIME ECOMM EPROTO EOVERFLOW EBADMSG EMSGSIZE
    EPROTONOSUPPORT EOPNOTSUPP EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED
    ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE
    EREMOTEIO ECANCELED
}

impl Errno {
    /// The error of a verb that returned this. A verb returns the number and leaves `errno` alone; some return -1 and
    /// set it, and some drivers return the number negated. `None` if it is no error.
    ///
    /// To be called before anything else can change `errno`.
    #[must_use]
    pub fn of_result(result: i32) -> Option<Self> {
        match result {
            0 => None,
            -1 => Some(Self::last()),
            other => Some(Self(other.saturating_abs())),
        }
    }

    /// What the last call that says so left in `errno`: for verbs that return a pointer.
    #[must_use]
    pub fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Its name, such as `ENOMEM`; `None` for one that verbs do not answer with.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let found = NAMES.iter().find(|(number, _)| *number == self.0);
        found.map(|(_, name)| *name)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A verb that fails without saying why.
        if self.0 == 0 {
            return f.write_str("no reason given (errno 0)");
        }
        let text = io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        match self.name() {
            Some(name) => write!(f, "{name} ({}, {text})", self.0),
            None => write!(f, "errno {} ({text})", self.0),
        }
    }
}
