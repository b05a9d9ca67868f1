//! The state of a store at a glance.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::Medium;

use crate::maintenance::SweepState;
use crate::maintenance::census::Count;
use crate::ordered::Ordered;
use crate::{Durability, OrderedStat, Store};

/// What [`Store::summary`] tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The file; nothing for a store in memory.
    pub path: Option<PathBuf>,
    /// Name of the file system, or `memory`.
    pub file_system: String,
    /// The durability that was asked for.
    pub durability: Durability,
    /// Records, those included that expired or were flushed but are not removed yet.
    pub records: Count,
    /// Bytes of the blocks that hold records.
    pub record_bytes: Count,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Most bytes that records may take; nothing without a limit.
    pub max_bytes: Option<u64>,
    /// How often the store was opened. 1: it was made.
    pub generation: u64,
    /// Whether the last stop was orderly.
    pub clean_open: bool,
    /// Whether the file's pages may be of different ages, and it was opened all the same.
    pub suspect: bool,
    /// Where the sweep after an unclean stop is.
    pub sweep: SweepState,
    /// The ordered index, if there is one.
    pub ordered: Option<OrderedStat>,
    /// Operations that met a damaged record, or a damaged part of the index, since opening.
    pub damage_met: u64,
}

impl<M: Medium> Store<M> {
    /// What of [`stat`](Store::stat) is known without looking at the index. O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// assert_eq!(map.summary().records.value, 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn summary(&self) -> Summary {
        Summary {
            path: self.file.origin.path.clone(),
            file_system: self.file.origin.file_system.clone(),
            durability: self.file.origin.durability,
            records: self.len(),
            record_bytes: self.bytes(),
            file_bytes: self.file.pool.medium().len(),
            max_bytes: Some(self.map.max_bytes.load(Relaxed)).filter(|&limit| limit != u64::MAX),
            generation: self.file.pool.region().generation(),
            clean_open: self.file.origin.clean,
            suspect: self.file.origin.suspect,
            sweep: self.file.maintenance.sweep_state(),
            ordered: self.map.ordered.as_ref().map(Ordered::stat),
            damage_met: self.damage_met(),
        }
    }
}
