//! Blocks inside a region.
//!
//! The heap takes space in *extents*, each of one or more neighbouring *units*. An extent holds
//! blocks of one size, or one large object. Only a table of what each unit is used for persists:
//!
//! ```text
//! bit  0..8   kind: 0 never used, 1 first unit of an extent of movable blocks, 2 first unit of a
//!             large object, 3 a later unit of either, 4 free, 5 first unit of an extent of fixed
//!             blocks
//! bit  8..32  kinds 1 and 5: number of units
//! bit 32..64  kinds 1 and 5: block size / 16; kind 2: number of units; kind 4: number of this
//!             unit, so that damage is unlikely to look like a free unit
//! ```
//!
//! **Extents grow with the use of their block size.** The first extents of a size have the smallest
//! number of units that holds a block; later ones have a quarter of the units that the size already
//! has, up to the [extent size](Region::extent_size) of the region. So a few blocks of each size
//! need little space, while most of a large store is in large extents, which suit huge pages and
//! need few locks. Extents left by an unclean shutdown do not count before they are swept: a store
//! that is killed repeatedly takes small extents each time.
//!
//! *Movable* blocks, which can be moved because only a few words refer to them, and
//! [fixed](Heap::allocate_fixed) blocks, which structures consist of, never share an extent.
//! Otherwise a structure that becomes nearly empty would leave a block in most extents of that
//! size, and nothing could empty those for other sizes.
//!
//! Which blocks are allocated is known only in ordinary memory, so an allocation flushes nothing
//! (except when an extent gets a new use, which is flushed once). **Reachability decides**: after
//! an unclean shutdown every old extent is *closed*, which means that nothing is allocated from it
//! and that frees into it are deferred. A sweep asks the indexes which blocks they refer to; the
//! others become free. In the meantime allocations use units that the table marks as free, and new
//! ones. So a crash simply discards a block that was allocated but never published, and no log of
//! intentions is needed.
//!
//! A thread takes several free blocks at a time from one word of an extent's bitmap into a
//! *magazine*, and hands them out without further locking. Where records are replaced at random,
//! every extent has single free blocks; so a thread uses extents with ample free space, then new
//! ones, and fills single free blocks only while records are being moved together, or when space is
//! short. This leaves up to a sixteenth of an extent unused.
//!
//! A [limit](Heap::set_limit) may be set on the bytes of the units in use. Free units do not count,
//! and neither does their memory: where the limit leaves too little for it, it is returned to the
//! system. So under a limit the file may be longer than the limit, with holes in it, and a large
//! block finds neighbouring units behind the others although the free ones are scattered.
//!
//! How long it becomes may be [bounded](Heap::set_length_goal) too. At that length, movable blocks
//! take free units, of which enough may be free, but not as neighbours. The caller then chooses a
//! [window](Heap::window) of neighbouring units, and moves what is in it out of the way.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::medium::Medium;
use crate::region::{BlockKind, Geometry, Region, TableEntry, Usage};
use crate::sync::{Mutex, MutexGuard, Rank};

mod allocate;
mod classes;
mod demand;
mod evacuate;
mod extents;
mod limit;
mod magazine;
mod occupancy;
mod runs;
mod snapshot;
mod sweep;
#[cfg(test)]
mod tests;
mod trim;
mod units;
mod window;

use classes::Classes;
use demand::Demand;
use extents::{Extent, ExtentState, Extents};
use magazine::Magazine;
use runs::Runs;

pub use demand::SizeDemand;
pub use evacuate::Evacuation;
pub use limit::{MEMORY_LIMIT, Room};
pub use occupancy::{DescribedExtent, ExtentBlocks};
pub use units::NEIGHBOURS;
pub use window::Window;

/// Number of shards, so that threads seldom share one.
const SHARDS: usize = 16;

/// Maximum number of bytes by which a region grows ahead of need.
const GROWTH_MAX: u64 = 64 << 20;

