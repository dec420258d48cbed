//! A server, its clients and the fabric between them, moved on in random order.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::iter;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scalerpc_core::server::{Call, Counters, Deferred, Resumed};
use scalerpc_core::wire::Status;
use scalerpc_core::{ClientEngine, Geometry, ServerEngine};
use scalerpc_driver::store::{self, Boxed};

use crate::beats::CommonClock;
use crate::config::{Chances, Config};
use crate::fabric::{ClientEnd, Net, ServerEnd};
use crate::faults::Bait;
use crate::oracle::{Broken, Oracle, Request};

/// Says what happens, in a replay.
macro_rules! tell {
    ($world:expr, $($what:tt)*) => {
        if $world.trace {
            println!("{:>12} {}", $world.now_ns, format_args!($($what)*));
        }
    };
}
pub(crate) use tell;

/// A client with one connection.
pub(crate) struct Peer {
    pub(crate) owner: u64,
    pub(crate) engine: ClientEngine<Boxed>,
    pub(crate) end: ClientEnd,
    /// It does nothing before this time.
    pub(crate) asleep_ns: u64,
    pub(crate) dead: bool,
    /// It has broken the protocol, or was hurt by one that did: only what it does to others matters.
    pub(crate) liar: bool,
    /// What it wrote and the server must not take.
    pub(crate) bait: Option<Bait>,
    /// The latest call that was ever written to the server or staged for it.
    pub(crate) posted_max: u64,
    /// The tenancy that the server last told it of.
    pub(crate) told_epoch: u64,
    /// In a calm time: what it waits for.
    pub(crate) waits: Option<Wait>,
    /// Calls that were taken from it in the present drain.
    pub(crate) drained: u32,
}

/// A call that is answered later.
pub(crate) enum Kept {
    /// With its send slot.
    Call(Call),
    /// Without.
    Deferred(Deferred),
}

/// A client's wait for any of its calls to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) since_ns: u64,
    /// Calls that had ended then.
    pub(crate) ended: u64,
    /// The longest that it may take.
    pub(crate) bound_ns: u64,
}

impl Peer {
    /// What its clock shows when the server's shows 0.
    pub(crate) fn clock_ns(&self) -> u64 {
        self.owner >> 24
    }

    /// It keeps to the protocol, and lives.
    pub(crate) fn is_honest(&self) -> bool {
        !self.liar && !self.dead && self.asleep_ns != u64::MAX
    }
}

/// Another's bytes have landed in the zone, or will: whoever has it is beyond help.
pub(crate) fn hurt(peers: &mut [Option<Peer>], server: &ServerEngine<Boxed>, zone: u32) {
    for (seat, peer) in (0..).zip(peers) {
        if let Some(peer) = peer {
            let holds = server.seat(seat).and_then(|(_, zone)| zone);
            peer.liar |= holds == Some(zone);
        }
    }
}

/// How a run went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The server's.
    pub counters: Counters,
    /// Steps that were made.
    pub steps: u64,
    /// What else happened, and how often.
    pub marks: BTreeMap<&'static str, u64>,
    /// The longest wait for an answer in a calm time, in 1/1000 of the bound (rule R8).
    pub longest_wait: u64,
}

/// Each connection's answers, by its nonce: the call, the status, the bytes.
pub(crate) type Answers = BTreeMap<u64, Vec<(u64, Status, Vec<u8>)>>;

/// See the [module](self).
pub struct World {
    pub(crate) config: Config,
    pub(crate) geometry: Geometry,
    pub(crate) rng: SmallRng,
    /// For budgets and limits.
    pub(crate) terms_rng: SmallRng,
    pub(crate) now_ns: u64,
    /// When the server was last told the time.
    pub(crate) served_ns: u64,
    pub(crate) server: ServerEngine<Boxed>,
    pub(crate) end: ServerEnd,
    pub(crate) peers: Vec<Option<Peer>>,
    pub(crate) oracle: Oracle,
    pub(crate) common: Option<CommonClock>,
    pub(crate) report: Report,
    /// Calls that are answered later.
    pub(crate) in_hand: Vec<(Kept, Request)>,
    /// All answers, in the order in which they came, if they are wanted.
    pub(crate) answers: Option<Answers>,
    /// The length of a slice at the last audit.
    pub(crate) slice_ns: u64,
    /// The server sleeps until it is woken.
    pub(crate) sleeps: bool,
    /// Nothing goes wrong any more.
    pub(crate) calm: bool,
    pub(crate) trace: bool,
}

