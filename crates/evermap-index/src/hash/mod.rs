//! Hash indexes.

pub mod cceh;
mod changes;
pub mod clht;
pub mod dash;
pub(crate) mod directory;
pub(crate) mod hash_prefix;
pub mod level;
pub mod line;
mod probe;
#[cfg(any(test, feature = "relativistic"))]
pub mod relativistic;
pub(crate) mod segmented;
pub mod tranche;
mod vacancy;
pub mod volatile;
pub(crate) mod walk_order;
