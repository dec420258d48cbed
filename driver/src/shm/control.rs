//! The control thread of a server: it admits clients, watches them, and fences those that end.
//!
//! It sleeps until something happens. Every client is a small state machine, so a slow one delays nobody;
//! the number of unfinished handshakes and the time for each are bounded.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use scalerpc_core::Geometry;

use super::asleep::{self, WriterFence};
use super::error::Refusal;
use super::fence::ReachingFence;
use super::futex;
use super::handshake::{self, FROM_CLIENT_MAX_BYTES, Grant, Packet};
use super::link::{Link, News, Order, Shared};
use super::shards::{self, Layout, Shard};
use super::socket::{self, Incoming};
use super::sys::{self, PeerProcess};
use crate::door::{Door, LISTENER, WAKE};
use crate::mapping::Part;

/// How often an evicted client that was stopped in the middle of a WRITE is looked at.
const QUIET_PAUSE: Duration = Duration::from_millis(20);
/// Packets taken from a client that is refused; no more fit its socket.
const DRAIN_MAX: u32 = 1024;

/// What the control thread goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Of each shard.
    pub(super) geometry: Geometry,
    pub(super) layout: Layout,
    pub(super) fence: ReachingFence,
    pub(super) links_max: u32,
    pub(super) handshakes_max: u32,
    pub(super) handshake_timeout: Duration,
}

/// How far a client has come. Every stage from `Offered` on holds seats.
#[derive(Debug)]
pub(super) enum Stage {
    /// Its Hello is awaited.
    Greeting,
    /// Its Region is awaited.
    Offered(Box<[Grant]>),
    /// Its Welcome is being sent.
    Welcoming { link: Arc<Link>, sent: usize },
    /// In service.
    Open(Arc<Link>),
    /// The data thread has closed it: fenced once its guards are quiet, or as in `Orphaned`.
    Evicted(Arc<Link>),
    /// Its socket has ended without a Bye: fenced when its process is gone.
    Orphaned(Arc<Link>),
    /// It writes no more; its seats are still to be released.
    Fenced(Arc<Link>),
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: u64,
    pub(super) socket: OwnedFd,
    process: PeerProcess,
    pub(super) stage: Stage,
    /// While the handshake lasts.
    deadline: Option<Instant>,
}

impl Peer {
    pub(super) fn pid(&self) -> i32 {
        self.process.pid
    }

    /// The handshake is over.
    pub(super) fn settle(&mut self, link: Arc<Link>) {
        self.stage = Stage::Open(link);
        self.deadline = None;
    }
}

pub(super) struct Control {
    pub(super) shared: Arc<Shared>,
    pub(super) shards: Box<[Shard]>,
    /// The shard that gives a seat next, of those that are alike.
    pub(super) turn: usize,
    pub(super) rules: Rules,
    door: Door<OwnedFd>,
    /// By id, from 1. The token of a peer's socket is twice its id, that of its pidfd one more.
    peers: BTreeMap<u64, Peer>,
    next_id: u64,
}

