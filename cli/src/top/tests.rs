//! The screen of a server that is made up, as text.

use std::sync::mpsc::channel;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use scalerpc::observe::{
    ConnState, ConnView, GroupView, Histograms, PoolView, QuarantineView, ServerView, Snapshot,
};
use scalerpc::{Class, Counters, Eviction, Grouping, Mapping, Violation};

use super::json;
use super::sampler::Problem;
use super::terminal::{Next, Screen};
use super::view::{Sample, Sort, View};
use crate::place::Place;

fn conn(seat: u32, calls: u64) -> (u32, ConnView) {
    let view = ConnView {
        state: if seat % 3 == 0 {
            ConnState::Active
        } else {
            ConnState::Idle
        },
        zone: (seat % 3 == 0).then_some(seat),
        group: Some(seat / 4),
        class: if seat / 4 == 1 {
            Class::High
        } else {
            Class::Normal
        },
        score: Some(20),
        calls,
        answers_owed: 2,
        waited_ns: (seat % 3 == 1).then_some(1_500_000 * u64::from(seat)),
        worst_wait_ns: 9_000_000 - 1_000 * u64::from(seat),
    };
    (seat, view)
}

/// A server of 12 seats in groups of 4, at its `turn`th second. Seat 7 is the busiest.
fn snapshot(turn: u64) -> Snapshot {
    let calls = |seat: u64| turn * if seat == 7 { 90_000 } else { 100 * (seat + 1) };
    let mut histograms = Box::<Histograms>::default();
    for i in 1..=1_000 * turn {
        histograms.slice_ns.record(1_000_000 + i);
        histograms.calls_per_slice.record(40);
        // Much longer in the first second than later.
        histograms
            .wait_ns
            .record(if i <= 1_000 { 50_000_000 } else { 2_000_000 });
    }
    Snapshot {
        server: ServerView {
            now_ns: turn * 1_000_000_000,
            clients_max: 1_024,
            group_size: 4,
            window: 16,
            zones: 6,
            groups_max: 10,
            mapping: Mapping::Virtual,
            grouping: Grouping::Priority,
            time_slice: Duration::from_millis(1),
            draining: false,
            worker: 0,
            workers: 1,
            asked_by: Some(2),
            last_eviction: Some(Eviction {
                seat: 11,
                why: Some(Violation::Window),
            }),
        },
        counters: Counters {
            calls: (0..10).map(calls).sum(),
            direct_writes: turn * 90_000,
            staged_calls: turn * 4_000,
            slices: turn * 1_000,
            switches: turn * 998,
            opened: 11,
            violations: 1,
            connections: 10,
            groups: 3,
            ..Counters::default()
        },
        pools: vec![
            PoolView {
                processing: false,
                group: Some(2),
                epoch: Some(1_235),
                active: 1,
                fetching: 3,
                free: 2,
            },
            PoolView {
                processing: true,
                group: Some(1),
                epoch: Some(1_234),
                active: 4,
                fetching: 0,
                free: 1,
            },
        ],
        groups: (0..3)
            .map(|group| {
                let class = if group == 1 {
                    Class::High
                } else {
                    Class::Normal
                };
                (
                    group,
                    GroupView {
                        class,
                        members: 4 - group / 2 * 2,
                        has_demand: true,
                    },
                )
            })
            .collect(),
        quarantine: vec![QuarantineView {
            zone: 3,
            seat: 5,
            epoch: 1_230,
            age_ns: 300_000_000,
            tries: 2,
            event_owed: false,
        }],
        connections: (0..10).map(|seat| conn(seat, calls(seat.into()))).collect(),
        histograms,
    }
}

fn sample(turn: u64) -> Sample {
    Sample {
        at: Duration::from_secs(turn),
        snapshot: snapshot(turn),
    }
}

fn place() -> Place {
    Place::Shm("/tmp/meta.sock".into())
}

