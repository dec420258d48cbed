//! Deliberate bugs, to show that the simulation notices them.
//!
//! With `--cfg scalerpc_mutant` one of them can be turned on while the program runs; in any other build
//! `is` is false where it is compiled, and nothing of this is left.

/// Lists the bugs, once.
macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident = $name:literal,)+) => {
        /// What can be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        #[cfg(scalerpc_mutant)]
        impl Bug {
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$bug),+];

            /// What it is called.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }
        }
    };
}

bugs! {
    /// A zone leaves quarantine without a quiet message.
    QuietNotAwaited = "quiet-not-awaited",
    /// A quiet message about any tenancy frees a zone.
    QuietOfAnyTenancy = "quiet-of-any-tenancy",
    /// A zone is free as soon as its revocation is asked for.
    RevocationNotAwaited = "revocation-not-awaited",
    /// A zone is free as soon as its connection is to be closed, fenced or not.
    FenceNotAwaited = "fence-not-awaited",
    /// A client that does not answer is never fenced.
    FenceForgotten = "fence-forgotten",
    /// A tenancy that is over is never revoked.
    RevocationForgotten = "revocation-forgotten",
    /// Epochs are used again.
    EpochReused = "epoch-reused",
    /// `valid` is the plain number.
    ValidWithoutOwner = "valid-without-owner",
    /// `valid` is the plain number, and the owner is not looked at either.
    OwnerIgnored = "owner-ignored",
    /// A message counts as arrived whatever its CRC says.
    CrcIgnored = "crc-ignored",
    /// The length that a message states is not checked.
    LengthIgnored = "length-ignored",
    /// The flags that a request states are not checked.
    FlagsIgnored = "flags-ignored",
    /// A switch event says that one call more was taken.
    ConsumedTooHigh = "consumed-too-high",
    /// A switch event says that one call less was taken.
    ConsumedTooLow = "consumed-too-low",
    /// When calls are parked again, one is forgotten.
    ParkedCallForgotten = "parked-call-forgotten",
    /// A call is taken before the one that comes before it.
    CallsSwapped = "calls-swapped",
    /// Calls run after the switch event was sent.
    ServedAfterEvent = "served-after-event",
    /// The switch event is not sent.
    EventForgotten = "event-forgotten",
    /// A switch event that found the send queue full is not sent later.
    OwedEventForgotten = "owed-event-forgotten",
    /// An endpoint entry is accepted again.
    EntryTwice = "entry-twice",
    /// The first call of an entry is not checked.
    FirstCallIgnored = "first-call-ignored",
    /// The count of an entry is not checked.
    CountIgnored = "count-ignored",
    /// The stride of an entry is not checked.
    StrideIgnored = "stride-ignored",
    /// The address in an entry is not checked.
    StagedAtIgnored = "staged-at-ignored",
    /// The quiet epoch of an entry is not checked.
    EntryQuietIgnored = "entry-quiet-ignored",
    /// The demand map counts as seen although the entry was not taken.
    DemandSeenEarly = "demand-seen-early",
    /// The zone that the client is told is its neighbour.
    WrongZone = "wrong-zone",
    /// A connection is served when the first READ of its batch is done.
    FirstReadSuffices = "first-read-suffices",
    /// The READs of a batch go on from the wrong message.
    SecondReadMisplaced = "second-read-misplaced",
    /// A fetch that outlasts its tenancy is forgotten.
    LateFetchForgotten = "late-fetch-forgotten",
    /// A fetch that outlasts its tenancy is begun anew.
    LateFetchAnew = "late-fetch-anew",
    /// A group waits for a fetch that hangs.
    HungFetchAwaited = "hung-fetch-awaited",
    /// A connection that finds no zone loses its place in the queue.
    WaiterForgotten = "waiter-forgotten",
    /// The group that came last is served first.
    LastComeFirstServed = "last-come-first-served",
    /// A slice never ends while calls come.
    SliceEndless = "slice-endless",
    /// Adaptive slices keep to no bounds.
    SliceUnbounded = "slice-unbounded",
    /// Adaptive slices only grow.
    SliceNeverShorter = "slice-never-shorter",
    /// There is no end to what a drain takes.
    DrainEndless = "drain-endless",
    /// Groups take turns although only one has demand.
    IdleGroupsServed = "idle-groups-served",
    /// The server rests while a connection waits.
    RestsWhileWaiting = "rests-while-waiting",
    /// The server rests, and forgets when a zone in quarantine is due.
    RestForgetsDue = "rest-forgets-due",
    /// The server never comes to rest.
    RestlessServer = "restless-server",
    /// A connection is moved to another group while it waits in its own.
    MovedWhileWaiting = "moved-while-waiting",
    /// Half of the round trip is taken off the time server's time.
    OffsetWrongSign = "offset-wrong-sign",
    /// The time for which the time server held a request counts as a part of the round trip.
    HoldingForgotten = "holding-forgotten",
    /// A follower does not reckon with drift, and says that it knows the time.
    DriftIgnored = "drift-ignored",
    /// A common clock that is ahead is set back.
    CommonClockGoesBackwards = "common-clock-goes-backwards",
    /// The answer to an earlier request about time is taken for that to the last one.
    StaleTimeTaken = "stale-time-taken",
    /// A group whose beat it is does not go first.
    BeatIgnored = "beat-ignored",
    /// Groups whose beat it is go first however long others have waited.
    BeatAlwaysFirst = "beat-always-first",
    /// A common slice does not end.
    CommonSliceEndless = "common-slice-endless",
    /// Small groups are never merged.
    NeverMerged = "never-merged",
    /// The scheduler does not wait until its order is carried out.
    AcknowledgementNotAwaited = "acknowledgement-not-awaited",
    /// The scheduler switches to a group of which nobody is ready.
    ReadyNotAwaited = "ready-not-awaited",
    /// The scheduler ends slices before they are over.
    LedSliceIgnored = "led-slice-ignored",
    /// The scheduler waits for a fetch that hangs.
    LedHungFetchAwaited = "led-hung-fetch-awaited",
    /// A worker never says which group has demand.
    WishNotReported = "wish-not-reported",
    /// A worker carries out an order again and again.
    OrderTwice = "order-twice",
    /// A group that another one is preferred to is not queued again.
    ReplacedGroupForgotten = "replaced-group-forgotten",
    /// Completions are asked for too seldom.
    SignalsTooSeldom = "signals-too-seldom",
    /// Switch events do not ask for a completion.
    EventUnsignaled = "event-unsignaled",
    /// Answers after the switch event do not ask for a completion.
    LateAnswerUnsignaled = "late-answer-unsignaled",
    /// One work request too many counts as done.
    RetiredTooMany = "retired-too-many",
    /// The send queue counts as having room for one more.
    QueueOverfilled = "queue-overfilled",
    /// The places that answers need in the send queue are given away.
    AnswersOwedIgnored = "answers-owed-ignored",
    /// A send slot is free as soon as its WRITE is posted.
    SendSlotEarly = "send-slot-early",
    /// The send slot of a call whose connection ended is freed twice.
    SendSlotTwice = "send-slot-twice",
    /// The send slots of a connection that ended are not freed.
    SendSlotLost = "send-slot-lost",
    /// One connection may take all send slots.
    SendSlotsHoarded = "send-slots-hoarded",
    /// A call that is answered later keeps its send slot, which is never freed.
    DeferredSlotKept = "deferred-slot-kept",
    /// A call that is answered later has no place in the window and in the send queue.
    DeferredNotOwed = "deferred-not-owed",
    /// The answer to a call that was deferred goes to whoever has its seat by then.
    DeferredForAnother = "deferred-for-another",
    /// Answers that come later may take all send slots for one connection.
    DeferredHoards = "deferred-hoards",
    /// A request slot is free as soon as its call is answered.
    RequestSlotEarly = "request-slot-early",
    /// The entry image is written anew before its WRITE is done.
    EntryImageEarly = "entry-image-early",
    /// The client makes nothing of a refused WRITE.
    RefusalIgnored = "refusal-ignored",
    /// The client goes on writing after a refused WRITE.
    RefusalNotBarring = "refusal-not-barring",
    /// The client says that it is quiet, and writes on.
    QuietTooEarly = "quiet-too-early",
    /// The demand byte is forgotten.
    DemandForgotten = "demand-forgotten",
    /// A lost call is said not to have been sent.
    LostCallNotSent = "lost-call-not-sent",
    /// A call that was never sent is said to have been, perhaps.
    ParkedCallUnknown = "parked-call-unknown",
    /// A cancelled call is answered all the same.
    CancelIgnored = "cancel-ignored",
    /// A call that was cancelled before it was sent is sent as if it were not.
    CancelledCallSent = "cancelled-call-sent",
    /// A request that says that its call is cancelled runs.
    CancelledCallRuns = "cancelled-call-runs",
    /// The words of an extension that must be zero are not looked at.
    OptionsIgnored = "options-ignored",
    /// A call whose budget is used up runs.
    BudgetIgnored = "budget-ignored",
    /// The wait in the staging area is not counted against a budget.
    WaitUncounted = "wait-uncounted",
    /// A budget is sent again as it was at first.
    BudgetNotReduced = "budget-not-reduced",
    /// The wait in the staging area counts twice against a budget.
    WaitCountedTwice = "wait-counted-twice",
    /// A limit refuses nothing.
    LimitIgnored = "limit-ignored",
    /// A limit's calls do not come back with time.
    LimitNeverRefilled = "limit-never-refilled",
    /// A limit's calls come back without bound.
    LimitWithoutBurst = "limit-without-burst",
    /// Any number of calls may be in flight.
    InFlightIgnored = "in-flight-ignored",
    /// The calls in flight of a connection that ended count for ever.
    InFlightForgotten = "in-flight-forgotten",
}

#[cfg(scalerpc_mutant)]
mod chosen {
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::Bug;

    static CHOSEN: AtomicUsize = AtomicUsize::new(usize::MAX);

    /// Turns one bug on and all others off; `None`: all off.
    pub fn choose(bug: Option<Bug>) {
        let index = bug.map_or(usize::MAX, |bug| bug as usize);
        // Ordering: none; it is chosen between runs.
        CHOSEN.store(index, Ordering::Relaxed);
    }

    /// True if the bug is turned on.
    #[inline]
    pub fn is(bug: Bug) -> bool {
        // Ordering: as in `choose`.
        CHOSEN.load(Ordering::Relaxed) == bug as usize
    }
}

#[cfg(scalerpc_mutant)]
pub use chosen::{choose, is};

/// No bug is ever turned on.
#[cfg(not(scalerpc_mutant))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}
