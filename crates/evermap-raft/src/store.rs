//! The file that a node keeps everything in, and what its log and its state share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use evermap::{Durability, Evermap, Map, MapOptions, Options};
use openraft::{Entry, RaftTypeConfig};
use tokio::sync::watch;

use crate::flush::Flusher;
use crate::snapshot::Folder;
use crate::{Command, Error, LogStore, Result, SnapshotFile, StateMachine, codec};

/// Entries of the log: the index, 8 bytes, big-endian, and the entry.
const LOG: &str = "raft.log";
/// Single values, by the names in [`keys`].
pub(crate) const META: &str = "raft.meta";
/// States of the state machine: this and a number. The current one has the number that is in
/// [`META`]; others are being installed, or dropped.
const STATES: &str = "raft.state.";

/// The layout of what is described here.
const FORMAT: u32 = 1;

/// Keys of the map [`META`].
pub(crate) mod keys {
    pub(crate) const FORMAT: &str = "format";
    pub(crate) const VOTE: &str = "vote";
    pub(crate) const COMMITTED: &str = "committed";
    /// The id of the last entry that was purged.
    pub(crate) const PURGED: &str = "purged";
    /// The id of the last entry in the log.
    pub(crate) const LAST: &str = "last";
    /// The number of the current state.
    pub(crate) const STATE: &str = "state";
    /// The id of the last entry that was applied to it.
    pub(crate) const APPLIED: &str = "applied";
    /// The last membership in it.
    pub(crate) const MEMBERSHIP: &str = "membership";
}

/// What a node needs: pass `log` and `state_machine` to [`openraft::Raft::new`], and keep a handle
/// of the state for reading.
#[derive(Debug)]
pub struct Storage<C: RaftTypeConfig> {
    /// The log, the vote, and what is known to be committed.
    pub log: LogStore<C>,
    /// What the entries of the log are applied to.
    pub state_machine: StateMachine<C>,
}

/// What is open of one file.
pub(crate) struct Shared {
    // Dropped, and so joined, before the store.
    pub(crate) flusher: Flusher,
    /// A handle that does not wait: what is changed by it is durable after a sync.
    pub(crate) db: Evermap,
    pub(crate) log: Map,
    pub(crate) meta: Map,
    pub(crate) installs: watch::Sender<Installs>,
}

/// What the log has to know of snapshots that are being received or installed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Installs {
    /// Files that are not installed yet.
    pub(crate) files: usize,
    /// An installation has failed, so the node has to end.
    pub(crate) has_failed: bool,
}

/// Opens the storage of a node, or creates it: the file at `path`, its redo log (the folder
/// `<path>.log`, unless `options` have another), and the folder `<path>.snapshots`.
///
/// The level is [`Durability::Log`], whatever `options` say: a node that forgets what it has
/// acknowledged breaks the promises of the others too.
///
/// # Errors
/// Those of [`Evermap::open`], of the folder of snapshots, and [`Error::Damaged`] for a file of an
/// unknown format.
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
/// Those of the store and of the folder, and [`Error::Damaged`] for an unknown format.
pub fn from_db<C>(db: Evermap, snapshots: impl Into<PathBuf>) -> Result<Storage<C>>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    C::D: Command<Reply = C::R>,
{
    let flusher = Flusher::start(db.clone())?;
    let db = db.without_waiting();
    let log = db.map(LOG, MapOptions::new())?;
    let meta = db.map(META, MapOptions::new())?;
    match codec::read::<u32>(&meta, keys::FORMAT)? {
        Some(FORMAT) => {}
        None => meta.put(keys::FORMAT, codec::encode(&FORMAT)?)?,
        Some(other) => {
            let what = format!("the storage has the format {other}; this version knows {FORMAT}");
            return Err(Error::Damaged(what));
        }
    }
    let shared = Arc::new(Shared { flusher, db, log, meta, installs: watch::Sender::default() });
    let folder = Arc::new(Folder::open(snapshots.into())?);
    Ok(Storage {
        log: LogStore::open(Arc::clone(&shared))?,
        state_machine: StateMachine::open(shared, folder)?,
    })
}

impl Shared {
    /// Opens the state with this number, or creates it.
    pub(crate) fn state(&self, number: u64) -> Result<Map> {
        Ok(self.db.map(&state_name(number), MapOptions::new())?)
    }

    /// Drops the states with other numbers: those that were being installed, or dropped.
    pub(crate) fn drop_other_states(&self, current: u64) -> Result<()> {
        let current = state_name(current);
        for name in self.db.maps()? {
            if name.starts_with(STATES) && name != current {
                self.db.drop_map(&name)?;
            }
        }
        Ok(())
    }
}

pub(crate) fn state_name(number: u64) -> String {
    format!("{STATES}{number}")
}
