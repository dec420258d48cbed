//! The packets of the handshake: fixed width, little-endian, one packet per message.
//!
//! ```text
//!  header   | magic u64 | version u32 | kind u32 |
//!  Hello    | header | connections u32 | 0 u32 |                                client, first
//!  Refusal  | header | reason u32 | detail u32 |                                server; closes
//!  Offer    | header | geometry 6 x u32 | connections u32 | flags u32 | shards u32 | stride u64 | bytes u64 |
//!                                                                                server + its memfd
//!  Region   | header | bytes u64 |                                              client + its memfd
//!  Welcome  | header | first u32 | count u32 | count x { seat u32, shard u32, owner u64 } |
//!  Bye      | header |                                    either: the sender writes no more
//! ```
//!
//! The header and the first 24 bytes of a Refusal stay as they are in every version, so that ends of
//! different versions can tell each other why they part.

use scalerpc_core::GeometryConfig;

use super::error::Refusal;
use super::fields::{Fields, config_words};

/// Version of the protocol: of these packets, and of all that the ends then do with each other's memory.
pub const VERSION: u32 = 2;
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ScaleRPC");

const HEADER_BYTES: usize = 16;
/// Room for any packet that a client sends.
pub(super) const FROM_CLIENT_MAX_BYTES: usize = 64;
/// Seats in one Welcome packet; a link with more gets several packets.
pub(super) const WELCOME_SEATS: usize = 512;
const WELCOME_SEAT_BYTES: usize = 16;
/// Room for any packet that a server sends.
pub(super) const FROM_SERVER_MAX_BYTES: usize =
    HEADER_BYTES + 8 + WELCOME_SEATS * WELCOME_SEAT_BYTES;

/// A seat given to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) shard: u32,
    /// Of that shard.
    pub(super) seat: u32,
    pub(super) owner: u64,
}

/// Kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello,
    Refusal,
    Offer,
    Region,
    Welcome,
    Bye,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Hello,
        Self::Refusal,
        Self::Offer,
        Self::Region,
        Self::Welcome,
        Self::Bye,
    ];

    /// From 1.
    fn code(self) -> u32 {
        self as u32 + 1
    }
}

/// What the server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Of each shard.
    pub(super) config: GeometryConfig,
    pub(super) connections: u32,
    /// The fence of the server's guards reaches clients that have registered for it.
    pub(super) expedited: bool,
    pub(super) shards: u32,
    /// Distance of the shards from each other in the server's memory.
    pub(super) stride: u64,
    /// From the beginning of the first shard to the end of the last.
    pub(super) bytes: u64,
}

/// A packet with a sound header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) version: u32,
    kind: u32,
    body: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the header; `None` if this is no packet of any version.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u64()? != MAGIC {
            return None;
        }
        Some(Self {
            version: fields.u32()?,
            kind: fields.u32()?,
            body: fields.0,
        })
    }

    /// The kind, if this version knows it.
    pub(super) fn kind(&self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.code() == self.kind)
    }

    fn body_of(&self, kind: Kind) -> Option<Fields<'a>> {
        (self.kind() == Some(kind)).then_some(Fields(self.body))
    }

    /// Connections wanted.
    pub(super) fn hello(&self) -> Option<u32> {
        let mut fields = self.body_of(Kind::Hello)?;
        let connections = fields.u32()?;
        fields.u32()?;
        fields.end(connections)
    }

    /// Reason and detail. A later version may say more after them.
    pub(super) fn refusal(&self) -> Option<(Refusal, u32)> {
        let mut fields = self.body_of(Kind::Refusal)?;
        Some((Refusal::from_code(fields.u32()?), fields.u32()?))
    }

    pub(super) fn offer(&self) -> Option<Offer> {
        let mut fields = self.body_of(Kind::Offer)?;
        let config = fields.config()?;
        let connections = fields.u32()?;
        let expedited = fields.flag()?;
        let shards = fields.u32()?;
        let (stride, bytes) = (fields.u64()?, fields.u64()?);
        fields.end(Offer {
            config,
            connections,
            expedited,
            shards,
            stride,
            bytes,
        })
    }

    /// Bytes of the memory that comes with it.
    pub(super) fn region(&self) -> Option<u64> {
        let mut fields = self.body_of(Kind::Region)?;
        let bytes = fields.u64()?;
        fields.end(bytes)
    }

    /// Number of the first connection, and the seats from there on.
    pub(super) fn welcome(&self) -> Option<(u32, impl Iterator<Item = Grant> + use<'a>)> {
        let mut fields = self.body_of(Kind::Welcome)?;
        let (first, count) = (fields.u32()?, fields.u32()?);
        let seats = fields.0.chunks_exact(WELCOME_SEAT_BYTES);
        if seats.len() as u64 != u64::from(count) || !seats.remainder().is_empty() {
            return None;
        }
        let grants = seats.map(|seat| {
            let mut fields = Fields(seat);
            // The pieces are whole, so no field is missing.
            let (seat, shard, owner) = (fields.u32(), fields.u32(), fields.u64());
            Grant {
                shard: shard.unwrap_or(u32::MAX),
                seat: seat.unwrap_or(u32::MAX),
                owner: owner.unwrap_or(0),
            }
        });
        Some((first, grants))
    }

    pub(super) fn bye(&self) -> Option<()> {
        self.body_of(Kind::Bye)?.end(())
    }
}

fn header(kind: Kind, version: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FROM_CLIENT_MAX_BYTES);
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    bytes.extend(kind.code().to_le_bytes());
    bytes
}

