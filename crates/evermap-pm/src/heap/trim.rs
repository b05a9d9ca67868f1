//! Giving the memory of free units back to the system.

use super::{FREE_BYTES_KEPT, FREE_PART_KEPT, Heap, Shared, hold};
use crate::medium::Medium;

/// Bytes given back at a time.
const STEP: u64 = 8 << 20;

impl<M: Medium> Heap<M> {
    /// Gives the memory of free units back, except for some that are kept ready, or of all of them if `all`. While an
    /// extent is in use nobody can tell how many units will be kept when it is free, so this has to be asked for.
    pub(crate) fn trim(&self, all: bool) {
        let mut keep = if all { 0 } else { self.kept_ready(&hold(&self.shared)) };
        let mut from = 0;
        loop {
            // Held for one step at a time: others want units meanwhile.
            let shared = &mut *hold(&self.shared);
            let Some(ready) = shared.free.next_without(&shared.unclaimed, from) else { return };
            // The first are kept, since those are taken first.
            let kept = keep.min(ready.end - ready.start);
            keep -= kept;
            let start = ready.start + kept;
            let units = start..ready.end.min(start + (STEP >> self.geometry.shift));
            from = units.end;
            if !units.is_empty() {
                self.region.medium().discard(self.bytes_of(&units));
                shared.unclaimed.insert(units);
            }
        }
    }

    /// How many free units keep their memory.
    pub(super) fn kept_ready(&self, shared: &Shared) -> u64 {
        (FREE_BYTES_KEPT >> self.geometry.shift).max(shared.frontier / FREE_PART_KEPT)
    }
}
