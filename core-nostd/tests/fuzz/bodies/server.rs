//! A server among honest clients and peers that write what they like.

use scalerpc_core::post::{Completion, ReadWr, WcStatus, WriteWr};
use scalerpc_core::server::{Call, ConnState};
use scalerpc_core::wire::{self, Entry, Ext, FLAG_CANCELLED, FLAG_EXT, Head, LINE, Status};
use scalerpc_core::{Mapping, Memory};

use super::common::wire::Op;
use super::common::{Ended, Rig, zone_at};
use super::peer::{Peer, Pending};
use super::{check_census, input::Input};

const OPS_MAX: usize = 400;
/// The most calls of peers that a handler keeps: more could take all send slots from the others.
const KEPT_MAX: usize = 3;

struct World {
    rig: Rig,
    honest: u32,
    peers: Vec<Peer>,
    /// Calls of peers that a handler keeps.
    kept: Vec<Call>,
    keep: bool,
    /// Of each honest client, its requests.
    requests: Vec<Vec<Vec<u8>>>,
    /// Entries of the rig's log that were looked at.
    served: usize,
    closed: usize,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let honest = input.below(3);
    let peers = 1 + input.below(2);
    // So many zones that the peers cannot hold them all.
    let setup = input.setup(honest + peers, peers);
    let mut world = World {
        rig: Rig::with_clients(setup, honest),
        honest,
        peers: (honest..honest + peers).map(Peer::at).collect(),
        kept: Vec::new(),
        keep: false,
        requests: vec![Vec::new(); honest as usize],
        served: 0,
        closed: 0,
    };
    for peer in 0..peers as usize {
        world.open(peer);
    }
    for _ in 0..OPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        check_census(&world.rig, world.kept.len());
    }
    world.end();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let peer = input.below(self.peers.len() as u32) as usize;
        match input.below(19) {
            0 | 1 => (0..=input.below(8)).for_each(|_| self.act()),
            2 => self.rig.now_ns += u64::from(input.byte()) * 40,
            3 => self.honest_call(input),
            4 => self.honest_turn(),
            5 => self.open(peer),
            6 if input.flag() => self.gone(peer),
            6 => self.rig.server.failed(self.peers[peer].seat),
            7 | 8 => self.write_entry(peer, input),
            9 => {
                let at = self.rig.geometry.demand_byte(self.peers[peer].seat);
                let byte = input.near(self.peers[peer].entry.wrapping_add(1)) as u8;
                self.rig.exposed.region().store_byte_release(at, byte);
            }
            10 => {
                let at = self.rig.geometry.endpoint(self.peers[peer].seat);
                let word = 8 * input.below(8) as usize;
                let right = self.peers[peer].told_epoch;
                let value = if word == 0 {
                    input.near(right)
                } else {
                    input.word()
                };
                self.rig.exposed.region().store_release(at + word, value);
            }
            11 | 12 => self.write_request(peer, input),
            13 => self.write_zone(peer, input),
            14 | 15 => self.complete(peer, input),
            16 => self.answer_kept(input),
            17 => self.revoke(peer, input),
            _ => self.anything_else(peer, input),
        }
    }

    fn anything_else(&mut self, peer: usize, input: &mut Input<'_>) {
        match input.below(4) {
            0 => self.keep = input.flag(),
            1 => self.rig.setup.revokes = input.flag(),
            2 => {
                // What a closed connection left in the completion queue.
                if let Some(&wr_id) = self.peers[peer].stale.last() {
                    let status = WcStatus::Flushed;
                    self.rig.server.completed(Completion { wr_id, status });
                }
            }
            // With one key for all exposed memory a peer can write anywhere. What that does to
            // others is theirs to bear, so there must not be any.
            _ if self.honest == 0 => {
                let exposed = self.rig.exposed.region();
                let words = exposed.len() / 8;
                let at = (input.word() as usize % words) * 8;
                exposed.store_release(at, input.near(self.rig.owners[0]));
            }
            _ => {}
        }
    }

    /// The server's next action.
    fn act(&mut self) {
        self.rig.act();
        self.notice();
    }

    /// Looks at what the server has asked for: all of it must be inside its bounds.
    fn notice(&mut self) {
        let log = &mut self.rig.log;
        let (reads, writes) = (
            std::mem::take(&mut log.raw_reads),
            std::mem::take(&mut log.raw_writes),
        );
        for wr in reads {
            self.check_read(&wr);
            self.post(wr.connection, Pending::Read(wr));
        }
        for wr in writes {
            self.check_write(&wr);
            self.post(wr.connection, Pending::Write(wr));
        }
        while let Some(&(seat, why)) = self.rig.log.closed.get(self.closed) {
            self.closed += 1;
            assert!(seat >= self.honest, "an honest client is closed: {why:?}");
        }
        while let Some(served) = self.rig.log.served.get(self.served) {
            self.served += 1;
            assert!(served.bytes.len() <= self.rig.geometry.request_max_bytes());
            let Some(peer) = served.seat.checked_sub(self.honest) else {
                let sent = &self.requests[served.seat as usize][served.number as usize - 1];
                assert_eq!(*sent, served.bytes, "another's request, or none");
                continue;
            };
            let peer = &mut self.peers[peer as usize];
            // Those that are late or cancelled are taken, and do not run.
            assert!(served.number > peer.calls, "R2: calls in order");
            peer.calls = served.number;
        }
        while let Some(call) = self.rig.kept.pop_front() {
            let of_peer = call.seat >= self.honest;
            let end = |flags| call.request_at + wire::span(call.request_len, flags);
            let flags_at = |end| self.rig.exposed.region().load(end - 24) >> 48;
            let known = flags_at(end(0)) == 0 || flags_at(end(FLAG_EXT)) == u64::from(FLAG_EXT);
            assert!(known, "a request with flags is taken");
            if of_peer && self.keep && self.kept.len() < KEPT_MAX {
                self.kept.push(call);
            } else {
                self.echo(call);
            }
        }
    }

    fn check_write(&self, wr: &WriteWr) {
        let geometry = &self.rig.geometry;
        let private = geometry.server_private_bytes();
        let ring = geometry.ring(0)..geometry.client_exposed_bytes();
        assert!(wr.len > 0 && wr.len % LINE == 0);
        assert!(wr.local < private && wr.local + wr.len <= private, "{wr:?}");
        assert!(
            ring.contains(&wr.remote) && wr.remote + wr.len <= ring.end,
            "{wr:?}"
        );
    }

    fn check_read(&self, wr: &ReadWr) {
        let geometry = &self.rig.geometry;
        assert!(
            wr.count > 0 && wr.count <= self.rig.setup.limits.sge_max,
            "{wr:?}"
        );
        let staged_end = wr.remote + wr.stride * wr.count as usize;
        let staging = geometry.staging(0)..geometry.staging(0) + geometry.staging_bytes();
        assert!(
            staging.contains(&wr.remote) && staged_end <= staging.end,
            "{wr:?}"
        );
        let zone = wr.pool * geometry.zones() + wr.zone;
        assert_eq!(self.rig.zone(wr.connection), Some(zone), "{wr:?}");
        for to in wr.targets(geometry) {
            assert_eq!(zone_at(geometry, to), zone, "{wr:?}");
            assert_eq!(zone_at(geometry, to + wr.stride - 1), zone, "{wr:?}");
        }
    }

    /// Counts a work request (R11).
    fn post(&mut self, seat: u32, pending: Pending) {
        let peer = &mut self.peers[(seat - self.honest) as usize];
        peer.posted = peer.posted.wrapping_add(1);
        assert_eq!(
            pending.wr_id().sequence(),
            peer.posted,
            "work requests count up"
        );
        assert_eq!(pending.wr_id().seat(), seat);
        match &pending {
            Pending::Read(_) => peer.entry = peer.entry_written,
            Pending::Write(wr) => {
                let (private, end) = (self.rig.private.region(), wr.local + wr.len);
                if private.load(end - 24) >> 48 & u64::from(FLAG_EXT) != 0 {
                    peer.told_epoch = private.load(end - 64);
                }
            }
        }
        peer.pending.push_back(pending);
        let (outstanding, depth) = (peer.pending.len() as u32, self.rig.setup.limits.sq_depth);
        assert!(outstanding <= depth, "R11: {outstanding} of {depth} posted");
    }

    /// Answers a call with its own bytes, as far as a response holds them.
    fn echo(&mut self, call: Call) {
        let len = call.request_len.min(self.rig.geometry.response_max_bytes());
        let mut bytes = vec![0; len];
        self.rig
            .exposed
            .region()
            .copy_out(call.request_at, &mut bytes);
        self.reply(call, &bytes, len);
    }

    fn reply(&mut self, call: Call, bytes: &[u8], len: usize) {
        let rig = &mut self.rig;
        let (exposed, private) = (rig.exposed.region(), rig.private.region());
        private.copy_in(call.response_at, bytes);
        let Some(wr) = rig.server.reply(call, Status::OK, len, exposed, private) else {
            return;
        };
        let seat = wr.connection;
        if seat < self.honest {
            let op = Op::write(wr, private);
            let depth = rig.setup.limits.sq_depth;
            rig.client(seat).down.post(op, depth);
            rig.deliver(seat);
        } else {
            self.check_write(&wr);
            self.post(seat, Pending::Write(wr));
        }
    }

    fn answer_kept(&mut self, input: &mut Input<'_>) {
        if self.kept.is_empty() {
            return;
        }
        let call = self
            .kept
            .swap_remove(input.below(self.kept.len() as u32) as usize);
        let len = input.near(3) as usize;
        let bytes = vec![0x33; len.min(self.rig.geometry.response_max_bytes())];
        self.reply(call, &bytes, len);
    }

    fn honest_call(&mut self, input: &mut Input<'_>) {
        if self.honest == 0 {
            return;
        }
        let seat = input.below(self.honest);
        let len = input.byte() as usize;
        let mut bytes = vec![0; len.min(self.rig.geometry.request_max_bytes())];
        let given = input.bytes(4);
        bytes
            .iter_mut()
            .zip(given)
            .for_each(|(to, from)| *to = *from);
        if self.rig.call(seat, &bytes).is_ok() {
            self.requests[seat as usize].push(bytes);
        }
    }

    fn honest_turn(&mut self) {
        self.rig.clients_turn();
        for seat in 0..self.honest {
            let (calls, limit) = (
                &self.requests[seat as usize],
                self.rig.geometry.response_max_bytes(),
            );
            let client = self.rig.clients[seat as usize]
                .as_mut()
                .expect("it is honest");
            assert_eq!(client.violation, None);
            for ended in client.ended.drain(..) {
                let Ended::Answer {
                    call,
                    status,
                    bytes,
                } = ended
                else {
                    panic!("an honest call failed: {ended:?}");
                };
                let sent = &calls[call as usize - 1];
                assert_eq!(
                    (status, &bytes[..]),
                    (Status::OK, &sent[..sent.len().min(limit)])
                );
            }
        }
    }

    fn open(&mut self, peer: usize) {
        let seat = self.peers[peer].seat;
        if self.rig.state(seat) == ConnState::Free {
            self.rig.open_raw(seat);
        }
    }

    fn gone(&mut self, peer: usize) {
        let peer = &mut self.peers[peer];
        self.rig.server.gone(peer.seat);
        assert_eq!(self.rig.state(peer.seat), ConnState::Free);
        let stale = peer.pending.iter().map(Pending::wr_id).collect();
        *peer = Peer {
            stale,
            ..Peer::at(peer.seat)
        };
    }

    fn write_entry(&mut self, peer: usize, input: &mut Input<'_>) {
        let geometry = self.rig.geometry;
        let Peer {
            seat,
            entry,
            calls,
            told_epoch,
            ..
        } = self.peers[peer];
        let lines = (geometry.request_block_bytes() / LINE) as u32;
        let number = input.near(entry.wrapping_add(1));
        let stride = LINE as u32 * (1 + input.below(lines));
        let count = 1 + input.below(geometry.window());
        let entry = Entry {
            quiet_epoch: input.near(told_epoch),
            first_call: input.near(calls + 1),
            staged_at: input.near(geometry.staging(0) as u64),
            stride: input.near_u32(stride),
            count: input.near_u32(count),
        };
        let owner = input.near(self.rig.owners[seat as usize]);
        let placement = self.rig.setup.limits.placement;
        let exposed = self.rig.exposed.region();
        entry.seal(exposed, geometry.endpoint(seat), owner, number, placement);
        exposed.store_byte_release(geometry.demand_byte(seat), number as u8);
        self.peers[peer].entry_written = number;
        self.act();
    }

    /// A request with some of it wrong, in the peer's own zone.
    fn write_request(&mut self, peer: usize, input: &mut Input<'_>) {
        let Peer { seat, calls, .. } = self.peers[peer];
        let Some(zone) = self.rig.zone(seat) else {
            return;
        };
        let ahead = match input.flag() {
            true => input.below(self.rig.geometry.window()),
            false => 0,
        };
        let number = input.near(calls + 1 + u64::from(ahead));
        let owner = input.near(self.rig.owners[seat as usize]);
        self.request_to(zone, owner, number, input);
    }

    fn request_to(&mut self, zone: u32, owner: u64, number: u64, input: &mut Input<'_>) {
        let max = self.rig.geometry.request_max_bytes();
        let payload = vec![input.byte(); input.byte() as usize % (max + 1)];
        let head = Head {
            len: payload.len() as u32,
            tag: input.byte().into(),
            flags: match input.byte() {
                0..=0xb0 => 0,
                0xb1..=0xe0 => FLAG_EXT,
                0xe1..=0xf0 => FLAG_CANCELLED,
                // Any but the one that announces an extension, which there is none of.
                _ => 2 << input.below(15),
            },
            slot: input.byte().into(),
        };
        let ext = (head.flags & FLAG_EXT != 0).then(|| Ext {
            epoch: input.near(20_000),
            consumed: input.near(0),
            zone: input.near_u32(0),
            pool: 0,
        });
        let (head, payload) = match head.flags == FLAG_CANCELLED && input.flag() {
            true => (
                Head {
                    len: 0,
                    tag: 0,
                    ..head
                },
                Vec::new(),
            ),
            false => (head, payload),
        };
        self.rig
            .write_options_to(zone, owner, number, head, ext, &payload);
        if input.byte() & 7 == 7 {
            // Its trailer says something else. (With a checksum it has not arrived.)
            let geometry = &self.rig.geometry;
            let end = geometry.block_end(zone / geometry.zones(), zone % geometry.zones(), number);
            let word = 8 * (1 + input.below(4)) as usize;
            let exposed = self.rig.exposed.region();
            exposed.store_release(end - word, input.near(exposed.load(end - word)));
        }
    }

    /// Any words, anywhere in the peer's own zone.
    fn write_zone(&mut self, peer: usize, input: &mut Input<'_>) {
        let Some(zone) = self.rig.zone(self.peers[peer].seat) else {
            return;
        };
        let geometry = &self.rig.geometry;
        let (pool, zone) = (zone / geometry.zones(), zone % geometry.zones());
        let end = geometry.block_end(pool, zone, input.byte().into());
        let words = geometry.request_block_bytes() / 8;
        let at = end - 8 * (1 + input.byte() as usize % words);
        self.rig.exposed.region().store_release(at, input.word());
    }

    /// Something that was posted to the peer is done, and all before it; or the connection fails there.
    fn complete(&mut self, peer: usize, input: &mut Input<'_>) {
        let count = self.peers[peer].pending.len() as u32;
        if count == 0 {
            return;
        }
        let at = input.below(count.min(256));
        let failure = match input.byte() {
            0..=0xef => None,
            0xf0..=0xf7 => Some(WcStatus::Flushed),
            _ => Some(WcStatus::Failed {
                status: 12,
                vendor_err: 1,
            }),
        };
        for place in 0..=at {
            let Some(done) = self.peers[peer].pending.pop_front() else {
                return;
            };
            let status = failure.filter(|_| place == at).unwrap_or(WcStatus::Success);
            if status == WcStatus::Success && !done.reports() {
                if place == at {
                    // Nobody hears of it yet.
                    self.peers[peer].pending.push_front(done);
                }
                continue;
            }
            if let Pending::Read(wr) = &done {
                self.land(wr, input);
            }
            self.rig.server.completed(Completion {
                wr_id: done.wr_id(),
                status,
            });
        }
    }

    /// The bytes that a READ fetches from a peer: requests, or whatever was there.
    fn land(&mut self, wr: &ReadWr, input: &mut Input<'_>) {
        let geometry = self.rig.geometry;
        let owner = self.rig.owners[wr.connection as usize];
        let still = self.rig.zone(wr.connection) == Some(wr.pool * geometry.zones() + wr.zone);
        for (i, to) in wr.targets(&geometry).enumerate().filter(|_| still) {
            if input.byte() < 0xd0 {
                let zone = wr.pool * geometry.zones() + wr.zone;
                self.request_to(zone, owner, wr.first_call + i as u64, input);
            } else {
                let exposed = self.rig.exposed.region();
                (to..to + wr.stride)
                    .step_by(8)
                    .for_each(|at| exposed.store(at, input.word()));
            }
        }
    }

    /// The back end is done with a revocation that the server asked for, perhaps long ago.
    fn revoke(&mut self, peer: usize, input: &mut Input<'_>) {
        let seat = self.peers[peer].seat;
        let asked = &self.rig.log.revocations;
        let mut of_peer = asked.iter().rev().filter(|it| it.0 == seat);
        if let Some(&(_, epoch)) = of_peer.nth(input.below(4) as usize) {
            self.rig.server.revoked(seat, epoch);
        }
    }

    /// The peers go. Whatever they have done, the seats are as good as new.
    fn end(&mut self) {
        self.keep = false;
        self.rig.setup.revokes = true;
        while let Some(call) = self.kept.pop() {
            self.echo(call);
        }
        // As long as they are there, the others are served.
        self.settle_honest();
        for peer in 0..self.peers.len() {
            self.gone(peer);
        }
        self.settle_honest();
        let seats = self.rig.geometry.clients_max();
        let counters = self.rig.server.counters();
        assert_eq!(counters.connections, u64::from(self.honest));
        assert_eq!(counters.opened - counters.gone, counters.connections);
        self.honest = seats;
        self.requests.resize(seats as usize, Vec::new());
        for seat in 0..seats {
            if self.rig.clients[seat as usize].is_none() {
                self.rig.open(seat);
            }
        }
        for _ in 0..3 {
            for seat in 0..seats {
                let sent = self.rig.call(seat, &[]);
                assert!(sent.is_ok(), "{sent:?}");
                self.requests[seat as usize].push(Vec::new());
            }
            self.settle_honest();
        }
        for seat in 0..seats {
            self.rig.server.gone(seat);
        }
        let counters = self.rig.server.counters();
        assert_eq!((counters.connections, counters.groups), (0, 0));
        assert_eq!(counters.quarantined_now, 0);
        check_census(&self.rig, 0);
    }

    /// Turns until all calls of the honest clients have ended.
    fn settle_honest(&mut self) {
        // While nothing goes wrong at a peer, what was posted to it is done sooner or later.
        for turn in 0..5_000 {
            self.honest_turn();
            (0..16).for_each(|_| self.act());
            self.rig.now_ns += 1_000;
            if turn % 8 == 0 {
                self.complete_all();
            }
            let mut clients = self.rig.clients.iter().flatten();
            if clients.all(|client| client.engine.outstanding() == 0) {
                return;
            }
        }
        let virtual_mapping = self.rig.geometry.mapping() == Mapping::Virtual;
        let counters = self.rig.server.counters();
        panic!("honest calls never end (virtual mapping: {virtual_mapping}): {counters:?}");
    }

    fn complete_all(&mut self) {
        for peer in 0..self.peers.len() {
            while self.peers[peer].pending.iter().any(Pending::reports) {
                let done = self.peers[peer]
                    .pending
                    .pop_front()
                    .expect("one of them reports");
                if done.reports() {
                    let (wr_id, status) = (done.wr_id(), WcStatus::Success);
                    self.rig.server.completed(Completion { wr_id, status });
                }
            }
        }
    }
}
