//! The state of a store in figures.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::Stats;
use evermap_pm::epoch::{EpochStats, Holder};
use evermap_pm::{ErrorKind, Medium};

use crate::maintenance::SweepState;
use crate::maintenance::census::Count;
use crate::ordered::Ordered;
use crate::{Durability, IndexKind, OrderedStat, Result, Store};

/// What [`Store::stat`] tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stat {
    /// The file; nothing for a store in memory.
    pub path: Option<PathBuf>,
    /// Name of the file system, or `memory`.
    pub file_system: String,
    /// The durability that was asked for.
    pub durability: Durability,
    /// What flushes and fences really do: `volatile`, `process`, ...
    pub medium: &'static str,
    /// The map that records and index are of; nothing for the default one.
    pub map: Option<String>,
    /// Named maps in the file.
    pub maps: u64,
    /// Records, those included that expired or were flushed but are not removed yet.
    pub records: Count,
    /// Bytes of the blocks that hold records.
    pub record_bytes: Count,
    /// Bytes of all blocks that are taken, the index's included; without closed extents.
    pub allocated_bytes: u64,
    /// Bytes of the extents that hold blocks: less the above, what smaller blocks could not fill.
    pub extent_bytes: u64,
    /// Bytes of extents from before an unclean stop that wait for the sweep.
    pub closed_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes in the largest extent that blocks share.
    pub extent_size: u64,
    /// Most bytes that records may take; nothing without a limit.
    pub max_bytes: Option<u64>,
    /// The kind of index.
    pub index: IndexKind,
    /// Records per place in the index, 0 to 1.
    pub load_factor: f64,
    /// Segments of the index.
    pub segments: u64,
    /// Global depth of the index's directory.
    pub depth: u32,
    /// Segments split since opening.
    pub splits: u64,
    /// Segments merged since opening.
    pub merges: u64,
    /// Segments recovered since opening.
    pub recovered: u64,
    /// How often the store was opened.
    pub generation: u64,
    /// Whether the last stop was orderly.
    pub clean_open: bool,
    /// Whether the file's pages may be of different ages, and it was opened all the same.
    pub suspect: bool,
    /// Where the sweep after an unclean stop is.
    pub sweep: SweepState,
    /// The ordered index, if there is one.
    pub ordered: Option<OrderedStat>,
    /// Guards, and bytes that wait for them.
    pub epoch: EpochStats,
    /// The thread that keeps memory from being used again at present, if one does.
    pub held_up_by: Option<Holder>,
    /// The CAS id that will be given out next.
    pub next_cas: u64,
    /// Records with a smaller CAS id are flushed.
    pub flush_mark: u64,
    /// When a pending flush falls due, in seconds since 1970.
    pub flush_due: Option<u64>,
    /// When the next record can expire, in seconds since 1970; `Some(0)` if that is not known, since a walk through all
    /// records is due; `None` if none expires.
    pub next_expiry: Option<u32>,
    /// Walks through all records since opening, to remove those that were expired or flushed.
    pub purges: u64,
    /// Records that were removed since opening because they were expired or flushed, by walks and without.
    pub purged: u64,
    /// Operations that met a damaged record, or a damaged part of the index, since opening. If the index cannot be
    /// looked at as a whole, its figures are zero.
    pub damage_met: u64,
    /// Entries of the extent table that could not be right, and frees and marks of what is no block, since opening:
    /// damage, or a bug.
    pub heap_faults: u64,
}

