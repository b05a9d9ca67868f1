//! Writing segments, and splitting them.
//!
//! A new segment is complete and durable before the directory names it, and locked until that is durable too, and
//! the old segment's shape with it. A crash before the commit forgets the new segment. What a crash can leave half
//! done is only the other entries of a directory range, and the old segment's shape: recovery sees both from the
//! first entry of the range. The records that moved stay where they were in the old segment, untouched: they do not
//! belong there any more, and nobody writes into their slots before the shape that says so is durable.

use std::sync::atomic::Ordering;

use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, Result};

use super::Cceh;
use super::layout::{Header, SLOTS, Segment};
use super::lock::Lock;
use super::segment::{Held, Record};
use crate::Key;
use crate::hash::directory::Reserved;
use crate::hash::hash_prefix::{DEPTH_MAX, HashPrefix};

/// What has to be split, and how often.
pub(super) struct Wanted {
    offset: u64,
    shape: HashPrefix,
    /// A hash whose window is full there.
    hash: u64,
    /// Local depth at which the window's records are no longer all together.
    depth: u32,
}

/// What a split took before it locked anything.
struct Room {
    block: Option<u64>,
    directory: Option<Reserved>,
}

impl<K: Key, M: Medium, const B: usize, const P: usize> Cceh<K, M, B, P> {
    /// Bytes of a directory that is always allowed.
    const FREE_DIRECTORY: u64 = if B < 64 { 4 << 10 } else { 64 << 10 };

    /// What it would take to make room for `hash` in a segment where its window is full; releases the segment.
    #[cold]
    pub(super) fn wanted(&self, held: Held<'_, B>, hash: u64) -> Wanted {
        let depth = self.bits_apart(&held, hash);
        let wanted = Wanted { offset: held.offset, shape: held.shape, hash, depth };
        held.release(self.medium());
        wanted
    }

    /// Splits a segment once, unless somebody else has.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then. Also where no reasonable number of splits would help.
    #[cold]
    pub(super) fn split(&self, wanted: Wanted, guard: &Guard<'_>) -> Result<()> {
        let depth = self.directory.depth();
        if wanted.depth > depth && !self.may_deepen(wanted.depth) {
            let what = format!(
                "room among {} keys whose hashes agree in {} bits",
                Self::ALWAYS_HOLDS,
                wanted.depth - 1
            );
            return Err(Error::no_space(what, size_of::<super::Slot>() as u64));
        }
        // Everything is reserved before anything is locked.
        let mut room = Room { block: Some(self.allocate_segment()?), directory: None };
        if wanted.shape.depth >= depth {
            match self.directory.reserve_double(wanted.shape.depth) {
                Ok(reserved) => room.directory = Some(reserved),
                Err(error) => {
                    self.give_back(room);
                    return Err(error);
                }
            }
        }
        let result = self.split_into(&wanted, &mut room, guard);
        self.give_back(room);
        result
    }

    fn give_back(&self, room: Room) {
        room.directory.into_iter().for_each(|reserved| self.directory.cancel(reserved));
        room.block.into_iter().for_each(|block| self.pool.free_unpublished(block));
    }

    fn allocate_segment(&self) -> Result<u64> {
        self.pool.allocate_exact(size_of::<Segment<B>>() as u64)
    }

    /// Whether a directory of this depth would be in proportion: no larger than the segments. Without this bound,
    /// keys with equal hash prefixes would double it for ever. O(entries), as the doubling would be.
    fn may_deepen(&self, depth: u32) -> bool {
        let segments = self.directory.segments() * size_of::<Segment<B>>() as u64;
        depth <= DEPTH_MAX && 8 << depth <= Self::FREE_DIRECTORY.max(segments)
    }

    fn split_into(&self, wanted: &Wanted, room: &mut Room, guard: &Guard<'_>) -> Result<()> {
        let m = self.medium();
        let held = self.lock_serving(wanted.hash)?;
        if (held.offset, held.shape) != (wanted.offset, wanted.shape) {
            // Someone else split it while we reserved.
            held.release(m);
            return Ok(());
        }
        let (lower, upper) = (held.shape.half(0), held.shape.half(1));
        let block = room.block.take().expect("reserved");
        let built = match self.build(block, upper, &self.records_of(&held, upper)) {
            Ok(built) => built,
            Err(error) => {
                room.block = Some(block);
                held.release(m);
                return Err(error);
            }
        };
        m.fence();
        // The new segment is complete and durable, and locked: others may reach it as soon as the directory names
        // it, but act on it only once that is durable too.
        if !self.directory.publish(upper, block, &mut room.directory, guard) {
            // The directory is too shallow all the same: begin again.
            room.block = Some(block);
            held.release(m);
            return Ok(());
        }
        m.store(&held.segment.header.shape, lower.encode());
        // Before this nobody may write into the slots of records that moved: a crash could still lead back to them.
        m.note(Note::Harmless(
            "needed by other threads: `a_split_is_durable_whatever_comes_of_the_record`",
        ));
        m.persist(&held.segment.header.shape);
        self.splits.fetch_add(1, Ordering::Relaxed);
        built.release_changed(m);
        held.release_changed(m);
        Ok(())
    }

    /// A segment's slots without any record.
    pub(super) fn no_records(&self) -> Vec<Option<Record>> {
        vec![None; B * SLOTS]
    }

    /// Those records of a segment that belong to `half` of it, each in a slot for it.
    ///
    /// The slot that a record has now is free in the new segment, so there is always room: even where a window
    /// that wraps around is full. From there records move up to free slots nearer home, so that they are found sooner.
    fn records_of(&self, held: &Held<'_, B>, half: HashPrefix) -> Vec<Option<Record>> {
        let mut slots = self.no_records();
        self.for_each_record(held.segment, half, |at, record| slots[at] = Some(record));
        for at in 0..slots.len() {
            let Some(record) = slots[at] else { continue };
            let home = Self::home_of(K::slot_hash(record.slot_key, self.seed));
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

    /// Writes a segment of this shape with these records into a fresh block, locked, and flushes it without a fence.
    ///
    /// # Errors
    /// `Damaged` if there is no room for a segment at `offset`.
    pub(super) fn build(
        &self,
        offset: u64,
        shape: HashPrefix,
        records: &[Option<Record>],
    ) -> Result<Held<'_, B>> {
        let m = self.medium();
        let segment = self.segment(offset)?;
        let blank = self.blank_of(shape);
        let slots = segment.buckets.iter().flat_map(|bucket| &bucket.slots);
        for (slot, record) in slots.zip(records) {
            if let Some(record) = record {
                m.store(&slot.word, record.word);
            }
            // Whatever was in the block before, no key in it may seem to belong there.
            m.store(&slot.key, record.map_or(blank, |record| record.slot_key));
        }
        m.store(&segment.header.magic, Header::MAGIC);
        m.store(&segment.header.shape, shape.encode());
        m.store_transient(&segment.header.generation, self.generation);
        let lock = Lock::fresh(self.generation);
        m.store_transient(&segment.header.lock, lock.locked().0);
        m.flush(segment);
        Ok(Held { offset, segment, shape, lock })
    }
}
