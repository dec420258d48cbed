//! What needs `unsafe`: what the kernel knows about a peer.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The process at the other end of a socket.
#[derive(Debug)]
pub(super) struct PeerProcess {
    /// Its id, or zero if it is not visible from here (another pid namespace).
    pub(super) pid: i32,
    /// Readable once the process is gone. `None` if the kernel cannot give one.
    pub(super) pidfd: Option<OwnedFd>,
}

/// Identifies the peer.
///
/// # Errors
///
/// `Errno::SRCH` if it is gone already; anything else means that this process is out of something.
pub(super) fn peer_process(socket: BorrowedFd<'_>) -> Result<PeerProcess, Errno> {
    let pid = peer_pid(socket)?;
    let with = |pidfd| Ok(PeerProcess { pid, pidfd });
    match peer_pidfd(socket) {
        Ok(pidfd) => return with(Some(pidfd)),
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno),
        Err(_) => {}
    }
    // Kernels before 6.5 know only the number. If it has been given to another process meanwhile, its
    // fence comes late, but never too early.
    match Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(pidfd)) => with(Some(pidfd)),
        // Not visible, or a kernel before 5.3: a Bye or a closed guard is the only proof then.
        None | Some(Err(Errno::NOSYS)) => with(None),
        Some(Err(errno)) => Err(errno),
    }
}

fn peer_pid(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a live ucred and to its size; the kernel writes at most that many bytes,
    // and any bytes are a valid ucred. (rustix's wrapper declares the pid as nonzero, which it is not for
    // a peer in a pid namespace that is not visible from here.)
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        Ok(credentials.pid)
    } else {
        Err(last_errno())
    }
}

#[cfg(not(any(target_arch = "sparc", target_arch = "sparc64")))]
fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    /// The same number on every architecture of Linux but sparc and parisc.
    const SO_PEERPIDFD: c_int = 77;
    let mut fd: c_int = -1;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the pointers are to a live int and to its size; the kernel writes at most that many bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(last_errno());
    }
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the kernel made this descriptor for this call, so nobody else owns it. It is close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(any(target_arch = "sparc", target_arch = "sparc64"))]
fn peer_pidfd(_: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    Err(Errno::NOPROTOOPT)
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
