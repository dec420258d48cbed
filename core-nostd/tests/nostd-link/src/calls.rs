//! Both engines at work, back to back: one client's calls, staged at first, then written directly.

use core::hint::black_box;

use scalerpc_core::client::{CallRecord, ClientConn};
use scalerpc_core::post::{Completion, Limits, WcStatus, WrId, WriteWr};
use scalerpc_core::server::{
    Action, Active, Conn, Group, Member, OpenConn, SendSlot, ServerConfig, ServerMemory,
    ServerSizes, Zone,
};
use scalerpc_core::wire::{Placement, Status};
use scalerpc_core::{Borrowed, ClientEngine, Geometry, Memory, Region, ServerEngine};

use crate::{OWNER, geometry, memory};

const CALLS: u64 = 20;
/// Far more than the calls take, so that a call that is lost does not hang the test.
const ROUNDS: u64 = 1000;
const REQUEST_BYTES: usize = 32;
/// Enough for each array of the engines with the geometry of the checks.
const RECORDS: usize = 64;

pub fn calls_are_answered() -> bool {
    [Placement::InOrder, Placement::AnyOrder]
        .into_iter()
        .all(|placement| black_box(answered(placement)) == Some(CALLS))
}

/// Both sides' memory: what the peer may write to, and what only its owner sees.
struct Sides {
    server: Region,
    server_private: Region,
    client: Region,
    client_private: Region,
}

impl Sides {
    fn new(geometry: &Geometry) -> Option<Self> {
        let all = memory();
        for at in (0..all.len()).step_by(8) {
            all.store(at, 0);
        }
        let mut end = 0;
        let mut next = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(64);
            // SAFETY: the bytes are a static's.
            unsafe { all.part(start, end - start) }
        };
        Some(Self {
            server: next(geometry.server_exposed_bytes())?,
            server_private: next(geometry.server_private_bytes())?,
            client: next(geometry.client_exposed_bytes())?,
            client_private: next(geometry.client_private_bytes())?,
        })
    }
}

/// How many of the calls were answered with the bytes of their requests; `None` if anything failed.
fn answered(placement: Placement) -> Option<u64> {
    let geometry = geometry()?;
    let sides = Sides::new(&geometry)?;
    let limits = Limits {
        sq_depth: 8,
        sge_max: 2,
        inline_max: 0,
        can_revoke: false,
        placement,
    };

    let sizes = ServerSizes::of(&geometry);
    let (mut conns, mut demand_seen) = ([Conn::default(); RECORDS], [0; RECORDS]);
    let mut members = [Member::default(); RECORDS];
    let (mut zones, mut free_zones) = ([Zone::default(); RECORDS], [0; RECORDS]);
    let (mut active, mut quarantine) = ([Active::default(); RECORDS], [0; RECORDS]);
    let (mut groups, mut send_slots) =
        ([Group::default(); RECORDS], [SendSlot::default(); RECORDS]);
    let records = ServerMemory::<Borrowed<'_>> {
        conns: conns.get_mut(..sizes.seats)?,
        members: members.get_mut(..sizes.seats)?,
        demand_seen: demand_seen.get_mut(..sizes.seats)?,
        zones: zones.get_mut(..sizes.zones)?,
        free_zones: free_zones.get_mut(..sizes.zones)?,
        active: active.get_mut(..sizes.zones)?,
        quarantine: quarantine.get_mut(..sizes.zones)?,
        groups: groups.get_mut(..sizes.groups)?,
        send_slots: send_slots.get_mut(..sizes.send_slots)?,
    };
    let mut server = ServerEngine::new(geometry, ServerConfig::default(), limits, records)?;
    let opened = server.open(OpenConn {
        seat: 1,
        owner: OWNER,
        ring_at: geometry.ring(0),
        staging_at: geometry.staging(0),
        placement: limits.placement,
    });

    let window = geometry.window() as usize;
    let (mut calls, mut order) = ([CallRecord::default(); RECORDS], [0; RECORDS]);
    let conn = ClientConn {
        connection: 0,
        seat: 1,
        owner: OWNER,
    };
    let (calls, order) = (calls.get_mut(..window)?, order.get_mut(..window)?);
    let mut client = ClientEngine::<Borrowed<'_>>::new(geometry, limits, conn, calls, order)?;

    let (mut made, mut answered) = (0, 0);
    for round in 0..ROUNDS {
        // As many as the window takes, so that whole batches are staged.
        while made < CALLS {
            let tag = made + 1;
            let request = [tag as u8; REQUEST_BYTES];
            let call = client.call(7, &request, tag, &sides.client_private);
            if call.is_err() {
                break;
            }
            made += 1;
        }
        while let Some(wr) = client.next_write(&sides.client, &sides.client_private) {
            write(&sides.server, &sides.client_private, &wr);
            if wr.signaled {
                client.completed(success(wr.wr_id));
            }
        }
        serve(&mut server, &sides, 1000 * round)?;
        while let Some(answer) = client.poll(&sides.client).ok()? {
            let mut response = [0; REQUEST_BYTES];
            sides.client.copy_out(answer.payload_at, &mut response);
            let right = answer.status == Status::OK
                && answer.payload_len == REQUEST_BYTES
                && answer.tag == answer.call
                && response == [answer.tag as u8; REQUEST_BYTES];
            answered += u64::from(right);
        }
    }
    let counters = server.counters();
    let both_ways = counters.staged_calls > 0 && counters.direct_writes > 0;
    let zone = server.seat(1).and_then(|(_, zone)| server.zone(zone?));
    let pools = [0, 1].map(|pool| server.pool(pool).is_some_and(|it| it.processing));
    let is_seen = zone.is_some_and(|it| it.seat == 1) && pools[0] != pools[1];
    (opened && both_ways && is_seen && counters.calls == CALLS).then_some(answered)
}

/// Carries out all that the server asks for now. The handler answers with what it was asked.
fn serve(server: &mut ServerEngine<Borrowed<'_>>, sides: &Sides, now_ns: u64) -> Option<()> {
    let (exposed, private) = (&sides.server, &sides.server_private);
    loop {
        let wr = match server.next_action(now_ns, exposed, private) {
            Action::Call(call) => {
                let len = call.request_len;
                private.copy_from(call.response_at, exposed, call.request_at, len);
                server.reply(call, Status::OK, len, exposed, private)?
            }
            Action::Write(wr) => wr,
            Action::Read(wr) => {
                for (i, target) in wr.targets(server.geometry()).enumerate() {
                    let source = wr.remote + i * wr.stride;
                    exposed.copy_from(target, &sides.client, source, wr.stride);
                }
                server.completed(success(wr.wr_id));
                continue;
            }
            Action::Idle => return Some(()),
            Action::Revoke { .. } | Action::Close { .. } => return None,
        };
        write(&sides.client, private, &wr);
        if wr.signaled {
            server.completed(success(wr.wr_id));
        }
    }
}

fn write(target: &Region, source: &Region, wr: &WriteWr) {
    if wr.len == 1 {
        target.store_byte_release(wr.remote, source.load_byte_acquire(wr.local));
    } else {
        target.copy_from(wr.remote, source, wr.local, wr.len);
    }
}

fn success(wr_id: WrId) -> Completion {
    Completion {
        wr_id,
        status: WcStatus::Success,
    }
}
