//! The simulated fabric: reliable connections, and nothing better than they promise.
//!
//! Work requests of one connection take effect in their order; there is no order between connections.
//! A message lands piece by piece: in increasing address order, or line by line in any order. The source
//! is read when it lands, unless it went inline. Completions come later, in order.

use std::collections::VecDeque;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use scalerpc_core::Memory;
use scalerpc_core::memory::Region;
use scalerpc_core::post::{Completion, WcStatus, WrId};
use scalerpc_core::wire::Placement;

/// A copy that is under way.
#[derive(Debug)]
pub struct Transfer {
    /// Pieces that have not landed: (from, to, bytes).
    pieces: VecDeque<(usize, usize, usize)>,
    /// The source as it was when it was posted.
    source: Vec<(usize, Vec<u8>)>,
    /// The source is not read again.
    inline: bool,
    wr_id: WrId,
    signaled: bool,
    /// For a client's WRITE into a zone: the zone's index over both pools.
    pub zone: Option<u32>,
}

/// The source was changed before the work request was done (rule R5).
#[derive(Debug)]
pub struct SourceChanged;

fn snapshot(memory: &Region, at: usize, len: usize) -> Vec<u8> {
    if len == 1 {
        return vec![memory.load_byte_acquire(at)];
    }
    let mut bytes = vec![0; len];
    memory.copy_out(at, &mut bytes);
    bytes
}

impl Transfer {
    /// Copies `spans` (from, to, bytes) of `source` memory, once it is moved on.
    pub fn new(
        spans: &[(usize, usize, usize)],
        source: &Region,
        inline: bool,
        placement: Placement,
        (wr_id, signaled): (WrId, bool),
        rng: &mut SmallRng,
    ) -> Self {
        let mut pieces = Vec::new();
        for &(from, to, len) in spans {
            for at in (0..len).step_by(64) {
                pieces.push((from + at, to + at, 64.min(len - at)));
            }
        }
        if placement == Placement::AnyOrder {
            pieces.shuffle(rng);
        }
        let source = spans
            .iter()
            .map(|&(from, _, len)| (from, snapshot(source, from, len)))
            .collect();
        Self {
            pieces: pieces.into(),
            source,
            inline,
            wr_id,
            signaled,
            zone: None,
        }
    }

    /// Lands some pieces; true when all have.
    pub fn advance(
        &mut self,
        source: &Region,
        target: &Region,
        rng: &mut SmallRng,
    ) -> Result<bool, SourceChanged> {
        let count = rng.random_range(1..=self.pieces.len());
        for (from, to, len) in self.pieces.drain(..count) {
            let (start, posted) = self
                .source
                .iter()
                .find(|(start, bytes)| (*start..start + bytes.len()).contains(&from))
                .ok_or(SourceChanged)?;
            let posted = &posted[from - start..from - start + len];
            if !self.inline && snapshot(source, from, len) != posted {
                return Err(SourceChanged);
            }
            match posted {
                [byte] => target.store_byte_release(to, *byte),
                // Words land in increasing order, the last one after the others.
                bytes => {
                    let (body, last) = bytes.split_at(len - 8);
                    target.copy_in(to, body);
                    let mut word = [0; 8];
                    word.copy_from_slice(last);
                    target.store_release(to + len - 8, u64::from_le_bytes(word));
                }
            }
        }
        Ok(self.pieces.is_empty())
    }
}

/// One direction of a connection: what one side has posted.
#[derive(Debug, Default)]
pub struct Queue {
    /// Posted, not done.
    pub transfers: VecDeque<Transfer>,
    /// Done, not polled.
    completions: VecDeque<Completion>,
    posted: u32,
    retired: u32,
}

impl Queue {
    /// Posts; false if the send queue would overflow (rule R11).
    pub fn post(&mut self, transfer: Transfer, depth: u32) -> bool {
        self.posted = self.posted.wrapping_add(1);
        self.transfers.push_back(transfer);
        self.posted.wrapping_sub(self.retired) <= depth
    }

    /// The first transfer is done.
    pub fn finish(&mut self) {
        if let Some(done) = self.transfers.pop_front().filter(|done| done.signaled) {
            self.completions.push_back(Completion {
                wr_id: done.wr_id,
                status: WcStatus::Success,
            });
        }
    }

    /// The connection has failed: what is not done is flushed.
    pub fn flush(&mut self) {
        for transfer in self.transfers.drain(..) {
            self.completions.push_back(Completion {
                wr_id: transfer.wr_id,
                status: WcStatus::Flushed,
            });
        }
    }

    /// Takes a completion.
    pub fn poll(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        self.retired = completion.wr_id.sequence();
        Some(completion)
    }
}
