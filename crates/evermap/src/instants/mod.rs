//! Instants: snapshots and copies of a store that others go on changing.
//!
//! The bytes of the file at one instant are a store that a kill could have left, and they are
//! opened like one. A [snapshot](snapshot) keeps them in memory, a [copy](backup) writes them
//! elsewhere, and [another process](fetch) asks for a copy.

mod backup;
mod fetch;
mod restore;
mod snapshot;

pub use backup::{Backup, BackupId};
pub use fetch::fetch_backup;
pub(crate) use fetch::open_beside;
pub(crate) use restore::make_store;
pub use restore::restore;
pub use snapshot::Snapshot;