/// An extent has ample space if one block in this many is free: taking blocks one at a time costs
/// several times as much as taking several, if frees are scattered and threads compete. A thread
/// also takes no larger part of an extent at a time, so that several threads fill one extent if
/// extents are small.
const AMPLE_PART: u32 = 16;

/// A new extent has this fraction of the units that its block size already has.
const GROWTH_PART: u64 = 4;

/// Free units are preferred to new ones for an extent unless they are fewer than one in this many
/// of the units that it should have.
const LEAST_PART: u64 = 16;

/// Maximum number of bytes that are prefetched of the block that will be written next.
const PREFETCH_MAX: u64 = 512;

/// Bytes of free units that stay in memory before more memory is returned to the system.
const FREE_BYTES_KEPT: u64 = 16 << 20;

/// The same as a fraction of all units that were ever used, if that is more.
const FREE_PART_KEPT: u64 = 16;

/// Entries in a page of the table, which is the unit that storage loses.
const PAGE_ENTRIES: u64 = 4096 / 8;

/// A magazine of each class for movable blocks, then one of each class for fixed blocks.
#[repr(align(128))]
struct Shard(Mutex<Vec<Magazine>>);

/// Extents with free blocks of one kind. An entry may be out of date; the extent itself is checked.
#[derive(Default)]
struct Available {
    /// Extents with ample space. The last one is used first: recently freed blocks are soon reused,
    /// so that use-after-free bugs show.
    ample: Vec<u64>,
    /// Extents with any free block.
    any: BTreeSet<u64>,
    /// Units of all open extents of such blocks.
    units: u64,
}

/// The state that all shards share.
struct SharedState {
    /// Extents with free blocks.
    available: BTreeMap<BlockKind, Available>,
    /// Number of running [evacuations](Evacuation).
    evacuations: u32,
    /// Free units, but for those in the window and the zone.
    free: Runs,
    /// Free units that are kept for fixed blocks.
    zone: Runs,
    /// Number of units that were taken for fixed blocks since the heap was opened.
    fixed: u64,
    /// Units that are kept for one allocation, while those among them that are in use become free:
    /// all of them, and those that are free already. See [`Window`].
    window: Option<(Range<u64>, Runs)>,
    /// The end of the last window.
    window_end: u64,
    /// Free units whose space was returned to the file system, or may have been before this open.
    /// They must be claimed before use.
    unclaimed: Runs,
    /// Those of the free units whose space this opening has returned to the file system, so that
    /// they take no memory.
    discarded: Runs,
    /// Units from this one on were never used.
    frontier: u64,
    /// Magazines of exact sizes, of which there are few: at most one of each.
    exact: Vec<(u64, Magazine)>,
}

impl SharedState {
    /// Removes the magazine of an exact size, if there is one.
    fn take_exact(&mut self, size: u64) -> Option<Magazine> {
        let at = self.exact.iter().position(|&(of, _)| of == size)?;
        Some(self.exact.swap_remove(at).1)
    }

    /// Returns the number of free units.
    fn count_free(&self) -> u64 {
        let in_window = self.window.as_ref().map_or(0, |(_, free)| free.total());
        self.free.total() + self.zone.total() + in_window
    }

    /// Returns the first run of free units from `from` on that are not in `other`. Those that are
    /// kept for something follow the others, whatever `from` is.
    fn next_free_without(&self, other: impl Fn(&Self) -> &Runs, from: u64) -> Option<Range<u64>> {
        let other = other(self);
        let in_window = || self.window.as_ref()?.1.next_without(other, 0);
        let in_zone = || self.zone.next_without(other, 0);
        self.free.next_without(other, from).or_else(in_zone).or_else(in_window)
    }

    /// Keeps nothing for fixed blocks any more.
    fn end_zone(&mut self) {
        let zone = std::mem::take(&mut self.zone);
        zone.all().for_each(|units| self.insert_free(units));
    }

