//! A client whose server writes what it likes.

use std::collections::{BTreeMap, VecDeque};

use scalerpc_core::client::{CallError, Cancelled, ClientConn, ClientState};
use scalerpc_core::post::{Completion, WcStatus, WriteWr};
use scalerpc_core::wire::{
    self, Ext, FLAG_ACTIVATE, FLAG_CONTROL, FLAG_EXT, FLAG_SWITCH, Head, LINE, Placement, Violation,
};
use scalerpc_core::{ClientEngine, Geometry, Mapping, Memory};

use super::common::arena::{Arena, Boxed, client_engine};
use super::common::wire::snapshot;
use super::common::{Setup, zone_at};
use super::input::Input;

const OPS_MAX: usize = 600;
const OWNER: u64 = 0x7a3c_91e5_0bd2_f468;
const SEAT: u32 = 1;
/// Not the first connection of its link: something lies before its memory.
const CONNECTION: u32 = 1;

struct World {
    setup: Setup,
    geometry: Geometry,
    engine: ClientEngine<Boxed>,
    exposed: Arena,
    private: Arena,
    posted: u32,
    /// Posted and not known to be done, with the bytes that were there when they were posted.
    pending: VecDeque<(WriteWr, Vec<u8>)>,
    /// Calls that have not ended, as far as the caller can know; true if they were cancelled.
    open: BTreeMap<u64, bool>,
    accepted: u64,
    /// The tenancy that a message last told of, if the client believed it.
    epoch: u64,
    /// The tenancy that a WRITE last named.
    written_epoch: u64,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut setup = input.setup(3, 1);
    setup.limits.placement = if input.flag() {
        Placement::AnyOrder
    } else {
        Placement::InOrder
    };
    let geometry = Geometry::new(setup.geometry).expect("the geometry is valid");
    let conn = ClientConn {
        connection: CONNECTION,
        seat: SEAT,
        owner: OWNER,
    };
    let connections = CONNECTION as usize + 2;
    let mut world = World {
        setup,
        geometry,
        engine: client_engine(geometry, setup.limits, conn).expect("the limits suffice"),
        exposed: Arena::new(connections * geometry.client_exposed_bytes()),
        private: Arena::new(connections * geometry.client_private_bytes()),
        posted: 0,
        pending: VecDeque::new(),
        open: BTreeMap::new(),
        accepted: 0,
        epoch: 0,
        written_epoch: 0,
    };
    for _ in 0..OPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.audit();
    }
    world.engine.lost();
    world.take_failed();
    world.audit();
    assert!(
        world.open.values().all(|&cancelled| cancelled),
        "R1: a call never ended"
    );
    assert_eq!(world.engine.outstanding(), 0);
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0 | 1 => self.call(input),
            2 => {
                let number = input.near(self.accepted);
                let parked = number > self.accepted - self.engine.parked();
                let cancelled = self.engine.cancel(number);
                match self.open.get_mut(&number) {
                    Some(known) if cancelled != Cancelled::Ended => {
                        assert!(!*known, "it was cancelled before");
                        assert_eq!(cancelled == Cancelled::NeverRuns, parked);
                        *known = true;
                    }
                    _ => assert_eq!(cancelled, Cancelled::Ended, "call {number} has ended"),
                }
            }
            3 | 4 => self.post(input),
            5 => self.complete(input),
            6 | 7 => self.write_message(input),
            8 => {
                let exposed = self.exposed.region();
                let at = input.word() as usize % (exposed.len() / 8) * 8;
                exposed.store_release(at, input.near(self.engine.awaited().1));
            }
            9 => {
                // In the slot that is looked at next.
                let end = self.engine.awaited().0 + 8;
                let words = self.geometry.response_block_bytes() / 8;
                let at = end - 8 * (1 + input.byte() as usize % words);
                self.exposed.region().store_release(at, input.word());
            }
            10 => self.poll(),
            _ if input.byte() > 0xf8 => self.engine.lost(),
            _ => self.take_failed(),
        }
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let max = self.geometry.request_max_bytes();
        let len = u64::from(input.byte()) % (max as u64 + 1);
        let len = input.near(len).min(300) as usize;
        let bytes = vec![input.byte(); len];
        let tag = self.accepted + 1;
        let private = self.private.region();
        let mut direct = None;
        let accepted = match input.byte() {
            0xe0.. => {
                let (budget_ns, now_ns) = (input.near(tag), input.near(1 << 40));
                self.engine
                    .call_within(9, &bytes, !tag, budget_ns, now_ns, private)
            }
            odd if odd % 2 == 1 => {
                let accepted = self.engine.call_direct(9, &bytes, !tag, private);
                accepted.map(|(number, write)| {
                    direct = write;
                    number
                })
            }
            _ => self.engine.call(9, &bytes, !tag, private),
        };
        match accepted {
            Ok(number) => {
                assert_eq!(number, tag, "calls are numbered from 1");
                assert!(bytes.len() <= max);
                self.accepted = number;
                self.open.insert(number, false);
            }
            Err(CallError::TooLarge { max: told }) => {
                assert!(told == max && bytes.len() > max);
            }
            Err(CallError::WindowFull) => assert_ne!(self.engine.state(), ClientState::Lost),
            Err(CallError::Lost) => assert_eq!(self.engine.state(), ClientState::Lost),
        }
        if let Some(wr) = direct {
            assert!(!self.engine.wants_to_post(), "there is nothing else");
            self.hand_over(wr, input);
        }
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let wanted = self.engine.wants_to_post();
        let (exposed, private) = (self.exposed.region(), self.private.region());
        let Some(wr) = self.engine.next_write(exposed, private) else {
            return;
        };
        assert!(wanted, "{wr:?} comes unexpected");
        self.hand_over(wr, input);
    }

    /// It goes to the back end, which may refuse it.
    fn hand_over(&mut self, wr: WriteWr, input: &mut Input<'_>) {
        self.check_write(&wr);
        if wr.epoch.is_some() && input.byte() < 0x20 {
            self.engine.refused();
            return;
        }
        self.posted = self.posted.wrapping_add(1);
        assert_eq!(wr.wr_id.sequence(), self.posted, "work requests count up");
        let bytes = snapshot(self.private.region(), wr.local, wr.len);
        self.pending.push_back((wr, bytes));
        let (outstanding, depth) = (self.pending.len() as u32, self.setup.limits.sq_depth);
        assert!(outstanding <= depth, "R11: {outstanding} of {depth} posted");
    }

    fn check_write(&mut self, wr: &WriteWr) {
        let geometry = &self.geometry;
        assert_eq!(wr.connection, CONNECTION);
        let own = geometry.entry_image(CONNECTION)..geometry.entry_image(CONNECTION + 1);
        assert!(
            own.contains(&wr.local) && wr.local + wr.len <= own.end,
            "{wr:?}"
        );
        let entry = geometry.endpoint(SEAT);
        let control = [(entry, LINE), (entry, 8), (geometry.demand_byte(SEAT), 1)];
        if wr.epoch.is_none() && control.contains(&(wr.remote, wr.len)) {
            return;
        }
        assert!(wr.len > 0 && wr.len % LINE == 0, "{wr:?}");
        let last = wr.remote + wr.len - 1;
        assert_eq!(
            zone_at(geometry, wr.remote),
            zone_at(geometry, last),
            "{wr:?}"
        );
        assert!(last < geometry.server_exposed_bytes());
        match geometry.mapping() {
            Mapping::Virtual => {
                let epoch = wr.epoch.expect("a WRITE to a zone names its tenancy");
                assert!(epoch > 0 && epoch >= self.written_epoch, "{wr:?}");
                self.written_epoch = epoch;
            }
            Mapping::Static => assert_eq!(zone_at(geometry, wr.remote), SEAT),
        }
    }

    /// The WRITEs up to some of those that report are done, or the connection fails there.
    fn complete(&mut self, input: &mut Input<'_>) {
        let count = self.pending.len() as u32;
        if count == 0 {
            return;
        }
        let at = input.below(count.min(256)) as usize;
        let good = input.byte() < 0xf8;
        if good && !self.pending[at].0.signaled {
            return;
        }
        let wr_id = self.pending[at].0.wr_id;
        for (wr, bytes) in self.pending.drain(..=at) {
            if wr.len > self.setup.limits.inline_max {
                let now = snapshot(self.private.region(), wr.local, wr.len);
                assert_eq!(now, bytes, "R5: a source changed under its WRITE");
            }
        }
        let status = if good {
            WcStatus::Success
        } else {
            WcStatus::Flushed
        };
        self.engine.completed(Completion { wr_id, status });
        assert!(good || self.engine.state() == ClientState::Lost);
    }

    /// A sealed message with some of it wrong, where the client looks next or further on.
    fn write_message(&mut self, input: &mut Input<'_>) {
        let (at, awaited) = self.engine.awaited();
        let next = awaited ^ OWNER;
        let position = input.near(next);
        let ring = self.geometry.ring(CONNECTION);
        let end = ring + self.geometry.ring_slot_end(position);
        assert!(position != next || end == at + 8);
        let flags = match input.byte() {
            0..=0x5f => 0,
            0x60..=0x9f => FLAG_EXT | FLAG_ACTIVATE,
            0xa0..=0xbf => FLAG_EXT | FLAG_SWITCH,
            0xc0..=0xdf => FLAG_EXT | FLAG_SWITCH | FLAG_CONTROL,
            0xe0..=0xef => FLAG_EXT,
            _ => input.word() as u16,
        };
        let window = u64::from(self.geometry.window());
        let oldest = self.open.keys().next().copied().unwrap_or(0);
        let call = oldest + u64::from(input.byte() & 3);
        let slot = input.near((call % window) | ((call & 0xffff) << 16)) as u32;
        let max = self.geometry.response_max_bytes();
        let len = u64::from(input.byte()) % (max as u64 + 1);
        let len = input.near(len) as u32;
        let consumed = oldest + u64::from(input.byte() & 3);
        let zone = input.below(self.geometry.zones());
        let pool = input.below(self.geometry.pools());
        let ext = Ext {
            epoch: input.near(
                self.epoch
                    .wrapping_add(u64::from(flags & FLAG_ACTIVATE != 0)),
            ),
            consumed: input.near(consumed),
            zone: input.near_u32(zone),
            pool: input.near_u32(pool),
        };
        let has_ext = flags & FLAG_EXT != 0;
        if has_ext && position == next {
            self.epoch = ext.epoch;
        }
        let exposed = self.exposed.region();
        // `seal` is for those who mean well: what they would not write is put there word by word.
        let fits =
            wire::span((len as usize).min(1 << 20), flags) <= self.geometry.response_block_bytes();
        let head = Head {
            len: if fits { len } else { 0 },
            tag: input.byte().into(),
            flags,
            slot,
        };
        let placement = self.setup.limits.placement;
        wire::seal(
            exposed,
            end,
            OWNER,
            head,
            has_ext.then_some(ext),
            position,
            placement,
        );
        if !fits {
            let word = exposed.load(end - 24) & !0xffff_ffff;
            exposed.store(end - 24, word | u64::from(len));
        }
    }

    fn poll(&mut self) {
        let lost = self.engine.state() == ClientState::Lost;
        for _ in 0..1_000 {
            match self.engine.poll(self.exposed.region()) {
                Ok(Some(answer)) => {
                    assert!(!lost);
                    assert_eq!(answer.tag, !answer.call);
                    let cancelled = self.open.remove(&answer.call);
                    assert_eq!(cancelled, Some(false), "R1: answered twice, or cancelled");
                    let ring =
                        self.geometry.ring(CONNECTION)..self.geometry.staging(CONNECTION + 1);
                    assert!(answer.payload_len <= self.geometry.response_max_bytes());
                    assert!(ring.contains(&answer.payload_at));
                    assert!(
                        answer.payload_at + answer.payload_len <= ring.end - wire::TRAILER_BYTES
                    );
                }
                Ok(None) => return,
                Err(why) => {
                    assert!(matches!(
                        why,
                        Violation::Length
                            | Violation::Flags
                            | Violation::Slot
                            | Violation::Mapping
                            | Violation::Options
                    ));
                    assert_eq!(self.engine.state(), ClientState::Lost);
                    return;
                }
            }
        }
        panic!("answers without end");
    }

    fn take_failed(&mut self) {
        while let Some(failed) = self.engine.take_failed() {
            assert_eq!(self.engine.state(), ClientState::Lost);
            assert_eq!(failed.tag, !failed.call);
            let cancelled = self.open.remove(&failed.call);
            assert_eq!(cancelled, Some(false), "R1: ended twice, or cancelled");
        }
    }

    /// What holds at every moment.
    fn audit(&self) {
        let engine = &self.engine;
        let window = u64::from(self.geometry.window());
        let counters = engine.counters();
        assert_eq!(counters.calls, self.accepted);
        assert!(u64::from(engine.outstanding()) <= window);
        assert!(engine.parked() <= window, "{} parked", engine.parked());
        let cancelled = self.open.values().filter(|&&it| it).count() as u64;
        let waited = self.open.len() as u64 - cancelled;
        let outstanding = u64::from(engine.outstanding());
        assert!(waited <= outstanding && outstanding <= waited + cancelled);
        assert_eq!(
            counters.answered + counters.failed + self.open.len() as u64,
            self.accepted
        );
        assert_eq!(counters.cancelled, cancelled);
        let (at, _) = engine.awaited();
        let ring = self.geometry.ring(CONNECTION)..self.geometry.staging(CONNECTION + 1);
        assert!(ring.contains(&at) && at + 8 <= ring.end);
        assert!(outstanding == 0 || engine.is_busy());
    }
}
