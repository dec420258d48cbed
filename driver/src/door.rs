//! What wakes the control thread of a server, and how new clients get in.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::bell::Bell;

/// Tokens of the descriptor by which other threads wake this one, and of the listener.
pub(crate) const WAKE: u64 = 0;
pub(crate) const LISTENER: u64 = 1;

/// After a failed accept (out of descriptors, say) the listener rests for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// A server's epoll set; its listener is in it while clients are let in.
pub(crate) struct Door<L> {
    epoll: OwnedFd,
    listener: L,
    open: bool,
    rests_until: Option<Instant>,
}

impl<L: AsFd> Door<L> {
    /// An open door. The listener does not block.
    pub(crate) fn new(wake: &Bell, listener: L) -> Result<Self, Errno> {
        let mut door = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener,
            open: false,
            rests_until: None,
        };
        door.watch(wake, WAKE)?;
        door.watch(&door.listener, LISTENER)?;
        door.open = true;
        Ok(door)
    }

    pub(crate) fn listener(&self) -> &L {
        &self.listener
    }

    /// Waits for events, which replace those that are there.
    pub(crate) fn wait(&self, events: &mut Vec<Event>, pause: Option<Duration>) {
        events.clear();
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        match epoll::wait(&self.epoll, spare_capacity(events), pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Somebody else closed the descriptor: do not spin.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }

    pub(crate) fn watch(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
    }

    /// Wakes up when a stream that is watched can take more, too.
    pub(crate) fn watch_writable(
        &self,
        fd: impl AsFd,
        token: u64,
        writable: bool,
    ) -> Result<(), Errno> {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, writable);
        epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags)
    }

    /// A closed descriptor leaves the set by itself only if no fork has made another one of it.
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Until when no client is let in, because of a failure.
    pub(crate) fn rests_until(&mut self, now: Instant) -> Option<Instant> {
        self.rests_until = self.rests_until.filter(|until| *until > now);
        self.rests_until
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.rests_until.is_some()
    }

    /// No client could be let in: try again later.
    pub(crate) fn rest(&mut self) {
        self.rests_until = Some(Instant::now() + PAUSE);
    }

    /// Lets clients in, unless the door rests, or keeps them in the backlog.
    pub(crate) fn set_open(&mut self, open: bool) {
        let open = open && !self.is_resting();
        if open == self.open {
            return;
        }
        let done = match open {
            true => self.watch(&self.listener, LISTENER),
            false => epoll::delete(&self.epoll, &self.listener),
        };
        match done {
            Ok(()) => self.open = open,
            // Out of memory or of watches.
            Err(_) => self.rest(),
        }
    }
}
