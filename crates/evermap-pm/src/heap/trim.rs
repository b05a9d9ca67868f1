//! Returning the memory of free units to the system.

use super::{FREE_BYTES_KEPT, FREE_PART_KEPT, Heap, SharedState, lock};
use crate::medium::Medium;

/// Bytes that are returned while the lock is held once.
const STEP: u64 = 8 << 20;

impl<M: Medium> Heap<M> {
    /// Returns the memory of free units to the system, except for some that stay ready, or all of
    /// it if `all`. As long as extents are in use it is not known how many units will be kept when
    /// they become free, so this is done on request.
    pub(crate) fn trim(&self, all: bool) {
        if all {
            lock(&self.shared).end_zone();
        }
        let mut keep = if all { 0 } else { self.kept_ready(&lock(&self.shared)) };
        let mut from = 0;
        loop {
            // Locked for one step at a time, because other threads need units in the meantime.
            let shared = &mut *lock(&self.shared);
            let Some(ready) = shared.free.next_without(&shared.unclaimed, from) else { return };
            // The first ones are kept, because those are used first.
            let kept = keep.min(ready.end - ready.start);
            keep -= kept;
            let start = ready.start + kept;
            let units = start..ready.end.min(start + (STEP >> self.geometry.shift));
            from = units.end;
            if !units.is_empty() {
                self.discard(shared, units);
            }
        }
    }

    /// Returns the number of free units that keep their memory.
    pub(super) fn kept_ready(&self, shared: &SharedState) -> u64 {
        (FREE_BYTES_KEPT >> self.geometry.shift).max(shared.frontier / FREE_PART_KEPT)
    }
}
