//! What travels over TCP: fixed width, little-endian.
//!
//! ```text
//!  header   | magic u64 | version u32 | kind u32 | attempt u64 | body bytes u32 | 0 u32 |
//!  Hello    | connections u32 | lid u32 | gid 16 | mtu u32 | reads u32 |                   client, first
//!  Refusal  | reason u32 | detail u32 |                                                    server; closes
//!  Offer    | geometry 6 x u32 | connections u32 | flags u32 | lid u32 | gid 16 | mtu u32 | reads u32 | rkey u32
//!           | address u64 | bytes u64 |
//!  Region   | rkey u32 | 0 u32 | address u64 | bytes u64 |                                 client
//!  Pairs    | first u32 | count u32 | count x { queue pair u32, psn u32 } |                client
//!  Seats    | first u32 | count u32 | count x { queue pair u32, psn u32, seat u32, 0 u32, owner u64 } |
//!  Ready    | flags u32 | 0 u32 |                                                          client
//!  Go       | flags u32 | 0 u32 |                                                          server
//!  Closed   | connection u32 | 0 u32 |              either: the sender's queue pair is in ERR
//!  Bye      | |                                     either: so are all of them
//! ```
//!
//! Flags: 1 is set if the sender wants the placement to be in order, or if it is. `attempt` is the client's, and random; the server sends it back. The first 16 bytes of the header, and the header
//! and body of a Refusal, stay as they are in every version, so that ends of different versions can tell each other why
//! they part.

use scalerpc_core::{Geometry, GeometryConfig};

use super::lanes::Remote;
use super::mtu::Mtu;
use super::qp::{NUMBER_MAX, Route};
use super::setup::Refusal;
use crate::fields::{Fields, config_words};

/// Version of the protocol: of these packets, and of all that the ends then do with each other's memory.
pub const VERSION: u32 = 3;
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ScaleRDM");

pub(super) const HEADER_BYTES: usize = 32;
/// Connections of one Pairs packet. To make that many takes a server some milliseconds, in which others wait.
pub(super) const PAIRS_MAX: usize = 16;
/// Largest body: that of Seats.
pub(super) const BODY_MAX: usize = 8 + PAIRS_MAX * 24;
pub(super) const PACKET_MAX: usize = HEADER_BYTES + BODY_MAX;

/// What an end says of itself or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) connections: u32,
    pub(super) route: Route,
}

/// What the server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) config: GeometryConfig,
    pub(super) connections: u32,
    pub(super) in_order: bool,
    /// The server's address, and what both ends use.
    pub(super) route: Route,
    pub(super) remote: Remote,
}

/// A queue pair, and the number of its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) number: u32,
    pub(super) psn: u32,
}

/// A seat, with the server's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) pair: Pair,
    pub(super) seat: u32,
    pub(super) owner: u64,
}

/// A packet of this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    Hello(Hello),
    Refusal(Refusal, u32),
    Offer(Offer),
    Region(Remote),
    Pairs { first: u32, pairs: Vec<Pair> },
    Seats { first: u32, grants: Vec<Grant> },
    Ready { in_order: bool },
    Go { in_order: bool },
    Closed(u32),
    Bye,
}

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// Of another version.
    Version(u32),
    /// Of none.
    Form,
}

impl Fields<'_> {
    fn zero(&mut self) -> Option<()> {
        (self.u32()? == 0).then_some(())
    }

    fn route(&mut self) -> Option<Route> {
        Some(Route {
            lid: self.u32()?.try_into().ok()?,
            gid: self.take()?,
            mtu: Mtu::from_bytes(self.u32()?)?,
            reads: self.u32()?.try_into().ok()?,
        })
    }

    fn pair(&mut self) -> Option<Pair> {
        let (number, psn) = (self.u32()?, self.u32()?);
        (number <= NUMBER_MAX && psn <= NUMBER_MAX).then_some(Pair { number, psn })
    }

    fn remote(&mut self) -> Option<Remote> {
        let remote = Remote {
            rkey: self.u32()?,
            address: {
                self.zero()?;
                self.u64()?
            },
            bytes: self.u64()?,
        };
        // What is inside of it can be addressed without a thought.
        remote.address.checked_add(remote.bytes)?;
        Some(remote)
    }

    /// A list whose length is said and right.
    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<(u32, Vec<T>)> {
        let (first, count) = (self.u32()?, self.u32()? as usize);
        if count == 0 || count > PAIRS_MAX {
            return None;
        }
        let items: Option<Vec<T>> = (0..count).map(|_| one(self)).collect();
        Some((first, items?))
    }
}

