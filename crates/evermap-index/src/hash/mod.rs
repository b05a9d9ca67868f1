//! Hash indexes.

pub mod cceh;
mod changes;
pub mod clht;
#[cfg(test)]
mod crash_states;
pub mod dash;
pub(crate) mod directory;
pub(crate) mod fresh;
pub(crate) mod hash_prefix;
pub mod level;
pub mod line;
mod lock_wait;
mod probe;
#[cfg(any(test, feature = "relativistic"))]
pub mod relativistic;
pub(crate) mod root;
pub(crate) mod segmented;
mod vacancy;
pub mod volatile;

/// Why crash campaigns need not detect that data which recovery found becomes durable later than it
/// should.
const FOUND_LATE: &str =
    "late, it matters to other threads: `what_recovery_finds_is_durable_before_it_is_used`";
