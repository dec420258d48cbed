//! The memories of a server and some clients, as each party sees them.

use scalerpc_core::wire::{ENTRY_QUIET_AT, Entry, Ext, LINE, Message, Placement};
use scalerpc_core::{Geometry, Memory};
use scalerpc_driver::shm::guard::{self, ClientFence, GUARD_BYTES};

use crate::memory::LoomMemory;
use crate::message::{self, geometry, look, put};
use crate::mutant::{Mutation, Party, Place};
use crate::shm;

/// Bytes of a party's own send buffer.
const OWN_BYTES: usize = 256;

/// A server, and clients with a connection each.
#[derive(Clone, Debug)]
pub struct World {
    /// Small: see [`geometry`].
    pub geometry: Geometry,
    /// The server's exposed memory.
    pub server: LoomMemory,
    /// The clients' exposed memory; behind it the guard, and the word that says who is asleep.
    pub clients: Vec<LoomMemory>,
    /// What the party that has this view leaves out.
    pub mutation: Mutation,
}

/// The nonce of a client's connection: far from any other's, as random ones are.
pub const fn owner(client: usize) -> u64 {
    [
        0x9e37_79b9_7f4a_7c15,
        0xc2b2_ae3d_27d4_eb4f,
        0x27d4_eb2f_1656_67c5,
    ][client]
}

impl World {
    /// Zeroed memory of a server and two clients.
    pub fn new(window: u32, mutation: Mutation) -> Self {
        Self::with_clients(2, window, mutation)
    }

    /// Zeroed memory of a server and up to three clients.
    pub fn with_clients(clients: usize, window: u32, mutation: Mutation) -> Self {
        let geometry = geometry(window);
        let demand = (geometry.clients_max() as usize).next_multiple_of(LINE);
        let client = || LoomMemory::shared(geometry.client_exposed_bytes() + GUARD_BYTES + LINE, 0);
        Self {
            geometry,
            server: LoomMemory::shared(geometry.server_exposed_bytes(), demand),
            clients: (0..clients).map(|_| client()).collect(),
            mutation,
        }
    }

    /// The same, where one party plays all parts.
    pub fn of_one_party(clients: usize, window: u32, mutation: Mutation) -> Self {
        let geometry = geometry(window);
        let client = || LoomMemory::private(geometry.client_exposed_bytes() + GUARD_BYTES);
        Self {
            geometry,
            server: LoomMemory::private(geometry.server_exposed_bytes()),
            clients: (0..clients).map(|_| client()).collect(),
            mutation,
        }
    }

    /// The same world, as `party` sees it.
    #[must_use]
    pub fn seen_by(&self, party: Party) -> Self {
        let geometry = &self.geometry;
        let op = |place| self.mutation.op(party, place);
        let fence = op(Place::Fence);
        let (table, pools) = (geometry.endpoint(0), geometry.block_end(0, 0, 0));
        let pools = pools - geometry.request_block_bytes();
        let server = self
            .server
            .weaken(op(Place::Demand), 0..table)
            .weaken(op(Place::Entry), table..pools)
            .weaken(op(Place::Block), pools..geometry.server_exposed_bytes())
            .weaken_fences(fence);
        let (ring, end) = (geometry.ring(0), geometry.client_exposed_bytes());
        let client = |memory: &LoomMemory| {
            memory
                .weaken(op(Place::Ring), ring..end)
                .weaken(op(Place::Guard), end..end + GUARD_BYTES)
                .weaken_fences(fence)
        };
        Self {
            server,
            clients: self.clients.iter().map(client).collect(),
            ..self.clone()
        }
    }

    /// Offset of the guard in a client's memory.
    pub fn guard(&self) -> usize {
        self.geometry.client_exposed_bytes()
    }

    /// Offset of the word that says that a client is asleep, in its memory.
    pub fn asleep(&self) -> usize {
        self.guard() + GUARD_BYTES
    }

    /// The end of the block of a call, in the first zone.
    pub fn block_end(&self, call: u64) -> usize {
        self.geometry.block_end(0, 0, call)
    }

    /// The end of a slot of a response ring.
    pub fn ring_end(&self, position: u64) -> usize {
        self.geometry.ring(0) + self.geometry.ring_slot_end(position)
    }

