//! The client's side of the handshake.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use scalerpc_core::Geometry;
use scalerpc_hugepage::{HugeMemory, MemoryError};

use super::client::ClientOptions;
use super::error::{Refusal, SetupError, Step};
use super::fence::{ReachingFence, client_fence};
use super::guard::ClientFence;
use super::handshake::{self, FROM_SERVER_MAX_BYTES, Grant, Kind, Offer, Packet, VERSION};
use super::link::{client_bytes, guard_at};
use super::path;
use super::shards::Layout;
use super::socket::{self, Incoming};
use super::sys;
use super::{TIMEOUT_MAX, own_memory};
use crate::mapping::Mapping;

/// What a finished handshake leaves.
pub(super) struct Dialed {
    pub(super) geometry: Geometry,
    pub(super) layout: Layout,
    pub(super) grants: Box<[Grant]>,
    pub(super) own: Mapping,
    pub(super) private: Mapping,
    pub(super) server: Mapping,
    pub(super) socket: OwnedFd,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) fence: ClientFence,
    /// `None`: it cannot be woken.
    pub(super) sleep_fence: Option<ReachingFence>,
}

/// Connects, with a bound on the time for all steps together.
pub(super) fn dial(
    path: &Path,
    connections: u32,
    options: &ClientOptions,
) -> Result<Dialed, SetupError> {
    if connections == 0 {
        return Err(SetupError::BadRequest {
            what: "a link needs at least one connection",
        });
    }
    let mut dialog = Dialog::open(path, connections, options.timeout)?;
    dialog.send(Step::Hello, &handshake::hello(connections), None)?;
    let (offer, fd) = dialog.take_offer()?;
    let geometry = Geometry::new(offer.config)
        .map_err(|_| dialog.broken(Step::Offer, "a geometry that cannot be"))?;
    let layout = Layout::offered(&geometry, offer.shards, offer.stride, offer.bytes);
    let layout = layout.filter(|_| offer.connections == connections);
    let layout =
        layout.ok_or_else(|| dialog.broken(Step::Offer, "numbers that contradict each other"))?;
    let server = dialog.map_server(fd, layout.bytes())?;
    let bytes = client_bytes(&geometry, connections).ok_or(SetupError::BadRequest {
        what: "memory for so many connections does not fit",
    })?;
    let memory = |name, bytes, reachable| {
        let memory = HugeMemory::builder(name, bytes).policy(options.page_policy);
        own_memory(memory.numa_node(options.numa_node), bytes, reachable)
    };
    // Before the server can revoke anything.
    let fence = client_fence(offer.expedited);
    let own = memory(
        "scalerpc-client",
        bytes,
        guard_at(&geometry, connections, 0),
    )?;
    // Within the address space, since the exposed memory, which holds a copy of most of it, is there.
    let private_bytes = geometry
        .client_private_bytes()
        .saturating_mul(connections as usize);
    let private = memory("scalerpc-requests", private_bytes, private_bytes)?;
    dialog.send(
        Step::Region,
        &handshake::region(bytes as u64),
        Some(own.memory().fd()),
    )?;
    let grants = dialog.take_welcome(&geometry, layout.shards())?;
    let (socket, pidfd) = (dialog.socket, dialog.pidfd);
    Ok(Dialed {
        geometry,
        layout,
        grants,
        own,
        private,
        server,
        socket,
        pidfd,
        fence,
        sleep_fence: ReachingFence::to_server(offer.expedited),
    })
}

/// A handshake under way.
struct Dialog<'a> {
    path: &'a Path,
    connections: u32,
    socket: OwnedFd,
    pid: i32,
    pidfd: Option<OwnedFd>,
    until: Instant,
    after: Duration,
    buffer: Vec<u8>,
}

