//! Whether space has to be made in a cache, and for which sizes.
//!
//! Space that mutations can use is of two kinds: units that the limit still allows, which serve
//! every size, and free blocks, which serve their own size only. So free blocks count only as far
//! as their size is in demand: each size as much as it has of what is being claimed. Where the rest
//! is too little, records are evicted. Where there are too few units, extents of sizes that have
//! more free blocks than are in demand are emptied.

use std::collections::BTreeMap;

use evermap_pm::Medium;
use evermap_pm::heap::{Heap, SizeDemand};

/// This part of the limit is kept free.
const FREE_PART: u64 = 48;
/// This part of the limit is kept free in units.
const UNITS_PART: u64 = 192;
/// The same in units, if that is more, but at most a sixteenth of the limit.
const FREE_UNITS: u64 = 4;
/// The bar is raised each time that this part of the limit was passed over for one goal.
const BAR_PART: u64 = 4;
/// The same for a mutation that waits, in bytes, if that is less.
const DIRECT_BAR: u64 = 4 << 20;
/// The number of times that a mutation makes some space before it looks whether that is enough.
pub(super) const DIRECT_STEPS: u32 = 4096;
/// How often readers are waited for without effect.
pub(super) const READER_WAITS: u32 = 2;
/// Bytes of free units that are returned to the system at a time.
pub(super) const RETURNED_AT_ONCE: u64 = 8 << 20;
/// The number of expired records that are removed at a time.
pub(super) const EXPIRED_AT_ONCE: u64 = 256;

/// How much space there should be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// The limit.
    limit: u64,
    /// Bytes that mutations should be able to claim.
    high: u64,
    /// Bytes that they should be able to claim in units.
    room: u64,
    /// Bytes to be passed over before the bar is raised.
    per_bar: u64,
}

impl Goal {
    /// Returns what is to be free ahead of need.
    pub(super) fn ahead(limit: u64, unit: u64) -> Self {
        let least = (FREE_UNITS * unit).min(limit / 16);
        Goal {
            limit,
            high: (limit / FREE_PART).max(least),
            room: (limit / UNITS_PART).max(least / 2),
            per_bar: (limit / BAR_PART).max(1),
        }
    }

    /// Returns what a mutation needs that waits for this number of bytes in units.
    pub(super) fn direct(limit: u64, unit: u64, wanted: u64) -> Self {
        let ahead = Self::ahead(limit, unit);
        let per_bar = ahead.per_bar.min(DIRECT_BAR.max(8 * wanted));
        Goal { room: ahead.room.max(wanted), per_bar, ..ahead }
    }

    /// Returns the number of bytes that are made available before it is looked again what is
    /// needed.
    pub(super) fn step(&self) -> u64 {
        self.high / 4
    }

    pub(super) fn passed_per_bar(&self) -> u64 {
        self.per_bar
    }

    /// Returns the number of bytes after which there is no use in passing on.
    pub(super) fn most_passed(&self) -> u64 {
        4 * self.per_bar + 2 * self.limit
    }
}

/// What has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing, until this number of bytes is claimed.
    Nothing { budget: u64 },
    /// Enough was removed, but readers may still see it.
    Readers,
    /// There are too few units by this number of bytes. Extents with blocks of the size `sparse`
    /// have more free blocks than are in demand.
    Units { missing: u64, sparse: Option<u64> },
    /// There are too few free blocks.
    Blocks,
}

/// What is in demand lately.
pub(super) struct Demands {
    sizes: BTreeMap<u64, Lately>,
}

/// The demand for blocks of one size.
#[derive(Clone, Copy, Default)]
struct Lately {
    /// Bytes that had been claimed when this was updated.
    claimed: u64,
    /// Bytes that were claimed lately: older ones count less.
    weight: u64,
}

impl Demands {
    pub(super) fn new() -> Self {
        Demands { sizes: BTreeMap::new() }
    }

    /// Adds what was claimed since the last call.
    fn update(&mut self, now: &[SizeDemand], forget_at: u64) {
        for it in now {
            let lately = self.sizes.entry(it.block_size).or_default();
            lately.weight += it.claimed.saturating_sub(lately.claimed);
            lately.claimed = it.claimed;
        }
        while self.total() > forget_at {
            self.sizes.values_mut().for_each(|lately| lately.weight /= 2);
        }
    }

    fn total(&self) -> u64 {
        self.sizes.values().map(|lately| lately.weight).sum()
    }

    /// Returns what has to be done to reach `goal`, if `waiting` bytes were removed and are not
    /// free yet.
    pub(super) fn need<M: Medium>(&mut self, heap: &Heap<M>, goal: &Goal, waiting: u64) -> Need {
        let sizes = heap.demands();
        self.update(&sizes, 4 * goal.high);
        self.judge(&sizes, heap.room().left(), goal, waiting)
    }

