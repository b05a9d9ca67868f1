//! Magazines: free blocks that a thread has claimed to hand them out without further locking.

use super::extents::ExtentState;
use super::{Heap, HeapStats, lock};
use crate::medium::Medium;
use crate::region::Usage;

/// Blocks claimed from one word of the bitmap of one extent, to be handed out without further
/// locking.
#[derive(Clone, Copy, Default)]
pub(super) struct Magazine {
    pub(super) extent: u64,
    /// Offset of the extent.
    pub(super) start: u64,
    /// First block of the word.
    pub(super) first: u32,
    /// First block after those that were claimed.
    pub(super) end: u32,
    /// Claimed blocks, relative to `first`.
    pub(super) mask: u64,
}

impl Magazine {
    /// Returns the next block without taking it. There must be one.
    pub(super) fn next_block(&self, size: u64) -> u64 {
        self.start + u64::from(self.first + self.mask.trailing_zeros()) * size
    }

    /// Takes the next block. There must be one.
    pub(super) fn take(&mut self, size: u64) -> u64 {
        let block = self.next_block(size);
        self.mask &= self.mask - 1;
        block
    }
}

impl<M: Medium> Heap<M> {
    /// Returns the block size of magazine `number` of a shard.
    pub(super) fn magazine_block_size(&self, number: usize) -> u64 {
        self.classes.size(number % self.classes.len())
    }

    /// Returns claimed blocks that were not handed out.
    pub(super) fn return_magazine(&self, magazine: Magazine) {
        if magazine.mask == 0 {
            return;
        }
        let extent = &mut *self.extents.lock(magazine.extent);
        // Nothing refers to a claimed block, so only damage can have freed some of these already,
        // or even the whole extent, which may have another use now.
        let word = extent
            .bits
            .get_mut(magazine.first as usize / 64)
            .filter(|_| extent.state == ExtentState::Open);
        let Some(word) = word else { return self.fault() };
        let held = *word & magazine.mask;
        if held != magazine.mask {
            self.fault();
        }
        if held != 0 {
            *word &= !held;
            extent.free += held.count_ones();
            if let Usage::Blocks(kind) = extent.entry.usage {
                self.count_free(kind, held.count_ones().into());
            }
            self.after_free(magazine.extent, extent);
        }
    }

    /// Frees all blocks that threads have claimed and not handed out, so that extents with nothing
    /// else in them become free. O(threads · block sizes).
    pub fn return_claimed(&self) {
        self.return_magazines(|_| true);
    }

    /// Returns the blocks claimed in the extents for which `of` returns `true`.
    pub(super) fn return_magazines(&self, of: impl Fn(u64) -> bool) {
        let wanted = |magazine: &Magazine| magazine.mask != 0 && of(magazine.extent);
        for shard in &self.shards {
            let magazines: Vec<_> = lock(&shard.0)
                .iter_mut()
                .filter(|magazine| wanted(magazine))
                .map(std::mem::take)
                .collect();
            magazines.into_iter().for_each(|magazine| self.return_magazine(magazine));
        }
        let exact: Vec<_> =
            lock(&self.shared).exact.extract_if(.., |(_, magazine)| wanted(magazine)).collect();
        exact.into_iter().for_each(|(_, magazine)| self.return_magazine(magazine));
    }

    /// Subtracts blocks in magazines, which are claimed but not allocated.
    pub(super) fn subtract_magazines(&self, stats: &mut HeapStats) {
        let mut subtract = |magazine: &Magazine, size: u64| {
            // Saturating, because blocks may have been claimed after their extent was counted.
            let claimed = u64::from(magazine.mask.count_ones());
            stats.allocated_blocks = stats.allocated_blocks.saturating_sub(claimed);
            stats.allocated_bytes = stats.allocated_bytes.saturating_sub(claimed * size);
        };
        for shard in &self.shards {
            for (number, magazine) in lock(&shard.0).iter().enumerate() {
                subtract(magazine, self.magazine_block_size(number));
            }
        }
        for (size, magazine) in &lock(&self.shared).exact {
            subtract(magazine, *size);
        }
    }
}
