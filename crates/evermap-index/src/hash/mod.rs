//! Hash indexes.

pub mod clht;
pub mod dash;
pub(crate) mod directory;
pub(crate) mod waiting;
