//! The screen on a terminal, and its keys.
//!
//! A thread of its own takes the snapshots, so that keys are heard while a server does not answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel, sync_channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::sampler::{Problem, Sampler};
use super::screen::{self, Look};
use super::view::{Sample, Sort, View};
use crate::commands::{Outcome, Verdict};
use crate::place::Place;

/// Keys and signals are looked for so often.
const TICK: Duration = Duration::from_millis(100);
/// The first snapshot takes no longer, or there is no server worth a screen.
const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: &str = "q quit  p pause  sort: c calls/s  w worst  a waits  s seat";
const KEYS_OF_WORKERS: &str = "  n worker";

type Taken = Result<Sample, Problem>;

/// What is on the screen.
pub(crate) struct Screen {
    place: String,
    now: Sample,
    before: Option<Sample>,
    problem: Option<Problem>,
    /// Of which worker there are to be snapshots.
    wishes: Sender<u16>,
    sort: Sort,
    paused: bool,
    colour: bool,
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    GoOn,
    Quit,
}

impl Screen {
    pub(crate) fn new(
        place: &Place,
        first: Sample,
        wishes: Sender<u16>,
        sort: Sort,
        colour: bool,
    ) -> Self {
        Self {
            place: place.to_string(),
            now: first,
            before: None,
            problem: None,
            wishes,
            sort,
            paused: false,
            colour,
        }
    }

    /// Takes a snapshot, or the news that there is none.
    pub(crate) fn take(&mut self, taken: Taken) {
        match taken {
            Ok(_) if self.paused => {}
            Ok(sample) => {
                self.before = Some(std::mem::replace(&mut self.now, sample));
                self.problem = None;
            }
            Err(problem) => self.problem = Some(problem),
        }
    }

    pub(crate) fn key(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::GoOn;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Next::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('c') => self.sort = Sort::Calls,
            KeyCode::Char('w') => self.sort = Sort::Worst,
            KeyCode::Char('a') => self.sort = Sort::Waits,
            KeyCode::Char('s') => self.sort = Sort::Seat,
            KeyCode::Char('n') => self.next_worker(),
            _ => {}
        }
        Next::GoOn
    }

    fn next_worker(&mut self) {
        let server = &self.now.snapshot.server;
        if server.workers > 1 {
            self.paused = false;
            // Without a listener the snapshots end, too, which is seen there.
            let _ = self.wishes.send((server.worker + 1) % server.workers);
        }
    }

    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let rows = area.height.saturating_sub(1);
        let look = Look {
            width: area.width.into(),
            height: rows.into(),
            colour: self.colour,
            sort: self.sort,
        };
        let view = View::new(&self.now, self.before.as_ref(), self.sort);
        let lines = screen::lines(&view, &self.place, &look);
        frame.render_widget(
            Paragraph::new(lines),
            Rect {
                height: rows,
                ..area
            },
        );
        let footer = Rect {
            y: area.y + rows,
            height: area.height - rows,
            ..area
        };
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let more = match self.now.snapshot.server.workers {
            0..=1 => "",
            _ => KEYS_OF_WORKERS,
        };
        let text = match (&self.problem, self.paused) {
            (Some(problem), _) => format!("trying again: {}", problem.text()),
            (None, true) => format!("PAUSED  {KEYS}{more}"),
            (None, false) => format!("{KEYS}{more}"),
        };
        frame.render_widget(Paragraph::new(Line::styled(text, reversed)), footer);
    }
}

/// The terminal, which is itself again when this is dropped; and when there is a panic.
struct Terminal(DefaultTerminal);

impl Terminal {
    fn new() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows a worker of a server until a key or a signal ends it, or after `count` snapshots.
pub(crate) fn run(
    place: &Place,
    worker: u16,
    interval: Duration,
    sort: Sort,
    count: Option<u64>,
) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| format!("signal handlers: {error}"))?;
    }
    let (wishes, wished) = channel();
    let samples = sample(place.clone(), worker, wished, interval)
        .map_err(|error| format!("a thread: {error}"))?;
    let first = match samples.recv_timeout(PATIENCE) {
        Ok(Ok(sample)) => sample,
        Ok(Err(problem)) => return Err(problem.text().to_owned()),
        Err(RecvTimeoutError::Timeout) => return Err("the server does not answer".into()),
        Err(RecvTimeoutError::Disconnected) => return Err("the thread that asks has ended".into()),
    };
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let screen = Screen::new(place, first, wishes, sort, colour);
    let mut terminal = Terminal::new().map_err(|error| format!("the terminal: {error}"))?;
    let ended = show(&mut terminal.0, screen, &samples, &stop, count);
    drop(terminal);
    match ended {
        Ok(None) => Ok(Verdict::Good),
        Ok(Some(problem)) => Err(problem.text().to_owned()),
        Err(error) => Err(format!("the terminal: {error}")),
    }
}

/// Snapshots of a worker, one for each interval, and of another one as soon as it is wished for; it ends when nobody
/// takes them.
fn sample(
    place: Place,
    mut worker: u16,
    wished: Receiver<u16>,
    interval: Duration,
) -> io::Result<Receiver<Taken>> {
    let (to, samples) = sync_channel(1);
    let thread = std::thread::Builder::new().name("scalerpc-top".into());
    thread.spawn(move || {
        let mut sampler = Sampler::new(place);
        while to.send(sampler.take(worker)).is_ok() {
            match wished.recv_timeout(interval) {
                Ok(other) => worker = other,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok(samples)
}

/// Waits a tick for keys.
///
/// It waits by itself: where the terminal is gone, crossterm would look for a key for ever.
fn keys(screen: &mut Screen) -> io::Result<Next> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&tick)) {
        Ok(0) | Err(Errno::INTR) => return Ok(Next::GoOn),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    if fds[0].revents() != PollFlags::IN {
        return Ok(Next::Quit);
    }
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()? {
            if screen.key(key) == Next::Quit {
                return Ok(Next::Quit);
            }
        }
    }
    Ok(Next::GoOn)
}

fn show(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    samples: &Receiver<Taken>,
    stop: &AtomicBool,
    count: Option<u64>,
) -> io::Result<Option<Problem>> {
    let mut taken = 1;
    // Ordering: the flag carries nothing else.
    while !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| screen.draw(frame))?;
        if count.is_some_and(|count| taken >= count) {
            return Ok(None);
        }
        if keys(&mut screen)? == Next::Quit {
            return Ok(None);
        }
        match samples.try_recv() {
            Ok(Err(problem @ Problem::Refused(_))) => return Ok(Some(problem)),
            Ok(sample) => {
                taken += u64::from(sample.is_ok());
                screen.take(sample);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                let text = "the thread that asks has ended".into();
                return Ok(Some(Problem::Refused(text)));
            }
        }
    }
    Ok(None)
}