fn screen(sort: Sort) -> Screen {
    let mut screen = Screen::new(&place(), sample(1), channel().0, sort, false);
    screen.take(Ok(sample(2)));
    screen
}

/// What is on a terminal of this size.
fn text(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(width.into());
    let row = |row: &[ratatui::buffer::Cell]| {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    };
    rows.map(row).collect()
}

const AT_80_24: &str = "\
scalerpc top  /tmp/meta.sock
connections 10 of 1,024, window 16, slices of 1.00 ms, groups of 4
groups      3 (1 high, 2 normal, 0 low); 3 wait
calls       94,700/s: 90,000 direct, 4,000 staged; 189,400 in all
switches    998/s; slices 1,000/s; stalls 0/s; 0 moved, 0 merged
evicted     1 for violations, 0 for failures; last: seat 11, more calls than the
            window holds
pool A      warmup      group 2, epoch 1,235: 1 active, 3 fetching
pool B      processing  group 1, epoch 1,234: 4 active, 0 fetching
zones       12: 3 free, 8 mapped, 1 in quarantine (oldest 300 ms, seat 5)
in 1.0 s             p50      p99      max   group  class   size  wait  calls/s
slice            1.00 ms  1.00 ms  1.00 ms       1* high       4     2   91,800
drain                  -        -        -       2+ normal     2     0    1,900
wait             2.10 ms  2.10 ms  2.10 ms       0  normal     4     1    1,000
fetch                  -        -        -
quarantine             -        -        -
calls per slice       40       40       40
   seat  group class   state       calls/s  owed     waits worst wait score
      7      1 high    waiting      90,000     2   10.5 ms    8.99 ms    20
      9      2 normal  active        1,000     2         -    8.99 ms    20
      8      2 normal  idle            900     2         -    8.99 ms    20
      6      1 high    active          700     2         -    8.99 ms    20
      6 more, sorted by calls/s
q quit  p pause  sort: c calls/s  w worst  a waits  s seat
";

#[test]
fn a_screen_of_80_columns_shows_everything() {
    let shown = text(&screen(Sort::Calls), 80, 24);
    assert_eq!(shown, AT_80_24);
    let wide = text(&screen(Sort::Calls), 200, 40);
    assert!(
        wide.contains("last: seat 11, more calls than the window holds"),
        "{wide}"
    );
    assert!(wide.contains("this 2"), "{wide}");
}

#[test]
fn on_a_narrow_screen_nothing_but_the_groups_is_lost() {
    let lines = text(&screen(Sort::Calls), 60, 40);
    // Lines that are too long are broken.
    let shown = lines.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "groups of 4",
        "189,400 in all",
        "0 merged",
        "3 fetching",
        "seat 5)",
        "window holds",
        "s seat",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    assert!(shown.contains("7 high waiting 90,000"), "{shown}");
    // As much as there is room for, and no panic where there is none.
    for (width, height) in [(1, 1), (20, 3), (60, 10), (79, 24), (300, 2)] {
        text(&screen(Sort::Calls), width, height);
    }
}

/// Seats in the order in which they are shown.
fn seats(screen: &Screen) -> Vec<u32> {
    let shown = text(screen, 80, 60);
    let rows = shown
        .lines()
        .skip_while(|line| !line.contains("worst wait"))
        .skip(1);
    let seats = rows.map_while(|row| {
        row.trim_start()
            .trim_start_matches("this ")
            .split(' ')
            .next()?
            .parse()
            .ok()
    });
    seats.collect()
}

