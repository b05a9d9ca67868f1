#![doc = include_str!("../README.md")]

mod changes;
mod codec;
mod error;
mod flush;
pub mod kv;
mod log;
mod open;
mod shared;
mod snapshot;
mod state;

pub use changes::{Changes, Command};
pub use error::{Error, Result};
pub use log::{LogReader, LogStore};
pub use open::{Storage, from_db, open};
pub use snapshot::SnapshotFile;
pub use state::{SnapshotBuilder, State, StateMachine};

/// The example of the guide has to compile as it stands.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/use/raft.md")]
    struct Raft;
}
