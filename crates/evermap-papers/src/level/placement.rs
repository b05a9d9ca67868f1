//! Placement of new records.
//!
//! In the order of the paper: into the emptier of the two buckets in the top level, then of those
//! in the level below. Otherwise another record is displaced: to its other bucket in the same
//! level, or from the bottom to the top.

use evermap_index::Key;
use evermap_pm::{Medium, Result};

use super::bucket::{KeyHashes, Locks, Record, meta_of, write};
use super::levels::{Site, first_index};
use super::{Blocker, Geometry, Level, LevelRange};

/// A slot for a record, in a locked bucket.
pub(super) struct FreeSlot<'a> {
    site: Site<'a>,
    slot: usize,
    /// The record that must be moved out of the slot first, and its destination. Its home and both
    /// buckets are locked.
    pub(super) victim: Option<Victim<'a>>,
}

/// A record that is displaced.
pub(super) struct Victim<'a> {
    record: Record,
    site: Site<'a>,
    slot: usize,
}

/// The result of the search for a slot.
pub(super) enum SlotSearch<'a> {
    Found(FreeSlot<'a>),
    /// Release all locks, wait for this, and try again.
    Busy(Blocker<'a>),
    /// The table must grow.
    Full,
}

impl<'a> SlotSearch<'a> {
    /// A bucket is locked, or takes no more records.
    fn busy(site: Site<'a>) -> Self {
        SlotSearch::Busy(Blocker::Bucket(site))
    }
}

/// Stores a record in a slot durably, after moving the record that occupies it.
#[inline(always)]
pub(super) fn store_record<M: Medium>(m: &M, free: FreeSlot<'_>, record: Record) {
    if let Some(victim) = free.victim {
        write(m, victim.site.bucket, victim.slot, victim.record);
        // Durable at the destination before the slot is overwritten.
        m.fence();
    }
    write(m, free.site.bucket, free.slot, record);
    m.fence();
}

impl<K: Key, M: Medium, G: Geometry> Level<K, M, G> {
    /// Fills this many slots of the home bucket before the other bucket of the top level is
    /// considered: the home is locked already, and lookups read it first.
    const HOME_FIRST: usize = G::SLOTS * 2 / 3;

    /// Finds a slot for a record with these hashes, which is not in the table.
    #[inline(always)]
    pub(super) fn find_slot<'a>(
        &'a self,
        range: LevelRange<'a>,
        hashes: KeyHashes,
        locks: &mut Locks<'a>,
    ) -> Result<SlotSearch<'a>> {
        let home = meta_of(self.medium(), range.home.bucket);
        if let Some(slot) = home.free_slot(Self::HOME_FIRST) {
            return Ok(SlotSearch::Found(FreeSlot { site: range.home, slot, victim: None }));
        }
        self.find_slot_slow(range, hashes, locks)
    }

    fn find_slot_slow<'a>(
        &'a self,
        range: LevelRange<'a>,
        hashes: KeyHashes,
        locks: &mut Locks<'a>,
    ) -> Result<SlotSearch<'a>> {
        // While the lowest level is emptied, it does not take records.
        let levels = [range.high, range.high - 1];
        for level in levels {
            let pair = self.levels.pair(level, hashes)?;
            if let Some(free) = self.free_slot_in_pair(pair, locks)? {
                return Ok(free);
            }
        }
        for level in levels {
            for site in self.levels.pair(level, hashes)? {
                if let Some(free) = self.displace_from(range, site, locks)? {
                    return Ok(free);
                }
            }
        }
        // The holder of a skipped bucket will release it soon, and there may be a slot then.
        Ok(locks.skipped.map_or(SlotSearch::Full, SlotSearch::busy))
    }

    /// Finds a free slot in the emptier of two buckets, or in the first if they are equally full.
    fn free_slot_in_pair<'a>(
        &'a self,
        pair: [Site<'a>; 2],
        locks: &mut Locks<'a>,
    ) -> Result<Option<SlotSearch<'a>>> {
        let m = self.medium();
        let [first, second] = pair.map(|site| meta_of(m, site.bucket).count());
        let site = if first <= second { pair[0] } else { pair[1] };
        if first.min(second) >= G::SLOTS {
            return Ok(None);
        }
        if !self.lock_bucket(site, locks)? || self.is_drained(site, locks) {
            return Ok(Some(SlotSearch::busy(site)));
        }
        // The records were counted without the lock: the slot may be taken meanwhile.
        let slot = meta_of(m, site.bucket).free_slot(G::SLOTS);
        Ok(Some(match slot {
            Some(slot) => SlotSearch::Found(FreeSlot { site, slot, victim: None }),
            None => SlotSearch::busy(site),
        }))
    }

    /// Returns `true` if a locked bucket takes no more records. A thread sees this only if it read
    /// the view before the bucket was emptied.
    fn is_drained(&self, site: Site<'_>, locks: &mut Locks<'_>) -> bool {
        locks.of(site.bucket).is_some_and(|locked| locked.version.is_drained())
    }

    /// Finds a record in a full bucket that can be moved. Records whose buckets are locked by other
    /// threads are skipped.
    pub(super) fn displace_from<'a>(
        &'a self,
        range: LevelRange<'a>,
        site: Site<'a>,
        locks: &mut Locks<'a>,
    ) -> Result<Option<SlotSearch<'a>>> {
        if site.level < range.high && range.high - 1 > range.low {
            // While there are three levels, records of the middle one may still have their home
            // there.
            return Ok(None);
        }
        if !self.lock_bucket(site, locks)? || self.is_drained(site, locks) {
            return Ok(Some(SlotSearch::busy(site)));
        }
        for (slot, record) in self.records_of(site) {
            if let Some(free) = self.try_displace(range, site, slot, record.hashes, locks)? {
                return Ok(Some(free));
            }
        }
        Ok(None)
    }

    /// Looks for another bucket for a record with these hashes that is in a slot of a locked
    /// bucket.
    fn try_displace<'a>(
        &'a self,
        range: LevelRange<'a>,
        site: Site<'a>,
        slot: usize,
        hashes: KeyHashes,
        locks: &mut Locks<'a>,
    ) -> Result<Option<SlotSearch<'a>>> {
        let m = self.medium();
        let Some(target) = self.target_for(range, site, hashes)? else { return Ok(None) };
        let home = self.levels.site(range.high, first_index::<G>(hashes, range.high))?;
        if !self.lock_bucket(home, locks)? {
            locks.skipped = Some(home);
            return Ok(None);
        }
        if locks.of(home.bucket).is_some_and(|locked| locked.version.is_promoted()) {
            // The view was read before the table grew.
            return Ok(Some(SlotSearch::busy(home)));
        }
        // Read again, because its word could change until its home was locked.
        let record = self.record_at(site, slot);
        if self.has_copy(range, record, site)? {
            // A crash interrupted an earlier movement of this record, after it was copied.
            return Ok(Some(SlotSearch::Found(FreeSlot { site, slot, victim: None })));
        }
        if !self.lock_bucket(target, locks)? {
            locks.skipped = Some(target);
            return Ok(None);
        }
        if self.is_drained(target, locks) {
            return Ok(Some(SlotSearch::busy(target)));
        }
        if self.must_stay(hashes) {
            return Ok(Some(SlotSearch::Busy(Blocker::Walk(hashes))));
        }
        let free_slot = meta_of(m, target.bucket).free_slot(G::SLOTS);
        Ok(free_slot.map(|free_slot| {
            let victim = Some(Victim { record, site: target, slot: free_slot });
            SlotSearch::Found(FreeSlot { site, slot, victim })
        }))
    }

    /// Returns a bucket that seems to have a free slot for a record in the bucket at `site`: in the
    /// same level, or above.
    fn target_for<'a>(
        &'a self,
        range: LevelRange<'a>,
        site: Site<'a>,
        hashes: KeyHashes,
    ) -> Result<Option<Site<'a>>> {
        let m = self.medium();
        for level in (site.level..=range.high).rev() {
            let pair = self.levels.pair(level, hashes)?;
            let emptier = usize::from(
                meta_of(m, pair[1].bucket).count() < meta_of(m, pair[0].bucket).count(),
            );
            for target in [pair[emptier], pair[1 - emptier]] {
                self.ensure_recovered(target)?;
                let elsewhere = !std::ptr::eq(target.bucket, site.bucket);
                if elsewhere && meta_of(m, target.bucket).count() < G::SLOTS {
                    return Ok(Some(target));
                }
            }
        }
        Ok(None)
    }
}
