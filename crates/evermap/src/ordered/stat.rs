//! The ordered index in figures.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evermap_index::OrderedIndex;

use super::Ordered;
use crate::error::counted;

/// How far the ordered index is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum OrderedState {
    /// No thread has begun to build it.
    Pending,
    /// It is being built from the hash index.
    Building,
    /// It is complete; building took this long.
    Ready(Duration),
    /// It could not be completed: scans say so. Everything else works.
    Failed(String),
}

impl fmt::Display for OrderedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderedState::Pending => f.pad("pending"),
            OrderedState::Building => f.pad("building"),
            OrderedState::Ready(took) => {
                write!(f, "ready after {:.1} ms", took.as_secs_f64() * 1e3)
            }
            OrderedState::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// The ordered index in figures. See [`Options::ordered`](crate::Options::ordered).
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct OrderedStat {
    /// How far it is.
    pub state: OrderedState,
    /// Keys in it: as many as the hash index binds, when no notice waits.
    pub keys: u64,
    /// Bytes of ordinary memory that it takes.
    pub bytes: u64,
    /// Levels of nodes.
    pub depth: u32,
    /// Keys that were read so far to build it.
    pub keys_read: u64,
    /// Whether those were the keys that the last clean shutdown had saved, in order.
    pub from_saved: bool,
    /// Records, or parts of the hash index, that could not be read when it was built: scans do not
    /// show them.
    pub unreadable: u64,
    /// The number of notices of keys that were bound or unbound since opening that were applied.
    pub notices: u64,
    /// The number of notices that wait to be applied.
    pub notices_waiting: u64,
}

impl fmt::Display for OrderedStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            OrderedState::Building => {
                write!(f, "building, {} read", counted(self.keys_read, "key"))?;
            }
            _ => write!(
                f,
                "{}, {} in {}, {}",
                self.state,
                counted(self.keys, "key"),
                counted(self.bytes, "byte"),
                counted(self.depth.into(), "level")
            )?,
        }
        write!(f, ", {} waiting", counted(self.notices_waiting, "notice"))?;
        match self.unreadable {
            0 => Ok(()),
            unreadable => write!(f, ", {unreadable} unreadable"),
        }
    }
}

impl Ordered {
    /// Returns the number of keys that were read to build it, and of what could not be read then.
    pub(crate) fn keys_read(&self) -> (u64, u64) {
        (self.read.load(Relaxed), self.unreadable.load(Relaxed))
    }

    pub(crate) fn stat(&self) -> OrderedStat {
        let tree = self.tree.get().map(OrderedIndex::stats).unwrap_or_default();
        let counts = self.shards.iter().map(super::NoticeShard::counts);
        let (notices, waiting) = counts.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
        OrderedStat {
            state: self.state(),
            keys: tree.len,
            bytes: tree.dram_bytes,
            depth: tree.depth,
            keys_read: self.read.load(Relaxed),
            from_saved: self.from_saved.load(Relaxed),
            unreadable: self.unreadable.load(Relaxed),
            notices,
            notices_waiting: waiting,
        }
    }
}
