//! Recovery of what is inside a segment of CCEH. When it happens, and the rest, is in
//! `hash/segmented/recover`; or it happens for all segments at opening, as in the paper.
//!
//! Every opener begins with all segments stale: their lock words carry the number of an earlier
//! one. Records need no recovery: each was committed by one store, and those that moved away are no
//! longer covered by the segment's prefix.

use evermap_pm::medium::Note;
use evermap_pm::{Medium, Result};

use super::Cceh;
use super::layout::Segment;
use super::lock::Lock;
use crate::Key;
use crate::hash::FOUND_LATE;
use crate::hash::hash_prefix::HashPrefix;
use crate::hash::segmented::Segmented;
use crate::hash::segmented::recover::{Recoverable, finish_structure, for_each_named};

impl<K: Key, M: Medium, const B: usize, const P: usize> Recoverable for Cceh<K, M, B, P> {
    fn is_fresh(&self, segment: &Segment<B>) -> bool {
        let lock = Lock(self.medium().load(&segment.header.lock));
        self.was_recovered(segment) && lock.is_of(self.core.generation)
    }

    fn persist_contents(&self, segment: &Segment<B>) {
        let m = self.medium();
        // A thread that stored what is there may have died before it was durable. Fenced with the
        // entries that lead here.
        m.note(Note::Harmless(FOUND_LATE));
        m.flush(segment);
    }

    fn finish_structure(
        &self,
        offset: u64,
        segment: &Segment<B>,
        prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        finish_structure(self, offset, segment, prefix)
    }

    fn finish_contents(&self, segment: &Segment<B>, _: HashPrefix) {
        let (m, generation) = (self.medium(), self.core.generation);
        // The lock comes last: until then all threads wait for this one. A thread that takes it
        // looks at the generation.
        m.store_transient(&segment.header.generation, generation);
        m.store_transient(&segment.header.lock, Lock::fresh(generation).0);
    }

    fn recovery_failed(&self, segment: &Segment<B>) {
        // Damage may have looked like this opener's stamp: let all threads see that it is none.
        let earlier = self.core.generation.wrapping_sub(1);
        self.medium().store_transient(&segment.header.lock, Lock::fresh(earlier).0);
    }
}

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// Recovers every segment. One that is damaged stays stale: threads that need it get the error.
    ///
    /// # Errors
    /// `Poisoned`.
    pub(super) fn recover_all(&self) -> Result<()> {
        for_each_named(self, |offset| {
            let _ = self.recover(offset);
        });
        self.core.region.ensure_sound()
    }

    /// Makes every segment stale, so that each is recovered before it is used.
    pub(super) fn make_all_stale(&self) {
        let (m, earlier) = (self.medium(), self.core.generation.wrapping_sub(1));
        for_each_named(self, |offset| {
            if let Some(segment) = m.at::<Segment<B>>(offset) {
                m.store_transient(&segment.header.generation, earlier);
                m.store_transient(&segment.header.lock, Lock::fresh(earlier).0);
            }
        });
    }
}
