//! The scheduler alone, with reports that the test makes up, and the words of the board.

use scalerpc_core::scheduler::{Board, Order, Report, Scheduler, Task, Wish};

use crate::common::arena::Arena;

const SLICE_NS: u64 = 100_000;

/// A worker that has carried out the last order, and has nothing to do.
fn idle(scheduler: &Scheduler) -> Report {
    Report {
        acknowledged: scheduler.order().sequence,
        done: true,
        ..Report::default()
    }
}

fn wish(group: u32, since_ns: u64) -> Option<Wish> {
    Some(Wish { group, since_ns })
}

fn task(order: Option<Order>) -> Option<Task> {
    order.map(|order| order.task)
}

/// A scheduler whose workers have carried out that this group is next.
fn with_next(group: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(SLICE_NS);
    let worker = Report {
        wish: wish(group, 0),
        ..idle(&scheduler)
    };
    assert_eq!(task(scheduler.step(0, [worker])), Some(Task::Next(group)));
    scheduler
}

#[test]
fn nobody_with_demand_means_no_order() {
    let mut scheduler = Scheduler::new(SLICE_NS);
    for now_ns in 0..10 {
        let worker = idle(&scheduler);
        assert_eq!(scheduler.step(now_ns * SLICE_NS, [worker; 3]), None);
    }
}

#[test]
fn the_oldest_wish_of_all_workers_is_next() {
    let mut scheduler = Scheduler::new(SLICE_NS);
    let reports = [wish(1, 3_000), wish(2, 1_000), None, wish(3, 2_000)].map(|wish| Report {
        wish,
        ..idle(&scheduler)
    });
    let order = scheduler.step(4_000, reports);
    assert_eq!(task(order), Some(Task::Next(2)));
    assert_eq!(scheduler.order(), order.unwrap());
}

/// Clocks are read on several threads, and times wrap on the board.
#[test]
fn a_wish_from_the_future_is_young_and_times_may_wrap() {
    let mut scheduler = Scheduler::new(SLICE_NS);
    let now_ns = 1 << 46;
    let reports = [wish(1, now_ns + 700), wish(2, now_ns - 700)].map(|wish| Report {
        wish,
        ..idle(&scheduler)
    });
    let order = scheduler.step(now_ns, reports);
    assert_eq!(task(order), Some(Task::Next(2)));
}

#[test]
fn no_order_is_given_until_all_have_carried_out_the_last_one() {
    let mut scheduler = with_next(1);
    let ready = Report {
        ready: true,
        ..idle(&scheduler)
    };
    let behind = Report {
        acknowledged: scheduler.order().sequence.wrapping_sub(1),
        ..ready
    };
    for now_ns in [1, SLICE_NS, 10 * SLICE_NS] {
        assert_eq!(scheduler.step(now_ns, [ready, behind]), None);
        assert_eq!(scheduler.step(now_ns, [behind, ready]), None);
    }
    let order = scheduler.step(10 * SLICE_NS, [ready, ready]);
    assert_eq!(task(order), Some(Task::Switch));
    // Before it is carried out there is no other one.
    let wish = Report {
        wish: wish(5, 0),
        ..ready
    };
    assert_eq!(scheduler.step(11 * SLICE_NS, [wish, wish]), None);
}

#[test]
fn a_switch_takes_one_who_is_ready_and_all_who_are_done() {
    let mut scheduler = with_next(1);
    let done = idle(&scheduler);
    let busy = Report {
        done: false,
        ..done
    };
    let ready = Report {
        ready: true,
        ..done
    };
    assert_eq!(scheduler.step(1, [done, done]), None, "nobody is ready");
    assert_eq!(scheduler.step(1, [busy, ready]), None, "one is not done");
    let order = scheduler.step(1, [done, ready]);
    assert_eq!(task(order), Some(Task::Switch));
}

#[test]
fn a_group_that_hangs_yields_after_a_slice_and_one_without_demand_at_once() {
    let other = |scheduler: &Scheduler| Report {
        wish: wish(2, 5),
        ..idle(scheduler)
    };
    let mut scheduler = with_next(1);
    let hangs = Report {
        coming: true,
        ..idle(&scheduler)
    };
    let reports = [hangs, other(&scheduler)];
    assert_eq!(scheduler.step(SLICE_NS - 1, reports), None);
    let order = scheduler.step(SLICE_NS, reports);
    assert_eq!(task(order), Some(Task::Next(2)));

    let mut scheduler = with_next(1);
    let reports = [idle(&scheduler), other(&scheduler)];
    let order = scheduler.step(1, reports);
    assert_eq!(task(order), Some(Task::Next(2)));
}

#[test]
fn a_group_is_not_replaced_by_itself_nor_by_one_that_finds_no_zone() {
    for (group, full) in [(1, false), (2, true)] {
        let mut scheduler = with_next(1);
        let worker = Report {
            wish: wish(group, 0),
            full,
            ..idle(&scheduler)
        };
        assert_eq!(scheduler.step(2 * SLICE_NS, [worker]), None);
    }
}

/// After a switch there is no group that is next, until somebody has demand.
#[test]
fn what_was_next_is_forgotten_at_the_switch() {
    let mut scheduler = with_next(1);
    let ready = Report {
        ready: true,
        ..idle(&scheduler)
    };
    assert_eq!(task(scheduler.step(1, [ready])), Some(Task::Switch));
    let switched = idle(&scheduler);
    assert_eq!(scheduler.step(2, [switched]), None);
    let again = Report {
        wish: wish(1, 2),
        ..switched
    };
    assert_eq!(task(scheduler.step(2, [again])), Some(Task::Next(1)));
}

#[test]
fn sequence_numbers_differ_from_one_order_to_the_next() {
    let mut scheduler = Scheduler::new(SLICE_NS);
    let mut last = scheduler.order().sequence;
    for group in 0..6 {
        let worker = Report {
            ready: group % 2 == 1,
            wish: wish(group, 0),
            ..idle(&scheduler)
        };
        let order = scheduler.step(0, [worker]).unwrap();
        assert_eq!(order.sequence, last.wrapping_add(1));
        last = order.sequence;
    }
}

#[test]
fn a_board_has_a_line_for_the_order_and_for_each_worker() {
    type Words<'a> = Board<'a, scalerpc_core::Region>;
    assert_eq!(Words::bytes(3), 4 * 64);
    let arena = Arena::new(Words::bytes(3));
    assert!(Board::new(arena.region(), 4).is_none(), "it is too short");
    let board = Board::new(arena.region(), 3).unwrap();
    for worker in 0..3 {
        assert_eq!(board.report(worker), Report::default(), "zeroed memory");
    }
}

#[test]
fn the_bound_grows_with_groups_turns_and_looks() {
    let bound = Scheduler::wait_bound_ns;
    assert_eq!(bound(1, 1_000, 10), 2_080);
    assert_eq!(bound(4, 1_000, 10), 5_200);
    assert_eq!(bound(u32::MAX, u64::MAX, u64::MAX), u64::MAX);
}
