//! Replacing the table by a larger or smaller one, together.
//!
//! Whoever finds the table crowded allocates the new one and begins to copy. Chains are *frozen* one after the
//! other, for good: readers go on using them, and a writer that meets one helps to copy until the new table is
//! complete. Then one word, durable before anybody acts on it, names the new table. A crash before that forgets
//! the new table, which nothing reachable names; after it, the old one.
//!
//! The low bits of a hash pick the home bucket, so each group of chains that must be copied together is disjoint
//! from all others, in both tables: those whose numbers agree in the bits that both tables use. Nobody shares a
//! bucket with another copier, and a copier needs no lock in the new table.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use evermap_pm::medium::Note;
use evermap_pm::sync::MutexGuard;
use evermap_pm::{Guard, Medium, Result};

use super::Clht;
use super::bucket::{Locking, Stored, pairs_in, try_lock};
use super::layout::{BITS_MAX, BUCKET_BYTES, Bucket, Control, Link, PAIRS, Table};
use crate::hash::lock_wait::LockWait;
use crate::{Key, recipe};

/// Most home buckets that are looked at to tell how full the table is.
const SAMPLE: u64 = 1024;
/// Most groups that a copier takes at once.
const PORTION: u64 = 256;

/// A table that is being replaced.
pub(super) struct Resize {
    from: Table,
    to: Table,
    /// Groups of chains that a copier takes at once.
    portion: u64,
    /// Portions taken.
    taken: AtomicU64,
    /// Portions done with.
    done: AtomicU64,
    /// Whether some portion could not be copied.
    failed: AtomicBool,
    outcome: AtomicU8,
}

/// Copying goes on.
const OPEN: u8 = 0;
/// The new table is current.
const COMMITTED: u8 = 1;
/// The old table is what it was.
const GIVEN_UP: u8 = 2;

impl Resize {
    fn new(from: Table, to: Table) -> Self {
        let groups = from.buckets().min(to.buckets());
        Resize {
            from,
            to,
            portion: (groups / 64).clamp(1, PORTION),
            taken: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            outcome: AtomicU8::new(OPEN),
        }
    }

    /// Groups of chains that are copied together, numbered from 0.
    fn groups(&self) -> u64 {
        self.from.buckets().min(self.to.buckets())
    }

    fn portions(&self) -> u64 {
        self.groups() / self.portion
    }

    /// The next groups to copy.
    fn take(&self) -> Option<Range<u64>> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        (number < self.portions()).then(|| number * self.portion..(number + 1) * self.portion)
    }

    /// Numbers of the chains of a group in one of the tables.
    fn members(&self, table: Table, group: u64) -> impl Iterator<Item = u64> + use<> {
        (group..table.buckets()).step_by(self.groups() as usize)
    }
}

/// What one thread that copies keeps.
#[derive(Default)]
struct Copier {
    /// Buckets behind home buckets of the old table: to be retired if the new one takes its place.
    old: Vec<u64>,
    /// Those of the new table: to be freed if it does not.
    new: Vec<u64>,
    /// Pairs of the chains at hand.
    pairs: Vec<Stored>,
    /// Those for one chain of the new table.
    chosen: Vec<Stored>,
}

impl<K: Key, M: Medium> Clht<K, M> {
    /// Doubles the table if more than two in five home buckets have others behind them: about three pairs a home
    /// bucket. Called after a bucket was added.
    ///
    /// It is by the number of *chains* that the table grows, so keys with equal hashes, which no table would
    /// spread, make one chain longer but not the table larger.
    #[cold]
    pub(super) fn grow_if_crowded(&self, guard: &Guard<'_>) {
        let table = self.table();
        let Some(sample) = self.sample(&self.events.appended, table) else { return };
        let chained = sample.iter().filter(|link| !link.is_last()).count();
        if chained * 5 > sample.len() * 2 && table.bits < BITS_MAX {
            self.resize(table, table.bits + 1, guard);
        }
    }