impl Control {
    pub(super) fn new(
        shared: Arc<Shared>,
        shards: Box<[Shard]>,
        rules: Rules,
        listener: OwnedFd,
    ) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let door = Door::new(&shared.wake, listener)?;
        Ok(Self {
            shared,
            shards,
            turn: 0,
            rules,
            door,
            peers: BTreeMap::new(),
            next_id: 1,
        })
    }

    /// Works until the server stops.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.shared.is_stopping() {
            let pause = self.look_after();
            self.door.wait(&mut events, pause);
            for event in &events {
                match event.data.u64() {
                    WAKE => self.shared.wake.hush(),
                    LISTENER => self.accept(),
                    token => self.on_peer(token),
                }
            }
            for order in self.shared.take_orders() {
                self.obey(order);
            }
        }
        self.farewell();
    }

    /// Does what is due by now; returns how long nothing else will be.
    fn look_after(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let mut due: Option<Instant> = None;
        let mut sooner = |at: Instant| due = Some(due.map_or(at, |due| due.min(at)));
        let (mut late, mut quiet, mut handshakes) = (Vec::new(), Vec::new(), 0);
        for (&id, peer) in &self.peers {
            match (peer.deadline, &peer.stage) {
                (Some(deadline), _) if deadline <= now => late.push(id),
                (Some(deadline), _) => {
                    handshakes += 1;
                    sooner(deadline);
                }
                (None, Stage::Evicted(link)) if link.is_quiet() => quiet.push(id),
                (None, Stage::Evicted(_)) => sooner(now + QUIET_PAUSE),
                (None, _) => {}
            }
        }
        if let Some(at) = self.door.rests_until(now) {
            sooner(at);
        }
        for id in late {
            self.with_peer(id, Self::abandon);
        }
        for id in quiet {
            self.with_peer(id, Self::fence);
        }
        self.door.set_open(handshakes < self.rules.handshakes_max);
        due.map(|due| due.saturating_duration_since(now))
    }

    /// Takes one client from the backlog. The others stay readable, and `look_after` counts before the
    /// next one.
    fn accept(&mut self) {
        if self.door.is_resting() {
            return;
        }
        match accept_with(self.door.listener(), SocketFlags::CLOEXEC) {
            Ok(socket) => self.greet(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => self.door.rest(),
        }
    }

    fn greet(&mut self, socket: OwnedFd) {
        let process = match sys::peer_process(socket.as_fd()) {
            Ok(process) => process,
            Err(errno) => {
                if errno != Errno::SRCH {
                    say_no(&socket, Refusal::Resources, 0);
                }
                self.shared.counts.abandoned.add(1);
                return;
            }
        };
        let id = self.next_id;
        self.next_id += 1;
        let watched = self.door.watch(&socket, 2 * id).and_then(|()| {
            let pidfd = process.pidfd.as_ref();
            pidfd.map_or(Ok(()), |pidfd| self.door.watch(pidfd, 2 * id + 1))
        });
        let deadline = Some(Instant::now() + self.rules.handshake_timeout);
        let peer = Peer {
            id,
            socket,
            process,
            stage: Stage::Greeting,
            deadline,
        };
        match watched {
            Ok(()) => {
                self.peers.insert(id, peer);
            }
            Err(_) => {
                self.abandon(peer);
            }
        }
    }

    fn on_peer(&mut self, token: u64) {
        let of_process = token % 2 == 1;
        self.with_peer(token / 2, |control, peer| {
            if of_process {
                control.on_exit(peer)
            } else {
                control.on_socket(peer)
            }
        });
    }

    /// Gives a peer a turn; it stays if it is returned.
    fn with_peer(&mut self, id: u64, turn: impl FnOnce(&mut Self, Peer) -> Option<Peer>) {
        // A peer may have left in the same round of events.
        let Some(peer) = self.peers.remove(&id) else {
            return;
        };
        if let Some(peer) = turn(self, peer) {
            self.peers.insert(id, peer);
        }
    }

    fn on_exit(&mut self, peer: Peer) -> Option<Peer> {
        match peer.stage {
            Stage::Greeting | Stage::Offered(_) | Stage::Welcoming { .. } => self.abandon(peer),
            Stage::Open(_) | Stage::Evicted(_) | Stage::Orphaned(_) => self.fence(peer),
            Stage::Fenced(_) => Some(peer),
        }
    }

    fn on_socket(&mut self, peer: Peer) -> Option<Peer> {
        let peer = match peer.stage {
            // Before the last packet goes out: after it, the client may be writing.
            Stage::Welcoming { .. } if self.watch_writable(&peer, false).is_err() => {
                return self.abandon(peer);
            }
            Stage::Welcoming { .. } => self.welcome(peer)?,
            _ => peer,
        };
        let mut buffer = [0; FROM_CLIENT_MAX_BYTES];
        match socket::receive(&peer.socket, &mut buffer) {
            Incoming::Nothing => Some(peer),
            Incoming::End => self.on_end(peer),
            Incoming::NoRoom if peer.deadline.is_some() => self.refuse(peer, Refusal::Resources, 0),
            Incoming::NoRoom => self.on_packet(peer, None, None),
            Incoming::Packet { len, fd, whole } => {
                let bytes = buffer.get(..len).filter(|_| whole);
                self.on_packet(peer, bytes.and_then(Packet::parse), fd)
            }
        }
    }

    fn on_end(&mut self, mut peer: Peer) -> Option<Peer> {
        self.door.unwatch(&peer.socket);
        match peer.stage {
            Stage::Greeting | Stage::Offered(_) | Stage::Welcoming { .. } => self.abandon(peer),
            Stage::Open(link) => {
                link.set_down();
                peer.stage = Stage::Orphaned(link);
                Some(peer)
            }
            Stage::Evicted(_) | Stage::Orphaned(_) | Stage::Fenced(_) => Some(peer),
        }
    }

    fn on_packet(
        &mut self,
        mut peer: Peer,
        packet: Option<Packet<'_>>,
        fd: Option<OwnedFd>,
    ) -> Option<Peer> {
        let bye = fd.is_none() && packet.is_some_and(|packet| packet.bye().is_some());
        match peer.stage {
            Stage::Greeting => self.on_hello(peer, packet, fd),
            Stage::Offered(_) => self.on_region(peer, packet, fd),
            Stage::Welcoming { .. } => self.refuse(peer, Refusal::Protocol, 0),
            Stage::Open(_) | Stage::Evicted(_) if bye => self.fence(peer),
            Stage::Open(link) => {
                self.shared.counts.violations.add(1);
                link.set_down();
                self.door.unwatch(&peer.socket);
                let _ = shutdown(&peer.socket, Shutdown::Both);
                peer.stage = Stage::Orphaned(link);
                Some(peer)
            }
            Stage::Evicted(_) | Stage::Orphaned(_) | Stage::Fenced(_) => {
                self.door.unwatch(&peer.socket);
                Some(peer)
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Evict(id) => self.with_peer(id, Self::evict),
            Order::Forget(id) => self.with_peer(id, |control, peer| {
                if let Stage::Fenced(link) = &peer.stage {
                    control
                        .shared
                        .counts
                        .client_bytes
                        .sub(link.memory_bytes() as u64);
                }
                control.part(peer)
            }),
        }
    }

    /// The client learns from the end of the stream that it has been closed, and may still say Bye. Asked again by
    /// each of its shards.
    fn evict(&mut self, mut peer: Peer) -> Option<Peer> {
        match peer.stage {
            Stage::Open(link) | Stage::Orphaned(link) => {
                let _ = shutdown(&peer.socket, Shutdown::Write);
                self.tell(&link, News::Ended);
                peer.stage = Stage::Evicted(link);
            }
            Stage::Evicted(_) => {}
            _ => return Some(peer),
        }
        match &peer.stage {
            Stage::Evicted(link) if link.is_quiet() => self.fence(peer),
            _ => Some(peer),
        }
    }

    /// The client writes no more: tells the data threads. The socket stays open until the seats are
    /// released; its end tells the client that this side is done, too.
    pub(super) fn fence(&mut self, mut peer: Peer) -> Option<Peer> {
        self.unwatch(&peer);
        peer.stage = match peer.stage {
            Stage::Open(link) | Stage::Evicted(link) | Stage::Orphaned(link) => {
                link.set_fenced();
                self.shared.counts.fenced.add(1);
                self.shared.counts.links_open.sub(1);
                self.tell(&link, News::Gone);
                Stage::Fenced(link)
            }
            stage => stage,
        };
        Some(peer)
    }

    /// Tells all shards in which a link has connections. For one that is closed, this thread does what there is to do.
    pub(super) fn tell(&self, link: &Arc<Link>, news: fn(Arc<Link>) -> News) {
        for number in link.shards() {
            let Some(shard) = self.shards.get(number as usize) else {
                continue;
            };
            match shard.line.tell(news(Arc::clone(link))) {
                Err(News::Opened(link)) if link.end(number) => {
                    self.shared.order(Order::Evict(link.id));
                }
                Err(News::Gone(link)) if link.let_go_all(number) => {
                    self.shared.order(Order::Forget(link.id));
                }
                // Who closed a shard has ended all links that it knew.
                Err(_) => {}
                // Its thread may be asleep.
                Ok(()) => wake_server(&shard.exposed, self.rules.geometry.server_asleep()),
            }
        }
    }

    /// Ends a handshake that the client did not finish. It has not written anything yet: a client writes
    /// only after its Welcome.
    pub(super) fn abandon(&mut self, peer: Peer) -> Option<Peer> {
        self.shared.counts.abandoned.add(1);
        self.end_handshake(peer)
    }

    /// Ends a handshake with a reason that the client can read.
    pub(super) fn refuse(&mut self, peer: Peer, reason: Refusal, detail: u32) -> Option<Peer> {
        let counts = &self.shared.counts;
        counts.refused.add(1);
        if matches!(
            reason,
            Refusal::Protocol | Refusal::BadRequest | Refusal::Memory
        ) {
            counts.violations.add(1);
        }
        say_no(&peer.socket, reason, detail);
        self.end_handshake(peer)
    }

    fn end_handshake(&mut self, mut peer: Peer) -> Option<Peer> {
        match std::mem::replace(&mut peer.stage, Stage::Greeting) {
            Stage::Offered(grants) => shards::give_back(&self.shards, &grants),
            Stage::Welcoming { link, .. } => shards::give_back(&self.shards, &link.grants),
            _ => {}
        }
        self.part(peer)
    }

    fn part(&mut self, peer: Peer) -> Option<Peer> {
        self.unwatch(&peer);
        None
    }

    fn unwatch(&self, peer: &Peer) {
        self.door.unwatch(&peer.socket);
        if let Some(pidfd) = &peer.process.pidfd {
            self.door.unwatch(pidfd);
        }
    }

    /// Wakes up when the socket can take more, too.
    pub(super) fn watch_writable(&self, peer: &Peer, writable: bool) -> Result<(), Errno> {
        self.door
            .watch_writable(&peer.socket, 2 * peer.id, writable)
    }

    /// Links that hold seats, or are about to.
    pub(super) fn links(&self) -> u32 {
        let greeting = |peer: &&Peer| matches!(peer.stage, Stage::Greeting);
        (self.peers.len() - self.peers.values().filter(greeting).count()) as u32
    }

    fn farewell(&self) {
        for peer in self.peers.values() {
            if let Stage::Open(_) = peer.stage {
                // A client that does not take it sees the end of the stream.
                let _ = socket::send(&peer.socket, &handshake::bye(), None);
            }
        }
    }
}

/// Wakes the data thread, from any other thread of its process.
pub(super) fn wake_server(exposed: &Part, asleep_at: usize) {
    if asleep::must_wake(exposed.region(), asleep_at, WriterFence::Full) {
        futex::wake(exposed.region(), asleep_at);
    }
}

/// Sends a refusal in such a way that it survives the end of the socket: closing one with packets unread
/// would destroy what the peer has not read.
fn say_no(socket: &OwnedFd, reason: Refusal, detail: u32) {
    let _ = socket::send(socket, &handshake::refusal(reason, detail), None);
    // From here on the peer cannot send.
    let _ = shutdown(socket, Shutdown::Read);
    let mut buffer = [0; FROM_CLIENT_MAX_BYTES];
    for _ in 0..DRAIN_MAX {
        match socket::receive(socket, &mut buffer) {
            Incoming::Packet { .. } | Incoming::NoRoom => {}
            Incoming::Nothing | Incoming::End => break,
        }
    }
}