impl Packet {
    fn kind(&self) -> u32 {
        match self {
            Self::Hello(_) => 1,
            Self::Refusal(..) => 2,
            Self::Offer(_) => 3,
            Self::Region(_) => 4,
            Self::Pairs { .. } => 5,
            Self::Seats { .. } => 6,
            Self::Ready { .. } => 7,
            Self::Go { .. } => 8,
            Self::Closed(_) => 9,
            Self::Bye => 10,
        }
    }

    /// The whole packet.
    pub(super) fn bytes(&self, attempt: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(PACKET_MAX);
        out.extend(MAGIC.to_le_bytes());
        out.extend(VERSION.to_le_bytes());
        out.extend(self.kind().to_le_bytes());
        out.extend(attempt.to_le_bytes());
        out.extend([0; 8]);
        self.body(&mut out);
        let body = (out.len() - HEADER_BYTES) as u32;
        out[24..28].copy_from_slice(&body.to_le_bytes());
        out
    }

    fn body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                words(out, &[hello.connections]);
                put_route(out, &hello.route);
            }
            Self::Refusal(reason, detail) => words(out, &[reason.code(), *detail]),
            Self::Offer(offer) => put_offer(out, offer),
            Self::Region(remote) => put_remote(out, remote),
            Self::Pairs { first, pairs } => {
                words(out, &[*first, pairs.len() as u32]);
                for pair in pairs {
                    words(out, &[pair.number, pair.psn]);
                }
            }
            Self::Seats { first, grants } => {
                words(out, &[*first, grants.len() as u32]);
                for grant in grants {
                    words(out, &[grant.pair.number, grant.pair.psn, grant.seat, 0]);
                    out.extend(grant.owner.to_le_bytes());
                }
            }
            Self::Ready { in_order } | Self::Go { in_order } => {
                words(out, &[u32::from(*in_order), 0]);
            }
            Self::Closed(connection) => words(out, &[*connection, 0]),
            Self::Bye => {}
        }
    }

    fn parse(kind: u32, body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let packet = match kind {
            1 => Self::Hello(Hello {
                connections: fields.u32()?,
                route: fields.route()?,
            }),
            2 => Self::Refusal(Refusal::from_code(fields.u32()?), fields.u32()?),
            3 => Self::Offer(Offer {
                config: fields.config()?,
                connections: fields.u32()?,
                in_order: fields.flag()?,
                route: fields.route()?,
                remote: fields.remote()?,
            }),
            4 => Self::Region(fields.remote()?),
            5 => {
                let (first, pairs) = fields.list(Fields::pair)?;
                Self::Pairs { first, pairs }
            }
            6 => {
                let (first, grants) = fields.list(|fields| {
                    Some(Grant {
                        pair: fields.pair()?,
                        seat: fields.u32()?,
                        owner: {
                            fields.zero()?;
                            fields.u64()?
                        },
                    })
                })?;
                Self::Seats { first, grants }
            }
            7 | 8 => {
                let in_order = fields.flag()?;
                fields.zero()?;
                match kind {
                    7 => Self::Ready { in_order },
                    _ => Self::Go { in_order },
                }
            }
            9 => {
                let connection = fields.u32()?;
                fields.zero()?;
                Self::Closed(connection)
            }
            10 => Self::Bye,
            _ => return None,
        };
        fields.end(packet)
    }
}

fn words(out: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        out.extend(word.to_le_bytes());
    }
}

fn put_route(out: &mut Vec<u8>, route: &Route) {
    words(out, &[route.lid.into()]);
    out.extend(route.gid);
    words(out, &[route.mtu.bytes(), route.reads.into()]);
}

fn put_remote(out: &mut Vec<u8>, remote: &Remote) {
    words(out, &[remote.rkey, 0]);
    out.extend(remote.address.to_le_bytes());
    out.extend(remote.bytes.to_le_bytes());
}

