//! The client's side of the handshake.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use scalerpc_core::Geometry;
use scalerpc_core::post::Limits;

use super::client::ClientOptions;
use super::device::Host;
use super::lanes::{Lanes, QpRef};
use super::nic::{Ground, Nic, Pages};
use super::packet::{
    Bad, Grant, Hello, Inbox, Offer, PAIRS_MAX, Packet, Pair, VERSION, client_bytes,
};
use super::qp::{self, End, Pairing, Patience, Route};
use super::resources::QueuePair;
use super::server::limits;
use super::setup::{JoinStep, Refusal, SetupError};
use super::{TIMEOUT_MAX, tcp};

/// What a finished handshake leaves.
pub(super) struct Dialed {
    pub(super) geometry: Geometry,
    pub(super) limits: Limits,
    pub(super) grants: Vec<Grant>,
    pub(super) pairs: Vec<QueuePair>,
    pub(super) lanes: Lanes,
    pub(super) stream: TcpStream,
    pub(super) inbox: Inbox,
    pub(super) attempt: u64,
    pub(super) nic: Nic,
}

/// Connects; every step has its time.
pub(super) fn dial(
    host: &Host,
    addresses: &[SocketAddr],
    connections: u32,
    options: &ClientOptions,
) -> Result<Dialed, SetupError> {
    if connections == 0 {
        return Err(SetupError::BadRequest {
            what: "a link needs at least one connection",
        });
    }
    let patience = Patience::of(&options.reliability)?;
    let mut dialog = Dialog::open(addresses, connections, options.timeout)?;
    let nic = Nic::open(
        host,
        &options.selection,
        dialog.own_address(),
        End::Client,
        patience,
    )?;
    let (offer, geometry) = dialog.greet(&nic)?;
    let bytes = client_bytes(&geometry, connections).ok_or(SetupError::BadRequest {
        what: "memory for so many connections does not fit",
    })?;
    let pages = Pages {
        policy: options.page_policy,
        node: options.numa_node,
    };
    let ground = nic.ground(None, &geometry, connections, bytes, pages)?;
    dialog.send(&Packet::Region(ground.remote(bytes.0)));
    let mut joint = Joint {
        nic: &nic,
        ground: &ground,
        route: Route {
            mtu: offer.route.mtu.min(nic.device().mtu()),
            ..offer.route
        },
        pairs: Vec::new(),
        grants: Vec::new(),
    };
    while (joint.pairs.len() as u32) < connections {
        dialog.pair_up(&mut joint, &geometry)?;
    }
    let Joint { pairs, grants, .. } = joint;
    let in_order = pairs.first().is_some_and(QueuePair::places_in_order);
    let in_order = dialog.go(offer.in_order, in_order)?;
    let (stream, inbox, attempt) = dialog.end()?;
    let limits = limits(&ground.plan, ground.inline, in_order);
    let mut lanes = ground.lanes(geometry, connections);
    for (pair, number) in pairs.iter().zip(0..) {
        lanes.attach(number, QpRef(pair.as_ptr()), offer.remote);
    }
    Ok(Dialed {
        geometry,
        limits,
        grants,
        pairs,
        lanes,
        stream,
        inbox,
        attempt,
        nic,
    })
}

/// Queue pairs that are being joined to the server's.
struct Joint<'a> {
    nic: &'a Nic,
    ground: &'a Ground,
    route: Route,
    pairs: Vec<QueuePair>,
    grants: Vec<Grant>,
}

/// A handshake under way.
struct Dialog {
    address: SocketAddr,
    connections: u32,
    stream: TcpStream,
    inbox: Inbox,
    /// Sent with each packet, and expected back: so an answer to somebody else is none to this.
    attempt: u64,
    after: Duration,
}

