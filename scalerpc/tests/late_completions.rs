//! A back end whose completions come after the answers: the memory of a request is in use until then.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scalerpc::{CallError, ClientOptions, ClientSet, Request, Server};
use scalerpc_core::client::ClientConn;
use scalerpc_core::memory::Region;
use scalerpc_core::post::{Completion, Limits, ReadWr, WriteWr};
use scalerpc_driver::shm::ShmClient;
use scalerpc_driver::{Fabric, FabricEvent, PostError, Revocation};

/// Polls for which a completion is kept back.
const LATE: u32 = 2_000;
const CALLS: u32 = 300;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Shared memory, but nothing goes inline, and completions are late.
struct Late {
    shm: ShmClient,
    kept: VecDeque<Completion>,
    polls: u32,
}

// SAFETY: all of it is the inner one's; to keep a source untouched for longer than needed is allowed.
unsafe impl Fabric for Late {
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
}

fn connect(path: &std::path::Path) -> ClientSet<Late> {
    let shm = ShmClient::connect(path, 1, ClientOptions::default()).unwrap();
    let geometry = *shm.geometry();
    let conn = ClientConn {
        connection: 0,
        seat: shm.seat(0),
        owner: shm.owner(0),
    };
    let late = Late {
        shm,
        kept: VecDeque::new(),
        polls: 0,
    };
    ClientSet::over(late, geometry, &[conn]).unwrap()
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
