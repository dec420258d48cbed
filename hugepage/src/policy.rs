//! Which pages are asked for, and which were used.

use std::{fmt, str::FromStr};

use crate::{
    error::{MemoryError, Shortage},
    size::PageSize,
};

/// Whether to use hugepages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PagePolicy {
    /// Hugepages, or an error that says what to run.
    Require,
    /// Hugepages; normal pages where there are not enough, with the reason in [`Backing`].
    #[default]
    Prefer,
    /// Normal pages.
    Never,
}

impl fmt::Display for PagePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::Never => "never",
        })
    }
}

impl FromStr for PagePolicy {
    type Err = ParsePagePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "require" => Ok(Self::Require),
            "prefer" => Ok(Self::Prefer),
            "never" => Ok(Self::Never),
            _ => Err(ParsePagePolicyError { text: text.into() }),
        }
    }
}

/// The text names no [`PagePolicy`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no hugepage policy: use require, prefer or never")]
pub struct ParsePagePolicyError {
    text: String,
}

/// The pages that a piece of memory is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// Hugepages.
    Huge {
        /// Size of a page.
        page_bytes: usize,
    },
    /// Normal pages.
    Normal {
        /// Size of a page.
        page_bytes: usize,
        /// Why they are no hugepages, where hugepages were preferred.
        fallback: Option<FallbackReason>,
    },
}

impl Backing {
    /// Size of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        match *self {
            Self::Huge { page_bytes } | Self::Normal { page_bytes, .. } => page_bytes,
        }
    }

    /// Whether these are hugepages.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        matches!(self, Self::Huge { .. })
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Huge { page_bytes } => write!(f, "hugepages of {}", PageSize(*page_bytes)),
            Self::Normal {
                page_bytes,
                fallback,
            } => {
                write!(f, "normal pages of {}", PageSize(*page_bytes))?;
                match fallback {
                    Some(reason) => write!(f, " (no hugepages: {reason})"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Why [`PagePolicy::Prefer`] took normal pages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackReason {
    /// There were not enough hugepages.
    Shortage(Shortage),
    /// The kernel has no hugepages of the size asked for.
    Unsupported {
        /// The page size asked for; `None` for the default hugepage size.
        page_bytes: Option<usize>,
        /// The sizes that the kernel has.
        supported: Vec<usize>,
    },
}

impl FallbackReason {
    /// Sorts out the errors that normal pages can help against.
    pub(crate) fn from_error(error: MemoryError) -> Result<Self, MemoryError> {
        match error {
            MemoryError::HugepagesUnavailable(shortage) => Ok(Self::Shortage(shortage)),
            MemoryError::HugepagesUnsupported {
                page_bytes,
                supported,
            } => Ok(Self::Unsupported {
                page_bytes,
                supported,
            }),
            other => Err(other),
        }
    }

    /// The error that [`PagePolicy::Require`] would have given.
    #[must_use]
    pub fn into_error(self) -> MemoryError {
        match self {
            Self::Shortage(shortage) => MemoryError::HugepagesUnavailable(shortage),
            Self::Unsupported {
                page_bytes,
                supported,
            } => MemoryError::HugepagesUnsupported {
                page_bytes,
                supported,
            },
        }
    }
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clone().into_error().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_survive_a_round_trip() {
        for policy in [PagePolicy::Require, PagePolicy::Prefer, PagePolicy::Never] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(PagePolicy::default(), PagePolicy::Prefer);
        let error = "Always".parse::<PagePolicy>().unwrap_err();
        assert!(
            error.to_string().contains("require, prefer or never"),
            "{error}"
        );
    }

    #[test]
    fn backing_reads_well() {
        assert_eq!(
            Backing::Huge {
                page_bytes: 2 << 20
            }
            .to_string(),
            "hugepages of 2 MiB"
        );
        let fallback = Some(FallbackReason::Unsupported {
            page_bytes: None,
            supported: vec![],
        });
        let text = Backing::Normal {
            page_bytes: 4 << 10,
            fallback,
        }
        .to_string();
        assert!(
            text.starts_with("normal pages of 4 KiB (no hugepages: this kernel"),
            "{text}"
        );
    }
}
