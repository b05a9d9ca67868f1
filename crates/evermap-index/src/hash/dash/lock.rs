//! Locking whole segments.

use evermap_pm::{Medium, Result};

use super::Dash;
use super::bucket::{Held, Locking, try_lock};
use super::layout::{Bucket, Buckets, Geometry, Version};
use crate::Key;
use crate::hash::segmented::map::SegmentMap;
use crate::hash::segmented::waiting::Waiting;

impl<K, M, E, G> Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    /// Locks every normal bucket of this segment. Returns `false`, with nothing locked, if the
    /// segment no longer holds the records of `hash`.
    ///
    /// Only a thread that locks a whole segment waits for a bucket while it holds others, and such
    /// threads lock buckets in the same order, so this cannot deadlock. A segment that was merged
    /// away stays locked, but it no longer holds the records of any hash.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    pub fn lock_all(&self, offset: u64, segment: &G::Segment, hash: u64) -> Result<bool> {
        for at in 0..G::BUCKETS {
            match self.lock_in_turn(offset, segment, at, hash) {
                Ok(true) => {}
                other => {
                    segment.normal()[..at].iter().for_each(|bucket| self.unlock_bucket(bucket));
                    return other;
                }
            }
        }
        Ok(true)
    }

    /// Waits for one bucket and locks it. Returns `false`, with the bucket unlocked, if the records
    /// of `hash` are no longer in this segment.
    fn lock_in_turn(
        &self,
        offset: u64,
        segment: &G::Segment,
        at: usize,
        hash: u64,
    ) -> Result<bool> {
        let m = self.medium();
        let bucket = &segment.normal()[at];
        let mut waiting = Waiting::default();
        loop {
            match try_lock(m, bucket, self.core.generation) {
                // The bucket stays locked until `unlock_all` or `unlock_as_before`.
                Locking::Held(Held { .. }) => {
                    let holds = if at == 0 { self.is_held_by(hash, offset) } else { Ok(true) };
                    if !matches!(holds, Ok(true)) {
                        self.unlock_bucket(bucket);
                    }
                    return holds;
                }
                Locking::Stale => waiting.recover(self, offset)?,
                Locking::Busy => waiting.wait(self, segment)?,
            }
            // While a thread holds the first bucket, no other thread splits or merges the segment.
            if at == 0 && !self.is_held_by(hash, offset)? {
                return Ok(false);
            }
        }
    }

    /// Returns whether the records of `hash` are in the segment at `offset`.
    fn is_held_by(&self, hash: u64, offset: u64) -> Result<bool> {
        Ok(self.map.holder(self.medium(), hash)?.0 == offset)
    }

    fn unlock_bucket(&self, bucket: &Bucket) {
        let m = self.medium();
        m.store_transient(&bucket.version, Version(m.load(&bucket.version)).released().0);
    }

    /// Releases every normal bucket of a segment that was not changed.
    pub fn unlock_as_before(&self, segment: &G::Segment) {
        segment.normal().iter().for_each(|bucket| self.unlock_bucket(bucket));
    }
}