    fn judge(&self, sizes: &[SizeDemand], left: u64, goal: &Goal, waiting: u64) -> Need {
        let total = self.total().max(1);
        let useful = |it: &SizeDemand| {
            let weight = self.sizes.get(&it.block_size).map_or(0, |lately| lately.weight);
            let share = u128::from(goal.high) * u128::from(weight) / u128::from(total);
            it.free.min(share as u64)
        };
        let free: u64 = sizes.iter().map(useful).sum();
        let headroom = left + free;
        if headroom >= goal.high && left >= goal.room {
            return Need::Nothing { budget: headroom - goal.high / 2 };
        }
        let missing = goal.room.saturating_sub(left);
        if waiting >= goal.high.saturating_sub(headroom).max(missing) {
            return Need::Readers;
        }
        if missing == 0 {
            return Need::Blocks;
        }
        let excess = |it: &SizeDemand| it.free - useful(it);
        let most = sizes.iter().max_by_key(|it| excess(it));
        // Worth a search: as much as should be free in units, or most of an extent.
        let sparse = most.filter(|it| excess(it) >= goal.step().max(2 * it.block_size));
        Need::Units { missing, sparse: sparse.map(|it| it.block_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 48 << 20;
    const UNIT: u64 = 16 << 10;

    fn size(block_size: u64, free: u64, claimed: u64) -> SizeDemand {
        SizeDemand { block_size, free, claimed }
    }

    fn need(sizes: &[SizeDemand], left: u64, waiting: u64) -> Need {
        let (goal, mut demands) = (Goal::ahead(LIMIT, UNIT), Demands::new());
        demands.update(sizes, u64::MAX);
        demands.judge(sizes, left, &goal, waiting)
    }

    #[test]
    fn free_blocks_count_as_far_as_their_size_is_in_demand() {
        let (wanted, other) = (size(128, 1 << 20, 500), size(64, 1 << 20, 0));
        assert!(matches!(need(&[wanted], 1 << 19, 0), Need::Nothing { budget: 1048576 }));
        assert_eq!(need(&[other, size(128, 0, 500)], 1 << 19, 0), Need::Blocks);
        // Half of what is claimed is of that size, so half of what should be free can be.
        let half = [size(64, 1 << 20, 500), size(128, 0, 500)];
        assert_eq!(need(&half, (1 << 19) - 1, 0), Need::Blocks);
        assert!(matches!(need(&half, 1 << 19, 0), Need::Nothing { .. }));
    }

    #[test]
    fn too_few_units_ask_for_the_size_that_has_the_most_to_spare() {
        let sizes = [size(64, 600 << 10, 0), size(128, 400 << 10, 0), size(256, 1 << 20, 500)];
        let missing = LIMIT / UNITS_PART;
        assert_eq!(need(&sizes, 0, 0), Need::Units { missing, sparse: Some(64) });
        assert_eq!(need(&sizes[2..], 0, 0), Need::Units { missing, sparse: None });
    }

    #[test]
    fn what_waits_for_readers_is_not_evicted_twice() {
        assert_eq!(need(&[size(64, 0, 1)], 0, 2 << 20), Need::Readers);
        let missing = LIMIT / UNITS_PART;
        assert_eq!(need(&[size(64, 0, 1)], 0, 1 << 19), Need::Units { missing, sparse: None });
        // Together with what is free already, it is enough.
        assert_eq!(need(&[size(64, 0, 1)], 1 << 19, 1 << 19), Need::Readers);
        assert_eq!(need(&[size(64, 0, 1)], 1 << 19, 1 << 18), Need::Blocks);
    }

    #[test]
    fn what_was_in_demand_long_ago_counts_less() {
        let mut demands = Demands::new();
        demands.update(&[size(64, 0, 1000), size(128, 0, 0)], 4000);
        for round in 1..=10 {
            demands.update(&[size(64, 0, 1000), size(128, 0, round * 1000)], 4000);
        }
        assert!(demands.sizes[&64].weight * 8 < demands.sizes[&128].weight);
        assert!(demands.total() <= 4000);
    }

    #[test]
    fn a_tiny_cache_keeps_a_sixteenth_free() {
        let goal = Goal::ahead(1 << 20, UNIT);
        assert_eq!((goal.high, goal.room), (1 << 16, 1 << 15));
        assert!(Goal::ahead(1 << 36, UNIT).high < (1 << 36) * 3 / 100);
        assert_eq!(Goal::direct(1 << 30, UNIT, 1 << 28).room, 1 << 28);
    }
}
