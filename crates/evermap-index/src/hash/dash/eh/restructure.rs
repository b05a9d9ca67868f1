//! Splitting, merging, doubling and halving.
//!
//! No persistent word outside the reachable structure ever names a block: a new segment is complete and durable
//! before the directory names it, and a crash before that forgets it. What a crash can leave half done is only
//! the other entries of a directory range, and records that no longer belong: recovery sees both from the first
//! entry of the range and from the segment's shape.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::DashEh;
use crate::Key;
use crate::hash::dash::expansion::Split;
use crate::hash::dash::layout::{BUCKET_BYTES, Bucket, HashPrefix, Segment};
use crate::hash::dash::rebuild::Placed;
use crate::hash::directory::Reserved;
use crate::hash::hash_prefix::DEPTH_MAX;

impl<K: Key, M: Medium, const B: usize, const S: usize, const N: usize> DashEh<K, M, B, S, N> {
    /// Bytes of a directory that is always allowed.
    const FREE_DIRECTORY: u64 = if B < 64 { 256 } else { 64 << 10 };

    /// Splits the segment at `offset`, which serves `hash`.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    #[cold]
    pub(super) fn split(&self, offset: u64, hash: u64, guard: &Guard<'_>) -> Result<Split> {
        let m = self.medium();
        let segment = self.segment(offset)?;
        let Some(shape) = HashPrefix::decode(m.load(&segment.header.shape)) else {
            // Being rebuilt, or damaged: the next access decides.
            return Ok(Split::Done);
        };
        // Everything is reserved before anything is locked.
        let doubles = shape.depth >= self.expansion.directory.depth();
        if doubles && !self.may_double() {
            return Ok(Split::Refused);
        }
        let mut room = SplitRoom { block: Some(self.allocate_segment()?), directory: None };
        if doubles {
            match self.expansion.directory.reserve_double(shape.depth) {
                Ok(reserved) => room.directory = Some(reserved),
                Err(error) => {
                    self.give_back(room);
                    return Err(error);
                }
            }
        }
        let result = if self.lock_all(offset, segment, hash)? {
            self.split_locked(segment, shape, &mut room, guard)
        } else {
            Ok(Split::Done)
        };
        self.give_back(room);
        result
    }

    fn give_back(&self, room: SplitRoom) {
        room.directory.into_iter().for_each(|reserved| self.expansion.directory.cancel(reserved));
        room.block.into_iter().for_each(|block| self.pool.free_unpublished(block));
    }

    fn allocate_segment(&self) -> Result<u64> {
        self.pool.allocate_exact(size_of::<Segment<B, S>>() as u64)
    }

    /// Whether a directory of twice the size is in proportion: at most a quarter of the segments' bytes. Without
    /// this bound, keys with equal hash prefixes would double it for ever.
    fn may_double(&self) -> bool {
        let depth = self.expansion.directory.depth() + 1;
        let segments = self.expansion.segments() * size_of::<Segment<B, S>>() as u64;
        depth <= DEPTH_MAX && 8 << depth <= Self::FREE_DIRECTORY.max(segments / 4)
    }

    /// With every bucket of the segment locked; releases them.
    fn split_locked(
        &self,
        segment: &Segment<B, S>,
        shape: HashPrefix,
        room: &mut SplitRoom,
        guard: &Guard<'_>,
    ) -> Result<Split> {
        let m = self.medium();
        if m.load(&segment.header.shape) != shape.encode() {
            // Someone else split it while we reserved.
            self.unlock_unchanged(segment);
            return Ok(Split::Done);
        }
        m.note(Note::Scope("split"));
        let (lower, upper) = (shape.half(0), shape.half(1));
        let (mut staying, mut moving) = (Self::room_for_records(), Self::room_for_records());
        self.for_each_placed(segment, |placed: Placed| {
            let half = if upper.covers(placed.record.hash) { &mut moving } else { &mut staying };
            half.push(placed);
        });
        if (moving.is_empty() || staying.is_empty()) && room.directory.is_some() {
            // No key would be separated from another, but the directory would double: this is how equal
            // hashes look.
            self.unlock_unchanged(segment);
            return Ok(Split::Refused);
        }
        let block = room.block.take().expect("reserved");
        let moved = moving.iter().map(|placed| placed.record);
        let headers = match self.build(block, Some(upper), moved) {
            Ok(headers) => headers,
            Err(error) => {
                room.block = Some(block);
                self.unlock_unchanged(segment);
                return Err(error);
            }
        };
        m.fence();
        // The new segment is complete and durable, with all its buckets locked: others may reach it as soon as
        // the directory names it, but act on it only once that is durable too.
        if !self.expansion.directory.publish(upper, block, &mut room.directory, guard) {
            // The directory was halved meanwhile, and there is no room for doubling it: begin again.
            self.drop_unpublished(block);
            self.unlock_unchanged(segment);
            return Ok(Split::Done);
        }
        // Only now, with the move durable, do the moved records go from here. That this is the lower half is known from
        // the directory until the shape says so.
        let remaining = self.settle(segment, lower, &staying, &moving);
        m.store(&segment.header.shape, lower.encode());
        m.note(Note::Harmless("late, a crash finds the split in the directory, and finishes it"));
        m.flush(&segment.header.shape);
        m.fence();
        self.trim_chain(segment, guard);
        self.count_split();
        self.expansion.count_split();
        self.unlock_all(self.segment(block)?, &headers);
        self.unlock_all(segment, &remaining);
        Ok(Split::Done)
    }

