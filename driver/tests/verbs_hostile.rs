//! What a peer may say over TCP while two ends are joined, and that no silence is waited for without end.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod fake;
mod verbs_common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use scalerpc_core::Memory;
use scalerpc_core::post::WcStatus;
use scalerpc_driver::Fabric;
use scalerpc_driver::verbs::{
    JoinStep, Refusal, ServerOptions, SetupError, VERSION, VerbsClient, VerbsServer,
};
use verbs_common::{
    Heard, assert_clean, client_options, connect, fake, geometry, pair, server_options, write,
};

const MAGIC: &[u8; 8] = b"ScaleRDM";
/// Time for a step of the handshake, where it is to run out.
const STEP: Duration = Duration::from_secs(2);
const ATTEMPT: u64 = 0x1234_5678_9abc_def0;

/// A packet of this attempt. The fields have 32 bits.
fn packet(kind: u32, fields: &[u32]) -> Vec<u8> {
    packet_of(VERSION, kind, ATTEMPT, fields)
}

fn packet_of(version: u32, kind: u32, attempt: u64, fields: &[u32]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([version, kind].iter().flat_map(|it| it.to_le_bytes()));
    bytes.extend(attempt.to_le_bytes());
    bytes.extend(
        [4 * fields.len() as u32, 0]
            .iter()
            .flat_map(|it| it.to_le_bytes()),
    );
    bytes.extend(fields.iter().flat_map(|it| it.to_le_bytes()));
    bytes
}

/// The Hello of a client on the fake's port.
fn hello(connections: u32) -> Vec<u8> {
    let ip = u32::from_le_bytes([10, 0, 0, 1]);
    packet(1, &[connections, 0, 0, 0, 0xffff_0000, ip, 4096, 16])
}

fn region(bytes: u64) -> Vec<u8> {
    packet(4, &[7, 0, 0, 1, bytes as u32, (bytes >> 32) as u32])
}

fn enough() -> Vec<u8> {
    region(8 * geometry().client_exposed_bytes() as u64)
}

fn pairs(first: u32, count: u32) -> Vec<u8> {
    let mut fields = vec![first, count];
    fields.extend((0..2 * count).map(|it| 100 + it));
    packet(5, &fields)
}

/// A client that says what it likes.
struct Raw(TcpStream);

impl Raw {
    fn open(server: &VerbsServer) -> Self {
        let stream = TcpStream::connect(server.local_addr()).unwrap();
        stream
            .set_read_timeout(Some(verbs_common::PATIENCE))
            .unwrap();
        Self(stream)
    }

    fn say(&mut self, bytes: &[u8]) {
        // It may have been thrown out already.
        let _ = self.0.write_all(bytes);
    }

    /// The kind and the body of the next packet; `None` at the end.
    fn hear(&mut self) -> Option<(u32, Vec<u32>)> {
        let mut header = [0; 32];
        self.0.read_exact(&mut header).ok()?;
        assert_eq!(&header[..8], MAGIC);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(24) as usize];
        self.0.read_exact(&mut body).ok()?;
        let words = body
            .chunks(4)
            .map(|it| u32::from_le_bytes(it.try_into().unwrap()));
        Some((word(12), words.collect()))
    }

    /// Says these things, of which all but the last are fine; the reason of the refusal that follows.
    fn refused(server: &VerbsServer, says: &[Vec<u8>]) -> u32 {
        let mut raw = Self::open(server);
        says.iter().for_each(|bytes| raw.say(bytes));
        loop {
            match raw.hear() {
                Some((2, body)) => return body[0],
                Some(_) => {}
                None => return 0,
            }
        }
    }
}

