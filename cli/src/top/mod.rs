//! What `scalerpc top` shows, and how.

pub(crate) mod json;
pub(crate) mod sampler;
pub(crate) mod screen;
pub(crate) mod terminal;
#[cfg(test)]
mod tests;
pub(crate) mod view;
