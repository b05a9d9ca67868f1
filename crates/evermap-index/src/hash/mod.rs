//! Hash indexes.

#[cfg(test)]
mod by_hand;
pub mod cceh;
mod changes;
pub mod clht;
pub mod dash;
pub(crate) mod directory;
pub(crate) mod fresh;
pub mod level;
pub mod line;
mod patience;
mod probe;
pub(crate) mod root;
pub(crate) mod shape;
