//! The hand: it passes over the records in the order in which they are stored, and evicts those
//! that are unlikely to be read again.
//!
//! Records that were never read are on *probation*. While they take more than a quarter of what the
//! hand passes over, it evicts them, and leaves the others alone: so what is read once, or a scan,
//! displaces nothing that is read often. Otherwise it leaves them alone, lowers the frequency of
//! the others, and evicts those whose frequency was zero already, as CLOCK does.
//!
//! For one large record, several small ones can stay, each of which is as likely to be read. So a
//! pass over a record counts as many times as the record is larger than the mean, from a quarter to
//! four times: a fraction is a probability. That is the idea of GreedyDual-Size (Cao and Irani,
//! USITS 1997), with bounds, so that what is large stays as well if it is read often.
//!
//! The order is that of extents, and of the blocks in each, instead of queues of records: so it
//! takes no memory and needs no recovery. What is evicted together is free in one place, where the
//! next records are stored together, behind the hand. So they are on probation for one round of the
//! hand, as in a queue. Where space of other sizes becomes free, or the file grows, records are
//! stored ahead of it as well: those it passes over until its next round.
//!
//! A block may be anything: a record, of this map or another, one that was removed, or a part of an
//! index. So the key that a record in it would have is looked up. Only if the index names this very
//! block for that key, under a guard, is it a record, and nothing else until the guard ends.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_index::{BATCH_KEYS, Guard};
use evermap_pm::Medium;

use super::course::{Course, Share};
use super::{Evicted, Manner};
use crate::item::Access;
use crate::maintenance::expire::unless_damaged;
use crate::ops::commit::Verdict;
use crate::record::Record;
use crate::record::access::AccessState;
use crate::{Evermap, Map, Result, mistakes};

/// The maximum number of blocks that are examined before other threads get their turn.
const TOGETHER: u64 = 8 * BATCH_KEYS as u64;
/// A record that was stored after this part of all records, counted in changes, is new: a reader
/// may still come for it. So is what was stored since the hand began its round.
const NEW_PART: u64 = 20;
/// How many times a pass over a record counts at most; at least, it counts as one in this many.
const TIMES_MAX: u64 = 4;
/// 1, in fixed point: see [`Judge::times`].
const ONE: u64 = 1 << 16;

/// Where the hand is.
pub(super) struct Hand {
    /// The extent after the one that it is in.
    next: u64,
    /// The extent that it is in.
    extent: u64,
    /// The blocks of the extent that are still to be passed, the last one first.
    blocks: Vec<u64>,
    block_size: u64,
    course: Course,
}

impl Hand {
    pub(super) fn new() -> Self {
        Hand { next: 0, extent: 0, blocks: Vec::new(), block_size: 0, course: Course::default() }
    }

    /// Goes on to the next extent, behind the last one to the first. Returns the bytes of free
    /// blocks in it, or `None` if there is no extent.
    fn advance<M: Medium>(&mut self, db: &Evermap<M>) -> Option<u64> {
        let heap = db.file.pool.heap();
        let extent = heap.extent_from(self.next).filter(|_| self.next > 0).or_else(|| {
            self.course.round = db.file.cas_counter.next();
            heap.extent_from(0)
        })?;
        (self.next, self.extent) = (extent.next, extent.extent);
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
    ttl: Option<Duration>,
    idle: Duration,
    fetched: bool,
}

impl Event {
    pub(super) fn show(&self, listener: &dyn Fn(&Evicted<'_>)) {
        let Event { ref key, value_len, bytes, ttl, idle, fetched } = *self;
        listener(&Evicted { key, value_len, bytes, ttl, idle, fetched });
    }
}

/// What is to be done with records.
pub(super) struct Judge<'j> {
    /// The largest frequency of records that are evicted. If it is above zero, too few were.
    bar: u16,
    /// Whether records on probation are evicted, and not others.
    ends_probation: bool,
    /// The mean size of records, in bytes; 0 if it is not known.
    mean: u64,
    /// The number of records that the hand had passed over before.
    records: u64,
    /// What was passed over.
    pub(super) passed: Share,
    /// Records with this CAS id and later ones are new.
    new_from: u64,
    /// Records with a smaller CAS id are flushed.
    mark: u64,
    now: u32,
    manner: Manner,
    /// `None` if nobody listens.
    events: Option<&'j mut Vec<Event>>,
}

/// What the hand does with a live record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    Goes,
    /// Its frequency is lowered.
    Ages,
    Stays,
}

