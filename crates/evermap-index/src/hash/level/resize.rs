//! Growth: preparing the next level, emptying the lowest.
//!
//! While there are three levels, two things happen to each bucket once, in steps that any thread can take:
//!
//! * A home in the middle level *hands over*: the keys whose home it was have it in the level
//!   above from then on. Nobody may be holding it at that moment, so each key has one home at any time, and until
//!   then none of its records is in the level above.
//! * A bucket of the lowest level is *drained*: its records are made durable above, and only then cleared. Then it
//!   is closed, so that nobody who looked at the levels earlier places anything there.
//!
//! When all have, the root forgets the lowest level.

use std::sync::atomic::Ordering;

use evermap_pm::sync::MutexGuard;
use evermap_pm::{Error, Guard, Medium, Result};

use super::bucket::{Locks, Record, erase, meta_of, persistent_tokens, write};
use super::layout::{SLOTS_MAX, Version};
use super::levels::{LARGEST, Site, View, home};
use super::room::{MakeRoom, place};
use super::{InTheWay, Level, Reach, Resize};
use crate::Key;
use crate::hash::lock_wait::LockWait;

/// What has been done for the next level. Locked by whoever works on it; its owner may wait for buckets, so nobody
/// who holds one waits for it.
#[derive(Default)]
pub(super) struct Growth {
    /// Buckets of the level in preparation that are written.
    prepared: u64,
}

/// How an attempt to empty a bucket ended.
enum Drain<'a> {
    Empty,
    /// The rest has to wait for this.
    Busy(InTheWay<'a>),
    /// The rest finds no room above.
    Stuck,
}

impl<'a> Drain<'a> {
    /// This bucket is locked by another thread.
    fn busy(site: Site<'a>) -> Self {
        Drain::Busy(InTheWay::Bucket(site))
    }
}

/// Buckets that a mutation prepares ahead: so few that nobody notices, so many that all are ready in time.
const AHEAD: u64 = 64;

