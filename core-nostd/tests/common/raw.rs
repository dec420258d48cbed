//! A peer made of bytes: what a seat without a client engine writes to the server.

use scalerpc_core::post::{Completion, WcStatus};
use scalerpc_core::server::ConnState;
use scalerpc_core::wire::{Entry, Ext, FLAG_EXT, Head, Placement, payload_at, seal};
use scalerpc_core::{Memory, Region};

use super::Rig;
use super::wire::land;

/// A request, sealed: the bytes as they stand at the end of a block.
pub fn request(
    rig: &Rig,
    owner: u64,
    number: u64,
    head: Head,
    ext: Option<Ext>,
    payload: &[u8],
) -> Vec<u8> {
    let scratch = super::arena::Arena::new(1 << 12);
    let memory = scratch.region();
    let end = 1 << 12;
    let span = end - payload_at(end, payload.len(), head.flags);
    memory.copy_in(end - span, payload);
    let placement = rig.setup.limits.placement;
    seal(memory, end, owner, head, ext, number, placement);
    super::wire::snapshot(memory, end - span, span)
}

/// A message without a payload, as a server writes it into a response ring: it ends at `end`.
pub fn put_empty(
    memory: &Region,
    end: usize,
    owner: u64,
    position: u64,
    slot: u32,
    flags: u16,
    ext: Ext,
) {
    let head = Head {
        len: 0,
        tag: 0,
        flags,
        slot,
    };
    let ext = (flags & FLAG_EXT != 0).then_some(ext);
    seal(memory, end, owner, head, ext, position, Placement::InOrder);
}

/// A head for a payload of `len` bytes.
pub fn head(len: u32) -> Head {
    Head {
        len,
        tag: 7,
        flags: 0,
        slot: 0,
    }
}

impl Rig {
    /// Writes a request into the zone that a seat holds, as the client there would.
    pub fn write_request(&mut self, seat: u32, number: u64, head: Head, payload: &[u8]) {
        let zone = self.zone(seat).expect("the seat has a zone");
        self.write_request_to(zone, self.owners[seat as usize], number, head, payload);
    }

    /// Writes a request into any zone.
    pub fn write_request_to(
        &mut self,
        zone: u32,
        owner: u64,
        number: u64,
        head: Head,
        payload: &[u8],
    ) {
        self.write_options_to(zone, owner, number, head, None, payload);
    }

    /// Likewise, with an extension.
    pub fn write_options_to(
        &mut self,
        zone: u32,
        owner: u64,
        number: u64,
        head: Head,
        ext: Option<Ext>,
        payload: &[u8],
    ) {
        let bytes = request(self, owner, number, head, ext, payload);
        let zones = self.geometry.zones();
        let end = self.geometry.block_end(zone / zones, zone % zones, number);
        land(self.exposed.region(), end - bytes.len(), &bytes);
    }

    /// Writes an endpoint entry with its number, and the byte of the demand map.
    pub fn write_entry(&mut self, seat: u32, number: u64, entry: Entry) {
        let exposed = self.exposed.region();
        let owner = self.owners[seat as usize];
        let placement = self.setup.limits.placement;
        let at = self.geometry.endpoint(seat);
        entry.seal(exposed, at, owner, number, placement);
        exposed.store_byte_release(self.geometry.demand_byte(seat), number as u8);
    }

    /// The entry that an honest client would write for `count` small calls from `first_call`.
    pub fn entry(&self, first_call: u64, count: u32, quiet_epoch: u64) -> Entry {
        Entry {
            quiet_epoch,
            first_call,
            staged_at: self.geometry.staging(0) as u64,
            stride: 64,
            count,
        }
    }

    /// The READs of a raw seat are done. Its batch is as `requests` wrote it, or was not written.
    pub fn complete_reads(&mut self, seat: u32) {
        let (mine, others) = std::mem::take(&mut self.log.raw_reads)
            .into_iter()
            .partition(|wr| wr.connection == seat);
        self.log.raw_reads = others;
        let mine: Vec<scalerpc_core::post::ReadWr> = mine;
        for wr in mine {
            self.server.completed(Completion {
                wr_id: wr.wr_id,
                status: WcStatus::Success,
            });
        }
    }

    /// The first entry of a raw seat that was just opened.
    pub fn demand_raw(&mut self, seat: u32) {
        let entry = self.entry(1, 1, 0);
        self.write_entry(seat, 1, entry);
        self.serve();
    }

    /// Time passes, and the server has its turn.
    pub fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        self.serve();
    }

    /// Another raw seat, of another group, has demand and is ready, and time passes.
    pub fn end_the_slice_for(&mut self, other: u32) {
        if self.state(other) == ConnState::Free {
            self.open_raw(other);
            self.demand_raw(other);
        }
        for _ in 0..10 {
            self.complete_reads(other);
            self.pass(20_000);
        }
    }

    /// Brings a raw seat that was just opened to be served, with one call that has run.
    pub fn activate_raw(&mut self, seat: u32) {
        self.demand_raw(seat);
        let owner = self.owners[seat as usize];
        let zone = self.zone(seat).expect("the seat has a zone");
        self.write_request_to(zone, owner, 1, head(3), b"abc");
        self.complete_reads(seat);
        self.serve();
    }
}