impl Judge<'_> {
    /// Returns how many times the pass over the next record counts, which has this size: on average
    /// as many as it is larger than the mean.
    fn times(&self, bytes: u64) -> u16 {
        let relative = bytes.saturating_mul(ONE).checked_div(self.mean).unwrap_or(ONE);
        let relative = relative.clamp(ONE / TIMES_MAX, ONE * TIMES_MAX);
        // Multiples of the golden ratio are spread evenly, so the fractions of records of one size
        // make up whole times as soon as they can.
        let number = self.records + self.passed.records;
        let fraction = number.wrapping_mul(0x9e37) % ONE;
        ((relative + fraction) / ONE) as u16
    }

    /// Decides about a record, if the pass over it counts this many times.
    fn verdict(&self, access: AccessState, cas: u64, times: u16) -> Chosen {
        if self.bar > 0 {
            // Too few went. Then the least read go, whatever they are.
            return if access.frequency() <= self.bar { Chosen::Goes } else { Chosen::Ages };
        }
        if times == 0 {
            return Chosen::Stays;
        }
        match (access.is_fetched(), self.ends_probation) {
            (false, true) if cas < self.new_from => Chosen::Goes,
            (false, _) | (true, true) => Chosen::Stays,
            (true, false) if access.frequency() == 0 => Chosen::Goes,
            (true, false) => Chosen::Ages,
        }
    }
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
        let mut judge = map.judge(&hand.course, bar, manner, events);
        let mut left = (most / hand.block_size.max(1)).clamp(1, TOGETHER) as usize;
        while left > 0 && !hand.blocks.is_empty() {
            let from = hand.blocks.len().saturating_sub(left.min(BATCH_KEYS));
            let blocks = hand.blocks.split_off(from);
            left -= blocks.len();
            passed.bytes += blocks.len() as u64 * hand.block_size;
            map.examine_blocks(hand.extent, &blocks, &mut judge)?;
        }
        hand.course.add(judge.passed, map.inner.counters.most_bytes());
        Ok(passed)
    }
}

