//! Writing whole segments: a new one from a picture of it, an old one after a split or a crash.
//!
//! All of it works on segments that no other thread can touch.

use evermap_pm::medium::Note;
use evermap_pm::{Medium, Result};

use super::bucket::{
    Record, clear, foreign, free_slot, is_foreign, keys_of, set_filter, slots, tag_of, valid, write,
};
use super::layout::{
    CHAINED, FOREIGN, Geometry, Header, LINK_SLOTS, LOCKED, Line, Link, META, OFFSET, Segment,
    VALID, filter_bit, link_bit, valid_in,
};
use super::{HashPrefix, LineHash};
use crate::hash::segmented::{SegmentHeader, Segmented, chain};
use crate::key::Quotient;

/// The lines of a segment in ordinary memory. The metadata in their key words is the filter and
/// nothing else.
pub(crate) struct Picture<const L: usize, const N: usize> {
    lines: Box<[PicturedLine; L]>,
}

#[derive(Clone, Copy, Default)]
struct PicturedLine {
    keys: [u64; 4],
    words: [u64; 4],
}

/// A record that can go home: from a slot of one line into a slot of another.
struct WayHome {
    from: (usize, usize),
    to: (usize, usize),
    record: Record,
}

impl<const L: usize, const N: usize> Picture<L, N> {
    pub(super) fn empty() -> Self {
        Picture { lines: Box::new([PicturedLine::default(); L]) }
    }

    fn put(&mut self, at: usize, slot: usize, record: Record, mark: u64) {
        let line = &mut self.lines[at];
        line.words[slot] = record.word;
        if N < 4 {
            let top = Geometry::<L, N>::top(record.image);
            line.words[3] = Geometry::<L, N>::with_top(line.words[3], slot, top);
        }
        let meta = line.keys[slot] & META;
        line.keys[slot] = Geometry::<L, N>::tag(record.image) | VALID | mark | meta;
    }

    /// Records in the lines.
    pub(super) fn count(&self) -> usize {
        self.lines.iter().map(|line| valid(&line.keys).count_ones() as usize).sum()
    }

    /// Puts a record into its home line or its other one; `false` if both are full.
    pub(super) fn put_anywhere(&mut self, record: Record) -> bool {
        let home = Geometry::<L, N>::home(record.image);
        let tag = Geometry::<L, N>::tag(record.image);
        let other = Geometry::<L, N>::other(home, tag);
        if let Some(slot) = free_slot::<N>(&self.lines[home].keys) {
            self.put(home, slot, record, 0);
        } else if let Some(slot) = free_slot::<N>(&self.lines[other].keys) {
            self.put(other, slot, record, FOREIGN);
            self.lines[home].keys[2] |= filter_bit(tag);
        } else {
            return false;
        }
        true
    }

    /// Moves foreign records home where there is room, and makes all filters. Returns those that
    /// moved: the records' images are complete but for their top bits.
    fn bring_home(&mut self) -> Vec<WayHome> {
        let mut ways = Vec::new();
        for at in 0..L {
            for slot in slots(foreign(&self.lines[at].keys)) {
                let key = self.lines[at].keys[slot];
                let tag = tag_of(key);
                let home = Geometry::<L, N>::other(at, tag);
                let Some(free) = free_slot::<N>(&self.lines[home].keys) else {
                    self.lines[home].keys[2] |= filter_bit(tag);
                    continue;
                };
                let top = Geometry::<L, N>::top_in(self.lines[at].words[3], slot);
                let image = Geometry::<L, N>::image(if N < 4 { top } else { 0 }, tag, home);
                let record = Record { image, word: self.lines[at].words[slot] };
                self.put(home, free, record, 0);
                ways.push(WayHome { from: (at, slot), to: (home, free), record });
            }
        }
        // Not before: in a segment that lives, a slot is free only when its record is durable
        // elsewhere.
        for way in &ways {
            self.lines[way.from.0].keys[way.from.1] &= META;
        }
        ways
    }

