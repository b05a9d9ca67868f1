//! Replacement of the table by a larger or smaller one, in which several threads take part.
//!
//! The thread that finds the table crowded allocates the new table and begins to copy. Chains are
//! *frozen* one after the other and stay so: readers continue to use them, and a writer that meets
//! a frozen chain helps to copy until the new table is complete. Then one word, which is durable
//! before any thread follows it, names the new table. After an earlier crash the new table is
//! unreachable, after a later one the old table.
//!
//! The low bits of a hash choose the home bucket. So the chains that must be copied together, those
//! whose numbers agree in the bits that both tables use, form groups that are disjoint in both
//! tables. Each group is copied by one thread, which needs no lock in the new table.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use evermap_pm::medium::Note;
use evermap_pm::sync::MutexGuard;
use evermap_pm::{Guard, Medium, Result};

use super::Clht;
use super::bucket::{Locking, StoredPair, pairs_in, try_lock};
use super::layout::{BITS_MAX, BUCKET_BYTES, Bucket, Control, Link, PAIRS, Table};
use crate::lock_wait::LockWait;
use crate::{Key, recipe};

/// The largest number of home buckets that are sampled to estimate how full the table is.
const SAMPLE: u64 = 1024;
/// The largest number of groups in a portion.
const PORTION: u64 = 256;

/// The replacement of a table.
pub(super) struct Resize {
    from: Table,
    to: Table,
    /// The number of groups that a thread takes at a time.
    portion: u64,
    /// The number of portions that were taken.
    taken: AtomicU64,
    /// The number of portions that are finished.
    done: AtomicU64,
    /// `true` if some portion could not be copied.
    failed: AtomicBool,
    outcome: AtomicU8,
}

/// Copying is in progress.
const OPEN: u8 = 0;
/// The new table is current.
const COMMITTED: u8 = 1;
/// The old table stays current.
const ABANDONED: u8 = 2;

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

    /// Returns the number of groups of chains that are copied together.
    fn groups(&self) -> u64 {
        self.from.buckets().min(self.to.buckets())
    }

    fn portions(&self) -> u64 {
        self.groups() / self.portion
    }

    /// Takes the next portion of groups to copy. Returns `None` if there is none left.
    fn take(&self) -> Option<Range<u64>> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        (number < self.portions()).then(|| number * self.portion..(number + 1) * self.portion)
    }

    /// Returns the numbers of the chains of a group in one of the tables.
    fn members(&self, table: Table, group: u64) -> impl Iterator<Item = u64> + use<> {
        (group..table.buckets()).step_by(self.groups() as usize)
    }
}

/// The state of one thread that copies.
#[derive(Default)]
struct Copier {
    /// The overflow buckets of the old table, which are retired if the new table takes its place.
    old: Vec<u64>,
    /// The overflow buckets of the new table, which are freed if it does not.
    new: Vec<u64>,
    /// The pairs of the current group.
    pairs: Vec<StoredPair>,
    /// The pairs of one chain of the new table.
    chosen: Vec<StoredPair>,
}

impl<K: Key, M: Medium> Clht<K, M> {
    /// Doubles the table if more than two in five home buckets have overflow buckets, which is at
    /// about three pairs for each home bucket. Called after a bucket was added.
    ///
    /// The criterion is the number of *chains* with overflow buckets. So keys with equal hashes,
    /// which no table can separate, make one chain longer but not the table larger.
    ///
    /// If pairs are inserted in the order of their reversed hashes, few chains get all of them. So
    /// the chain of `hash`, to which the bucket was added, is a reason too if it is long, has pairs
    /// with different hashes, and there are overflow buckets for a fifth of the home buckets.
    #[cold]
    pub(super) fn grow_if_crowded(&self, hash: u64, guard: &Guard<'_>) {
        let overflow = self.events.overflow.fetch_add(1, Ordering::Relaxed) + 1;
        let table = self.table();
        let is_crowded = self.sample(&self.events.appended, table).is_some_and(|sample| {
            let chained = sample.iter().filter(|link| !link.is_last()).count();
            chained * 5 > sample.len() * 2
        });
        let is_uneven = || overflow * 5 > table.buckets() as i64 && self.is_long(table, hash);
        if table.bits < BITS_MAX && (is_crowded || is_uneven()) {
            self.resize(table, table.bits + 1, guard);
        }
    }

