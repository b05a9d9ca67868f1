//! The state of a store in figures.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::Stats;
use evermap_pm::epoch::{EpochStats, Holder};
use evermap_pm::region::DamageMark;
use evermap_pm::{ErrorKind, Medium};

use crate::error::counted;
use crate::maintenance::census::Count;
use crate::maintenance::sweep::SweepState;
use crate::ordered::{Ordered, OrderedState, PersistentOrder};
use crate::{Durability, Evermap, IndexKind, Map, OrderedStat, Result};

/// The state of a map and of its file: what [`Map::stat`] returns. Times are in seconds since 1970.
///
/// With the feature `serde` it can be serialized, for example to JSON: the fields have the names
/// that they have here, and variants of enumerations theirs in lower case with hyphens. A path that
/// is not UTF-8 cannot be.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stat {
    /// The file; `None` for a store in memory.
    pub path: Option<PathBuf>,
    /// Name of the file system, or `memory`.
    pub file_system: String,
    /// What the store survives.
    pub durability: Durability,
    /// What flushes and fences really do: `volatile`, `process`, ...
    pub medium: String,
    /// Name of the map that the figures of records are about; `None` for the default one.
    pub map: Option<String>,
    /// Number of named maps in the file.
    pub maps: u64,
    /// Number of records, including those that expired or were flushed but are not removed yet.
    pub records: Count,
    /// Number of records that the map had when the file was opened; `None` until the sweep after an
    /// unclean shutdown has counted them.
    pub records_at_open: Option<u64>,
    /// Bytes of the blocks that hold records.
    pub record_bytes: Count,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes in the largest extent that blocks share.
    pub extent_size: u64,
    /// Most bytes that records may take; `None` without a limit.
    pub max_bytes: Option<u64>,
    /// Most bytes that the file may take in memory; `None` without a limit. For a cache it may be
    /// less than what was asked for, because of the capacity of the file or a full disk.
    pub memory_limit: Option<u64>,
    /// The limit that was asked for; `None` if none was.
    pub memory_limit_asked: Option<u64>,
    /// Bytes that the file takes as far as that is limited: what is in use, with the indexes.
    pub memory_used: u64,
    /// The kind of index.
    pub index: IndexKind,
    /// How often the file was opened. 1: it was created by this opening.
    pub generation: u64,
    /// Whether the last shutdown was clean, or the file was created by this opening.
    pub clean_open: bool,
    /// Whether the file's pages may be of different ages, and it was opened all the same.
    pub suspect: bool,
    /// State of the sweep after an unclean shutdown.
    pub sweep: SweepState,
    /// The ordered index in ordinary memory, if there is one.
    pub ordered: Option<OrderedStat>,
    /// How far the persistent ordered index is, if there is one.
    pub persistent_order: Option<OrderedState>,
    /// Guards, and bytes that wait for them.
    pub epoch: EpochStats,
    /// The thread that keeps memory from being used again at present, if one does.
    pub held_up_by: Option<Holder>,
    /// The CAS id that the next record gets.
    pub next_cas: u64,
    /// Records with a smaller CAS id are flushed.
    pub flush_mark: u64,
    /// When a pending flush falls due, in seconds since 1970.
    pub flush_due: Option<u64>,
    /// When the next record can expire, in seconds since 1970; `Some(0)` if that is not known
    /// because a walk through all records is due; `None` if none expires.
    pub next_expiry: Option<u64>,
    /// Number of walks through all records since opening, to remove those that were expired or
    /// flushed.
    pub purges: u64,
    /// Number of records that were removed since opening because they were expired or flushed.
    pub purged: u64,
    /// Number of records of all maps that were evicted since opening.
    pub evictions: u64,
    /// Number of those of them that were in this map.
    pub map_evictions: u64,
    /// Number of those of them that were never read.
    pub evicted_unfetched: u64,
    /// Bytes of the blocks of the records that were evicted.
    pub evicted_bytes: u64,
    /// Number of those that mutations evicted themselves, because the thread in the background had
    /// not made enough space.
    pub evicted_directly: u64,
    /// Seconds from the last access of the record that was evicted last to its eviction.
    pub eviction_age: u64,
    /// Number of records that expired or were flushed without having been read, of those that were
    /// removed since opening. Counted in a cache only.
    pub expired_unfetched: u64,
    /// Number of records that were moved since opening so that others find space.
    pub moved_for_space: u64,
    /// Number of operations that met a damaged record, or a damaged part of the index, since
    /// opening.
    pub damage_met: u64,
    /// Damage of the file that was found and not repaired. It is noted in the file, which never
    /// counts as cleanly closed while it is: the next opening verifies everything that it reads,
    /// and refuses the file if the damage is [widespread](DamageMark::Widespread). A deep
    /// [check](Evermap::check) that finds no problem takes the mark away.
    pub damage: DamageMark,
    /// Number of distinct places in the file that were found damaged since opening, up to 256.
    pub damaged_places: u64,
    /// Descriptions of the first of them.
    pub damage_found: Vec<String>,
}

