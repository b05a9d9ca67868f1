//! Going over all records while others change them.
//!
//! A walk goes through the hashes, in the order of the regions: a unit of it is the part of the hashes that one region of
//! the lowest level covers, with all buckets of all levels that cover it. A record never leaves that part (see
//! [`levels`](super::levels)), whatever is inserted and however the table grows, so it is met by the one unit that has its
//! hash. A walk between two units is nothing but a number, the hash where it goes on: it can rest as long as it likes, and
//! holds nothing in place. The table never shrinks, so what begins a unit once still does later, when units are smaller.
//!
//! While a unit is copied, bucket by bucket, no record of it may move, or it would be met twice or not at all. So the copy
//! is announced, and whoever would move a record waits until it is complete. That is soon: nothing is called meanwhile.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use evermap_pm::sync::{Mutex, MutexGuard};
use evermap_pm::{Medium, Result};

use super::Level;
use super::bucket::{Locks, Record, Spot};
use super::layout::Version;
use super::levels::{Site, View, region_bits, top_bits};
use crate::Key;
use crate::hash::lock_wait::LockWait;

/// Number of stretches, as a power of two.
const STRETCH_BITS: u32 = 6;

/// A stretch of the hashes, in which either one walk copies records or any number of threads moves some.
#[derive(Default)]
#[repr(align(64))]
struct Stretch {
    /// Held by the walk that copies records here, or by a thread that waits to move one.
    turn: Mutex<()>,
    /// Whether a walk copies records here. Set and cleared by the walk that has the turn.
    copied: AtomicBool,
}

impl Stretch {
    fn take_turn(&self) -> MutexGuard<'_, ()> {
        // A panic under the lock poisons the region, which every caller checks.
        self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Keeps walks from copying records of one stretch while it lives.
pub(super) type KeptOut<'w> = MutexGuard<'w, ()>;

/// Which records are being copied.
pub(super) struct Walks([Stretch; 1 << STRETCH_BITS]);

impl Default for Walks {
    fn default() -> Self {
        Walks(std::array::from_fn(|_| Stretch::default()))
    }
}

impl Walks {
    fn stretch(&self, spot: Spot) -> &Stretch {
        &self.0[top_bits(spot.first, STRETCH_BITS) as usize]
    }

    #[inline(always)]
    fn are_copying(&self, spot: Spot) -> bool {
        // SeqCst: pairs with the fence in `copying`. Either this load sees the mark, or the walk sees both buckets locked,
        // and waits for them.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the release that clears the mark, so that the walk has read what is stored next.
        self.stretch(spot).copied.load(Ordering::Acquire)
    }

    /// Waits until no walk copies the records at this spot, and keeps the next one from beginning. The caller holds no
    /// bucket, nor another stretch.
    #[cold]
    pub(super) fn keep_out(&self, spot: Spot) -> KeptOut<'_> {
        self.stretch(spot).take_turn()
    }

    /// Waits for all stretches in which there are hashes of a unit, and marks them.
    fn copying(&self, unit: Unit) -> Copying<'_> {
        let stretches = &self.0[unit.share_of(STRETCH_BITS)];
        // In ascending order, as all walks do; those who move records hold one at most.
        let turns = stretches.iter().map(Stretch::take_turn).collect();
        // Only now: whoever waits for one of them, and then has it, must find none of them marked.
        // Relaxed: see the fence.
        stretches.iter().for_each(|stretch| stretch.copied.store(true, Ordering::Relaxed));
        // SeqCst: pairs with the fence in `are_copying`.
        fence(Ordering::SeqCst);
        Copying { stretches, _turns: turns }
    }
}

/// The records of some stretches stay where they are while this lives.
struct Copying<'w> {
    stretches: &'w [Stretch],
    _turns: Vec<MutexGuard<'w, ()>>,
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        // Release: what moves afterwards moves after it was read.
        self.stretches.iter().for_each(|stretch| stretch.copied.store(false, Ordering::Release));
    }
}

/// A part of the hashes: those whose top `bits` are `prefix`.
#[derive(Clone, Copy)]
struct Unit {
    prefix: u64,
    bits: u32,
}

impl Unit {
    /// The unit that begins with the hash `from`.
    fn at<const C: u32>(from: u64, view: View) -> Self {
        let bits = view.lowest() - region_bits(view.lowest(), C);
        Unit { prefix: top_bits(from, bits), bits }
    }

    /// The hash that the next unit begins with.
    fn next(self) -> Option<u64> {
        let prefix = self.prefix + 1;
        (prefix >> self.bits == 0).then(|| prefix << (64 - self.bits))
    }

