//! What can go wrong when an end is set up over verbs, and what to do about it.

use std::fmt;
use std::path::PathBuf;

use rdma_core_sys::LoadError;

use super::errno::Errno;
use super::gid::Gid;
use super::mtu::Mtu;
use super::probe::Ended;
use crate::host::MemoryLock;

/// A step of setting up an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Listing the devices.
    List,
    /// Opening a device.
    Open,
    /// Asking for the device's limits.
    Device,
    /// Asking for the port's attributes.
    Port,
    /// Reading the port's GIDs.
    Gid,
    /// Making a protection domain.
    ProtectionDomain,
    /// Registering memory.
    Register,
    /// Making a completion channel.
    Channel,
    /// Making a completion queue.
    CompletionQueue,
    /// Making a queue pair.
    QueuePair,
    /// Taking a queue pair to INIT.
    Init,
    /// Taking a queue pair to RTR.
    Rtr,
    /// Taking a queue pair to RTS.
    Rts,
    /// A WRITE for trial.
    Trial,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::List => "list devices",
            Self::Open => "open device",
            Self::Device => "query device",
            Self::Port => "query port",
            Self::Gid => "query GIDs",
            Self::ProtectionDomain => "protection domain",
            Self::Register => "register memory",
            Self::Channel => "completion channel",
            Self::CompletionQueue => "completion queue",
            Self::QueuePair => "queue pair",
            Self::Init => "queue pair to INIT",
            Self::Rtr => "queue pair to RTR",
            Self::Rts => "queue pair to RTS",
            Self::Trial => "trial WRITE",
        })
    }
}

/// Where something went wrong, as far as it is known by then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The device.
    pub device: Option<String>,
    /// The port.
    pub port: Option<u8>,
    /// The port's GID that was chosen.
    pub gid: Option<Gid>,
    /// The path MTU.
    pub mtu: Option<Mtu>,
    /// The peer, as the user knows it.
    pub peer: Option<String>,
}

impl Place {
    /// The same, with a peer.
    #[must_use]
    pub fn with_peer(mut self, peer: impl fmt::Display) -> Self {
        self.peer = Some(peer.to_string());
        self
    }

    pub(super) fn device(name: &str) -> Self {
        Self {
            device: Some(name.to_owned()),
            ..Self::default()
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.device.as_deref().unwrap_or("no device"))?;
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        if let Some(gid) = &self.gid {
            write!(f, ", GID {gid}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ", MTU {mtu}")?;
        }
        if let Some(peer) = &self.peer {
            write!(f, ", peer {peer}")?;
        }
        Ok(())
    }
}

/// Why an end could not be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no device that could be used.
    #[error("no RDMA device: {0}")]
    NoDevice(#[from] NoDevice),
    /// There is no device of the name that was asked for.
    #[error("no RDMA device is called {wanted}: choose one of {}", List(.present))]
    UnknownDevice {
        /// The name asked for.
        wanted: String,
        /// The names that there are.
        present: Vec<String>,
    },
    /// There are devices, but no port that can be used; why, for each.
    #[error("no usable RDMA port: {}", Lines(.0))]
    NoUsablePort(Vec<VerbsError>),
    /// The device's queue pairs are not connected as those of InfiniBand and RoCE are.
    #[error(
        "{device} is neither InfiniBand nor RoCE (it may be iWARP): choose another device, or use the \
         shared-memory back end"
    )]
    WrongTransport {
        /// The device.
        device: String,
    },
    /// The device has no such port.
    #[error("{device} has no port {port}: {}", if *.ports == 0 {
        "it has no ports at all".to_owned()
    } else {
        format!("its ports are 1 to {ports}")
    })]
    NoSuchPort {
        /// The device.
        device: String,
        /// The port asked for.
        port: u8,
        /// How many ports it has.
        ports: u8,
    },
    /// The port is down.
    #[error(
        "{device} port {port} is {state}, not ACTIVE: {}",
        if *.is_ethernet {
            "bring its network interface up (`rdma link` shows it, `ip link set IF up`), check the cable, or choose \
             another port"
        } else {
            "check the cable, and that a subnet manager runs (opensm), or choose another port"
        }
    )]
    PortNotActive {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state.
        state: &'static str,
        /// Whether it is an Ethernet port.
        is_ethernet: bool,
    },
    /// No GID of the port is fit to be chosen unasked.
    #[error(
        "{device} port {port} has no GID that is RoCE v2 and routable (it has {}): give its network interface an IP \
         address, or choose a GID with --gid-index",
        Gids(.seen)
    )]
    NoUsableGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Those that it has.
        seen: Vec<Gid>,
    },
    /// The GID that was asked for is not there.
    #[error(
        "{device} port {port} has no GID at index {index} of {entries} (it has {}): correct --gid-index, or leave it \
         away",
        Gids(.seen)
    )]
    NoSuchGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index asked for.
        index: u32,
        /// Size of the table.
        entries: u32,
        /// GIDs that it has.
        seen: Vec<Gid>,
    },
    /// The MTU that was asked for is larger than the port's.
    #[error(
        "{device} port {port} has an active MTU of {active}, {wanted} was asked for: choose --mtu {active} or less, \
         or raise the MTU of its network (on Ethernet, to {wanted} plus some 100 bytes of headers)"
    )]
    MtuTooLarge {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The MTU asked for.
        wanted: Mtu,
        /// The port's.
        active: Mtu,
    },
    /// This process may not lock so much memory.
    #[error(
        "{verb} failed in step `{step}` on {place}: {errno}; it needs {wanted_bytes} bytes of locked memory, \
         RLIMIT_MEMLOCK is {limit_bytes} and {pinned_bytes} are in use: raise it (`ulimit -l {}` as root, \
         `LimitMEMLOCK=infinity` in a systemd unit, or /etc/security/limits.conf)",
        ulimit_kib(*.wanted_bytes, *.pinned_bytes)
    )]
    Memlock {
        /// The step.
        step: Step,
        /// The verb.
        verb: &'static str,
        /// Where.
        place: Box<Place>,
        /// What it answered.
        errno: Errno,
        /// Bytes to be locked.
        wanted_bytes: u64,
        /// The limit.
        limit_bytes: u64,
        /// Bytes that are locked already.
        pinned_bytes: u64,
    },
    /// A WRITE for trial did not do what it should.
    #[error(
        "a trial WRITE on {place} failed: {ended}; see dmesg, or choose another --device, --port or --gid-index"
    )]
    TrialFailed {
        /// Where.
        place: Box<Place>,
        /// How it ended.
        ended: Ended,
    },
    /// A verb failed in a way that has no variant of its own.
    #[error("{verb} failed in step `{step}` on {place}: {errno}; {}", remedy(*.step, *.errno))]
    Failed {
        /// The step.
        step: Step,
        /// The verb.
        verb: &'static str,
        /// Where.
        place: Box<Place>,
        /// What it answered.
        errno: Errno,
    },
}

