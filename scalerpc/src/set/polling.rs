//! Looks for answers.

use scalerpc_core::Memory;
use scalerpc_core::client::{Answer, ClientState, Failed};
use scalerpc_core::post::fetch_ahead;
use scalerpc_core::wire::{self, LINE, Status};
use scalerpc_driver::Fabric;

use super::{Busy, CallId, ClientSet, Ended};
use crate::error::CallError;

/// Answers that are taken from one connection before the next one is looked at.
const BURST: u32 = 16;

impl Ended {
    fn of(connection: u32, answer: Answer) -> Self {
        Self {
            connection,
            call: CallId(answer.call),
            result: match answer.status {
                Status::OK => Ok((answer.payload_at, answer.payload_len)),
                status => Err(CallError::of(status)),
            },
        }
    }
}

impl<F: Fabric> ClientSet<F> {
    /// One round: looks at every busy connection once, and sends what there is to send.
    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        match self.poll_answer() {
            Some((connection, answer)) => Some(Ended::of(connection, answer)),
            None => self.ended.take(),
        }
    }

    /// As [`poll_ended`](Self::poll_ended), which is to be asked for what is not a plain answer: that is in `ended`.
    // So an answer has one origin: where several meet, it is handed over through memory, and read in other widths than
    // it was written, which a processor waits for.
    #[inline(always)]
    pub(super) fn poll_answer(&mut self) -> Option<(u32, Answer)> {
        self.take_completions();
        let answer = self.look();
        self.flush();
        answer
    }

    /// Looks at every busy connection once, beginning with the one that had the last completion: its next answer is
    /// likely to be there, too. Who has had `BURST` in a row comes last.
    #[inline(always)]
    fn look(&mut self) -> Option<(u32, Answer)> {
        let mut left = self.busy.len();
        while left > 0 {
            if self.cursor >= self.busy.len() {
                self.cursor = 0;
            }
            let exposed = self.fabric.exposed();
            let rest = self.busy.len().min(self.cursor + left);
            let mut rest = self.busy[self.cursor..rest].iter();
            let news = |it: &Busy| it.post || exposed.load_acquire(it.awaited_at) == it.awaited;
            let Some(silent) = rest.position(news) else {
                // What is left is before the cursor, which has gone round.
                let passed = (self.busy.len() - self.cursor).min(left);
                self.cursor += passed;
                left -= passed;
                continue;
            };
            if silent > 0 {
                self.cursor += silent;
                self.burst = 0;
            }
            left -= silent + 1;
            let connection = self.busy[self.cursor].connection;
            let engine = &mut self.engines[connection as usize];
            if let Some(answer) = engine.poll_plain(self.fabric.exposed()) {
                // What it makes possible is sent before the caller sees it.
                let mut post = engine.wants_to_post();
                if post {
                    self.post(connection);
                    post = Busy::post(&self.engines[connection as usize]);
                }
                let span = wire::span(answer.payload_len, 0);
                self.polled(connection, Some(span), post);
                self.idle_polls = 0;
                return Some((connection, answer));
            }
            self.ended = self.poll_connection(connection);
            let post = Busy::post(&self.engines[connection as usize]);
            self.polled(connection, self.ended.as_ref().map(|_| LINE), post);
            if self.ended.is_some() {
                self.idle_polls = 0;
                return None;
            }
        }
        self.nothing_came();
        None
    }

    /// The connection at the cursor was polled, and a call has ended with a message of so many bytes; is something to
    /// be posted?
    #[inline(always)]
    fn polled(&mut self, connection: u32, ended: Option<usize>, post: bool) {
        let engine = &self.engines[connection as usize];
        if !engine.is_busy() {
            self.unlist(self.cursor);
            self.burst = 0;
            return;
        }
        self.busy[self.cursor] = Busy::of(connection, engine, post);
        if let Some(span) = ended {
            let from = self.fabric.exposed();
            fetch_ahead(engine.later_source(), span, |line| from.prefetch(line));
        }
        self.burst += 1;
        if ended.is_none() || self.burst >= BURST {
            self.burst = 0;
            self.cursor += 1;
        }
    }

    fn nothing_came(&mut self) {
        self.idle_polls += 1;
        if self.idle_polls >= self.polls_per_check {
            self.idle_polls = 0;
            self.take_events();
        }
    }

    #[inline(never)]
    fn poll_connection(&mut self, connection: u32) -> Option<Ended> {
        let engine = &mut self.engines[connection as usize];
        let answer = match engine.poll(self.fabric.exposed()) {
            Ok(answer) => answer,
            Err(why) => {
                // The calls end below.
                self.last_violation = Some(why);
                self.end(connection);
                None
            }
        };
        if let Some(answer) = answer {
            if self.engines[connection as usize].wants_to_post() {
                self.post(connection);
            }
            return Some(Ended::of(connection, answer));
        }
        let engine = &mut self.engines[connection as usize];
        if engine.state() == ClientState::Lost {
            return self.take_failed(connection);
        }
        if engine.wants_to_post() {
            self.post(connection);
        }
        None
    }

    #[cold]
    fn take_failed(&mut self, connection: u32) -> Option<Ended> {
        let engine = &mut self.engines[connection as usize];
        let Failed {
            call, may_have_run, ..
        } = engine.take_failed()?;
        let error = if may_have_run {
            CallError::Unknown
        } else {
            CallError::NotSent
        };
        Some(Ended {
            connection,
            call: CallId(call),
            result: Err(error),
        })
    }
}
