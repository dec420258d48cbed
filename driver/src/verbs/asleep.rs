//! How a server that sleeps is woken, and a wake-up is never lost.
//!
//! A client WRITEs its byte of the demand map with an immediate, and nothing else. That takes a receive of the server's
//! queue pair, whose completion comes to a queue of its own: so the queues that are polled for every call hold what they
//! always held, and no status of a receive can be taken for one of a WRITE or READ. The completion says nothing but that
//! there is something to look at.
//!
//! ```text
//!  server: takes old events │ arms all queues │ looks │ sleeps until an event, or the bell
//!  device: places the byte │ completion │ event, if the queue is armed
//! ```
//!
//! # Why it holds
//!
//! - *Demand.* The device tells of a completion that comes after the queue was armed. One that came before is found by the
//!   look, which polls each queue, and the byte of the demand map was placed before its completion. Old events are taken
//!   before the queues are armed: they tell of nothing that the look does not find.
//! - *What is sent.* The queues of what the server sends are armed and looked at in the same way: a connection that fails
//!   wakes it. Not for "solicited" completions only: not every device counts those with an error among them, and
//!   who rests has next to none outstanding.
//! - *News and wakers* ring the bell after what they are about was stored. It is hushed only after a sleep, and then
//!   everything is looked at; a ring that comes before a sleep ends it at once.
//!
//! # When a receive is missing
//!
//! Each connection has a few of them before its peer can send, and another for each that was taken. A client has one such
//! WRITE under way until the server has seen its entry, so it finds a receive however long the server is stopped or busy.
//! One that finds none is not carried out: the device asks the client's to send it again a little later, for as long as it
//! takes ([`qp`](super::qp)). Only a client that breaks the protocol comes to that.
//!
//! What is received before this thread has heard of a connection is replaced when it has. A seat is given out again only
//! after its queue pair is destroyed and what it received was taken: so the queues never hold more than they were made for.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rdma_core_sys::{IBV_WC_SUCCESS, ibv_poll_cq, ibv_wc};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lanes::Lanes;
use super::nic::Ground;
use super::resources::{Channel, Queues};
use crate::bell::Bell;
use crate::fabric::Slept;

/// Completions that are taken together.
const WCS: usize = 32;
/// The queues of what was received are looked at every so many rounds, besides before a sleep.
const ROUNDS: u32 = 4;

/// What wakes a server.
#[derive(Debug)]
pub(super) struct Alarm {
    channel: Arc<Channel>,
    queues: Box<[Queues]>,
    /// Completions that one of the queues may hold.
    entries: usize,
    bell: Arc<Bell>,
    rounds: u32,
}

impl Alarm {
    pub(super) fn new(ground: &Ground, channel: Arc<Channel>, bell: Arc<Bell>) -> Self {
        Self {
            channel,
            queues: ground.queues.clone(),
            entries: ground.plan.entries_received() as usize,
            bell,
            rounds: 0,
        }
    }

    pub(super) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// A round of the server.
    #[inline]
    pub(super) fn round(&mut self, lanes: &mut Lanes) {
        self.rounds += 1;
        if self.rounds == ROUNDS {
            self.rounds = 0;
            self.take_received(lanes);
        }
    }

    /// Whatever was received by now is taken, and replaced. False if there may be more: somebody sends faster than that.
    pub(super) fn take_received(&self, lanes: &mut Lanes) -> bool {
        self.queues.iter().all(|queues| {
            let polls = self.entries / WCS + 1;
            (0..polls).any(|_| take_some(queues, lanes) < WCS)
        })
    }

    /// Sleeps until it is woken, or the time is over. `found` says whether there is something to do already.
    pub(super) fn sleep(
        &self,
        lanes: &mut Lanes,
        timeout: Duration,
        found: impl FnOnce(&Lanes) -> bool,
    ) -> Slept {
        self.channel.take_events();
        let armed = self
            .queues
            .iter()
            .all(|it| it.receives.arm() && it.sends.arm());
        // A device that cannot do that has failed, or is about to be told of.
        if !armed || !self.take_received(lanes) || lanes.has_completion() || found(lanes) {
            return Slept::NotAtAll;
        }
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [
            PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
        ];
        let slept = match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Slept::TimedOut,
            // An error is a signal.
            Ok(_) | Err(_) => Slept::Woken,
        };
        if !fds[1].revents().is_empty() {
            self.bell.hush();
        }
        slept
    }
}

/// Takes what was received of some connections, and has each receive again. Says how many there were.
fn take_some(queues: &Queues, lanes: &mut Lanes) -> usize {
    let mut wcs = [ibv_wc::default(); WCS];
    // SAFETY: the queue is live, and there is room for so many.
    let count = unsafe { ibv_poll_cq(queues.receives.as_ptr(), WCS as i32, wcs.as_mut_ptr()) };
    // A queue that cannot be polled any more is told of by an event.
    let taken = usize::try_from(count).unwrap_or(0).min(WCS);
    for wc in &wcs[..taken] {
        // The others are what a queue pair that failed gives back.
        if wc.status == IBV_WC_SUCCESS {
            lanes.receive(wc.wr_id as u32);
        }
    }
    taken
}
