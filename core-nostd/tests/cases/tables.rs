//! The client's transition table: every state and every event, as text that is compared with what is
//! checked in.
//!
//! A fresh engine is brought into each state, the event happens, and the outcome is a line. To accept
//! new tables, run the tests with `UPDATE_TABLES=1` and look at the difference.

use std::fmt::Write as _;
use std::path::PathBuf;

use scalerpc_core::Geometry;
use scalerpc_core::client::{CallError, ClientConn, ClientEngine};
use scalerpc_core::post::{Completion, WcStatus, WrId, WrKind, WriteWr};
use scalerpc_core::wire::{Ext, FLAG_ACTIVATE, FLAG_CONTROL, FLAG_EXT, FLAG_SWITCH};

use crate::common::Setup;
use crate::common::arena::{Arena, Boxed, client_engine};
use crate::common::raw::put_empty;

pub fn compare(name: &str, table: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tables")
        .join(name);
    if std::env::var_os("UPDATE_TABLES").is_some() {
        std::fs::write(&path, table).expect("the table can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (new, old)) in table.lines().zip(expected.lines()).enumerate() {
        assert_eq!(new, old, "{name}:{}; accept with UPDATE_TABLES=1", line + 1);
    }
    assert_eq!(
        table.lines().count(),
        expected.lines().count(),
        "{name} has other lines; accept with UPDATE_TABLES=1"
    );
}

/// A client engine under test, and what it has posted since the last look.
struct Caller {
    geometry: Geometry,
    engine: ClientEngine<Boxed>,
    exposed: Arena,
    private: Arena,
    position: u64,
    calls: u64,
    /// The latest WRITE.
    last: Option<WriteWr>,
}

const OWNER: u64 = 77;
const WINDOW: u64 = 4;
/// The tenancy that all scenarios use.
const EPOCH: u64 = 5;

#[derive(Clone, Copy, Debug)]
enum Start {
    Idle,
    IdleParked,
    IdleQuietOwed,
    Warmup,
    WarmupParked,
    Process,
    ProcessParked,
    ProcessBarred,
    Lost,
}

const STARTS: [Start; 9] = [
    Start::Idle,
    Start::IdleParked,
    Start::IdleQuietOwed,
    Start::Warmup,
    Start::WarmupParked,
    Start::Process,
    Start::ProcessParked,
    Start::ProcessBarred,
    Start::Lost,
];

impl Caller {
    fn new() -> Self {
        let setup = Setup::default();
        let geometry = Geometry::new(setup.geometry).expect("the geometry is valid");
        let conn = ClientConn {
            connection: 0,
            seat: 2,
            owner: OWNER,
        };
        let engine = client_engine(geometry, setup.limits, conn).expect("the limits suffice");
        Self {
            geometry,
            engine,
            exposed: Arena::new(geometry.client_exposed_bytes()),
            private: Arena::new(geometry.client_private_bytes()),
            position: 0,
            calls: 0,
            last: None,
        }
    }

    fn at(start: Start) -> Self {
        let mut it = Self::new();
        match start {
            Start::Idle => {}
            Start::IdleParked => {
                it.call(3).unwrap();
            }
            Start::Warmup => {
                it.call(3).unwrap();
                it.post();
            }
            Start::WarmupParked => {
                it = Self::at(Start::Warmup);
                it.call(3).unwrap();
            }
            Start::Process => {
                // Calls 1 and 2 are sent, and 1 is answered.
                it.call(3).unwrap();
                it.call(3).unwrap();
                it.post();
                it.answer(1, FLAG_EXT | FLAG_ACTIVATE, ext(EPOCH, 0));
            }
            Start::ProcessParked => {
                it = Self::at(Start::Process);
                it.call(3).unwrap();
            }
            Start::ProcessBarred => {
                it = Self::at(Start::ProcessParked);
                it.post_one();
                it.engine.refused();
            }
            Start::IdleQuietOwed => {
                it = Self::at(Start::Process);
                it.answer(2, FLAG_EXT | FLAG_SWITCH, ext(EPOCH, 2));
            }
            Start::Lost => {
                it.call(3).unwrap();
                it.engine.lost();
            }
        }
        it.last = None;
        it
    }

    fn call(&mut self, len: usize) -> Result<u64, CallError> {
        let private = self.private.region();
        let outcome = self.engine.call(7, &vec![1; len], 0, private);
        self.calls += u64::from(outcome.is_ok());
        outcome
    }

    fn post_one(&mut self) -> Option<&'static str> {
        let (exposed, private) = (self.exposed.region(), self.private.region());
        let wr = self.engine.next_write(exposed, private)?;
        let kind = match (wr.len, wr.epoch) {
            (_, Some(_)) => "request",
            (64, _) => "entry",
            (8, _) => "quiet",
            _ => "demand",
        };
        self.last = Some(wr);
        Some(kind)
    }

    /// Posts everything; all of it is done at once.
    fn post(&mut self) -> String {
        let mut kinds = Vec::new();
        while let Some(kind) = self.post_one() {
            kinds.push(kind);
            if let Some(wr) = self.last {
                self.complete(wr.wr_id, WcStatus::Success);
            }
        }
        kinds.join("+")
    }

    fn complete(&mut self, wr_id: WrId, status: WcStatus) {
        self.engine.completed(Completion { wr_id, status });
    }

    fn answer(&mut self, call: u64, flags: u16, ext: Ext) -> String {
        let slot = (call % WINDOW) as u32 | (call as u32) << 16;
        self.receive(slot, flags, ext)
    }

    fn receive(&mut self, slot: u32, flags: u16, ext: Ext) -> String {
        self.position += 1;
        let end = self.geometry.ring(0) + self.geometry.ring_slot_end(self.position);
        let memory = self.exposed.region();
        put_empty(memory, end, OWNER, self.position, slot, flags, ext);
        match self.engine.poll(memory) {
            Ok(Some(answer)) => format!("answered {}", answer.call),
            Ok(None) => "-".into(),
            Err(why) => format!("{why:?}"),
        }
    }

    /// The oldest call without an answer, or the one that would be next.
    fn oldest(&self) -> u64 {
        self.calls + 1 - u64::from(self.engine.outstanding())
    }

    fn happen(&mut self, event: &str) -> String {
        let (epoch, oldest) = (EPOCH, self.oldest());
        let sent = self.calls - self.engine.parked();
        let control = FLAG_CONTROL | FLAG_EXT;
        match event {
            "call" => format!("{:?}", self.call(3)),
            "call, too large" => format!("{:?}", self.call(101)),
            "calls, past the window" => {
                let refusal = (0..=WINDOW).find_map(|_| self.call(3).err());
                format!("{refusal:?}")
            }
            "cancel the oldest" => format!("{:?}", self.engine.cancel(oldest)),
            "post" => match self.post() {
                none if none.is_empty() => "-".into(),
                posted => posted,
            },
            "answer" => self.answer(oldest, 0, ext(0, 0)),
            "answer to an older call" => self.answer(oldest.wrapping_sub(1), 0, ext(0, 0)),
            "answer, activate" => self.answer(oldest, FLAG_EXT | FLAG_ACTIVATE, ext(epoch + 1, 0)),
            "answer, activate in the past" => {
                self.answer(oldest, FLAG_EXT | FLAG_ACTIVATE, ext(0, 0))
            }
            "answer, switch" => self.answer(oldest, FLAG_EXT | FLAG_SWITCH, ext(epoch, sent)),
            "switch, all consumed" => self.receive(0, control | FLAG_SWITCH, ext(epoch, sent)),
            "switch, last not consumed" => {
                let consumed = sent.saturating_sub(1);
                self.receive(0, control | FLAG_SWITCH, ext(epoch, consumed))
            }
            "switch of a new tenancy" => {
                self.receive(0, control | FLAG_SWITCH, ext(epoch + 1, sent))
            }
            "switch, too much consumed" => {
                self.receive(0, control | FLAG_SWITCH, ext(epoch, sent + 1))
            }
            "control without a meaning" => self.receive(0, FLAG_CONTROL, ext(0, 0)),
            "unknown flag" => self.receive(0, 1 << 9, ext(0, 0)),
            "WRITE refused" => match self.post_one() {
                Some("request") => {
                    self.engine.refused();
                    "parked again".into()
                }
                _ => "no WRITE to refuse".into(),
            },
            "completion of the past" => {
                self.complete(WrId::new(WrKind::Write, 0, 0, 0), WcStatus::Success);
                "-".into()
            }
            "flushed completion" => {
                self.complete(WrId::new(WrKind::Write, 0, 0, 1), WcStatus::Flushed);
                "-".into()
            }
            "lost" => {
                self.engine.lost();
                "-".into()
            }
            "take failed" => match self.engine.take_failed() {
                Some(failed) => format!("failed {}, {}", failed.call, failed.may_have_run),
                None => "-".into(),
            },
            other => unreachable!("{other}"),
        }
    }
}

