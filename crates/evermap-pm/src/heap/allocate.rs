//! Allocating and freeing blocks.

use super::extents::{Extent, ExtentState};
use super::magazine::Magazine;
use super::units::next_extent;
use super::{AMPLE_PART, Heap, PREFETCH_MAX, SHARDS, lock};
use crate::Result;
use crate::epoch::thread_ordinal;
use crate::medium::Medium;
use crate::region::{BlockKind, TableEntry, Usage};

impl<M: Medium> Heap<M> {
    /// Returns the actual size in bytes of a block for `size` bytes.
    pub fn block_size(&self, size: u64) -> u64 {
        match self.classes.of(size) {
            Some(class) => self.classes.size(class),
            None => size.next_multiple_of(self.geometry.unit()),
        }
    }

    /// Allocates a movable block of at least `size` bytes. It is aligned to 16 bytes, or to its
    /// size if that is a power of two up to 4096. Its contents are undefined. A crash frees it,
    /// until its offset is published in something reachable.
    ///
    /// # Errors
    ///
    /// `NoSpace`; nothing has changed then.
    pub fn allocate(&self, size: u64) -> Result<u64> {
        self.allocate_of(size, false)
    }

    /// Allocates a fixed block, which is part of a structure and never moves. Otherwise like
    /// [`allocate`](Heap::allocate).
    ///
    /// # Errors
    ///
    /// `NoSpace`; nothing has changed then.
    pub fn allocate_fixed(&self, size: u64) -> Result<u64> {
        self.allocate_of(size, true)
    }

    fn allocate_of(&self, size: u64, fixed: bool) -> Result<u64> {
        let Some(class) = self.classes.of(size) else { return self.allocate_large(size, fixed) };
        let kind = BlockKind { size: self.classes.size(class), fixed };
        let mut magazines = lock(&self.shards[thread_ordinal() % SHARDS].0);
        let magazine = &mut magazines[if fixed { self.classes.len() } else { 0 } + class];
        if magazine.mask == 0 {
            self.refill(magazine, kind)?;
        }
        let block = magazine.take(kind.size);
        // The next block will be written next: its lines are fetched while this one is written.
        if magazine.mask != 0 {
            self.region
                .medium()
                .prefetch_bytes(magazine.next_block(kind.size), kind.size.min(PREFETCH_MAX));
        }
        Ok(block)
    }

    /// Allocates a fixed block of exactly `size` bytes, which must be a multiple of 16. It is meant
    /// for large numbers of large parts of a structure, where rounding up to a size class would
    /// waste space.
    ///
    /// # Errors
    ///
    /// `NoSpace`; nothing has changed then.
    pub fn allocate_exact(&self, size: u64) -> Result<u64> {
        if size > self.region.extent_size() {
            return self.allocate_large(size, true);
        }
        let mut magazine = lock(&self.shared).take_exact(size).unwrap_or_default();
        if magazine.mask == 0 {
            self.refill(&mut magazine, BlockKind { size, fixed: true })?;
        }
        let offset = magazine.take(size);
        let mut shared = lock(&self.shared);
        let raced = shared.take_exact(size);
        shared.exact.push((size, magazine));
        drop(shared);
        // Another thread allocated at the same time and left a magazine too: return that one.
        if let Some(other) = raced {
            self.return_magazine(other);
        }
        Ok(offset)
    }

    pub(super) fn allocate_large(&self, size: u64, fixed: bool) -> Result<u64> {
        let units = size.div_ceil(self.geometry.unit()).max(1);
        self.count_large(units);
        let first = self.take_units(units..units, fixed)?.start;
        self.assign(first, TableEntry { usage: Usage::Large, units });
        let extent = &mut *self.extents.lock(first);
        extent.free = 0;
        extent.bits[0] = 1;
        Ok(self.region.unit_offset(first))
    }

    /// Claims some free blocks.
    fn refill(&self, magazine: &mut Magazine, kind: BlockKind) -> Result<()> {
        // First after the previous ones, so that blocks allocated one after the other are
        // neighbours.
        if self.claim(magazine.extent, magazine.end, kind, magazine) {
            return Ok(());
        }
        loop {
            let extent = self.extent_with_space(kind)?;
            if self.claim(extent, 0, kind, magazine) {
                return Ok(());
            }
        }
    }

    /// Returns an extent with free blocks of this kind, unless another thread uses them first: one
    /// with ample space, otherwise a new one. An extent with little space is used only to save
    /// space.
    fn extent_with_space(&self, kind: BlockKind) -> Result<u64> {
        if let Some(extent) = self.extent_with_ample_space(kind) {
            return Ok(extent);
        }
        let (have, most, sparing) = {
            let shared = &*lock(&self.shared);
            let have = shared.available.get(&kind).map_or(0, |available| available.units);
            // Compaction must not grow the heap.
            let sparing = shared.evacuations > 0 || self.is_room_scarce(shared);
            (have, self.extent_units_max(shared), sparing)
        };
        if sparing && let Some(extent) = self.extent_with_any_space(kind) {
            return Ok(extent);
        }
        let units = next_extent(&self.geometry, kind.size, have, most);
        // Under a limit rather behind the others than in a gap that would leave space unused.
        let fixed = kind.fixed;
        let exact = most.and_then(|_| self.take_units(units.end..units.end, fixed).ok());
        match exact.map_or_else(|| self.take_units(units, fixed), Ok) {
            Ok(units) => {
                let entry =
                    TableEntry { usage: Usage::Blocks(kind), units: units.end - units.start };
                self.assign(units.start, entry);
                Ok(units.start)
            }
            Err(error) => self.extent_with_any_space(kind).ok_or(error),
        }
    }