    /// Adds units to the free ones.
    fn insert_free(&mut self, units: Range<u64>) {
        let Some((window, free)) = &mut self.window else { return self.free.insert(units) };
        let kept = units.start.max(window.start)..units.end.min(window.end);
        if kept.is_empty() {
            return self.free.insert(units);
        }
        self.free.insert(units.start..kept.start);
        self.free.insert(kept.end..units.end);
        free.insert(kept);
    }
}

/// How much space is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of the medium that are usable now.
    pub file_bytes: u64,
    /// Bytes of all units in use, with the header and the table: what a [limit](Heap::set_limit)
    /// limits.
    pub used_bytes: u64,
    /// Bytes of extents in use.
    pub extent_bytes: u64,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Number of allocated blocks.
    pub allocated_blocks: u64,
    /// Bytes of extents from before an unclean shutdown that wait for the sweep.
    pub closed_bytes: u64,
    /// Frees of blocks that were not allocated, and marks of offsets without a block: damage, or a
    /// bug.
    pub faults: u64,
}

/// Allocates blocks in a region. See the [module documentation](self).
pub struct Heap<M: Medium> {
    region: Arc<Region<M>>,
    geometry: Geometry,
    classes: Classes,
    extents: Extents,
    shards: Box<[Shard]>,
    shared: Mutex<SharedState>,
    /// Maximum number of bytes that the units in use may take; `u64::MAX` without a limit.
    limit: AtomicU64,
    /// The length up to which the region grows for movable blocks, in bytes; `u64::MAX` for its
    /// capacity.
    length_goal: AtomicU64,
    demand: Demand,
    faults: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while one of these locks is held is a bug in this module. The region is poisoned
    // then, so the state of the heap no longer matters: reopening rebuilds it.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// How a region was used before the heap is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PreviousUse {
    /// It was just created.
    None,
    /// It was closed cleanly.
    Closed,
    /// It was not closed cleanly.
    Unclean,
}

impl<M: Medium> Heap<M> {
    /// Opens the heap of a region. Extents in use are closed until
    /// [`finish_sweep`](Heap::finish_sweep), unless a clean shutdown saved the state of the heap,
    /// and that verifies.
    pub(crate) fn open(region: Arc<Region<M>>, previous: PreviousUse) -> Self {
        let heap = Self::with_table(region, previous);
        let snapshot = match previous {
            PreviousUse::Closed => heap.read_snapshot(),
            PreviousUse::None | PreviousUse::Unclean => None,
        };
        let Some(words) = snapshot else { return heap };
        if heap.restore_snapshot(&words) {
            return heap;
        }
        let restored = heap.restore_table(&words);
        if restored == 0 {
            heap.fault();
            return heap;
        }
        // What had lost its entries was taken for something else.
        let heap = Self::with_table(heap.region, previous);
        heap.faults.fetch_add(restored, Ordering::Relaxed);
        if !heap.restore_snapshot(&words) {
            heap.fault();
        }
        heap
    }

    /// Returns a heap whose extents are as the table says: in use and closed, or free.
    fn with_table(region: Arc<Region<M>>, previous: PreviousUse) -> Self {
        let geometry = region.geometry();
        let classes = Classes::new(region.extent_size(), region.unit());
        let heap = Heap {
            extents: Extents::new(&geometry, region.unit_offset(0) >> geometry.shift),
            shards: (0..SHARDS)
                .map(|_| vec![Magazine::default(); 2 * classes.len()])
                .map(|magazines| Shard(Mutex::ranked(Rank::Magazine, magazines)))
                .collect(),
            shared: Mutex::ranked(
                Rank::Heap,
                SharedState {
                    available: BTreeMap::new(),
                    evacuations: 0,
                    free: Runs::default(),
                    zone: Runs::default(),
                    fixed: 0,
                    window: None,
                    window_end: 0,
                    unclaimed: Runs::default(),
                    discarded: Runs::default(),
                    frontier: 0,
                    exact: Vec::new(),
                },
            ),
            limit: AtomicU64::new(u64::MAX),
            length_goal: AtomicU64::new(u64::MAX),
            demand: Demand::new(classes.len()),
            faults: AtomicU64::new(region.table_faults()),
            geometry,
            classes,
            region,
        };
        heap.read_table(previous);
        heap
    }

