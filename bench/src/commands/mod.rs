//! One module for each command.

pub(crate) mod costs;
pub(crate) mod counts;
pub(crate) mod octopus;
pub(crate) mod peers;
pub(crate) mod skew;
pub(crate) mod sweep;
