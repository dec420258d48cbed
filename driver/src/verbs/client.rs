//! The client's end.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scalerpc_core::post::{Completion, Limits, ReadWr, WcStatus, WriteWr};
use scalerpc_core::{Geometry, Region};
use scalerpc_hugepage::PagePolicy;

use super::ReliabilityOptions;
use super::device::{Host, Selection};
use super::dial::{self, Dialed};
use super::events::{Event, Events};
use super::failure::Failure;
use super::lanes::Lanes;
use super::nic::Nic;
use super::packet::{Grant, Inbox, Packet};
use super::qp;
use super::resources::QueuePair;
use super::server::drain;
use super::setup::{JoinStep, SetupError};
use super::tcp::{self, Incoming};
use crate::fabric::{Fabric, FabricEvent, PostError, Revocation};

/// What a client can be told.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Device, port, GID and MTU; what is not chosen is found.
    pub selection: Selection,
    /// Pages of the client's memory.
    pub page_policy: PagePolicy,
    /// NUMA node of the client's memory; `None` for the kernel's choice.
    pub numa_node: Option<u32>,
    /// When a server that does not answer is given up.
    pub reliability: ReliabilityOptions,
    /// Time for each step of connecting.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            selection: Selection::default(),
            page_policy: PagePolicy::Prefer,
            numa_node: None,
            reliability: ReliabilityOptions::default(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// A connection's own.
#[derive(Debug)]
struct Own {
    grant: Grant,
    /// `None` once it is gone.
    pair: Option<QueuePair>,
}

/// One link of a client process to a server, with any number of connections.
///
/// Dropping it ends them. A child of `fork` must not use what it inherits of it.
#[derive(Debug)]
pub struct VerbsClient {
    geometry: Geometry,
    limits: Limits,
    own: Box<[Own]>,
    lanes: Lanes,
    stream: TcpStream,
    inbox: Box<Inbox>,
    attempt: u64,
    /// The stream has ended, and every connection with it.
    over: bool,
    events: Events,
    /// Closed last.
    _nic: Nic,
}

impl VerbsClient {
    /// Opens a link with `connections` connections to the server that listens at `address`.
    ///
    /// # Errors
    ///
    /// [`SetupError`] names the step that failed and what helps.
    pub fn connect(
        address: impl ToSocketAddrs + std::fmt::Debug,
        connections: u32,
        options: &ClientOptions,
    ) -> Result<Self, SetupError> {
        Self::connect_with(&Host::load()?, address, connections, options)
    }

    /// As [`connect`](Self::connect), with devices from elsewhere.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn connect_with(
        host: &Host,
        address: impl ToSocketAddrs + std::fmt::Debug,
        connections: u32,
        options: &ClientOptions,
    ) -> Result<Self, SetupError> {
        let addresses = tcp::resolve(address)?;
        let Dialed {
            geometry,
            limits,
            grants,
            pairs,
            lanes,
            stream,
            inbox,
            attempt,
            nic,
        } = dial::dial(host, &addresses, connections, options)?;
        let events = Events::new(nic.device().context())
            .map_err(|source| SetupError::system(addresses[0], JoinStep::Go, "fcntl", source))?;
        let own = grants.into_iter().zip(pairs.into_iter().map(Some));
        Ok(Self {
            geometry,
            limits,
            own: own.map(|(grant, pair)| Own { grant, pair }).collect(),
            lanes,
            stream,
            inbox: Box::new(inbox),
            attempt,
            over: false,
            events,
            _nic: nic,
        })
    }

    /// The server's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Connections of this link.
    pub fn connections(&self) -> u32 {
        self.own.len() as u32
    }

    /// The nonce that the messages of a connection carry.
    ///
    /// # Panics
    ///
    /// If there is no connection of that number.
    pub fn owner(&self, connection: u32) -> u64 {
        self.own[connection as usize].grant.owner
    }

    /// The seat of a connection at the server.
    ///
    /// # Panics
    ///
    /// If there is no connection of that number.
    pub fn seat(&self, connection: u32) -> u32 {
        self.own[connection as usize].grant.seat
    }

    /// The last connection that failed at this end.
    pub fn last_failure(&self) -> Option<Failure> {
        self.lanes.last_failure()
    }

    /// Takes a connection to ERR, and tells the server: it learns of that in no other way.
    #[cold]
    fn end(&mut self, connection: u32) {
        self.lanes.set_down(connection);
        let Some(pair) = self
            .own
            .get(connection as usize)
            .and_then(|own| own.pair.as_ref())
        else {
            return;
        };
        if self.lanes.is_ending(connection) {
            return;
        }
        if qp::fail(pair).is_err() || !self.lanes.drain(connection) {
            self.lanes.give_up(connection);
        }
        if !self.over {
            // If it does not fit, the server does not read, and notices when it sends.
            let _ = tcp::send(
                &self.stream,
                &Packet::Closed(connection).bytes(self.attempt),
            );
        }
    }

    fn end_all(&mut self) {
        self.over = true;
        for connection in 0..self.connections() {
            self.end(connection);
        }
    }

    /// Asks the stream and the device for news; one system call if there is none.
    fn look(&mut self) {
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [
            PollFd::new(&self.stream, PollFlags::IN),
            PollFd::from_borrowed_fd(self.events.fd(), PollFlags::IN),
        ];
        // An error is EINTR: the next call asks again.
        if !matches!(poll(&mut fds, Some(&none)), Ok(1..)) {
            return;
        }
        let of_device = !fds[1].revents().is_empty();
        if !fds[0].revents().is_empty() {
            self.read_stream();
        }
        if of_device {
            self.read_device();
        }
    }

    fn read_stream(&mut self) {
        while !self.over {
            match tcp::receive(&self.stream, &mut self.inbox) {
                Incoming::Nothing => return,
                Incoming::Packet(Packet::Closed(connection), _) => self.end(connection),
                // A Bye, the end, or something that the protocol does not allow.
                _ => self.end_all(),
            }
        }
    }

    fn read_device(&mut self) {
        while let Some(event) = self.events.take() {
            match event {
                Event::QueuePair(qp) => {
                    let is_it = |own: &Own| own.pair.as_ref().is_some_and(|it| it.as_ptr() == qp);
                    if let Some(connection) = self.own.iter().position(is_it) {
                        self.end(connection as u32);
                    }
                }
                Event::Device => self.end_all(),
                Event::Port | Event::Other => {}
            }
        }
    }
}