    /// Frees a built segment that was never named, with its chain.
    fn drop_unpublished(&self, block: u64) {
        if let Ok(segment) = self.segment(block) {
            let m = self.medium();
            let mut link = m.load(&segment.header.chain);
            while link != 0 {
                let Some(bucket) = m.at::<Bucket>(link) else { break };
                let next = m.load(&bucket.version);
                self.pool.free_unpublished(link);
                link = next;
            }
        }
        self.pool.free_unpublished(block);
    }

    /// Merges the segment that serves `hash` with its sibling if together they would be nearly empty, and halves
    /// the directory when that has become possible. Called after removals.
    #[cold]
    pub(super) fn merge_if_sparse(&self, offset: u64, hash: u64, guard: &Guard<'_>) -> Result<()> {
        // Before the sweep is through, segments may be stale and ranges unfinished.
        if !self.pool.is_swept() {
            return Ok(());
        }
        let m = self.medium();
        let segment = self.segment(offset)?;
        let Some(shape) = HashPrefix::decode(m.load(&segment.header.shape)) else { return Ok(()) };
        let Some(parent) = shape.parent() else { return Ok(()) };
        let (lower, upper) = (parent.half(0).first_hash(), parent.half(1).first_hash());
        let (left, right) =
            (self.expansion.directory.locate(lower), self.expansion.directory.locate(upper));
        if left == right || !shape.covers(hash) {
            return Ok(());
        }
        let (first, second) = (self.segment(left)?, self.segment(right)?);
        if self.count(first) + self.count(second) > Self::MERGE_BELOW {
            return Ok(());
        }
        let block = match self.allocate_segment() {
            Ok(block) => block,
            // Merging is for saving space; without any, things stay as they are.
            Err(error) if error.is_no_space() => return Ok(()),
            Err(error) => return Err(error),
        };
        // In the order of their hashes, as every merge does: no deadlock.
        let merged = if !self.lock_all(left, first, lower)? {
            false
        } else if !self.lock_all(right, second, upper)? {
            self.unlock_unchanged(first);
            false
        } else {
            self.merge_locked(parent, [left, right], [first, second], block, guard)?
        };
        if !merged {
            self.pool.free_unpublished(block);
            return Ok(());
        }
        self.halve_if_worthwhile(guard)
    }

    /// Records in two siblings together at which they are merged: a quarter of one segment.
    const MERGE_BELOW: usize = (B + S) * N / 4;

    /// With both siblings locked; releases them unless it merges them, which leaves them locked for ever.
    fn merge_locked(
        &self,
        parent: HashPrefix,
        offsets: [u64; 2],
        segments: [&Segment<B, S>; 2],
        block: u64,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        let m = self.medium();
        let siblings =
            (0..2).all(|i| m.load(&segments[i].header.shape) == parent.half(i as u64).encode());
        let records: Vec<_> =
            segments.iter().flat_map(|segment| self.all_records(segment)).collect();
        let built = if siblings && records.len() <= Self::MERGE_BELOW {
            Some(self.build(block, Some(parent), records.into_iter()))
        } else {
            None
        };
        let Some(Ok(headers)) = built else {
            segments.iter().for_each(|segment| self.unlock_unchanged(segment));
            return Ok(false);
        };
        m.fence();
        m.note(Note::Scope("merge"));
        {
            let latch = self.expansion.directory.share();
            // The commit is the first entry of the *right* sibling: a shape of the parent's depth there cannot
            // be mistaken for a split that was not finished.
            let mut ranges = [parent.half(1), parent];
            if m.mutant("DA-4") {
                ranges.reverse();
            }
            for range in ranges {
                self.expansion.directory.point(range, block, &latch);
                m.fence();
            }
        }
        self.expansion.count_merge();
        self.unlock_all(self.segment(block)?, &headers);
        for (offset, segment) in offsets.into_iter().zip(segments) {
            self.chain_blocks(segment).into_iter().for_each(|bucket| {
                self.pool.retire(bucket, BUCKET_BYTES, guard);
            });
            self.pool.retire(offset, size_of::<Segment<B, S>>() as u64, guard);
        }
        Ok(true)
    }

    /// Tries to halve the directory once enough merges have happened to make it likely.
    fn halve_if_worthwhile(&self, guard: &Guard<'_>) -> Result<()> {
        let likely = 8 * self.expansion.segments() < 1 << self.expansion.directory.depth();
        if likely {
            match self.expansion.directory.halve(guard) {
                Err(error) if !error.is_no_space() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// What a split took before it locked anything.
struct SplitRoom {
    block: Option<u64>,
    directory: Option<Reserved>,
}