    fn load_entry(&self, index: u64) -> u64 {
        self.region.medium().load(self.region.entry(index))
    }

    /// Returns the number of units that the table describes and the file contains. Entries beyond
    /// the end of the file can only be damage.
    fn described(&self) -> u64 {
        let whole =
            (self.region.medium().len() - self.region.unit_offset(0)) >> self.geometry.shift;
        self.region.described().min(self.extents.len).min(whole)
    }

    /// Returns the first units of the later parts of the table, and the numbers of their units.
    fn table_parts(&self) -> BTreeMap<u64, u64> {
        let units = self.region.parts().map(|bytes| self.units_of(bytes));
        units.map(|units| (units.start, units.end - units.start)).collect()
    }

    fn read_table(&self, previous: PreviousUse) {
        let described = self.described();
        let m = self.region.medium();
        let unused = self.region.entries(0..described).rev().take_while(|entry| m.load(entry) == 0);
        let mut frontier = described - unused.count() as u64;
        // If the last page of the table was overwritten by zeros, the table seems to end at a page
        // boundary. The units of that page may be in use, so nothing is allocated from them before
        // a sweep. In a new region, no unit is in use.
        if frontier.is_multiple_of(PAGE_ENTRIES) && previous != PreviousUse::None {
            frontier = described.min(frontier + PAGE_ENTRIES);
        }
        let parts = self.table_parts();
        frontier = parts.iter().fold(frontier, |end, (start, units)| end.max(start + units));
        let shared = &mut *lock(&self.shared);
        shared.frontier = frontier;
        let mut index = 0;
        // Whatever the entries say, units of the table are not part of another extent.
        for (start, units) in parts {
            // Only damage puts one into another.
            if start < index {
                continue;
            }
            self.read_extents(shared, index..start);
            let entry = TableEntry { usage: Usage::Table, units };
            self.extents.begin_first(start, entry, ExtentState::Open, &self.geometry);
            index = start + units;
        }
        self.read_extents(shared, index..frontier);
    }

    /// Reads the entries of these units, in which whole extents are. Looks at every unit, and so
    /// takes a part of the time in which a large file is opened: a few instructions a unit.
    fn read_extents(&self, shared: &mut SharedState, units: Range<u64>) {
        let mut index = units.start;
        while index < units.end {
            let entry = self.entry_at(index, units.end);
            if entry.usage == Usage::Free {
                let end = self.end_of_free(index..units.end);
                shared.free.insert(index..end);
                shared.unclaimed.insert(index..end);
                index = end;
            } else {
                self.extents.begin_first(index, entry, ExtentState::Closed, &self.geometry);
                index += entry.units;
            }
        }
    }

    /// Returns the units that hold these bytes.
    fn units_of(&self, bytes: Range<u64>) -> Range<u64> {
        let unit = |at: u64| at.saturating_sub(self.region.unit_offset(0));
        unit(bytes.start) >> self.geometry.shift..unit(bytes.end).div_ceil(self.geometry.unit())
    }

    /// Returns the end of the free units that begin with `units`.
    fn end_of_free(&self, units: Range<u64>) -> u64 {
        let (m, mut index) = (self.region.medium(), units.start);
        while index < units.end {
            let entries = self.region.entries_from(index);
            let mut known = entries.iter().zip(index..units.end);
            index += entries.len() as u64;
            let is_used =
                |&(entry, unit): &(_, u64)| m.load(entry) != TableEntry::FREE.encode(unit);
            if let Some((_, used)) = known.find(is_used) {
                return used;
            }
        }
        units.end
    }

