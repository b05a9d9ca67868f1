//! Growth: preparing the next level, and emptying the lowest.
//!
//! While there are three levels, two things are done to buckets, in steps that any thread can take:
//!
//! * A home in the middle level is *promoted*: from then on, the keys whose home it was have their
//!   home in the level above. No thread may hold its lock at that moment, so each key has one home
//!   at any time, and before it none of its records is in the level above.
//! * A bucket of the lowest level is *drained*: its records are made durable above, and only then
//!   cleared. Then it is closed, so that a thread that read the view earlier stores nothing in it.
//!
//! When all are drained, the lowest level is removed from the root.

use std::sync::atomic::Ordering;

use evermap_index::Key;
use evermap_index::lock_wait::LockWait;
use evermap_pm::sync::MutexGuard;
use evermap_pm::{Error, Guard, Medium, Result};

use super::bucket::{KeyHashes, Locks, Record, erase, meta_of, persistent_tokens, write};
use super::layout::{SLOTS_MAX, Version};
use super::levels::{LARGEST, Site, View, home_index};
use super::placement::{SlotSearch, store_record};
use super::{Blocker, Geometry, Level, LevelRange, Resize};

/// The progress of the next level. Protected by a lock whose holder may wait for buckets, so a
/// thread that holds a bucket must not wait for it.
#[derive(Default)]
pub(super) struct Growth {
    /// The number of buckets that are written in the level in preparation.
    prepared: u64,
}

/// The result of an attempt to empty a bucket.
enum Drain<'a> {
    Empty,
    /// The remaining records have to wait for this.
    Busy(Blocker<'a>),
    /// There is no free slot above for the remaining records.
    Stuck,
}

impl<'a> Drain<'a> {
    /// Another thread holds the lock of this bucket.
    fn busy(site: Site<'a>) -> Self {
        Drain::Busy(Blocker::Bucket(site))
    }
}

/// The number of buckets that a mutation prepares in advance: few enough that they add little to
/// its latency, and enough that all are ready in time.
const AHEAD: u64 = 64;

