//! Recovery, one bucket and one record at a time, when they are first touched.
//!
//! Every opener begins with all buckets stale: their version words carry the number of an earlier one. The first
//! to meet a stale bucket makes its fingerprints, and its copy of the tokens, from what persists; and makes that durable,
//! because a process that died may have only stored it.
//!
//! A crash in the middle of a movement leaves the record in both places, with the same word. To lookups that makes
//! no difference. Whoever changes or moves a record looks for copies first, under the lock of the record's home,
//! and drops all but the first: until the sweep, which passes every record, has found that there are none.

use evermap_pm::medium::Note;
use evermap_pm::{Medium, Result};

use super::bucket::{Locks, Record, erase, meta_of, persistent_tokens, slot_of};
use super::layout::{Meta, Version};
use super::levels::{Site, first_of, second_of};
use super::{Level, Place, Reach};
use crate::Key;
use crate::hash::FOUND_LATE;
use crate::hash::lock_wait::LockWait;

impl<K: Key, M: Medium, const N: usize, const C: u32> Level<K, M, N, C> {
    /// Recovers a bucket if nobody has.
    #[inline(always)]
    pub(super) fn ensure_fresh(&self, site: Site<'_>) -> Result<()> {
        let version = Version(self.medium().load(&site.bucket.version));
        if version.is_of(self.generation) { Ok(()) } else { self.recover(site) }
    }

    /// Recovers a stale bucket, or waits until someone else has. Takes no other lock.
    ///
    /// # Errors
    /// `Damaged` if what leads here is damaged; nothing is changed then.
    #[cold]
    pub(super) fn recover(&self, site: Site<'_>) -> Result<()> {
        self.region.ensure_sound()?;
        self.levels.ensure_named(site)?;
        let m = self.medium();
        let stripe = site.position() as usize % self.recovering.len();
        let _one_at_a_time =
            self.recovering[stripe].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if Version(m.load(&site.bucket.version)).is_of(self.generation) {
            return Ok(());
        }
        self.rebuild(site);
        let fresh = Version::fresh(self.generation);
        let view = self.levels.view();
        // Nobody has had a home here since the region was opened, so it can be handed over at once. After a crash it
        // has to be: records may be in the level above already.
        let hands_over = view.growing && site.level == view.level;
        let version = if hands_over { fresh.handed() } else { fresh };
        // The version comes last: until then everyone waits for us.
        m.store_transient(&site.bucket.version, version.0);
        self.count_recovered();
        Ok(())
    }

    /// Makes what is not flushed from what is.
    fn rebuild(&self, site: Site<'_>) {
        let (m, bucket) = (self.medium(), site.bucket);
        let tokens = persistent_tokens(m, bucket);
        let valid = (0..N).filter(|slot| tokens >> slot & 1 == 1);
        let (mut meta, mut strays) = (Meta::default(), false);
        for slot in valid {
            let spot = self.record_at(site, slot).spot;
            if self.belongs(site, spot) {
                meta = meta.with(slot, spot.fingerprint);
            } else {
                strays = true;
            }
        }
        if strays || tokens >> N != 0 {
            // Damage: nobody would find what is in these slots, and everybody would stumble over it.
            m.store(&bucket.meta, meta.0);
            m.store(&bucket.tokens, u64::from(meta.taken()) >> super::layout::LINE_SLOTS);
        } else {
            m.store_transient(&bucket.meta, meta.0);
        }
        // Whoever stored what is here may have died before it was durable: nobody relies on it earlier.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(bucket);
    }

    /// Whether a record at this spot can be in this bucket.
    pub(super) fn belongs(&self, site: Site<'_>, spot: super::bucket::Spot) -> bool {
        [first_of::<C>(spot, site.level), second_of::<C>(spot, site.level)].contains(&site.index)
    }

    /// Whether a crash may have left copies that nobody has dropped.
    #[inline(always)]
    fn may_have_copies(&self) -> bool {
        !self.pool.is_swept()
    }

    /// The slots in reach that hold this record.
    fn copies<'a>(&'a self, reach: Reach<'a>, record: Record) -> Result<Vec<(Site<'a>, usize)>> {
        let m = self.medium();
        let mut copies = Vec::new();
        for level in (reach.low..=reach.high).rev() {
            for site in self.levels.pair(level, record.spot)? {
                self.ensure_fresh(site)?;
                let taken = meta_of(m, site.bucket).taken();
                copies.extend((0..N).filter(|slot| taken >> slot & 1 == 1).filter_map(|slot| {
                    let cells = slot_of(site.bucket, slot);
                    // Records of keys with equal hashes differ in their words; copies do not.
                    let same = m.load(&cells.key) == record.slot_key
                        && (!K::WORDS_ARE_RECORDS || m.load(&cells.word) == record.word);
                    same.then_some((site, slot))
                }));
            }
        }
        Ok(copies)
    }

    /// Whether a record, whose home is locked, is in another bucket than this one too.
    pub(super) fn has_copy(
        &self,
        reach: Reach<'_>,
        record: Record,
        site: Site<'_>,
    ) -> Result<bool> {
        if !self.may_have_copies() {
            return Ok(false);
        }
        let elsewhere = |other: &Site<'_>| !std::ptr::eq(other.bucket, site.bucket);
        Ok(self.copies(reach, record)?.iter().any(|(other, _)| elsewhere(other)))
    }

    /// Drops what copies of a record a crash has left, but for the one at `place`, which is the first. The record's
    /// home is locked. Answers the bucket in the way, if one is locked by another thread.
    #[inline(always)]
    pub(super) fn drop_copies<'a>(
        &'a self,
        reach: Reach<'a>,
        place: &Place<'a>,
        locks: &mut Locks<'a>,
    ) -> Result<Option<Site<'a>>> {
        if !self.may_have_copies() {
            return Ok(None);
        }
        let record = self.record_at(place.site, place.slot);
        self.drop_copies_of(reach, record, locks)
    }

    /// The same for the first of a record's copies, wherever that is.
    #[cold]
    pub(super) fn drop_copies_of<'a>(
        &'a self,
        reach: Reach<'a>,
        record: Record,
        locks: &mut Locks<'a>,
    ) -> Result<Option<Site<'a>>> {
        for (site, slot) in self.copies(reach, record)?.into_iter().skip(1) {
            if !self.take(site, locks)? {
                return Ok(Some(site));
            }
            erase(self.medium(), site.bucket, slot);
            // Durable before anyone changes the record: what changed it would not change the copy.
            self.medium().note(Note::Harmless(
                "needed by other threads: `a_copy_that_is_dropped_is_gone_for_good`",
            ));
            self.medium().fence();
            locks.changed = true;
        }
        Ok(None)
    }

    /// Makes sure that a record which a walk has met is there only once.
    pub(super) fn make_unique(&self, record: Record) -> Result<()> {
        if !self.may_have_copies() {
            return Ok(());
        }
        let mut patience = LockWait::default();
        loop {
            let mut locks = Locks::new();
            let busy = match self.lock_home(self.levels.view(), record.spot, &mut locks) {
                Ok(Ok(reach)) => self.drop_copies_of(reach, record, &mut locks),
                Ok(Err(site)) => Ok(Some(site)),
                Err(error) => Err(error),
            };
            locks.release(self.medium());
            match busy? {
                Some(site) => self.wait_with(site, &mut patience)?,
                None => return Ok(()),
            }
        }
    }
}