impl VerbsError {
    /// A verb that failed.
    pub fn failed(step: Step, verb: &'static str, place: Place, errno: Errno) -> Self {
        Self::Failed {
            step,
            verb,
            place: Box::new(place),
            errno,
        }
    }

    /// A verb that failed and locks memory: if it was the limit that stopped it, the error says so.
    pub fn failed_to_lock(
        step: Step,
        verb: &'static str,
        place: Place,
        errno: Errno,
        wanted_bytes: u64,
    ) -> Self {
        let lock = MemoryLock::now();
        Self::with_lock(step, verb, place, errno, wanted_bytes, lock)
    }

    fn with_lock(
        step: Step,
        verb: &'static str,
        place: Place,
        errno: Errno,
        wanted_bytes: u64,
        lock: MemoryLock,
    ) -> Self {
        match lock.limit_bytes {
            // EPERM is the kernel's answer to a limit of 0.
            Some(limit_bytes)
                if matches!(errno.0, libc::ENOMEM | libc::EPERM) && !lock.allows(wanted_bytes) =>
            {
                Self::Memlock {
                    step,
                    verb,
                    place: Box::new(place),
                    errno,
                    wanted_bytes,
                    limit_bytes,
                    pinned_bytes: lock.pinned_bytes,
                }
            }
            _ => Self::failed(step, verb, place, errno),
        }
    }
}

/// The limit that would do, as `ulimit -l` takes it.
fn ulimit_kib(wanted: u64, pinned: u64) -> u64 {
    wanted.saturating_add(pinned).div_ceil(1024)
}

/// What to do about a verb that failed so in this step.
fn remedy(step: Step, errno: Errno) -> &'static str {
    match (step, errno.0) {
        (Step::Open, libc::EACCES | libc::EPERM) => {
            "this user needs read and write access to /dev/infiniband/uverbs*"
        }
        (_, libc::EMFILE) => "this process has too many open files: raise `ulimit -n`",
        (_, libc::ENODEV | libc::EIO) => {
            "the device is gone or is being reset: see dmesg, or choose another with --device"
        }
        (Step::Open, libc::ENOENT) => {
            "its file /dev/infiniband/uverbs* is missing or may not be opened: load ib_uverbs, give it to the container, \
             or allow this user to read and write it"
        }
        (Step::Rtr, libc::EINVAL) => {
            "the two ends do not fit: compare link layer, GID type and MTU on both (--gid-index, --mtu)"
        }
        (
            Step::Rtr,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT | libc::EADDRNOTAVAIL,
        ) => {
            "the peer's GID cannot be reached from this one: ping its address, or choose another --gid-index"
        }
        (Step::QueuePair | Step::CompletionQueue, libc::EINVAL) => {
            "more was asked for than the device has: lower the window or the number of clients"
        }
        (_, libc::ENOMEM) => {
            "the device or the kernel has no room for more: see dmesg, close other users of the device, or ask for \
             less"
        }
        (_, libc::EOPNOTSUPP | libc::ENOSYS) => {
            "the device's driver cannot do this: choose another device"
        }
        _ => "see the kernel's log (dmesg)",
    }
}