    /// Returns the table's entry of the extent that begins with unit `index`.
    fn entry_at(&self, index: u64, end: u64) -> TableEntry {
        let Some(entry) = TableEntry::decode(self.load_entry(index), index, &self.geometry) else {
            self.fault();
            return TableEntry::UNUSED;
        };
        let tail = TableEntry::TAIL.encode(0);
        let tails = index + 1..index + entry.units;
        // An extent that lacks a tail, and a tail that follows no such extent, are left by an
        // interrupted change, or by the reuse of some units of a free extent. Nothing refers to
        // them.
        let whole = tails.end <= end && self.region.entries_equal(tails, tail);
        if entry.usage == Usage::Tail || !whole { TableEntry::UNUSED } else { entry }
    }

    fn fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the unit that contains `offset`.
    fn unit_at(&self, offset: u64) -> Option<u64> {
        let index = offset.checked_sub(self.region.unit_offset(0))? >> self.geometry.shift;
        (index < self.extents.len).then_some(index)
    }

    /// Returns the extent that contains `offset`, and the position inside it in bytes.
    fn locate(&self, offset: u64) -> Option<(u64, u64)> {
        let index = self.unit_at(offset)?;
        let first = self.extents.first_of(index);
        Some((first, offset - self.region.unit_offset(first)))
    }

    /// Calls `f` with every extent in use, in ascending order.
    fn for_each_extent(&self, mut f: impl FnMut(u64, &mut Extent)) {
        let frontier = lock(&self.shared).frontier;
        let mut index = 0;
        while index < frontier {
            let mut units = 1;
            if let Some(mut extent) = self.extents.lock_existing(index)
                && extent.state != ExtentState::Free
            {
                // Read before `f`, which may free the extent.
                units = extent.entry.units;
                f(index, &mut extent);
            }
            index += units;
        }
    }

    /// Returns how much space is in use. Approximate while other threads allocate and free.
    /// O(extents).
    pub fn stats(&self) -> HeapStats {
        let mut stats = HeapStats {
            file_bytes: self.region.medium().len(),
            used_bytes: self.used_bytes(&lock(&self.shared)),
            faults: self.faults.load(Ordering::Relaxed),
            ..Default::default()
        };
        self.for_each_extent(|_, extent| {
            if extent.entry.usage == Usage::Table {
                return;
            }
            let bytes = extent.entry.units << self.geometry.shift;
            stats.extent_bytes += bytes;
            if extent.state == ExtentState::Closed {
                stats.closed_bytes += bytes;
            } else {
                let allocated = u64::from(extent.blocks - extent.free);
                stats.allocated_blocks += allocated;
                stats.allocated_bytes += allocated * extent.block_size(&self.geometry);
            }
        });
        self.subtract_magazines(&mut stats);
        stats
    }

    /// Returns every allocated block in ascending order, for checks. There must be no concurrent
    /// changes.
    pub fn allocated(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.for_each_extent(|index, extent| {
            if extent.state != ExtentState::Open {
                return;
            }
            let (start, size) = (self.region.unit_offset(index), extent.block_size(&self.geometry));
            let is_allocated = |block: &u32| {
                let (word, bit) = Extent::bit(*block);
                extent.bits[word] & bit != 0
            };
            let allocated = (0..extent.blocks).filter(is_allocated);
            blocks.extend(allocated.map(|block| start + u64::from(block) * size));
        });
        let mut in_magazines = BTreeSet::new();
        let mut add = |magazine: &Magazine, size: u64| {
            let mut rest = *magazine;
            while rest.mask != 0 {
                in_magazines.insert(rest.take(size));
            }
        };
        for shard in &self.shards {
            let magazines = lock(&shard.0);
            magazines
                .iter()
                .enumerate()
                .for_each(|(at, magazine)| add(magazine, self.magazine_block_size(at)));
        }
        lock(&self.shared).exact.iter().for_each(|(size, magazine)| add(magazine, *size));
        blocks.retain(|block| !in_magazines.contains(block));
        blocks
    }
}
