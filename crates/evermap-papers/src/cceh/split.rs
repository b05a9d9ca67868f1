//! When segments of CCEH are split, and the steps of a split that are specific to them.
//! `hash/segmented` has the steps that all indexes with a directory share.
//!
//! The slots of records that move are not changed in the old segment: the records no longer have
//! its prefix, and no thread stores into these slots before the new prefix is durable.

use evermap_index::Key;
use evermap_index::hash::hash_prefix::{DEPTH_MAX, HashPrefix};
use evermap_index::hash::segmented::map::Split;
use evermap_index::hash::segmented::split::{Directed, split};
use evermap_index::hash::segmented::{SegmentHeader, Segmented};
use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, Result};

use super::Cceh;
use super::layout::{Header, SLOTS, Segment, Slot};
use super::lock::Lock;
use super::segment::{Held, Record};

/// The split that an insert needs.
pub(super) struct Wanted {
    offset: u64,
    prefix: HashPrefix,
    /// The hash of the insert, whose window is full.
    hash: u64,
    /// The local depth from which the window's records are not all in one segment.
    depth: u32,
}

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// Returns the split that makes room for `hash` in a segment in which its window is full.
    /// Releases the segment.
    #[cold]
    pub(super) fn wanted(&self, held: Held<'_, B>, hash: u64) -> Wanted {
        let depth = self.bits_apart(&held, hash);
        let wanted = Wanted { offset: held.offset, prefix: held.prefix, hash, depth };
        held.release(self.medium());
        wanted
    }

    /// Splits a segment once, unless another thread has split it.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then. Also if the splits that are needed would make the
    /// directory too large.
    #[cold]
    pub(super) fn split(&self, wanted: &Wanted, guard: &Guard<'_>) -> Result<()> {
        if wanted.depth > self.map.directory.depth() && !self.may_deepen(wanted.depth) {
            let what = format!(
                "room among {} keys whose hashes agree in {} bits",
                Self::ALWAYS_HOLDS,
                wanted.depth - 1
            );
            return Err(Error::no_space(what, size_of::<Slot>() as u64));
        }
        split(self, wanted.offset, wanted.hash, wanted.prefix, guard).map(|_| ())
    }

    /// Returns whether the directory may have this depth: if it would not be larger than the
    /// segments. Without this bound, keys with equal hash prefixes would double it without end.
    /// O(entries), like doubling.
    fn may_deepen(&self, depth: u32) -> bool {
        let segments = self.map.directory.segments() * size_of::<Segment<B>>() as u64;
        depth <= DEPTH_MAX && 8 << depth <= Self::FREE_DIRECTORY.max(segments)
    }

    /// Returns the slots of a segment without records.
    pub(super) fn no_records(&self) -> Vec<Option<Record>> {
        vec![None; B * SLOTS]
    }

    /// Returns the records of a segment that belong to its half `half`, by their slots in the new
    /// segment.
    ///
    /// The present slot of a record is free in the new segment, so there is always room, even if a
    /// window that wraps around is full. Then each record moves to a free slot nearer to its home
    /// bucket, if there is one, so that it is found sooner.
    fn records_of(&self, held: &Held<'_, B>, half: HashPrefix) -> Vec<Option<Record>> {
        let mut slots = self.no_records();
        self.for_each_record(held.segment, half, |at, record| slots[at] = Some(record));
        for at in 0..slots.len() {
            let Some(record) = slots[at] else { continue };
            let home = Self::home_of(K::slot_hash(record.slot_key, self.core.seed));
            let nearer = (0..(at / SLOTS).wrapping_sub(home) % B).map(|step| (home + step) % B);
            let free = nearer
                .flat_map(|bucket| bucket * SLOTS..(bucket + 1) * SLOTS)
                .find(|&free| slots[free].is_none());
            if let Some(free) = free {
                slots.swap(at, free);
            }
        }
        slots
    }

    /// Writes a segment with this prefix and these records into a new block, locked, and flushes it
    /// without a fence.
    ///
    /// # Errors
    /// `Damaged` if a segment at `offset` would end outside the region.
    pub(super) fn build(
        &self,
        offset: u64,
        prefix: HashPrefix,
        records: &[Option<Record>],
    ) -> Result<Held<'_, B>> {
        let m = self.medium();
        let segment = self.segment(offset)?;
        let blank = self.blank_of(prefix);
        let slots = segment.buckets.iter().flat_map(|bucket| &bucket.slots);
        for (slot, record) in slots.zip(records) {
            if let Some(record) = record {
                m.store(&slot.word, record.word);
            }
            // The block may have been used before: every slot must get a key, so that no old key
            // belongs there.
            m.store(&slot.key, record.map_or(blank, |record| record.slot_key));
        }
        m.store(&segment.header.magic, Header::MAGIC);
        m.store(&segment.header.prefix, prefix.encode());
        m.store_transient(&segment.header.generation, self.core.generation);
        let lock = Lock::fresh(self.core.generation);
        m.store_transient(&segment.header.lock, lock.locked().0);
        m.flush(segment);
        Ok(Held { offset, segment, prefix, lock })
    }
}

impl<K: Key, M: Medium, const B: usize, const P: usize> Directed for Cceh<K, M, B, P> {
    /// Not needed: the keys in the slots determine which records move.
    type Halves = ();
    type Rebuilt<'a> = Held<'a, B>;

    const MERGES: bool = false;
    const FREE_DIRECTORY: u64 = if B < 64 { 4 << 10 } else { 1 << 20 };

    fn divide(&self, _: &Held<'_, B>, _: HashPrefix) -> std::result::Result<(), Split> {
        Ok(())
    }

    fn build_upper(
        &self,
        block: u64,
        upper: HashPrefix,
        held: &Held<'_, B>,
        (): &mut (),
    ) -> Result<Held<'_, B>> {
        self.build(block, upper, &self.records_of(held, upper))
    }

    fn settle_lower<'a>(
        &'a self,
        held: Held<'a, B>,
        lower: HashPrefix,
        (): (),
        _: &Guard<'_>,
    ) -> Held<'a, B> {
        let m = self.medium();
        m.store(&held.segment.header.prefix, lower.encode());
        // Must be durable before another thread stores into the slots of moved records: a crash
        // could otherwise restore the old prefix, to which they belong.
        m.note(Note::Harmless(
            "needed by other threads: `a_split_is_durable_whatever_comes_of_the_record`",
        ));
        m.persist(&held.segment.header.prefix);
        held
    }

    fn unlock_rebuilt(&self, _: &Segment<B>, held: Held<'_, B>) {
        held.release_changed(self.medium());
    }

    fn store_finished_prefix(&self, segment: &Segment<B>, prefix: HashPrefix) {
        let m = self.medium();
        m.store(&segment.header.prefix, prefix.encode());
        m.note(Note::Harmless(
            "needed by other threads: \
             `a_split_that_recovery_finishes_is_durable_before_the_segment_is_used`",
        ));
        m.persist(&segment.header.prefix);
    }
}
