//! The engines' records on the heap, for callers that have one.

use scalerpc_core::client::{CallRecord, ClientConn};
use scalerpc_core::post::Limits;
use scalerpc_core::server::{
    Active, Conn, Group, Member, SendSlot, ServerConfig, ServerMemory, ServerSizes, Zone,
};
use scalerpc_core::{ClientEngine, Geometry, ServerEngine, Store};

/// Arrays on the heap, allocated once.
#[derive(Debug)]
pub struct Boxed;

impl Store for Boxed {
    type Array<T: 'static> = Box<[T]>;
}

/// A server engine with its records on the heap; `None` if `limits` do not suffice for the geometry.
pub fn server_engine(
    geometry: Geometry,
    config: ServerConfig,
    limits: Limits,
) -> Option<ServerEngine<Boxed>> {
    let sizes = ServerSizes::of(&geometry);
    let memory = ServerMemory {
        conns: vec![Conn::default(); sizes.seats].into(),
        members: vec![Member::default(); sizes.seats].into(),
        demand_seen: vec![0; sizes.seats].into(),
        zones: vec![Zone::default(); sizes.zones].into(),
        free_zones: vec![0; sizes.zones].into(),
        active: vec![Active::default(); sizes.zones].into(),
        quarantine: vec![0; sizes.zones].into(),
        groups: vec![Group::default(); sizes.groups].into(),
        send_slots: vec![SendSlot::default(); sizes.send_slots].into(),
    };
    ServerEngine::new(geometry, config, limits, memory)
}

/// A client engine with its records on the heap; `None` if `limits` do not suffice for the geometry.
pub fn client_engine(
    geometry: Geometry,
    limits: Limits,
    conn: ClientConn,
) -> Option<ClientEngine<Boxed>> {
    let window = geometry.window() as usize;
    let calls = vec![CallRecord::default(); window].into();
    ClientEngine::new(geometry, limits, conn, calls, vec![0; window].into())
}
