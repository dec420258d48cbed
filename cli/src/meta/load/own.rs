//! What a client knows of the nodes that it created itself: a bounded oracle.

use super::WrongAnswer;
use crate::meta::tree::NodeId;
use crate::meta::wire::cookie;

/// How many nodes one client has at most at a time. A server with clients that are all served
/// correctly needs a limit of this many for each.
pub const OWN_NODES: usize = 64;

/// A number in `0..OWN_NODES`.
pub(super) type SlotId = u8;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Part of the name; never used twice.
    n: u64,
    /// What the server called it; 0 while not known.
    number: u64,
    dir: NodeId,
    /// How many calls whose answers depend on this node are outstanding.
    holds: u32,
}

/// A slot is free, or live (created and not removed, when all that was asked so far has run), or
/// else its removal was asked for and answers about it may still be due. The name of a slot is not
/// given up before the last of them, so that each can be judged.
#[derive(Clone, Debug)]
pub(super) struct Own {
    nodes: [Node; OWN_NODES],
    free: u64,
    live: u64,
    /// A call that creates or removes the node may or may not have run.
    shaky: u64,
    next_n: u64,
    /// `n` and number of the youngest node whose number is known.
    newest: (u64, u64),
    /// Nodes of which nobody knows whether they were, or will yet be, created. They are not looked
    /// after any more, but may turn up.
    ghosts: [u64; OWN_NODES],
    next_ghost: usize,
}

impl Own {
    pub(super) fn new() -> Self {
        let vacant = Node {
            n: 0,
            number: 0,
            dir: NodeId::ROOT,
            holds: 0,
        };
        Self {
            nodes: [vacant; OWN_NODES],
            free: u64::MAX,
            live: 0,
            shaky: 0,
            next_n: 1,
            newest: (0, 0),
            ghosts: [0; OWN_NODES],
            next_ghost: 0,
        }
    }

    /// The number of the next name. None is ever tried twice.
    pub(super) fn next_n(&mut self) -> u64 {
        let n = self.next_n;
        self.next_n += 1;
        n
    }

    /// Makes a node live in a free slot.
    pub(super) fn create(&mut self, dir: NodeId, n: u64) -> Option<SlotId> {
        let slot = first(self.free)?;
        self.nodes[usize::from(slot)] = Node {
            n,
            number: 0,
            dir,
            holds: 0,
        };
        self.free &= !bit(slot);
        self.live |= bit(slot);
        self.shaky &= !bit(slot);
        Some(slot)
    }

    pub(super) fn has_free(&self) -> bool {
        self.free != 0
    }

    pub(super) fn remove(&mut self, slot: SlotId) {
        self.live &= !bit(slot);
    }

    /// The node's creation or removal may or may not have run.
    pub(super) fn shake(&mut self, slot: SlotId) {
        self.shaky |= bit(slot);
    }

    /// The node's removal may not have run: it is live again, perhaps.
    pub(super) fn revive(&mut self, slot: SlotId) {
        self.live |= bit(slot);
        self.shaky |= bit(slot);
    }

    pub(super) fn hold(&mut self, slots: u64) {
        each(slots, |slot| self.nodes[usize::from(slot)].holds += 1);
    }

    pub(super) fn release(&mut self, slots: u64) {
        let mut unheld = 0;
        each(slots, |slot| {
            let holds = &mut self.nodes[usize::from(slot)].holds;
            *holds = holds.saturating_sub(1);
            if *holds == 0 {
                unheld |= bit(slot);
            }
        });
        self.free |= unheld & !self.live;
    }

    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Slots with a node, live or just removed.
    pub(super) fn used(&self) -> u64 {
        !self.free
    }

    pub(super) fn is_live(&self, slot: SlotId) -> bool {
        self.live & bit(slot) != 0
    }

    pub(super) fn is_shaky(&self, slot: SlotId) -> bool {
        self.shaky & bit(slot) != 0
    }

    pub(super) fn shaky(&self) -> u64 {
        self.shaky
    }

    pub(super) fn live_in(&self, dir: NodeId) -> u64 {
        let mut here = 0;
        each(self.live, |slot| {
            if self.dir(slot) == dir {
                here |= bit(slot);
            }
        });
        here
    }

    pub(super) fn n(&self, slot: SlotId) -> u64 {
        self.nodes[usize::from(slot)].n
    }

    pub(super) fn dir(&self, slot: SlotId) -> NodeId {
        self.nodes[usize::from(slot)].dir
    }

    /// What the server called the node, where that is known.
    pub(super) fn number(&self, slot: SlotId) -> Option<u64> {
        Some(self.nodes[usize::from(slot)].number).filter(|number| *number != 0)
    }

    pub(super) fn find(&self, n: u64, dir: NodeId) -> Option<SlotId> {
        let mut found = None;
        each(self.used(), |slot| {
            if self.n(slot) == n && self.dir(slot) == dir {
                found = Some(slot);
            }
        });
        found
    }

    pub(super) fn is_ghost(&self, n: u64) -> bool {
        n != 0 && self.ghosts.contains(&n)
    }

    pub(super) fn add_ghost(&mut self, slot: SlotId) {
        self.ghosts[self.next_ghost] = self.n(slot);
        self.next_ghost = (self.next_ghost + 1) % OWN_NODES;
    }

    /// The server says that the node has this number: the one it always had, and, as numbers rise,
    /// one between those of the nodes that were created before and after it.
    pub(super) fn learn(&mut self, slot: SlotId, number: u64) -> Result<(), WrongAnswer> {
        let known = self.number(slot);
        let mut right =
            known.is_none_or(|known| known == number) && (1..=cookie::NUMBER_MAX).contains(&number);
        let n = self.n(slot);
        if known.is_none() && !self.is_shaky(slot) {
            right &= number != self.newest.1 && (number > self.newest.1) == (n > self.newest.0);
            each(self.used() & !self.shaky & !bit(slot), |other| {
                if let Some(theirs) = self.number(other) {
                    let later = self.n(other) > n;
                    right &= theirs != number && (theirs > number) == later;
                }
            });
        }
        if !right {
            return Err(WrongAnswer::Number {
                expected: known,
                got: number,
            });
        }
        self.nodes[usize::from(slot)].number = number;
        // A number learned of a node that may have been created late says nothing of others'.
        if n > self.newest.0 && !self.is_shaky(slot) {
            self.newest = (n, number);
        }
        Ok(())
    }
}

pub(super) const fn bit(slot: SlotId) -> u64 {
    1 << (slot as usize % OWN_NODES)
}

/// The lowest slot of a set.
pub(super) const fn first(slots: u64) -> Option<SlotId> {
    if slots == 0 {
        None
    } else {
        Some(slots.trailing_zeros() as SlotId)
    }
}

pub(super) fn each(mut slots: u64, mut visit: impl FnMut(SlotId)) {
    while let Some(slot) = first(slots) {
        visit(slot);
        slots &= slots - 1;
    }
}

/// The `n`-th slot of a set that has more than `n`.
pub(super) fn nth(mut slots: u64, n: u32) -> Option<SlotId> {
    for _ in 0..n {
        slots &= slots.saturating_sub(1);
    }
    first(slots)
}