    /// Those of `2^bits` equal parts of the hashes that this unit has a share of.
    fn share_of(self, bits: u32) -> std::ops::Range<usize> {
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

impl<K: Key, M: Medium, const N: usize, const C: u32> Level<K, M, N, C> {
    /// Whether records at this spot must stay in their buckets for now, because a walk copies them. Call with the locks of
    /// both buckets between which one is to move: if the result is `false`, it may move until they are released.
    #[inline(always)]
    pub(super) fn must_stay(&self, spot: Spot) -> bool {
        self.walks.are_copying(spot) && !self.medium().mutant("LV-16")
    }

    /// Calls `each` with the records of every unit, without locks but under a guard of its own, until it returns
    /// `false`. Buckets that cannot be read are passed over; the first error is returned at the end.
    pub(super) fn walk(&self, mut each: impl FnMut(&[Record]) -> bool) -> Result<()> {
        let (mut from, mut result, mut records) = (Some(0), Ok(()), Vec::new());
        while let Some(here) = from {
            // What the records name must stay what it is while `each` looks at it.
            let _guard = self.pool.pin();
            records.clear();
            let (copied, next) = self.copy_unit(here, &mut records);
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

    /// The unit of a walk that begins at the hash `from`. Returns where to go on.
    pub(super) fn walk_unit(
        &self,
        from: u64,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let mut records = Vec::new();
        let (copied, next) = self.copy_unit(from, &mut records);
        if let Err(unusable) = self.region.ensure_writable() {
            return (Err(unusable), None);
        }
        records.iter().for_each(|record| each(record.slot_key, record.word));
        (copied, next)
    }

    /// Copies the records of the unit that begins at `from`. Returns where the next one begins. The caller has a guard, so
    /// that a level that is given up meanwhile stays what it is.
    ///
    /// # Errors
    /// `Forked`: what a forked child marks, its parent does not see. `Poisoned`; `Damaged` for a part of the unit.
    fn copy_unit(&self, from: u64, records: &mut Vec<Record>) -> (Result<()>, Option<u64>) {
        if let Err(unusable) = self.region.ensure_writable() {
            return (Err(unusable), None);
        }
        let _copying = self.walks.copying(Unit::at::<C>(from, self.levels.view()));
        // Again, now that nothing moves: records may be in a level that was added while we waited. Units may have become
        // smaller, but not larger, so this one is part of what is held. A level that is added from here on takes new records
        // only, and one that is given up has none of this unit.
        let view = self.levels.view();
        let unit = Unit::at::<C>(from, view);
        let mut result = Ok(());
        for level in view.lowest()..=view.highest() {
            for index in unit.share_of(level) {
                let site = self.levels.site(level, index as u64);
                // The rest in any case, so that damage does not hide it.
                result = result.and(site.and_then(|site| self.copy_records(site, records)));
            }
        }
        (result, unit.next())
    }

    /// Copies the records of a bucket.
    fn copy_records(&self, site: Site<'_>, records: &mut Vec<Record>) -> Result<()> {
        let mut locks = self.wait_for(site)?;
        if !self.pool.is_swept() {
            // Copies that a crash left must not be shown; dropping them takes the locks of homes first.
            let met: Vec<Record> = self.records_of(site).map(|(_, record)| record).collect();
            locks.release(self.medium());
            met.into_iter().try_for_each(|record| self.make_unique(record))?;
            locks = self.wait_for(site)?;
        }
        records.extend(self.records_of(site).map(|(_, record)| record));
        locks.release(self.medium());
        Ok(())
    }

    /// Waits for the lock of a bucket, holding no other.
    fn wait_for<'a>(&self, site: Site<'a>) -> Result<Locks<'a>> {
        let mut patience = LockWait::default();
        loop {
            let mut locks = Locks::new();
            if self.take(site, &mut locks)? {
                return Ok(locks);
            }
            self.wait_with(site, &mut patience)?;
        }
    }

    /// Makes every version word stale, so that each bucket is recovered before it is used.
    pub(super) fn make_all_stale(&self) -> Result<()> {
        let (m, view) = (self.medium(), self.levels.view());
        let stale = Version::fresh(self.generation.wrapping_sub(1));
        for level in view.lowest()..=view.highest() {
            for index in 0..1 << level {
                let site = self.levels.site(level, index)?;
                self.levels.ensure_named(site)?;
                m.store_transient(&site.bucket.version, stale.0);
            }
        }
        Ok(())
    }
}
