//! Walks over all records, concurrent with changes.
//!
//! A unit of a walk is the part of the hashes that one region of the lowest level covers, with all
//! buckets of all levels that cover this part. Walks that show records to callers proceed through
//! the units in the order of [`walk_order`](evermap_index::hash::walk_order), others in that of the
//! regions. A record never leaves the part (see [`levels`](super::levels)), whatever is inserted
//! and however the table grows, so exactly one unit shows it. Between two units the state of a walk
//! is one number, the hash at which it continues. So it can pause for any time, and keeps nothing
//! in place. The table never shrinks, so the beginning of a unit is still one later, when units are
//! smaller.
//!
//! While a unit is copied, bucket by bucket, no record of it may move, or it could be shown twice
//! or not at all. So the copy is announced, and a thread that would move a record waits until it is
//! complete. That is soon, because no code of the caller runs meanwhile.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use evermap_index::Key;
use evermap_index::hash::walk_order::Ranked;
use evermap_index::lock_wait::LockWait;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Guard, Medium, Result, region};

use super::bucket::{KeyHashes, Locks, Record};
use super::layout::Version;
use super::levels::{Site, View, region_bits, top_bits};
use super::stripe::Stripe;
use super::{Geometry, Level};

/// A deliberate mistake that tests can enable: a record moves past a walk, which misses it or shows
/// it twice.
const MOVE_PASSES_WALK: &str = "LV-16";

/// The binary logarithm of the number of hash ranges.
const RANGE_BITS: u32 = 6;

/// A range of the hashes, in which either one walk copies records or any number of threads move
/// records.
#[repr(align(64))]
struct HashRange {
    /// Held by the walk that copies records here, or by a thread that waits to move one.
    lock: Mutex<()>,
    /// `true` while a walk copies records here. Set and cleared by the walk that holds the lock.
    copied: AtomicBool,
}

impl Default for HashRange {
    fn default() -> Self {
        HashRange { lock: Mutex::ranked(Rank::Part, ()), copied: AtomicBool::new(false) }
    }
}

impl HashRange {
    fn acquire(&self) -> MutexGuard<'_, ()> {
        // In ascending order if there are several: see `copying`. A panic under the lock poisons
        // the region, which every caller checks.
        self.lock.lock_next().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Keeps walks from copying the records of one range while it lives.
pub(super) type WalkBlock<'w> = MutexGuard<'w, ()>;

/// The hash ranges, with the walks that copy records.
pub(super) struct Walks([HashRange; 1 << RANGE_BITS]);

impl Default for Walks {
    fn default() -> Self {
        Walks(std::array::from_fn(|_| HashRange::default()))
    }
}

impl Walks {
    fn range(&self, hashes: KeyHashes) -> &HashRange {
        &self.0[top_bits(hashes.first, RANGE_BITS) as usize]
    }

    #[inline(always)]
    fn are_copying(&self, hashes: KeyHashes) -> bool {
        // SeqCst: pairs with the fence in `copying`. Either this load sees the mark, or the walk
        // sees both buckets locked and waits for them.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the release that clears the mark, so that the walk has finished
        // reading before the caller's stores.
        self.range(hashes).copied.load(Ordering::Acquire)
    }

    /// Waits until no walk copies the records with these hashes, and keeps the next one from
    /// beginning. The caller holds neither a bucket nor another range.
    #[cold]
    pub(super) fn block_walks(&self, hashes: KeyHashes) -> WalkBlock<'_> {
        self.range(hashes).acquire()
    }

    /// Locks all ranges that contain hashes of a unit, and marks them.
    fn copying(&self, unit: Unit) -> Copying<'_> {
        let ranges = &self.0[unit.parts_of(RANGE_BITS)];
        // In ascending order, like all walks. Threads that move records hold at most one range.
        let guards = ranges.iter().map(HashRange::acquire).collect();
        // Only after all are locked: a thread that waits for one of them, and then has it, must
        // find none of them marked. Relaxed: see the fence.
        ranges.iter().for_each(|range| range.copied.store(true, Ordering::Relaxed));
        // SeqCst: pairs with the fence in `are_copying`.
        fence(Ordering::SeqCst);
        Copying { ranges, _guards: guards }
    }
}

/// Keeps the records of some ranges in place while it lives.
struct Copying<'w> {
    ranges: &'w [HashRange],
    _guards: Vec<MutexGuard<'w, ()>>,
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        // Release: records move only after they were read.
        self.ranges.iter().for_each(|range| range.copied.store(false, Ordering::Release));
    }
}

/// A part of the hashes: those whose top `bits` bits are `prefix`.
#[derive(Clone, Copy)]
struct Unit {
    prefix: u64,
    bits: u32,
}

impl Unit {
    /// Returns the unit that contains the hash `from`.
    fn at<G: Geometry>(from: u64, view: View) -> Self {
        let bits = view.lowest() - region_bits(view.lowest(), G::CHUNK_LOG);
        Unit { prefix: top_bits(from, bits), bits }
    }

    /// Returns the first hash of the next unit, or `None` after the last.
    fn next(self) -> Option<u64> {
        let prefix = self.prefix + 1;
        (prefix >> self.bits == 0).then(|| prefix << (64 - self.bits))
    }

    /// Returns those of `2^bits` equal parts of the hashes that intersect this unit.
    fn parts_of(self, bits: u32) -> std::ops::Range<usize> {
        let range = match bits.checked_sub(self.bits) {
            Some(more) => self.prefix << more..(self.prefix + 1) << more,
            None => {
                let part = self.prefix >> (self.bits - bits);
                part..part + 1
            }
        };
        range.start as usize..range.end as usize
    }
}

