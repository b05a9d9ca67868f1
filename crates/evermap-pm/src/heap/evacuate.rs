//! Emptying extents that hold little.
//!
//! Where the sizes of what is stored shift, extents are left with a few blocks each of a size that is no longer
//! asked for, and no other size can use their room. Whoever knows what names a block can move it: an
//! [`Evacuation`] chooses the extents, keeps everybody from allocating in them, and tells which blocks are to
//! move. They are allocated anew, and the old ones retired, as with any replacement; so a crash in between
//! leaves nothing that the sweep would not find.

use std::collections::BTreeMap;

use super::{Blocks, Extent, Heap, Life, Use, hold};
use crate::medium::Medium;

/// Extents that are being emptied. Nothing is allocated from them while this lives.
pub struct Evacuation<'h, M: Medium> {
    heap: &'h Heap<M>,
    /// Ascending.
    extents: Vec<u64>,
}

/// An extent that could be emptied.
struct Candidate {
    index: u64,
    bytes: u64,
    taken: u64,
    free: u64,
}

impl Extent {
    /// Whether emptying it was tried before and half of what was left then is still there: something in it
    /// cannot move.
    fn resists(&self) -> bool {
        self.left > 0 && self.blocks - self.free > self.left / 2
    }
}

impl<M: Medium> Heap<M> {
    /// Chooses extents whose blocks fit into the free blocks of others of the same size. Nothing if fewer than
    /// `least` bytes would become free.
    pub(crate) fn evacuation(&self, least: u64) -> Option<Evacuation<'_, M>> {
        // What threads hold ready counts as free.
        self.put_back_hands(|_| true);
        let chosen: Vec<Candidate> = self.candidates().into_values().flat_map(choose).collect();
        if chosen.iter().map(|candidate| candidate.bytes).sum::<u64>() < least.max(1) {
            return None;
        }
        let mut extents: Vec<u64> = chosen.iter().map(|candidate| candidate.index).collect();
        hold(&self.shared).evacuations += 1;
        extents.sort_unstable();
        extents.retain(|&index| {
            let extent = &mut *self.extents.hold(index);
            // By now it may have emptied itself, or serve another purpose.
            extent.leaving = extent.life == Life::Open
                && matches!(extent.shape.used, Use::Blocks(Blocks { stay: false, .. }));
            extent.leaving
        });
        // A thread may have taken blocks into its hand before it could see the mark.
        self.put_back_hands(|index| extents.binary_search(&index).is_ok());
        Some(Evacuation { heap: self, extents })
    }

    /// Extents of blocks that can be moved, with some free and some taken, by block size.
    fn candidates(&self) -> BTreeMap<u64, Vec<Candidate>> {
        let mut candidates = BTreeMap::<u64, Vec<Candidate>>::new();
        self.for_each_extent(|index, extent| {
            let Use::Blocks(Blocks { size, stay: false }) = extent.shape.used else { return };
            if extent.life == Life::Open && extent.free > 0 && !extent.resists() {
                let (taken, free) = ((extent.blocks - extent.free).into(), extent.free.into());
                let bytes = extent.shape.units * self.geometry.unit();
                candidates.entry(size).or_default().push(Candidate { index, bytes, taken, free });
            }
        });
        candidates
    }
}

/// Of extents with blocks of one size, the emptiest ones, as many as the others have room for.
fn choose(mut candidates: Vec<Candidate>) -> impl Iterator<Item = Candidate> {
    // In thousandths: they differ in size.
    candidates.sort_unstable_by_key(|it| it.taken * 1000 / (it.taken + it.free));
    let mut room: u64 = candidates.iter().map(|candidate| candidate.free).sum();
    let mut moving = 0;
    candidates.into_iter().take_while(move |candidate| {
        moving += candidate.taken;
        room -= candidate.free;
        moving <= room
    })
}

impl<M: Medium> Evacuation<'_, M> {
    /// Whether the block at `offset` is to move.
    pub fn contains(&self, offset: u64) -> bool {
        self.heap
            .locate(offset)
            .is_some_and(|(index, _)| self.extents.binary_search(&index).is_ok())
    }

    /// How many extents are to be emptied.
    pub fn extents(&self) -> usize {
        self.extents.len()
    }

    /// How many of them still hold something.
    pub fn remaining(&self) -> usize {
        self.extents.iter().filter(|&&index| self.heap.extents.hold(index).leaving).count()
    }
}

impl<M: Medium> Drop for Evacuation<'_, M> {
    /// What could not be emptied is used as before.
    fn drop(&mut self) {
        for &index in &self.extents {
            let extent = &mut *self.heap.extents.hold(index);
            if !std::mem::take(&mut extent.leaving) {
                continue;
            }
            extent.left = extent.blocks - extent.free;
            self.heap.list_if_room(index, extent);
        }
        hold(&self.heap.shared).evacuations -= 1;
    }
}
