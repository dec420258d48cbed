//! Work requests under way: how bytes land, when completions come, and what a source must survive.
//!
//! Work requests of one connection take effect in their order; there is no order between connections.
//! A message lands piece by piece: in increasing address order, or in any order. Completions come later,
//! in order, and some together.

use std::collections::VecDeque;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use scalerpc_core::Memory;
use scalerpc_core::memory::Region;
use scalerpc_core::post::{Completion, WcStatus, WrId};
use scalerpc_core::wire::Placement;

const LINE: usize = 64;
const WORD: usize = 8;

/// From, to, bytes.
pub(crate) type Span = (usize, usize, usize);

/// A copy that is under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Pieces that have not landed.
    pieces: VecDeque<Span>,
    /// The source as it was when it was posted.
    source: Vec<(usize, Vec<u8>)>,
    /// The source is not read again.
    inline: bool,
    wr_id: WrId,
    signaled: bool,
    /// A READ, whose source is the peer's.
    pub(crate) read: bool,
    /// The zone that it writes to, over both pools.
    pub(crate) zone: Option<u32>,
    /// For a client's WRITE into a zone: the tenancy.
    pub(crate) epoch: Option<u64>,
}

/// The source was changed before the work request was done (rule R5).
#[derive(Debug)]
pub(crate) struct SourceChanged;

fn snapshot(memory: &Region, at: usize, len: usize) -> Vec<u8> {
    if len == 1 {
        return vec![memory.load_byte_acquire(at)];
    }
    let mut bytes = vec![0; len];
    memory.copy_out(at, &mut bytes);
    bytes
}

/// Cuts a span into what lands at once: lines, or words. Words matter in the last line, where the trailer
/// is.
fn cut(pieces: &mut Vec<Span>, (from, to, len): Span, words: bool) {
    for at in (0..len).step_by(LINE) {
        let line = LINE.min(len - at);
        let step = if line < WORD {
            line
        } else if words || at + line == len {
            WORD
        } else {
            line
        };
        for at in (at..at + line).step_by(step) {
            pieces.push((from + at, to + at, step));
        }
    }
}

impl Transfer {
    /// Copies `spans` of `source` memory, once it is moved on.
    pub(crate) fn new(
        spans: &[Span],
        source: &Region,
        inline: bool,
        placement: Placement,
        (wr_id, signaled): (WrId, bool),
        rng: &mut SmallRng,
    ) -> Self {
        let mut pieces = Vec::new();
        let words = rng.random_ratio(1, 8);
        for span in spans {
            cut(&mut pieces, *span, words);
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
            read: false,
            zone: None,
            epoch: None,
        }
    }

    /// Lands some pieces, or `all`; true when all have.
    pub(crate) fn advance(
        &mut self,
        source: &Region,
        target: &Region,
        all: bool,
        rng: &mut SmallRng,
    ) -> Result<bool, SourceChanged> {
        let count = match all {
            true => self.pieces.len(),
            false => rng.random_range(1..=self.pieces.len()),
        };
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
                    let (body, last) = bytes.split_at(len - WORD);
                    target.copy_in(to, body);
                    let mut word = [0; WORD];
                    word.copy_from_slice(last);
                    target.store_release(to + len - WORD, u64::from_le_bytes(word));
                }
            }
        }
        Ok(self.pieces.is_empty())
    }

    /// A byte of the demand map: it wakes the server.
    pub(crate) fn wakes(&self) -> bool {
        matches!(&self.source[..], [(_, bytes)] if bytes.len() == 1)
    }

    /// The source is what it was. A NIC may read it once more, to send it again, for as long as the
    /// poster does not know that it is done.
    fn is_unchanged(&self, source: &Region) -> bool {
        self.inline
            || self.read
            || self
                .source
                .iter()
                .all(|(at, bytes)| snapshot(source, *at, bytes.len()) == *bytes)
    }
}

/// One direction of a connection: what one side has posted.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Posted, not done.
    pub(crate) transfers: VecDeque<Transfer>,
    /// Done, but its poster does not know.
    unknown: VecDeque<Transfer>,
    /// Not polled.
    completions: VecDeque<Completion>,
    /// Of those, the ones that can be polled.
    visible: usize,
    posted: u32,
    retired: u32,
}

/// Why a work request was not taken.
pub(crate) enum Refusal {
    /// More than the send queue holds (rule R11).
    Full,
    /// Its sequence number is not the next one.
    OutOfSequence,
}

impl Queue {
    /// Posts.
    pub(crate) fn post(&mut self, transfer: Transfer, depth: u32) -> Result<(), Refusal> {
        let sequence = self.posted.wrapping_add(1);
        if transfer.wr_id.sequence() != sequence {
            return Err(Refusal::OutOfSequence);
        }
        if self.outstanding() >= depth {
            return Err(Refusal::Full);
        }
        self.posted = sequence;
        self.transfers.push_back(transfer);
        Ok(())
    }

    /// Work requests that its poster does not know to be done.
    pub(crate) fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.retired)
    }

    /// The first transfer is done.
    pub(crate) fn finish(&mut self) {
        let Some(done) = self.transfers.pop_front() else {
            return;
        };
        if done.signaled {
            self.completions.push_back(Completion {
                wr_id: done.wr_id,
                status: WcStatus::Success,
            });
        }
        self.unknown.push_back(done);
    }

    /// What has completed can be polled. Says how many became so together.
    pub(crate) fn report(&mut self) -> usize {
        let fresh = self.completions.len() - self.visible;
        self.visible = self.completions.len();
        fresh
    }

    /// The connection has failed: what is not done is flushed, and can be polled.
    pub(crate) fn flush(&mut self) {
        let mut status = WcStatus::Failed {
            status: 12,
            vendor_err: 0,
        };
        for transfer in self.transfers.drain(..) {
            self.completions.push_back(Completion {
                wr_id: transfer.wr_id,
                status,
            });
            self.unknown.push_back(transfer);
            status = WcStatus::Flushed;
        }
        self.visible = self.completions.len();
    }

    /// True if there is nothing left to poll.
    pub(crate) fn is_drained(&self) -> bool {
        self.completions.is_empty()
    }

    /// Takes a completion; what was posted up to it is known to be done from now on.
    pub(crate) fn poll(&mut self, source: &Region) -> Result<Option<Completion>, SourceChanged> {
        if self.visible == 0 {
            return Ok(None);
        }
        self.visible -= 1;
        let Some(completion) = self.completions.pop_front() else {
            return Ok(None);
        };
        let sequence = completion.wr_id.sequence();
        while self.retired != sequence {
            self.retired = self.retired.wrapping_add(1);
            let done = self.unknown.pop_front();
            if done.is_some_and(|done| !done.is_unchanged(source)) {
                return Err(SourceChanged);
            }
        }
        Ok(Some(completion))
    }
}
