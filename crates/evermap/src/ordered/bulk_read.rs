//! Reading the keys of all records through the hash index, which knows them in no order, and making
//! a tree of them.
//!
//! Threads take some segments each at a time and read their records in about the order in which
//! these lie in the file. The first records are a sample of all, since a hash index has scattered
//! them: by these, keys are dealt out to parts of the tree as they are read.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::key::BytesRef;
use evermap_index::ordered::Run;
use evermap_index::ordered::bplus::{Config, PartitionBuffers, Partitioner};
use evermap_index::record::OFFSET_MASK;
use evermap_index::{BPlus, Guard};
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Medium, parallel};

use super::Ordered;
use crate::ops::read::Walk;
use crate::record::Record;
use crate::{Error, Map, Result};

/// Pairs, about, whose records one thread reads under one guard: the more, the nearer to each other
/// they lie in the file.
const READ_TOGETHER: usize = if cfg!(test) { 1 << 11 } else { 1 << 19 };
/// Pairs of the sample: more than parts are judged by. Tests have few of either, so that few keys
/// are many groups.
const SAMPLE: usize = if cfg!(test) { JUDGED } else { 1 << 16 };
/// Stretches of the file by which they are put in order.
const PLACES: usize = 1 << 12;
/// Records that a reader of keys fetches ahead.
const AHEAD: usize = 24;
/// Bytes of a record in which most keys end: so much of it is fetched.
const KEY_BYTES: u64 = 64;
/// Records by which the size of all is judged.
const JUDGED: usize = 1 << 10;

/// Slot keys and words of some segments.
#[derive(Default)]
struct Group {
    found: Vec<(u64, u64)>,
    /// The pairs in about the order of their records: enough for neighbours to share pages.
    placed: Vec<(u64, u64)>,
}

impl Group {
    /// Puts what was found in order, at the price of two walks over it.
    fn place(&mut self) {
        let offset = |&(_, word): &(u64, u64)| word & OFFSET_MASK;
        let last = self.found.iter().map(offset).max().unwrap_or(0);
        let shift = (u64::BITS - last.leading_zeros()).saturating_sub(PLACES.ilog2());
        let place = |pair: &_| (offset(pair) >> shift) as usize;
        // Where the next pair of each place goes.
        let mut next = [0; PLACES];
        self.found
            .iter()
            .map(place)
            .filter(|place| place + 1 < PLACES)
            .for_each(|place| next[place + 1] += 1);
        (1..PLACES).for_each(|place| next[place] += next[place - 1]);
        self.placed.resize(self.found.len(), (0, 0));
        for pair in self.found.drain(..) {
            let next = &mut next[place(&pair)];
            self.placed[*next] = pair;
            *next += 1;
        }
    }
}

impl<M: Medium> Map<M> {
    /// Returns a tree of the keys of all records, read and built by this number of threads.
    pub(super) fn tree_of_index(&self, ordered: &Ordered, threads: usize) -> Result<BPlus> {
        let walk = Mutex::ranked(Rank::Walk, Walk::new(self));
        let mut sample = Run::new();
        let records = self.read_sample(ordered, &walk, &mut sample)?;
        let partitioner = Partitioner::from_sample(&sample, records);
        let buffers = parallel(threads, threads, |at| {
            let mut buffers = partitioner.buffers(records / threads);
            if at == 0 {
                sample.iter().try_for_each(|(key, hash)| buffers.push(key, hash))?;
            }
            self.read_part(ordered, &walk, &mut buffers)?;
            Ok(buffers)
        });
        let buffers = buffers.into_iter().collect::<Result<_>>()?;
        Ok(BPlus::load_partitioned(Config::default(), &partitioner, buffers, threads)?)
    }

    /// Reads the keys of the first segments. Returns an estimate of the number of records.
    fn read_sample(
        &self,
        ordered: &Ordered,
        walk: &Mutex<Walk<'_, M>>,
        sample: &mut Run,
    ) -> Result<usize> {
        let mut group = Group::default();
        let _guard = self.next_group(ordered, walk, SAMPLE, &mut group)?;
        sample.reserve(group.placed.len());
        self.read_group(ordered, &group.placed, &mut |key, hash| {
            sample.push(key, hash);
            Ok(())
        })?;
        Ok(self.judge_number(&group.placed))
    }

    /// About how many records there are, where these are the first: too many where others use the
    /// file too.
    fn judge_number(&self, pairs: &[(u64, u64)]) -> usize {
        if pairs.len() < SAMPLE {
            return pairs.len();
        }
        let apart = pairs.len() / JUDGED;
        let records = pairs.iter().step_by(apart);
        let records = records.flat_map(|&(_, word)| Record::at(self.db.file.pool.medium(), word));
        let bytes = records.map(|record| self.db.file.pool.block_size(record.bytes()));
        let (count, bytes) = bytes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        let all = self.db.file.pool.medium().len().checked_div(bytes / u64::max(count, 1));
        all.map_or(pairs.len(), |all| all as usize)
    }