pub(super) fn hello(connections: u32) -> Vec<u8> {
    let mut bytes = header(Kind::Hello, VERSION);
    bytes.extend(connections.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes
}

pub(super) fn refusal(reason: Refusal, detail: u32) -> Vec<u8> {
    let mut bytes = header(Kind::Refusal, VERSION);
    bytes.extend(reason.code().to_le_bytes());
    bytes.extend(detail.to_le_bytes());
    bytes
}

pub(super) fn offer(offer: &Offer) -> Vec<u8> {
    let config = config_words(&offer.config);
    let rest = [offer.connections, offer.expedited.into(), offer.shards];
    let mut bytes = header(Kind::Offer, VERSION);
    for number in config.into_iter().chain(rest) {
        bytes.extend(number.to_le_bytes());
    }
    for number in [offer.stride, offer.bytes] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

pub(super) fn region(memory_bytes: u64) -> Vec<u8> {
    let mut bytes = header(Kind::Region, VERSION);
    bytes.extend(memory_bytes.to_le_bytes());
    bytes
}

pub(super) fn welcome(first: u32, grants: &[Grant]) -> Vec<u8> {
    debug_assert!(
        grants.len() <= WELCOME_SEATS,
        "a packet holds so many seats"
    );
    let mut bytes = header(Kind::Welcome, VERSION);
    bytes.extend(first.to_le_bytes());
    bytes.extend((grants.len() as u32).to_le_bytes());
    for grant in grants {
        bytes.extend(grant.seat.to_le_bytes());
        bytes.extend(grant.shard.to_le_bytes());
        bytes.extend(grant.owner.to_le_bytes());
    }
    bytes
}

pub(super) fn bye() -> Vec<u8> {
    header(Kind::Bye, VERSION)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scalerpc_core::{Geometry, Mapping};

    use super::*;

    fn parse(bytes: &[u8]) -> Packet<'_> {
        let packet = Packet::parse(bytes).unwrap();
        assert_eq!(packet.version, VERSION);
        packet
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            connections: u32,
            first: u32,
            detail: u32,
            memory_bytes: u64,
            seats in proptest::collection::vec(any::<(u32, u32, u64)>(), 0..=WELCOME_SEATS),
            (shards, stride) in any::<(u32, u64)>(),
            clients_max in 1u32..1000,
            is_static: bool,
            code in 1u32..20,
        ) {
            prop_assert_eq!(parse(&hello(connections)).hello(), Some(connections));
            prop_assert_eq!(parse(&region(memory_bytes)).region(), Some(memory_bytes));
            prop_assert_eq!(parse(&bye()).bye(), Some(()));
            let reason = Refusal::from_code(code);
            prop_assert_eq!(reason.code(), code);
            prop_assert_eq!(parse(&refusal(reason, detail)).refusal(), Some((reason, detail)));
            let grants: Vec<Grant> =
                seats.iter().map(|&(shard, seat, owner)| Grant { shard, seat, owner }).collect();
            let packet = welcome(first, &grants);
            prop_assert!(packet.len() <= FROM_SERVER_MAX_BYTES);
            let (number, read) = parse(&packet).welcome().unwrap();
            prop_assert_eq!((number, read.collect::<Vec<_>>()), (first, grants));
            let mapping = if is_static { Mapping::Static } else { Mapping::Virtual };
            let config = GeometryConfig { clients_max, mapping, ..GeometryConfig::default() };
            let bytes = Geometry::new(config).unwrap().server_exposed_bytes() as u64;
            for expedited in [false, true] {
                let wanted = Offer { config, connections, expedited, shards, stride, bytes };
                prop_assert_eq!(parse(&offer(&wanted)).offer(), Some(wanted));
            }
        }

        #[test]
        fn a_packet_is_of_one_kind_and_one_length(at in 0usize..6, more: bool, cut in 1usize..8) {
            let grants = [Grant { shard: 0, seat: 1, owner: 2 }];
            let config = GeometryConfig::default();
            let offered =
                Offer { config, connections: 1, expedited: true, shards: 1, stride: 64, bytes: 64 };
            let packets =
                [hello(1), offer(&offered), region(1), welcome(0, &grants), bye(), hello(2)];
            let mut bytes = packets[at].clone();
            if more {
                bytes.extend(vec![0; cut]);
            } else {
                bytes.truncate(bytes.len() - cut);
            }
            let packet = Packet::parse(&bytes);
            let read = packet.is_some_and(|packet| {
                packet.hello().is_some()
                    || packet.offer().is_some()
                    || packet.region().is_some()
                    || packet.welcome().is_some()
                    || packet.bye().is_some()
            });
            prop_assert!(!read);
        }

        #[test]
        fn any_bytes_are_read_without_harm(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0u32..8,
        ) {
            let mut packet = header(Kind::Hello, VERSION);
            packet[12..16].copy_from_slice(&kind.to_le_bytes());
            packet.extend(&bytes);
            for bytes in [&bytes[..], &packet] {
                let Some(packet) = Packet::parse(bytes) else { continue };
                let _ = (packet.hello(), packet.refusal(), packet.offer(), packet.region());
                let _ = packet.welcome().map(|(_, grants)| grants.count());
                let _ = packet.bye();
            }
        }
    }

    #[test]
    fn the_part_that_stays_the_same_in_all_versions() {
        assert_eq!(hello(3)[..16], *b"ScaleRPC\x02\0\0\0\x01\0\0\0");
        let packet = refusal(Refusal::Busy, 5);
        assert_eq!(packet, *b"ScaleRPC\x02\0\0\0\x02\0\0\0\x02\0\0\0\x05\0\0\0");
    }
}