fn ext(epoch: u64, consumed: u64) -> Ext {
    Ext {
        epoch,
        consumed,
        zone: 1,
        pool: 0,
    }
}

const CLIENT_EVENTS: [&str; 21] = [
    "call",
    "call, too large",
    "calls, past the window",
    "cancel the oldest",
    "post",
    "answer",
    "answer to an older call",
    "answer, activate",
    "answer, activate in the past",
    "answer, switch",
    "switch, all consumed",
    "switch, last not consumed",
    "switch of a new tenancy",
    "switch, too much consumed",
    "control without a meaning",
    "unknown flag",
    "WRITE refused",
    "completion of the past",
    "flushed completion",
    "lost",
    "take failed",
];

#[test]
fn the_clients_transitions_are_those_of_the_table() {
    let mut table = String::from(
        "# state | event | outcome | new state | outstanding | parked | posted next\n\
         # Process: calls 1 and 2 are sent, 1 is answered; Parked: one call more.\n",
    );
    for start in STARTS {
        for event in CLIENT_EVENTS {
            let mut it = Caller::at(start);
            let outcome = it.happen(event);
            let engine = &it.engine;
            let (state, outstanding) = (engine.state(), engine.outstanding());
            let parked = engine.parked();
            let posted = match it.post() {
                none if none.is_empty() => "-".into(),
                posted => posted,
            };
            let start = format!("{start:?}");
            let state = format!("{state:?}");
            writeln!(
                table,
                "{start:<13} | {event:<28} | {outcome:<28} | {state:<7} | {outstanding} | {parked} | {posted}"
            )
            .expect("a string takes it");
        }
    }
    compare("client.txt", &table);
}