    /// Makes the table a quarter as large if there is less than one pair in four home buckets. Called after a
    /// chain has become empty.
    #[cold]
    pub(super) fn shrink_if_sparse(&self, guard: &Guard<'_>) {
        let table = self.table();
        if table.bits <= self.floor {
            return;
        }
        let Some(sample) = self.sample(&self.events.emptied, table) else { return };
        let in_chain = |link: &Link| if link.is_last() { 0 } else { PAIRS };
        let pairs: usize =
            sample.iter().map(|link| link.taken().count_ones() as usize + in_chain(link)).sum();
        if pairs * 4 < sample.len() {
            self.resize(table, table.bits.saturating_sub(2).max(self.floor), guard);
        }
    }

    /// Links of neighbouring home buckets, or of all where there are few. Nothing at most of the events that
    /// `events` counts, so that about four are looked at for each; a table so small that it does not matter is
    /// looked at every time.
    fn sample(&self, events: &AtomicU64, table: Table) -> Option<Vec<Link>> {
        const SMALL: u64 = 64;
        let (m, size) = (self.medium(), table.buckets().min(SAMPLE));
        let event = events.fetch_add(1, Ordering::Relaxed);
        let due = size <= SMALL || event.is_multiple_of(size / 4);
        if !due {
            return None;
        }
        let first = event.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let home = |at: u64| self.home(table, table.home_of(first.wrapping_add(at))).ok();
        (0..size).map(|at| home(at).map(|bucket| Link(m.load_relaxed(&bucket.link)))).collect()
    }

    /// Replaces `from` by a table of `2^bits` home buckets, unless somebody is replacing it already. Where that is
    /// impossible, because there is no space or something is damaged, the table stays what it is: whoever called
    /// has done what it was asked for, and needs no other table for it.
    fn resize(&self, from: Table, bits: u32, guard: &Guard<'_>) {
        if self.resizing().is_some() {
            return;
        }
        let to = Table { offset: 0, bits };
        let Ok(offset) = self.pool.allocate(to.bytes()) else { return };
        let to = Table { offset, ..to };
        let resize = {
            let mut resizing = self.resizing();
            if resizing.is_some() || self.table() != from {
                drop(resizing);
                self.pool.free_unpublished(offset);
                return;
            }
            resizing.insert(Arc::new(Resize::new(from, to))).clone()
        };
        // An error here (somebody has panicked) will meet everybody.
        let _ = self.take_part(&resize, guard);
    }

    /// The replacement under way.
    fn resizing(&self) -> MutexGuard<'_, Option<Arc<Resize>>> {
        // A panic elsewhere poisons the region, which every caller checks.
        self.resizing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Helps to replace the table if that is under way, until it is done.
    #[cold]
    pub(super) fn help(&self, guard: &Guard<'_>) -> Result<()> {
        let resize = self.resizing().clone();
        resize.map_or(Ok(()), |resize| self.take_part(&resize, guard))
    }

    /// Copies as long as there is something to copy, then waits for others to be through.
    fn take_part(&self, resize: &Resize, guard: &Guard<'_>) -> Result<()> {
        let mut copier = Copier::default();
        while let Some(mut groups) = resize.take() {
            // Damage and lack of space end the whole. Portions are counted all the same, so that it ends.
            let ok = !resize.failed.load(Ordering::Relaxed)
                && groups.all(|group| self.copy(resize, group, &mut copier).is_ok());
            if !ok {
                resize.failed.store(true, Ordering::Relaxed);
            }
            // What this thread has copied is durable before it is counted.
            self.medium().fence();
            // AcqRel: the last one has seen what all others did.
            if resize.done.fetch_add(1, Ordering::AcqRel) + 1 == resize.portions() {
                self.finish(resize, guard);
            }
        }
        let mut patience = LockWait::default();
        let outcome = loop {
            // Acquire: the new table is current for whoever sees that it was committed.
            match resize.outcome.load(Ordering::Acquire) {
                OPEN => patience.wait_at(&self.region, resize.from.offset)?,
                outcome => break outcome,
            }
        };
        if outcome == COMMITTED {
            copier.old.iter().for_each(|&block| self.pool.retire(block, BUCKET_BYTES, guard));
        } else {
            copier.new.iter().for_each(|&block| self.pool.free_unpublished(block));
        }
        Ok(())
    }