    /// Returns whether a chain has many pairs whose hashes differ. Only a hint: the chain is not
    /// locked.
    fn is_long(&self, table: Table, hash: u64) -> bool {
        /// Hardly any chain has as many buckets if the table grows when it is crowded.
        const LONG: usize = 8;
        let m = self.medium();
        let Ok(mut bucket) = self.home(table, table.home_of(hash)) else { return false };
        let mut differs = false;
        for _ in 0..LONG {
            let mut hashes = pairs_in(m, bucket).map(|pair| K::slot_hash(pair.slot_key, self.seed));
            differs |= hashes.any(|other| other != hash);
            let link = Link(m.load(&bucket.link));
            let next = if link.is_last() { None } else { link.next().ok() };
            match next.and_then(|next| self.bucket(next).ok()) {
                Some(next) => bucket = next,
                None => return false,
            }
        }
        differs
    }

    /// Shrinks the table to a quarter if there is less than one pair for each four home buckets.
    /// Called after a chain has become empty.
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

    /// Returns the links of neighbouring home buckets, or of all if there are few. Returns `None`
    /// for most of the events that `events` counts, so that about four links are read for each
    /// event. A table that is so small that the cost does not matter is sampled every time.
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

    /// Replaces `from` by a table of `2^bits` home buckets, unless a replacement is in progress. If
    /// that is impossible, because there is no space or something is damaged, the table stays as it
    /// is: the operation of the caller is complete and does not depend on it.
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
        // An error here means that a thread has panicked, which every operation reports.
        let _ = self.participate(&resize, guard);
    }

    /// Returns the replacement in progress.
    fn resizing(&self) -> MutexGuard<'_, Option<Arc<Resize>>> {
        // A panic elsewhere poisons the region, which every caller checks.
        self.resizing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Helps to replace the table if that is in progress, and returns when it is done.
    #[cold]
    pub(super) fn help(&self, guard: &Guard<'_>) -> Result<()> {
        let resize = self.resizing().clone();
        resize.map_or(Ok(()), |resize| self.participate(&resize, guard))
    }

    /// Copies portions until none is left, then waits for the other threads.
    fn participate(&self, resize: &Resize, guard: &Guard<'_>) -> Result<()> {
        let mut copier = Copier::default();
        while let Some(mut groups) = resize.take() {
            // Damage or lack of space abandons the replacement. Portions are still counted, so that
            // it ends.
            let ok = !resize.failed.load(Ordering::Relaxed)
                && groups.all(|group| self.copy(resize, group, &mut copier).is_ok());
            if !ok {
                resize.failed.store(true, Ordering::Relaxed);
            }
            // What this thread has copied is durable before the portion is counted.
            self.medium().fence();
            // AcqRel: the last thread sees what all others have stored.
            if resize.done.fetch_add(1, Ordering::AcqRel) + 1 == resize.portions() {
                self.finish(resize, guard);
            }
        }
        let mut lock_wait = LockWait::default();
        let outcome = loop {
            // Acquire: a thread that sees `COMMITTED` also sees the new table.
            match resize.outcome.load(Ordering::Acquire) {
                OPEN => lock_wait.wait_at(&self.region, resize.from.offset)?,
                outcome => break outcome,
            }
        };
        if outcome == COMMITTED {
            let more = copier.new.len() as i64 - copier.old.len() as i64;
            self.events.overflow.fetch_add(more, Ordering::Relaxed);
            copier.old.iter().for_each(|&block| self.pool.retire(block, BUCKET_BYTES, guard));
        } else {
            copier.new.iter().for_each(|&block| self.pool.free_unpublished(block));
        }
        Ok(())
    }

    /// Freezes the chains of a group, and writes their pairs to the new table, flushed without a
    /// fence.
    fn copy(&self, resize: &Resize, group: u64, copier: &mut Copier) -> Result<()> {
        let m = self.medium();
        let Copier { old, new, pairs, chosen } = copier;
        let table = resize.from;
        pairs.clear();
        for number in resize.members(table, group) {
            let home = self.freeze(table, number)?;
            pairs.extend(pairs_in(m, home));
            for bucket in self.overflow(home) {
                let (bucket, others) = (bucket?, pairs.len());
                pairs.extend(
                    pairs_in(m, bucket).filter(|pair| self.is_in(pair.slot_key, table, number)),
                );
                let (all, own) = (pairs_in(m, bucket).count(), pairs.len() - others);
                // Otherwise damage may have led to something that is still in use. A crash can have
                // left an empty bucket.
                if own == all && self.is_recognised(bucket, table, number) {
                    old.push(m.offset_of(bucket));
                } else {
                    self.pool.require_sweep();
                }
            }
        }
        for number in resize.members(resize.to, group) {
            let home_of =
                |pair: &StoredPair| resize.to.home_of(K::slot_hash(pair.slot_key, self.seed));
            chosen.clear();
            chosen.extend(pairs.iter().filter(|pair| home_of(pair) == number));
            self.write_chain(resize.to.home(number), chosen, new)?;
        }
        Ok(())
    }

    /// Waits for a chain of the table that is being replaced, and freezes it.
    fn freeze(&self, table: Table, number: u64) -> Result<&Bucket> {
        let home = self.home(table, number)?;
        let mut lock_wait = LockWait::default();
        loop {
            match try_lock(self.medium(), home, self.generation) {
                Locking::Locked(chain) => {
                    chain.freeze();
                    return Ok(home);
                }
                Locking::Stale => self.recover(home),
                // Its holder does not wait for this thread: it takes part only after it has
                // released the chain.
                Locking::Busy | Locking::Frozen => {
                    lock_wait.wait_at(&self.region, table.home(number))?
                }
            }
        }
    }

    /// Writes a home bucket and its overflow buckets, flushed without a fence. Adds the overflow
    /// buckets to `blocks`.
    fn write_chain(&self, home: u64, pairs: &[StoredPair], blocks: &mut Vec<u64>) -> Result<()> {
        let (first, rest) = pairs.split_at(pairs.len().min(PAIRS));
        // From the end of the chain, because each bucket names the next.
        let mut next = 0;
        for pairs in rest.chunks(PAIRS) {
            let block = self.pool.allocate_fixed(BUCKET_BYTES)?;
            blocks.push(block);
            self.write_bucket(block, pairs, next)?;
            next = block;
        }
        self.write_bucket(home, first, next)
    }

    /// Writes a bucket that no other thread knows, and flushes it without a fence.
    pub(super) fn write_bucket(&self, offset: u64, pairs: &[StoredPair], next: u64) -> Result<()> {
        let (m, bucket) = (self.medium(), self.bucket(offset)?);
        for (cells, pair) in bucket.pairs.iter().zip(pairs) {
            m.store(&cells.word, pair.word);
            m.store(&cells.key, pair.slot_key);
        }
        let link = (0..pairs.len()).fold(Link::default().followed_by(next), Link::with);
        m.note(Note::Harmless(
            "torn, no thread knows the bucket until it and what names it are durable",
        ));
        m.store(&bucket.link, link.0);
        m.store_transient(&bucket.control, Control::fresh(self.generation, link.taken()).0);
        m.flush(bucket);
        Ok(())
    }

    /// Commits or abandons the replacement when all portions are finished.
    fn finish(&self, resize: &Resize, guard: &Guard<'_>) {
        let committed = !resize.failed.load(Ordering::Relaxed);
        if committed {
            recipe::commit(self.medium(), &self.root().table, resize.to.encode());
            // Only now, because no thread may follow a table that a crash could take back.
            self.set_table(resize.to);
            self.count_resize(resize.from, resize.to);
        } else {
            self.unfreeze(resize.from);
        }
        *self.resizing() = None;
        // Release: a thread that sees this finds the new table current, or the old one unfrozen.
        resize.outcome.store(if committed { COMMITTED } else { ABANDONED }, Ordering::Release);
        if committed {
            self.pool.retire(resize.from.offset, resize.from.bytes(), guard);
        } else {
            self.pool.free_unpublished(resize.to.offset);
        }
    }

    /// Unfreezes the chains of a table that is not replaced after all. No thread copies any more.
    fn unfreeze(&self, table: Table) {
        let m = self.medium();
        for home in (0..table.buckets()).filter_map(|number| self.home(table, number).ok()) {
            let control = Control(m.load(&home.control));
            if control.is_of(self.generation) && control.is_frozen() {
                m.store_transient(&home.control, control.released().0);
            }
        }
    }
}
