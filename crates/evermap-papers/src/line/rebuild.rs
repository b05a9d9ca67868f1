//! Writing whole segments: a new one from a buffer, or an existing one after a split or a crash.
//!
//! No other thread can access the segment meanwhile.

use evermap_index::hash::segmented::{SegmentHeader, Segmented, chain};
use evermap_index::key::Quotient;
use evermap_pm::medium::Note;
use evermap_pm::{Medium, Result};

use super::bucket::{
    Record, clear, foreign, free_slot, is_foreign, keys_of, set_filter, slots, tag_of, valid, write,
};
use super::layout::{
    CHAINED, FOREIGN, Geometry, Header, LINK_SLOTS, LOCKED, Line, Link, META, OFFSET, Segment,
    VALID, filter_bit, holds_tops, link_bit, valid_in,
};
use super::{HashPrefix, LineHash};

/// The lines of a segment in ordinary memory. Of the metadata, their key words contain only the
/// filter and the bit for the chain.
pub struct SegmentBuffer<const L: usize, const SMALL: bool> {
    lines: Box<[LineBuffer; L]>,
}

#[derive(Clone, Copy, Default)]
struct LineBuffer {
    keys: [u64; 4],
    words: [u64; 4],
}

/// The move of a record to its home line: from a slot of one line to a slot of another.
struct HomeMove {
    from: (usize, usize),
    to: (usize, usize),
    record: Record,
}

impl<const L: usize, const SMALL: bool> SegmentBuffer<L, SMALL> {
    /// Returns the lines of a segment of this depth that has no records.
    pub(super) fn empty(depth: u32) -> Self {
        let mut line = LineBuffer::default();
        if Geometry::<L, SMALL>::is_shallow(depth) {
            line.keys[3] = FOREIGN;
        }
        // Not `Box::new`, which would make the array on the stack and copy it.
        let lines: Box<[LineBuffer]> = vec![line; L].into();
        let Ok(lines) = lines.try_into() else { unreachable!("it has this length") };
        SegmentBuffer { lines }
    }

    fn put(&mut self, at: usize, slot: usize, record: Record, mark: u64) {
        let line = &mut self.lines[at];
        line.words[slot] = record.word;
        if SMALL && holds_tops(line.keys[3]) {
            let top = Geometry::<L, SMALL>::top(record.image);
            line.words[3] = Geometry::<L, SMALL>::with_top(line.words[3], slot, top);
        }
        let meta = line.keys[slot] & META;
        line.keys[slot] = Geometry::<L, SMALL>::tag(record.image) | VALID | mark | meta;
    }

    /// Returns the number of records in the lines.
    pub(super) fn count(&self) -> usize {
        self.lines.iter().map(|line| valid(&line.keys).count_ones() as usize).sum()
    }

    /// Stores a record in its home line or its other one. Returns `false` if both are full.
    pub(super) fn put_anywhere(&mut self, record: Record) -> bool {
        let home = Geometry::<L, SMALL>::home(record.image);
        let tag = Geometry::<L, SMALL>::tag(record.image);
        let other = Geometry::<L, SMALL>::other(home, tag);
        if let Some(slot) = free_slot(&self.lines[home].keys) {
            self.put(home, slot, record, 0);
        } else if let Some(slot) = free_slot(&self.lines[other].keys) {
            self.put(other, slot, record, FOREIGN);
            self.lines[home].keys[2] |= filter_bit(tag);
        } else {
            return false;
        }
        true
    }

    /// Moves foreign records to their home lines if there are free slots, and sets all filters.
    /// Returns the moves. The top bits of their records' images mean something only in a shallow
    /// segment.
    fn move_home(&mut self) -> Vec<HomeMove> {
        let mut moves = Vec::new();
        for at in 0..L {
            for slot in slots(foreign(&self.lines[at].keys)) {
                let key = self.lines[at].keys[slot];
                let tag = tag_of(key);
                let home = Geometry::<L, SMALL>::other(at, tag);
                let Some(free) = free_slot(&self.lines[home].keys) else {
                    self.lines[home].keys[2] |= filter_bit(tag);
                    continue;
                };
                let top = Geometry::<L, SMALL>::top_in(self.lines[at].words[3], slot);
                let top = if holds_tops(self.lines[at].keys[3]) { top } else { 0 };
                let image = Geometry::<L, SMALL>::image(top, tag, home);
                let record = Record { image, word: self.lines[at].words[slot] };
                self.put(home, free, record, 0);
                moves.push(HomeMove { from: (at, slot), to: (home, free), record });
            }
        }
        // Only now: in the segment itself, the slots are free only once the moved records are
        // durable in their home lines.
        for moved in &moves {
            self.lines[moved.from.0].keys[moved.from.1] &= META;
        }
        moves
    }

