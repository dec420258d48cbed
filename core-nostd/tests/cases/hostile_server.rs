//! A server that lies: each impossible message costs it the connection, and the client nothing else (R12).

use scalerpc_core::client::{ClientConn, ClientState};
use scalerpc_core::post::{Completion, WcStatus};
use scalerpc_core::wire::{
    Ext, FLAG_ACTIVATE, FLAG_CONTROL, FLAG_EXT, FLAG_SWITCH, Violation, payload_at, valid_word,
};
use scalerpc_core::{ClientEngine, Geometry, Mapping, Memory};

use crate::common::Setup;
use crate::common::arena::{Arena, Boxed, client_engine};
use crate::common::raw::put_empty;

/// A client engine, and a server that is only a test that writes into its ring.
struct Victim {
    geometry: Geometry,
    engine: ClientEngine<Boxed>,
    exposed: Arena,
    private: Arena,
    position: u64,
}

const OWNER: u64 = 77;

impl Victim {
    /// With `calls` calls, posted.
    fn with_calls(calls: u64) -> Self {
        Self::with_mapping(Mapping::Virtual, calls)
    }

    fn with_mapping(mapping: Mapping, calls: u64) -> Self {
        let mut setup = Setup::default();
        setup.geometry.mapping = mapping;
        let geometry = Geometry::new(setup.geometry).unwrap();
        let conn = ClientConn {
            connection: 0,
            seat: 2,
            owner: OWNER,
        };
        let mut victim = Self {
            geometry,
            engine: client_engine(geometry, setup.limits, conn).unwrap(),
            exposed: Arena::new(geometry.client_exposed_bytes()),
            private: Arena::new(geometry.client_private_bytes()),
            position: 0,
        };
        for tag in 1..=calls {
            let private = victim.private.region();
            victim.engine.call(7, b"abc", tag, private).unwrap();
        }
        victim.post();
        victim
    }

    /// Posts, and every WRITE is done at once.
    fn post(&mut self) {
        let (exposed, private) = (self.exposed.region(), self.private.region());
        while let Some(wr) = self.engine.next_write(exposed, private) {
            self.engine.completed(Completion {
                wr_id: wr.wr_id,
                status: WcStatus::Success,
            });
        }
    }

    /// The next message of the ring.
    fn receive(&mut self, slot: u32, flags: u16, ext: Ext) -> Result<bool, Violation> {
        self.position += 1;
        let end = self.geometry.ring(0) + self.geometry.ring_slot_end(self.position);
        assert_eq!(payload_at(end, 0, flags), end - 64);
        let memory = self.exposed.region();
        put_empty(memory, end, OWNER, self.position, slot, flags, ext);
        let answer = self.engine.poll(self.exposed.region());
        answer.map(|answer| answer.is_some())
    }

    fn ends_lost(mut self, outcome: Result<bool, Violation>, why: Violation) {
        assert_eq!(outcome, Err(why));
        assert_eq!(self.engine.state(), ClientState::Lost);
        assert_eq!(self.engine.poll(self.exposed.region()), Ok(None));
        let outstanding = self.engine.outstanding();
        let ended = std::iter::from_fn(|| self.engine.take_failed()).count();
        assert_eq!(ended as u32, outstanding, "every call ends");
    }
}

/// The slot that the engine gave to call n, which is not reused here.
fn slot(call: u32) -> u32 {
    (call % 4) | (call << 16)
}

const PROCESS: u16 = FLAG_EXT | FLAG_ACTIVATE;
const EVENT: u16 = FLAG_EXT | FLAG_SWITCH | FLAG_CONTROL;

fn ext(epoch: u64, consumed: u64) -> Ext {
    Ext {
        epoch,
        consumed,
        zone: 1,
        pool: 1,
    }
}

#[test]
fn an_answer_to_no_outstanding_call_ends_the_connection() {
    // Other calls, no record, and the right record with another call's number.
    let wrong_number = 1 | (3 << 16);
    for wrong in [slot(2), slot(3), slot(0), 4, 0xffff, u32::MAX, wrong_number] {
        let mut victim = Victim::with_calls(1);
        let outcome = victim.receive(wrong, 0, ext(0, 0));
        victim.ends_lost(outcome, Violation::Slot);
    }
    // Twice, and before it was sent.
    let mut victim = Victim::with_calls(2);
    assert_eq!(victim.receive(slot(1), PROCESS, ext(1, 0)), Ok(true));
    let outcome = victim.receive(slot(1), 0, ext(0, 0));
    victim.ends_lost(outcome, Violation::Slot);
    let mut victim = Victim::with_calls(1);
    let private = victim.private.region();
    victim.engine.call(7, b"parked", 2, private).unwrap();
    let outcome = victim.receive(slot(2), 0, ext(0, 0));
    victim.ends_lost(outcome, Violation::Slot);
}

#[test]
fn a_zone_that_cannot_be_ends_the_connection() {
    let (zones, pools) = (6, 2);
    let good = ext(1, 0);
    for wrong in [
        Ext {
            zone: zones,
            ..good
        },
        Ext {
            zone: u32::MAX,
            ..good
        },
        Ext {
            pool: pools,
            ..good
        },
        Ext {
            pool: u32::MAX,
            ..good
        },
        Ext { epoch: 0, ..good },
    ] {
        let mut victim = Victim::with_calls(1);
        let outcome = victim.receive(slot(1), PROCESS, wrong);
        victim.ends_lost(outcome, Violation::Mapping);
    }
    let mut victim = Victim::with_calls(1);
    let last = Ext {
        zone: zones - 1,
        pool: pools - 1,
        epoch: u64::MAX,
        consumed: 0,
    };
    assert_eq!(victim.receive(slot(1), PROCESS, last), Ok(true));
    // A second time, in the tenancy that lasts.
    let outcome = victim.receive(0, PROCESS | FLAG_CONTROL, last);
    victim.ends_lost(outcome, Violation::Mapping);
}

