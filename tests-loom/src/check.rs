//! Explores a model as it is, and then once with each of its mutants.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Instant;

use loom::model::Builder;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::mutant::{Mutant, Mutation};

/// Names the only variant to run, loudly: `clean`, or a mutant's name.
pub const ONLY: &str = "SCALERPC_LOOM_ONLY";

/// Operations of one execution; loom's own limit is too low for a message of eight words.
const BRANCHES_MAX: usize = 20_000;

/// Most preemptions in a debug build.
const DEBUG_BOUND: usize = 2;

/// A model, and what must break it.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Its name, for the report.
    pub name: &'a str,
    /// Most preemptions of an execution; `None` explores every interleaving.
    pub bound: Option<usize>,
    /// One execution.
    pub body: fn(Mutation),
    /// What at least one execution of the clean model must have [`seen`], lest it prove nothing.
    pub must_see: &'a [&'a str],
    /// Each must make the model fail.
    pub mutants: &'a [Mutant],
}

// Loom runs all threads of a model on the thread that calls it.
thread_local! {
    static SEEN: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    static EXECUTIONS: Cell<u64> = const { Cell::new(0) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A model has come to a place that makes the execution worth something.
pub fn seen(what: &'static str) {
    SEEN.with_borrow_mut(|seen| seen.insert(what));
}

impl Model<'_> {
    /// Explores the model, clean and with each mutant.
    ///
    /// # Panics
    ///
    /// If the clean model fails or does not see what it must, or a mutant does not fail as it must.
    pub fn check(&self) {
        if let Ok(only) = std::env::var(ONLY) {
            return self.check_only(&only);
        }
        self.check_clean();
        let survivors: Vec<_> = self
            .mutants
            .iter()
            .filter_map(|mutant| self.survives(mutant))
            .collect();
        assert!(
            survivors.is_empty(),
            "{}: {} of {} mutants do not fail as they must:\n  {}",
            self.name,
            survivors.len(),
            self.mutants.len(),
            survivors.join("\n  ")
        );
    }

    fn check_clean(&self) {
        SEEN.with_borrow_mut(BTreeSet::clear);
        let started = Instant::now();
        let executions = self.explore(Mutation::NONE);
        report(self.name, "clean", executions, started);
        SEEN.with_borrow(|seen| {
            for what in self.must_see {
                assert!(
                    seen.contains(what),
                    "{}: no execution saw: {what}",
                    self.name
                );
            }
        });
    }

    /// Says what is wrong if the mutant does not fail as it must.
    fn survives(&self, mutant: &Mutant) -> Option<String> {
        let started = Instant::now();
        let outcome = quietly(|| self.explore(Mutation::of(mutant)));
        let name = mutant.name();
        report(self.name, &name, EXECUTIONS.get(), started);
        match outcome {
            Ok(executions) => Some(format!("{name}: passes in all {executions} executions")),
            Err(message) if mutant.breaks.iter().any(|part| message.contains(part)) => None,
            Err(message) => Some(format!(
                "{name}: fails, but not with one of {:?}: {message}",
                mutant.breaks
            )),
        }
    }

    /// For a replay: one variant, with the failure's own output.
    fn check_only(&self, only: &str) {
        if only == "clean" {
            return self.check_clean();
        }
        for mutant in self.mutants.iter().filter(|mutant| mutant.name() == only) {
            self.explore(Mutation::of(mutant));
        }
    }

    /// Loom is some ten times slower in debug, so there the bound is low.
    fn bound(&self) -> Option<usize> {
        if cfg!(debug_assertions) {
            Some(self.bound.unwrap_or(DEBUG_BOUND).min(DEBUG_BOUND))
        } else {
            self.bound
        }
    }

    fn explore(&self, mutation: Mutation) -> u64 {
        EXECUTIONS.set(0);
        let mut builder = Builder::new();
        builder.max_branches = builder.max_branches.max(BRANCHES_MAX);
        // The environment may ask for another bound.
        builder.preemption_bound = builder.preemption_bound.or(self.bound());
        let body = self.body;
        let execution = move || {
            EXECUTIONS.set(EXECUTIONS.get() + 1);
            body(mutation);
        };
        let _log = std::env::var_os("LOOM_LOG").map(|_| {
            fmt::Subscriber::builder()
                .with_env_filter(EnvFilter::from_env("LOOM_LOG"))
                .with_test_writer()
                .without_time()
                .finish()
                .set_default()
        });
        builder.check(execution);
        EXECUTIONS.get()
    }
}

fn report(model: &str, variant: &str, executions: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    println!("{model:24} {variant:40} {executions:>9} executions {seconds:>7.2} s");
}

/// Runs what is expected to panic; the message, without its way to the terminal.
fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    outcome.map_err(|cause| {
        cause
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without a message".to_owned())
    })
}