impl<'a> Dialog<'a> {
    fn open(path: &'a Path, connections: u32, after: Duration) -> Result<Self, SetupError> {
        let after = after.min(TIMEOUT_MAX);
        let until = Instant::now() + after;
        let system =
            |call| move |errno: Errno| SetupError::system(path, Step::Connect, call, errno);
        let address = path::address(path)?;
        let socket = socket::open().map_err(system("socket"))?;
        // Bounds `connect` while the server's backlog is full; zero would mean for ever.
        let bound = after.max(Duration::from_millis(1));
        set_socket_timeout(&socket, Timeout::Send, Some(bound)).map_err(system("setsockopt"))?;
        let timeout = || SetupError::Timeout {
            path: path.into(),
            step: Step::Connect,
            pid: 0,
            after,
        };
        loop {
            let source = match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) if Instant::now() < until => continue,
                Err(Errno::AGAIN | Errno::INTR) => return Err(timeout()),
                Err(errno) => errno,
            };
            let path = path.to_path_buf();
            return Err(match source {
                Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::PROTOTYPE => {
                    SetupError::NoServer {
                        path,
                        source: source.into(),
                    }
                }
                Errno::ACCESS | Errno::PERM => SetupError::NotPermitted {
                    path,
                    source: source.into(),
                },
                errno => system("connect")(errno),
            });
        }
        let (pid, pidfd) = match sys::peer_process(socket.as_fd()) {
            Ok(process) => (process.pid, process.pidfd),
            // Gone: the socket says so too.
            Err(Errno::SRCH) => (0, None),
            Err(errno) => return Err(system("pidfd_open")(errno)),
        };
        let buffer = vec![0; FROM_SERVER_MAX_BYTES];
        Ok(Self {
            path,
            connections,
            socket,
            pid,
            pidfd,
            until,
            after,
            buffer,
        })
    }

    fn broken(&self, step: Step, what: &'static str) -> SetupError {
        SetupError::Protocol {
            path: self.path.into(),
            pid: self.pid,
            step,
            what,
        }
    }

    fn system(&self, step: Step, call: &'static str, errno: Errno) -> SetupError {
        SetupError::system(self.path, step, call, io::Error::from(errno))
    }

    /// Waits for the socket.
    fn wait(&self, step: Step, for_what: PollFlags) -> Result<(), SetupError> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (path, after) = (self.path.into(), self.after);
                return Err(SetupError::Timeout {
                    path,
                    step,
                    pid: self.pid,
                    after,
                });
            }
            // So long a timeout that it has no form is none.
            let left = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.socket, for_what)], left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(self.system(step, "poll", errno)),
            }
        }
    }

    fn send(
        &mut self,
        step: Step,
        packet: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), SetupError> {
        loop {
            match socket::send(&self.socket, packet, fd) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => self.wait(step, PollFlags::OUT)?,
                // The server has refused and closed: what it said is still to be read.
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
                Err(errno) => return Err(self.system(step, "sendmsg", errno)),
            }
        }
    }

    /// Waits for a packet of the given kind. A refusal becomes its error.
    fn take(
        &mut self,
        step: Step,
        kind: Kind,
    ) -> Result<(Packet<'_>, Option<OwnedFd>), SetupError> {
        let (len, fd) = loop {
            match socket::receive(&self.socket, &mut self.buffer) {
                Incoming::Nothing => self.wait(step, PollFlags::IN)?,
                Incoming::End => return Err(self.broken(step, "it closed the connection")),
                Incoming::NoRoom => return Err(self.system(step, "recvmsg", Errno::MFILE)),
                Incoming::Packet { whole: false, .. } => {
                    return Err(self.broken(step, "a packet of the wrong size"));
                }
                Incoming::Packet {
                    len,
                    fd,
                    whole: true,
                } => break (len, fd),
            }
        };
        let packet = self.buffer.get(..len).and_then(Packet::parse);
        let Some(packet) = packet else {
            return Err(self.broken(step, "something that is not this protocol"));
        };
        if let Some((reason, detail)) = packet.refusal() {
            return Err(self.refused(packet.version, reason, detail));
        }
        if packet.version != VERSION {
            return Err(self.refused(packet.version, Refusal::Version, 0));
        }
        if packet.kind() != Some(kind) {
            return Err(self.broken(step, "a packet out of turn"));
        }
        Ok((packet, fd))
    }

    fn refused(&self, theirs: u32, reason: Refusal, detail: u32) -> SetupError {
        let path = self.path.to_path_buf();
        match reason {
            Refusal::Version => SetupError::VersionMismatch {
                path,
                ours: VERSION,
                theirs,
            },
            Refusal::Busy => SetupError::Busy {
                path,
                wanted: self.connections,
                free: detail,
            },
            Refusal::TooManyLinks => SetupError::TooManyLinks { path, max: detail },
            reason => SetupError::Refused { path, reason },
        }
    }

    fn take_offer(&mut self) -> Result<(Offer, OwnedFd), SetupError> {
        let (packet, fd) = self.take(Step::Offer, Kind::Offer)?;
        match (packet.offer(), fd) {
            (Some(offer), Some(fd)) => Ok((offer, fd)),
            _ => Err(self.broken(Step::Offer, "a malformed offer")),
        }
    }

    fn map_server(&self, fd: OwnedFd, bytes: usize) -> Result<Mapping, SetupError> {
        let unusable = |source| SetupError::PeerMemory {
            path: self.path.into(),
            pid: self.pid,
            source,
        };
        let memory = HugeMemory::map_fd(fd, bytes).map_err(unusable)?;
        Mapping::new(memory, bytes, bytes).ok_or_else(|| unusable(MemoryError::ZeroBytes))
    }

    fn take_welcome(
        &mut self,
        geometry: &Geometry,
        shards: u32,
    ) -> Result<Box<[Grant]>, SetupError> {
        let wanted = self.connections as usize;
        let mut grants = Vec::with_capacity(wanted);
        while grants.len() < wanted {
            let (packet, fd) = self.take(Step::Welcome, Kind::Welcome)?;
            let before = grants.len();
            let in_turn = packet
                .welcome()
                .filter(|&(first, _)| first as usize == before);
            if let (Some((_, seats)), None) = (in_turn, fd) {
                grants.extend(seats);
            }
            let sound = |grant: &Grant| {
                grant.seat < geometry.clients_max() && grant.shard < shards && grant.owner != 0
            };
            let new = grants.get(before..).unwrap_or_default();
            if new.is_empty() || grants.len() > wanted || !new.iter().all(sound) {
                return Err(self.broken(Step::Welcome, "seats that cannot be"));
            }
        }
        Ok(grants.into())
    }
}
