//! How much of a core this process takes.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use scalerpc::{Request, Status};

pub fn echo(request: Request<'_>, response: &mut [u8]) -> Result<usize, Status> {
    response[..request.bytes.len()].copy_from_slice(request.bytes);
    Ok(request.bytes.len())
}

/// The time that this process has run on any core.
fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a rusage, which the kernel fills in.
    let outcome = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(outcome, 0);
    // SAFETY: zeroed bytes are a valid rusage already.
    let usage = unsafe { usage.assume_init() };
    let time = |it: libc::timeval| {
        Duration::from_secs(it.tv_sec as u64) + Duration::from_micros(it.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Runs something that takes a while; the part of a core that this process took.
pub fn load(what: impl FnOnce()) -> f64 {
    let (start, before) = (Instant::now(), cpu_time());
    what();
    (cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}