impl Dialog {
    /// Connects to the first address that answers.
    fn open(
        addresses: &[SocketAddr],
        connections: u32,
        after: Duration,
    ) -> Result<Self, SetupError> {
        // Zero would mean for ever.
        let after = after.clamp(Duration::from_millis(1), TIMEOUT_MAX);
        let mut last = SetupError::BadRequest {
            what: "no address to connect to",
        };
        for &address in addresses {
            match Self::connect(address, after) {
                Ok(stream) => {
                    let attempt = getrandom::u64()
                        .map_err(|error| no_random(address, JoinStep::Connect, error))?;
                    return Ok(Self {
                        address,
                        connections,
                        stream,
                        inbox: Inbox::new(),
                        attempt,
                        after,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn connect(address: SocketAddr, after: Duration) -> Result<TcpStream, SetupError> {
        let stream =
            TcpStream::connect_timeout(&address, after).map_err(|source| match source.kind() {
                io::ErrorKind::TimedOut => SetupError::Timeout {
                    address,
                    step: JoinStep::Connect,
                    after,
                },
                io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable => SetupError::NoServer { address, source },
                _ => SetupError::system(address, JoinStep::Connect, "connect", source),
            })?;
        tcp::prepare(&stream).map_err(|source| {
            SetupError::system(address, JoinStep::Connect, "setsockopt", source)
        })?;
        Ok(stream)
    }

    /// This end's address in the network over which the server was reached.
    fn own_address(&self) -> IpAddr {
        let address = self.stream.local_addr();
        address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip())
    }

    fn send(&mut self, packet: &Packet) {
        let bytes = packet.bytes(self.attempt);
        // What fits a socket's buffer does not block. If the server is gone, the answer that is awaited next says why:
        // a refusal may be there.
        let _ = io::Write::write_all(&mut self.stream, &bytes);
    }

    /// Waits for the next packet; a refusal is an error.
    fn receive(&mut self, step: JoinStep) -> Result<Packet, SetupError> {
        let until = Instant::now() + self.after;
        loop {
            match self.inbox.take() {
                Ok(Some((packet, attempt))) => return self.accept(step, packet, attempt),
                Ok(None) => {}
                Err(Bad::Version(theirs)) => {
                    return Err(SetupError::VersionMismatch {
                        address: self.address,
                        ours: VERSION,
                        theirs,
                    });
                }
                Err(Bad::Form) => return Err(self.broken(step, "what it said is no packet")),
            }
            let left = until.saturating_duration_since(Instant::now());
            let timeout = SetupError::Timeout {
                address: self.address,
                step,
                after: self.after,
            };
            if left.is_zero() {
                return Err(timeout);
            }
            let failed = |source| SetupError::system(self.address, step, "reading", source);
            self.stream.set_read_timeout(Some(left)).map_err(failed)?;
            match io::Read::read(&mut self.stream, self.inbox.room()) {
                Ok(0) => return Err(self.broken(step, "it closed the stream")),
                Ok(count) => self.inbox.filled(count),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err(timeout),
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                        return Err(self.broken(step, "it closed the stream"));
                    }
                    _ => return Err(failed(error)),
                },
            }
        }
    }

    fn accept(&self, step: JoinStep, packet: Packet, attempt: u64) -> Result<Packet, SetupError> {
        let address = self.address;
        match packet {
            Packet::Refusal(Refusal::Busy, free) => Err(SetupError::Busy {
                address,
                wanted: self.connections,
                free,
            }),
            Packet::Refusal(Refusal::Version, theirs) => Err(SetupError::VersionMismatch {
                address,
                ours: VERSION,
                theirs,
            }),
            Packet::Refusal(reason, detail) => Err(SetupError::Refused {
                address,
                reason,
                detail,
            }),
            _ if attempt != self.attempt => Err(self.broken(step, "an answer to another attempt")),
            packet => Ok(packet),
        }
    }

    fn broken(&self, step: JoinStep, what: &'static str) -> SetupError {
        SetupError::Protocol {
            address: self.address,
            step,
            what,
        }
    }

    /// Says what this end is, and learns what the server offers.
    fn greet(&mut self, nic: &Nic) -> Result<(Offer, Geometry), SetupError> {
        let (device, step) = (nic.device(), JoinStep::Offer);
        self.send(&Packet::Hello(Hello {
            connections: self.connections,
            route: Route {
                lid: device.port().lid(),
                gid: device.gid().bytes,
                mtu: device.mtu(),
                reads: device.capabilities().max_qp_rd_atom,
            },
        }));
        let Packet::Offer(offer) = self.receive(step)? else {
            return Err(self.broken(step, "a packet that is not in turn"));
        };
        let geometry = Geometry::new(offer.config)
            .map_err(|_| self.broken(step, "a geometry that cannot be"))?;
        let enough = offer.remote.bytes >= geometry.server_exposed_bytes() as u64;
        if offer.connections != self.connections || !enough {
            return Err(self.broken(step, "numbers that contradict each other"));
        }
        Ok((offer, geometry))
    }

    /// Makes the next queue pairs, and joins them to the server's.
    fn pair_up(&mut self, joint: &mut Joint<'_>, geometry: &Geometry) -> Result<(), SetupError> {
        let first = joint.pairs.len() as u32;
        let count = (self.connections - first).min(PAIRS_MAX as u32);
        let mut offered = Vec::with_capacity(count as usize);
        for number in first..first + count {
            let Ground {
                plan,
                queues,
                inline,
                ..
            } = joint.ground;
            let queue = &queues[plan.queue_of(number)];
            let made = joint.nic.queue_pair(queue, plan, *inline, &self.address)?;
            let psn = qp::random_psn()
                .map_err(|error| no_random(self.address, JoinStep::Seats, error))?;
            offered.push(Pair {
                number: made.number(),
                psn,
            });
            joint.pairs.push(made);
        }
        self.send(&Packet::Pairs {
            first,
            pairs: offered.clone(),
        });
        let grants = match self.receive(JoinStep::Seats)? {
            Packet::Seats { first: at, grants } if at == first => grants,
            _ => return Err(self.broken(JoinStep::Seats, "a packet that is not in turn")),
        };
        let known = |grant: &Grant| grant.seat < geometry.clients_max();
        if grants.len() != offered.len() || !grants.iter().all(known) {
            return Err(self.broken(JoinStep::Seats, "seats that cannot be"));
        }
        let made = &joint.pairs[first as usize..];
        for ((pair, own), grant) in made.iter().zip(&offered).zip(&grants) {
            let pairing = Pairing {
                peer: grant.pair.number,
                own_psn: own.psn,
                peer_psn: grant.pair.psn,
            };
            joint
                .nic
                .connect(pair, &joint.route, pairing, &self.address)?;
        }
        joint.grants.extend(grants);
        Ok(())
    }

    /// All queue pairs are in RTS: agrees on the placement.
    fn go(&mut self, offered: bool, in_order: bool) -> Result<bool, SetupError> {
        self.send(&Packet::Ready { in_order });
        match self.receive(JoinStep::Go)? {
            Packet::Go { in_order: agreed } if agreed == (offered && in_order) => Ok(agreed),
            _ => Err(self.broken(JoinStep::Go, "a packet that is not in turn")),
        }
    }

    fn end(self) -> Result<(TcpStream, Inbox, u64), SetupError> {
        self.stream.set_nonblocking(true).map_err(|source| {
            SetupError::system(self.address, JoinStep::Go, "setting it up", source)
        })?;
        Ok((self.stream, self.inbox, self.attempt))
    }
}

fn no_random(address: SocketAddr, step: JoinStep, error: getrandom::Error) -> SetupError {
    SetupError::system(address, step, "getrandom", io::Error::other(error))
}
