//! Two servers over shared memory that keep step, and clients of both.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use scalerpc::together::{BEAT_METHOD, FollowerConfig, InStep, Rotation, TimeFollower, TimeStatus};
use scalerpc::{CallError, Client, Clock, Handler, Request, Server, Status};

const TIME_METHOD: u16 = scalerpc_core::together::TIME_METHOD;
const ECHO: u16 = 1;

fn echo(request: Request<'_>, response: &mut [u8]) -> Result<usize, Status> {
    response[..request.bytes.len()].copy_from_slice(request.bytes);
    Ok(request.bytes.len())
}

fn rotation() -> Rotation {
    Rotation::new(200_000, 3).unwrap()
}

fn listen(path: &Path) -> Server {
    let builder = Server::builder().clients_max(16).group_size(2).window(4);
    builder.listen(path).unwrap()
}

/// A server, and what goes with it; one thread polls them all.
struct End<H: Handler> {
    server: Server,
    handler: InStep<H>,
    clock: Clock,
}

impl<H: Handler> End<H> {
    fn turn(&mut self) {
        self.server.poll(self.clock.now_ns(), &mut self.handler);
        self.handler.apply(&mut self.server);
    }

    /// A call, from beginning to end.
    fn call(
        &mut self,
        client: &mut Client,
        method: u16,
        request: &[u8],
    ) -> Result<Vec<u8>, CallError> {
        client.call_async(method, request).unwrap();
        loop {
            self.turn();
            if let Some(done) = client.poll_completion() {
                return done.result.map(<[u8]>::to_vec);
            }
        }
    }
}

#[test]
fn clients_of_two_servers_have_the_same_beats_and_all_their_answers() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("time"), dir.path().join("other")];
    let clock = Clock::start();
    let mut time = End {
        server: listen(&paths[0]),
        handler: InStep::time_server(echo, clock, rotation()),
        clock,
    };
    // Its clock began later.
    let clock = Clock::start();
    let mut other = End {
        server: listen(&paths[1]),
        handler: InStep::follower(echo, clock, rotation()),
        clock,
    };
    // The surest answers are soon found.
    let config = FollowerConfig {
        interval_ns: 2_000_000,
        ..FollowerConfig::default()
    };
    let client = Client::connect(&paths[0]).unwrap();
    let mut follower = TimeFollower::new(client, config, rotation()).unwrap();
    let mut clients: Vec<[Client; 2]> = (0..6)
        .map(|_| paths.each_ref().map(|path| Client::connect(path).unwrap()))
        .collect();
    for (key, pair) in (0u32..).zip(&mut clients) {
        for client in pair {
            client.call_async(BEAT_METHOD, &key.to_le_bytes()).unwrap();
        }
    }
    let mut answered = [[0u64; 2]; 6];
    while follower.counters().adjusted < 5 || answered.iter().flatten().any(|&it| it < 300) {
        time.turn();
        other.turn();
        if follower.poll(&other.clock) {
            other.server.set_slice_clock(Some(follower.clock()));
        }
        for (pair, answered) in clients.iter_mut().zip(&mut answered) {
            for (client, answered) in pair.iter_mut().zip(answered) {
                while let Some(done) = client.poll_completion() {
                    let bytes = done.result.unwrap();
                    // The first call named the key.
                    if *answered > 0 {
                        assert_eq!(bytes, answered.to_le_bytes());
                    }
                    *answered += 1;
                    client.call_async(ECHO, &answered.to_le_bytes()).unwrap();
                }
            }
        }
    }
    let beats = |server: &Server| {
        let mut beats: Vec<_> = (0..8).filter_map(|seat| server.beat_of(seat)).collect();
        beats.sort_unstable();
        beats
    };
    assert_eq!(beats(&time.server), [0, 0, 1, 1, 2, 2]);
    assert_eq!(beats(&other.server), [0, 0, 1, 1, 2, 2]);
    assert!(time.server.counters().switches > 0 && other.server.counters().switches > 0);
    // The time is read at both, one after the other: what the follower shows lies between, as closely as it says.
    let before_ns = time.clock.now_ns();
    let now_ns = other.clock.now_ns();
    let after_ns = time.clock.now_ns();
    let TimeStatus::Following { error_ns } = follower.status(&other.clock) else {
        panic!("{:?}", follower.status(&other.clock));
    };
    let shown_ns = follower.clock().common_ns(now_ns);
    assert!(
        before_ns <= shown_ns + error_ns && shown_ns <= after_ns + error_ns,
        "{shown_ns} is not from {before_ns} to {after_ns}, give or take {error_ns}"
    );
}

#[test]
fn who_does_not_keep_time_does_not_tell_it_and_odd_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let clock = Clock::start();
    let mut end = End {
        server: listen(&path),
        handler: InStep::follower(echo, clock, rotation()),
        clock,
    };
    let mut client = Client::connect(&path).unwrap();
    let unknown = Err(CallError::Status(Status::UNKNOWN_METHOD));
    assert_eq!(end.call(&mut client, TIME_METHOD, &[0; 16]), unknown);
    let failed = Err(CallError::Status(Status::HANDLER_FAILED));
    assert_eq!(end.call(&mut client, BEAT_METHOD, b"key"), failed);
    assert_eq!(end.call(&mut client, ECHO, b"echo"), Ok(b"echo".to_vec()));
    end.handler = InStep::time_server(echo, clock, rotation());
    assert_eq!(
        end.call(&mut client, TIME_METHOD, b"what time is it?"),
        failed
    );
}

#[test]
fn a_follower_outlives_its_time_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let config = FollowerConfig {
        interval_ns: 1_000_000,
        alone_after_ns: 1,
        ..FollowerConfig::default()
    };
    let clock = Clock::start();
    let start = |path: &Path| End {
        server: listen(path),
        handler: InStep::time_server(echo, clock, rotation()),
        clock,
    };
    let mut time = start(&path);
    let client = Client::connect(&path).unwrap();
    let mut follower = TimeFollower::new(client, config, rotation()).unwrap();
    while follower.counters().adjusted < 2 {
        time.turn();
        follower.poll(&clock);
    }
    let era = follower.clock().era();
    drop(time);
    while follower.counters().lost < 2 {
        follower.poll(&clock);
    }
    assert!(matches!(follower.status(&clock), TimeStatus::Alone { .. }));
    let mut time = start(&path);
    follower.reconnect(Client::connect(&path).unwrap(), &clock);
    while follower.clock().era() == era {
        time.turn();
        follower.poll(&clock);
    }
    assert_eq!(follower.counters().eras, 2);
}