    fn extent_with_ample_space(&self, kind: BlockKind) -> Option<u64> {
        loop {
            let index = lock(&self.shared).available.get_mut(&kind)?.ample.pop()?;
            let extent = &mut *self.extents.lock(index);
            extent.listed_ample = false;
            if extent.has_ample_space(kind) {
                return Some(index);
            }
        }
    }

    fn extent_with_any_space(&self, kind: BlockKind) -> Option<u64> {
        let index = lock(&self.shared).available.get_mut(&kind)?.any.pop_first()?;
        self.extents.lock(index).listed = false;
        Some(index)
    }

    /// Claims free blocks of the first word that has any, from block `from` on, if the extent has
    /// blocks of this kind: all of them, or [a fraction](AMPLE_PART) of a small extent.
    fn claim(&self, index: u64, from: u32, kind: BlockKind, magazine: &mut Magazine) -> bool {
        if index >= self.extents.len {
            return false;
        }
        let extent = &mut *self.extents.lock(index);
        if !extent.has_space(kind) {
            return false;
        }
        let (first_word, passed) = Extent::bit(from);
        let free = |word: usize| {
            let free = !extent.bits[word] & extent.valid_bits(word);
            if word == first_word { free & !(passed - 1) } else { free }
        };
        let found = (first_word..extent.bits.len()).find(|&word| free(word) != 0);
        if let Some(word) = found {
            let first = word as u32 * 64;
            // At least two, so that an extent with one block in use is not freed each time that
            // this block is.
            let mask = lowest(free(word), (extent.blocks / AMPLE_PART).max(2));
            // A word is left behind as a whole: a block of it that is freed later is not worth a
            // refill.
            let end =
                if mask == free(word) { first + 64 } else { first + 64 - mask.leading_zeros() };
            extent.bits[word] |= mask;
            extent.free -= mask.count_ones();
            self.count_claimed(kind, mask.count_ones());
            let start = self.region.unit_offset(index);
            *magazine = Magazine { extent: index, start, first, end, mask };
        }
        // So that other threads use the extent before they take a new one, and for free blocks
        // before `from`.
        self.list_if_available(index, extent);
        found.is_some()
    }

    /// Lists an extent as having free blocks, if it has.
    pub(super) fn list_if_available(&self, index: u64, extent: &mut Extent) {
        let Usage::Blocks(kind) = extent.entry.usage else { return };
        let any = !extent.listed && extent.has_space(kind);
        let ample = !extent.listed_ample && extent.has_ample_space(kind);
        if !any && !ample {
            return;
        }
        let shared = &mut *lock(&self.shared);
        let available = shared.available.entry(kind).or_default();
        if any {
            extent.listed = true;
            available.any.insert(index);
        }
        if ample {
            extent.listed_ample = true;
            available.ample.push(index);
        }
    }

    /// Frees a block that no thread can access: one that was never published, or whose grace period
    /// is over.
    pub(crate) fn free(&self, offset: u64) {
        let Some((index, rest)) = self.locate(offset) else { return self.fault() };
        let extent = &mut *self.extents.lock(index);
        let Some(block) = extent.block_at(rest) else { return self.fault() };
        let (word, bit) = Extent::bit(block);
        match extent.state {
            // The sweep may not have reached it yet, and must not find it allocated afterwards.
            ExtentState::Closed => extent.deferred_frees.push(block),
            ExtentState::Open if extent.bits[word] & bit != 0 => {
                extent.bits[word] &= !bit;
                extent.free += 1;
                if let Usage::Blocks(kind) = extent.entry.usage {
                    self.count_free(kind, 1);
                }
                self.after_free(index, extent);
            }
            // Freed twice: the region refers to the block from two places, which only damage can
            // cause.
            ExtentState::Open | ExtentState::Free => self.fault(),
        }
    }

    /// Makes the freed space of an extent available.
    pub(super) fn after_free(&self, index: u64, extent: &mut Extent) {
        if extent.free < extent.blocks {
            return self.list_if_available(index, extent);
        }
        extent.state = ExtentState::Free;
        extent.evacuating = false;
        if let Usage::Blocks(kind) = extent.entry.usage {
            self.count_free(kind, -i64::from(extent.blocks));
        }
        let shared = &mut *lock(&self.shared);
        if let Usage::Blocks(kind) = extent.entry.usage {
            let available = shared.available.entry(kind).or_default();
            available.units = available.units.saturating_sub(extent.entry.units);
        }
        let units = index..index + extent.entry.units;
        if extent.claimed {
            self.release_units(shared, units);
        } else {
            self.release_unclaimed(shared, units);
        }
    }
}

/// Returns the lowest `count` of the bits that are set.
fn lowest(bits: u64, count: u32) -> u64 {
    let mut rest = bits;
    for _ in 0..count.min(bits.count_ones()) {
        rest &= rest - 1;
    }
    bits & !rest
}
