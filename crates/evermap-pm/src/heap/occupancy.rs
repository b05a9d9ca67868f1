//! Looking at extents from outside of the heap: which blocks are in them.

use std::ops::Range;

use super::extents::{Extent, ExtentState};
use super::{Heap, lock};
use crate::medium::Medium;
use crate::region::{BlockKind, Usage};

/// The blocks of one extent at one moment: see [`Heap::extent_from`].
#[derive(Clone, Debug)]
pub struct ExtentBlocks {
    /// Number of the extent.
    pub extent: u64,
    /// The number from which on the next extent is to be looked for.
    pub next: u64,
    /// The size of a block, in bytes.
    pub block_size: u64,
    /// Bytes in the extent.
    pub bytes: u64,
    /// Number of blocks that were free.
    pub free: u32,
    /// Number of blocks that were not.
    pub taken: u32,
    /// Whether it has one block, which takes all of it.
    pub is_large: bool,
    offset: u64,
    bits: Vec<u64>,
}

impl ExtentBlocks {
    /// Returns the offsets of the blocks that were allocated, or claimed by a thread, in ascending
    /// order.
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        self.bits.iter().zip(0u64..).flat_map(move |(&word, at)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < 64).then(|| self.offset + (at * 64 + u64::from(bit)) * self.block_size)
            })
        })
    }
}

/// An extent as the table describes it: see [`Heap::described_extents`].
#[derive(Clone, Debug)]
pub struct DescribedExtent {
    /// Its bytes.
    pub bytes: Range<u64>,
    /// The size of a block, in bytes.
    pub block_size: u64,
    /// Whether its blocks are parts of structures, which never move.
    pub fixed: bool,
    /// Whether it has one block, which takes all of it, and may be part of a structure.
    pub is_large: bool,
}

impl DescribedExtent {
    /// Returns the bytes of each block, allocated or not.
    pub fn blocks(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (bytes, size) = (self.bytes.clone(), self.block_size);
        let count = (bytes.end - bytes.start) / size;
        (0..count).map(move |block| bytes.start + block * size..bytes.start + (block + 1) * size)
    }
}

impl<M: Medium> Heap<M> {
    /// Returns all extents that the table describes as in use, in ascending order, whether or not
    /// they were swept. O(extents).
    pub fn described_extents(&self) -> Vec<DescribedExtent> {
        let mut extents = Vec::new();
        self.for_each_extent(|index, extent| {
            let block_size = extent.block_size(&self.geometry);
            if block_size > 0 {
                extents.push(DescribedExtent {
                    bytes: self.bytes_of(&(index..index + extent.entry.units)),
                    block_size,
                    fixed: matches!(
                        extent.entry.usage,
                        Usage::Blocks(BlockKind { fixed: true, .. })
                    ),
                    is_large: extent.entry.usage == Usage::Large,
                });
            }
        });
        extents
    }

    /// Returns the first extent from number `from` on that has movable blocks or is one large
    /// object, or `None` if there is no further one. Extents from before an unclean shutdown are
    /// passed over until they are swept.
    ///
    /// The blocks may be freed, and used for anything else, at any time; and a large object may be
    /// part of a structure.
    pub fn extent_from(&self, from: u64) -> Option<ExtentBlocks> {
        let mut index = from;
        loop {
            index = self.next_in_use(index)?;
            let Some(extent) = self.extents.lock_existing(index) else {
                index += 1;
                continue;
            };
            if let Some(found) = self.blocks_of(index, &extent) {
                return Some(found);
            }
            index += if extent.state == ExtentState::Free { 1 } else { extent.entry.units };
        }
    }

    /// Calls `read` with the bytes of those of these blocks of one extent that are allocated or
    /// claimed now. They stay so meanwhile, and their memory is not returned to the system: on a
    /// memory file system even a load would bring it back. Threads that use the extent wait, so
    /// `read` should be short, and must not use the heap.
    ///
    /// The blocks must be [offsets](ExtentBlocks::offsets) of the extent with that number. If it
    /// has another use by now, some of them may be no blocks, and are left out.
    pub fn with_blocks(&self, extent: u64, blocks: &[u64], mut read: impl FnMut(Range<u64>)) {
        let start = self.region.unit_offset(extent);
        let Some(extent) = self.extents.lock_existing(extent) else { return };
        if extent.state != ExtentState::Open {
            return;
        }
        for &offset in blocks {
            let block = offset.checked_sub(start).and_then(|rest| extent.block_at(rest));
            let is_taken = block.is_some_and(|block| {
                let (word, bit) = Extent::bit(block);
                extent.bits[word] & bit != 0
            });
            if is_taken {
                read(offset..offset + extent.block_size(&self.geometry));
            }
        }
    }

    /// Returns the first unit from `index` on that is not free.
    fn next_in_use(&self, index: u64) -> Option<u64> {
        let shared = &*lock(&self.shared);
        let index = shared.free.end_of_run(index);
        (index < shared.frontier).then_some(index)
    }

    fn blocks_of(&self, index: u64, extent: &Extent) -> Option<ExtentBlocks> {
        if !extent.is_movable() {
            return None;
        }
        Some(ExtentBlocks {
            extent: index,
            next: index + extent.entry.units,
            block_size: extent.block_size(&self.geometry),
            bytes: extent.entry.units << self.geometry.shift,
            free: extent.free,
            taken: extent.blocks - extent.free,
            is_large: extent.entry.usage == Usage::Large,
            offset: self.region.unit_offset(index),
            bits: extent.bits.clone(),
        })
    }

    /// Returns extents of movable blocks of this size, the emptiest first, whose blocks fit into
    /// the free blocks of the others, until they have `bytes` bytes together. O(extents).
    pub fn sparse_extents(&self, block_size: u64, bytes: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let (mut room, mut index) = (0u64, 0);
        while let Some(extent) = self.extent_from(index) {
            index = extent.next;
            if extent.block_size == block_size && !extent.is_large && extent.free > 0 {
                room += u64::from(extent.free);
                found.push((extent.taken, extent.free, extent.extent, extent.bytes));
            }
        }
        // In thousandths, because the extents differ in size.
        let part = |taken: u32, free: u32| u64::from(taken) * 1000 / u64::from(taken + free);
        found.sort_unstable_by_key(|&(taken, free, ..)| part(taken, free));
        let (mut moving, mut freed) = (0, 0);
        let fitting = found.into_iter().take_while(|&(taken, free, _, size)| {
            moving += u64::from(taken);
            room -= u64::from(free);
            let enough = freed >= bytes;
            freed += size;
            moving <= room && !enough
        });
        fitting.map(|(_, _, extent, _)| extent).collect()
    }
}