// SAFETY: the two regions are views of mappings that the lanes own and never exchange. The device writes to exposed
// memory what the server WRITEs there, and nothing to private memory; work requests name ranges that were checked against
// the lengths of both ends.
unsafe impl Fabric for VerbsClient {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn exposed(&self) -> &Region {
        self.lanes.exposed()
    }

    fn private(&self) -> &Region {
        self.lanes.private()
    }

    #[inline]
    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        self.lanes.post_write(wr)
    }

    /// Only servers read: this is always [`PostError::Down`].
    fn post_read(&mut self, _: &ReadWr) -> Result<(), PostError> {
        debug_assert!(false, "a client posts no READ");
        Err(PostError::Down)
    }

    #[inline]
    fn flush(&mut self) -> Option<u32> {
        self.lanes.flush()
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.lanes.poll()?;
        if completion.status != WcStatus::Success {
            while let Some(connection) = self.lanes.take_failed() {
                self.end(connection);
            }
        }
        Some(completion)
    }

    /// Costs a system call while the link is up, so call it now and then, and when waiting.
    fn poll_event(&mut self) -> Option<FabricEvent> {
        if !self.over {
            self.look();
        }
        let connection = self.lanes.take_drained()?;
        if let Some(own) = self.own.get_mut(connection as usize) {
            own.pair = None;
        }
        self.lanes.detach(connection);
        Some(FabricEvent::Gone { connection })
    }

    /// A client revokes nothing.
    fn revoke_all(&mut self, _: &mut [Revocation]) {}

    fn close(&mut self, connection: u32) {
        self.end(connection);
    }

    fn release(&mut self, _: u32) {}
}

impl Drop for VerbsClient {
    fn drop(&mut self) {
        if !self.over {
            let _ = tcp::send(&self.stream, &Packet::Bye.bytes(self.attempt));
        }
        let failed = |own: &Own| own.pair.as_ref().is_some_and(|pair| qp::fail(pair).is_ok());
        let ending: Vec<u32> = (0..)
            .zip(&self.own)
            .filter(|(_, own)| failed(own))
            .map(|(connection, _)| connection)
            .collect();
        drain(&mut self.lanes, ending.iter().copied());
    }
}
