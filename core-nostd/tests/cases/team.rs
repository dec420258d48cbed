//! Several led engines under one scheduler, each with its own clients.

use scalerpc_core::Region;
use scalerpc_core::scheduler::{Board, Follower, Order, Scheduler, Task};
use scalerpc_core::server::ConnState;

use crate::common::arena::Arena;
use crate::common::{Rig, Setup};

/// Time from one look at the board to the next, if no handler runs.
const ROUND_NS: u64 = 500;

struct Team {
    workers: Vec<Rig>,
    followers: Vec<Follower>,
    scheduler: Scheduler,
    board: Arena,
    now_ns: u64,
    orders: Vec<Order>,
}

/// Groups of one: seat g of each worker is in group g.
fn setup(groups: u32) -> Setup {
    let mut setup = Setup::single_groups(groups);
    setup.server.led = true;
    setup
}

impl Team {
    fn new(setup: Setup, workers: usize) -> Self {
        let seats = setup.geometry.clients_max;
        Self {
            workers: (0..workers)
                .map(|_| Rig::with_clients(setup, seats))
                .collect(),
            followers: (0..workers).map(Follower::new).collect(),
            scheduler: Scheduler::new(setup.server.time_slice_ns),
            board: Arena::new(Board::<Region>::bytes(workers)),
            now_ns: 0,
            orders: Vec::new(),
        }
    }

    /// One round of a worker.
    fn work(&mut self, worker: usize) {
        let rig = &mut self.workers[worker];
        rig.now_ns = rig.now_ns.max(self.now_ns);
        rig.clients_turn();
        let mut actions = 0;
        while rig.act() {
            actions += 1;
            assert!(actions < 100_000, "a round ends");
        }
        self.followers[worker].follow(&mut rig.server, self.board.region());
    }

    fn attend(&mut self) {
        let board = Board::new(self.board.region(), self.workers.len()).unwrap();
        let order = board.attend(&mut self.scheduler, self.now_ns);
        self.orders.extend(order);
    }

    /// A round of each worker, at the same time, and a look of the scheduler.
    fn round(&mut self) {
        self.now_ns += ROUND_NS;
        for worker in 0..self.workers.len() {
            self.work(worker);
        }
        let latest = self.workers.iter().map(|rig| rig.now_ns).max();
        self.now_ns = self.now_ns.max(latest.unwrap());
        self.attend();
        for rig in &self.workers {
            rig.server.census().unwrap();
        }
    }

    fn until(&mut self, done: impl Fn(&mut Self) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.round();
        }
        let counters = self.workers.iter().map(|rig| rig.server.counters());
        panic!("it never comes: {:#?}", counters.collect::<Vec<_>>());
    }

    fn call(&mut self, worker: usize, seat: u32) -> u64 {
        self.workers[worker].call(seat, b"call").unwrap()
    }

    fn is_answered(&mut self, worker: usize, seat: u32, call: u64) -> bool {
        self.workers[worker].answered(seat).last() == Some(&call)
    }

    fn call_and_wait(&mut self, worker: usize, seat: u32) -> u64 {
        let begun_ns = self.now_ns;
        let call = self.call(worker, seat);
        self.until(|team| team.is_answered(worker, seat, call));
        self.now_ns - begun_ns
    }

    /// Of each worker.
    fn switches(&self) -> Vec<u64> {
        let counters = self.workers.iter().map(|rig| rig.server.counters());
        counters.map(|it| it.switches).collect()
    }

    /// The pool that each worker processes.
    fn processing(&self) -> Vec<bool> {
        let first = |rig: &Rig| rig.server.pool(0).unwrap().processing;
        self.workers.iter().map(first).collect()
    }

    fn hold(&mut self, worker: usize, seat: u32, held: bool) {
        self.workers[worker].client(seat).down.held = held;
    }
}

#[test]
fn all_workers_switch_together_although_one_alone_has_demand() {
    let mut team = Team::new(setup(3), 2);
    for _ in 0..5 {
        for seat in 0..3 {
            team.call_and_wait(0, seat);
            // Where the last order is carried out, all are at the same group.
            team.round();
            team.round();
            let processing = team.processing();
            assert_eq!(processing[0], processing[1]);
        }
    }
    assert_eq!(team.switches(), [14, 14]);
    let calls: Vec<_> = team
        .workers
        .iter()
        .map(|rig| rig.server.counters().calls)
        .collect();
    assert_eq!(calls, [15, 0]);
}

#[test]
fn both_parts_of_a_group_are_served_in_the_same_slice() {
    let mut team = Team::new(setup(3), 2);
    for seat in 0..3 {
        let calls = [team.call(0, seat), team.call(1, seat)];
        team.until(|team| (0..2).all(|worker| team.is_answered(worker, seat, calls[worker])));
    }
    // The first switch gives up nobody's pool, and is not counted.
    assert_eq!(team.switches(), [2, 2]);
    assert_eq!(team.orders.len(), 6, "{:?}", team.orders);
}

