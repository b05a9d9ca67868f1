//! Growth of the hash index: linear hashing in each partition (Litwin, VLDB 1980), one bucket at a
//! time.
//!
//! 1. The keys that belong to the next bucket are those of one other. They are copied to the new
//!    bucket, and to buckets chained to it, which are made durable.
//! 2. The number of buckets is stored and made durable: that commits the split.
//!
//! The entries of the keys that have moved stay where they were: an entry whose signature belongs
//! to another bucket counts as free. So nothing has to be done after the commit, and nothing to be
//! repaired. A crash before the commit leaves a bucket that does not count, and is written anew.
//! Chained buckets that are left without keys are freed.
//!
//! A put that has found no space in the first bucket of a chain adds one bucket to its partition.
//! That keeps the load where one key in `keys / buckets` is in a chained bucket, whatever the
//! number of keys, and needs no count of them, which nobody would know after a crash.

use std::sync::atomic::Ordering::Relaxed;

use evermap_index::recipe::commit_marked;
use evermap_pm::{Error, Medium, Result};

use super::hash::{Hash, Spare, chunk_buckets};
use super::layout::{BUCKET, Bucket, CHUNKS, ENTRIES, Entry, MARK};
use super::mistakes;

impl<M: Medium> Hash<M> {
    /// Adds a bucket to a partition, unless another thread is doing that, or there is no space.
    ///
    /// # Errors
    ///
    /// `Damaged`, `Poisoned`.
    pub(super) fn grow(&self, partition: usize) -> Result<()> {
        let Ok(_growing) = self.partitions[partition].growing.try_lock() else { return Ok(()) };
        match self.split(partition) {
            Err(error) if error.is_no_space() => Ok(()),
            done => done,
        }
    }

    fn split(&self, partition: usize) -> Result<()> {
        let (m, state) = (self.pool.medium(), &self.partitions[partition]);
        let descriptor = self.descriptor(partition)?;
        // Relaxed: only stored by a thread that has the lock of growth.
        let count = state.count.load(Relaxed);
        let level = (count / self.base).ilog2() as usize;
        if level + 1 >= CHUNKS {
            return Ok(());
        }
        let from = count - (self.base << level);
        if state.chunks[level + 1].load(Relaxed) == 0 {
            let chunk = self.pool.allocate_fixed(chunk_buckets(self.base, level + 1) * BUCKET)?;
            m.store(&descriptor.chunks[level + 1], chunk);
            // Before another thread counts a bucket of it.
            m.persist(&descriptor.chunks[level + 1]);
            state.chunks[level + 1].store(chunk, Relaxed);
        }
        let _held = self.lock_stripe(partition, from)?;
        let moving = self.moving(partition, (from, count))?;
        let further = (moving.len() as u64).div_ceil(ENTRIES).saturating_sub(1);
        let spares: Vec<_> = (0..further).map(|_| self.spare()).collect::<Result<_>>()?;
        if m.mutant(mistakes::COUNT_BEFORE_BUCKET) {
            m.store(&descriptor.count, count + 1);
            m.persist(&descriptor.count);
        }
        self.write_bucket(self.bucket_at(partition, count), &moving, spares)?;
        m.fence();
        m.store(&descriptor.count, count + 1);
        m.persist(&descriptor.count);
        state.publish(count + 1);
        self.shorten(partition, (from, count + 1))
    }

    /// Cuts the end of a chain off that has no keys any more.
    fn shorten(&self, partition: usize, (number, count): (u64, u64)) -> Result<()> {
        let m = self.pool.medium();
        let chain = self.chain(partition, number).collect::<Result<Vec<_>>>()?;
        let is_bound = |entry: &Entry| self.bound(entry, (partition, number, count)).is_some();
        let last = chain.iter().rposition(|(_, bucket)| bucket.entries.iter().any(is_bound));
        let last = last.unwrap_or(0);
        if last + 1 == chain.len() {
            return Ok(());
        }
        let guard = self.pool.pin();
        // What is cut off may be written to by a process that finds it unreachable, so that must be
        // durable by then.
        commit_marked(m, &chain[last].1.next, 0, MARK);
        // Lookups may still be there.
        chain[last + 1..].iter().for_each(|&(gone, _)| self.pool.retire(gone, BUCKET, &guard));
        Ok(())
    }

    /// Returns the entries of the bucket `from` that belong to the next one, `count`.
    fn moving(&self, partition: usize, (from, count): (u64, u64)) -> Result<Vec<(u64, u64)>> {
        let mut moving = Vec::new();
        for bucket in self.chain(partition, from) {
            for entry in &bucket?.1.entries {
                let bound = self.bound(entry, (partition, from, count));
                let moves = |&(signature, _): &_| self.bucket_of(signature, count + 1) == count;
                moving.extend(bound.filter(moves));
            }
        }
        Ok(moving)
    }

    /// Writes every word of a bucket and of those chained to it, and flushes them.
    fn write_bucket(
        &self,
        first: u64,
        entries: &[(u64, u64)],
        spares: Vec<Spare<'_, M>>,
    ) -> Result<()> {
        let m = self.pool.medium();
        let at = |position| {
            let outside = || Error::damaged(position, "a new bucket is outside");
            m.at::<Bucket>(position).ok_or_else(outside)
        };
        let mut buckets = vec![at(first)?];
        for spare in &spares {
            buckets.push(at(spare.position)?);
        }
        let links: Vec<u64> = spares.into_iter().map(Spare::keep).collect();
        for (number, bucket) in buckets.into_iter().enumerate() {
            m.store(&bucket.next, links.get(number).copied().unwrap_or(0));
            let mine = &entries[entries.len().min(number * ENTRIES as usize)..];
            for (at, entry) in bucket.entries.iter().enumerate() {
                let (signature, position) = mine.get(at).copied().unwrap_or((0, 0));
                m.store(&entry.signature, signature);
                m.store(&entry.position, position & !MARK);
            }
            m.flush(bucket);
        }
        Ok(())
    }
}
