//! What is told of the changes of a map, and how it gets from those who make them to those who
//! [watch](crate::Map::watch).
//!
//! [`feed`] is where writers report what they have changed, and [`queue`] where that waits for one
//! consumer. Nothing of it is in the file.

pub(crate) mod feed;
pub(crate) mod queue;

#[cfg(doc)]
use crate::{Map, Watch};

/// What happened to a key: see [`WatchEvent::Changed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeKind {
    /// A value was stored, whether or not there was one before.
    Stored,
    /// The record has another expiry, or other [marks](crate::cache::Marks). Value and CAS id are
    /// what they were.
    Touched,
    /// The key was removed.
    Removed,
    /// The record had expired, or was cleared, and has been removed now. That is some time after it
    /// could be seen last, and it is not reported of a record that a new one has replaced.
    Expired,
    /// The record was evicted.
    Evicted,
}

/// What a [`Watch`] returns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A key was changed.
    Changed {
        /// The key.
        key: Vec<u8>,
        /// What happened to it.
        kind: ChangeKind,
        /// The CAS id of the record that was stored, touched or removed; 0 if what was removed
        /// could not be read.
        cas: u64,
    },
    /// All records with a smaller CAS id than this are gone: the map was
    /// [cleared](Map::clear). Records with greater ones may have been reported before.
    Cleared {
        /// The smallest CAS id of what is still there.
        below: u64,
    },
    /// The consumer was too slow: there were changes that the queue had no room for. Those after
    /// this event are complete again.
    Missed {
        /// The smallest CAS id of the records that were stored or touched: all that are still there
        /// are shown by [`watch_since`](Map::watch_since) this position. `None` if there were none.
        from: Option<u64>,
        /// The number of removals of any kind, and of clears. Their keys are not known. If there
        /// were any, a consumer that keeps what it was shown has to look its keys up.
        removals: u64,
    },
}

impl WatchEvent {
    pub(crate) fn key_len(&self) -> usize {
        match self {
            WatchEvent::Changed { key, .. } => key.len(),
            _ => 0,
        }
    }
}