#[test]
fn keys_sort_pause_and_end() {
    let mut screen = screen(Sort::Calls);
    let press = |screen: &mut Screen, key| {
        screen.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE))
    };
    assert_eq!(seats(&screen), [7, 9, 8, 6, 5, 4, 3, 2, 1, 0]);
    press(&mut screen, 's');
    assert_eq!(seats(&screen), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    press(&mut screen, 'a');
    assert_eq!(seats(&screen), [7, 4, 1, 0, 2, 3, 5, 6, 8, 9]);
    press(&mut screen, 'w');
    assert_eq!(seats(&screen), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    press(&mut screen, 'c');
    assert_eq!(press(&mut screen, 'p'), Next::GoOn);
    screen.take(Ok(sample(30)));
    let shown = text(&screen, 80, 24);
    assert!(
        shown.contains("189,400 in all") && shown.contains("PAUSED"),
        "{shown}"
    );
    press(&mut screen, ' ');
    screen.take(Ok(sample(30)));
    assert!(text(&screen, 80, 24).contains("2,841,000 in all"));
    assert_eq!(press(&mut screen, 'q'), Next::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.key(interrupt), Next::Quit);
}

#[test]
fn a_server_that_went_away_is_said_to_be_gone_and_its_follower_starts_anew() {
    let mut screen = screen(Sort::Calls);
    screen.take(Err(Problem::Gone("nobody listens".into())));
    let shown = text(&screen, 80, 24);
    assert!(shown.contains("trying again: nobody listens"), "{shown}");
    // The one that comes in its place has counted less.
    screen.take(Ok(Sample {
        at: Duration::from_secs(9),
        snapshot: snapshot(1),
    }));
    let shown = text(&screen, 80, 24);
    assert!(shown.contains("calls       -/s: - direct"), "{shown}");
    assert!(
        shown.contains("since the start") && !shown.contains("trying again"),
        "{shown}"
    );
}

#[test]
fn workers_are_shown_in_turn_each_by_itself() {
    let of = |worker, turn| {
        let mut sample = sample(turn);
        sample.snapshot.server.worker = worker;
        sample.snapshot.server.workers = 2;
        sample
    };
    let (wishes, wished) = channel();
    let mut screen = Screen::new(&place(), of(1, 1), wishes, Sort::Calls, false);
    let next = |screen: &mut Screen| {
        screen.key(KeyEvent::new(KeyCode::Char('n'), KeyModifiers::NONE));
        wished.try_recv().unwrap()
    };
    screen.key(KeyEvent::new(KeyCode::Char('p'), KeyModifiers::NONE));
    let footer = "PAUSED  q quit  p pause  sort: c calls/s  w worst  a waits  s seat  n worker";
    let shown = text(&screen, 80, 24);
    assert!(shown.lines().last().unwrap().contains(footer), "{shown}");
    assert_eq!(next(&mut screen), 0);
    screen.take(Ok(of(0, 2)));
    let shown = text(&screen, 80, 24);
    assert!(shown.contains("worker 0 of 2"), "{shown}");
    // What the other one has done is no start for it.
    assert!(shown.contains("calls       -/s: - direct"), "{shown}");
    assert_eq!(next(&mut screen), 1);
}

#[test]
fn an_object_has_the_same_numbers() {
    let (before, now) = (sample(1), sample(2));
    let view = View::new(&now, Some(&before), Sort::Calls);
    let json = json::object(&view, "here");
    assert_eq!(json["seconds"], 1.0);
    assert_eq!(json["rates"]["calls"], 94_700.0);
    assert_eq!(json["connections"][0]["seat"], 7);
    assert_eq!(json["connections"][0]["state"], "waiting");
    assert_eq!(json["groups"][0]["waiting"], 2);
    assert_eq!(json["quarantine"][0]["age_ns"], 300_000_000);
    assert_eq!(json["server"]["last_eviction"]["seat"], 11);
    let waits = &json["histograms"]["wait_ns"];
    assert_eq!(
        (&waits["recent"]["count"], &waits["all"]["count"]),
        (&1_000.into(), &2_000.into())
    );
    assert_eq!(waits["all"]["max"], 50_000_000);
    assert!(
        waits["recent"]["max"].as_u64().unwrap() < 2_300_000,
        "{waits}"
    );
    let first = json::object(&View::new(&before, None, Sort::Calls), "here");
    assert!(first["rates"]["calls"].is_null() && first["seconds"].is_null());
}
