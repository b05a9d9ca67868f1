//! What the log and the state of a node share: one store, and what is where in it.

use evermap::{Evermap, Map, MapOptions};
use tokio::sync::watch;

use crate::flush::Flusher;
use crate::{Error, Result, codec};

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

impl Shared {
    /// Makes the maps, if the store does not have them yet.
    pub(crate) fn open(db: Evermap) -> Result<Self> {
        let flusher = Flusher::start(db.clone())?;
        let db = db.without_waiting();
        let log = db.map(LOG, MapOptions::new())?;
        let meta = db.map(META, MapOptions::new())?;
        match codec::read::<u32>(&meta, keys::FORMAT)? {
            Some(FORMAT) => {}
            None => meta.put(keys::FORMAT, codec::encode(&FORMAT)?)?,
            Some(other) => {
                let what =
                    format!("the storage has the format {other}; this version knows {FORMAT}");
                return Err(Error::Damaged(what));
            }
        }
        Ok(Shared { flusher, db, log, meta, installs: watch::Sender::default() })
    }

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
