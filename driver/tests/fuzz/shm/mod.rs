//! Packets of any bytes. What reads them is private to the driver, so its source is compiled here once
//! more.

#[path = "../../../src/shm/error.rs"]
#[allow(dead_code, reason = "only the reasons of refusals are used")]
mod error;
#[path = "../../../src/fields.rs"]
mod fields;
#[path = "../../../src/shm/handshake.rs"]
#[allow(dead_code, reason = "the limits of packets are the sockets' affair")]
mod packets;

use packets::{Kind, Packet, VERSION};
use scalerpc_core::{Geometry, Mapping};

/// Reads a packet as either end would, and writes it again.
pub fn handshake(data: &[u8]) {
    let Some(packet) = Packet::parse(data) else {
        return;
    };
    let kind = packet.kind();
    // Of a packet that is sound, what its writer would have written. Bytes that are reserved, or were
    // added by a later version, may differ.
    let mut written = Vec::new();
    if let Some(connections) = packet.hello() {
        assert_eq!(kind, Some(Kind::Hello));
        written.push((packets::hello(connections), 0..20));
    }
    if let Some((reason, detail)) = packet.refusal() {
        assert_eq!(kind, Some(Kind::Refusal));
        written.push((packets::refusal(reason, detail), 0..24));
    }
    if let Some(bytes) = packet.region() {
        assert_eq!(kind, Some(Kind::Region));
        written.push((packets::region(bytes), 0..data.len()));
    }
    if packet.bye().is_some() {
        assert_eq!(kind, Some(Kind::Bye));
        written.push((packets::bye(), 0..data.len()));
    }
    if let Some((first, grants)) = packet.welcome() {
        assert_eq!(kind, Some(Kind::Welcome));
        let grants: Vec<_> = grants.collect();
        assert_eq!(data.len(), 24 + 16 * grants.len());
        for (i, grant) in grants.iter().enumerate() {
            let at = 24 + 16 * i;
            assert_eq!(data[at..at + 4], grant.seat.to_le_bytes());
            assert_eq!(data[at + 4..at + 8], grant.shard.to_le_bytes());
            assert_eq!(data[at + 8..at + 16], grant.owner.to_le_bytes());
        }
        if grants.len() <= packets::WELCOME_SEATS {
            written.push((packets::welcome(first, &grants), 0..24));
        }
    }
    if let Some(offer) = packet.offer() {
        assert_eq!(kind, Some(Kind::Offer));
        // What a client does with it before it believes it.
        if let Ok(geometry) = Geometry::new(offer.config) {
            assert_eq!(*geometry.config(), offer.config);
            check_layout(&geometry);
        }
        written.push((packets::offer(&offer), 0..data.len()));
    }
    assert!(written.len() <= 1, "a packet of several kinds");
    for (bytes, part) in written {
        if packet.version == VERSION {
            assert_eq!(bytes[part.clone()], data[part]);
        } else {
            assert_eq!(bytes[16..part.end], data[16..part.end]);
        }
    }
}

/// The last of everything is inside.
fn check_layout(geometry: &Geometry) {
    let (zone, seat) = (geometry.zones() - 1, geometry.clients_max() - 1);
    let last = u64::from(geometry.window() - 1);
    let end = geometry.block_end(geometry.pools() - 1, zone, last);
    assert!(end <= geometry.server_exposed_bytes());
    let first = geometry.block_end(0, 0, 0) - geometry.request_block_bytes();
    assert!(geometry.endpoint(seat) + 64 <= first);
    assert!(geometry.demand_byte(seat) < geometry.endpoint(0));
    let ring = geometry.ring(0) + geometry.ring_slot_end(u64::from(geometry.ring_slots() - 1));
    assert!(ring <= geometry.client_exposed_bytes());
    let pools = if geometry.mapping() == Mapping::Static {
        1
    } else {
        2
    };
    assert_eq!(geometry.pools(), pools);
}