impl World {
    /// The world of a configuration, without clients yet. `trace`: it says what happens.
    ///
    /// # Errors
    ///
    /// If the configuration cannot be used.
    pub fn new(config: Config, trace: bool) -> Result<Self, Broken> {
        let geometry = config.sizes()?;
        let server = store::server_engine(geometry, config.server, config.limits)
            .ok_or("the limits do not suffice")?;
        let seats = geometry.clients_max() as usize;
        let slice_ns = server.time_slice_ns();
        Ok(Self {
            config,
            geometry,
            rng: SmallRng::seed_from_u64(config.seed ^ 0x5eed),
            terms_rng: SmallRng::seed_from_u64(config.seed ^ 0x7e125),
            now_ns: 0,
            served_ns: 0,
            server,
            end: Net::with_server(geometry, config.limits, config.unkind, config.seed ^ 0xfab),
            peers: (0..seats).map(|_| None).collect(),
            oracle: Oracle::default(),
            common: CommonClock::new(config.beats, config.seed, config.server.time_slice_ns),
            report: Report::default(),
            in_hand: Vec::new(),
            answers: None,
            slice_ns,
            sleeps: false,
            calm: false,
            trace,
        })
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// Which rule was broken, and how.
    pub fn run(mut self) -> Result<Report, Broken> {
        self.begin_beats();
        for _ in 0..self.config.steps {
            self.step()?;
        }
        self.calm_down()?;
        Ok(self.finish())
    }

    /// How it went.
    pub(crate) fn finish(mut self) -> Report {
        self.report.counters = self.server.counters();
        for (fault, times) in &self.end.look().faults {
            *self.report.marks.entry(fault).or_default() += times;
        }
        self.report
    }

    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        self.rng.random_ratio(per_mille.min(1000), 1000)
    }

    pub(crate) fn mark(&mut self, mark: &'static str) {
        *self.report.marks.entry(mark).or_default() += 1;
    }

    pub(crate) fn step(&mut self) -> Result<(), Broken> {
        self.now_ns += self.rng.random_range(0..=self.config.chances.step_ns);
        self.step_now()?;
        self.audit()
    }

    /// What happens at one time.
    pub(crate) fn step_now(&mut self) -> Result<(), Broken> {
        self.report.steps += 1;
        self.end.change().pass(self.now_ns);
        let seat = self.rng.random_range(0..self.peers.len());
        self.disturb(seat)?;
        self.set_beats(seat);
        self.jump()?;
        for seat in 0..self.peers.len() {
            if self.chance(self.config.chances.deliver) {
                self.deliver(seat, false)?;
            }
            if self.chance(self.config.chances.poll) {
                let Chances { call, coolness, .. } = self.config.chances;
                let call = if seat % 4 == 0 { call } else { call / coolness };
                let calls = match self.chance(call) {
                    true => self.config.chances.burst,
                    false => 0,
                };
                let cancels = self.chance(self.config.chances.cancel);
                self.poll_client(seat, calls, cancels)?;
            }
        }
        if !self.in_hand.is_empty() && self.chance(200) {
            let at = self.rng.random_range(0..self.in_hand.len());
            self.answer_kept(at)?;
        }
        let actions = self.rng.random_range(1..40);
        self.serve(actions)?;
        Ok(())
    }

    /// Answers the call in hand that is at this place, if a send slot is to be had.
    pub(crate) fn answer_kept(&mut self, at: usize) -> Result<(), Broken> {
        let (kept, request) = self.in_hand.swap_remove(at);
        let deferred = match kept {
            Kept::Call(call) => return self.answer(call, &request),
            Kept::Deferred(deferred) => deferred,
        };
        match self.server.resume(deferred) {
            Resumed::Call(call) => return self.answer(call, &request),
            Resumed::Wait(deferred) => {
                self.in_hand.push((Kept::Deferred(deferred), request));
                self.mark("deferred call waits for a send slot");
            }
            Resumed::Ended => self.mark("deferred call of a connection that ended"),
        }
        Ok(())
    }