    /// Marks the home line of a record that is in the chain.
    fn note_chained(&mut self, image: u64) {
        self.lines[Geometry::<L, SMALL>::home(image)].keys[2] |= CHAINED;
    }
}

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> LineHash<K, M, L, SMALL> {
    /// Writes a segment with this prefix, and with these records in its chain, into a new block,
    /// with every line locked, and flushes it without a fence.
    ///
    /// # Errors
    /// `NoSpace` if a chain is needed and cannot be allocated; nothing is allocated then.
    pub(super) fn build(
        &self,
        offset: u64,
        prefix: HashPrefix,
        buffer: &SegmentBuffer<L, SMALL>,
        chained: &[Record],
    ) -> Result<()> {
        let m = self.medium();
        let segment = self.segment(offset)?;
        let chain = self.build_chain(chained)?;
        let header = &segment.header;
        m.store(&header.magic, Header::MAGIC);
        m.store(&header.prefix, prefix.encode());
        m.store(&header.chain, chain);
        m.store_transient(&header.chain_lock, 0);
        m.store_transient(&header.generation, self.core.generation);
        m.flush(header);
        for (line, buffered) in segment.lines.iter().zip(buffer.lines.iter()) {
            (0..4).for_each(|slot| m.store(&line.words[slot], buffered.words[slot]));
            m.store(&line.keys[0], buffered.keys[0] | LOCKED);
            (1..4).for_each(|slot| m.store(&line.keys[slot], buffered.keys[slot]));
            m.flush(line);
        }
        Ok(())
    }

    /// Writes the upper half of a segment that is being split, which the caller has locked, into a
    /// new block: see [`build`](Self::build).
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn build_half(
        &self,
        offset: u64,
        upper: HashPrefix,
        moving: &mut SegmentBuffer<L, SMALL>,
        chained: &[Record],
    ) -> Result<()> {
        moving.move_home();
        // Records of the chain may now fit into the lines.
        let mut left: Vec<Record> = Vec::new();
        for &record in chained {
            if !moving.put_anywhere(record) {
                moving.note_chained(record.image);
                left.push(record);
            }
        }
        self.build(offset, upper, moving, &left)
    }

    /// Writes records into the links of a new chain and flushes them without a fence. Returns the
    /// offset of the first link, or 0 if there are no records.
    fn build_chain(&self, records: &[Record]) -> Result<u64> {
        let (m, pool) = (self.medium(), &self.core.pool);
        let allocate = || pool.allocate(size_of::<Link>() as u64);
        chain::build(pool, records, LINK_SLOTS, allocate, |link: &Link, records, offset| {
            let mut next = offset;
            for (slot, record) in records.iter().enumerate() {
                m.store(&link.images[slot], record.image);
                m.store(&link.words[slot], record.word);
                next |= link_bit(slot);
            }
            m.store(&link.next, next);
            m.flush(link);
        })
    }

    /// The end of a split: removes the records that were moved from the lower half, whose prefix is
    /// durable already, and moves foreign records to their home lines. `staying` contains the
    /// records that stay, in their present slots.
    pub(super) fn settle(
        &self,
        segment: &Segment<L>,
        prefix: HashPrefix,
        mut staying: SegmentBuffer<L, SMALL>,
    ) {
        let m = self.medium();
        // Not flushed: if removed records reappear after a crash, they do not have the segment's
        // prefix. Stores every key word, with an empty filter: which records stay is random, and
        // mispredicted branches would take longer than the stores. The last word last: as long as
        // it says so, the line holds the top bits by which recovery recognizes what was removed.
        for (line, buffered) in segment.lines.iter().zip(staying.lines.iter()) {
            let keys = keys_of(m, line);
            let meta = [keys[0] & META, keys[1] & META, 0, keys[3] & META];
            for (slot, meta) in meta.into_iter().enumerate() {
                m.store(&line.keys[slot], buffered.keys[slot] | meta);
            }
        }
        let moves = staying.move_home();
        if !moves.is_empty() {
            self.apply_moves(segment, &moves);
        }
        self.settle_chain(segment, prefix, &mut staying);
        for (line, buffered) in segment.lines.iter().zip(staying.lines.iter()) {
            set_filter(m, line, buffered.keys[2] & META);
        }
    }

    /// Returns the lower and the upper half of a segment of this depth, which the caller has
    /// locked: every record in its present line and slot, without filters.
    pub(super) fn copy_halves(
        &self,
        segment: &Segment<L>,
        depth: u32,
    ) -> [SegmentBuffer<L, SMALL>; 2] {
        let m = self.medium();
        let mut halves = [SegmentBuffer::empty(depth + 1), SegmentBuffer::empty(depth + 1)];
        let [lower, upper] = &mut halves;
        let lines = segment.lines.iter().zip(lower.lines.iter_mut().zip(upper.lines.iter_mut()));
        for (line, (lower, upper)) in lines {
            let keys = keys_of(m, line);
            let words = [0, 1, 2, 3].map(|slot| m.load_relaxed(&line.words[slot]));
            for (slot, &key) in keys.iter().enumerate() {
                // Masks instead of branches: the half to which a record belongs is random.
                let there = 0u64.wrapping_sub(u64::from(key & VALID != 0));
                let goes =
                    0u64.wrapping_sub(Geometry::<L, SMALL>::half(key, words[3], slot, depth));
                lower.keys[slot] |= key & !META & there & !goes;
                upper.keys[slot] |= key & !META & there & goes;
            }
            (lower.words, upper.words) = (words, words);
        }
        halves
    }

    /// Moves records to their home lines, durably.
    fn apply_moves(&self, segment: &Segment<L>, moves: &[HomeMove]) {
        let m = self.medium();
        for moved in moves {
            let (line, slot) = (&segment.lines[moved.to.0], moved.to.1);
            write::<M, L, SMALL>(m, line, slot, moved.record, 0);
            m.flush(line);
        }
        // The copies are durable before an original is removed.
        m.fence();
        for moved in moves {
            let line = &segment.lines[moved.from.0];
            clear(m, line, moved.from.1);
            m.flush(line);
        }
        // The removal of the originals is durable before another thread can remove a copy:
        // otherwise the original could reappear after a crash.
        m.fence();
    }

    /// Removes the moved records from the chain, and marks in `staying` the home lines of the
    /// others.
    fn settle_chain(
        &self,
        segment: &Segment<L>,
        prefix: HashPrefix,
        staying: &mut SegmentBuffer<L, SMALL>,
    ) {
        let m = self.medium();
        for link in chain::links::<Link, M>(self.medium(), &segment.header.chain) {
            let mut next = m.load(&link.next);
            for (slot, record) in self.records_in(link) {
                if prefix.covers(record.image) {
                    staying.note_chained(record.image);
                } else {
                    next &= !link_bit(slot);
                }
            }
            // No flush, as for the lines.
            m.store(&link.next, next);
        }
    }

    /// Makes a segment consistent after a crash, durably: drops records that do not have this
    /// prefix, and copies that an interrupted move has left; releases all locks, and computes all
    /// filters again.
    ///
    /// Relies only on records and their valid and foreign bits.
    pub(super) fn rebuild(&self, segment: &Segment<L>, prefix: HashPrefix) {
        let m = self.medium();
        // An earlier process may have stored the contents and terminated before they were durable.
        // They must be durable before a copy is dropped, since a crash could lose the copy that
        // stays.
        m.note(Note::Harmless(
            "needed with a copy: \
             `a_copy_that_recovery_finds_is_durable_before_the_other_is_dropped`",
        ));
        m.persist(segment);
        if Geometry::<L, SMALL>::is_shallow(prefix.depth) {
            self.mark_shallow(segment);
        }
        let mut filters = [0u64; L];
        self.for_each_slot(segment, |at, slot, key, record| {
            let home = Geometry::<L, SMALL>::home(record.image);
            let line = &segment.lines[at];
            let belongs = prefix.covers(record.image);
            if !belongs || is_foreign(key) && self.is_copy(segment, home, prefix, record) {
                clear(m, line, slot);
                m.note(Note::Harmless(
                    "needed by other threads: \
                     `what_recovery_drops_is_gone_before_the_segment_is_used`",
                ));
                m.flush(line);
            } else if is_foreign(key) {
                filters[home] |= filter_bit(tag_of(key));
            }
        });
        self.rebuild_chain(segment, prefix, &mut filters);
        // Durable before the segment is used: if another thread removes a record, its dropped copy
        // must not reappear after a crash.
        m.note(Note::Harmless(
            "needed by other threads: \
             `what_recovery_drops_is_gone_before_the_segment_is_used`",
        ));
        m.fence();
        m.store_transient(&segment.header.chain_lock, 0);
        for (line, filter) in segment.lines.iter().zip(filters) {
            set_filter(m, line, filter);
            let first = m.load_relaxed(&line.keys[0]);
            if first & LOCKED != 0 {
                m.store_transient(&line.keys[0], first & !LOCKED);
            }
        }
        if !Geometry::<L, SMALL>::is_shallow(prefix.depth) {
            self.free_slots_without_records(segment);
        }
    }

    /// Marks the fourth slots of all lines of a shallow segment, which only damage can have
    /// changed.
    fn mark_shallow(&self, segment: &Segment<L>) {
        let m = self.medium();
        for line in &segment.lines {
            let fourth = m.load_relaxed(&line.keys[3]);
            if !holds_tops(fourth) {
                m.store(&line.keys[3], fourth & META | FOREIGN);
            }
        }
    }

    /// Frees the slots that held top bits when a segment was still shallow: a crash can have
    /// interrupted the split after which it is not.
    fn free_slots_without_records(&self, segment: &Segment<L>) {
        let m = self.medium();
        for line in &segment.lines {
            for slot in (0..4).filter(|&slot| holds_tops(m.load_relaxed(&line.keys[slot]))) {
                clear(m, line, slot);
            }
        }
    }

    /// Returns whether a foreign record has a copy in its home line: a crash interrupted its move.
    /// The two are identical, since no thread could change the record meanwhile. Recovery keeps the
    /// one in the home line.
    fn is_copy(
        &self,
        segment: &Segment<L>,
        home: usize,
        prefix: HashPrefix,
        record: Record,
    ) -> bool {
        let (m, line) = (self.medium(), &segment.lines[home]);
        let keys = keys_of(m, line);
        let top = Geometry::<L, SMALL>::top_of(prefix);
        slots(valid(&keys)).filter(|&slot| !is_foreign(keys[slot])).any(|slot| {
            let other = self.record_in(line, home, slot, &keys, top);
            other.image == record.image && (other.word == record.word || !K::WORDS_ARE_RECORDS)
        })
    }

    /// Does for the chain what [`rebuild`](Self::rebuild) does for the lines. Ends the chain at a
    /// word that refers to no link, or to an earlier one of the chain.
    fn rebuild_chain(&self, segment: &Segment<L>, prefix: HashPrefix, filters: &mut [u64; L]) {
        let m = self.medium();
        chain::rebuild(m, &segment.header.chain, |link: &Link| {
            let mut next = m.load(&link.next) & (OFFSET | 0b111 << 48);
            let there = valid_in(next);
            for slot in (0..LINK_SLOTS).filter(|&slot| there >> slot & 1 == 1) {
                let image = m.load_relaxed(&link.images[slot]);
                if prefix.covers(image) {
                    filters[Geometry::<L, SMALL>::home(image)] |= CHAINED;
                } else {
                    next &= !link_bit(slot);
                }
            }
            if next != m.load(&link.next) {
                m.store(&link.next, next);
            }
            // Flushed even if unchanged: an earlier process may have stored the link and terminated
            // before it was durable.
            m.note(Note::Harmless(
                "needed with a chain: \
                 `a_record_that_recovery_finds_is_durable_before_it_is_used`",
            ));
            m.flush(link);
        });
    }

    /// Returns every record of a segment that the caller has locked.
    pub(super) fn all_records(&self, segment: &Segment<L>) -> Vec<Record> {
        let mut records = Vec::with_capacity(Self::SLOTS);
        self.for_each_slot(segment, |_, _, _, record| records.push(record));
        for link in chain::links::<Link, M>(self.medium(), &segment.header.chain) {
            records.extend(self.records_in(link).map(|(_, record)| record));
        }
        records
    }
}

const _: () = assert!(std::mem::offset_of!(Line, words) == 32);