    /// Freezes the chains of a group, and writes what they hold to the new table, flushed without a fence.
    fn copy(&self, resize: &Resize, group: u64, copier: &mut Copier) -> Result<()> {
        let m = self.medium();
        let Copier { old, new, pairs, chosen } = copier;
        pairs.clear();
        for number in resize.members(resize.from, group) {
            let home = self.freeze(resize.from, number)?;
            pairs.extend(pairs_in(m, home));
            for bucket in self.behind(home) {
                let bucket = bucket?;
                pairs.extend(pairs_in(m, bucket));
                old.push(m.offset_of(bucket));
            }
        }
        for number in resize.members(resize.to, group) {
            let home_of = |pair: &Stored| resize.to.home_of(K::slot_hash(pair.slot_key, self.seed));
            chosen.clear();
            chosen.extend(pairs.iter().filter(|pair| home_of(pair) == number));
            self.write_chain(resize.to.home(number), chosen, new)?;
        }
        Ok(())
    }

    /// Waits for a chain of the table that is being replaced, and locks it for good.
    fn freeze(&self, table: Table, number: u64) -> Result<&Bucket> {
        let home = self.home(table, number)?;
        let mut patience = LockWait::default();
        loop {
            match try_lock(self.medium(), home, self.generation) {
                Locking::Held(held) => {
                    held.freeze();
                    return Ok(home);
                }
                Locking::Stale => self.recover(home),
                // Its holder does not wait for us: it takes part in this only when it has released it.
                Locking::Busy | Locking::Frozen => {
                    patience.wait_at(&self.region, table.home(number))?
                }
            }
        }
    }

    /// Writes a home bucket and the buckets behind it, flushed without a fence. `blocks` learns of the latter.
    fn write_chain(&self, home: u64, pairs: &[Stored], blocks: &mut Vec<u64>) -> Result<()> {
        let (first, rest) = pairs.split_at(pairs.len().min(PAIRS));
        // From the end of the chain on, because each bucket names the next.
        let mut next = 0;
        for pairs in rest.chunks(PAIRS) {
            let block = self.pool.allocate_fixed(BUCKET_BYTES)?;
            blocks.push(block);
            self.write_bucket(block, pairs, next)?;
            next = block;
        }
        self.write_bucket(home, first, next)
    }

    /// Writes a bucket that nobody knows, and flushes it without a fence.
    pub(super) fn write_bucket(&self, offset: u64, pairs: &[Stored], next: u64) -> Result<()> {
        let (m, bucket) = (self.medium(), self.bucket(offset)?);
        for (cells, pair) in bucket.pairs.iter().zip(pairs) {
            m.store(&cells.word, pair.word);
            m.store(&cells.key, pair.slot_key);
        }
        let link = (0..pairs.len()).fold(Link::default().followed_by(next), Link::with);
        m.note(Note::Harmless(
            "torn, nobody knows the bucket until it and what names it are durable",
        ));
        m.store(&bucket.link, link.0);
        m.store_transient(&bucket.control, Control::fresh(self.generation, link.taken()).0);
        m.flush(bucket);
        Ok(())
    }

    /// Decides what comes of it, when all portions are done with.
    fn finish(&self, resize: &Resize, guard: &Guard<'_>) {
        let committed = !resize.failed.load(Ordering::Relaxed);
        if committed {
            recipe::commit(self.medium(), &self.root().table, resize.to.encode());
            // Only now, because nobody may act on a table that a crash could take back.
            self.set_table(resize.to);
            self.count_resize(resize.from, resize.to);
        } else {
            self.thaw(resize.from);
        }
        *self.resizing() = None;
        // Release: whoever sees this finds the new table current, or the old one usable.
        resize.outcome.store(if committed { COMMITTED } else { GIVEN_UP }, Ordering::Release);
        if committed {
            self.pool.retire(resize.from.offset, resize.from.bytes(), guard);
        } else {
            self.pool.free_unpublished(resize.to.offset);
        }
    }

    /// Releases every chain of a table that is not replaced after all. Nobody copies any more.
    fn thaw(&self, table: Table) {
        let m = self.medium();
        for home in (0..table.buckets()).filter_map(|number| self.home(table, number).ok()) {
            let control = Control(m.load(&home.control));
            if control.is_of(self.generation) && control.is_frozen() {
                m.store_transient(&home.control, control.released().0);
            }
        }
    }
}
