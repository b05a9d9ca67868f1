//! The hand: it passes over the records in the order in which they are stored, and evicts those
//! that were not read since it last came by.
//!
//! This is a CLOCK with a frequency of two bits for each record. The order is that of extents, and
//! of the blocks in each, instead of a queue of records: so it takes no memory and needs no
//! recovery, and what is evicted together is free in one place, where the next records are stored
//! together.
//!
//! A block may be anything: a record, of this map or another, one that was removed, or a part of an
//! index. So the key that a record in it would have is looked up. Only if the index names this very
//! block for that key, under a guard, is it a record, and nothing else until the guard ends.

use std::sync::atomic::Ordering::Relaxed;

use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_index::{BATCH_KEYS, Guard};
use evermap_pm::Medium;

use super::{Evicted, Manner};
use crate::ops::commit::Verdict;
use crate::record::Record;
use crate::{Evermap, Map, Result};

/// The maximum number of blocks that are examined before other threads get their turn.
const TOGETHER: u64 = 8 * BATCH_KEYS as u64;
/// A record that was stored after this part of all records, counted in changes, is new: a reader
/// may still come for it.
const NEW_PART: u64 = 10;

/// Where the hand is.
pub(super) struct Hand {
    /// The extent after the one that it is in.
    next: u64,
    /// The blocks of the extent that are still to be passed, the last one first.
    blocks: Vec<u64>,
    block_size: u64,
}

impl Hand {
    pub(super) fn new() -> Self {
        Hand { next: 0, blocks: Vec::new(), block_size: 0 }
    }

    /// Goes on to the next extent, behind the last one to the first. Returns the bytes of free
    /// blocks in it, or `None` if there is no extent.
    fn advance<M: Medium>(&mut self, db: &Evermap<M>) -> Option<u64> {
        let heap = db.file.pool.heap();
        let extent = heap.extent_from(self.next).or_else(|| heap.extent_from(0))?;
        self.next = extent.next;
        self.block_size = extent.block_size;
        self.blocks.clear();
        self.blocks.extend(extent.offsets());
        self.blocks.reverse();
        Some(u64::from(extent.free) * extent.block_size)
    }
}

/// What the hand has passed over.
#[derive(Clone, Copy, Default)]
pub(super) struct Passed {
    /// Bytes of blocks, free ones included.
    pub(super) bytes: u64,
}

/// A record that was evicted.
pub(super) struct Event {
    key: Vec<u8>,
    value_len: usize,
    bytes: u64,
    idle: u32,
    fetched: bool,
}

impl Event {
    pub(super) fn show(&self, listener: &dyn Fn(&Evicted<'_>)) {
        let Event { ref key, value_len, bytes, idle, fetched } = *self;
        listener(&Evicted { key, value_len, bytes, idle, fetched });
    }
}

/// What is to be done with records.
struct Judge<'j> {
    /// The largest frequency of records that are evicted.
    bar: u16,
    /// Records with this CAS id and later ones are new.
    new_from: u64,
    /// Records with a smaller CAS id are flushed.
    mark: u64,
    now: u32,
    manner: Manner,
    /// `None` if nobody listens.
    events: Option<&'j mut Vec<Event>>,
}

impl<M: Medium> Evermap<M> {
    /// Has the hand pass over some blocks of one extent, of about `most` bytes, and evict records
    /// whose frequency is `bar` at most.
    pub(super) fn pass(
        &self,
        hand: &mut Hand,
        most: u64,
        bar: u16,
        manner: Manner,
        events: &mut Vec<Event>,
    ) -> Result<Passed> {
        let (map, mut passed) = (self.default_map(), Passed::default());
        if hand.blocks.is_empty() {
            let Some(free) = hand.advance(self) else { return Ok(passed) };
            passed.bytes += free;
        }
        let records = map.inner.counters.totals().0.records;
        let mut judge = Judge {
            bar,
            new_from: self.file.cas_counter.next().saturating_sub(records / NEW_PART),
            mark: map.inner.flush.mark(),
            now: self.file.clock.now(),
            manner,
            events: self.file.maintenance.evictor.is_watched.load(Relaxed).then_some(events),
        };
        let mut left = (most / hand.block_size.max(1)).clamp(1, TOGETHER) as usize;
        while left > 0 && !hand.blocks.is_empty() {
            let from = hand.blocks.len().saturating_sub(left.min(BATCH_KEYS));
            let blocks = hand.blocks.split_off(from);
            left -= blocks.len();
            passed.bytes += blocks.len() as u64 * hand.block_size;
            map.examine_blocks(&blocks, &mut judge)?;
        }
        Ok(passed)
    }
}

impl<M: Medium> Map<M> {
    /// Passes over these blocks: evicts records or lowers their frequency.
    fn examine_blocks(&self, blocks: &[u64], judge: &mut Judge<'_>) -> Result<()> {
        let guard = self.enter_writing()?;
        let mut keys = Vec::new();
        let mut found = Vec::with_capacity(BATCH_KEYS);
        for &offset in blocks {
            // What is no record, or is not bound any more, needs no search.
            let record = Record::in_block(self.db.file.pool.medium(), offset).ok();
            let Some(record) = record.filter(|record| !record.is_unbound()) else { continue };
            let from = keys.len();
            record.append_key(&mut keys)?;
            found.push((record, from..keys.len()));
        }
        let mut refs = Vec::with_capacity(found.len());
        for (_, key) in &found {
            refs.push(self.key(&keys[key.clone()])?);
        }
        let mut words = [None; BATCH_KEYS];
        match self.inner.index.get_many(&refs, &mut words[..refs.len()], &guard) {
            // Nothing can be removed from a part of the index that cannot be read.
            Err(error) if matches!(error.kind(), evermap_pm::ErrorKind::Damaged { .. }) => {
                return Ok(());
            }
            done => done?,
        }
        for (((record, _), &key), word) in found.iter().zip(&refs).zip(words) {
            if word == Some(record.word()) {
                self.examine_record(key, record, judge, &guard)?;
            }
        }
        Ok(())
    }

