//! Which rows are measured, and which goals.

use crate::peers::{Load, Peer, SIZES};

/// A peer under a load.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Side {
    pub(crate) peer: Peer,
    pub(crate) load: Load,
}

/// Sides that take turns in each round, so that ratios between them are ratios of one run.
pub(crate) type Block = Vec<Side>;

/// What a goal is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Quantity {
    RoundTrip,
    Rate,
}

/// A bound for the ratio of two sides. A ratio of rates is to be the bound at least, one of round trips at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) quantity: Quantity,
    pub(crate) of: Side,
    pub(crate) to: Side,
    pub(crate) bound: f64,
}

const fn side(peer: Peer, size: u32, window: u32, connections: u32) -> Side {
    Side {
        peer,
        load: Load::new(size, window, connections),
    }
}

/// Calls outstanding on a connection in all rows but those that say otherwise.
pub(crate) const WINDOW: u32 = 16;
/// Windows, for one connection.
pub(crate) const WINDOWS: [u32; 4] = [1, 8, 16, 32];
/// Connections, of the smallest messages.
pub(crate) const CONNECTIONS: [u32; 6] = [1, 8, 64, 400, 1_000, 4_000];
/// A group: as many connections as are served together.
const GROUP: u32 = 40;

pub(crate) const GOALS: [Goal; 9] = [
    Goal {
        id: "round-trip-floor",
        what: "32 B, window 1: round trip / floor",
        quantity: Quantity::RoundTrip,
        of: side(Peer::Ours, 32, 1, 1),
        to: side(Peer::Floor, 32, 1, 1),
        bound: 1.25,
    },
    Goal {
        id: "round-trip-ucx",
        what: "32 B, window 1: round trip / UCX",
        quantity: Quantity::RoundTrip,
        of: side(Peer::Ours, 32, 1, 1),
        to: side(Peer::Ucx, 32, 1, 1),
        bound: 0.5,
    },
    Goal {
        id: "rate-floor",
        what: "32 B, window 16: rate / floor",
        quantity: Quantity::Rate,
        of: side(Peer::Ours, 32, WINDOW, 1),
        to: side(Peer::Floor, 32, WINDOW, 1),
        bound: 0.65,
    },
    Goal {
        id: "rate-ucx",
        what: "32 B, window 16: rate / UCX",
        quantity: Quantity::Rate,
        of: side(Peer::Ours, 32, WINDOW, 1),
        to: side(Peer::Ucx, 32, WINDOW, 1),
        bound: 1.7,
    },
    Goal {
        id: "rate-64-floor",
        what: "32 B, window 16, 64 connections: rate / floor",
        quantity: Quantity::Rate,
        of: side(Peer::Ours, 32, WINDOW, 64),
        to: side(Peer::Floor, 32, WINDOW, 64),
        bound: 0.5,
    },
    Goal {
        id: "rate-64-ucx",
        what: "32 B, window 16, 64 connections: rate / UCX",
        quantity: Quantity::Rate,
        of: side(Peer::Ours, 32, WINDOW, 64),
        to: side(Peer::Ucx, 32, WINDOW, 64),
        bound: 2.5,
    },
    Goal {
        id: "connections-1000",
        what: "32 B, window 16: rate of 1,000 connections / of 40",
        quantity: Quantity::Rate,
        of: side(Peer::Ours, 32, WINDOW, 1_000),
        to: side(Peer::Ours, 32, WINDOW, GROUP),
        bound: 0.9,
    },
    Goal {
        id: "connections-4000",
        what: "32 B, window 16: rate of 4,000 connections / of 40",
        quantity: Quantity::Rate,
        of: side(Peer::Ours, 32, WINDOW, 4_000),
        to: side(Peer::Ours, 32, WINDOW, GROUP),
        bound: 0.8,
    },
    Goal {
        id: "rate-4k-floor",
        what: "4 KiB, window 16: rate / floor",
        quantity: Quantity::Rate,
        of: side(Peer::Ours, 4096, WINDOW, 1),
        to: side(Peer::Floor, 4096, WINDOW, 1),
        bound: 0.9,
    },
];

/// All loads of the figures, each once.
fn loads_of_figures() -> Vec<Load> {
    let sizes = SIZES.into_iter();
    let mut loads: Vec<Load> = sizes
        .flat_map(|size| [1, WINDOW].map(|window| Load::new(size, window, 1)))
        .collect();
    let more = WINDOWS.map(|window| Load::new(SIZES[0], window, 1));
    let more = more
        .into_iter()
        .chain(CONNECTIONS.map(|connections| Load::new(SIZES[0], WINDOW, connections)));
    for load in more {
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    loads
}

/// The blocks of these peers: for the loads that somebody asks for, or else for the figures; and for goals that compare
/// different loads, or whose loads are not among those.
pub(crate) fn blocks(peers: &[Peer], loads: Option<Vec<Load>>, goals: &[Goal]) -> Vec<Block> {
    let loads = loads.unwrap_or_else(loads_of_figures);
    let mut blocks: Vec<Block> = Vec::new();
    for load in loads {
        let able = peers.iter().filter(|peer| peer.does(load));
        blocks.push(able.map(|&peer| Side { peer, load }).collect());
    }
    let mut apart = Block::new();
    for goal in goals {
        let sides = [goal.of, goal.to];
        let is_in = |block: &Block| sides.iter().all(|side| block.contains(side));
        let known = sides.iter().all(|side| peers.contains(&side.peer));
        if !known || blocks.iter().any(is_in) {
            continue;
        }
        for side in sides {
            if !apart.contains(&side) {
                apart.push(side);
            }
        }
    }
    blocks.push(apart);
    blocks.retain(|block| !block.is_empty());
    blocks
}
