//! What shared memory needs: sealed memory, hugepages if possible, sockets, and to notice that a process is gone.

use std::path::Path;
use std::time::Duration;

use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use scalerpc::{Client, Geometry, GeometryConfig, PagePolicy, Server};
use scalerpc_hugepage::{HugeMemory, HugepagePool, MemoryError, hugepage_pool};

use super::finding::Findings;
use super::trial;
use crate::options;
use crate::report::{self, grouped};

/// What README.md says is needed.
const KERNEL_MIN: (u32, u32) = (5, 3);
/// Since then a socket gives a descriptor of the process at its other end.
const KERNEL_PEER_PIDFD: (u32, u32) = (6, 5);
/// Fewer open files are not enough for a demo.
const FILES_MIN: u64 = 64;
/// With this many there is room for some hundred client processes.
const FILES_WISHED: u64 = 1024;
pub(super) fn check() -> Findings {
    let mut findings = Findings::default();
    let version = kernel(&mut findings);
    cpus(&mut findings);
    memory(&mut findings);
    hugepages(&mut findings);
    processes(&mut findings, version);
    open_files(&mut findings);
    calls(&mut findings);
    findings
}

/// Bytes that a server with the default sizes exposes.
pub(super) fn server_bytes() -> u64 {
    Geometry::new(GeometryConfig::default()).map_or(0, |geometry| options::server_memory(&geometry))
}

/// The kernel's version, as it names itself.
pub(super) fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

fn kernel(findings: &mut Findings) -> Option<(u32, u32)> {
    let release = kernel_release();
    let version = parse_version(&release);
    let found = format!("Linux {release}");
    match version {
        Some(version) if version < KERNEL_MIN => {
            let (major, minor) = KERNEL_MIN;
            let fix = format!("run Linux {major}.{minor} or newer");
            findings.fail("kernel", found, fix.as_str());
        }
        _ => findings.ok("kernel", found),
    }
    version
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn cpus(findings: &mut Findings) {
    match std::thread::available_parallelism() {
        Ok(cpus) if cpus.get() > 1 => findings.ok("CPUs", format!("{cpus} for this process")),
        Ok(_) => findings.warn(
            "CPUs",
            "one for this process: server and clients poll in turns, which costs a switch of processes for each call",
            "give it two or more (taskset, cpuset, or the container's limit)",
        ),
        // Nothing depends on it.
        Err(error) => findings.ok("CPUs", format!("number not known: {error}")),
    }
}

fn memory(findings: &mut Findings) {
    let made = HugeMemory::builder("scalerpc-doctor", 1 << 20)
        .policy(PagePolicy::Never)
        .build();
    match made {
        Ok(_) => findings.ok("memory", "a memfd can be made, filled and sealed"),
        Err(error) => findings.fail("memory", error, None),
    }
}

fn hugepages(findings: &mut Findings) {
    let pool = match hugepage_pool() {
        Ok(pool) => pool,
        Err(error) => return findings.warn("hugepages", format!("{error}; normal pages do"), None),
    };
    let wanted = server_bytes();
    let made = HugeMemory::builder("scalerpc-doctor", wanted as usize)
        .policy(PagePolicy::Require)
        .build();
    let pages = pages_line(&pool, wanted);
    match made {
        Ok(_) => findings.ok("hugepages", pages),
        Err(MemoryError::HugepagesUnavailable(shortage)) => findings.warn(
            "hugepages",
            format!("{pages}; normal pages do, with more TLB misses"),
            shortage.remedy.to_string().as_str(),
        ),
        Err(error) => findings.warn("hugepages", format!("{error}; normal pages do"), None),
    }
}

fn pages_line(pool: &HugepagePool, wanted: u64) -> String {
    let size = pool.page_bytes as u64;
    format!(
        "{} of {} pages of {} are free; a server of the default size takes {}",
        grouped(pool.available()),
        grouped(pool.total),
        report::bytes(pool.page_bytes),
        wanted.div_ceil(size),
    )
}

fn processes(findings: &mut Findings, version: Option<(u32, u32)>) {
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) if version.is_none_or(|version| version >= KERNEL_PEER_PIDFD) => {
            findings.ok("processes", "the end of a client's process is noticed (pidfd)");
        }
        Ok(_) => findings.ok(
            "processes",
            "the end of a client's process is noticed (pidfd, by its id: the kernel is older than 6.5)",
        ),
        Err(error) => findings.warn(
            "processes",
            format!(
                "the end of a client's process is not noticed: pidfd_open: {error}; what it held stays held"
            ),
            "allow pidfd_open in the container's seccomp profile, or run Linux 5.3 or newer",
        ),
    }
}

fn open_files(findings: &mut Findings) {
    let limit = getrlimit(Resource::Nofile);
    let unlimited = u64::MAX;
    let (now, most) = (
        limit.current.unwrap_or(unlimited),
        limit.maximum.unwrap_or(unlimited),
    );
    let found = format!("{} may be open, {} if asked for", count(now), count(most));
    let fix = format!("ulimit -Hn {FILES_WISHED}   (as root)");
    if most < FILES_MIN {
        findings.fail("files", found, fix.as_str());
    } else if most < FILES_WISHED {
        let found = format!("{found}: each client process takes some");
        findings.warn("files", found, fix.as_str());
    } else {
        findings.ok("files", found);
    }
}

fn count(number: u64) -> String {
    if number == u64::MAX {
        return "any number".to_owned();
    }
    grouped(number)
}

/// A server, and a client that calls it.
fn calls(findings: &mut Findings) {
    let dir = match tempfile::Builder::new()
        .prefix("scalerpc-doctor-")
        .tempdir()
    {
        Ok(dir) => dir,
        Err(error) => {
            let found = format!("no folder for a socket: {error}");
            let fix = "set TMPDIR to a folder that is there and may be written to";
            return findings.fail("calls", found, fix);
        }
    };
    trial::tell(findings, shortest_call(&dir.path().join("s")));
}

fn shortest_call(socket: &Path) -> Result<(usize, Duration), String> {
    let builder = Server::builder()
        .clients_max(2)
        .page_policy(PagePolicy::Never);
    let server = builder.listen(socket).map_err(|error| error.to_string())?;
    trial::shortest_call(server, || Client::connect(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_all_distributions_are_read() {
        assert_eq!(parse_version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(parse_version("5.3-rc1"), Some((5, 3)));
        assert_eq!(parse_version("4.18.0-553.el8_10.x86_64"), Some((4, 18)));
        assert_eq!(parse_version("unknown"), None);
        assert!(
            parse_version("5.15.0") > Some(KERNEL_MIN) && parse_version("4.19") < Some(KERNEL_MIN)
        );
    }
}
