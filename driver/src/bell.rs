//! A descriptor by which any thread wakes one that waits for descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// See the [module](self). It stays readable from when it is rung until it is hushed.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    pub(crate) fn ring(&self) {
        // Non-blocking; a full counter (EAGAIN) wakes as well.
        while rustix::io::write(&self.0, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Who was rung for is awake. What it then looks at includes what was there before any ring that this takes back.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        while rustix::io::read(&self.0, &mut count) == Err(Errno::INTR) {}
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