impl<K: Key, M: Medium, const N: usize, const C: u32> Level<K, M, N, C> {
    pub(super) fn count_recovered(&self) {
        self.recovered.fetch_add(1, Ordering::Relaxed);
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        // A panic under the lock poisons the region, which every caller checks.
        self.growth.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes sure that a bucket of the middle level has handed its keys' homes to the level above; `false` if
    /// another thread holds it.
    #[inline(always)]
    pub(super) fn hand_over(&self, site: Site<'_>) -> Result<bool> {
        self.ensure_fresh(site)?;
        let (m, bucket) = (self.medium(), site.bucket);
        let version = Version(m.load(&bucket.version));
        let handed = version.handed().advanced();
        Ok(version.is_handed()
            || version.is_readable(self.generation)
                && m.cas_transient(&bucket.version, version.0, handed.0).is_ok())
    }

    /// A mutation's share in a growth that is under way.
    #[cold]
    pub(super) fn help(&self, guard: &Guard<'_>) -> Result<()> {
        if self.resize == Resize::Blocking {
            return self.finish_growth(guard);
        }
        let view = self.levels.view();
        if view.growing {
            // Each step again where chosen hashes leave no room above: there may be some by then.
            let step = self.cursor.fetch_add(1, Ordering::Relaxed);
            self.take_step(view, step % view.steps())?;
            self.end_growth_if_done(view, guard, None);
        }
        Ok(())
    }

    /// Completes a growth that is under way, or waits until someone else has.
    #[cold]
    pub(super) fn finish_growth(&self, guard: &Guard<'_>) -> Result<()> {
        if self.region.ensure_writable().is_err() {
            // Who may not write can look at three levels.
            return self.region.ensure_sound();
        }
        let poison = self.region.poison_on_panic();
        let mut growth = self.growth();
        let view = self.levels.view();
        let done = if view.growing { self.drain_all(view, guard, &mut growth) } else { Ok(()) };
        poison.disarm();
        done
    }

    /// Hands over a bucket of the middle level, and empties one of the lowest.
    fn take_step(&self, view: View, step: u64) -> Result<()> {
        let bottom = self.levels.site(view.lowest(), step)?;
        self.ensure_fresh(bottom)?;
        if Version(self.medium().load(&bottom.bucket.version)).is_drained() {
            return Ok(());
        }
        let middle = self.levels.site(view.level, home::<C>(step, view.level))?;
        let (mut patience, mut kept_out) = (LockWait::default(), None);
        while !self.hand_over(middle)? {
            self.wait_with(middle, &mut patience)?;
        }
        loop {
            let mut locks = Locks::new();
            let drained = self.drain(view, bottom, &mut locks);
            locks.release(self.medium());
            // Before anything is waited for.
            drop(kept_out.take());
            match drained? {
                Drain::Busy(what) => kept_out = self.wait_out(what, &mut patience)?,
                Drain::Empty | Drain::Stuck => return Ok(()),
            }
        }
    }

    /// Moves the records of a bucket of the lowest level up, with one fence for all copies and one for all that is
    /// cleared. The caller releases the locks.
    fn drain<'a>(
        &'a self,
        view: View,
        bottom: Site<'a>,
        locks: &mut Locks<'a>,
    ) -> Result<Drain<'a>> {
        let m = self.medium();
        if !self.take(bottom, locks)? {
            return Ok(Drain::busy(bottom));
        }
        let held = locks.of(bottom.bucket).expect("just locked");
        if held.version.is_drained() {
            return Ok(Drain::Empty);
        }
        let (mut moved, mut rest) = ([false; SLOTS_MAX], Drain::Empty);
        for (slot, _) in self.records_of(bottom) {
            match self.copy_up(view, bottom, slot, moved.contains(&true), locks) {
                Ok(Drain::Empty) => moved[slot] = true,
                // That decides: what is stuck now may have room then.
                Ok(Drain::Busy(what)) => {
                    rest = Drain::Busy(what);
                    break;
                }
                Ok(Drain::Stuck) => rest = Drain::Stuck,
                Err(error) => {
                    // What was copied must not stay in both places.
                    self.clear_moved(bottom, &moved, locks);
                    return Err(error);
                }
            }
        }
        self.clear_moved(bottom, &moved, locks);
        if persistent_tokens(m, bottom.bucket) == 0 {
            let held = locks.of(bottom.bucket).expect("still locked");
            held.version = held.version.drained();
            // Release: whoever sees that all are drained sees them empty.
            self.undrained.fetch_sub(1, Ordering::Release);
        }
        Ok(rest)
    }

    /// Writes a record of the lowest level into a bucket above, durable at the next fence. `Empty` means that it may
    /// go from here. `pending` says that others of its bucket wait for that fence: they must not make room.
    fn copy_up<'a>(
        &'a self,
        view: View,
        bottom: Site<'a>,
        slot: usize,
        pending: bool,
        locks: &mut Locks<'a>,
    ) -> Result<Drain<'a>> {
        let m = self.medium();
        let spot = self.record_at(bottom, slot).spot;
        let reach = match self.lock_home(view, spot, locks)? {
            Ok(reach) => reach,
            Err(site) => return Ok(Drain::busy(site)),
        };
        // Read under the lock of its home, so that its word stays what it is.
        let record = self.record_at(bottom, slot);
        if self.has_copy(reach, record, bottom)? {
            // A crash came between its arrival there and its departure from here.
            return Ok(Drain::Empty);
        }
        for level in [reach.high, view.level] {
            let pair = self.levels.pair(level, spot)?;
            let [first, second] = pair.map(|site| meta_of(m, site.bucket).count());
            let order = if first <= second { [0, 1] } else { [1, 0] };
            for target in order.map(|i| pair[i]) {
                self.ensure_fresh(target)?;
                if meta_of(m, target.bucket).count() >= N {
                    continue;
                }
                if !self.take(target, locks)? {
                    return Ok(Drain::busy(target));
                }
                if self.must_stay(spot) {
                    return Ok(Drain::Busy(InTheWay::Walk(spot)));
                }
                if let Some(there) = meta_of(m, target.bucket).free_slot(N) {
                    write(m, target.bucket, there, record);
                    return Ok(Drain::Empty);
                }
            }
        }
        if pending { Ok(Drain::busy(bottom)) } else { self.push_up(reach, record, locks) }
    }

    /// Writes a record of the lowest level, durably, into a bucket at the top that another record has to leave.
    fn push_up<'a>(
        &'a self,
        reach: Reach<'a>,
        record: Record,
        locks: &mut Locks<'a>,
    ) -> Result<Drain<'a>> {
        for target in self.levels.pair(reach.high, record.spot)? {
            match self.make_hole(reach, target, locks)? {
                Some(MakeRoom::Busy(what)) => return Ok(Drain::Busy(what)),
                // Its bucket is locked now.
                Some(MakeRoom::Room(_)) if self.must_stay(record.spot) => {
                    return Ok(Drain::Busy(InTheWay::Walk(record.spot)));
                }
                Some(MakeRoom::Room(room)) => {
                    locks.changed = true;
                    place(self.medium(), room, record);
                    return Ok(Drain::Empty);
                }
                Some(MakeRoom::Full) | None => {}
            }
        }
        Ok(locks.passed_over.map_or(Drain::Stuck, Drain::busy))
    }

    /// Clears the records of a bucket that are durable elsewhere once this thread has fenced.
    fn clear_moved(&self, bottom: Site<'_>, moved: &[bool; SLOTS_MAX], locks: &mut Locks<'_>) {
        let m = self.medium();
        if !moved.contains(&true) {
            return;
        }
        locks.changed = true;
        // Durable above before they go from here.
        m.fence();
        (0..SLOTS_MAX).filter(|&slot| moved[slot]).for_each(|slot| erase(m, bottom.bucket, slot));
        // Durable here before anyone changes the records above: a crash would bring the old ones back.
        m.fence();
    }

    /// Ends the growth if every bucket of the lowest level is drained. `growth` is the lock, if the caller has it.
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

    /// Takes all steps that are left, and ends the growth; it cannot where chosen hashes leave no room above for a
    /// record.
    fn drain_all(&self, view: View, guard: &Guard<'_>, growth: &mut Growth) -> Result<()> {
        for step in 0..view.steps() {
            self.take_step(view, step)?;
        }
        self.end_growth_if_done(view, guard, Some(growth));
        Ok(())
    }

    /// Prepares a few buckets of the next level, now that buckets begin to be full, so that it is complete when it is
    /// needed.
    #[cold]
    pub(super) fn prepare_ahead(&self, guard: &Guard<'_>) -> Result<()> {
        if self.resize == Resize::Blocking || self.cramped.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Somebody else is at it: one is enough.
        let Ok(mut growth) = self.growth.try_lock() else { return Ok(()) };
        let view = self.levels.view();
        if view.growing || view.level >= LARGEST {
            return Ok(());
        }
        match self.prepare(view, AHEAD, guard, &mut growth) {
            // Not needed yet. When it is, whoever needs it learns that there is no space.
            Err(error) if error.is_no_space() => {
                self.cramped.store(true, Ordering::Relaxed);
                Ok(())
            }
            done => done,
        }
    }

    /// Prepares up to `count` further buckets of the next level.
    ///
    /// # Errors
    /// `NoSpace`; what was prepared is given back then.
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
        // The chunks and buckets are durable before they count as prepared.
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

    /// Adds a level to the table, which has no room for some key; or helps one that is being added.
    ///
    /// # Errors
    /// `NoSpace` if there is none, or if the table is so empty that growing would not help.
    #[cold]
    pub(super) fn make_larger(&self, guard: &Guard<'_>) -> Result<()> {
        let asked = self.levels.view();
        let mut growth = self.growth();
        let view = self.levels.view();
        if view != asked {
            // Someone else made it larger while we waited.
            return Ok(());
        }
        if view.growing {
            self.drain_all(view, guard, &mut growth)?;
            let ended = self.levels.view() != view;
            return if ended { Ok(()) } else { Err(self.pointless(view)) };
        }
        if view.level >= LARGEST || !self.is_worth_growing(view)? {
            return Err(self.pointless(view));
        }
        self.prepare(view, u64::MAX, guard, &mut growth)?;
        self.cramped.store(false, Ordering::Relaxed);
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
    fn pointless(&self, view: View) -> Error {
        let what = "the four buckets of a key are full though the table is not: too many keys have equal hashes";
        Error::no_space(what, self.levels.next_bytes(view))
    }

    /// Whether the table is so full that a larger one would help. With well-spread hashes it is nearly full when a
    /// key finds no room; without this bound, keys with equal hashes would double it for ever. A sample decides.
    fn is_worth_growing(&self, view: View) -> Result<bool> {
        const SAMPLE: u64 = 256;
        let buckets = 1u64 << view.level;
        let (looked, stride) = (buckets.min(SAMPLE), (buckets / SAMPLE).max(1));
        let mut taken = 0;
        for i in 0..looked {
            // In all parts of the regions, because their lower halves are filled first.
            let bucket = self.levels.site(view.level, i * stride + i % stride)?.bucket;
            taken += u64::from(persistent_tokens(self.medium(), bucket).count_ones());
        }
        Ok(taken * 4 >= looked * N as u64)
    }
}