/// What a client might say, and the reason for which it is refused.
fn nonsense() -> Vec<(Vec<Vec<u8>>, u32)> {
    let protocol = 6;
    let mut long = packet(1, &[1]);
    long[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut longer = hello(1);
    longer[24..28].copy_from_slice(&400_u32.to_le_bytes());
    longer.extend([0; 400]);
    let mut wild = region(u64::MAX);
    wild[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    let wrong_attempt = packet_of(VERSION, 4, 1, &[7, 0, 0, 1, u32::MAX, 0]);
    vec![
        (vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()], protocol),
        (vec![vec![0xff; 5000]], protocol),
        (vec![long], protocol),
        (vec![longer], protocol),
        (vec![packet_of(VERSION + 1, 1, 0, &[9; 9])], 1),
        (vec![packet_of(0, 77, 0, &[])], 1),
        (vec![packet(0, &[])], protocol),
        (vec![packet(11, &[])], protocol),
        (vec![packet(1, &[1; 8])], protocol),
        (vec![hello(0)], 3),
        (vec![hello(7)], 2),
        (vec![hello(u32::MAX)], 2),
        (vec![hello(1), hello(1)], protocol),
        (vec![hello(1), wrong_attempt], protocol),
        (vec![hello(1), region(10)], 4),
        (vec![hello(1), wild], protocol),
        (vec![hello(1), pairs(0, 1)], protocol),
        (vec![hello(1), packet(7, &[0, 0])], protocol),
        (vec![hello(3), enough(), pairs(0, 0)], protocol),
        (vec![hello(3), enough(), pairs(0, 17)], protocol),
        (vec![hello(3), enough(), pairs(0, 4)], protocol),
        (vec![hello(3), enough(), pairs(1, 1)], protocol),
        (
            vec![hello(3), enough(), packet(5, &[0, u32::MAX, 1, 1])],
            protocol,
        ),
        (
            vec![hello(3), enough(), packet(5, &[0, 1, 1 << 24, 1])],
            protocol,
        ),
        (
            vec![hello(3), enough(), pairs(0, 2), packet(7, &[0, 0])],
            protocol,
        ),
        (vec![hello(3), enough(), pairs(0, 2), pairs(0, 2)], protocol),
        (
            vec![hello(3), enough(), pairs(0, 3), packet(7, &[2, 0])],
            protocol,
        ),
        (
            vec![hello(3), enough(), pairs(0, 3), packet(8, &[0, 0])],
            protocol,
        ),
    ]
}

#[test]
fn nonsense_is_refused_and_costs_nobody_anything() {
    let fake = fake();
    let (mut server, mut good, mut heard) = pair(&fake, 2);
    let before = fake.live();
    let cases = nonsense();
    for (says, reason) in &cases {
        assert_eq!(Raw::refused(&server, says), *reason, "{says:x?}");
        // One that had queue pairs may have sent something to them, which has to be taken.
        heard.until(&mut server, "the seats", |_, it| {
            it.counters().seats_free == 6
        });
    }
    // Cut off in the middle.
    Raw::open(&server).say(&MAGIC[..5]);
    Raw::open(&server).say(&hello(1)[..40]);
    drop(Raw::open(&server));
    heard.until(&mut server, "the seats", |_, it| {
        it.counters().seats_free == 6
    });
    let counters = server.counters();
    assert_eq!(counters.refused, cases.len() as u64);
    assert_eq!(fake.live(), before);
    assert_eq!(heard.gone, []);
    good.post_write(&write(1, 1, 64)).unwrap();
    assert_eq!(good.flush(), None);
    assert_eq!(good.poll_completion().unwrap().status, WcStatus::Success);
    drop((good, server));
    assert_clean(&fake);
}

/// A client without queue pairs that has come through the handshake.
fn admitted(server: &VerbsServer, connections: u32) -> Raw {
    let mut raw = Raw::open(server);
    raw.say(&hello(connections));
    let (kind, offer) = raw.hear().unwrap();
    assert_eq!((kind, offer[6]), (3, connections));
    raw.say(&enough());
    raw.say(&pairs(0, connections));
    let (kind, seats) = raw.hear().unwrap();
    assert_eq!((kind, seats[1]), (6, connections));
    raw.say(&packet(7, &[0, 0]));
    assert_eq!(raw.hear(), Some((8, vec![0, 0])));
    raw
}

#[test]
fn a_client_in_service_that_talks_nonsense_loses_its_connections() {
    let fake = fake();
    let (mut server, good, mut heard) = pair(&fake, 2);
    let mut end = 0;
    for nonsense in [
        packet(9, &[3, 0]),
        packet(9, &[0, 1]),
        packet(9, &[1, 0]).repeat(4),
        packet(7, &[0, 0]),
        packet_of(VERSION, 9, 1, &[0, 0]),
        vec![0; 40],
        hello(1),
    ] {
        let mut raw = admitted(&server, 3);
        let violations = server.counters().violations;
        raw.say(&nonsense);
        end += 3;
        heard.until(&mut server, "their end", |heard, _| heard.gone.len() == end);
        assert!(server.counters().violations > violations, "{nonsense:x?}");
    }
    // To end one of its own is its right; to say so twice changes nothing.
    let mut raw = admitted(&server, 3);
    raw.say(&packet(9, &[1, 0]));
    raw.say(&packet(9, &[1, 0]));
    heard.until(&mut server, "its end", |heard, _| {
        heard.gone.len() == end + 1
    });
    raw.say(&packet(10, &[]));
    heard.until(&mut server, "the others'", |heard, _| {
        heard.gone.len() == end + 3
    });
    drop((good, server));
    assert_clean(&fake);
}

#[test]
fn a_client_that_stops_in_the_middle_gives_its_seats_back_in_time() {
    let fake = fake();
    let options = ServerOptions {
        handshake_timeout: STEP,
        ..server_options()
    };
    let mut server =
        VerbsServer::listen_with(&fake.host(), "127.0.0.1:0", geometry(), &options).unwrap();
    let before = fake.live();
    let begin = Instant::now();
    let says = [hello(2), enough(), pairs(0, 2)];
    let mut silent: Vec<Raw> = (0..=says.len())
        .map(|step| {
            let mut raw = Raw::open(&server);
            says[..step].iter().for_each(|bytes| raw.say(bytes));
            raw
        })
        .collect();
    // A slow one delays nobody.
    drop(connect(&fake, &server, 2).unwrap());
    Heard::default().until(&mut server, "the seats", |_, it| {
        it.counters().seats_free == 8
    });
    assert!(begin.elapsed() > Duration::from_millis(1500));
    assert_eq!(fake.live(), before);
    for raw in &mut silent {
        let last = std::iter::from_fn(|| raw.hear()).last();
        assert_eq!(last, Some((2, vec![9, 2000])), "it is told why");
    }
    drop(server);
    assert_clean(&fake);
}

/// A server that gives these answers, one to each packet, and then is silent; or ends, if `ends`.
fn strange(answers: Vec<Vec<u8>>, ends: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for mut answer in answers {
            let mut question = [0; 512];
            if stream.read(&mut question).unwrap_or(0) == 0 {
                return;
            }
            // The attempt.
            answer[16..24].copy_from_slice(&question[16..24]);
            stream.write_all(&answer).unwrap();
        }
        if !ends {
            std::thread::sleep(verbs_common::PATIENCE);
        }
    });
    address
}

