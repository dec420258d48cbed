//! The server's role.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use scalerpc::{Backoff, Clock, Mapping, PagePolicy, Request, Server, ServerBuilder, Status};

use super::calls::{Name, Rng};
use super::census;
use super::ledger::Ledger;
use super::process::{Commands, say};

/// More than ever are taken at once, so that a client is never refused for those who are being buried.
pub const SEATS: u32 = 128;

/// Small groups and short slices, so that the server switches all the time; everything else differs from
/// one server to the next.
fn builder(rng: &mut Rng, huge: bool) -> ServerBuilder {
    let mapping = match rng.below(8) {
        0 => Mapping::Static,
        _ => Mapping::Virtual,
    };
    Server::builder()
        .clients_max(SEATS)
        .group_size(rng.pick(&[1, 2, 3, 5]))
        .window(rng.pick(&[1, 2, 4, 8]))
        // A signal hits a long copy more often.
        .request_max_bytes(rng.pick(&[32, 100, 700, 9000]))
        .response_max_bytes(rng.pick(&[32, 200, 5000]))
        .time_slice(Duration::from_micros(rng.pick(&[20, 100, 300])))
        .revoke_after(Duration::from_micros(rng.pick(&[20, 200, 1000])))
        .copy_requests(rng.one_in(3))
        .mapping(mapping)
        .page_policy(if huge {
            PagePolicy::Prefer
        } else {
            PagePolicy::Never
        })
}

/// Runs calls, and sees to it that each runs once, in turn and with its own bytes.
struct Checker {
    ledger: Ledger,
    /// By seat: the last call.
    last: Vec<Option<Name>>,
    /// Connections that have made a call.
    seen: HashSet<(u64, u64)>,
    request_max: usize,
    /// Every other server is.
    is_slow: bool,
    rng: Rng,
}

impl Checker {
    fn run(&mut self, request: Request<'_>, response: &mut [u8]) -> Result<usize, Status> {
        let name = Name::of(request.bytes).unwrap();
        assert_eq!(
            request.bytes,
            name.request(self.request_max),
            "{name:?} came with other bytes"
        );
        assert_eq!(request.method, name.method(), "{name:?}");
        let last = &mut self.last[request.seat as usize];
        let identity = (name.client, name.connection);
        match *last {
            Some(before) if (before.client, before.connection) == identity => {
                // Between them may be calls that were cancelled, or too late to run.
                assert!(name.number > before.number, "{name:?} ran after {before:?}");
            }
            _ => {
                assert!(self.seen.insert(identity), "{name:?} ran on another seat");
            }
        }
        *last = Some(name);
        self.ledger.enter(request.seat, name);
        if self.is_slow && self.rng.one_in(4) {
            self.dawdle();
        }
        let answer = name.answer(name.number, response.len());
        response[..answer.len()].copy_from_slice(&answer);
        Ok(answer.len())
    }
}

impl Checker {
    /// So that a server that is killed has often a call under way, which has run for its ledger but is not
    /// answered.
    fn dawdle(&mut self) {
        let end = Instant::now() + Duration::from_micros(self.rng.below(1000));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}

fn report(server: &Server) {
    let engine = server.counters();
    let driver = server.fabric().counters();
    let memory = server.memory_report();
    say(
        "report",
        &[
            ("connections", engine.connections),
            ("quarantined", engine.quarantined_now),
            ("seats_free", u64::from(driver.seats_free)),
            ("links", driver.links_open),
            ("client_bytes", memory.client_bytes),
            ("violations", engine.violations + driver.violations),
            ("refused", driver.refused),
            ("huge", u64::from(memory.backing.is_huge())),
            ("calls", engine.calls),
            ("staged", engine.staged_calls),
            ("direct", engine.direct_writes),
            ("switches", engine.switches),
            ("zones_quiet", engine.zones_quiet),
            ("zones_revoked", engine.zones_revoked),
            ("zones_fenced", engine.zones_fenced),
            ("writes_under_way", driver.revocations_pending),
            ("failed_posts", engine.failures),
            ("links_admitted", driver.links_admitted),
            ("links_abandoned", driver.abandoned),
        ],
    );
}

/// Serves until it is told to stop.
pub fn play(dir: &Path, generation: u64, seed: u64, huge: bool) -> ! {
    let commands = Commands::listen();
    let before = census::of("self");
    let mut rng = Rng(seed ^ generation);
    let ledger = Ledger::create(dir, generation);
    let mut server = builder(&mut rng, huge).listen(dir.join("s")).unwrap();
    let mut checker = Checker {
        ledger,
        last: vec![None; SEATS as usize],
        seen: HashSet::new(),
        request_max: server.geometry().request_max_bytes(),
        is_slow: generation % 2 == 1,
        rng,
    };
    say("ready", &[]);
    let clock = Clock::start();
    let mut backoff = Backoff::default();
    loop {
        let mut handler =
            |request: Request<'_>, response: &mut [u8]| checker.run(request, response);
        if server.poll(clock.now_ns(), &mut handler) == 0 {
            backoff.idle();
        } else {
            backoff.busy();
        }
        match commands.next().as_deref() {
            None => {}
            Some("report") => report(&server),
            Some("stop") => break,
            Some(other) => panic!("{other}"),
        }
    }
    drop(server);
    drop(checker);
    let after = census::of("self");
    assert_eq!(
        (after.descriptors, after.memory_maps),
        (before.descriptors, 0),
        "the server has not given everything back"
    );
    say("stopped", &[]);
    commands.end()
}

/// A server is refused a path that another one has.
pub fn is_refused(dir: &Path) -> bool {
    let taken = Server::builder().listen(dir.join("s"));
    let Err(scalerpc::SetupError::Shm(error)) = taken else {
        return false;
    };
    matches!(error, scalerpc_driver::shm::SetupError::AlreadyInUse { .. })
}