#[test]
fn an_epoch_from_the_past_ends_the_connection() {
    for epoch in [0, 4, 5] {
        let mut victim = Victim::with_calls(2);
        assert_eq!(victim.receive(slot(1), PROCESS, ext(5, 0)), Ok(true));
        assert_eq!(victim.receive(0, EVENT, ext(5, 1)), Ok(false));
        victim.post();
        assert_eq!(victim.engine.state(), ClientState::Warmup);
        let outcome = victim.receive(slot(2), PROCESS, ext(epoch, 1));
        victim.ends_lost(outcome, Violation::Mapping);
    }
}

#[test]
fn a_switch_event_that_cannot_be_ends_the_connection() {
    // In state Process, epoch 5; calls 1 to 3 are sent and 2 is answered.
    for (epoch, consumed) in [
        (5, 0),
        (5, 1),
        (5, 4),
        (5, u64::MAX),
        (4, 2),
        (6, 2),
        (0, 2),
    ] {
        let mut victim = Victim::with_calls(3);
        assert_eq!(victim.receive(slot(2), PROCESS, ext(5, 0)), Ok(true));
        let outcome = victim.receive(0, EVENT, ext(epoch, consumed));
        victim.ends_lost(outcome, Violation::Mapping);
    }
    // In state Idle there is no tenancy to end.
    let mut victim = Victim::with_calls(0);
    let outcome = victim.receive(0, EVENT, ext(1, 0));
    victim.ends_lost(outcome, Violation::Mapping);
}

/// Found by the fuzz target `client_engine`. A client that lost its own zone could be sent to another one's.
#[test]
fn a_zone_for_life_cannot_be_taken_away() {
    for epoch in [0, 1, 2] {
        for flags in [EVENT, PROCESS] {
            let mut victim = Victim::with_mapping(Mapping::Static, 2);
            assert_eq!(victim.receive(slot(1), 0, ext(0, 0)), Ok(true));
            let outcome = victim.receive(slot(2), flags, ext(epoch, 2));
            victim.ends_lost(outcome, Violation::Mapping);
        }
    }
}

/// A call goes straight into the zone only if nothing comes before it: calls that are parked, or the byte of the demand
/// map that a server did not wait for.
#[test]
fn a_call_goes_out_directly_only_where_nothing_else_comes_first() {
    let direct = |victim: &mut Victim| {
        let private = victim.private.region();
        let (number, write) = victim.engine.call_direct(7, b"abc", 0, private).unwrap();
        (number, write.map(|write| write.remote))
    };
    let entry_only = |victim: &mut Victim| {
        let (exposed, private) = (victim.exposed.region(), victim.private.region());
        victim.engine.next_write(exposed, private).unwrap()
    };

    let mut victim = Victim::with_calls(1);
    assert_eq!(direct(&mut victim), (2, None), "not served");
    assert_eq!(victim.receive(slot(1), PROCESS, ext(1, 0)), Ok(true));
    assert_eq!(direct(&mut victim), (3, None), "call 2 is parked");
    victim.post();
    let end = victim.geometry.block_end(1, 1, 4);
    assert_eq!(direct(&mut victim), (4, Some(end - 64)));
    assert!(!victim.engine.wants_to_post());

    // The WRITE was refused: its call is parked, and the next one behind it.
    victim.engine.refused();
    assert_eq!(direct(&mut victim), (5, None), "call 4 is parked");

    // It is served before it has said that it has calls.
    let mut victim = Victim::with_calls(0);
    assert_eq!(direct(&mut victim), (1, None));
    let entry = entry_only(&mut victim);
    assert_eq!(entry.remote, victim.geometry.endpoint(2));
    assert_eq!(victim.receive(slot(1), PROCESS, ext(1, 0)), Ok(true));
    assert_eq!(direct(&mut victim), (2, None), "the byte is owed");
    let byte = entry_only(&mut victim);
    assert_eq!(byte.remote, victim.geometry.demand_byte(2));
}

#[test]
fn misplaced_and_unknown_flags_end_the_connection() {
    for flags in [
        FLAG_ACTIVATE,
        FLAG_SWITCH,
        FLAG_SWITCH | FLAG_CONTROL,
        1 << 4,
        1 << 15,
    ] {
        let mut victim = Victim::with_calls(1);
        let outcome = victim.receive(slot(1), flags, ext(1, 1));
        victim.ends_lost(outcome, Violation::Flags);
    }
}

/// Field case J1, at the client.
#[test]
fn an_answer_longer_than_its_slot_ends_the_connection() {
    let max = Setup::default().geometry.response_max_bytes;
    for len in [max + 1, 128, 0x8000_0000, u32::MAX] {
        let mut victim = Victim::with_calls(1);
        let end = victim.geometry.ring(0) + victim.geometry.ring_slot_end(1);
        let memory = victim.exposed.region();
        memory.store(end - 32, OWNER);
        memory.store(end - 24, u64::from(len));
        memory.store(end - 16, u64::from(slot(1)) << 32);
        memory.store_release(end - 8, valid_word(OWNER, 1));
        let outcome = victim.engine.poll(memory).map(|it| it.is_some());
        victim.ends_lost(outcome, Violation::Length);
    }
}
