//! The commands.

pub(crate) mod bench;
pub(crate) mod call;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod model;
pub(crate) mod serve;
pub(crate) mod top;

/// How a command that did its work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All is well: exit code 0.
    Good,
    /// Something is wrong with what was found: exit code 1.
    Bad,
}

impl Verdict {
    pub(crate) fn good_if(good: bool) -> Self {
        if good { Self::Good } else { Self::Bad }
    }
}

/// What a command came to: a verdict, or why it could not begin (exit code 2).
pub(crate) type Outcome = Result<Verdict, String>;
