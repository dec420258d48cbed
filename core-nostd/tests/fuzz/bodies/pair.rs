//! A server and its clients, which all mean well, on wires that are late; against an oracle that
//! knows every call.

use std::collections::BTreeMap;

use scalerpc_core::Memory;
use scalerpc_core::client::Cancelled;
use scalerpc_core::post::WriteWr;
use scalerpc_core::server::{Call, ConnState};
use scalerpc_core::wire::Status;

use super::common::wire::Op;
use super::common::{Ended, Rig};
use super::{check_census, input::Input};

const OPS_MAX: usize = 500;

/// A call that has not ended.
struct Known {
    bytes: Vec<u8>,
    cancelled: bool,
    /// `cancel` has said that it never runs.
    never: bool,
    budget: bool,
    ran: bool,
}

impl Known {
    fn new(bytes: Vec<u8>, budget: bool) -> Self {
        Self {
            bytes,
            cancelled: false,
            never: false,
            budget,
            ran: false,
        }
    }
}

/// What the oracle knows of the present connection at a seat.
#[derive(Default)]
struct Seat {
    open: BTreeMap<u64, Known>,
    accepted: u64,
    /// The last call that has run.
    ran: u64,
    ended: u64,
    cancelled: u64,
}

struct World {
    rig: Rig,
    seats: Vec<Seat>,
    /// Calls that a handler keeps, with what it has read.
    kept: Vec<(Call, Vec<u8>)>,
    keep: bool,
    served: usize,
    /// Connections that the server wants fenced.
    closed: usize,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let seats = 1 + input.below(6);
    let mut setup = input.setup(seats, 1);
    // Clients that do not answer in time are fenced, or never.
    setup.server.fence_after_ns = input.one_of(&[u64::MAX, 30_000, 300_000]);
    let mut world = World {
        rig: Rig::with_clients(setup, seats),
        seats: (0..seats).map(|_| Seat::default()).collect(),
        kept: Vec::new(),
        keep: false,
        served: 0,
        closed: 0,
    };
    for _ in 0..OPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.audit();
    }
    world.end();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.below(18);
        let seat = input.below(self.seats.len() as u32);
        match op {
            0..=2 => self.call(seat, input),
            3..=5 => (0..=input.below(12)).for_each(|_| self.act()),
            6 => self.rig.now_ns += u64::from(input.byte()) * 200,
            7 => self.rig.poll(seat),
            8 => drop(self.rig.post(seat)),
            9 => self.rig.clients_turn(),
            10 => self.hold(seat, input.byte()),
            11 => self.deliver(seat, input),
            12 => self.keep = input.flag(),
            13 => self.answer_kept(input.byte()),
            14 => self.cancel(seat, input),
            15 if input.below(4) == 0 => self.fence(seat),
            16 if input.below(4) == 0 => self.rig.server.failed(seat),
            _ => self.open(seat),
        }
    }

    fn call(&mut self, seat: u32, input: &mut Input<'_>) {
        let max = self.rig.geometry.request_max_bytes();
        let mut bytes = vec![0; input.byte() as usize % (max + 1)];
        let given = input.bytes(2);
        bytes
            .iter_mut()
            .rev()
            .zip(given)
            .for_each(|(to, from)| *to = *from);
        let budget = input.byte().checked_sub(0xc0);
        let accepted = match budget {
            Some(budget) => self
                .rig
                .call_within(seat, &bytes, u64::from(budget) * 1_000),
            None => self.rig.call(seat, &bytes),
        };
        let Ok(number) = accepted else {
            return;
        };
        let known = &mut self.seats[seat as usize];
        known.accepted += 1;
        assert_eq!(number, known.accepted, "calls are numbered from 1");
        known
            .open
            .insert(number, Known::new(bytes, budget.is_some()));
    }

    /// The server's next action. Handlers that do not keep their call echo it.
    fn act(&mut self) {
        self.rig.act();
        while let Some(call) = self.rig.kept.pop_front() {
            let served = &self.rig.log.served[self.served];
            self.served += 1;
            let seat = &mut self.seats[served.seat as usize];
            assert!(served.number > seat.ran, "R2: at most once, in order");
            seat.ran = served.number;
            assert!(served.number <= seat.accepted, "nobody made this call");
            // A call that has failed may run all the same.
            if let Some(known) = seat.open.get_mut(&served.number) {
                assert_eq!(known.bytes, served.bytes, "another's bytes");
                assert!(!known.never, "it was cancelled before it was sent");
                known.ran = true;
            }
            let bytes = served.bytes.clone();
            if self.keep {
                self.kept.push((call, bytes));
            } else {
                self.reply(call, &bytes);
            }
        }
        while let Some(&(seat, why)) = self.rig.log.closed.get(self.closed) {
            self.closed += 1;
            assert_eq!(why, None, "seat {seat} did nothing wrong");
        }
    }

    fn reply(&mut self, call: Call, bytes: &[u8]) {
        let rig = &mut self.rig;
        let limit = rig.geometry.response_max_bytes();
        let (exposed, private) = (rig.exposed.region(), rig.private.region());
        let echo = &bytes[..bytes.len().min(limit)];
        private.copy_in(call.response_at, echo);
        if let Some(wr) = rig
            .server
            .reply(call, Status::OK, echo.len(), exposed, private)
        {
            Self::post(rig, wr);
        }
    }

    fn post(rig: &mut Rig, wr: WriteWr) {
        let seat = wr.connection;
        let op = Op::write(wr, rig.private.region());
        let depth = rig.setup.limits.sq_depth;
        rig.client(seat).down.post(op, depth);
        rig.deliver(seat);
    }

    fn answer_kept(&mut self, choice: u8) {
        if !self.kept.is_empty() {
            let at = choice as usize % self.kept.len();
            let (call, bytes) = self.kept.swap_remove(at);
            self.reply(call, &bytes);
        }
    }

    fn hold(&mut self, seat: u32, which: u8) {
        let client = self.rig.client(seat);
        client.up.held = which & 1 != 0;
        client.down.held = which & 2 != 0;
        client.up.withheld = which & 4 != 0;
        client.down.withheld = which & 8 != 0;
        client.stopped = which & 16 != 0;
    }

    /// Some of what is held back lands.
    fn deliver(&mut self, seat: u32, input: &mut Input<'_>) {
        let count = input.below(4) as usize;
        let client = self.rig.client(seat);
        let held = (client.up.held, client.down.held);
        (client.up.held, client.down.held) = (false, false);
        if input.flag() {
            self.rig.deliver_up(seat, count);
        } else {
            self.rig.deliver_down(seat, count);
        }
        let client = self.rig.client(seat);
        (client.up.held, client.down.held) = held;
    }

    fn cancel(&mut self, seat: u32, input: &mut Input<'_>) {
        let number = input.near(self.seats[seat as usize].accepted);
        let cancelled = self.rig.client(seat).engine.cancel(number);
        // The answer may have been taken already, and not be looked at yet.
        if cancelled != Cancelled::Ended {
            let seat = &mut self.seats[seat as usize];
            let known = seat
                .open
                .get_mut(&number)
                .expect("only what is open is cancelled");
            assert!(!known.cancelled, "it was cancelled before");
            known.cancelled = true;
            known.never = cancelled == Cancelled::NeverRuns;
            assert!(!(known.never && known.ran), "it has run");
            seat.cancelled += 1;
        }
    }

    fn fence(&mut self, seat: u32) {
        if self.rig.state(seat) != ConnState::Free {
            self.rig.fence(seat);
            assert_eq!(self.rig.state(seat), ConnState::Free);
        }
    }

    /// Fences what is being closed, and opens what is free.
    fn open(&mut self, seat: u32) {
        self.audit();
        match self.rig.state(seat) {
            ConnState::Closing => self.fence(seat),
            ConnState::Free => {
                let known = &self.seats[seat as usize];
                let lost = known.open.values().filter(|it| !it.cancelled).count();
                assert_eq!(lost, 0, "R1: calls of the former connection never ended");
                self.seats[seat as usize] = Seat::default();
                self.rig.open(seat);
            }
            _ => {}
        }
    }

    /// What holds at every moment; and what has ended since the last one.
    fn audit(&mut self) {
        let limit = self.rig.geometry.response_max_bytes();
        let window = self.rig.geometry.window();
        for (at, seat) in self.seats.iter_mut().enumerate() {
            let client = self.rig.clients[at]
                .as_mut()
                .expect("every seat has a client");
            assert_eq!(client.violation, None, "the server broke the protocol");
            for ended in client.ended.drain(..) {
                let (Ended::Answer { call, .. } | Ended::Failed { call, .. }) = ended;
                let known = seat.open.remove(&call).expect("R1: ended twice");
                assert!(!known.cancelled, "nobody wants it any more");
                seat.ended += 1;
                match ended {
                    Ended::Answer { status, .. } if status != Status::OK => {
                        assert_eq!(status, Status::DEADLINE_EXCEEDED);
                        assert!(known.budget && !known.ran, "R1: it has run");
                    }
                    Ended::Answer { status, bytes, .. } => {
                        assert!(known.ran, "an answer to what has not run");
                        let echo = &known.bytes[..known.bytes.len().min(limit)];
                        assert_eq!((status, &bytes[..]), (Status::OK, echo));
                    }
                    Ended::Failed { may_have_run, .. } => {
                        assert!(may_have_run || !known.ran, "R1: it has run");
                    }
                }
            }
            // Conservation: of those that were cancelled some may have been answered.
            let counters = client.engine.counters();
            let outstanding = u64::from(client.engine.outstanding());
            assert!(client.engine.outstanding() <= window);
            assert_eq!(
                (counters.calls, counters.cancelled),
                (seat.accepted, seat.cancelled)
            );
            assert_eq!(counters.answered + counters.failed, seat.ended);
            assert!(seat.ended + outstanding <= seat.accepted);
            assert!(seat.accepted <= seat.ended + outstanding + seat.cancelled);
        }
        let live = self.seats.len() - self.free_seats();
        let counters = self.rig.server.counters();
        assert_eq!(
            counters.calls,
            counters.direct_writes + counters.staged_calls
        );
        assert_eq!(counters.opened - counters.gone, live as u64);
        assert_eq!(counters.violations, 0);
        check_census(&self.rig, self.kept.len());
    }

    fn free_seats(&self) -> usize {
        let seats = 0..self.seats.len() as u32;
        seats
            .filter(|&seat| self.rig.state(seat) == ConnState::Free)
            .count()
    }

    /// Nothing is held back any more: all calls end, and another one at every seat.
    fn end(&mut self) {
        self.keep = false;
        while let Some((call, bytes)) = self.kept.pop() {
            self.reply(call, &bytes);
        }
        for seat in 0..self.seats.len() as u32 {
            self.hold(seat, 0);
        }
        self.settle();
        for seat in 0..self.seats.len() as u32 {
            self.open(seat);
            let number = self
                .rig
                .call(seat, b"")
                .expect("there is room for one call");
            let known = &mut self.seats[seat as usize];
            known.accepted += 1;
            known.open.insert(number, Known::new(Vec::new(), false));
        }
        self.settle();
        for seat in &self.seats {
            assert!(
                seat.open.values().all(|it| it.cancelled),
                "R1: a call never ended"
            );
            assert_eq!(seat.ran, seat.accepted, "all calls have run");
        }
    }

    fn settle(&mut self) {
        for _ in 0..5_000 {
            self.rig.clients_turn();
            (0..16).for_each(|_| self.act());
            self.rig.now_ns += 1_000;
            self.audit();
            let mut idle = true;
            for seat in 0..self.seats.len() as u32 {
                if self.rig.state(seat) == ConnState::Closing {
                    self.fence(seat);
                }
                idle &= self.rig.client(seat).engine.outstanding() == 0;
            }
            if idle {
                self.audit();
                return;
            }
        }
        panic!("calls never end: {:?}", self.rig.server.counters());
    }
}
