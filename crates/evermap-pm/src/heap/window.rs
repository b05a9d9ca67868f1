//! Windows: neighbouring units that are made free together.
//!
//! Where a region does not become longer, enough units may be free for a block, but scattered. So a
//! window of as many neighbouring units is chosen in which the fewest bytes are allocated, those of
//! large objects counted several times. Its free units are kept from other allocations, and nothing
//! is allocated from its extents, while the caller moves the blocks in them elsewhere. What never
//! moves is no part of a window.

use std::ops::Range;

use super::{Evacuation, Heap, lock};
use crate::medium::Medium;
use crate::region::Usage;

/// Units that become free. Nothing is allocated from them while this exists.
pub struct Window<'h, M: Medium> {
    heap: &'h Heap<M>,
    evacuation: Option<Evacuation<'h, M>>,
    units: Range<u64>,
}

/// A byte of a large object counts as this number of bytes: it needs neighbours itself, so that it
/// can seldom be moved.
const LARGE_WEIGHT: u64 = 4;

/// Windows whose allocated bytes differ by less than one part in this many of their size are about
/// as good.
const STEPS: u64 = 8;

/// Neighbouring units that are free, or one extent that can be emptied.
#[derive(Clone, Debug)]
struct Piece {
    units: Range<u64>,
    /// Bytes of blocks that are allocated, weighted.
    taken: u64,
}

impl<M: Medium> Heap<M> {
    /// Returns `true` if there can be `bytes` bytes in neighbouring units: they are free, or at the
    /// end of the region, or other blocks can be moved out of them. O(extents).
    pub fn can_have_neighbours(&self, bytes: u64) -> bool {
        let count = self.count_units_for(bytes);
        let is_easy = {
            let shared = &*lock(&self.shared);
            let longest = shared.free.longest().map_or(0, |run| run.end - run.start);
            longest.max(self.extents.len - shared.frontier) >= count
        };
        is_easy || cheapest(&self.pieces(false), count, self.geometry.shift, 0).is_some()
    }

    /// Chooses neighbouring units of `bytes` bytes in which the fewest bytes are allocated. Returns
    /// `None` if blocks that cannot be moved are in the way everywhere, or if there is a window
    /// already. O(extents).
    pub fn window(&self, bytes: u64) -> Option<Window<'_, M>> {
        let count = self.count_units_for(bytes);
        let choose = |spared| {
            let from = lock(&self.shared).window_end;
            cheapest(&self.pieces(spared), count, self.geometry.shift, from)
        };
        // What could not be emptied a while ago may be possible now.
        let units = choose(true).or_else(|| choose(false))?;
        {
            let shared = &mut *lock(&self.shared);
            if shared.window.is_some() {
                return None;
            }
            let free = shared.free.split_off(&units);
            shared.window = Some((units.clone(), free));
            shared.window_end = units.end;
        }
        let evacuation = Some(self.begin_evacuation());
        let mut window = Window { heap: self, evacuation, units };
        window.add_extents();
        Some(window)
    }

    fn count_units_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.geometry.unit()).max(1)
    }

    /// Returns what could be a part of a window, in ascending order: if `spared`, without extents
    /// that could not be emptied before.
    fn pieces(&self, spared: bool) -> Vec<Piece> {
        let mut pieces: Vec<_> =
            lock(&self.shared).free.all().map(|units| Piece { units, taken: 0 }).collect();
        self.for_each_extent(|index, extent| {
            if extent.is_movable() && !extent.evacuating && !(spared && extent.resists()) {
                let weight = if extent.entry.usage == Usage::Large { LARGE_WEIGHT } else { 1 };
                let taken = u64::from(extent.blocks - extent.free);
                let taken = taken * extent.block_size(&self.geometry) * weight;
                pieces.push(Piece { units: index..index + extent.entry.units, taken });
            }
        });
        pieces.sort_unstable_by_key(|piece| piece.units.start);
        pieces
    }
}

/// Returns the first `count` units of those neighbouring pieces in which the fewest bytes are
/// allocated: of several with about as few, the next one from unit `from` on. A unit has
/// `1 << shift` bytes.
fn cheapest(pieces: &[Piece], count: u64, shift: u32, from: u64) -> Option<Range<u64>> {
    let (mut first, mut taken) = (0, 0);
    let mut best: Option<(u64, bool, u64)> = None;
    for (last, piece) in pieces.iter().enumerate() {
        if last > 0 && pieces[last - 1].units.end != piece.units.start {
            (first, taken) = (last, 0);
        }
        taken += piece.taken;
        while piece.units.end.saturating_sub(pieces[first].units.end) >= count {
            taken -= pieces[first].taken;
            first += 1;
        }
        let start = pieces[first].units.start;
        if piece.units.end.saturating_sub(start) >= count {
            let cost = (taken >> shift).saturating_mul(STEPS) / count;
            let this = (cost, start < from, start);
            best = Some(best.map_or(this, |best| best.min(this)));
        }
    }
    best.map(|(.., start)| start..start + count)
}

impl<'h, M: Medium> Window<'h, M> {
    /// Begins to empty the extents that are in the window, or reach into it.
    fn add_extents(&mut self) {
        let Some(evacuation) = &mut self.evacuation else { return };
        let mut from = self.units.start;
        while let Some(extent) = self.heap.extent_from(from) {
            if extent.extent >= self.units.end {
                break;
            }
            evacuation.add(extent.extent);
            from = extent.next;
        }
    }

    /// Returns the extents to be emptied.
    pub fn evacuation(&self) -> &Evacuation<'h, M> {
        self.evacuation.as_ref().expect("there until it is dropped")
    }

    /// Returns `true` if all of it is free.
    pub fn is_free(&self) -> bool {
        let free = lock(&self.heap.shared).window.as_ref().map_or(0, |(_, free)| free.total());
        free == self.units.end - self.units.start
    }
}

impl<M: Medium> Drop for Window<'_, M> {
    /// Lets its units be allocated again: together, as far as all of them are free.
    fn drop(&mut self) {
        // First, so that what could not be emptied is known.
        self.evacuation = None;
        let shared = &mut *lock(&self.heap.shared);
        if let Some((_, free)) = shared.window.take() {
            free.all().for_each(|units| shared.free.insert(units));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_with_the_fewest_bytes_is_chosen() {
        let pieces = [(0, 4, 9), (4, 2, 0), (6, 1, 5), (7, 2, 0), (10, 3, 1), (13, 1, 0)]
            .map(|(start, count, taken)| Piece { units: start..start + count, taken: taken << 9 });
        for (count, from, wanted) in [
            (1, 0, Some(4..5)),
            (1, 5, Some(7..8)),
            (1, 8, Some(13..14)),
            (1, 14, Some(4..5)),
            (2, 0, Some(4..6)),
            (3, 0, Some(10..13)),
            (4, 0, Some(10..14)),
            (5, 0, Some(4..9)),
            (6, 0, Some(0..6)),
            (9, 14, Some(0..9)),
            (10, 0, None),
        ] {
            assert_eq!(cheapest(&pieces, count, 0, from), wanted, "{count} from {from}");
        }
        assert_eq!(cheapest(&[], 1, 0, 0), None);
    }
}