/// An Offer of the geometry of these tests, for one connection.
fn offer() -> Vec<u8> {
    let config = *geometry().config();
    let bytes = geometry().server_exposed_bytes() as u32;
    packet(
        3,
        &[
            config.clients_max,
            config.group_size,
            config.window,
            config.request_max_bytes,
            config.response_max_bytes,
            0,
            1,
            0,
            0,
            0,
            0,
            0xffff_0000,
            0x0100_000a,
            4096,
            16,
            9,
            0,
            0,
            1,
            bytes,
            0,
        ],
    )
}

#[test]
fn a_server_that_stops_or_talks_nonsense_is_an_error_that_names_the_step() {
    let fake = fake();
    let mut options = client_options();
    // Only silence has to be waited for, and longer than this machine may need to answer.
    let mut dial = |answers: &[Vec<u8>], ends: bool, millis| {
        options.timeout = Duration::from_millis(millis);
        let address = strange(answers.to_vec(), ends);
        let error = VerbsClient::connect_with(&fake.host(), address, 1, &options).unwrap_err();
        assert_clean(&fake);
        error
    };
    let seats = packet(6, &[0, 1, 5, 5, 3, 0, 77, 0]);
    let steps = [JoinStep::Offer, JoinStep::Seats, JoinStep::Go];
    // The Region goes unanswered: the strange server answers it with the Seats.
    let answers = [offer(), seats.clone()];
    for (count, at) in steps.into_iter().enumerate() {
        let silent = dial(&answers[..count], false, 1000);
        assert!(
            matches!(silent, SetupError::Timeout { step, .. } if step == at),
            "{silent}"
        );
        let ended = dial(&answers[..count], true, 20_000);
        assert!(
            matches!(ended, SetupError::Protocol { step, .. } if step == at),
            "{ended}"
        );
    }
    let mut impossible = offer();
    impossible[32..36].copy_from_slice(&0_u32.to_le_bytes());
    let mut small = offer();
    small[32 + 19 * 4..32 + 20 * 4].copy_from_slice(&1_u32.to_le_bytes());
    let mut other = offer();
    other[32 + 6 * 4..32 + 7 * 4].copy_from_slice(&2_u32.to_le_bytes());
    let far_seat = packet(6, &[0, 1, 5, 5, 8, 0, 77, 0]);
    for nonsense in [
        vec![impossible],
        vec![small],
        vec![other],
        vec![vec![0xff; 64]],
        vec![seats],
        vec![offer(), offer()],
        vec![offer(), far_seat],
    ] {
        let error = dial(&nonsense, false, 20_000);
        assert!(matches!(error, SetupError::Protocol { .. }), "{error}");
    }
    let newer = dial(&[packet_of(9, 3, 0, &[1, 2, 3])], false, 20_000);
    assert!(
        matches!(newer, SetupError::VersionMismatch { theirs: 9, .. }),
        "{newer}"
    );
    // A refusal is read in any version.
    let refused = dial(&[packet_of(9, 2, 0, &[1, 9])], false, 20_000);
    assert!(
        matches!(refused, SetupError::VersionMismatch { theirs: 9, .. }),
        "{refused}"
    );
    let refused = dial(&[packet(2, &[99, 0])], false, 20_000);
    assert!(matches!(
        refused,
        SetupError::Refused {
            reason: Refusal::Other(99),
            ..
        }
    ));
}

