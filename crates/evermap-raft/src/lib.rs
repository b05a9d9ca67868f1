#![doc = include_str!("../README.md")]

mod changes;
mod codec;
mod error;
mod flush;
pub mod kv;
mod log;
mod snapshot;
mod state;
mod store;

pub use changes::{Changes, Command};
pub use error::{Error, Result};
pub use log::{LogReader, LogStore};
pub use snapshot::SnapshotFile;
pub use state::{SnapshotBuilder, State, StateMachine};
pub use store::{Storage, from_db, open};
