//! Processes and signals: the few things for which the standard library has no safe call.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Signal, WaitOptions, WaitStatus, getpid, getppid, getrlimit, kill_process,
    set_parent_process_death_signal, setrlimit, waitpid,
};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Exit code of a child that panicked.
const PANICKED: i32 = 101;

/// Runs `child` in a new process, whose exit code it returns; the parent gets its id.
///
/// The child shares everything that is loaded, copied on write. It is killed when this process ends,
/// however that happens; Ctrl-C, which goes to all processes of a terminal, is left to this process.
///
/// # Errors
///
/// Where there are other threads, or the system has no room for another process.
pub(crate) fn fork(child: impl FnOnce() -> i32) -> io::Result<Pid> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other(
            "there are threads that a child would not have",
        ));
    }
    let parent = getpid();
    // SAFETY: this is the only thread, as was just seen, and only this thread could start another. So no
    // lock is held by a thread that the child lacks, and the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let ready = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
            // The parent may have ended before that call.
            if !ready || getppid() != Some(parent) {
                std::process::exit(PANICKED);
            }
            leave_signals_to_the_parent();
            // Neither unwinding nor returning may lead the child into what the parent does next.
            let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(PANICKED);
            std::process::exit(code)
        }
        pid => Pid::from_raw(pid).ok_or_else(|| io::Error::other("a process without an id")),
    }
}

fn leave_signals_to_the_parent() {
    // SAFETY: neither disposition runs any code of this program.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
}

/// A flag that Ctrl-C and SIGTERM set. When they come again, they end the process.
///
/// # Errors
///
/// Where the system refuses a signal handler.
pub(crate) fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // First the one that looks, then the one that sets: so only the second signal ends it.
        let code = 128 + signal;
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Ended {
    /// True if somebody else ended it, and not a fault in it.
    pub(crate) fn is_from_outside(self) -> bool {
        let Self::Killed(signal) = self else {
            return false;
        };
        matches!(
            signal,
            libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP
        )
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Killed(libc::SIGKILL) => f.write_str("was killed (SIGKILL)"),
            Self::Killed(libc::SIGTERM) => f.write_str("was ended (SIGTERM)"),
            Self::Killed(signal) => write!(f, "was ended by signal {signal}"),
            Self::Exited(PANICKED) => f.write_str("panicked"),
            Self::Exited(code) => write!(f, "ended with exit code {code}"),
        }
    }
}

/// Waits for a child to end.
pub(crate) fn wait(pid: Pid) -> Ended {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return ended(status),
            Err(rustix::io::Errno::INTR) | Ok(None) => {}
            // It has been waited for already, which nobody else does.
            Err(_) => return Ended::Exited(0),
        }
    }
}

/// Waits at most this long for a child to end; `None` if it goes on.
pub(crate) fn wait_at_most(pid: Pid, time: Duration) -> Option<Ended> {
    let until = Instant::now() + time;
    loop {
        match waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return Some(ended(status)),
            Ok(None) if Instant::now() >= until => return None,
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Some(Ended::Exited(0)),
        }
    }
}

fn ended(status: WaitStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (_, Some(signal)) => Ended::Killed(signal),
        (code, None) => Ended::Exited(code.unwrap_or(0)),
    }
}

/// Kills a child; one that has ended already is left alone.
pub(crate) fn kill(pid: Pid) {
    // Until it is waited for its id is not used again, so this can only fail for one that has ended.
    let _ = kill_process(pid, Signal::KILL);
}

/// True if the process is stopped (SIGSTOP).
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // The state follows the name, which is in parentheses and may contain anything.
    let state = stat.ok().and_then(|stat| {
        let (_, rest) = stat.rsplit_once(") ")?;
        rest.chars().next()
    });
    matches!(state, Some('T' | 't'))
}

/// Makes sure that this many files can be open at once.
///
/// # Errors
///
/// Where the system's limit for this process is lower; the text says what to run.
pub(crate) fn allow_open_files(needed: u64) -> Result<(), String> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    limit.current = Some(needed);
    let maximum = limit.maximum;
    if maximum.is_none_or(|maximum| maximum >= needed) && setrlimit(Resource::Nofile, limit).is_ok()
    {
        return Ok(());
    }
    Err(format!(
        "{needed} open files are needed, and at most {} are allowed: use fewer processes, or raise \
         the limit (ulimit -Hn {needed}, as root)",
        maximum.unwrap_or(u64::MAX),
    ))
}

/// Memory that can be had without swapping, in bytes; `None` where the system does not say.
pub(crate) fn available_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