/// Who would sleep must not leave the others waiting for its acknowledgement.
#[test]
fn a_worker_is_settled_only_when_it_has_carried_out_the_last_order() {
    let mut team = Team::new(setup(3), 2);
    let settled = |team: &Team, it: usize| team.followers[it].is_settled(team.board.region());
    assert!(settled(&team, 1), "no order yet");
    let busy = std::cell::Cell::new(0);
    for seat in 0..3 {
        let call = team.call(0, seat);
        team.until(|team| {
            let board = Board::new(team.board.region(), 2).unwrap();
            let last = team.orders.last();
            let told = last.is_none_or(|last| board.report(1).acknowledged == last.sequence);
            assert_eq!(settled(team, 1), told);
            busy.set(busy.get() + u32::from(!told));
            team.is_answered(0, seat, call)
        });
    }
    assert!(busy.get() >= 3, "{busy:?}");
}

/// Demand that comes later finds its group served, in another worker.
#[test]
fn a_member_joins_the_slice_that_its_group_has_in_another_worker() {
    let mut team = Team::new(setup(3), 2);
    team.call_and_wait(0, 1);
    let waited_ns = team.call_and_wait(1, 1);
    assert!(waited_ns <= 6 * ROUND_NS, "{waited_ns}");
    assert_eq!(team.switches(), [0, 0]);
}

/// Rule R7.
#[test]
fn a_lone_group_keeps_running() {
    let mut team = Team::new(setup(3), 2);
    team.call_and_wait(0, 2);
    let (orders, slice_ns) = (team.orders.len(), team.scheduler_slice_ns());
    while team.now_ns < 20 * slice_ns {
        let waited_ns = team.call_and_wait(0, 2);
        assert!(waited_ns <= 4 * ROUND_NS, "{waited_ns}");
        team.call_and_wait(1, 2);
    }
    assert_eq!(team.orders.len(), orders, "no order for nobody");
}

impl Team {
    fn scheduler_slice_ns(&self) -> u64 {
        self.workers[0].setup.server.time_slice_ns
    }
}

#[test]
fn an_idle_group_yields_before_its_slice_is_over() {
    let mut setup = setup(2);
    setup.server.time_slice_ns = 1_000_000;
    let mut team = Team::new(setup, 2);
    team.call_and_wait(0, 0);
    let waited_ns = team.call_and_wait(1, 1);
    let most_ns = setup.server.idle_switch_ns + 10 * ROUND_NS;
    assert!(waited_ns <= most_ns, "{waited_ns}");
    // One that is not idle does not, in whichever worker that is.
    let begun_ns = team.now_ns;
    let probe = team.call(0, 0);
    team.until(|team| {
        while team.workers[1].call(1, b"busy").is_ok() {}
        team.is_answered(0, 0, probe)
    });
    let waited_ns = team.now_ns - begun_ns;
    assert!(waited_ns >= setup.server.time_slice_ns / 2, "{waited_ns}");
}

/// Rule R6: the group's other part is served, and so are the other groups.
#[test]
fn a_fetch_that_hangs_in_one_worker_holds_nobody_up() {
    let mut team = Team::new(setup(3), 2);
    let slice_ns = team.scheduler_slice_ns();
    team.call_and_wait(0, 0);
    team.hold(0, 1, true);
    let hung = team.call(0, 1);
    // Its own group, in the other worker.
    let waited_ns = team.call_and_wait(1, 1);
    assert!(waited_ns <= slice_ns, "{waited_ns}");
    for _ in 0..4 {
        for (worker, seat) in [(1, 2), (0, 2), (0, 0), (1, 0)] {
            let waited_ns = team.call_and_wait(worker, seat);
            assert!(waited_ns <= 2 * slice_ns, "{waited_ns}");
        }
    }
    team.hold(0, 1, false);
    team.until(|team| team.is_answered(0, 1, hung));
    assert_eq!(team.workers[0].server.counters().guests, 1);
}

/// Rule R6: a group that is a fetch that hangs, and nothing else.
#[test]
fn a_group_of_which_nobody_is_ready_yields_after_a_slice() {
    let mut team = Team::new(setup(3), 2);
    let slice_ns = team.scheduler_slice_ns();
    team.call_and_wait(0, 0);
    team.hold(0, 1, true);
    let hung = team.call(0, 1);
    team.until(|team| team.workers[0].state(1) == ConnState::Fetching);
    let waited_ns = team.call_and_wait(1, 2);
    assert!(waited_ns >= slice_ns / 2, "it has waited for the group");
    assert!(waited_ns <= slice_ns + 20 * ROUND_NS, "{waited_ns}");
    team.hold(0, 1, false);
    team.until(|team| team.is_answered(0, 1, hung));
}

