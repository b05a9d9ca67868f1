//! Giving the memory of free extents back to the system.

use super::{FREE_EXTENTS_KEPT, Heap, hold};
use crate::medium::Medium;

/// Beside [those that are always kept](FREE_EXTENTS_KEPT), one free extent for so many in use is
/// kept ready.
const KEPT_PART: usize = 16;

impl<M: Medium> Heap<M> {
    /// Gives the memory of free extents back, but for some that are kept ready, or of all of them
    /// if `all`. While an extent is in use nobody can tell how many will be kept when it is free,
    /// so this has to be asked for.
    pub(crate) fn trim(&self, all: bool) {
        for index in self.too_many_ready(all) {
            // Held for one extent at a time: others want some meanwhile.
            let shared = &mut *hold(&self.shared);
            // Unless it was taken since.
            if shared.free.contains(&index) && shared.unclaimed.insert(index) {
                let start = self.region.extent_offset(index);
                self.region.medium().discard(start..start + self.region.extent_size());
            }
        }
    }

    /// Free extents that still have memory, without those to be kept: the first, which are taken
    /// first.
    fn too_many_ready(&self, all: bool) -> Vec<u64> {
        let shared = hold(&self.shared);
        let in_use = shared.frontier as usize - shared.free.len();
        let keep = if all { 0 } else { FREE_EXTENTS_KEPT.max(in_use / KEPT_PART) };
        shared.free.difference(&shared.unclaimed).copied().skip(keep).collect()
    }
}