fn put_offer(out: &mut Vec<u8>, offer: &Offer) {
    words(out, &config_words(&offer.config));
    words(out, &[offer.connections, offer.in_order.into()]);
    put_route(out, &offer.route);
    put_remote(out, &offer.remote);
}

/// Bytes of a stream, cut into packets. It holds one packet at most.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: [u8; PACKET_MAX],
    len: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; PACKET_MAX],
            len: 0,
        }
    }

    /// Where the next bytes go. It is empty only if a packet is there to be taken.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.len..]
    }

    /// So many bytes were put there.
    pub(super) fn filled(&mut self, count: usize) {
        self.len = (self.len + count).min(PACKET_MAX);
    }

    /// Takes a packet and its attempt; `None` if there is not a whole one.
    pub(super) fn take(&mut self) -> Result<Option<(Packet, u64)>, Bad> {
        let held = &self.bytes[..self.len];
        let mut fields = Fields(held);
        let Some(magic) = fields.u64() else {
            return Ok(None);
        };
        if magic != MAGIC {
            return Err(Bad::Form);
        }
        let Some(version) = fields.u32() else {
            return Ok(None);
        };
        let kind = fields.u32();
        // A Refusal is read in every version.
        if version != VERSION && kind != Some(2) {
            return if kind.is_none() {
                Ok(None)
            } else {
                Err(Bad::Version(version))
            };
        }
        let (Some(kind), Some(attempt), Some(body), Some(())) =
            (kind, fields.u64(), fields.u32(), fields.u32().map(drop))
        else {
            return Ok(None);
        };
        let body = body as usize;
        if body > BODY_MAX {
            return Err(Bad::Form);
        }
        let Some(bytes) = fields.0.get(..body) else {
            return Ok(None);
        };
        let packet = Packet::parse(kind, bytes).ok_or(match version {
            VERSION => Bad::Form,
            other => Bad::Version(other),
        })?;
        let whole = HEADER_BYTES + body;
        self.bytes.copy_within(whole..self.len, 0);
        self.len -= whole;
        Ok(Some((packet, attempt)))
    }
}