    /// Passes over a record that the index names under `guard`.
    fn examine_record(
        &self,
        key: BytesRef<'_>,
        record: &Record<'_, M>,
        judge: &mut Judge<'_>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let access = record.access();
        let is_new = judge.bar == 0 && record.cas() >= judge.new_from;
        match self.is_dead(record, judge.mark) {
            Some(true) => drop(self.remove_dead_unless_reserved(key, record, guard)?),
            Some(false) if access.frequency() <= judge.bar && !is_new => {
                self.evict(key, record, judge, guard)?;
            }
            Some(false) => {
                let passed = access.after_pass(judge.now);
                if passed != access {
                    record.set_access(passed);
                }
            }
            // Damage: whoever reads or changes the key finds out.
            None => {}
        }
        Ok(())
    }

    /// Removes `record` if it is still what `key` is bound to, and was not read meanwhile.
    fn evict(
        &self,
        key: BytesRef<'_>,
        record: &Record<'_, M>,
        judge: &mut Judge<'_>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let (word, bar, mut access) = (record.word(), judge.bar, record.access());
        let mut chosen = false;
        let change = self.commit_unless_reserved(key, guard, &mut |live| {
            chosen = live.is_some_and(|live| {
                access = live.access();
                live.word() == word && access.frequency() <= bar
            });
            if chosen { Verdict::Remove } else { Verdict::Keep }
        })?;
        if !chosen || !change.is_some_and(|change| change.removed()) {
            return Ok(());
        }
        let counts = &self.db.file.maintenance.evictor.counts;
        let bytes = self.db.file.pool.block_size(record.bytes());
        let (fetched, idle) = (access.is_fetched(), access.idle(judge.now));
        counts.evictions.fetch_add(1, Relaxed);
        counts.evicted_bytes.fetch_add(bytes, Relaxed);
        counts.evicted_unfetched.fetch_add(u64::from(!fetched), Relaxed);
        counts.direct.fetch_add(u64::from(judge.manner == Manner::Direct), Relaxed);
        counts.idle.store(idle.into(), Relaxed);
        if let Some(events) = &mut judge.events {
            let (key, value_len) = (key.bytes.to_vec(), record.value_len());
            events.push(Event { key, value_len, bytes, idle, fetched });
        }
        Ok(())
    }
}

/// Returns the offset of the block that a word of the index names.
pub(super) fn offset_of(word: u64) -> u64 {
    word & OFFSET_MASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Options};

    fn cache() -> Map {
        let options = Options::new().memory_limit(64 << 20).evict(true);
        Evermap::in_memory(options).unwrap().default_map()
    }

    fn judge() -> Judge<'static> {
        Judge {
            bar: 0,
            new_from: u64::MAX,
            mark: 0,
            now: 1_000,
            manner: Manner::Ahead,
            events: None,
        }
    }

    /// What happens between the choice of a record and its removal decides.
    #[test]
    fn only_the_record_that_was_chosen_is_evicted() {
        let map = cache();
        let happenings: [fn(&Map); 4] = [
            |_| {},
            // A newer record is not evicted by mistake.
            |map| map.put(b"key", b"newer").unwrap(),
            |map| assert!(map.remove(b"key").unwrap()),
            // It is read, so it is not to go any more.
            |map| assert!(map.get(b"key").unwrap().is_some()),
        ];
        for (number, happens) in happenings.into_iter().enumerate() {
            let goes = number == 0;
            map.put(b"key", b"value").unwrap();
            let before = map.stat().evictions;
            let guard = map.enter_writing().unwrap();
            let key = map.key(b"key").unwrap();
            let word = map.inner.index.get(key, &guard).unwrap().unwrap();
            let record = Record::at(map.db.file.pool.medium(), word).unwrap();
            happens(&map);
            let there = map.contains(b"key").unwrap();
            map.evict(key, &record, &mut judge(), &guard).unwrap();
            assert_eq!(map.stat().evictions - before, u64::from(goes));
            assert_eq!(map.contains(b"key").unwrap(), there && !goes);
        }
    }

    /// A key that a batch is about to change is passed over, and not waited for.
    #[test]
    fn the_keys_of_a_batch_are_passed_over() {
        let map = cache();
        map.put(b"key", b"value").unwrap();
        let key = map.key(b"key").unwrap();
        let guard = map.enter_writing().unwrap();
        let word = map.inner.index.get(key, &guard).unwrap().unwrap();
        let record = Record::at(map.db.file.pool.medium(), word).unwrap();
        let permit = map.db.file.reservations.permit();
        let reservation = map.db.file.reservations.reserve(&permit, &[key]);
        map.evict(key, &record, &mut judge(), &guard).unwrap();
        assert!(map.contains(b"key").unwrap());
        drop((reservation, permit));
        map.evict(key, &record, &mut judge(), &guard).unwrap();
        assert!(!map.contains(b"key").unwrap());
        drop(guard);
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        assert!(map.apply(&batch).unwrap().is_done());
    }
}
