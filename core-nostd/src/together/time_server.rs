//! The server whose clock is the common one.

use super::clock::{COMMON_MAX_NS, Rotation, SliceClock};
use super::wire::{ANSWER_BYTES, Malformed, TimeAnswer, TimeRequest};

/// Tells followers the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeServer {
    incarnation: u64,
    rotation: Rotation,
}

impl TimeServer {
    /// A time server. `incarnation` is another one each time that it starts, a random number say, so that followers
    /// do not take its clock for the one before; 0 counts as 1.
    pub fn new(incarnation: u64, rotation: Rotation) -> Self {
        Self {
            incarnation: incarnation.max(1),
            rotation,
        }
    }

    /// Its own clock, for its own engine.
    pub fn clock(&self) -> SliceClock {
        SliceClock::own(self.rotation)
    }

    /// The answer to a request that came at `received_ns`, if it is sent at `now_ns`; both are on its clock, and at
    /// most [`COMMON_MAX_NS`].
    ///
    /// The closer `received_ns` is to when the request really came, and `now_ns` to when the answer really goes out,
    /// the better do followers know the time.
    ///
    /// # Errors
    ///
    /// What is wrong with the request.
    pub fn answer(
        &self,
        request: &[u8],
        received_ns: u64,
        now_ns: u64,
    ) -> Result<[u8; ANSWER_BYTES], Malformed> {
        let TimeRequest { number } = TimeRequest::decode(request)?;
        let now_ns = now_ns.min(COMMON_MAX_NS);
        let answer = TimeAnswer {
            number,
            incarnation: self.incarnation,
            now_ns,
            held_ns: now_ns.saturating_sub(received_ns),
            rotation: self.rotation,
        };
        Ok(answer.encode())
    }
}