    /// Notes that a record with this image is in the chain.
    fn note_chained(&mut self, image: u64) {
        self.lines[Geometry::<L, N>::home(image)].keys[2] |= CHAINED;
    }
}

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// Writes a segment of this prefix, with these records in its chain, into a fresh block, with
    /// every line locked, and flushes it without a fence.
    ///
    /// # Errors
    /// `NoSpace` where a chain is needed and cannot be had; what the chain took is given back.
    pub(super) fn build(
        &self,
        offset: u64,
        prefix: HashPrefix,
        picture: &Picture<L, N>,
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
        for (line, pictured) in segment.lines.iter().zip(picture.lines.iter()) {
            (0..4).for_each(|slot| m.store(&line.words[slot], pictured.words[slot]));
            m.store(&line.keys[0], pictured.keys[0] | LOCKED);
            (1..4).for_each(|slot| m.store(&line.keys[slot], pictured.keys[slot]));
            m.flush(line);
        }
        Ok(())
    }

    /// Writes the upper half of a segment that is being split, which the caller holds, into a new
    /// block: see [`build`](Self::build).
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn build_half(
        &self,
        offset: u64,
        upper: HashPrefix,
        moving: &mut Picture<L, N>,
        chained: &[Record],
    ) -> Result<()> {
        moving.bring_home();
        // There may be room now for what had to go to the chain.
        let mut left: Vec<Record> = Vec::new();
        for &record in chained {
            if !moving.put_anywhere(record) {
                moving.note_chained(record.image);
                left.push(record);
            }
        }
        self.build(offset, upper, moving, &left)
    }

    /// Writes records into new links, flushed without a fence. Returns the offset of the first
    /// link, or 0.
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

    /// Ends a split in its lower half, which is durably that already: clears what moved away, and
    /// lets foreign records go home. `staying` pictures the others, in their places.
    pub(super) fn settle(
        &self,
        segment: &Segment<L>,
        prefix: HashPrefix,
        mut staying: Picture<L, N>,
    ) {
        let m = self.medium();
        // No flush: the prefix tells that these do not belong here, whether or not a crash brings
        // them back. Every word is stored, the filter as none: which ones stay is random, and
        // guessing wrong takes longer than storing.
        for (line, pictured) in segment.lines.iter().zip(staying.lines.iter()) {
            let keys = keys_of(m, line);
            for slot in [0, 1, 3] {
                m.store(&line.keys[slot], pictured.keys[slot] | keys[slot] & META);
            }
            m.store(&line.keys[2], pictured.keys[2]);
        }
        let ways = staying.bring_home();
        if !ways.is_empty() {
            self.go_home(segment, &ways);
        }
        self.settle_chain(segment, prefix, &mut staying);
        for (line, pictured) in segment.lines.iter().zip(staying.lines.iter()) {
            set_filter(m, line, pictured.keys[2] & META);
        }
    }

    /// Pictures of the lower and the upper half of a segment of this depth, which the caller holds:
    /// every record in the line and the slot where it is, without filters.
    pub(super) fn picture_halves(&self, segment: &Segment<L>, depth: u32) -> [Picture<L, N>; 2] {
        let m = self.medium();
        let mut halves = [Picture::empty(), Picture::empty()];
        let [lower, upper] = &mut halves;
        let lines = segment.lines.iter().zip(lower.lines.iter_mut().zip(upper.lines.iter_mut()));
        for (line, (lower, upper)) in lines {
            let keys = keys_of(m, line);
            let words = [0, 1, 2, 3].map(|slot| m.load_relaxed(&line.words[slot]));
            for (slot, &key) in keys.iter().enumerate().take(N) {
                // Masks instead of branches: which half a record belongs to is random.
                let there = 0u64.wrapping_sub(u64::from(key & VALID != 0));
                let goes = 0u64.wrapping_sub(Geometry::<L, N>::half(key, words[3], slot, depth));
                lower.keys[slot] = key & !META & there & !goes;
                upper.keys[slot] = key & !META & there & goes;
            }
            (lower.words, upper.words) = (words, words);
        }
        halves
    }

    /// Moves records to their home lines, durably.
    fn go_home(&self, segment: &Segment<L>, ways: &[WayHome]) {
        let m = self.medium();
        for way in ways {
            let (line, slot) = (&segment.lines[way.to.0], way.to.1);
            write::<M, L, N>(m, line, slot, way.record, 0);
            m.flush(line);
        }
        // The copies are durable before any original goes.
        m.fence();
        for way in ways {
            let line = &segment.lines[way.from.0];
            clear(m, line, way.from.1);
            m.flush(line);
        }
        // And the originals are durably gone before anyone can remove a copy: else a crash could
        // bring them back.
        m.fence();
    }

    /// Clears what moved away from the chain, and notes in `staying` what did not.
    fn settle_chain(&self, segment: &Segment<L>, prefix: HashPrefix, staying: &mut Picture<L, N>) {
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

    /// Makes a segment that may have seen a crash what its slots and its prefix say, durably: drops
    /// records that do not belong, and copies that a move left behind; frees all locks and makes
    /// all filters anew.
    ///
    /// Nothing but tags, valid and foreign bits is believed.
    pub(super) fn rebuild(&self, segment: &Segment<L>, prefix: HashPrefix) {
        let m = self.medium();
        // The thread that stored it may have died before it was durable. Before anything is
        // dropped: the copy that stays may be the one that would be lost.
        m.note(Note::Harmless(
            "needed with a copy: \
             `a_copy_that_recovery_finds_is_durable_before_the_other_is_dropped`",
        ));
        m.persist(segment);
        let mut filters = [0u64; L];
        self.for_each_slot(segment, |at, slot, key, record| {
            let home = Geometry::<L, N>::home(record.image);
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
        // Durable before anyone acts on it: a copy that came back after the other one was removed
        // would be a key that came back.
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
            if N < 4 && m.load_relaxed(&line.keys[3]) & !META != 0 {
                clear(m, line, 3);
            }
        }
    }

    /// Returns whether a foreign record also sits in its home line: a crash interrupted its
    /// displacement or its way home. The two are identical, since no thread could change the record
    /// meanwhile; the one at home stays.
    fn is_copy(
        &self,
        segment: &Segment<L>,
        home: usize,
        prefix: HashPrefix,
        record: Record,
    ) -> bool {
        let (m, line) = (self.medium(), &segment.lines[home]);
        let keys = keys_of(m, line);
        let top = prefix.pattern >> prefix.depth.saturating_sub(Geometry::<L, N>::DEPTH_MIN);
        slots(valid(&keys) & Geometry::<L, N>::SLOTS).filter(|&slot| !is_foreign(keys[slot])).any(
            |slot| {
                let other = self.record_in(line, home, slot, keys[slot], top);
                other.image == record.image && (other.word == record.word || !K::WORDS_ARE_RECORDS)
            },
        )
    }

    /// Does for the chain what [`rebuild`](Self::rebuild) does. A word that leads to no link, or
    /// back, ends it.
    fn rebuild_chain(&self, segment: &Segment<L>, prefix: HashPrefix, filters: &mut [u64; L]) {
        let m = self.medium();
        chain::rebuild(m, &segment.header.chain, |link: &Link| {
            let mut next = m.load(&link.next) & (OFFSET | 0b111 << 48);
            let there = valid_in(next);
            for slot in (0..LINK_SLOTS).filter(|&slot| there >> slot & 1 == 1) {
                let image = m.load_relaxed(&link.images[slot]);
                if prefix.covers(image) {
                    filters[Geometry::<L, N>::home(image)] |= CHAINED;
                } else {
                    next &= !link_bit(slot);
                }
            }
            if next != m.load(&link.next) {
                m.store(&link.next, next);
            }
            // Changed or not: a thread may have stored what is there and died before it was
            // durable.
            m.note(Note::Harmless(
                "needed with a chain: \
                 `a_record_that_recovery_finds_is_durable_before_it_is_used`",
            ));
            m.flush(link);
        });
    }

    /// Every record of a segment that the caller holds.
    pub(super) fn all_records(&self, segment: &Segment<L>) -> Vec<Record> {
        let mut records = Vec::with_capacity(L * N);
        self.for_each_slot(segment, |_, _, _, record| records.push(record));
        for link in chain::links::<Link, M>(self.medium(), &segment.header.chain) {
            records.extend(self.records_in(link).map(|(_, record)| record));
        }
        records
    }
}

const _: () = assert!(std::mem::offset_of!(Line, words) == 32);