/// How the space of a file and the index of a map are used: what [`Map::space`] returns.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SpaceStat {
    /// Bytes of all allocated blocks, the index's included; without closed extents.
    pub allocated_bytes: u64,
    /// Bytes of the extents that hold blocks: less the above, what smaller blocks could not fill.
    pub extent_bytes: u64,
    /// Bytes of extents from before an unclean shutdown that wait for the sweep.
    pub closed_bytes: u64,
    /// Number of entries of the extent table that could not be right, and of frees and marks of
    /// what is no block, since opening: damage, or a bug.
    pub heap_faults: u64,
    /// Records per slot of the index, 0 to 1. If the index cannot be read as a whole, its figures
    /// are zero.
    pub load_factor: f64,
    /// Number of segments of the index.
    pub segments: u64,
    /// Global depth of the index's directory.
    pub depth: u32,
    /// Number of segments split since opening.
    pub splits: u64,
    /// Number of segments merged since opening.
    pub merges: u64,
    /// Number of segments recovered since opening.
    pub recovered: u64,
}

impl<M: Medium> Evermap<M> {
    /// Returns the state of the file and of its default map. O(named maps that are open).
    ///
    /// ```
    /// let db = evermap::Evermap::in_memory(evermap::Options::new())?;
    /// assert_eq!(db.stat().generation, 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn stat(&self) -> Stat {
        self.default_map().stat()
    }
}

impl<M: Medium> Map<M> {
    /// Returns the state of the map and of its file. O(named maps that are open).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// let stat = map.stat();
    /// assert_eq!(stat.records.value, 1);
    /// println!("{stat}");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn stat(&self) -> Stat {
        let file = &self.db.file;
        let epoch = file.pool.epoch_stats();
        let (places, damage_found) = file.pool.region().damaged_places();
        let (room, evicted) = (file.pool.heap().room(), &file.maintenance.evictor.counts);
        Stat {
            path: file.origin.path.clone(),
            file_system: file.origin.file_system.clone(),
            durability: file.origin.durability,
            medium: file.pool.medium().name().into(),
            map: self.name().map(str::to_owned),
            maps: self.db.map_count(),
            records: self.records(),
            records_at_open: self.inner.counters.at_open(),
            record_bytes: self.bytes(),
            file_bytes: file.pool.medium().len(),
            extent_size: file.pool.region().extent_size(),
            max_bytes: Some(self.inner.max_bytes.load(Relaxed)).filter(|&limit| limit != u64::MAX),
            memory_limit: Some(room.limit).filter(|&limit| limit != u64::MAX),
            memory_limit_asked: self.db.asked_limit(),
            memory_used: room.used,
            index: self.inner.index.kind(),
            generation: file.pool.region().generation(),
            clean_open: file.clean,
            suspect: file.suspect,
            sweep: file.maintenance.sweep_state(),
            ordered: self.inner.ordered.as_ref().map(Ordered::stat),
            persistent_order: self.inner.order.as_ref().map(PersistentOrder::state),
            held_up_by: Some(&epoch)
                .filter(|epoch| epoch.oldest_guard_lag > 0)
                .and_then(|_| file.pool.epoch().oldest_guard()),
            epoch,
            next_cas: file.cas_counter.next(),
            flush_mark: self.inner.flush.mark(),
            flush_due: self.inner.flush.due(),
            next_expiry: self.db.next_expiry().map(u64::from),
            purges: file.maintenance.purges.load(Relaxed),
            purged: file.maintenance.purged.load(Relaxed),
            evictions: evicted.evictions.load(Relaxed),
            map_evictions: self.inner.own_eviction.evictions.load(Relaxed),
            evicted_unfetched: evicted.evicted_unfetched.load(Relaxed),
            evicted_bytes: evicted.evicted_bytes.load(Relaxed),
            evicted_directly: evicted.direct.load(Relaxed),
            eviction_age: evicted.idle.load(Relaxed),
            expired_unfetched: evicted.expired_unfetched.load(Relaxed),
            moved_for_space: evicted.moved.load(Relaxed),
            damage_met: self.damage_met(),
            damage: file.pool.region().damage_mark(),
            damaged_places: places as u64,
            damage_found,
        }
    }

    /// Returns how the space of the file and the index of this map are used. Walks the index and
    /// the table of extents, but no record: O(n / 1000).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// assert!(map.space()?.allocated_bytes > 0);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed), [`Error::Dropped`](crate::Error::Dropped).
    pub fn space(&self) -> Result<SpaceStat> {
        let guard = self.enter()?;
        let index = match self.inner.index.stats(&guard) {
            // It counts as damage that was met, which is all there is to report about the index
            // then.
            Err(error) if matches!(error.kind(), ErrorKind::Damaged { .. }) => Stats::default(),
            known => known?,
        };
        let heap = self.db.file.pool.heap_stats();
        Ok(SpaceStat {
            allocated_bytes: heap.allocated_bytes,
            extent_bytes: heap.extent_bytes,
            closed_bytes: heap.closed_bytes,
            heap_faults: heap.faults,
            load_factor: index.load_factor(),
            segments: index.segments,
            depth: index.depth,
            splits: index.splits,
            merges: index.merges,
            recovered: index.recovered,
        })
    }
}

