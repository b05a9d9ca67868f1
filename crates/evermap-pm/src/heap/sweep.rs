//! Recovering which old blocks are allocated: marking, and opening the closed extents.

use std::ops::Range;

use super::extents::{Extent, ExtentState};
use super::{Heap, lock};
use crate::medium::Medium;
use crate::region::{BlockKind, TableEntry, Usage};

impl<M: Medium> Heap<M> {
    /// Returns `true` if a sweep has to find out which old blocks are allocated.
    pub fn needs_sweep(&self) -> bool {
        let mut closed = false;
        self.for_each_extent(|_, extent| closed |= extent.state == ExtentState::Closed);
        closed
    }

    /// Records that something reachable refers to the block at `offset`.
    pub(crate) fn mark(&self, offset: u64) {
        let Some((index, rest)) = self.locate(offset) else { return self.fault() };
        let extent = &mut *self.extents.lock(index);
        let Some(block) = extent.block_at(rest) else {
            // Damage to the reference, or to the extent's entry, which may then describe other
            // blocks. Nothing may be allocated over the contents.
            if extent.state == ExtentState::Closed {
                match extent.entry.usage {
                    Usage::Unused | Usage::Blocks(_) => self.seal_off(index, extent),
                    Usage::Large => extent.marks()[0] |= 1,
                    Usage::Tail | Usage::Free | Usage::Table => {}
                }
            }
            return self.fault();
        };
        if extent.state == ExtentState::Closed {
            let (word, bit) = Extent::bit(block);
            extent.marks()[word] |= bit;
        }
    }

    /// Returns the size of the block at `offset`, if its extent is from before an unclean shutdown
    /// and was not swept yet. Returns `Some(0)` if that extent cannot have a block there.
    pub(crate) fn closed_block_size(&self, offset: u64) -> Option<u64> {
        self.size_in_state(offset, |state| state == ExtentState::Closed)
    }

    /// Returns the size of the block at `offset`, allocated or not, if its extent is in use.
    /// Returns `Some(0)` if that extent cannot have a block there.
    pub(crate) fn block_size_at(&self, offset: u64) -> Option<u64> {
        self.size_in_state(offset, |state| state != ExtentState::Free)
    }

    fn size_in_state(&self, offset: u64, in_state: impl Fn(ExtentState) -> bool) -> Option<u64> {
        let index = self.unit_at(offset)?;
        let (first, extent) = self.extents.lock_around(index)?;
        let bytes = |_| extent.block_size(&self.geometry);
        let rest = offset - self.region.unit_offset(first);
        in_state(extent.state).then(|| extent.block_at(rest).map_or(0, bytes))
    }

    /// Returns the ranges of the extents of [fixed blocks](Heap::allocate_fixed) that were not
    /// swept yet, in ascending order.
    pub(crate) fn closed_fixed_extents(&self) -> Vec<Range<u64>> {
        let mut extents = Vec::new();
        self.for_each_extent(|index, extent| {
            let fixed = matches!(extent.entry.usage, Usage::Blocks(BlockKind { fixed: true, .. }));
            if fixed && extent.state == ExtentState::Closed {
                extents.push(self.bytes_of(&(index..index + extent.entry.units)));
            }
        });
        extents
    }

    /// Prevents allocations from a unit whose table entry must be wrong, since something reachable
    /// is in it, and from all units after it of which nothing is known either, because they may be
    /// one extent with it. So the contents can still be read. Only a `Tail` guarantees that.
    fn seal_off(&self, index: u64, extent: &mut Extent) {
        extent.begin(TableEntry::TAIL, ExtentState::Closed, &self.geometry);
        for later in index + 1..self.described() {
            let later = &mut *self.extents.lock_later(later);
            if (later.state, later.entry.usage) != (ExtentState::Closed, Usage::Unused) {
                break;
            }
            later.begin(TableEntry::TAIL, ExtentState::Closed, &self.geometry);
        }
    }

    /// Opens the closed extents: blocks that were not marked, or were freed since, become free.
    ///
    /// The caller guarantees that every block unlinked before the marking ended has been passed to
    /// [`free`](Heap::free). Otherwise one would be freed a second time, after its reuse.
    pub(crate) fn finish_sweep(&self) {
        self.for_each_extent(|index, extent| {
            if extent.state != ExtentState::Closed {
                return;
            }
            let frees = std::mem::take(&mut extent.deferred_frees);
            let marks = extent.marks();
            for block in frees {
                let (word, bit) = Extent::bit(block);
                marks[word] &= !bit;
            }
            self.reopen(index, extent);
        });
    }

    /// Opens one closed extent whose `bits` are right.
    pub(super) fn reopen(&self, index: u64, extent: &mut Extent) {
        let allocated: u32 = extent.bits.iter().map(|word| word.count_ones()).sum();
        extent.free = extent.blocks - allocated;
        match extent.entry.usage {
            // Stays closed: see `seal_off`.
            Usage::Tail | Usage::Free | Usage::Table => {}
            Usage::Unused => {
                extent.state = ExtentState::Free;
                self.release_unclaimed(&mut lock(&self.shared), index..index + 1);
            }
            Usage::Blocks(_) | Usage::Large => {
                extent.state = ExtentState::Open;
                self.count_units(extent.entry);
                if let Usage::Blocks(kind) = extent.entry.usage {
                    self.count_free(kind, extent.free.into());
                }
                if extent.free > 0 {
                    self.after_free(index, extent);
                }
            }
        }
    }
}
