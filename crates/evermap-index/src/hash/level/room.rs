//! Where a new record goes.
//!
//! In the order of the paper: to the emptier of its two buckets in the top level, then of those in the level below;
//! else another record makes room, by moving to its other bucket in the same level, or from the bottom to the top.

use evermap_pm::{Medium, Result};

use super::bucket::{Locks, Record, Spot, meta_of, write};
use super::levels::{Site, first_of};
use super::{InTheWay, Level, Reach};
use crate::Key;

/// A slot for a record, in a locked bucket.
pub(super) struct Room<'a> {
    site: Site<'a>,
    slot: usize,
    /// The record that has to leave the slot, and where it goes. Its home and both buckets are locked.
    pub(super) victim: Option<Victim<'a>>,
}

/// A record that makes room.
pub(super) struct Victim<'a> {
    record: Record,
    site: Site<'a>,
    slot: usize,
}

/// What the search for room found.
pub(super) enum MakeRoom<'a> {
    Room(Room<'a>),
    /// Release everything, wait for this, and try again.
    Busy(InTheWay<'a>),
    /// The table must grow.
    Full,
}

impl<'a> MakeRoom<'a> {
    /// A bucket is locked, or takes no more records.
    fn busy(site: Site<'a>) -> Self {
        MakeRoom::Busy(InTheWay::Bucket(site))
    }
}

/// Puts a record into the room that was made for it, durably.
#[inline(always)]
pub(super) fn place<M: Medium>(m: &M, room: Room<'_>, record: Record) {
    if let Some(victim) = room.victim {
        write(m, victim.site.bucket, victim.slot, victim.record);
        // Durable there before it goes from here.
        m.fence();
    }
    write(m, room.site.bucket, room.slot, record);
    m.fence();
}

impl<K: Key, M: Medium, const N: usize, const C: u32> Level<K, M, N, C> {
    /// Fills this many slots of the home bucket before the other bucket of the top level is considered: it is the
    /// one that is locked already, and the one that lookups come to first.
    const HOME_FIRST: usize = N * 2 / 3;

    /// Finds a slot for a record at this spot, which is nowhere in reach.
    #[inline(always)]
    pub(super) fn make_room<'a>(
        &'a self,
        reach: Reach<'a>,
        spot: Spot,
        locks: &mut Locks<'a>,
    ) -> Result<MakeRoom<'a>> {
        let home = meta_of(self.medium(), reach.home.bucket);
        if let Some(slot) = home.free_slot(Self::HOME_FIRST) {
            return Ok(MakeRoom::Room(Room { site: reach.home, slot, victim: None }));
        }
        self.make_room_further(reach, spot, locks)
    }

    fn make_room_further<'a>(
        &'a self,
        reach: Reach<'a>,
        spot: Spot,
        locks: &mut Locks<'a>,
    ) -> Result<MakeRoom<'a>> {
        // While the lowest level is emptied, it is not among those that take records.
        let levels = [reach.high, reach.high - 1];
        for level in levels {
            let pair = self.levels.pair(level, spot)?;
            if let Some(room) = self.free_slot_of(pair, locks)? {
                return Ok(room);
            }
        }
        for level in levels {
            for site in self.levels.pair(level, spot)? {
                if let Some(room) = self.make_hole(reach, site, locks)? {
                    return Ok(room);
                }
            }
        }
        // Whoever holds it makes room for us, or lets us, in a moment.
        Ok(locks.passed_over.map_or(MakeRoom::Full, MakeRoom::busy))
    }

    /// A free slot in the emptier of two buckets, the first if they are equally full.
    fn free_slot_of<'a>(
        &self,
        pair: [Site<'a>; 2],
        locks: &mut Locks<'a>,
    ) -> Result<Option<MakeRoom<'a>>> {
        let m = self.medium();
        let [first, second] = pair.map(|site| meta_of(m, site.bucket).count());
        let site = if first <= second { pair[0] } else { pair[1] };
        if first.min(second) >= N {
            return Ok(None);
        }
        if !self.take(site, locks)? || self.is_drained(site, locks) {
            return Ok(Some(MakeRoom::busy(site)));
        }
        // Counted without its lock: the slot may be gone.
        let slot = meta_of(m, site.bucket).free_slot(N);
        Ok(Some(match slot {
            Some(slot) => MakeRoom::Room(Room { site, slot, victim: None }),
            None => MakeRoom::busy(site),
        }))
    }

    /// Whether a locked bucket takes no more records. Only those see one who looked at the levels before it was
    /// emptied.
    fn is_drained(&self, site: Site<'_>, locks: &mut Locks<'_>) -> bool {
        locks.of(site.bucket).is_some_and(|held| held.version.is_drained())
    }

    /// Finds a record in a full bucket that can go elsewhere. Records whose buckets are locked by others are passed
    /// over: others will do.
    pub(super) fn make_hole<'a>(
        &'a self,
        reach: Reach<'a>,
        site: Site<'a>,
        locks: &mut Locks<'a>,
    ) -> Result<Option<MakeRoom<'a>>> {
        if site.level < reach.high && reach.high - 1 > reach.low {
            // While there are three levels, records of the middle one may have their home there still.
            return Ok(None);
        }
        if !self.take(site, locks)? || self.is_drained(site, locks) {
            return Ok(Some(MakeRoom::busy(site)));
        }
        for (slot, record) in self.records_of(site) {
            if let Some(room) = self.move_away(reach, site, slot, record.spot, locks)? {
                return Ok(Some(room));
            }
        }
        Ok(None)
    }

    /// Tries to find another place for the record at this spot in a slot of a locked bucket.
    fn move_away<'a>(
        &'a self,
        reach: Reach<'a>,
        site: Site<'a>,
        slot: usize,
        spot: Spot,
        locks: &mut Locks<'a>,
    ) -> Result<Option<MakeRoom<'a>>> {
        let m = self.medium();
        let Some(target) = self.target_for(reach, site, spot)? else { return Ok(None) };
        let home = self.levels.site(reach.high, first_of::<C>(spot, reach.high))?;
        if !self.take(home, locks)? {
            locks.passed_over = Some(home);
            return Ok(None);
        }
        if locks.of(home.bucket).is_some_and(|held| held.version.is_handed()) {
            // We looked at the levels before they grew.
            return Ok(Some(MakeRoom::busy(home)));
        }
        // Again, because its word could change until its home was locked.
        let record = self.record_at(site, slot);
        if self.has_copy(reach, record, site)? {
            // A crash came between its arrival there and its departure from here.
            return Ok(Some(MakeRoom::Room(Room { site, slot, victim: None })));
        }
        if !self.take(target, locks)? {
            locks.passed_over = Some(target);
            return Ok(None);
        }
        if self.is_drained(target, locks) {
            return Ok(Some(MakeRoom::busy(target)));
        }
        if self.must_stay(spot) {
            return Ok(Some(MakeRoom::Busy(InTheWay::Walk(spot))));
        }
        let there = meta_of(m, target.bucket).free_slot(N);
        Ok(there.map(|there| {
            let victim = Some(Victim { record, site: target, slot: there });
            MakeRoom::Room(Room { site, slot, victim })
        }))
    }

    /// A bucket that seems to have room for a record in the bucket at `site`: in the same level, or above.
    fn target_for<'a>(
        &'a self,
        reach: Reach<'a>,
        site: Site<'a>,
        spot: Spot,
    ) -> Result<Option<Site<'a>>> {
        let m = self.medium();
        for level in (site.level..=reach.high).rev() {
            let pair = self.levels.pair(level, spot)?;
            let emptier = usize::from(
                meta_of(m, pair[1].bucket).count() < meta_of(m, pair[0].bucket).count(),
            );
            for target in [pair[emptier], pair[1 - emptier]] {
                self.ensure_fresh(target)?;
                let elsewhere = !std::ptr::eq(target.bucket, site.bucket);
                if elsewhere && meta_of(m, target.bucket).count() < N {
                    return Ok(Some(target));
                }
            }
        }
        Ok(None)
    }
}