/// What a geometry needs of a client's memory; `None` if that does not fit the address space.
pub(super) fn client_bytes(geometry: &Geometry, connections: u32) -> Option<(usize, usize)> {
    let fits = |each: usize| {
        each.checked_mul(connections as usize)
            .filter(|&bytes| bytes <= isize::MAX as usize)
    };
    Some((
        fits(geometry.client_exposed_bytes())?,
        fits(geometry.client_private_bytes())?,
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use scalerpc_core::Mapping;

    use super::*;

    fn route() -> impl Strategy<Value = Route> {
        let mtu = proptest::sample::select(&Mtu::ALL[..]);
        (any::<u16>(), any::<[u8; 16]>(), mtu, any::<u8>()).prop_map(|(lid, gid, mtu, reads)| {
            Route {
                lid,
                gid,
                mtu,
                reads,
            }
        })
    }

    fn remote() -> impl Strategy<Value = Remote> {
        (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(rkey, address, bytes)| Remote {
            rkey,
            address,
            bytes: bytes.min(u64::MAX - address),
        })
    }

    fn pair() -> impl Strategy<Value = Pair> {
        (0..=NUMBER_MAX, 0..=NUMBER_MAX).prop_map(|(number, psn)| Pair { number, psn })
    }

    fn offer() -> impl Strategy<Value = Packet> {
        let config = (any::<[u32; 5]>(), any::<bool>()).prop_map(|(it, fixed)| GeometryConfig {
            clients_max: it[0],
            group_size: it[1],
            window: it[2],
            request_max_bytes: it[3],
            response_max_bytes: it[4],
            mapping: if fixed {
                Mapping::Static
            } else {
                Mapping::Virtual
            },
        });
        let rest = (any::<u32>(), any::<bool>(), route(), remote());
        (config, rest).prop_map(|(config, (connections, in_order, route, remote))| {
            Packet::Offer(Offer {
                config,
                connections,
                in_order,
                route,
                remote,
            })
        })
    }

    fn packet() -> impl Strategy<Value = Packet> {
        let hello = (any::<u32>(), route())
            .prop_map(|(connections, route)| Packet::Hello(Hello { connections, route }));
        let refusal = (any::<u32>(), any::<u32>())
            .prop_map(|(reason, detail)| Packet::Refusal(Refusal::from_code(reason), detail));
        let pairs = (any::<u32>(), vec(pair(), 1..=PAIRS_MAX))
            .prop_map(|(first, pairs)| Packet::Pairs { first, pairs });
        let grant = (pair(), any::<u32>(), any::<u64>()).prop_map(|(pair, seat, owner)| Grant {
            pair,
            seat,
            owner,
        });
        let seats = (any::<u32>(), vec(grant, 1..=PAIRS_MAX))
            .prop_map(|(first, grants)| Packet::Seats { first, grants });
        prop_oneof![
            hello,
            refusal,
            offer(),
            remote().prop_map(Packet::Region),
            pairs,
            seats,
            any::<bool>().prop_map(|in_order| Packet::Ready { in_order }),
            any::<bool>().prop_map(|in_order| Packet::Go { in_order }),
            any::<u32>().prop_map(Packet::Closed),
            Just(Packet::Bye),
        ]
    }

    /// Takes all packets from a stream that comes in pieces of these sizes.
    fn read(mut bytes: &[u8], pieces: &[usize]) -> (Vec<(Packet, u64)>, Option<Bad>) {
        let mut inbox = Inbox::new();
        let mut packets = Vec::new();
        let mut pieces = pieces.iter().cycle();
        loop {
            match inbox.take() {
                Ok(Some(packet)) => packets.push(packet),
                Err(bad) => return (packets, Some(bad)),
                Ok(None) if bytes.is_empty() => return (packets, None),
                Ok(None) => {
                    let room = inbox.room();
                    assert!(!room.is_empty(), "there is always room for more");
                    let piece = *pieces.next().unwrap();
                    let count = piece.min(room.len()).min(bytes.len());
                    let (now, later) = bytes.split_at(count);
                    room[..count].copy_from_slice(now);
                    inbox.filled(count);
                    bytes = later;
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn packets_come_out_as_they_went_in_however_the_stream_is_cut(
            packets in vec((packet(), any::<u64>()), 1..6),
            pieces in vec(1usize..600, 1..5),
        ) {
            let bytes: Vec<u8> =
                packets.iter().flat_map(|(packet, attempt)| packet.bytes(*attempt)).collect();
            prop_assert_eq!(read(&bytes, &pieces), (packets, None));
        }

        #[test]
        fn a_packet_has_one_length(packet in packet(), more: bool, by in 1usize..8) {
            let mut bytes = packet.bytes(1);
            prop_assert!(bytes.len() <= PACKET_MAX);
            let body = bytes.len() - HEADER_BYTES;
            let body = if more {
                bytes.extend(vec![0; by]);
                body + by
            } else {
                body.saturating_sub(by)
            };
            bytes[24..28].copy_from_slice(&(body as u32).to_le_bytes());
            let (read, bad) = read(&bytes, &[64]);
            let is_bye = packet == Packet::Bye && !more;
            prop_assert!(is_bye || (read.is_empty() && bad == Some(Bad::Form)), "{:?} {:?}", read, bad);
        }

        #[test]
        fn any_bytes_are_read_without_harm(
            kind in 0u32..12,
            version in 0u32..3,
            length in 0u32..500,
            bytes in vec(any::<u8>(), 0..1000),
            pieces in vec(1usize..600, 1..5),
        ) {
            let mut stream = MAGIC.to_le_bytes().to_vec();
            for word in [version, kind, 1, 2, length, 0] {
                stream.extend(word.to_le_bytes());
            }
            stream.extend(&bytes);
            let (packets, _) = read(&stream, &pieces);
            // Whatever was taken for a packet means the same when it is written.
            for (packet, attempt) in packets {
                let again = read(&packet.bytes(attempt), &[7]);
                prop_assert_eq!(again, (vec![(packet, attempt)], None));
            }
            read(&bytes, &pieces);
        }
    }

    #[test]
    fn the_part_that_stays_the_same_in_all_versions() {
        let bytes = Packet::Refusal(Refusal::Busy, 5).bytes(7);
        let expected = [
            &b"ScaleRDM\x03\0\0\0\x02\0\0\0"[..],
            b"\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0",
            b"\x02\0\0\0\x05\0\0\0",
        ];
        assert_eq!(bytes, expected.concat());
    }
}
