//! Why libibverbs could not be loaded.

/// Why libibverbs could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library is missing, or one that it needs is.
    #[error(
        "{library} could not be loaded: install the package libibverbs1 (Debian, Ubuntu) or libibverbs (Fedora) \
         ({reason})"
    )]
    Library {
        /// What was to be loaded.
        library: String,
        /// What the loader said.
        reason: String,
    },
    /// The library lacks a function that every rdma-core has.
    #[error(
        "{library} has no function {function}: it is not rdma-core's libibverbs, or is too old; \
         install rdma-core 28 or newer"
    )]
    Function {
        /// What was loaded.
        library: String,
        /// The function.
        function: &'static str,
    },
}