/// An engine, its orders given by hand.
fn engine(groups: u32) -> Rig {
    Rig::with_clients(setup(groups), groups)
}

fn obey(rig: &mut Rig, sequence: u32, task: Task) {
    assert!(rig.server.obey(Order { sequence, task }));
    rig.turn(100);
    let report = rig.server.report();
    assert_eq!(report.acknowledged, sequence, "{report:?}");
}

#[test]
fn a_led_engine_does_nothing_without_an_order() {
    let mut rig = engine(2);
    rig.call(1, b"call").unwrap();
    rig.turn(1_000);
    let wish = rig.server.report().wish.unwrap();
    assert_eq!(wish.group, 1);
    rig.turn(10_000_000);
    assert_eq!(rig.server.report().wish, Some(wish), "its age stays");
    assert_eq!(rig.state(1), ConnState::Idle);
    obey(&mut rig, 1, Task::Next(1));
    assert!(rig.server.report().ready && rig.server.report().wish.is_none());
    rig.turn(10_000_000);
    assert!(rig.served(1).is_empty());
    obey(&mut rig, 2, Task::Switch);
    assert_eq!(rig.served(1).len(), 1);
}

#[test]
fn an_order_is_carried_out_once_and_one_that_cannot_be_is_refused() {
    let mut rig = engine(2);
    let switch = |sequence| Order {
        sequence,
        task: Task::Switch,
    };
    assert!(!rig.server.obey(switch(1)), "there is nothing to switch to");
    obey(&mut rig, 1, Task::Next(0));
    obey(&mut rig, 2, Task::Switch);
    let first = rig.server.pool(0).unwrap().processing;
    for _ in 0..3 {
        assert!(rig.server.obey(switch(2)), "it is known");
        rig.turn(100);
    }
    assert_eq!(rig.server.pool(0).unwrap().processing, first);
    let next = |sequence| Order {
        sequence,
        task: Task::Next(1),
    };
    assert!(rig.server.obey(next(3)));
    assert!(!rig.server.obey(next(4)), "the one before is under way");
    // There are fewer groups than that.
    rig.turn(100);
    obey(&mut rig, 4, Task::Next(u32::MAX));
}

/// The group that is replaced waits again, and the fetch that was too late is a guest.
#[test]
fn a_next_group_of_which_nobody_is_ready_is_replaced() {
    let mut rig = engine(3);
    rig.client(1).down.held = true;
    rig.call(1, b"late").unwrap();
    rig.call(2, b"call").unwrap();
    rig.turn(100);
    obey(&mut rig, 1, Task::Next(1));
    let report = rig.server.report();
    assert!(!report.ready && report.coming, "{report:?}");
    assert_eq!(report.wish.unwrap().group, 2);
    obey(&mut rig, 2, Task::Next(2));
    assert!(rig.server.report().ready);
    rig.client(1).down.held = false;
    rig.turn(100);
    assert_eq!(rig.server.counters().guests, 1);
    obey(&mut rig, 3, Task::Switch);
    assert_eq!((rig.served(1).len(), rig.served(2).len()), (1, 1));
}

/// Who is ready stays, in the tenancy that the other group takes over.
#[test]
fn who_is_ready_is_served_with_the_group_that_replaces_its_own() {
    let mut rig = engine(3);
    rig.call(1, b"early").unwrap();
    rig.call(2, b"call").unwrap();
    rig.turn(100);
    obey(&mut rig, 1, Task::Next(1));
    let epoch = rig.server.pool(1).unwrap().epoch;
    obey(&mut rig, 2, Task::Next(2));
    let pool = rig.server.pool(1).unwrap();
    assert_eq!((pool.epoch, pool.active), (epoch, 2));
    obey(&mut rig, 3, Task::Switch);
    assert_eq!((rig.served(1).len(), rig.served(2).len()), (1, 1));
    rig.server.census().unwrap();
}

/// A fetch that comes when the pool in warmup is nobody's makes a wish.
#[test]
fn a_fetch_that_outlasts_its_slice_asks_for_another_one() {
    let mut rig = engine(3);
    rig.client(1).down.held = true;
    rig.call(1, b"late").unwrap();
    rig.turn(100);
    obey(&mut rig, 1, Task::Next(1));
    obey(&mut rig, 2, Task::Switch);
    rig.call(2, b"call").unwrap();
    rig.turn(100);
    obey(&mut rig, 3, Task::Next(2));
    obey(&mut rig, 4, Task::Switch);
    assert_eq!(rig.server.report().wish, None);
    rig.client(1).down.held = false;
    rig.turn(100);
    let report = rig.server.report();
    assert!(report.ready, "{report:?}");
    assert_eq!(report.wish.unwrap().group, 1);
    obey(&mut rig, 5, Task::Next(1));
    obey(&mut rig, 6, Task::Switch);
    assert_eq!(rig.served(1).len(), 1);
}

