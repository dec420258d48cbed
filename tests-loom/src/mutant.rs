//! What is broken on purpose, as data.

/// Who runs the operation that is weakened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The server's data thread.
    Server,
    /// The server's control thread.
    Control,
    /// The client; where there are two, the former tenant.
    Client,
    /// The new tenant.
    Tenant,
    /// The scheduler of several workers, of which each is a server.
    Scheduler,
}

/// The words that the operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A request block of a zone.
    Block,
    /// An endpoint entry.
    Entry,
    /// A byte of the demand map.
    Demand,
    /// A slot of a response ring.
    Ring,
    /// The guard of a connection.
    Guard,
    /// The board of the scheduler and the workers.
    Board,
    /// The list of answers from other threads.
    Answers,
    /// A fence, which has no address.
    Fence,
    /// The words of a litmus test.
    Litmus,
}

/// An operation, made weaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `store_release` stores relaxed.
    StoreRelease,
    /// `load_acquire` loads relaxed.
    LoadAcquire,
    /// `store_byte_release` stores relaxed.
    ByteStoreRelease,
    /// `load_byte_acquire` loads relaxed.
    ByteLoadAcquire,
    /// `fence_release` does nothing.
    FenceRelease,
    /// `fence_full` does nothing.
    FenceFull,
    /// `fence_full` only acquires and releases.
    FenceFullAsAcqRel,
    /// `membarrier` is a full fence of the caller alone.
    Membarrier,
    /// A WRITE stores its last word first.
    LastWordLast,
    /// A compare-and-swap that releases is relaxed.
    SwapRelease,
    /// A swap that acquires is relaxed.
    SwapAcquire,
    /// What reads and writes in one step does so in two.
    OneStep,
}

/// A step of the protocol, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A client sends call n only after an answer to a call >= n - window.
    AnswerBeforeReuse,
    /// A client consumes its answer before it sends what lets the server reuse the slot.
    ConsumeBeforeRequest,
    /// The demand byte is written after the endpoint entry.
    EntryBeforeDemand,
    /// The batch is staged before its entry is written.
    StageBeforeEntry,
    /// A zone is given out again only after the quiet word.
    QuietBeforeReuse,
    /// A client writes no more to a zone once it has said that it is quiet.
    SilenceAfterQuiet,
    /// A revocation that found a WRITE under way is asked again.
    PendingIsNotDone,
    /// A WRITE ends after its last byte.
    EndAfterBytes,
    /// A refused WRITE is not made.
    RefusedIsNotWritten,
    /// Who is about to sleep has looked once more since it said so.
    LookBeforeSleep,
    /// Who has been woken already does not fall asleep.
    CompareBeforeSleep,
    /// Who wakes makes the word say so.
    ClearBeforeWake,
    /// The revocation is written before anybody asks whether the client is quiet.
    RevokeBeforeAsking,
    /// A switch is over when all workers have carried it out.
    AllAcknowledge,
}

/// What a mutant changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One party's operation on some words.
    Weaken(Party, Op, Place),
    /// Nobody does this step.
    Skip(Step),
}

/// A row of a model's table: the change, and what it must break.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// The change.
    pub change: Change,
    /// What the message of the failure that loom must find has in it: one of these.
    pub breaks: &'static [&'static str],
}

impl Mutant {
    /// An operation made weaker.
    pub const fn weaken(
        party: Party,
        op: Op,
        place: Place,
        breaks: &'static [&'static str],
    ) -> Self {
        Self {
            change: Change::Weaken(party, op, place),
            breaks,
        }
    }

    /// A step left out.
    pub const fn skip(step: Step, breaks: &'static [&'static str]) -> Self {
        Self {
            change: Change::Skip(step),
            breaks,
        }
    }

    /// How `SCALERPC_LOOM_ONLY` names it.
    pub fn name(&self) -> String {
        match self.change {
            Change::Weaken(party, op, place) => format!("{party:?}.{op:?}.{place:?}"),
            Change::Skip(step) => format!("Skip.{step:?}"),
        }
    }
}

/// What a run of a model asks at each place where a mutant may differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mutation(Option<Change>);

impl Mutation {
    /// The model as it is.
    pub const NONE: Self = Self(None);

    /// The model with one change.
    pub const fn of(mutant: &Mutant) -> Self {
        Self(Some(mutant.change))
    }

    /// How `party` is weakened at `place`.
    pub fn op(self, party: Party, place: Place) -> Option<Op> {
        match self.0 {
            Some(Change::Weaken(who, op, what)) if who == party && what == place => Some(op),
            _ => None,
        }
    }

    /// True if the step is left out.
    pub fn skips(self, step: Step) -> bool {
        self.0 == Some(Change::Skip(step))
    }
}