    /// Moves the operations of a connection on: the first ones, or `all` of them.
    pub(crate) fn deliver(&mut self, seat: usize, all: bool) -> Result<(), Broken> {
        let honest = self.peers[seat].as_ref().is_some_and(|peer| !peer.liar);
        let holds = self.server.seat(seat as u32).and_then(|(_, zone)| zone);
        let mut net = self.end.change();
        if let Some(wire) = net.wire(seat as u32).filter(|it| !it.cut && !it.dead) {
            let moving = if all { usize::MAX } else { 1 };
            let up = wire.up.transfers.iter().take(moving);
            let down = wire.down.transfers.iter().take(moving);
            let both = up
                .zip(iter::repeat(true))
                .chain(down.zip(iter::repeat(false)));
            for (zone, its_own) in both.filter_map(|(it, own)| Some((it.zone?, own))) {
                if holds == Some(zone) {
                    continue;
                }
                // Rule R4: the server must not have given the zone away, unless it was told lies.
                if honest || !its_own {
                    return Err(format!(
                        "R4: bytes of seat {seat} land in zone {zone}; it has {holds:?}"
                    ));
                }
                hurt(&mut self.peers, &self.server, zone);
            }
        }
        net.advance(seat as u32, all);
        Ok(())
    }

    /// Slices are as long as the configuration says.
    fn audit_slice(&mut self) -> Result<(), Broken> {
        let slice_ns = self.server.time_slice_ns();
        let server = &self.config.server;
        let right = match server.adaptive_slice {
            Some(it) => (it.min_ns..=it.max_ns).contains(&slice_ns),
            None => slice_ns == server.time_slice_ns,
        };
        if !right {
            return Err(format!("R8: a slice of {slice_ns} ns with {server:?}"));
        }
        match slice_ns.cmp(&self.slice_ns) {
            Ordering::Less => self.mark("slice made shorter"),
            Ordering::Greater => self.mark("slice made longer"),
            Ordering::Equal => (),
        }
        self.slice_ns = slice_ns;
        Ok(())
    }

    /// Everything adds up, at any time.
    pub(crate) fn audit(&mut self) -> Result<(), Broken> {
        if let Some(broken) = self.end.change().broken() {
            return Err(broken);
        }
        self.audit_slice()?;
        let census = self.server.census()?;
        let (mut calls, mut awaited) = (0, 0);
        for (kept, _) in &self.in_hand {
            match kept {
                Kept::Call(_) => calls += 1,
                Kept::Deferred(it) => awaited += u32::from(self.server.is_awaited(it)),
            }
        }
        let slots = census.slots_free + census.slots_held + calls;
        if slots != self.geometry.send_slots() {
            let all = self.geometry.send_slots();
            return Err(format!(
                "R5: {slots} of {all} send slots are accounted for: {census:?}"
            ));
        }
        if !(awaited..=awaited + calls).contains(&census.answers_owed) {
            return Err(format!(
                "R11: {awaited} to {} answers are owed by calls in hand: {census:?}",
                awaited + calls
            ));
        }
        // Whoever has several calls in hand with their slots may have taken those before it was seen to hoard.
        let fair = self.geometry.send_slots() / 2 + 2;
        let Chances { defer, keep, .. } = self.config.chances;
        if (defer == 0 || keep == 0) && census.slots_held_max > fair {
            return Err(format!(
                "R6: one connection holds too many send slots: {census:?}"
            ));
        }
        if !census.draining {
            for peer in self.peers.iter_mut().flatten() {
                peer.drained = 0;
            }
        }
        for peer in self.peers.iter().flatten() {
            if peer.is_honest() {
                let outstanding = self.oracle.balance(peer.owner)?;
                if outstanding > peer.engine.outstanding() as usize {
                    return Err("R1: the client has forgotten a call".into());
                }
            }
        }
        Ok(())
    }
}
