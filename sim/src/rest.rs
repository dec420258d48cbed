//! A server that sleeps while it rests, until somebody wakes it.

use scalerpc_core::server::ConnState;
use scalerpc_driver::Fabric;

use crate::oracle::Broken;
use crate::world::{World, tell};

/// Steps besides those of its silence in which a server comes to rest: those who are told have to hear it, and to
/// be quiet or be revoked.
const REST_STEPS: u64 = 40;

impl World {
    /// Nothing was done in a round: if it may sleep, the server does, as a back end has it. It has said so, and looks
    /// once more.
    pub(crate) fn fall_asleep(&mut self) -> Result<(), Broken> {
        if !self.server.rests() || self.config.server.rest_after_ns.is_none() {
            return Ok(());
        }
        self.end.change().knocked = false;
        if self.server.census()?.waiting > 0 {
            return Err("R7: the server rests while a connection waits".into());
        }
        let states = (0..self.geometry.clients_max()).filter_map(|seat| self.server.seat(seat));
        for (state, _) in states {
            if matches!(state, ConnState::Active | ConnState::Fetching) {
                return Err(format!(
                    "R7: the server rests while a connection is {state:?}"
                ));
            }
        }
        self.sleeps = !self.server.has_demand(self.end.exposed());
        if self.sleeps {
            tell!(self, "    = sleeps");
            self.mark("the server slept");
        }
        Ok(())
    }

    /// True if the server sleeps, and nobody wakes it now.
    pub(crate) fn sleeps_on(&mut self) -> bool {
        if !self.sleeps {
            return false;
        }
        let due_ns = self.server.next_due_ns().unwrap_or(u64::MAX);
        if self.end.look().knocked {
            self.sleeps = false;
            self.mark("the server was woken by demand");
        } else if due_ns <= self.now_ns {
            self.sleeps = false;
            self.mark("the server woke up because a zone was due");
        }
        self.sleeps
    }

    /// All clients are silent: the server comes to rest, if it may.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), Broken> {
        let Some(after_ns) = self.config.server.rest_after_ns else {
            return Ok(());
        };
        // READs of the dead hang until the fabric notices.
        let dead = self.peers.iter().flatten().any(|peer| peer.dead);
        if dead || !self.server.can_rest() {
            return Ok(());
        }
        tell!(self, "--- rest");
        // A group that has no calls yields to the next one only after a while.
        let idle_ns = self.config.server.idle_switch_ns;
        let steps = after_ns.saturating_add(idle_ns) / self.calm_ns() + REST_STEPS;
        // The calls of liars, too, have to end first: nobody has waited for those.
        let (mut quiet, mut calls) = (0, self.server.counters().calls);
        while quiet < steps {
            if self.sleeps {
                return Ok(());
            }
            self.calm_step(|_| 0)?;
            let before = std::mem::replace(&mut calls, self.server.counters().calls);
            quiet = if calls == before { quiet + 1 } else { 0 };
        }
        Err(format!(
            "R7: the server does not come to rest: {:?}",
            self.server.counters()
        ))
    }
}