    /// A client writes a call into the zone.
    pub fn write_call(&self, client: usize, call: u64) {
        let own = LoomMemory::private(OWN_BYTES);
        let len = put(&own, 0, owner(client), call, None, 0);
        shm::write(&self.server, self.block_end(call) - len, &own, 0, len);
    }

    /// A client writes a call into the zone, under its guard. False if the tenancy is revoked.
    #[must_use]
    pub fn write_call_guarded(
        &self,
        client: usize,
        call: u64,
        epoch: u64,
        fence: ClientFence,
    ) -> bool {
        let own = &self.clients[client];
        if !guard::begin_write(own, self.guard(), epoch, fence) {
            return false;
        }
        self.write_call(client, call);
        guard::end_write(own, self.guard());
        true
    }

    /// The server looks for a call.
    pub fn call(&self, client: usize, call: u64) -> Option<Message> {
        let size = self.geometry.request_block_bytes();
        look(
            &self.server,
            self.block_end(call),
            size,
            owner(client),
            call,
        )
    }

    /// The server writes a response, or with `ext` a control message.
    pub fn respond(&self, client: usize, position: u64, ext: Option<Ext>, flags: u16) {
        let own = LoomMemory::private(OWN_BYTES);
        let len = put(&own, 0, owner(client), position, ext, flags);
        let remote = self.ring_end(position) - len;
        shm::write(&self.clients[client], remote, &own, 0, len);
    }

    /// A client looks for a response.
    pub fn response(&self, client: usize, position: u64) -> Option<Message> {
        let size = self.geometry.response_block_bytes();
        let end = self.ring_end(position);
        look(&self.clients[client], end, size, owner(client), position)
    }

    /// A client puts a call into its staging area.
    pub fn stage(&self, client: usize, call: u64) {
        let own = LoomMemory::private(OWN_BYTES);
        let len = put(&own, 0, owner(client), call, None, 0);
        self.clients[client].copy_from(self.geometry.staging(0), &own, 0, len);
    }

    /// A client writes its endpoint entry.
    pub fn write_entry(&self, client: usize, entry: &Entry, number: u64) {
        let own = LoomMemory::private(OWN_BYTES);
        entry.seal(&own, 0, owner(client), number, Placement::InOrder);
        let to = self.geometry.endpoint(client as u32);
        shm::write(&self.server, to, &own, 0, LINE);
    }

    /// A client writes its byte of the demand map.
    pub fn write_demand(&self, client: usize, number: u64) {
        let own = LoomMemory::private(OWN_BYTES);
        own.store_byte_release(0, number as u8);
        let to = self.geometry.demand_byte(client as u32);
        shm::write(&self.server, to, &own, 0, 1);
    }

    /// The server looks for an endpoint entry, and if it is there checks every part of it.
    ///
    /// # Panics
    ///
    /// If it is there, and not whole.
    pub fn entry(&self, client: usize, wanted: &Entry, number: u64) -> Option<()> {
        let at = self.geometry.endpoint(client as u32);
        let entry = Entry::observe(&self.server, at, owner(client), number, Placement::InOrder)?;
        assert_eq!(entry, *wanted, "torn entry");
        Some(())
    }

    /// A client says that it is quiet, in one word.
    pub fn write_quiet(&self, client: usize, epoch: u64) {
        let own = LoomMemory::private(OWN_BYTES);
        own.store(0, epoch);
        let to = self.geometry.endpoint(client as u32) + ENTRY_QUIET_AT;
        shm::write(&self.server, to, &own, 0, 8);
    }

    /// The server asks whether a client is quiet, as its quarantine does.
    pub fn is_quiet(&self, client: usize, epoch: u64) -> Option<()> {
        let at = self.geometry.endpoint(client as u32) + ENTRY_QUIET_AT;
        (self.server.load_acquire(at) == epoch).then_some(())
    }

    /// The server fetches a staged call into its block.
    pub fn fetch(&self, client: usize, call: u64) {
        let source = &self.clients[client];
        let to = self.block_end(call) - message::SPAN;
        // `shm::read` for a batch of one.
        self.server
            .copy_from(to, source, self.geometry.staging(0), message::SPAN);
    }
}
