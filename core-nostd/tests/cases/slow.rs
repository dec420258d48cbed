//! A slow method among fast ones, in virtual time: what learning it is worth to the others.

use std::collections::VecDeque;

use scalerpc_core::server::{Action, Call, Deferred, Resumed};
use scalerpc_core::wire::Status;
use scalerpc_core::{SlowConfig, SlowMethods};

use crate::common::{Rig, Setup};

const SLOW: u16 = 1;
const FAST: u16 = 2;
const SLOW_NS: u64 = 10_000_000;
const FAST_NS: u64 = 10_000;
/// A round that finds nothing.
const ROUND_NS: u64 = 200;
const CLIENTS: u32 = 8;
const END_NS: u64 = 400_000_000;

/// One server's thread, and one for what is slow.
struct Host {
    rig: Rig,
    methods: SlowMethods,
    learns: bool,
    /// What the other thread has been given, and when it is done with it.
    sent_away: VecDeque<(u64, Deferred)>,
    begun_ns: [u64; CLIENTS as usize],
    ended: [usize; CLIENTS as usize],
    /// Of fast calls, from when they were made to when their clients had the answers.
    latencies_ns: Vec<u64>,
    slow_calls: u64,
}

impl Host {
    fn new(learns: bool) -> Self {
        let mut setup = Setup::default();
        setup.geometry.clients_max = CLIENTS;
        setup.geometry.group_size = CLIENTS / 2;
        let slow_after_ns = setup.server.time_slice_ns;
        Self {
            rig: Rig::with_clients(setup, CLIENTS),
            methods: SlowMethods::new(SlowConfig {
                slow_after_ns,
                ..SlowConfig::default()
            }),
            learns,
            sent_away: VecDeque::new(),
            begun_ns: [0; CLIENTS as usize],
            ended: [0; CLIENTS as usize],
            latencies_ns: Vec::new(),
            slow_calls: 0,
        }
    }

    /// Each client that has no call makes its next one; that of seat 0 is slow, if it makes any.
    fn clients(&mut self, slow: bool) {
        let now_ns = self.rig.now_ns;
        for seat in u32::from(!slow)..CLIENTS {
            self.rig.poll(seat);
            let at = seat as usize;
            let client = self.rig.client(seat);
            let ended = client.ended.len();
            if ended > self.ended[at] && seat > 0 {
                self.latencies_ns.push(now_ns - self.begun_ns[at]);
            }
            self.ended[at] = ended;
            if client.engine.outstanding() > 0 {
                continue;
            }
            let method = if seat == 0 { SLOW } else { FAST };
            let tag = !(client.engine.counters().calls + 1);
            let private = client.private.region();
            client.engine.call(method, b"x", tag, private).unwrap();
            self.begun_ns[at] = now_ns;
        }
        self.rig.clients_turn();
    }

    fn run(&mut self, call: Call) {
        let now_ns = self.rig.now_ns;
        let (slow, took_ns) = match call.method {
            SLOW => (true, SLOW_NS),
            _ => (false, FAST_NS),
        };
        self.slow_calls += u64::from(slow);
        if self.learns && self.methods.is_slow(call.method, now_ns) {
            assert!(slow, "a fast method is never sent away");
            let free_ns = self.sent_away.back().map_or(now_ns, |(at_ns, _)| *at_ns);
            let deferred = self.rig.server.defer(call);
            self.sent_away.push_back((free_ns + took_ns, deferred));
            return;
        }
        self.rig.now_ns += took_ns;
        self.methods.note(call.method, took_ns, self.rig.now_ns);
        self.reply(call);
    }

    fn reply(&mut self, call: Call) {
        let (exposed, private) = (self.rig.exposed.region(), self.rig.private.region());
        let write = self.rig.server.reply(call, Status::OK, 0, exposed, private);
        self.rig.post_server(write.unwrap());
    }

    /// What the other thread has answered meanwhile.
    fn take_answers(&mut self) {
        let now_ns = self.rig.now_ns;
        while let Some((at_ns, deferred)) = self.sent_away.pop_front() {
            if at_ns > now_ns {
                return self.sent_away.push_front((at_ns, deferred));
            }
            self.methods.note(deferred.method(), SLOW_NS, now_ns);
            match self.rig.server.resume(deferred) {
                Resumed::Call(call) => self.reply(call),
                Resumed::Wait(deferred) => return self.sent_away.push_front((at_ns, deferred)),
                Resumed::Ended => panic!("a connection has ended"),
            }
        }
    }

    /// As the rig does it, but for calls.
    fn round(&mut self) {
        self.take_answers();
        loop {
            self.rig.complete_server();
            let (exposed, private) = (self.rig.exposed.region(), self.rig.private.region());
            let now_ns = self.rig.now_ns;
            match self.rig.server.next_action(now_ns, exposed, private) {
                Action::Idle => break,
                Action::Call(call) => self.run(call),
                other => self.rig.carry_out(other),
            }
        }
        self.rig.now_ns += ROUND_NS;
    }
}

/// The 99th percentile of the fast calls' latencies.
fn p99_ns(slow: bool, learns: bool) -> u64 {
    let mut host = Host::new(learns);
    while host.rig.now_ns < END_NS {
        host.clients(slow);
        host.round();
    }
    assert!(host.slow_calls >= 30 || !slow, "{}", host.slow_calls);
    let latencies_ns = &mut host.latencies_ns;
    latencies_ns.sort_unstable();
    assert!(latencies_ns.len() > 100, "{}", latencies_ns.len());
    latencies_ns[latencies_ns.len() * 99 / 100]
}

/// Field case F5.
#[test]
fn a_slow_method_that_was_learned_costs_the_others_a_slice_at_most_and_else_it_does() {
    let slice_ns = Setup::default().server.time_slice_ns;
    let without_ns = p99_ns(false, true);
    let learned_ns = p99_ns(true, true);
    let unlearned_ns = p99_ns(true, false);
    println!("p99 {without_ns} ns, learned {learned_ns} ns, else {unlearned_ns} ns");
    assert!(learned_ns <= without_ns + slice_ns);
    assert!(unlearned_ns >= SLOW_NS, "or there is nothing to gain");
}
