//! Splitting, merging, doubling and halving.
//!
//! No persistent word outside the reachable structure ever names a block: a new segment is complete and durable
//! before the directory names it, and a crash before that forgets it. What a crash can leave half done is only
//! the other entries of a directory range, and records that no longer belong: recovery sees both from the first
//! entry of the range and from the segment's shape.

use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Result};

use super::bucket::{Record, keys_of, try_lock, valid};
use super::layout::{Geometry, Header, Link, OFFSET, Segment, valid_in};
use super::rebuild::Picture;
use super::segment::CHAIN_MAX;
use super::{HashPrefix, LineHash, is_segment};
use crate::hash::directory::Reserved;
use crate::hash::hash_prefix::DEPTH_MAX;
use crate::key::Quotient;

/// How an attempt to split ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    /// It was split, by us or by someone else: try again.
    Done,
    /// A split would not help, or be out of proportion: use the chain.
    Refused,
}

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// Bytes of a directory that is always allowed.
    const FREE_DIRECTORY: u64 = if L < 64 { 256 } else { 64 << 10 };

    /// Records in a segment below which it is not split: two of its lines are full while the others are nearly
    /// empty, which good images never lead to. Without this bound, keys of equal low bits would take a segment
    /// for each handful.
    const SPLIT_FROM: usize = L * N / 4;

    /// Splits a segment that serves `image`.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    #[cold]
    pub(super) fn split(
        &self,
        segment: &Segment<L>,
        image: u64,
        guard: &Guard<'_>,
    ) -> Result<Split> {
        let m = self.medium();
        let Some(shape) = HashPrefix::decode(m.load(&segment.header.shape)) else {
            // Damaged: the next access decides.
            return Ok(Split::Done);
        };
        // Everything is reserved before anything is locked.
        let doubles = shape.depth >= self.directory.depth();
        if doubles && !self.may_double() {
            return Ok(Split::Refused);
        }
        let mut room = SplitRoom { block: Some(self.allocate_segment()?), directory: None };
        if doubles {
            match self.directory.reserve_double(shape.depth) {
                Ok(reserved) => room.directory = Some(reserved),
                Err(error) => {
                    self.give_back(room);
                    return Err(error);
                }
            }
        }
        let result = match self.lock_all(segment, image) {
            Ok(true) => self.split_locked(segment, shape, &mut room, guard),
            Ok(false) => Ok(Split::Done),
            Err(error) => Err(error),
        };
        self.give_back(room);
        result
    }

    fn give_back(&self, room: SplitRoom) {
        room.directory.into_iter().for_each(|reserved| self.directory.cancel(reserved));
        room.block.into_iter().for_each(|block| self.pool.free_unpublished(block));
    }

    fn allocate_segment(&self) -> Result<u64> {
        self.pool.allocate_exact(size_of::<Segment<L>>() as u64)
    }

    /// Whether a directory of twice the size is in proportion: at most a quarter of the segments' bytes. Without
    /// this bound, keys with equal top bits would double it for ever.
    fn may_double(&self) -> bool {
        let depth = self.directory.depth() + 1;
        let segments = self.segments() * size_of::<Segment<L>>() as u64;
        depth <= DEPTH_MAX && 8 << depth <= Self::FREE_DIRECTORY.max(segments / 4)
    }

    /// With every line of the segment locked; releases them.
    fn split_locked(
        &self,
        segment: &Segment<L>,
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
        let (lower, upper) = (shape.half(0), shape.half(1));
        let [staying, moving] = self.picture_halves(segment, shape.depth);
        let (stay, move_) = (staying.count(), moving.count());
        let chained: Vec<Record> = self
            .chain(segment)
            .flat_map(|link| self.records_in(link))
            .map(|(_, record)| record)
            .filter(|record| upper.covers(record.image))
            .collect();
        let one_sided = (stay == 0 || move_ == 0) && room.directory.is_some();
        if one_sided || stay + move_ < Self::SPLIT_FROM {
            // No key would be separated from another, but the directory would double: this is how equal images
            // look. Or there is hardly anything to separate.
            self.unlock_unchanged(segment);
            return Ok(Split::Refused);
        }
        let block = room.block.take().expect("reserved");
        if let Err(error) = self.build_upper(block, upper, moving, &chained) {
            room.block = Some(block);
            self.unlock_unchanged(segment);
            return Err(error);
        }
        m.fence();
        // The new segment is complete and durable, with all its lines locked: others may reach it as soon as the
        // directory names it, but act on it only once that is durable too.
        if !self.directory.publish(upper, block | self.stamp, &mut room.directory, guard) {
            // The directory was halved meanwhile, and there is no room for doubling it: begin again.
            self.drop_unpublished(block);
            self.unlock_unchanged(segment);
            return Ok(Split::Done);
        }
        m.store(&segment.header.shape, lower.encode());
        m.note(Note::Harmless(
            "needed by other threads: `a_split_is_durable_whatever_comes_of_the_record`",
        ));
        m.persist(&segment.header.shape);
        // Only now, with the move durable, do the moved records go from here.
        self.settle(segment, lower, staying);
        self.trim_chain(segment, guard);
        self.count_split();
        self.unlock_changed(self.segment(block)?);
        self.unlock_changed(segment);
        Ok(Split::Done)
    }

    /// Frees a built segment that was never named, with its chain.
    fn drop_unpublished(&self, block: u64) {
        if let Ok(segment) = self.segment(block) {
            let links = self.chain_blocks(segment);
            links.into_iter().for_each(|link| self.pool.free_unpublished(link));
        }
        self.pool.free_unpublished(block);
    }

    /// Unlinks the empty links of a segment's chain, durably, and retires them. Nobody else may touch the segment.
    fn trim_chain(&self, segment: &Segment<L>, guard: &Guard<'_>) {
        let m = self.medium();
        let mut cell = &segment.header.chain;
        for _ in 0..CHAIN_MAX {
            let word = m.load(cell);
            let offset = word & OFFSET;
            let Some(link) = (offset != 0).then(|| m.at::<Link>(offset)).flatten() else {
                return;
            };
            let next = m.load(&link.next);
            if valid_in(next) == 0 {
                m.store(cell, word & !OFFSET | next & OFFSET);
                m.note(Note::Harmless(
                    "needed once the block is something else: `an_empty_link_of_a_chain_is_unlinked_for_good`",
                ));
                m.persist(cell);
                self.pool.retire(offset, size_of::<Link>() as u64, guard);
            } else {
                cell = &link.next;
            }
        }
    }

    /// Locks every line of a segment that served `image`; `false`, holding nothing, if it does not any more.
    ///
    /// Lines are locked in order, and whoever holds a line only ever tries to lock others, so this cannot deadlock.
    /// A segment that was merged away stays locked for ever, which the directory tells.
    pub(super) fn lock_all(&self, segment: &Segment<L>, image: u64) -> Result<bool> {
        for at in 0..L {
            match self.lock_in_turn(segment, at, image) {
                Ok(true) => {}
                other => {
                    self.unlock_lines(&segment.lines[..at]);
                    return other;
                }
            }
        }
        Ok(true)
    }

    /// Waits for one line; `false`, not holding it, if the segment does not serve `image` any more.
    fn lock_in_turn(&self, segment: &Segment<L>, at: usize, image: u64) -> Result<bool> {
        let m = self.medium();
        let serves = || self.locate(image) == m.offset_of(segment);
        let line = &segment.lines[at];
        // Most are free; only the first tells whether the segment is still the one.
        if at > 0
            && let Some(super::Held { .. }) = try_lock(m, line)
        {
            return Ok(true);
        }
        let mut waiting = self.waiting();
        loop {
            if let Some(held) = try_lock(m, line) {
                // Stays locked until the caller unlocks all. Whoever holds a line keeps the segment in the
                // directory.
                let serves = at > 0 || serves();
                if !serves {
                    held.release(m);
                }
                return Ok(serves);
            }
            if at == 0 && !serves() {
                return Ok(false);
            }
            waiting.wait(segment)?;
        }
    }

    /// Releases lines as they were.
    fn unlock_lines(&self, lines: &[super::layout::Line]) {
        lines.iter().for_each(|line| super::Held { line }.release(self.medium()));
    }

    /// Releases every line as it was.
    pub(super) fn unlock_unchanged(&self, segment: &Segment<L>) {
        self.unlock_lines(&segment.lines);
    }

    /// Releases every line after changes.
    fn unlock_changed(&self, segment: &Segment<L>) {
        segment.lines.iter().for_each(|line| super::Held { line }.release_changed(self.medium()));
    }

    /// Merges the segment that serves `image` with its sibling if together they would be nearly empty, and halves
    /// the directory when that has become possible. Called after removals.
    #[cold]
    pub(super) fn merge_if_sparse(
        &self,
        segment: &Segment<L>,
        image: u64,
        guard: &Guard<'_>,
    ) -> Result<()> {
        // Before the sweep is through, segments may be stale and ranges unfinished.
        if !self.pool.is_swept() {
            return Ok(());
        }
        let m = self.medium();
        let Some(shape) = HashPrefix::decode(m.load(&segment.header.shape)) else { return Ok(()) };
        let Some(parent) = shape.parent() else { return Ok(()) };
        if parent.depth < Geometry::<L, N>::DEPTH_MIN || !shape.covers(image) {
            return Ok(());
        }
        let halves = [parent.half(0).first_hash(), parent.half(1).first_hash()];
        let entries = halves.map(|first| self.directory.locate(first));
        let [Some(left), Some(right)] = entries.map(|entry| self.fresh(entry)) else {
            return Ok(());
        };
        if entries[0] == entries[1] || self.count(left) + self.count(right) > Self::MERGE_BELOW {
            return Ok(());
        }
        let block = match self.allocate_segment() {
            Ok(block) => block,
            // Merging is for saving space; without any, things stay as they are.
            Err(error) if error.is_no_space() => return Ok(()),
            Err(error) => return Err(error),
        };
        let merged = self.merge_siblings(parent, [left, right], halves, block, guard);
        if !matches!(merged, Ok(true)) {
            self.pool.free_unpublished(block);
        }
        if merged? { self.halve_if_worthwhile(guard) } else { Ok(()) }
    }

    /// Records in two siblings together at which they are merged: a quarter of one segment.
    const MERGE_BELOW: usize = L * N / 4;

    /// Records in a segment, roughly if it is not locked.
    fn count(&self, segment: &Segment<L>) -> usize {
        let m = self.medium();
        segment.lines.iter().map(|line| valid(&keys_of(m, line)).count_ones() as usize).sum()
    }

    /// Merges two segments into `block`; `false`, with nothing changed, where they have changed meanwhile.
    fn merge_siblings(
        &self,
        parent: HashPrefix,
        segments: [&Segment<L>; 2],
        halves: [u64; 2],
        block: u64,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        // In the order of their images, as every merge does: no deadlock.
        if !self.lock_all(segments[0], halves[0])? {
            return Ok(false);
        }
        match self.lock_all(segments[1], halves[1]) {
            Ok(true) => self.merge_locked(parent, segments, block, guard),
            other => {
                self.unlock_unchanged(segments[0]);
                other
            }
        }
    }

    /// With both siblings locked; releases them unless it merges them, which leaves them locked for ever.
    fn merge_locked(
        &self,
        parent: HashPrefix,
        segments: [&Segment<L>; 2],
        block: u64,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        let m = self.medium();
        let siblings =
            (0..2).all(|i| m.load(&segments[i].header.shape) == parent.half(i as u64).encode());
        let records: Vec<_> =
            segments.iter().flat_map(|segment| self.all_records(segment)).collect();
        let mut picture = Picture::empty();
        let fits = siblings
            && records.len() <= Self::MERGE_BELOW
            && records.iter().all(|&record| picture.put_anywhere(record));
        if !fits || self.build(block, parent, &picture, &[]).is_err() {
            segments.iter().for_each(|segment| self.unlock_unchanged(segment));
            return Ok(false);
        }
        m.fence();
        {
            let latch = self.directory.share();
            // The commit is the first entry of the *right* sibling: a shape of the parent's depth there cannot
            // be mistaken for a split that was not finished.
            self.directory.point(parent.half(1), block | self.stamp, &latch);
            self.directory.point(parent, block | self.stamp, &latch);
            m.note(Note::Harmless(
                "needed once the blocks are something else: `a_merge_is_durable_before_its_halves_are_retired`",
            ));
            m.fence();
        }
        self.count_merge();
        self.unlock_changed(self.segment(block)?);
        for segment in segments {
            for link in self.chain_blocks(segment) {
                self.pool.retire(link, size_of::<Link>() as u64, guard);
            }
            self.pool.retire(m.offset_of(segment), size_of::<Segment<L>>() as u64, guard);
        }
        Ok(true)
    }

    /// Offsets of a segment's links.
    pub(super) fn chain_blocks(&self, segment: &Segment<L>) -> Vec<u64> {
        self.chain(segment).map(|link| self.medium().offset_of(link)).collect()
    }

    /// Tries to halve the directory once enough merges have happened to make it likely.
    fn halve_if_worthwhile(&self, guard: &Guard<'_>) -> Result<()> {
        let depth = self.directory.depth();
        let likely = depth > Geometry::<L, N>::DEPTH_MIN && 8 * self.segments() < 1 << depth;
        if likely {
            match self.directory.halve(guard) {
                Err(error) if !error.is_no_space() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The shape of the segment at `offset`, if there is one.
    pub(super) fn shape_at(&self, offset: u64) -> Option<HashPrefix> {
        let m = self.medium();
        let header = m.at::<Header>(offset).filter(|header| is_segment(m, header))?;
        HashPrefix::decode(m.load(&header.shape))
    }
}

/// What a split took before it locked anything.
struct SplitRoom {
    block: Option<u64>,
    directory: Option<Reserved>,
}
