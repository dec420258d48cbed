//! Memory of one side, and the engines' records on the heap.

use std::ptr::NonNull;

use scalerpc_core::client::{CallRecord, ClientConn};
use scalerpc_core::memory::Region;
use scalerpc_core::post::Limits;
use scalerpc_core::server::{
    Active, Conn, Group, Member, SendSlot, ServerConfig, ServerMemory, ServerSizes, Zone,
};
use scalerpc_core::{ClientEngine, Geometry, ServerEngine, Store};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line(#[allow(dead_code)] [u64; 8]);

/// Zeroed lines, seen through a [`Region`].
pub struct Arena {
    region: Region,
    /// Owns what `region` views, and is never touched otherwise.
    _lines: Box<[Line]>,
}

impl Arena {
    /// At least `bytes` bytes, and at least one line.
    pub fn new(bytes: usize) -> Self {
        let mut lines = vec![Line([0; 8]); bytes.div_ceil(64).max(1)].into_boxed_slice();
        let len = lines.len() * 64;
        let base = NonNull::from(&mut *lines).cast::<u8>();
        // SAFETY: a boxed slice stays where it is when the box moves; it lives as long as `self`, from
        // which `region` is only lent; the lines are aligned to 64 and touched only through regions.
        let region = unsafe { Region::new(base, len) };
        Self {
            region,
            _lines: lines,
        }
    }

    /// The view.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

/// Arrays on the heap.
pub struct Boxed;

impl Store for Boxed {
    type Array<T: 'static> = Box<[T]>;
}

/// Arrays of the lengths that a geometry asks for.
pub fn server_memory(geometry: &Geometry) -> ServerMemory<Boxed> {
    let sizes = ServerSizes::of(geometry);
    ServerMemory {
        conns: vec![Conn::default(); sizes.seats].into(),
        members: vec![Member::default(); sizes.seats].into(),
        demand_seen: vec![0; sizes.seats].into(),
        zones: vec![Zone::default(); sizes.zones].into(),
        free_zones: vec![0; sizes.zones].into(),
        active: vec![Active::default(); sizes.zones].into(),
        quarantine: vec![0; sizes.zones].into(),
        groups: vec![Group::default(); sizes.groups].into(),
        send_slots: vec![SendSlot::default(); sizes.send_slots].into(),
    }
}

pub fn server_engine(
    geometry: Geometry,
    config: ServerConfig,
    limits: Limits,
) -> Option<ServerEngine<Boxed>> {
    ServerEngine::new(geometry, config, limits, server_memory(&geometry))
}

pub fn client_engine(
    geometry: Geometry,
    limits: Limits,
    conn: ClientConn,
) -> Option<ClientEngine<Boxed>> {
    let window = geometry.window() as usize;
    let calls = vec![CallRecord::default(); window].into();
    ClientEngine::new(geometry, limits, conn, calls, vec![0; window].into())
}
