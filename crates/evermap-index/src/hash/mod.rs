//! Hash indexes.

pub mod cceh;
pub mod dash;
pub(crate) mod directory;
mod patience;
pub(crate) mod root;
pub(crate) mod shape;
