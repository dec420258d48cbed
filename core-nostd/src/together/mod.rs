//! Many servers whose slices keep step.
//!
//! A client that calls several servers at once waits for the slowest answer. If its group's slices at these servers
//! drift apart, each call waits for another server's rotation. So one server keeps time, and the others follow
//! (section 3.5 of the paper): all of them divide a *common clock* into *beats* of one slice each, and so many
//! beats make a *rotation*. A connection may be given a beat of the rotation; its group has the right of way in that
//! beat, at every server ([`ServerEngine::set_slice_clock`](crate::ServerEngine::set_slice_clock),
//! [`set_beat`](crate::ServerEngine::set_beat)).
//!
//! The common clock is that of the time server. A [`Follower`] asks it now and then, and notes when it asked (T1) and
//! when the answer came (T4). The [`TimeServer`] says what its clock showed when it answered (T3), and for how long it
//! held the request (d). Of the round trip T4 - T1 - d, half is taken to be the way back, so at T4 the common clock
//! shows T3 + (T4 - T1 - d) / 2; the truth is off by that half at most, however the delays are shared out. A beat that
//! ends D after the answer ends D - (T4 - T1 - d) / 2 after T4: the paper's formula.
//!
//! Messages are the payloads of ordinary calls of the method [`TIME_METHOD`], so that any back end carries them. Time
//! is in nanoseconds on any monotonic clock of the host; all arithmetic is in integers.

mod clock;
mod follower;
mod samples;
mod time_server;
mod wide;
mod wire;

pub use clock::{
    BEAT_MAX_NS, BEAT_MIN_NS, BEATS_MAX, Beat, COMMON_MAX_NS, DRIFT_MAX_PPB, Rotation,
    RotationError, SLEW_PPB, SliceClock,
};
pub use follower::{
    Follower, FollowerConfig, FollowerConfigError, FollowerCounters, Refused, Status, Taken,
};
pub use time_server::TimeServer;
pub use wire::{ANSWER_BYTES, Malformed, REQUEST_BYTES, TimeAnswer, TimeRequest};

/// The method of the calls with which followers ask for the time. A server that keeps time does not use it for
/// anything else. It is the last one that a handler sees: those from 0xFF00 on are the library's.
pub const TIME_METHOD: u16 = 0xFEFF;
