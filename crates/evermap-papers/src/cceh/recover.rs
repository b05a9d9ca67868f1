//! Recovery of the contents of a segment of CCEH. The other steps of recovery, and when it happens,
//! are in `hash/segmented/recover`. Optionally it happens for all segments when the index is
//! opened, as in the paper.
//!
//! For every new opener, all segments are stale: their lock words contain an earlier generation.
//! Records need no recovery: each was committed by one store, and those that were moved no longer
//! have the segment's prefix.

use evermap_index::FOUND_LATE;
use evermap_index::Key;
use evermap_index::hash::hash_prefix::HashPrefix;
use evermap_index::hash::segmented::Segmented;
use evermap_index::hash::segmented::recover::{Recoverable, finish_structure, for_each_named};
use evermap_pm::medium::Note;
use evermap_pm::{Medium, Result, region};

use super::Cceh;
use super::layout::Segment;
use super::lock::Lock;

impl<K: Key, M: Medium, const B: usize, const P: usize> Recoverable for Cceh<K, M, B, P> {
    fn is_fresh(&self, segment: &Segment<B>) -> bool {
        let lock = Lock(self.medium().load(&segment.header.lock));
        self.was_recovered(segment) && lock.is_of(self.core.generation)
    }

    fn persist_contents(&self, segment: &Segment<B>) {
        let m = self.medium();
        // An earlier process may have stored the contents and terminated before they were durable.
        // The fence follows with the flush of the directory entries.
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
        // The lock is stored last: until then, all other threads wait for this one. A thread that
        // takes the lock also checks the generation in the header.
        m.store_transient(&segment.header.generation, generation);
        m.store_transient(&segment.header.lock, Lock::fresh(generation).0);
    }

    fn recovery_failed(&self, segment: &Segment<B>) {
        // Damage may have set the stamp of this opener: make the segment stale for all threads.
        let stale = region::stale(self.core.generation);
        self.medium().store_transient(&segment.header.lock, Lock::fresh(stale).0);
    }
}

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// Recovers every segment. A damaged one stays stale: operations that need it return the error.
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
    pub(super) fn make_segments_stale(&self) {
        let (m, stale) = (self.medium(), region::stale(self.core.generation));
        for_each_named(self, |offset| {
            if let Some(segment) = m.at::<Segment<B>>(offset) {
                m.store_transient(&segment.header.generation, stale);
                m.store_transient(&segment.header.lock, Lock::fresh(stale).0);
            }
        });
    }
}
