//! After the faults: everything that is outstanding ends, and nobody waits longer than the rules allow.

use scalerpc_core::Mapping;
use scalerpc_core::client::ClientState;
use scalerpc_core::server::REVOKE_BACKOFF_MAX;

use crate::beats::CommonClock;
use crate::fabric::Unkind;
use crate::faults::Bait;
use crate::oracle::Broken;
use crate::world::{Wait, World, tell};

/// Rounds of the server in a step.
pub(crate) const ROUNDS: u32 = 4;
/// Actions that a round cannot have.
const ACTIONS_MAX: u32 = 20_000;
/// Steps that a turn takes besides its slice: to choose a group, to fetch, to see that, to tell those who
/// leave, to hear that they are quiet, and to switch.
const TURN_STEPS: u64 = 12;
/// Steps in which a call of a lone client is answered: there and back.
pub(crate) const LONE_STEPS: u32 = 8;
/// Steps after which whoever was silent for too long is ended.
pub(crate) const OUTLAST_STEPS: u32 = 20;
/// Calls of a lone client.
pub(crate) const LONE_CALLS: u32 = 12;

impl World {
    /// Brings the run to its end.
    pub(crate) fn calm_down(&mut self) -> Result<(), Broken> {
        self.begin_calm()?;
        self.settle()?;
        self.load()?;
        self.settle()?;
        self.outlast_the_silent()?;
        self.settle()?;
        self.come_to_rest()?;
        self.lone()
    }

    /// From now on nothing goes wrong.
    pub(crate) fn begin_calm(&mut self) -> Result<(), Broken> {
        tell!(self, "--- calm");
        self.calm = true;
        let fence_ns = self.calm_ns();
        self.end.change().calm_down(Unkind {
            fence_ns,
            ..Unkind::default()
        });
        for peer in self.peers.iter_mut().flatten() {
            if peer.asleep_ns != u64::MAX {
                peer.asleep_ns = 0;
            }
        }
        Ok(())
    }

    /// A step in a calm time, short beside a slice.
    pub(crate) fn calm_ns(&self) -> u64 {
        (self.server.time_slice_bounds_ns().0 / 8).max(1)
    }

    /// Longest time that a client waits for any of its calls to end (rule R8): it may have missed its
    /// group's turn, and then each group with demand has one.
    fn bound_ns(&self) -> u64 {
        let rotation_ns = self.turn_ns(self.has_dead()) * (self.server.counters().groups + 2);
        self.bound_of(rotation_ns)
    }