impl<M: Medium> Store<M> {
    /// The state of the map and its file in figures. Walks the index, but no record: O(n / 1000).
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// let stat = map.stat()?;
    /// assert_eq!(stat.records.value, 1);
    /// println!("{stat}");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn stat(&self) -> Result<Stat> {
        let guard = self.enter()?;
        let index = match self.map.index.stats(&guard) {
            // It counts as damage that was met, which is what there is to say about the index then.
            Err(error) if matches!(error.kind(), ErrorKind::Damaged { .. }) => Stats::default(),
            known => known?,
        };
        let (heap, region) = (self.file.pool.heap_stats(), self.file.pool.region());
        let epoch = self.file.pool.epoch_stats();
        Ok(Stat {
            path: self.file.origin.path.clone(),
            file_system: self.file.origin.file_system.clone(),
            durability: self.file.origin.durability,
            medium: self.file.pool.medium().name(),
            map: self.name().map(str::to_owned),
            maps: self.map_count(),
            records: self.len(),
            record_bytes: self.bytes(),
            allocated_bytes: heap.allocated_bytes,
            extent_bytes: heap.extent_bytes,
            closed_bytes: heap.closed_bytes,
            file_bytes: heap.file_bytes,
            extent_size: region.extent_size(),
            max_bytes: Some(self.map.max_bytes.load(Relaxed)).filter(|&limit| limit != u64::MAX),
            index: self.map.index.kind(),
            load_factor: index.load_factor(),
            segments: index.segments,
            depth: index.depth,
            splits: index.splits,
            merges: index.merges,
            recovered: index.recovered,
            generation: region.generation(),
            clean_open: self.file.origin.clean,
            suspect: self.file.origin.suspect,
            sweep: self.file.maintenance.sweep_state(),
            ordered: self.map.ordered.as_ref().map(Ordered::stat),
            held_up_by: Some(&epoch)
                .filter(|epoch| epoch.oldest_guard_lag > 0)
                .and_then(|_| self.file.pool.epoch().oldest_guard()),
            epoch,
            next_cas: self.file.cas_counter.next(),
            flush_mark: self.map.flush.mark(),
            flush_due: self.map.flush.due(),
            next_expiry: self.next_expiry(),
            purges: self.file.maintenance.purges.load(Relaxed),
            purged: self.file.maintenance.purged.load(Relaxed),
            damage_met: self.damage_met(),
            heap_faults: heap.faults,
        })
    }
}

impl fmt::Display for Stat {
    /// A line for each figure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:<16}{value}");
        if let Some(path) = &self.path {
            line("path", &path.display())?;
        }
        line("file system", &self.file_system)?;
        line("durability", &format!("{} (in effect: {})", self.durability, self.medium))?;
        if let Some(map) = &self.map {
            line("map", map)?;
        }
        if self.maps > 0 {
            line("named maps", &self.maps)?;
        }
        line("records", &self.records)?;
        line("record bytes", &self.record_bytes)?;
        line("allocated", &self.allocated_bytes)?;
        line("in extents", &self.extent_bytes)?;
        line("closed", &self.closed_bytes)?;
        line("file bytes", &self.file_bytes)?;
        line("extent size", &self.extent_size)?;
        if let Some(limit) = self.max_bytes {
            line("memory limit", &limit)?;
        }
        line("index", &self.index)?;
        line("load factor", &format!("{:.3}", self.load_factor))?;
        let changes = format!("{} split, {} merged", self.splits, self.merges);
        line("segments", &format!("{} ({changes}, depth {})", self.segments, self.depth))?;
        let last = match (self.clean_open, self.suspect) {
            (true, _) => "after an orderly stop",
            (false, false) => "after an unclean stop",
            (false, true) => "suspect: pages may be of different ages",
        };
        line("opened", &format!("{last}, generation {}", self.generation))?;
        line("sweep", &format!("{}, {} segments recovered", self.sweep, self.recovered))?;
        if let Some(ordered) = &self.ordered {
            line("ordered", ordered)?;
        }
        let guards =
            format!("{} (oldest {} behind)", self.epoch.guards, self.epoch.oldest_guard_lag);
        line("guards", &guards)?;
        line("awaiting reuse", &self.epoch.bytes_waiting)?;
        if let Some(holder) = &self.held_up_by {
            line("held up by", holder)?;
        }
        line("next CAS id", &self.next_cas)?;
        line("flushed below", &self.flush_mark)?;
        if let Some(due) = self.flush_due {
            line("flush due", &due)?;
        }
        line("purged", &format!("{} records, {} walks", self.purged, self.purges))?;
        line("damage met", &self.damage_met)?;
        line("heap faults", &self.heap_faults)
    }
}