impl<M: Medium> Map<M> {
    /// Returns what a hand does with the next records of this map, of which those go whose
    /// frequency is `bar` at most.
    pub(super) fn judge<'j>(
        &self,
        course: &Course,
        bar: u16,
        manner: Manner,
        events: &'j mut Vec<Event>,
    ) -> Judge<'j> {
        let file = &self.db.file;
        let records = self.inner.counters.totals().0.records;
        Judge {
            bar,
            ends_probation: course.lately.is_large(),
            mean: course.lately.all.checked_div(course.lately.records).unwrap_or(0),
            records: course.records,
            passed: Share::default(),
            new_from: course.round.min(file.cas_counter.next().saturating_sub(records / NEW_PART)),
            mark: self.inner.flush.mark(),
            now: file.clock.now(),
            manner,
            events: file.maintenance.evictor.is_watched.load(Relaxed).then_some(events),
        }
    }

    /// Evicts the record in a block of an extent, however often it was read, if there is one of
    /// this map.
    pub(super) fn evict_block(
        &self,
        extent: u64,
        offset: u64,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        let mut judge = Judge {
            bar: u16::MAX,
            ends_probation: false,
            mean: 0,
            records: 0,
            passed: Share::default(),
            new_from: 0,
            mark: self.inner.flush.mark(),
            now: self.db.file.clock.now(),
            manner: Manner::Direct,
            events: self.db.file.maintenance.evictor.is_watched.load(Relaxed).then_some(events),
        };
        self.examine_blocks(extent, &[offset], &mut judge)
    }

    /// Passes over these blocks of an extent: evicts records or lowers their frequency.
    fn examine_blocks(&self, extent: u64, blocks: &[u64], judge: &mut Judge<'_>) -> Result<()> {
        let (guard, pool) = (self.enter_writing()?, &self.db.file.pool);
        let mut keys = Vec::new();
        let mut found = Vec::with_capacity(BATCH_KEYS);
        pool.heap().with_blocks(extent, blocks, |block| {
            // What is no record, or is not bound any more, needs no search.
            let record = Record::in_block(pool.medium(), block).ok();
            let Some(record) = record.filter(|record| !record.is_unbound()) else { return };
            let from = keys.len();
            if record.append_key(&mut keys).is_ok() {
                found.push((record, from..keys.len()));
            }
        });
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
            // Read again: it may have been read while a thread was writing it, and published since.
            if let Some(word) = word.filter(|&word| word == record.word())
                && let Ok(record) = Record::at(pool.medium(), word)
            {
                self.examine_record(key, &record, judge, &guard)?;
            }
        }
        Ok(())
    }

    /// Passes over a record that the index names under `guard`.
    pub(super) fn examine_record(
        &self,
        key: BytesRef<'_>,
        record: &Record<'_, M>,
        judge: &mut Judge<'_>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let access = record.access();
        match self.is_dead(record, judge.mark) {
            Some(true) => {
                unless_damaged(self.remove_dead_unless_reserved(key, record, guard))?;
            }
            Some(false) => {
                let bytes = record.bytes();
                let times = judge.times(bytes);
                judge.passed.records += 1;
                judge.passed.all += bytes;
                judge.passed.unread += if access.is_fetched() { 0 } else { bytes };
                match judge.verdict(access, record.cas(), times) {
                    Chosen::Goes => self.evict(key, record, times, judge, guard)?,
                    Chosen::Ages => {
                        let aged = access.after_passes(times.max(1), judge.now);
                        if aged != access {
                            record.set_access(aged);
                        }
                    }
                    Chosen::Stays => {}
                }
            }
            // Damage: a thread that reads or changes the key finds out.
            None => {}
        }
        Ok(())
    }

    /// Removes `record` if it is still what `key` is bound to, and was not read meanwhile. The pass
    /// over it counts this many times.
    fn evict(
        &self,
        key: BytesRef<'_>,
        record: &Record<'_, M>,
        times: u16,
        judge: &mut Judge<'_>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let (word, mut access) = (record.word(), record.access());
        let (mut chosen, mut expires_at) = (false, None);
        let change = unless_damaged(self.commit_unless_reserved(key, guard, &mut |live| {
            chosen = live.is_some_and(|live| {
                access = live.access();
                expires_at = live.expires_at();
                self.db.file.pool.medium().mutant(mistakes::NEWER_RECORD_EVICTED)
                    || live.word() == word
                        && judge.verdict(access, live.cas(), times) == Chosen::Goes
            });
            if chosen { Verdict::Remove } else { Verdict::Keep }
        }))?;
        let change = change.flatten();
        if !chosen || !change.is_some_and(|change| change.removed()) {
            return Ok(());
        }
        let counts = &self.db.file.maintenance.evictor.counts;
        let bytes = self.db.file.pool.block_size(record.bytes());
        let Access { fetched, idle } = access.prior(judge.now);
        counts.evictions.fetch_add(1, Relaxed);
        self.inner.own_eviction.evictions.fetch_add(1, Relaxed);
        counts.evicted_bytes.fetch_add(bytes, Relaxed);
        counts.evicted_unfetched.fetch_add(u64::from(!fetched), Relaxed);
        counts.direct.fetch_add(u64::from(judge.manner == Manner::Direct), Relaxed);
        counts.idle.store(idle.as_secs(), Relaxed);
        if let Some(events) = &mut judge.events {
            let (key, value_len) = (key.bytes.to_vec(), record.value_len());
            let expires_at = expires_at.filter(|&expires_at| expires_at != 0);
            let left = |expires_at: u32| expires_at.saturating_sub(judge.now);
            let ttl = expires_at.map(|expires_at| Duration::from_secs(left(expires_at).into()));
            events.push(Event { key, value_len, bytes, ttl, idle, fetched });
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
            ends_probation: true,
            mean: 0,
            records: 0,
            passed: Share::default(),
            new_from: u64::MAX,
            mark: 0,
            now: 1_000,
            manner: Manner::Ahead,
            events: None,
        }
    }

    #[test]
    fn what_was_never_read_goes_while_there_is_much_of_it() {
        let unread = AccessState::new(1_000);
        let read = unread.after_read(1_000);
        let cold = read.after_passes(1, 1_000);
        for (ends_probation, bar, access, cas, chosen) in [
            (true, 0, unread, 5, Chosen::Goes),
            (true, 0, unread, 10, Chosen::Stays),
            (true, 0, read, 5, Chosen::Stays),
            (true, 0, cold, 5, Chosen::Stays),
            (false, 0, unread, 5, Chosen::Stays),
            (false, 0, read, 5, Chosen::Ages),
            (false, 0, cold, 5, Chosen::Goes),
            // Too few went.
            (true, 1, unread, 10, Chosen::Goes),
            (false, 1, read, 5, Chosen::Goes),
            (true, 1, read.after_read(1_000), 5, Chosen::Ages),
            (false, 3, read.after_read(1_000), 5, Chosen::Goes),
        ] {
            let judge = Judge { ends_probation, bar, new_from: 10, ..judge() };
            assert_eq!(judge.verdict(access, cas, 1), chosen, "{ends_probation} {bar} {access:?}");
        }
    }

    /// A pass over a small record counts less often, so that of as many bytes more records stay.
    #[test]
    fn a_pass_counts_as_many_times_as_a_record_is_large() {
        let mut judge = Judge { mean: 1_000, ..judge() };
        for (bytes, hundred) in [
            (1, 25),
            (250, 25),
            (500, 50),
            (1_000, 100),
            (1_500, 150),
            (4_000, 400),
            (u64::MAX, 400),
        ] {
            let mut sum = 0;
            for _ in 0..100 {
                let times = judge.times(bytes);
                assert!((u64::from(times) * 1_000).abs_diff(bytes.clamp(250, 4_000)) < 1_000);
                sum += times;
                judge.passed.records += 1;
            }
            assert!(sum.abs_diff(hundred) <= 1, "{sum} times for {bytes} bytes");
        }
        judge.mean = 0;
        assert_eq!((judge.times(1), judge.times(u64::MAX)), (1, 1), "nothing is known");
        // It stays if the pass does not count, and may not have to go before it has aged.
        let read = (0..3).fold(AccessState::new(1_000), |state, _| state.after_read(1_000));
        let cold = read.after_passes(4, 1_000);
        judge.ends_probation = false;
        assert_eq!(judge.verdict(cold, 0, 0), Chosen::Stays);
        assert_eq!(judge.verdict(read, 0, 4), Chosen::Ages);
        assert_eq!(judge.verdict(cold, 0, 4), Chosen::Goes);
        judge.ends_probation = true;
        assert_eq!(judge.verdict(AccessState::new(1_000), 0, 0), Chosen::Stays);
    }

    /// What happens between the choice of a record and its removal decides.
    #[test]
    fn only_the_record_that_was_chosen_is_evicted() {
        let map = cache();
        let happenings: [fn(&Map); 4] = [
            |_| {},
            // A newer record is not evicted by mistake.
            |map| map.put(b"key", b"newer").unwrap(),
            |map| assert!(map.delete(b"key").unwrap()),
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
            map.evict(key, &record, 1, &mut judge(), &guard).unwrap();
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
        map.evict(key, &record, 1, &mut judge(), &guard).unwrap();
        assert!(map.contains(b"key").unwrap());
        drop((reservation, permit));
        map.evict(key, &record, 1, &mut judge(), &guard).unwrap();
        assert!(!map.contains(b"key").unwrap());
        drop(guard);
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        assert!(map.apply(&batch).unwrap().is_done());
    }
}
