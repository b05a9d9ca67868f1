//! Locking whole segments.

use evermap_pm::{Medium, Result};

use super::bucket::{Held, Locking, try_lock};
use super::layout::{Bucket, Segment, Version};
use super::{Dash, Expansion, Found};
use crate::Key;
use crate::hash::segmented::waiting::Waiting;

impl<K, M, E, const B: usize, const S: usize, const N: usize> Dash<K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    /// Locks every normal bucket of the segment that holds the records of `hash`. Returns `false`,
    /// holding nothing, if that is no longer this one.
    ///
    /// Buckets are locked in order, and a thread that holds a bucket only ever tries to lock
    /// others, so this cannot deadlock. A segment that was merged away stays locked, but then it is
    /// not the one.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    pub(super) fn lock_all(&self, offset: u64, segment: &Segment<B, S>, hash: u64) -> Result<bool> {
        for at in 0..B {
            match self.lock_in_turn(offset, segment, at, hash) {
                Ok(true) => {}
                other => {
                    segment.normal[..at].iter().for_each(|bucket| self.unlock_bucket(bucket));
                    return other;
                }
            }
        }
        Ok(true)
    }

    /// Waits for one bucket. Returns `false`, not holding it, if the records of `hash` are no
    /// longer in this segment.
    fn lock_in_turn(
        &self,
        offset: u64,
        segment: &Segment<B, S>,
        at: usize,
        hash: u64,
    ) -> Result<bool> {
        let m = self.medium();
        let bucket = &segment.normal[at];
        let mut waiting = Waiting::default();
        loop {
            match try_lock(m, bucket, self.core.generation) {
                // Stays locked until `unlock_all` or `unlock_as_before`.
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
            // The thread that holds the first bucket keeps the segment in its place.
            if at == 0 && !self.is_held_by(hash, offset)? {
                return Ok(false);
            }
        }
    }

    /// Returns whether the records of `hash` are in the segment at `offset`.
    fn is_held_by(&self, hash: u64, offset: u64) -> Result<bool> {
        Ok(self.expansion.holder(self.medium(), hash)?.segment() == offset)
    }

    fn unlock_bucket(&self, bucket: &Bucket) {
        let m = self.medium();
        m.store_transient(&bucket.version, Version(m.load(&bucket.version)).released().0);
    }

    /// Releases every normal bucket as it was.
    pub(super) fn unlock_as_before(&self, segment: &Segment<B, S>) {
        segment.normal.iter().for_each(|bucket| self.unlock_bucket(bucket));
    }
}
