//! Recovery, one bucket and one record at a time, when they are first used.
//!
//! All buckets are stale when an index is opened: their version words contain an earlier
//! generation. The first thread that reaches a stale bucket rebuilds its fingerprints and its copy
//! of the tokens from what is persistent, and makes that durable, because a process that died may
//! have only stored it.
//!
//! A crash during a movement can leave the record in both buckets, with the same word. For lookups
//! that makes no difference. A thread that changes or moves a record looks for duplicates first,
//! under the lock of the record's home, and drops all but the first. The sweep passes every record;
//! after it there are no duplicates.

use evermap_index::FOUND_LATE;
use evermap_index::Key;
use evermap_index::lock_wait::LockWait;
use evermap_pm::medium::Note;
use evermap_pm::{Medium, Result};

use super::bucket::{Locks, Record, erase, meta_of, persistent_tokens, slot_of};
use super::layout::{Meta, Version};
use super::levels::{Site, first_index, second_index};
use super::{FoundRecord, Geometry, Level, LevelRange};

impl<K: Key, M: Medium, G: Geometry> Level<K, M, G> {
    /// Recovers a bucket if it has not been recovered.
    #[inline(always)]
    pub(super) fn ensure_recovered(&self, site: Site<'_>) -> Result<()> {
        let version = Version(self.medium().load(&site.bucket.version));
        if version.is_of(self.generation) { Ok(()) } else { self.recover(site) }
    }

    /// Recovers a stale bucket, or waits until another thread has. Takes no other lock.
    ///
    /// # Errors
    /// `Damaged` if what leads to the bucket is damaged; then nothing is changed.
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
        // No thread has used this bucket as a home since the region was opened, so homes can be
        // promoted immediately. After a crash they must be: records may be in the level above
        // already.
        let promotes = view.growing && site.level == view.level;
        let version = if promotes { fresh.promoted() } else { fresh };
        // The version is stored last: until then other threads wait.
        m.store_transient(&site.bucket.version, version.0);
        self.count_recovered();
        Ok(())
    }

    /// Rebuilds what is not flushed from what is.
    fn rebuild(&self, site: Site<'_>) {
        let (m, bucket) = (self.medium(), site.bucket);
        let tokens = persistent_tokens(m, bucket);
        let valid = (0..G::SLOTS).filter(|slot| tokens >> slot & 1 == 1);
        let (mut meta, mut strays) = (Meta::default(), false);
        for slot in valid {
            let hashes = self.record_at(site, slot).hashes;
            if self.belongs(site, hashes) {
                meta = meta.with(slot, hashes.fingerprint);
            } else {
                strays = true;
            }
        }
        if strays || tokens >> G::SLOTS != 0 {
            // Damage: these records could not be found, and would violate the invariants of later
            // operations.
            m.store(&bucket.meta, meta.0);
            m.store(&bucket.tokens, u64::from(meta.taken()) >> super::layout::LINE_SLOTS);
        } else {
            m.store_transient(&bucket.meta, meta.0);
        }
        // The process that stored this may have died before it was durable. It is used only
        // afterwards.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(bucket);
    }

    /// Returns `true` if a record with these hashes can be in this bucket.
    pub(super) fn belongs(&self, site: Site<'_>, hashes: super::bucket::KeyHashes) -> bool {
        [first_index::<G>(hashes, site.level), second_index::<G>(hashes, site.level)]
            .contains(&site.index)
    }

    /// Returns `true` if a crash may have left duplicates that are not dropped yet.
    #[inline(always)]
    fn may_have_copies(&self) -> bool {
        !self.pool.is_swept()
    }

    /// Returns the slots in these levels that hold this record.
    fn copies<'a>(
        &'a self,
        range: LevelRange<'a>,
        record: Record,
    ) -> Result<Vec<(Site<'a>, usize)>> {
        let m = self.medium();
        let mut copies = Vec::new();
        for level in (range.low..=range.high).rev() {
            for site in self.levels.pair(level, record.hashes)? {
                self.ensure_recovered(site)?;
                let taken = meta_of(m, site.bucket).taken();
                let taken = (0..G::SLOTS).filter(|slot| taken >> slot & 1 == 1);
                copies.extend(taken.filter_map(|slot| {
                    let cells = slot_of(site.bucket, slot);
                    // Records of keys with equal hashes differ in their words; duplicates do not.
                    let same = m.load(&cells.key) == record.slot_key
                        && (!K::WORDS_ARE_RECORDS || m.load(&cells.word) == record.word);
                    same.then_some((site, slot))
                }));
            }
        }
        Ok(copies)
    }

    /// Returns `true` if a record, whose home is locked, is also in another bucket than this one.
    pub(super) fn has_copy(
        &self,
        range: LevelRange<'_>,
        record: Record,
        site: Site<'_>,
    ) -> Result<bool> {
        if !self.may_have_copies() {
            return Ok(false);
        }
        let elsewhere = |other: &Site<'_>| !std::ptr::eq(other.bucket, site.bucket);
        Ok(self.copies(range, record)?.iter().any(|(other, _)| elsewhere(other)))
    }

    /// Drops the duplicates of a record that a crash has left, all but the first. The record's home
    /// is locked. Returns the blocking bucket if another thread holds the lock of one.
    #[inline(always)]
    pub(super) fn drop_copies<'a>(
        &'a self,
        range: LevelRange<'a>,
        found: &FoundRecord<'a>,
        locks: &mut Locks<'a>,
    ) -> Result<Option<Site<'a>>> {
        if !self.may_have_copies() {
            return Ok(None);
        }
        let record = self.record_at(found.site, found.slot);
        self.drop_copies_of(range, record, locks)
    }

    /// Does the same as [`drop_copies`](Self::drop_copies) for a record that was read before.
    #[cold]
    pub(super) fn drop_copies_of<'a>(
        &'a self,
        range: LevelRange<'a>,
        record: Record,
        locks: &mut Locks<'a>,
    ) -> Result<Option<Site<'a>>> {
        for (site, slot) in self.copies(range, record)?.into_iter().skip(1) {
            if !self.lock_bucket(site, locks)? {
                return Ok(Some(site));
            }
            erase(self.medium(), site.bucket, slot);
            // Durable before the record is changed, because the change does not affect the
            // duplicate.
            self.medium().note(Note::Harmless(
                "needed by other threads: `a_copy_that_is_dropped_is_gone_for_good`",
            ));
            self.medium().fence();
            locks.changed = true;
        }
        Ok(None)
    }

    /// Ensures that a record that a walk has reached is stored only once.
    pub(super) fn make_unique(&self, record: Record) -> Result<()> {
        if !self.may_have_copies() {
            return Ok(());
        }
        let mut lock_wait = LockWait::default();
        loop {
            let mut locks = Locks::new();
            let busy = match self.lock_home(self.levels.view(), record.hashes, &mut locks) {
                Ok(Ok(range)) => self.drop_copies_of(range, record, &mut locks),
                Ok(Err(site)) => Ok(Some(site)),
                Err(error) => Err(error),
            };
            locks.release(self.medium());
            match busy? {
                Some(site) => self.wait_for_bucket(site, &mut lock_wait)?,
                None => return Ok(()),
            }
        }
    }
}