/// Why there is no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDevice {
    /// libibverbs could not be loaded.
    #[error(transparent)]
    NoLibrary(#[from] LoadError),
    /// The kernel has none.
    #[error(
        "the kernel has none (nothing in {}): load the driver of the NIC (mlx5_ib, irdma, bnxt_re, ...), or make a \
         soft-RoCE device (`rdma link add rxe0 type rxe netdev IF`, as root)",
        .sysfs.display()
    )]
    NoneInKernel {
        /// Where they would be listed.
        sysfs: PathBuf,
    },
    /// The files through which programs reach devices are missing.
    #[error(
        "the kernel has {}, and there is no {}: load the module ib_uverbs, or give /dev/infiniband to the container",
        List(.devices),
        .missing.display()
    )]
    NoFiles {
        /// The kernel's devices.
        devices: Vec<String>,
        /// What is missing.
        missing: PathBuf,
    },
    /// This user may not use the files.
    #[error(
        "the kernel has {}, and this user may not open {}: it needs read and write access (a group for it, or \
         `chmod a+rw` as root)",
        List(.devices),
        Files(.files)
    )]
    NotPermitted {
        /// The kernel's devices.
        devices: Vec<String>,
        /// The files that cannot be opened.
        files: Vec<PathBuf>,
    },
    /// libibverbs knows none of the kernel's devices.
    #[error(
        "the kernel has {} ({}), and libibverbs has a provider for none of them: install the providers \
         (ibverbs-providers on Debian, libibverbs on Fedora) of the same rdma-core as libibverbs.so.1",
        devices.len(),
        List(.devices)
    )]
    NoProvider {
        /// The kernel's devices.
        devices: Vec<String>,
    },
}

/// Names with commas.
struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// Errors, with semicolons.
struct Lines<'a>(&'a [VerbsError]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let semicolon = if index == 0 { "" } else { "; " };
            write!(f, "{semicolon}{error}")?;
        }
        Ok(())
    }
}

/// Paths, with commas.
struct Files<'a>(&'a [PathBuf]);

impl fmt::Display for Files<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, file) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", file.display())?;
        }
        Ok(())
    }
}

/// GIDs, as far as they are of use in a message.
struct Gids<'a>(&'a [Gid]);

impl fmt::Display for Gids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        if self.0.is_empty() {
            return f.write_str("none at all");
        }
        for (index, gid) in self.0.iter().take(SHOWN).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{gid}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_locked_memory_names_the_limit_and_everything_else_does_not() {
        let lock = MemoryLock {
            limit_bytes: Some(65536),
            pinned_bytes: 4096,
            exempt: false,
        };
        let error = |errno, wanted, lock| {
            let place = Place::device("mlx5_0");
            VerbsError::with_lock(
                Step::Register,
                "ibv_reg_mr",
                place,
                Errno(errno),
                wanted,
                lock,
            )
        };
        let wanted = 1 << 20;
        assert_eq!(
            error(libc::ENOMEM, wanted, lock).to_string(),
            "ibv_reg_mr failed in step `register memory` on mlx5_0: ENOMEM (12, Cannot allocate memory); it needs \
             1048576 bytes of locked memory, RLIMIT_MEMLOCK is 65536 and 4096 are in use: raise it (`ulimit -l 1028` as \
             root, `LimitMEMLOCK=infinity` in a systemd unit, or /etc/security/limits.conf)"
        );
        let none = MemoryLock {
            limit_bytes: Some(0),
            ..lock
        };
        let error_of_none = error(libc::EPERM, 1, none);
        assert!(
            matches!(error_of_none, VerbsError::Memlock { limit_bytes: 0, .. }),
            "{error_of_none}"
        );
        let exempt = MemoryLock {
            exempt: true,
            ..lock
        };
        let unlimited = MemoryLock {
            limit_bytes: None,
            ..lock
        };
        for (errno, wanted, lock) in [
            (libc::EINVAL, wanted, lock),
            (libc::ENOMEM, 4096, lock),
            (libc::ENOMEM, wanted, exempt),
            (libc::ENOMEM, wanted, unlimited),
        ] {
            let error = error(errno, wanted, lock);
            assert!(matches!(error, VerbsError::Failed { .. }), "{error}");
        }
    }
}
