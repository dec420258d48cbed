//! A back end whose completions come after the answers: the memory of a message is in use until then.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use scalerpc::{CallError, ClientOptions, ClientSet, Later, Reply, Request, Server, Wait};
use scalerpc_core::client::ClientConn;
use scalerpc_core::memory::Region;
use scalerpc_core::post::{Completion, Limits, ReadWr, WriteWr};
use scalerpc_driver::shm::{ServerOptions, ShmClient, ShmServer};
use scalerpc_driver::{Fabric, FabricEvent, PostError, Revocation, Slept};

/// Polls for which a completion is kept back.
const LATE: u32 = 2_000;
const CALLS: u32 = 300;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Shared memory, but nothing goes inline, and completions are late.
struct Late<F> {
    shm: F,
    kept: VecDeque<Completion>,
    polls: u32,
    /// Calls that are answered as this end falls asleep; `None`: it never does.
    answered_in_sleep: Option<Arc<Mutex<Vec<Later>>>>,
}

// SAFETY: all of it is the inner one's; to keep a source untouched for longer than needed is allowed.
unsafe impl<F: Fabric> Fabric for Late<F> {
    fn limits(&self) -> Limits {
        Limits {
            inline_max: 0,
            ..self.shm.limits()
        }
    }

    fn exposed(&self) -> &Region {
        self.shm.exposed()
    }

    fn private(&self) -> &Region {
        self.shm.private()
    }

    fn post_write(&mut self, wr: &WriteWr) -> Result<(), PostError> {
        self.shm.post_write(wr)
    }

    fn post_read(&mut self, wr: &ReadWr) -> Result<(), PostError> {
        self.shm.post_read(wr)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        while let Some(completion) = self.shm.poll_completion() {
            self.kept.push_back(completion);
        }
        self.polls += 1;
        (self.polls % LATE == 0).then(|| self.kept.pop_front())?
    }

    fn poll_event(&mut self) -> Option<FabricEvent> {
        self.shm.poll_event()
    }

    fn revoke_all(&mut self, revocations: &mut [Revocation]) {
        self.shm.revoke_all(revocations);
    }

    fn close(&mut self, connection: u32) {
        self.shm.close(connection);
    }

    fn release(&mut self, seat: u32) {
        self.shm.release(seat);
    }

    fn can_sleep(&self) -> bool {
        self.answered_in_sleep.is_some()
    }

    fn sleep(&mut self, timeout: Duration, found: &dyn Fn(&Region) -> bool) -> Slept {
        let answered = self.answered_in_sleep.as_ref().unwrap();
        let answered = std::mem::take(&mut *answered.lock().unwrap());
        answered.into_iter().for_each(|later| later.answer(1));
        self.shm.sleep(timeout, found)
    }

    fn waker(&self) -> Waker {
        // Nobody is woken: who falls asleep has to look.
        Waker::noop().clone()
    }
}

fn late<F>(shm: F) -> Late<F> {
    Late {
        shm,
        kept: VecDeque::new(),
        polls: 0,
        answered_in_sleep: None,
    }
}

fn connect(path: &std::path::Path) -> ClientSet<Late<ShmClient>> {
    let shm = ShmClient::connect(path, 1, ClientOptions::default()).unwrap();
    let geometry = *shm.geometry();
    let conn = ClientConn {
        connection: 0,
        seat: shm.seat(0),
        owner: shm.owner(0),
    };
    ClientSet::over(late(shm), geometry, &[conn]).unwrap()
}

#[test]
fn a_call_that_is_waited_for_waits_for_its_memory_too() {
    for window in [1, 2, 4] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let mut server = Server::builder().window(window).listen(&path).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                server.run(&stop, &mut |request: Request<'_>, response: &mut [u8]| {
                    response[..request.bytes.len()].copy_from_slice(request.bytes);
                    Ok(request.bytes.len())
                });
            });
            let mut set = connect(&path);
            // Late is what takes many polls.
            set.set_wait(Wait::Yield);
            let mut failed = None;
            for call in 0..CALLS {
                let bytes = call.to_le_bytes();
                match set.call(0, 1, &bytes, TIMEOUT) {
                    Ok(answer) => assert_eq!(answer, bytes),
                    Err(error) => failed = failed.or(Some((call, error))),
                }
            }
            // Calls that are not waited for are refused for a while, and accepted after some polls.
            let (mut sent, mut ended, mut refused) = (0, 0, 0);
            while ended < CALLS {
                match set.call_async(0, 1, b"x") {
                    Ok(_) => sent += 1,
                    Err(error) => {
                        refused += u32::from(sent - ended < window);
                        failed =
                            failed.or((error != CallError::WindowFull).then_some((sent, error)));
                    }
                }
                ended += u32::from(set.poll_completion().is_some());
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(failed, None, "window {window}");
            assert!(refused > 0, "nothing was late");
        });
    }
}