impl<K: Key, M: Medium, G: Geometry> Level<K, M, G> {
    pub(super) fn count_recovered(&self) {
        self.recovered.fetch_add(1, Ordering::Relaxed);
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        // A panic under the lock poisons the region, which every caller checks.
        self.growth.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Ensures that the homes of a bucket of the middle level are promoted. Returns `false` if
    /// another thread holds its lock.
    #[inline(always)]
    pub(super) fn promote_home(&self, site: Site<'_>) -> Result<bool> {
        self.ensure_recovered(site)?;
        let (m, bucket) = (self.medium(), site.bucket);
        let version = Version(m.load(&bucket.version));
        let promoted = version.promoted().advanced();
        Ok(version.is_promoted()
            || version.is_readable(self.generation)
                && m.cas_transient(&bucket.version, version.0, promoted.0).is_ok())
    }

    /// Performs the share of a growth in progress of a mutation whose key has these hashes.
    #[cold]
    pub(super) fn help(&self, hashes: KeyHashes, guard: &Guard<'_>) -> Result<()> {
        if self.resize == Resize::Blocking {
            return self.finish_growth(guard);
        }
        let view = self.levels.view();
        if view.growing {
            // Before new records can fill the buckets above that these two are emptied into: keys
            // in the order of a walk fill one region after another, and would leave no slot for
            // what is still below.
            for bottom in self.levels.pair(view.lowest(), hashes)? {
                self.take_step(view, bottom.index)?;
            }
            // Steps are repeated if adversarial hashes leave no slot above: there may be one later.
            let step = self.cursor.fetch_add(1, Ordering::Relaxed);
            self.take_step(view, step % view.steps())?;
            self.end_growth_if_done(view, guard, None);
        }
        Ok(())
    }

    /// Completes a growth in progress, or waits until another thread has.
    #[cold]
    pub(super) fn finish_growth(&self, guard: &Guard<'_>) -> Result<()> {
        if self.region.ensure_writable().is_err() {
            // A reader that may not write can search three levels.
            return self.region.ensure_sound();
        }
        let poison = self.region.poison_on_panic();
        let mut growth = self.growth();
        let view = self.levels.view();
        let done = if view.growing { self.drain_all(view, guard, &mut growth) } else { Ok(()) };
        poison.disarm();
        done
    }

    /// Promotes a bucket of the middle level, and empties one of the lowest.
    fn take_step(&self, view: View, step: u64) -> Result<()> {
        let bottom = self.levels.site(view.lowest(), step)?;
        self.ensure_recovered(bottom)?;
        if Version(self.medium().load(&bottom.bucket.version)).is_drained() {
            return Ok(());
        }
        let middle = self.levels.site(view.level, home_index::<G>(step, view.level))?;
        let (mut lock_wait, mut walk_block) = (LockWait::default(), None);
        while !self.promote_home(middle)? {
            self.wait_for_bucket(middle, &mut lock_wait)?;
        }
        loop {
            let mut locks = Locks::new();
            let drained = self.drain(view, bottom, &mut locks);
            locks.release(self.medium());
            // Before this thread waits for anything.
            drop(walk_block.take());
            match drained? {
                Drain::Busy(what) => walk_block = self.wait_for_blocker(what, &mut lock_wait)?,
                Drain::Empty | Drain::Stuck => return Ok(()),
            }
        }
    }

    /// Moves the records of a bucket of the lowest level up, with one fence for all copies and one
    /// for all erasures. The caller releases the locks.
    fn drain<'a>(
        &'a self,
        view: View,
        bottom: Site<'a>,
        locks: &mut Locks<'a>,
    ) -> Result<Drain<'a>> {
        let m = self.medium();
        if !self.lock_bucket(bottom, locks)? {
            return Ok(Drain::busy(bottom));
        }
        let locked = locks.of(bottom.bucket).expect("just locked");
        if locked.version.is_drained() {
            return Ok(Drain::Empty);
        }
        let (mut moved, mut rest) = ([false; SLOTS_MAX], Drain::Empty);
        for (slot, _) in self.records_of(bottom) {
            match self.copy_up(view, bottom, slot, moved.contains(&true), locks) {
                Ok(Drain::Empty) => moved[slot] = true,
                // A busy bucket decides the result: what is stuck now may find a slot later.
                Ok(Drain::Busy(what)) => {
                    rest = Drain::Busy(what);
                    break;
                }
                Ok(Drain::Stuck) => rest = Drain::Stuck,
                Err(error) => {
                    // Copied records must not stay in both places.
                    self.clear_moved(bottom, &moved, locks);
                    return Err(error);
                }
            }
        }
        self.clear_moved(bottom, &moved, locks);
        if persistent_tokens(m, bottom.bucket) == 0 {
            let locked = locks.of(bottom.bucket).expect("still locked");
            locked.version = locked.version.drained();
            // Release: a thread that sees that all are drained sees them empty.
            self.undrained.fetch_sub(1, Ordering::Release);
        }
        Ok(rest)
    }

    /// Writes a record of the lowest level to a bucket above, durable at the next fence. `Empty`
    /// means that it may be erased here. If `pending` is set, other records of the bucket wait for
    /// that fence, so none may be displaced.
    fn copy_up<'a>(
        &'a self,
        view: View,
        bottom: Site<'a>,
        slot: usize,
        pending: bool,
        locks: &mut Locks<'a>,
    ) -> Result<Drain<'a>> {
        let m = self.medium();
        let hashes = self.record_at(bottom, slot).hashes;
        let range = match self.lock_home(view, hashes, locks)? {
            Ok(range) => range,
            Err(site) => return Ok(Drain::busy(site)),
        };
        // Read under the lock of its home, so that its word does not change.
        let record = self.record_at(bottom, slot);
        if self.has_copy(range, record, bottom)? {
            // A crash interrupted an earlier movement of this record, after it was copied.
            return Ok(Drain::Empty);
        }
        for level in [range.high, view.level] {
            let pair = self.levels.pair(level, hashes)?;
            let [first, second] = pair.map(|site| meta_of(m, site.bucket).count());
            let order = if first <= second { [0, 1] } else { [1, 0] };
            for target in order.map(|i| pair[i]) {
                self.ensure_recovered(target)?;
                if meta_of(m, target.bucket).count() >= G::SLOTS {
                    continue;
                }
                if !self.lock_bucket(target, locks)? {
                    return Ok(Drain::busy(target));
                }
                if self.must_stay(hashes) {
                    return Ok(Drain::Busy(Blocker::Walk(hashes)));
                }
                if let Some(there) = meta_of(m, target.bucket).free_slot(G::SLOTS) {
                    write(m, target.bucket, there, record);
                    return Ok(Drain::Empty);
                }
            }
        }
        if pending { Ok(Drain::busy(bottom)) } else { self.push_up(range, record, locks) }
    }

    /// Writes a record of the lowest level durably to a bucket at the top from which another record
    /// is displaced.
    fn push_up<'a>(
        &'a self,
        range: LevelRange<'a>,
        record: Record,
        locks: &mut Locks<'a>,
    ) -> Result<Drain<'a>> {
        for target in self.levels.pair(range.high, record.hashes)? {
            match self.displace_from(range, target, locks)? {
                Some(SlotSearch::Busy(what)) => return Ok(Drain::Busy(what)),
                // Its bucket is locked now.
                Some(SlotSearch::Found(_)) if self.must_stay(record.hashes) => {
                    return Ok(Drain::Busy(Blocker::Walk(record.hashes)));
                }
                Some(SlotSearch::Found(free)) => {
                    locks.changed = true;
                    store_record(self.medium(), free, record);
                    return Ok(Drain::Empty);
                }
                Some(SlotSearch::Full) | None => {}
            }
        }
        Ok(locks.skipped.map_or(Drain::Stuck, Drain::busy))
    }

    /// Erases the records of a bucket that are durable elsewhere after the next fence of this
    /// thread.
    fn clear_moved(&self, bottom: Site<'_>, moved: &[bool; SLOTS_MAX], locks: &mut Locks<'_>) {
        let m = self.medium();
        if !moved.contains(&true) {
            return;
        }
        locks.changed = true;
        // Durable above before they are erased here.
        m.fence();
        (0..SLOTS_MAX).filter(|&slot| moved[slot]).for_each(|slot| erase(m, bottom.bucket, slot));
        // Durable here before the records above are changed: otherwise a crash would restore the
        // old ones.
        m.fence();
    }

    /// Ends the growth if every bucket of the lowest level is drained. `growth` is the locked
    /// state, if the caller has it.
    fn end_growth_if_done(&self, view: View, guard: &Guard<'_>, growth: Option<&mut Growth>) {
        // Acquire: pairs with the release in `drain`.
        if self.undrained.load(Ordering::Acquire) > 0 {
            return;
        }
        let _growth = if growth.is_none() { Some(self.growth()) } else { None };
        if self.levels.view() == view && self.undrained.load(Ordering::Acquire) == 0 {
            self.levels.end_growth(view, guard);
            self.resizes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes all remaining steps, and ends the growth unless adversarial hashes leave no slot above
    /// for some record.
    fn drain_all(&self, view: View, guard: &Guard<'_>, growth: &mut Growth) -> Result<()> {
        for step in 0..view.steps() {
            self.take_step(view, step)?;
        }
        self.end_growth_if_done(view, guard, Some(growth));
        Ok(())
    }

    /// Prepares a few buckets of the next level when buckets begin to be full, so that it is
    /// complete when it is needed.
    #[cold]
    pub(super) fn prepare_ahead(&self, guard: &Guard<'_>) -> Result<()> {
        if self.resize == Resize::Blocking || self.no_space_ahead.load(Ordering::Relaxed) {
            return Ok(());
        }
        // If another thread is doing this, one is enough.
        let Ok(mut growth) = self.growth.try_lock() else { return Ok(()) };
        let view = self.levels.view();
        if view.growing || view.level >= LARGEST {
            return Ok(());
        }
        match self.prepare(view, AHEAD, guard, &mut growth) {
            // Not needed yet. When it is, the operation that needs it reports that there is no
            // space.
            Err(error) if error.is_no_space() => {
                self.no_space_ahead.store(true, Ordering::Relaxed);
                Ok(())
            }
            done => done,
        }
    }

    /// Prepares up to `count` more buckets of the next level.
    ///
    /// # Errors
    /// `NoSpace`; then what was prepared is freed.
    fn prepare(
        &self,
        view: View,
        count: u64,
        guard: &Guard<'_>,
        growth: &mut Growth,
    ) -> Result<()> {
        let above = view.level + 1;
        let count = count.min((1 << above) - growth.prepared);
        if count == 0 {
            return Ok(());
        }
        if !self.levels.is_prepared(view) {
            self.levels.begin_preparation(above)?;
        }
        let extended = self.levels.extend(above, growth.prepared, count);
        // The chunks and buckets are durable before they are counted as prepared.
        self.medium().fence();
        match extended {
            Ok(()) => growth.prepared += count,
            Err(_) => {
                self.levels.abandon_preparation(above, guard);
                growth.prepared = 0;
            }
        }
        extended
    }

    /// Adds a level to a table that has no slot for some key, or helps with a growth in progress.
    ///
    /// # Errors
    /// `NoSpace` if there is no space, or if the table is so empty that growing would not help.
    #[cold]
    pub(super) fn grow(&self, guard: &Guard<'_>) -> Result<()> {
        let asked = self.levels.view();
        let mut growth = self.growth();
        let view = self.levels.view();
        if view != asked {
            // Another thread made it larger meanwhile.
            return Ok(());
        }
        if view.growing {
            self.drain_all(view, guard, &mut growth)?;
            let ended = self.levels.view() != view;
            return if ended { Ok(()) } else { Err(self.growth_refused(view)) };
        }
        if view.level >= LARGEST || !self.is_worth_growing(view)? {
            return Err(self.growth_refused(view));
        }
        self.prepare(view, u64::MAX, guard, &mut growth)?;
        self.no_space_ahead.store(false, Ordering::Relaxed);
        growth.prepared = 0;
        self.cursor.store(0, Ordering::Relaxed);
        self.undrained.store(view.steps(), Ordering::Relaxed);
        let growing = self.levels.begin_growth(view);
        if self.resize == Resize::Blocking {
            self.drain_all(growing, guard, &mut growth)?;
        }
        Ok(())
    }

    #[cold]
    fn growth_refused(&self, view: View) -> Error {
        let what = "the four buckets of a key are full although the table is not: \
                    too many keys have equal hashes";
        Error::no_space(what, self.levels.next_bytes(view))
    }

    /// Returns `true` if the table is so full that a larger one would help. With uniform hashes the
    /// table is nearly full when a key finds no slot. Without this condition, keys with equal
    /// hashes would double it without limit. Decides by a sample.
    fn is_worth_growing(&self, view: View) -> Result<bool> {
        const SAMPLE: u64 = 256;
        let buckets = 1u64 << view.level;
        let (looked, stride) = (buckets.min(SAMPLE), (buckets / SAMPLE).max(1));
        let mut taken = 0;
        for i in 0..looked {
            // From all parts of the regions, because their lower halves are filled first.
            let bucket = self.levels.site(view.level, i * stride + i % stride)?.bucket;
            taken += u64::from(persistent_tokens(self.medium(), bucket).count_ones());
        }
        Ok(taken * 4 >= looked * G::SLOTS as u64)
    }
}