impl<K: Key, M: Medium, G: Geometry> Ranked for Level<K, M, G> {
    /// A unit is read twice, each time for another half of its hashes: insertions of what a walk
    /// shows then fill the regions of a smaller table at the same time.
    fn range_bits(&self) -> u32 {
        Unit::at::<G>(0, self.levels.view()).bits + 1
    }

    fn show(
        &self,
        ranks: RangeInclusive<u64>,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let mut records = Vec::new();
        let (copied, next) = self.copy_unit(&ranks, &mut records);
        if self.ensure_usable().is_ok() {
            records.iter().for_each(|record| each(record.slot_key, record.word));
        }
        (copied, next)
    }

    fn ensure_usable(&self) -> Result<()> {
        self.region.ensure_writable()
    }
}

impl<K: Key, M: Medium, G: Geometry> Level<K, M, G> {
    /// Returns `true` if records with these hashes must stay in their buckets for now, because a
    /// walk copies them. Called with the locks of the source and the destination; if the result is
    /// `false`, the record may move until they are released.
    #[inline(always)]
    pub(super) fn must_stay(&self, hashes: KeyHashes) -> bool {
        self.walks.are_copying(hashes) && !self.medium().mutant(MOVE_PASSES_WALK)
    }

    /// Calls `each` with the records of every unit, under a guard but without locks, until it
    /// returns `false`. Buckets that cannot be read are skipped, and the first error is returned at
    /// the end.
    pub(super) fn walk(&self, mut each: impl FnMut(&[Record]) -> bool) -> Result<()> {
        let (mut from, mut result, mut records) = (Some(0), Ok(()), Vec::new());
        while let Some(here) = from {
            // The guard keeps what the records name valid while `each` uses it.
            let _guard = self.pool.pin();
            records.clear();
            let (copied, next) = self.copy_unit(&(here..=u64::MAX), &mut records);
            if copied.is_err() {
                self.region.ensure_writable()?;
            }
            result = result.and(copied);
            if !each(&records) {
                break;
            }
            from = next;
        }
        result
    }

    /// Copies the records of a unit whose first hash is in `firsts`: the unit of the first of these
    /// hashes. Returns where the next unit begins. The caller has a guard, so that a level that is
    /// given up meanwhile stays valid.
    ///
    /// # Errors
    /// `Forked`, because the parent of a forked child does not see what the child marks.
    /// `Poisoned`. `Damaged` for a part of the unit.
    fn copy_unit(
        &self,
        firsts: &RangeInclusive<u64>,
        records: &mut Vec<Record>,
    ) -> (Result<()>, Option<u64>) {
        let from = *firsts.start();
        if let Err(unusable) = self.region.ensure_writable() {
            return (Err(unusable), None);
        }
        let _copying = self.walks.copying(Unit::at::<G>(from, self.levels.view()));
        // Read again when nothing moves: records may be in a level that was added meanwhile. Units
        // may have become smaller, but not larger, so this one is within the locked ranges. A level
        // that is added from here on takes only new records, and one that is removed has no record
        // of this unit.
        let view = self.levels.view();
        let unit = Unit::at::<G>(from, view);
        let mut result = Ok(());
        for level in view.lowest()..=view.highest() {
            for index in unit.parts_of(level) {
                let site = self.levels.site(level, index as u64);
                // Continues after an error, so that damage does not hide the other buckets.
                result = result.and(site.and_then(|site| self.copy_records(site, records)));
            }
        }
        records.retain(|record| firsts.contains(&record.hashes.first));
        (result, unit.next())
    }

    /// Copies the records of a bucket.
    fn copy_records(&self, site: Site<'_>, records: &mut Vec<Record>) -> Result<()> {
        let mut locks = self.wait_for(site)?;
        if !self.pool.is_swept() {
            // Duplicates that a crash has left must not be shown. Dropping them locks homes first.
            let met: Vec<Record> = self.records_of(site).map(|(_, record)| record).collect();
            locks.release(self.medium());
            met.into_iter().try_for_each(|record| self.make_unique(record))?;
            locks = self.wait_for(site)?;
        }
        records.extend(self.records_of(site).map(|(_, record)| record));
        locks.release(self.medium());
        Ok(())
    }

    /// Waits for the lock of a bucket, while holding no other.
    fn wait_for<'a>(&'a self, site: Site<'a>) -> Result<Locks<'a>> {
        let mut lock_wait = LockWait::default();
        loop {
            let mut locks = Locks::new();
            let locked = self.lock_bucket(site, &mut locks);
            if let Ok(true) = locked {
                return Ok(locks);
            }
            // That of its stripe may be among them.
            locks.release(self.medium());
            locked?;
            self.wait_for_bucket(site, &mut lock_wait)?;
        }
    }

    /// Makes every version word stale, so that each bucket is recovered before it is used.
    pub(super) fn make_all_stale(&self) -> Result<()> {
        let (m, view) = (self.medium(), self.levels.view());
        let stale = Version::fresh(region::stale(self.generation));
        for level in view.lowest()..=view.highest() {
            for index in 0..1 << level {
                let site = self.levels.site(level, index)?;
                self.levels.ensure_named(site)?;
                m.store_transient(&site.bucket.version, stale.0);
                // Where there is no stripe's lock, the word is not used.
                m.store_transient(&site.bucket.stripe, Stripe::free(stale.0).0);
            }
        }
        Ok(())
    }
}
