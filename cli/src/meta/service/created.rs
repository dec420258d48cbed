//! The nodes that clients create: a slab of fixed size, so that creating and removing allocate
//! nothing. Links are slot numbers plus one; 0 means none.

use crate::meta::hash;
use crate::meta::tree::NodeId;
use crate::meta::wire::{NAME_MAX, cookie};
use std::hash::{BuildHasher, RandomState};

/// Room for one name; a power of two, so that no name straddles a page.
const NAME_STRIDE: usize = 256;
const _: () = assert!(NAME_STRIDE > NAME_MAX);

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// 0 while the slot is free.
    number: u64,
    dir: u32,
    /// Neighbours in the directory, in the order of creation.
    previous: u32,
    next: u32,
    /// The next node of the same hash bucket; of the free slots, the next free one.
    chain: u32,
    bucket: u32,
    name_len: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    first: u32,
    last: u32,
}

/// A place in the slab that holds a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

#[derive(Debug)]
pub(super) struct Created {
    nodes: Vec<Node>,
    names: Vec<u8>,
    buckets: Vec<u32>,
    /// For each entry of the tree; only those of directories are ever used.
    ends: Vec<Ends>,
    free: u32,
    live: usize,
    last_number: u64,
    /// Not known to clients, so that they cannot choose names that share a bucket.
    seed: u64,
}

impl Created {
    pub(super) fn new(entries: usize, limit: u32) -> Self {
        let limit = limit.min(cookie::SLOTS_MAX);
        let mut nodes = vec![Node::default(); limit as usize];
        for (slot, node) in nodes.iter_mut().enumerate() {
            // Links are slot + 1, so the next slot's link is this slot + 2.
            node.chain = if slot as u32 + 1 < limit {
                slot as u32 + 2
            } else {
                0
            };
        }
        Self {
            names: vec![0; nodes.len() * NAME_STRIDE],
            buckets: vec![0; nodes.len().max(1).next_power_of_two()],
            nodes,
            ends: vec![Ends::default(); entries],
            free: u32::from(limit > 0),
            live: 0,
            last_number: 0,
            seed: RandomState::new().hash_one(entries),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn live(&self) -> usize {
        self.live
    }

    pub(super) fn number(&self, slot: Slot) -> u64 {
        self.nodes[slot.0 as usize].number
    }

    pub(super) fn name(&self, slot: Slot) -> &[u8] {
        let start = slot.0 as usize * NAME_STRIDE;
        &self.names[start..start + usize::from(self.nodes[slot.0 as usize].name_len)]
    }

    pub(super) fn cookie_after(&self, slot: Slot) -> u64 {
        cookie::after_created(slot.0, self.number(slot))
    }

    pub(super) fn find(&self, dir: NodeId, name: &[u8]) -> Option<Slot> {
        if self.live == 0 {
            return None;
        }
        let mut link = self.buckets[self.bucket(dir, name)];
        while let Some(slot) = linked(link) {
            let node = &self.nodes[slot.0 as usize];
            if node.dir as usize == dir.index() && self.name(slot) == name {
                return Some(slot);
            }
            link = node.chain;
        }
        None
    }

    /// The first node of the directory.
    pub(super) fn first(&self, dir: NodeId) -> Option<Slot> {
        linked(self.ends[dir.index()].first)
    }

    /// The next node of the same directory.
    pub(super) fn next(&self, slot: Slot) -> Option<Slot> {
        linked(self.nodes[slot.0 as usize].next)
    }

    /// The first node of the directory after the one that a cookie names. Where that one is gone
    /// the directory's created nodes are searched from the start.
    pub(super) fn resume(&self, dir: NodeId, slot: u32, number: u64) -> Option<Slot> {
        let here = |node: &&Node| node.number == number && node.dir as usize == dir.index();
        if number > 0 && self.nodes.get(slot as usize).filter(here).is_some() {
            return self.next(Slot(slot));
        }
        let mut at = self.first(dir);
        while let Some(slot) = at {
            if self.number(slot) > number {
                break;
            }
            at = self.next(slot);
        }
        at
    }

    /// Adds a node that is not there yet, with a name that is valid; its number, or nothing where
    /// there is no space.
    pub(super) fn insert(&mut self, dir: NodeId, name: &[u8]) -> Option<u64> {
        let slot = linked(self.free)?;
        if self.last_number >= cookie::NUMBER_MAX {
            return None;
        }
        let name_len = u8::try_from(name.len()).ok()?;
        self.last_number += 1;
        let bucket = self.bucket(dir, name);
        let last = self.ends[dir.index()].last;
        let node = &mut self.nodes[slot.0 as usize];
        self.free = node.chain;
        *node = Node {
            number: self.last_number,
            dir: dir.index() as u32,
            previous: last,
            next: 0,
            chain: self.buckets[bucket],
            bucket: bucket as u32,
            name_len,
        };
        let link = slot.0 + 1;
        self.buckets[bucket] = link;
        self.ends[dir.index()].last = link;
        match linked(last) {
            Some(last) => self.nodes[last.0 as usize].next = link,
            None => self.ends[dir.index()].first = link,
        }
        let start = slot.0 as usize * NAME_STRIDE;
        self.names[start..start + name.len()].copy_from_slice(name);
        self.live += 1;
        Some(self.last_number)
    }

    /// Removes a node; its number.
    pub(super) fn remove(&mut self, slot: Slot) -> u64 {
        let node = self.nodes[slot.0 as usize];
        let link = slot.0 + 1;
        match linked(node.previous) {
            Some(previous) => self.nodes[previous.0 as usize].next = node.next,
            None => self.ends[node.dir as usize].first = node.next,
        }
        match linked(node.next) {
            Some(next) => self.nodes[next.0 as usize].previous = node.previous,
            None => self.ends[node.dir as usize].last = node.previous,
        }
        let bucket = node.bucket as usize;
        if self.buckets[bucket] == link {
            self.buckets[bucket] = node.chain;
        } else {
            let mut at = self.buckets[bucket];
            while let Some(before) = linked(at) {
                let before = &mut self.nodes[before.0 as usize];
                if before.chain == link {
                    before.chain = node.chain;
                    break;
                }
                at = before.chain;
            }
        }
        self.nodes[slot.0 as usize] = Node {
            chain: self.free,
            ..Node::default()
        };
        self.free = link;
        self.live -= 1;
        node.number
    }

    fn bucket(&self, dir: NodeId, name: &[u8]) -> usize {
        let dir = hash::bytes(self.seed, &dir.index().to_le_bytes());
        // The number of buckets is a power of two.
        hash::bytes(dir, name) as usize & (self.buckets.len() - 1)
    }
}

fn linked(link: u32) -> Option<Slot> {
    link.checked_sub(1).map(Slot)
}