impl fmt::Display for Stat {
    /// Writes a line for each figure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            line(f, "path", &path.display())?;
        }
        line(f, "file system", &self.file_system)?;
        line(f, "durability", &format!("{} (in effect: {})", self.durability, self.medium))?;
        if let Some(map) = &self.map {
            line(f, "map", map)?;
        }
        if self.maps > 0 {
            line(f, "named maps", &self.maps)?;
        }
        line(f, "records", &self.records)?;
        line(f, "record bytes", &self.record_bytes)?;
        line(f, "file bytes", &self.file_bytes)?;
        line(f, "extent size", &self.extent_size)?;
        if let Some(limit) = self.max_bytes {
            line(f, "record limit", &limit)?;
        }
        if let Some(limit) = self.memory_limit {
            line(f, "memory limit", &format!("{limit}, of which {} are in use", self.memory_used))?;
            if let Some(asked) = self.memory_limit_asked.filter(|&asked| asked > limit) {
                let text = format!("{asked}, for which the capacity or the disk is too small");
                line(f, "limit asked for", &text)?;
            }
        }
        if self.evictions > 0 {
            let text = format!(
                "{} ({} never read, {} by writers), the last {} s after its last access",
                counted(self.evictions, "record"),
                self.evicted_unfetched,
                self.evicted_directly,
                self.eviction_age
            );
            line(f, "evicted", &text)?;
        }
        line(f, "index", &self.index)?;
        let last = match (self.generation, self.clean_open, self.suspect) {
            (..=1, ..) => "created",
            (_, true, _) => "after a clean shutdown",
            (_, false, false) => "after an unclean shutdown",
            (_, false, true) => "suspect: pages may be of different ages",
        };
        line(f, "opened", &format!("{last}, generation {}", self.generation))?;
        line(f, "sweep", &self.sweep)?;
        if let Some(ordered) = &self.ordered {
            line(f, "ordered", ordered)?;
        }
        if let Some(state) = &self.persistent_order {
            line(f, "order in file", state)?;
        }
        let guards =
            format!("{} (oldest {} behind)", self.epoch.guards, self.epoch.oldest_guard_lag);
        line(f, "guards", &guards)?;
        line(f, "awaiting reuse", &self.epoch.bytes_waiting)?;
        if let Some(holder) = &self.held_up_by {
            line(f, "held up by", holder)?;
        }
        line(f, "next CAS id", &self.next_cas)?;
        line(f, "flushed below", &self.flush_mark)?;
        if let Some(due) = self.flush_due {
            line(f, "flush due", &due)?;
        }
        let [purged, walks] = [counted(self.purged, "record"), counted(self.purges, "walk")];
        line(f, "purged", &format!("{purged}, {walks}"))?;
        line(f, "damage met", &self.damage_met)?;
        if self.damage > DamageMark::None {
            let extent = match self.damage {
                DamageMark::Widespread => "in many places: the next opening refuses the file",
                _ => "noted in the file until `evermap recover` finds no problem",
            };
            line(
                f,
                "damage",
                &format!("{} found; {extent}", counted(self.damaged_places, "place")),
            )?;
        }
        self.damage_found.iter().try_for_each(|found| line(f, "damaged", found))
    }
}

impl fmt::Display for SpaceStat {
    /// Writes a line for each figure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, "allocated", &self.allocated_bytes)?;
        line(f, "in extents", &self.extent_bytes)?;
        line(f, "closed", &self.closed_bytes)?;
        line(f, "load factor", &format!("{:.3}", self.load_factor))?;
        let changes = format!(
            "{} split, {} merged, {} recovered, depth {}",
            self.splits, self.merges, self.recovered, self.depth
        );
        line(f, "segments", &format!("{} ({changes})", self.segments))?;
        line(f, "heap faults", &self.heap_faults)
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: &dyn fmt::Display) -> fmt::Result {
    writeln!(f, "{name:<16}{value}")
}