    /// Deals out the keys of segments that no other thread reads, until there are none left.
    fn read_part(
        &self,
        ordered: &Ordered,
        walk: &Mutex<Walk<'_, M>>,
        buffers: &mut PartitionBuffers<'_>,
    ) -> Result<()> {
        let mut group = Group::default();
        while let Some(_guard) = self.next_group(ordered, walk, READ_TOGETHER, &mut group)? {
            self.read_group(ordered, &group.placed, &mut |key, hash| Ok(buffers.push(key, hash)?))?;
        }
        Ok(())
    }

    /// Shows `each` the keys of some pairs, and their hashes.
    fn read_group(
        &self,
        ordered: &Ordered,
        pairs: &[(u64, u64)],
        each: &mut impl FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let mut key = Vec::new();
        pairs.iter().take(AHEAD).for_each(|&(_, word)| self.prefetch_key(word));
        let mut read = 0;
        for (at, &(hash, word)) in pairs.iter().enumerate() {
            if let Some(&(_, ahead)) = pairs.get(at + AHEAD) {
                self.prefetch_key(ahead);
            }
            if self.read_key(ordered, hash, word, &mut key) {
                each(&key, hash)?;
                read += 1;
            }
        }
        ordered.read.fetch_add(read, Relaxed);
        Ok(())
    }

    /// Replaces `group` by the pairs of some segments that no thread has read yet: as many as are
    /// wanted, if there are enough.
    fn next_group<'s>(
        &self,
        ordered: &Ordered,
        walk: &Mutex<Walk<'s, M>>,
        wanted: usize,
        group: &mut Group,
    ) -> Result<Option<Guard<'s>>> {
        let guard = self.next_segment(ordered, walk, &mut group.found)?;
        // The first guard protects all that is found under it.
        while group.found.len() < wanted
            && self.next_segment(ordered, walk, &mut group.found)?.is_some()
        {}
        group.place();
        Ok(guard)
    }

    /// Appends the next segment that no thread has read yet.
    pub(super) fn next_segment<'s>(
        &self,
        ordered: &Ordered,
        walk: &Mutex<Walk<'s, M>>,
        pairs: &mut Vec<(u64, u64)>,
    ) -> Result<Option<Guard<'s>>> {
        if self.db.file.maintenance.is_stopping() {
            return Err(Error::Closed);
        }
        let mut walk = walk.lock().unwrap_or_else(PoisonError::into_inner);
        let next = walk.append_next(pairs)?;
        if walk.take_error().is_err() {
            ordered.unreadable.fetch_add(1, Relaxed);
        }
        Ok(next)
    }

    #[inline]
    fn prefetch_key(&self, word: u64) {
        self.db.file.pool.medium().prefetch_bytes(word & OFFSET_MASK, KEY_BYTES);
    }

    /// Copies the key of a pair to `key`. Returns `true` if it can be read and has the hash of the
    /// pair. Dead records count too: the hash index binds their keys.
    #[inline]
    pub(super) fn read_key(
        &self,
        ordered: &Ordered,
        hash: u64,
        word: u64,
        key: &mut Vec<u8>,
    ) -> bool {
        let read = self.has_key(hash, word, key);
        if !read {
            ordered.unreadable.fetch_add(1, Relaxed);
        }
        read
    }

    /// The same without counting.
    #[inline]
    pub(super) fn has_key(&self, hash: u64, word: u64, key: &mut Vec<u8>) -> bool {
        key.clear();
        Record::at(self.db.file.pool.medium(), word).is_ok_and(|record| {
            record.append_key(key).is_ok()
                && BytesRef::new(key, self.inner.header.seed()).hash == hash
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_placed_by_their_records() {
        for last in [0u64, 1, 5000, OFFSET_MASK] {
            let word = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (last + 1);
            let pairs: Vec<_> = (0..3000).map(|number| (number, word(number) | 7 << 48)).collect();
            let mut group = Group { found: pairs.clone(), ..Group::default() };
            group.place();
            let mut placed = group.placed;
            let width = last / PLACES as u64 * 2 + 1;
            let near =
                |ab: &[(u64, u64)]| (ab[0].1 & OFFSET_MASK) < (ab[1].1 & OFFSET_MASK) + width;
            assert!(placed.windows(2).all(near), "{last}");
            placed.sort_unstable();
            assert_eq!(placed, pairs);
        }
    }
}
