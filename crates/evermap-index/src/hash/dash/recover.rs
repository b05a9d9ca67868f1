//! Recovery, one segment at a time, when it is first touched.
//!
//! Every opener begins with all segments stale: their version words carry the number of an earlier one. The
//! first to meet a stale bucket finishes what a crash may have interrupted:
//!
//! * a structure change that was committed: see the kinds of Dash;
//! * a displacement that left two copies of a record: one is dropped;
//! * headers that are never flushed (filters, overflow fingerprints, locks): made from the slots.
//!
//! Nothing is redone that was not committed, so recovery allocates nothing and can be interrupted and repeated.

use evermap_pm::medium::Note;
use evermap_pm::sync::MutexGuard;
use evermap_pm::{Error, Medium, Result};

use super::layout::{HashPrefix, Header, Segment, Version};
use super::{Dash, Expansion};
use crate::Key;

/// Why what a segment holds must be durable before it is used.
const FOUND: &str = "needed by other threads: `what_recovery_finds_is_durable_before_it_is_used`";

impl<K, M, E, const B: usize, const S: usize, const N: usize> Dash<K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    /// Recovers the segment at `offset`, or waits until someone else has. Afterwards it is fresh, or not in
    /// use any more.
    ///
    /// # Errors
    /// `Damaged` if there is no segment, or one that contradicts its place; nothing is changed then.
    #[cold]
    pub(super) fn recover(&self, offset: u64) -> Result<()> {
        self.pool.region().ensure_sound()?;
        let _one_at_a_time = self.recovering(offset);
        let m = self.medium();
        let segment = self.segment(offset)?;
        if m.load(&segment.header.generation) == self.generation {
            return Ok(());
        }
        if m.load(&segment.header.magic) != Header::MAGIC {
            return Err(Error::damaged(offset, "there is no segment where one should be"));
        }
        let shape = HashPrefix::decode(m.load(&segment.header.shape))
            .ok_or_else(|| Error::damaged(offset, "impossible shape of a segment"))?;
        self.keep_contents(segment);
        if let Some(shape) = E::finish_structure(self, offset, segment, shape)? {
            self.finish_contents(segment, shape);
            self.count_recovered();
        }
        Ok(())
    }

    /// The shape of the segment at `offset`, if there is one.
    pub(super) fn shape_at(&self, offset: u64) -> Option<HashPrefix> {
        shape_at(self.medium(), offset)
    }

    fn recovering(&self, offset: u64) -> MutexGuard<'_, ()> {
        let stripe = &self.recovering[(offset / 256) as usize % self.recovering.len()];
        stripe.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes every version word of a segment stale, so that it is recovered before it is used.
    pub(super) fn make_stale(&self, segment: &Segment<B, S>) {
        let (m, earlier) = (self.medium(), self.generation.wrapping_sub(1));
        m.store_transient(&segment.header.generation, earlier);
        for bucket in segment.normal.iter().chain(&segment.stash) {
            m.store_transient(&bucket.version, Version::fresh(earlier).0);
        }
    }

    /// Makes durable what a segment holds: whoever stored it may have died before it was.
    fn keep_contents(&self, segment: &Segment<B, S>) {
        let m = self.medium();
        m.note(Note::Harmless(FOUND));
        m.flush(segment);
        self.chain(segment).for_each(|bucket| {
            m.note(Note::Harmless(FOUND));
            m.flush(bucket);
        });
        m.note(Note::Harmless(
            "needed after half a move: `a_copy_that_recovery_finds_is_durable_before_the_other_is_dropped`",
        ));
        m.fence();
    }

    /// Drops what does not belong, makes all headers anew, and declares the segment fresh.
    fn finish_contents(&self, segment: &Segment<B, S>, shape: HashPrefix) {
        let m = self.medium();
        m.note(Note::Scope("segment recovered"));
        let headers = self.rebuild(segment, shape);
        m.note(Note::Harmless(
            "needed by other threads: `what_recovery_drops_is_gone_before_the_segment_is_used`",
        ));
        m.fence();
        // Up to here everyone waits, because every version word is stale. The header comes last: as long as it
        // is stale, whoever meets a stale bucket waits for us.
        for bucket in &segment.stash {
            m.store_transient(&bucket.version, Version::fresh(self.generation).0);
        }
        for (bucket, version) in segment.normal.iter().zip(&headers.versions) {
            m.store_transient(&bucket.version, version.0);
        }
        m.store_transient(&segment.header.generation, self.generation);
    }
}

/// The shape of the segment at `offset`, if there is one.
pub(super) fn shape_at<M: Medium>(m: &M, offset: u64) -> Option<HashPrefix> {
    let header = m.at::<Header>(offset)?;
    (m.load(&header.magic) == Header::MAGIC).then(|| HashPrefix::decode(m.load(&header.shape)))?
}
