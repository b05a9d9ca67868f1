//! Opening the storage of a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use evermap::{Durability, Evermap, Options};
use openraft::{Entry, RaftTypeConfig};

use crate::shared::Shared;
use crate::snapshot::Folder;
use crate::{Command, LogStore, Result, SnapshotFile, StateMachine};

/// What a node needs: pass `log` and `state_machine` to [`openraft::Raft::new`], and keep a handle
/// of the state for reading.
#[derive(Debug)]
pub struct Storage<C: RaftTypeConfig> {
    /// The log, the vote, and what is known to be committed.
    pub log: LogStore<C>,
    /// What the entries of the log are applied to.
    pub state_machine: StateMachine<C>,
}

/// Opens the storage of a node, or creates it: the file at `path`, its redo log (the folder
/// `<path>.log`, unless `options` have another), and the folder `<path>.snapshots`.
///
/// The level is [`Durability::Log`], whatever `options` say: a node that forgets what it has
/// acknowledged breaks the promises of the others too.
///
/// # Errors
/// Those of [`Evermap::open`], of the folder of snapshots, and
/// [`Error::Damaged`](crate::Error::Damaged) for a file of an unknown format.
pub fn open<C>(path: impl AsRef<Path>, options: Options) -> Result<Storage<C>>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    C::D: Command<Reply = C::R>,
{
    let path = path.as_ref();
    let mut snapshots = path.as_os_str().to_owned();
    snapshots.push(".snapshots");
    from_db(Evermap::open(path, options.durability(Durability::Log))?, snapshots)
}

/// Makes a node's storage of a store that was opened by the caller, and a folder for its snapshots.
/// The store may have maps of the caller's; the names of ours begin with `raft.`.
///
/// What a node promises to others has to survive a crash of its machine, so the store has to be of
/// the level [`Durability::Log`], [`Durability::Adr`] or [`Durability::Eadr`], unless it is a test.
///
/// # Errors
/// Those of the store and of the folder, and
/// [`Error::Damaged`](crate::Error::Damaged) for an unknown format.
pub fn from_db<C>(db: Evermap, snapshots: impl Into<PathBuf>) -> Result<Storage<C>>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    C::D: Command<Reply = C::R>,
{
    let shared = Arc::new(Shared::open(db)?);
    let folder = Arc::new(Folder::open(snapshots.into())?);
    Ok(Storage {
        log: LogStore::open(Arc::clone(&shared))?,
        state_machine: StateMachine::open(shared, folder)?,
    })
}
