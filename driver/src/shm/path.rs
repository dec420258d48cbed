//! Who owns a path: the one that holds the lock next to it.
//!
//! The lock is an flock, which the kernel releases when its holder ends, however it ends. So a socket
//! file without a lock holder is a leftover and may be taken over.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, lstat, open, unlink,
};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, connect, listen};

use super::error::{SetupError, Step};
use super::socket;

/// Longest path of a socket: `sun_path` less its NUL.
pub(super) const PATH_MAX_BYTES: usize = 107;
/// Rounds in which a lock file may vanish between opening and locking it. Each means that another server
/// ended in that moment.
const LOCK_TRIES: u32 = 1000;

/// The address of a path.
pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, SetupError> {
    let bytes = path.as_os_str().as_bytes().len();
    if bytes > PATH_MAX_BYTES {
        return Err(SetupError::PathTooLong {
            path: path.into(),
            bytes,
            max: PATH_MAX_BYTES,
        });
    }
    if bytes == 0 {
        // An empty path would be an address that the kernel chooses.
        return Err(SetupError::BadRequest {
            what: "the path of the socket is empty",
        });
    }
    SocketAddrUnix::new(path)
        .map_err(|errno| SetupError::system(path, Step::Connect, "the address", errno))
}

/// A path that this server owns. Dropping it in the process that claimed it removes the socket file and the lock.
#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    lock_path: PathBuf,
    /// Device and inode of the socket file, once there is one.
    socket_file: Option<(u64, u64)>,
    /// Held until the very end.
    _lock: OwnedFd,
    process: u32,
}

/// Takes the path and listens there.
pub(super) fn claim(path: &Path) -> Result<(Claim, OwnedFd), SetupError> {
    let address = address(path)?;
    let mut lock_path: OsString = path.as_os_str().into();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let lock = take_lock(path, &lock_path)?;
    let mut claim = Claim {
        path: path.into(),
        lock_path,
        socket_file: None,
        _lock: lock,
        process: std::process::id(),
    };
    clear_leftover(path, &address)?;
    let system = |call| move |errno: Errno| SetupError::system(path, Step::Listen, call, errno);
    let listener = socket::open().map_err(system("socket"))?;
    // The mode of the socket object becomes that of its file, so there is no moment in which others could
    // connect.
    fchmod(&listener, Mode::RUSR | Mode::WUSR).map_err(system("fchmod"))?;
    bind(&listener, &address).map_err(|errno| creation_error(path, Step::Listen, "bind", errno))?;
    let stat = lstat(path).map_err(system("lstat"))?;
    claim.socket_file = Some(identity(&stat));
    // The kernel cuts this down to net.core.somaxconn.
    listen(&listener, 4096).map_err(system("listen"))?;
    Ok((claim, listener))
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        if let (Some(ours), Ok(stat)) = (self.socket_file, lstat(&self.path)) {
            if identity(&stat) == ours {
                // Nothing can be done if it fails; the next server takes the leftover over.
                let _ = unlink(&self.path);
            }
        }
        // Still locked: whoever opened the file meanwhile sees that it has lost its name, and tries again.
        let _ = unlink(&self.lock_path);
    }
}

fn take_lock(path: &Path, lock_path: &Path) -> Result<OwnedFd, SetupError> {
    let system = |call| move |errno: Errno| SetupError::system(lock_path, Step::Lock, call, errno);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..LOCK_TRIES {
        let lock = open(lock_path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| creation_error(lock_path, Step::Lock, "open", errno))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(SetupError::AlreadyInUse { path: path.into() }),
            Err(errno) => return Err(system("flock")(errno)),
        }
        // Its former holder removes the file while it holds it: only a file that still has the name
        // counts.
        let locked = identity(&fstat(&lock).map_err(system("fstat"))?);
        match lstat(lock_path) {
            Ok(named) if identity(&named) == locked => return Ok(lock),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(system("lstat")(errno)),
        }
    }
    Err(SetupError::AlreadyInUse { path: path.into() })
}

/// Removes the socket file of a server that has ended.
fn clear_leftover(path: &Path, address: &SocketAddrUnix) -> Result<(), SetupError> {
    let system = |call| move |errno: Errno| SetupError::system(path, Step::Listen, call, errno);
    let stat = match lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(creation_error(path, Step::Listen, "lstat", errno)),
        Ok(stat) => stat,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(SetupError::NotASocket { path: path.into() });
    }
    // The lock says that the owner is gone. That it does not listen is asked too, in case that somebody
    // removed the lock file of a live server, or that the socket is another program's.
    let probe = socket::open().map_err(system("socket"))?;
    rustix::io::ioctl_fionbio(&probe, true).map_err(system("ioctl"))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        Ok(()) | Err(_) => return Err(SetupError::AlreadyInUse { path: path.into() }),
    }
    match unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(creation_error(path, Step::Listen, "unlink", errno)),
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the types differ between architectures"
    )]
    (stat.st_dev as u64, stat.st_ino as u64)
}

fn creation_error(path: &Path, step: Step, call: &'static str, errno: Errno) -> SetupError {
    match errno {
        Errno::ADDRINUSE => SetupError::AlreadyInUse { path: path.into() },
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOENT | Errno::NOTDIR => {
            SetupError::NotWritable {
                path: path.into(),
                source: io::Error::from(errno),
            }
        }
        errno => SetupError::system(path, step, call, errno),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_lock_whose_file_comes_and_goes_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let lock_path = dir.path().join("s.lock");
        let (holders, wins) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let Ok(lock) = take_lock(&path, &lock_path) else {
                            continue;
                        };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                        wins.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        // As a Claim ends.
                        unlink(&lock_path).unwrap();
                        drop(lock);
                    }
                });
            }
        });
        assert!(wins.into_inner() > 0);
    }
}
