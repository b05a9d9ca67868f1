//! The level [`Durability::Log`](crate::Durability::Log): power loss on ordinary storage.
//!
//! The file is a *working copy*, which a process that was killed leaves whole, and which loss of
//! power destroys. Beside it is a folder with a [redo log](evermap_pm::redo):
//!
//! ```text
//! store          the working copy: in memory (tmpfs), or on the disk
//! store.log/     image, sums, control, ....redo    image and log of the working copy
//!                marks                             which lines are not in the log yet
//!                lock                              held by the process that has the store open
//! ```
//!
//! A commit takes an instant of the working copy and appends the lines that have changed since the
//! last one. So everything is in the log that is in the file: all maps, expiries, CAS ids, flushes,
//! counters, and both orders. Opening takes the working copy if its bytes are those that the last
//! process left, and otherwise rebuilds it from image and log.

mod open;
mod sync;

pub use open::restore_log;
pub(crate) use open::{ensure_without_log, open_logged, read_logged};