/// More answers of other threads than the server has send slots free.
#[test]
fn answers_that_find_no_send_slot_wait_for_one() {
    const CONNECTIONS: u32 = 16;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let builder = Server::builder().clients_max(CONNECTIONS).group_size(2);
    let builder = builder.window(4).deferred_max(256);
    let geometry = builder.geometry().unwrap();
    let calls = CONNECTIONS * geometry.window();
    assert!(
        calls > 2 * geometry.send_slots(),
        "{} slots",
        geometry.send_slots()
    );
    let shm = ShmServer::listen(&path, geometry, ServerOptions::default()).unwrap();
    let mut server = builder.build(geometry, late(shm)).unwrap();
    let mut set = ClientSet::connect(&path, CONNECTIONS).unwrap();
    let (mut kept, mut now_ns) = (Vec::<Later>::new(), 0);
    let mut ended = vec![Vec::new(); CONNECTIONS as usize];
    for connection in 0..CONNECTIONS {
        for _ in 0..geometry.window() {
            set.call_async(connection, 1, b"x").unwrap();
        }
    }
    let mut stalls = None;
    while ended.iter().map(Vec::len).sum::<usize>() < calls as usize {
        now_ns += 1_000;
        server.poll(now_ns, &mut |request: Request<'_>, _: &mut [u8]| -> Reply {
            let (later, postponed) = request.later().unwrap();
            kept.push(later);
            postponed.into()
        });
        if kept.len() == calls as usize {
            stalls = Some(server.counters().stalls);
            kept.drain(..).for_each(|later| later.answer(0));
        }
        while let Some(it) = set.poll_completion() {
            assert_eq!(it.result, Ok(&b""[..]));
            ended[it.connection as usize].push(it.call.0);
        }
    }
    assert!(
        server.counters().stalls > stalls.unwrap(),
        "none has waited"
    );
    for calls in &mut ended {
        calls.sort_unstable();
        assert!(calls.iter().copied().eq(1..=u64::from(geometry.window())));
    }
    assert_eq!(server.calls_in_flight(), 0);
}

/// The answer comes after the server has looked for one and before it sleeps, and nobody wakes it.
#[test]
fn an_answer_that_comes_as_the_server_falls_asleep_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let builder = Server::builder().clients_max(1).deferred_max(2);
    let geometry = builder.geometry().unwrap();
    let shm = ShmServer::listen(&path, geometry, ServerOptions::default()).unwrap();
    let (mut late, kept) = (late(shm), Arc::new(Mutex::new(Vec::new())));
    late.answered_in_sleep = Some(Arc::clone(&kept));
    let mut server = builder.build(geometry, late).unwrap();
    server.set_rest_after(Some(Duration::from_millis(1)));
    let mut set = ClientSet::connect(&path, 1).unwrap();
    set.call_async(0, 1, b"x").unwrap();
    let mut handler = |request: Request<'_>, _: &mut [u8]| -> Reply {
        let (later, postponed) = request.later().unwrap();
        kept.lock().unwrap().push(later);
        postponed.into()
    };
    let mut now_ns = 0;
    // Until the end of the tenancy is done with, too.
    let mut rests = 0;
    while rests < 1_000 {
        rests += u32::from(server.calls_in_flight() == 1 && server.rests());
        now_ns += 1_000;
        server.poll(now_ns, &mut handler);
        assert!(set.poll_completion().is_none());
    }
    assert!(!server.wait(now_ns, Duration::MAX), "it does not sleep");
    assert!(kept.lock().unwrap().is_empty() && !server.rests());
    assert!(!server.wait(now_ns, Duration::MAX), "nor does it now");
    assert_eq!(server.wait_counters().sleeps, 0);
    while set.poll_completion().is_none() {
        now_ns += 1_000;
        server.poll(now_ns, &mut handler);
    }
}