/// Where there is no zone, a group that yields keeps its place.
#[test]
fn a_group_without_zones_does_not_lose_its_age() {
    let mut rig = engine(4);
    assert_eq!(rig.geometry.zones(), 2);
    // Two clients take the zones of one pool, and never say that they are quiet.
    for (sequence, seat) in [(1, 0), (5, 1)] {
        rig.call(seat, b"call").unwrap();
        rig.turn(100);
        obey(&mut rig, sequence, Task::Next(seat));
        obey(&mut rig, sequence + 1, Task::Switch);
        rig.client(seat).stopped = true;
        obey(&mut rig, sequence + 2, Task::Next(3));
        obey(&mut rig, sequence + 3, Task::Switch);
    }
    assert!(rig.server.report().full, "{:?}", rig.server.report());
    rig.call(2, b"first").unwrap();
    rig.turn(100);
    rig.call(3, b"second").unwrap();
    rig.turn(100);
    let wish = rig.server.report().wish.unwrap();
    assert_eq!(wish.group, 2);
    obey(&mut rig, 9, Task::Next(2));
    let report = rig.server.report();
    assert!(report.coming, "it waits for a zone");
    assert_eq!(report.wish, None, "it is no wish any more");
    obey(&mut rig, 10, Task::Next(1));
    assert_eq!(rig.server.report().wish, Some(wish));
    rig.server.census().unwrap();
}

/// Its members that come later wait for the same turn, not for another one.
#[test]
fn a_group_that_is_next_makes_no_wish() {
    let mut setup = setup(16);
    setup.geometry.group_size = 2;
    let mut rig = Rig::with_clients(setup, 16);
    let (mut sequence, mut group) = (0, 0);
    let mut give = |rig: &mut Rig, task| {
        sequence += 1;
        obey(rig, sequence, task);
    };
    // Clients take the zones of one pool, and never say that they are quiet.
    while !rig.server.report().full {
        rig.call(2 * group, b"call").unwrap();
        rig.turn(100);
        give(&mut rig, Task::Next(group));
        give(&mut rig, Task::Switch);
        rig.client(2 * group).stopped = true;
        give(&mut rig, Task::Next(6));
        give(&mut rig, Task::Switch);
        group += 1;
    }
    assert!(group < 5);
    rig.call(14, b"first").unwrap();
    rig.turn(100);
    let wish = rig.server.report().wish;
    give(&mut rig, Task::Next(7));
    rig.call(15, b"second").unwrap();
    rig.turn(100);
    let report = rig.server.report();
    assert!(report.coming && report.wish.is_none(), "{report:?}");
    give(&mut rig, Task::Next(5));
    assert_eq!(
        rig.server.report().wish,
        wish,
        "it has the age of the first"
    );
}

/// Rule R8, over numbers of workers and handlers from short to longer than a slice.
#[test]
fn nobody_waits_longer_than_the_bound() {
    for workers in 1..=3 {
        for handler_ns in [700, 20_000, 300_000] {
            for groups in [2, 5] {
                assert_waits(workers, handler_ns, groups);
            }
        }
    }
}

fn assert_waits(workers: usize, handler_ns: u64, groups: u32) {
    let mut setup = setup(groups);
    setup.handler_ns = handler_ns;
    let mut team = Team::new(setup, workers);
    // A round is as long as its calls take, or a drain.
    let engine = &team.workers[0].server;
    let turn_ns = engine.wait_bound_ns(1, handler_ns);
    let look_ns = ROUND_NS + 16 * handler_ns;
    let bound_ns = Scheduler::wait_bound_ns(groups, turn_ns, look_ns);
    let slices_ns = u64::from(groups) * setup.server.time_slice_ns;
    for probe in 0..2 * groups {
        let (worker, seat) = (probe as usize % workers, probe % groups);
        let begun_ns = team.now_ns;
        let call = team.call(worker, seat);
        team.until(|team| {
            for (at, rig) in team.workers.iter_mut().enumerate() {
                for other in (0..groups).filter(|&other| (at, other) != (worker, seat)) {
                    while rig.call(other, b"busy").is_ok() {}
                }
            }
            team.is_answered(worker, seat, call)
        });
        let waited_ns = team.now_ns - begun_ns;
        assert!(waited_ns <= bound_ns, "{waited_ns} of {bound_ns}");
        // The bound is none if it is far away.
        assert!(handler_ns > 700 || bound_ns <= 6 * slices_ns, "{bound_ns}");
        team.until(|team| {
            let mut clients = team.workers.iter().flat_map(|rig| rig.clients.iter());
            clients.all(|it| it.as_ref().is_none_or(|it| it.engine.outstanding() == 0))
        });
    }
}
