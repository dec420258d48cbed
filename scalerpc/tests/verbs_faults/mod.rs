//! What goes wrong in a network, and to processes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scalerpc::verbs::{SetupError as VerbsSetupError, VerbsClient, VerbsError};
use scalerpc::{CallError, Client, ClientSet, Clock, Counters, Server, SetupError};

use crate::bodies::{self, Running};
use crate::{ECHO, OneDevice, TwoDevices, client_on, exchange, listen, server_on};

/// Nothing waits this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// What this process is to be, if it is a child.
const ROLE: &str = "SCALERPC_VERBS_ROLE";

/// This test binary again, in a role. Killed on drop, and when this process ends.
struct Process(Child);

impl Process {
    fn spawn(through: &[&str], role: &str) -> Self {
        let mut words: Vec<String> = through.iter().map(|&word| word.to_owned()).collect();
        words.push(std::env::current_exe().unwrap().display().to_string());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(["--ignored", "--exact", "verbs_faults::child", "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::piped());
        let end_with_parent = || {
            // SAFETY: takes no pointers; it is about the calling process alone.
            match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: it makes one system call, which is safe after a fork.
        unsafe { command.pre_exec(end_with_parent) };
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers; the process is a child that was not waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// What it printed until it ended.
    fn output(mut self) -> String {
        let mut text = String::new();
        let out = self.0.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut std::io::BufReader::new(out), &mut text).unwrap();
        self.0.wait().unwrap();
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "what other tests start"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (what, address) = role.split_once(' ').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    match what {
        "server" => {
            let builder = Server::builder().clients_max(64);
            let mut server = builder.listen_verbs(address, &server_on("rxe0")).unwrap();
            server.run(&AtomicBool::new(false), &mut bodies::handler);
        }
        "client" => {
            let mut set = ClientSet::connect_verbs(address, 8, &client_on("rxe1")).unwrap();
            loop {
                exchange(&mut set, 4);
            }
        }
        "poor" => {
            let builder = Server::builder().clients_max(16);
            let outcome = builder.listen_verbs(address, &server_on("rxe0"));
            println!("outcome: {}", outcome.err().unwrap());
        }
        _ => panic!("{role}"),
    }
}

fn shell(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

/// Connects as soon as there is somebody to connect to.
fn connect(address: SocketAddr) -> Client<VerbsClient> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Client::connect_verbs(address, &client_on("rxe1")) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Calls until the connection is lost; every call ends.
fn call_until_lost(client: &mut Client<VerbsClient>) {
    client.set_timeout(PATIENCE);
    let until = Instant::now() + PATIENCE;
    loop {
        match client.call(ECHO, b"x") {
            Ok(bytes) => assert_eq!(bytes, b"x"),
            Err(CallError::Unknown | CallError::NotSent) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < until, "the connection is not lost");
    }
    assert_eq!(client.call(ECHO, b"y"), Err(CallError::NotSent));
}

#[test]
#[ignore = "needs soft-RoCE"]
fn calls_to_a_server_that_is_killed_end_and_its_successor_is_found() {
    let role = "server 10.77.0.1:7601";
    let address: SocketAddr = "10.77.0.1:7601".parse().unwrap();
    let mut server = Process::spawn(&[], role);
    for _ in 0..2 {
        let mut client = connect(address);
        assert_eq!(client.call(ECHO, b"before").unwrap(), b"before");
        server.kill();
        let begin = Instant::now();
        call_until_lost(&mut client);
        println!("noticed after {:?}", begin.elapsed());
        server = Process::spawn(&[], role);
        let mut client = connect(address);
        assert_eq!(client.call(ECHO, b"after").unwrap(), b"after");
    }
}

/// It sleeps when it is stopped, and longer than a peer may be silent: what wakes it is for the device to keep.
#[test]
#[ignore = "needs soft-RoCE"]
fn a_server_that_is_stopped_for_seconds_while_many_wake_it_loses_nobody() {
    const CONNECTIONS: u32 = 48;
    let address: SocketAddr = "10.77.0.1:7603".parse().unwrap();
    let server = Process::spawn(&[], "server 10.77.0.1:7603");
    drop(connect(address));
    let mut set = ClientSet::connect_verbs(address, CONNECTIONS, &client_on("rxe1")).unwrap();
    for _ in 0..2 {
        exchange(&mut set, 2);
        let rest = Instant::now() + Duration::from_millis(300);
        while Instant::now() < rest {
            assert!(set.poll_completion().is_none());
            std::thread::yield_now();
        }
        server.signal(libc::SIGSTOP);
        for connection in 0..CONNECTIONS {
            set.call_async(connection, ECHO, &connection.to_le_bytes())
                .unwrap();
        }
        let stopped = Instant::now() + Duration::from_secs(3);
        while Instant::now() < stopped {
            assert!(set.poll_completion().is_none());
            std::thread::yield_now();
        }
        server.signal(libc::SIGCONT);
        let (mut open, until) = (CONNECTIONS, Instant::now() + PATIENCE);
        while open > 0 {
            while let Some(done) = set.poll_completion() {
                let expected = done.connection.to_le_bytes();
                assert_eq!(done.result, Ok(&expected[..]));
                open -= 1;
            }
            std::thread::yield_now();
            assert!(Instant::now() < until, "{open} calls are open");
        }
    }
}

/// Polls a server in this thread, until something is so.
fn poll_until(
    server: &mut Server<scalerpc::verbs::VerbsServer>,
    what: &str,
    mut is_so: impl FnMut(&Server<scalerpc::verbs::VerbsServer>) -> bool,
) {
    let clock = Clock::start();
    let until = Instant::now() + PATIENCE;
    while !is_so(server) {
        if server.poll(clock.now_ns(), &mut bodies::handler) == 0 {
            std::thread::yield_now();
        }
        assert!(
            Instant::now() < until,
            "waited in vain for {what}: {:?}",
            server.counters()
        );
    }
}

#[test]
#[ignore = "needs soft-RoCE"]
fn a_client_that_is_killed_gives_its_seats_back() {
    let (mut server, address) = listen(Server::builder().clients_max(8));
    for round in 1..=3 {
        let mut client = Process::spawn(&[], &format!("client {address}"));
        let calls = server.counters().calls;
        poll_until(&mut server, "calls", |it| {
            it.counters().calls >= calls + 100
        });
        assert_eq!(server.fabric().counters().seats_free, 0);
        client.kill();
        poll_until(&mut server, "the seats", |it| {
            it.fabric().counters().seats_free == 8
        });
        let Counters {
            gone, connections, ..
        } = server.counters();
        assert_eq!((gone, connections), (8 * round, 0));
    }
}

#[test]
#[ignore = "needs soft-RoCE"]
fn a_short_cut_of_the_link_is_survived_and_a_long_one_ends_the_connection() {
    let running = Running::<TwoDevices>::start(Server::builder());
    // A second to each try: programs take long to start here.
    let mut options = client_on("rxe1");
    options.reliability.timeout = 18;
    let mut patient = Client::connect_verbs(running.place, &options).unwrap();
    let mut client = running.client();
    patient.set_timeout(PATIENCE);
    for client in [&mut patient, &mut client] {
        client.call(ECHO, b"before").unwrap();
    }
    // The other end's: rxe takes its own port's being down for the end of the queue pair.
    shell("ip link set p0 down; (sleep 0.2; ip link set p0 up) &");
    let after = patient.call(ECHO, b"after").map(<[u8]>::to_vec);
    let failure = patient.fabric().last_failure();
    assert_eq!(after, Ok(b"after".to_vec()), "{failure:?}");

    shell("ip link set p0 down");
    let begin = Instant::now();
    call_until_lost(&mut client);
    println!(
        "noticed after {:?}: {:?}",
        begin.elapsed(),
        client.fabric().last_failure()
    );
    shell("ip link set p0 up");
    let mut again = connect(running.place);
    assert_eq!(again.call(ECHO, b"again").unwrap(), b"again");
    drop((patient, client));
    running.stop();
}

#[test]
#[ignore = "needs soft-RoCE"]
fn packets_are_lost_and_late_but_no_call() {
    for fault in ["loss 1%", "delay 20ms"] {
        shell(&format!("tc qdisc add dev h0 root netem {fault}"));
        shell(&format!("tc qdisc add dev h1 root netem {fault}"));
        let builder = Server::builder().clients_max(4).window(4);
        let running = Running::<TwoDevices>::start(builder);
        let mut set = running.connect(4);
        exchange(&mut set, 50);
        drop(set);
        let counters = running.stop();
        shell("tc -s qdisc show dev h0; tc qdisc del dev h0 root; tc qdisc del dev h1 root");
        assert_eq!((counters.calls, counters.violations), (200, 0), "{fault}");
    }
}

#[test]
#[ignore = "needs soft-RoCE"]
fn a_client_that_keeps_its_zone_is_fenced_and_the_others_are_served() {
    let builder = Server::builder()
        .clients_max(4)
        .group_size(1)
        .fence_after(Duration::from_millis(300));
    let running = Running::<OneDevice>::start(builder);
    let mut silent = running.connect(1);
    silent.call(0, ECHO, b"x", PATIENCE).unwrap();
    // It has a zone now, and polls no more. The others want it.
    let mut others = running.connect(3);
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        exchange(&mut others, 2);
    }
    let ended = silent.call(0, ECHO, b"y", PATIENCE);
    assert!(
        matches!(ended, Err(CallError::Unknown | CallError::NotSent)),
        "{ended:?}"
    );
    drop(silent);
    // Its seat is free.
    let mut again = running.client();
    assert_eq!(again.call(ECHO, b"again").unwrap(), b"again");
    let counters = running.stop();
    // A client that leaves while an answer is under way counts as a failure, too.
    assert!(
        counters.failures >= 1 && counters.violations == 0,
        "{counters:?}"
    );
}

#[test]
#[ignore = "needs soft-RoCE"]
fn seats_and_addresses_are_given_once() {
    let running = Running::<OneDevice>::start(Server::builder().clients_max(3));
    let two = running.connect(2);
    let busy = Client::connect_verbs(running.place, &client_on("rxe1"));
    let _three = busy.unwrap();
    let refused = ClientSet::connect_verbs(running.place, 1, &client_on("rxe0"));
    assert!(matches!(
        refused.err().unwrap(),
        SetupError::Verbs(VerbsSetupError::Busy {
            wanted: 1,
            free: 0,
            ..
        })
    ));
    let taken = Server::builder().listen_verbs(running.place, &server_on("rxe1"));
    assert!(matches!(
        taken.err().unwrap(),
        SetupError::Verbs(VerbsSetupError::AlreadyInUse { .. })
    ));
    drop(two);
    drop(connect(running.place));
    let unknown = Client::connect_verbs(running.place, &client_on("mlx5_7"));
    assert!(matches!(
        unknown.err().unwrap(),
        SetupError::Verbs(VerbsSetupError::Verbs(VerbsError::UnknownDevice { .. }))
    ));
    let address = running.place;
    running.stop();
    let nobody = Client::connect_verbs(address, &client_on("rxe0"));
    assert!(matches!(
        nobody.err().unwrap(),
        SetupError::Verbs(VerbsSetupError::NoServer { .. })
    ));
}

#[test]
#[ignore = "needs soft-RoCE"]
fn too_little_lockable_memory_is_an_error_that_names_the_limit() {
    let through = [
        "prlimit",
        "--memlock=65536:65536",
        "setpriv",
        "--reuid",
        "65534",
        "--bounding-set",
        "-ipc_lock",
    ];
    let output = Process::spawn(&through, "poor 10.77.0.1:7602").output();
    let outcome = output.lines().find(|line| line.contains("outcome: "));
    let outcome = outcome.unwrap_or_else(|| panic!("{output}"));
    for part in ["RLIMIT_MEMLOCK is 65536", "rxe0 port 1", "ulimit -l"] {
        assert!(outcome.contains(part), "{outcome}");
    }
}

#[test]
#[ignore = "needs soft-RoCE"]
fn many_clients_at_once_are_all_admitted() {
    let builder = Server::builder()
        .clients_max(60)
        .window(2)
        .request_max_bytes(64)
        .response_max_bytes(64);
    let running = Running::<OneDevice>::start(builder);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| {
                let mut client = running.client();
                client.set_timeout(PATIENCE);
                if client.call(ECHO, b"x") != Ok(b"x") {
                    failed.store(true, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(!failed.into_inner());
    assert_eq!(running.stop().calls, 60);
}

/// Passes a stream on, and gives what the server says first another key to its memory. Where it listens.
fn with_another_key(server: SocketAddr) -> SocketAddr {
    // After a header and fifteen words of an Offer.
    const KEY_AT: usize = 32 + 15 * 4;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut to_client = client.try_clone().unwrap();
        let mut server = TcpStream::connect(server).unwrap();
        let mut from_server = server.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut offer = [0; KEY_AT + 4];
            from_server.read_exact(&mut offer).unwrap();
            offer[KEY_AT] ^= 0x5a;
            to_client.write_all(&offer).unwrap();
            let _ = std::io::copy(&mut from_server, &mut to_client);
        });
        let _ = std::io::copy(&mut client, &mut server);
        let _ = server.shutdown(Shutdown::Both);
    });
    address
}

#[test]
#[ignore = "needs soft-RoCE"]
fn a_write_that_the_device_refuses_ends_that_connection_at_both_ends() {
    let (mut server, address) = listen(Server::builder().clients_max(2));
    let mut good = Client::connect_verbs(address, &client_on("rxe1")).unwrap();
    let bad = std::thread::spawn(move || {
        let address = with_another_key(address);
        let mut client = Client::connect_verbs(address, &client_on("rxe1")).unwrap();
        client.set_timeout(PATIENCE);
        let ended = client.call(ECHO, b"x").map(<[u8]>::to_vec);
        (ended, client.fabric().last_failure())
    });
    poll_until(&mut server, "its end", |it| it.counters().gone == 1);
    let (ended, failure) = bad.join().unwrap();
    assert_eq!(ended, Err(CallError::Unknown));
    let said = failure.unwrap().to_string();
    assert!(said.contains("does not allow that access"), "{said}");
    good.call_async(ECHO, b"y").unwrap();
    let mut answered = false;
    poll_until(&mut server, "an answer", |_| {
        answered |= good
            .poll_completion()
            .is_some_and(|it| it.result == Ok(b"y"));
        answered
    });
    assert_eq!(server.fabric().counters().seats_free, 1);
}