    /// A client of it is dead.
    pub(crate) fn has_dead(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.dead)
    }

    /// What a turn takes besides its slice.
    fn steps_ns(&self) -> u64 {
        let drain = u64::from(self.geometry.zones() * self.geometry.window()) / 64;
        (TURN_STEPS + drain) * self.calm_ns()
    }

    /// The longest turn of a group. A fetch that hangs is waited for, for one slice (rule R6).
    pub(crate) fn turn_ns(&self, hangs: bool) -> u64 {
        let turns = self.common.as_ref().map_or(1, CommonClock::turns);
        self.server.wait_bound_ns(1, 0) * (1 + u64::from(hangs)) + self.steps_ns() * turns
    }

    /// Longest wait, if each group with demand has a turn in `rotation_ns`.
    pub(crate) fn bound_of(&self, rotation_ns: u64) -> u64 {
        // With static mapping there may be fewer zones than a group has members.
        let spare = self
            .geometry
            .zones()
            .saturating_sub(self.geometry.group_size());
        let bad = self.peers.iter().flatten();
        let bad = bad.filter(|peer| !peer.is_honest()).count() as u32;
        let config = &self.config.server;
        let silence_ns = match self.config.limits.can_revoke {
            true => config.revoke_after_ns,
            false => config.fence_after_ns,
        };
        // READs of the dead hang until the fabric notices.
        let silence_ns = match self.has_dead() {
            false => silence_ns,
            true => silence_ns.max(self.config.chances.death_ns),
        };
        match bad {
            0 => rotation_ns,
            // A group of which some find no zone has another turn for them.
            _ if bad <= spare => 2 * rotation_ns,
            // There may be no zone until the silent ones are fenced. Then some that wait, and are silent
            // too, may be the first to have one.
            _ => {
                u64::from(bad / (spare + 1) + 1) * (2 * rotation_ns + silence_ns + self.steps_ns())
            }
        }
    }

    pub(crate) fn calm_step(&mut self, calls: impl Fn(usize) -> u32) -> Result<(), Broken> {
        self.now_ns += self.calm_ns();
        self.calm_clients(calls)?;
        for _ in 0..ROUNDS {
            self.calm_round()?;
        }
        self.audit()?;
        self.check_waits(self.bound_ns())
    }

    /// Everybody but the server has a step.
    pub(crate) fn calm_clients(&mut self, calls: impl Fn(usize) -> u32) -> Result<(), Broken> {
        self.report.steps += 1;
        for at in (0..self.in_hand.len()).rev() {
            self.answer_kept(at)?;
        }
        self.end.change().pass(self.now_ns);
        self.jump()?;
        for seat in 0..self.peers.len() {
            self.deliver(seat, true)?;
            self.poll_client(seat, calls(seat), false)?;
            self.deliver(seat, true)?;
        }
        Ok(())
    }

    /// A round of the server.
    pub(crate) fn calm_round(&mut self) -> Result<(), Broken> {
        match self.serve(ACTIONS_MAX)? {
            true => Ok(()),
            false => Err("R6: a round of the server does not end".into()),
        }
    }

    pub(crate) fn check_waits(&mut self, bound_ns: u64) -> Result<(), Broken> {
        let (bound_ns, now_ns) = (bound_ns.max(1), self.now_ns);
        for (seat, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer.as_mut().filter(|peer| peer.is_honest()) else {
                continue;
            };
            // Whose connection is about to end has no answer to expect.
            let net = self.end.look();
            if net
                .wire(seat as u32)
                .is_none_or(|wire| wire.gone_ns.is_some())
            {
                continue;
            }
            let outstanding = u64::from(peer.engine.outstanding());
            let ended = peer.engine.counters().calls - outstanding;
            if outstanding == 0 {
                peer.waits = None;
                continue;
            }
            // Silent clients may be fenced while it waits, which lowers the bound.
            let wait = match peer.waits {
                Some(wait) if wait.ended == ended => Wait {
                    bound_ns: bound_ns.max(wait.bound_ns),
                    ..wait
                },
                _ => Wait {
                    since_ns: now_ns,
                    ended,
                    bound_ns,
                },
            };
            peer.waits = Some(wait);
            let (waited_ns, bound_ns) = (now_ns - wait.since_ns, wait.bound_ns);
            let part = waited_ns.saturating_mul(1000) / bound_ns;
            self.report.longest_wait = self.report.longest_wait.max(part);
            if waited_ns > bound_ns {
                return Err(format!(
                    "R8: seat {seat} has waited for {waited_ns} ns, and the bound is {bound_ns}: \
                     {:?}, {} parked, at the server {:?}; {:?}",
                    peer.engine.state(),
                    peer.engine.parked(),
                    self.server.seat(seat as u32),
                    self.server.counters(),
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn honest(&self) -> impl Iterator<Item = usize> + '_ {
        let seats = self.peers.iter().enumerate();
        seats.filter_map(|(seat, peer)| peer.as_ref().filter(|it| it.is_honest()).map(|_| seat))
    }

    /// Until no honest client waits for anything. `check_waits` sees to it that this ends.
    fn settle(&mut self) -> Result<(), Broken> {
        tell!(self, "--- settle");
        let mut quiet = 0;
        while quiet < 20 {
            self.calm_step(|_| 0)?;
            quiet = if self.is_busy() { 0 } else { quiet + 1 };
        }
        Ok(())
    }

    /// An honest client waits for something.
    pub(crate) fn is_busy(&self) -> bool {
        self.honest().any(|seat| {
            let engine = self.peers[seat].as_ref().map(|peer| &peer.engine);
            engine.is_some_and(|it| it.outstanding() > 0 && it.state() != ClientState::Lost)
        })
    }

    /// Every client calls without end, for some rotations.
    fn load(&mut self) -> Result<(), Broken> {
        tell!(self, "--- load");
        let mut rotation = (self.server.counters().groups + 1) * (8 + TURN_STEPS);
        if let Some(common) = &self.common {
            // Longer than anybody may have to wait.
            rotation *= 3 * common.turns();
        }
        let most = if cfg!(debug_assertions) { 150 } else { 1_000 };
        let burst = self.config.chances.burst;
        for _ in 0..(2 * rotation).min(most) {
            self.calm_step(|_| burst)?;
        }
        Ok(())
    }

    /// Whoever does not answer is rid of its zone when its time is over (rule R6), and so is whoever
    /// wrote what it must not of its connection (rule R12).
    fn outlast_the_silent(&mut self) -> Result<(), Broken> {
        tell!(self, "--- outlast");
        let before_ns = self.now_ns;
        self.begin_to_outlast();
        for _ in 0..OUTLAST_STEPS {
            self.calm_step(|_| 0)?;
        }
        self.check_outlasted(before_ns)
    }

    pub(crate) fn begin_to_outlast(&mut self) {
        let config = self.config.server;
        // Revocations that found a WRITE under way, while there were faults, have backed off.
        let revoke_ns = config.revoke_after_ns << REVOKE_BACKOFF_MAX;
        self.now_ns += config.fence_after_ns.max(revoke_ns) + 1;
        for peer in self.peers.iter_mut().flatten() {
            peer.waits = None;
        }
    }

    pub(crate) fn check_outlasted(&self, before_ns: u64) -> Result<(), Broken> {
        let census = self.server.census()?;
        if census
            .quarantined_since_ns
            .is_some_and(|since_ns| since_ns <= before_ns)
        {
            return Err(format!(
                "R6: a zone is in quarantine for too long: {census:?}"
            ));
        }
        let virtual_mapping = self.geometry.mapping() == Mapping::Virtual;
        // A request may never be looked at: its tenancy may end first.
        let mut baits = self.peers.iter().flatten().filter_map(|peer| peer.bait);
        match baits.find(|it| matches!(it, Bait::Entry(_))) {
            Some(bait) if virtual_mapping => Err(format!("R12: {bait:?} had no consequences")),
            _ => Ok(()),
        }
    }

    /// A client that can call.
    pub(crate) fn lone_caller(&self) -> Option<usize> {
        self.honest().find(|&seat| {
            let peer = self.peers[seat].as_ref();
            peer.is_some_and(|peer| peer.engine.state() != ClientState::Lost)
        })
    }

    /// One client calls, all others are idle: there is no switch, and nothing to wait for (rule R7).
    fn lone(&mut self) -> Result<(), Broken> {
        tell!(self, "--- lone");
        if self.peers.iter().flatten().any(|peer| !peer.is_honest()) {
            return Ok(());
        }
        let Some(caller) = self.lone_caller() else {
            return Ok(());
        };
        let (mut switches, mut rests) = (0, 0);
        for call in 0..LONE_CALLS {
            self.calm_step(|seat| u32::from(seat == caller))?;
            let mut steps = 1;
            while self.peers[caller]
                .as_ref()
                .is_some_and(|it| it.engine.outstanding() > 0)
            {
                self.calm_step(|_| 0)?;
                steps += 1;
            }
            if call == 0 {
                switches = self.server.counters().switches;
                rests = self.server.counters().rests;
            } else if steps > LONE_STEPS {
                return Err(format!("R7: a call of a lone client took {steps} steps"));
            }
            // Longer than a slice, so that one ends.
            for _ in 0..10 {
                self.calm_step(|_| 0)?;
            }
        }
        let counters = self.server.counters();
        // Who calls seldom enough finds the server at rest.
        if counters.switches != switches && counters.rests == rests {
            return Err("R7: a lone client saw a switch".into());
        }
        self.mark("lone caller");
        Ok(())
    }
}