#[test]
fn an_answer_to_an_earlier_attempt_is_none() {
    let fake = fake();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Right in all but the attempt.
        stream.write_all(&offer()).unwrap();
        std::thread::sleep(verbs_common::PATIENCE);
    });
    let error = VerbsClient::connect_with(&fake.host(), address, 1, &client_options()).unwrap_err();
    assert!(error.to_string().contains("another attempt"), "{error}");
    assert_clean(&fake);
}

#[test]
fn clients_and_handshakes_under_way_are_bounded() {
    let fake = fake();
    let options = ServerOptions {
        links_max: 3,
        handshakes_max: 2,
        handshake_timeout: STEP,
        ..server_options()
    };
    let server =
        VerbsServer::listen_with(&fake.host(), "127.0.0.1:0", geometry(), &options).unwrap();
    // Two that say nothing keep the third waiting, for as long as a step may take.
    let silent = [Raw::open(&server), Raw::open(&server)];
    let begin = Instant::now();
    let mut patient = client_options();
    patient.timeout = verbs_common::PATIENCE;
    let dial = || VerbsClient::connect_with(&fake.host(), server.local_addr(), 1, &patient);
    let clients = [dial().unwrap(), dial().unwrap(), dial().unwrap()];
    assert!(begin.elapsed() > Duration::from_millis(1500));
    let refused = dial().unwrap_err();
    let reason = Refusal::TooMany;
    assert!(
        matches!(refused, SetupError::Refused { reason: it, .. } if it == reason),
        "{refused}"
    );
    drop((silent, clients, server));
    assert_clean(&fake);
}

/// Field case J5: once the server has let go of a client, nothing that it does arrives.
#[test]
fn what_an_evicted_client_writes_goes_nowhere() {
    let fake = fake();
    let (mut server, mut client, mut heard) = pair(&fake, 2);
    let seat = client.seat(0);
    // It has this under way when it is evicted, and does not look at its stream.
    fake.net().hold = true;
    client.private().store(0, 0xbad);
    let mut wr = write(0, 1, 256);
    wr.remote = geometry().endpoint(seat);
    client.post_write(&wr).unwrap();
    assert_eq!(client.flush(), None);
    server.close(seat);
    heard.until(&mut server, "its end", |heard, _| heard.gone == [seat]);
    fake.net().hold = false;
    wr.wr_id = verbs_common::wr_id(0, 2);
    client.post_write(&wr).unwrap();
    assert_eq!(client.flush(), None);
    let (completions, gone) = verbs_common::until_gone(&mut client, 1);
    assert_eq!(gone, [0]);
    assert!(completions.iter().all(|it| it.status != WcStatus::Success));
    assert_eq!(server.exposed().load(geometry().endpoint(seat)), 0);
    drop((client, server));
    assert_clean(&fake);
}
