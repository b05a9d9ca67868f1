//! Evacuation: emptying sparse extents.
//!
//! When the sizes of the stored records shift, extents are left with a few blocks each of a size
//! that is no longer requested, and no other size can use their space. A caller that knows all
//! references to a block can move it: an [`Evacuation`] chooses the extents, prevents allocations
//! from them, and tells which blocks are to be moved. They are allocated again elsewhere, and the
//! old ones are retired, as in any replacement, so a crash in between leaves nothing that the sweep
//! would not find.

use super::extents::{Extent, ExtentState};
use super::{Heap, lock};
use crate::medium::Medium;
use crate::region::{BlockKind, Usage};

/// Extents that are being emptied. Nothing is allocated from them while this exists.
pub struct Evacuation<'h, M: Medium> {
    heap: &'h Heap<M>,
    /// Ascending.
    extents: Vec<u64>,
}

/// An extent that could be emptied.
struct Candidate {
    index: u64,
    /// Size of its blocks.
    size: u64,
    bytes: u64,
    taken: u64,
    free: u64,
}

impl Extent {
    /// Returns `true` if half of the blocks that remained after the last evacuation are still
    /// there, so that some of them cannot be moved.
    pub(super) fn resists(&self) -> bool {
        self.unmoved > 0 && self.blocks - self.free > self.unmoved / 2
    }
}

impl<M: Medium> Heap<M> {
    /// Chooses extents whose blocks fit into the free blocks of others of the same size. Returns
    /// `None` if fewer than `least` bytes would become free.
    pub(crate) fn evacuation(&self, least: u64) -> Option<Evacuation<'_, M>> {
        // Blocks in magazines count as free.
        self.return_magazines(|_| true);
        let candidates = self.candidates();
        let of_one_size = candidates.chunk_by(|one, other| one.size == other.size);
        let chosen: Vec<&Candidate> = of_one_size.flat_map(choose).collect();
        if chosen.iter().map(|candidate| candidate.bytes).sum::<u64>() < least.max(1) {
            return None;
        }
        let mut extents: Vec<u64> = chosen.iter().map(|candidate| candidate.index).collect();
        lock(&self.shared).evacuations += 1;
        extents.sort_unstable();
        extents.retain(|&index| {
            let extent = &mut *self.extents.lock(index);
            // The extent may have become empty by now, or have another use.
            extent.evacuating = extent.state == ExtentState::Open
                && matches!(extent.entry.usage, Usage::Blocks(BlockKind { fixed: false, .. }));
            extent.evacuating
        });
        // A thread may have claimed blocks for its magazine before it could see the mark.
        self.return_magazines(|index| extents.binary_search(&index).is_ok());
        Some(Evacuation { heap: self, extents })
    }

    /// Begins to empty extents, which are to be [added](Evacuation::add).
    pub fn begin_evacuation(&self) -> Evacuation<'_, M> {
        lock(&self.shared).evacuations += 1;
        Evacuation { heap: self, extents: Vec::new() }
    }

    /// Returns extents of movable blocks, with some free and some allocated, by block size, and the
    /// emptiest first.
    fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        self.for_each_extent(|index, extent| {
            let Usage::Blocks(BlockKind { size, fixed: false }) = extent.entry.usage else {
                return;
            };
            if extent.state == ExtentState::Open && extent.free > 0 && !extent.resists() {
                let (taken, free) = ((extent.blocks - extent.free).into(), extent.free.into());
                let bytes = extent.entry.units * self.geometry.unit();
                candidates.push(Candidate { index, size, bytes, taken, free });
            }
        });
        // In thousandths, because the extents differ in size.
        candidates.sort_unstable_by_key(|it| (it.size, it.taken * 1000 / (it.taken + it.free)));
        candidates
    }
}

/// Chooses the first of extents with blocks of one size, as many as the others have free blocks
/// for.
fn choose(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> {
    let mut room: u64 = candidates.iter().map(|candidate| candidate.free).sum();
    let mut moving = 0;
    candidates.iter().take_while(move |candidate| {
        moving += candidate.taken;
        room -= candidate.free;
        moving <= room
    })
}

impl<M: Medium> Evacuation<'_, M> {
    /// Adds an extent of movable blocks, or a large object: nothing is allocated from it from now
    /// on. Returns `false` if it has another use by now, or is being emptied already.
    pub fn add(&mut self, index: u64) -> bool {
        {
            let Some(mut extent) = self.heap.extents.lock_existing(index) else { return false };
            if !extent.is_movable() || extent.evacuating {
                return false;
            }
            extent.evacuating = true;
        }
        let at = self.extents.partition_point(|&other| other < index);
        self.extents.insert(at, index);
        // A thread may have claimed blocks for its magazine before it could see the mark.
        self.heap.return_magazines(|extent| extent == index);
        true
    }

    /// Returns `true` if the block at `offset` is to be moved.
    pub fn contains(&self, offset: u64) -> bool {
        self.heap
            .locate(offset)
            .is_some_and(|(index, _)| self.extents.binary_search(&index).is_ok())
    }

    /// Returns the numbers of the extents to be emptied, in ascending order.
    pub fn numbers(&self) -> &[u64] {
        &self.extents
    }

    /// Returns the number of extents to be emptied.
    pub fn extents(&self) -> usize {
        self.extents.len()
    }

    /// Returns the number of extents that are not empty yet.
    pub fn remaining(&self) -> usize {
        self.extents.iter().filter(|&&index| self.heap.extents.lock(index).evacuating).count()
    }
}

impl<M: Medium> Drop for Evacuation<'_, M> {
    /// Makes the extents that could not be emptied available again.
    fn drop(&mut self) {
        for &index in &self.extents {
            let extent = &mut *self.heap.extents.lock(index);
            if !std::mem::take(&mut extent.evacuating) {
                continue;
            }
            extent.unmoved = extent.blocks - extent.free;
            self.heap.list_if_available(index, extent);
        }
        lock(&self.heap.shared).evacuations -= 1;
    }
}
