//! Hash indexes.

pub mod cceh;
pub mod clht;
pub mod dash;
pub(crate) mod directory;
pub mod level;
pub mod line;
mod patience;
pub(crate) mod root;
pub(crate) mod shape;
