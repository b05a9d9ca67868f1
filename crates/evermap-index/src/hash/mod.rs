//! Hash indexes.

pub mod dash;
pub(crate) mod directory;
pub mod line;
