//! The directory of an extendible hash index: an array that maps hash prefixes to segments.
//!
//! ```text
//! root cell   bits 0..48: offset of the entries, bits 48..56: global depth
//! entries     2^depth words, each the offset of a segment; entry i is for hashes with top bits i
//! ```
//!
//! `2^(depth - l)` neighbouring entries refer to a segment of local depth `l`: its *range*. A
//! change of a range is committed by its first entry, which is made durable before the others are
//! changed. Doubling and halving write a new directory and are committed by the root cell.
//!
//! # Which entry decides after a crash
//!
//! A crash can leave a range unfinished, and recovery is lazy: segments that were split from one
//! another are recovered in any order, and a recovered one can be split again, and that split
//! interrupted by another crash, before the others are recovered. So one range can contain entries
//! of several unfinished splits. An entry is a *deciding* entry if the segment that it refers to
//! begins there: if the least hash of the segment's prefix is the least hash of the entry. **An
//! entry belongs to the segment that the nearest deciding entry refers to: the entry itself, or
//! else the nearest one to its left.**
//!
//! This is correct after any sequence of splits, doublings and crashes, because each of them
//! preserves two invariants:
//!
//! 1. *The entry at which a segment begins refers to it.* A split makes the first entry of the
//!    upper half durable before any other effect of the split is visible. The lower half begins
//!    where the segment began, even if its prefix was not changed yet. No later split writes that
//!    entry, because an upper half begins inside the range of its segment. Doubling copies each
//!    entry to two entries.
//! 2. *Any other entry refers to the segment that it belongs to, or to one that it belonged to
//!    earlier.* An entry is only ever reassigned to the upper half of a split. So an earlier owner
//!    begins further to the left than a later one, and none of them begins at this entry.
//!
//! By 1, the entry at which an entry's owner begins is a deciding entry; by 2, none of the entries
//! between the two is one. To take simply the entry to the left, or the first one of a range, would
//! be wrong: that entry may have been reassigned since.
//!
//! The recovery of a segment corrects the entries that were reassigned from this segment, which are
//! in the range of its sibling ([`finish_range`](Directory::finish_range)). This happens before the
//! segment is used, and so before it is split again. Until then those entries refer to the segment,
//! and a thread that follows one of them recovers the segment first.
//!
//! A merge is different: the new segment begins where the lower sibling does, and is committed by
//! the first entry of the upper sibling. Segments are merged only after all segments were
//! recovered, so no other range around them is unfinished, and no segment there is split before
//! recovery has finished the merge. Recovery recognises a merge by the prefix of the segment that
//! this entry refers to.
//!
//! Lookups use a copy of the root cell in ordinary memory, which changes only once the cell is
//! durable. So no thread uses a directory that a crash could undo.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::FOUND_LATE;
use evermap_pm::medium::Note;
use evermap_pm::region::Region;
use evermap_pm::sync::{Rank, RwLock, RwLockReadGuard};
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

use super::hash_prefix::{DEPTH_MAX, HashPrefix};
use super::mistakes;

/// The bits of an entry that are the offset of a segment. An index may use those above.
pub const OFFSET: u64 = (1 << 48) - 1;
/// Why crash campaigns need not detect a torn entry of a new directory.
const WHOLE_BEFORE: &str = "torn, it is complete before the root cell refers to the directory";

/// A directory: see the [module](self).
pub struct Directory<M: Medium> {
    pool: Arc<Pool<M>>,
    /// A copy of the pool's region, which searches reach with one load less.
    region: Arc<Region<M>>,
    /// The offset of the root cell.
    root: u64,
    /// The content of the root cell, encoded for searches: see [`Current`].
    current: AtomicU64,
    /// Held in shared mode by threads that change entries, in exclusive mode by a thread that
    /// replaces the directory.
    latch: RwLock<()>,
}

/// The result of a search in the directory.
pub struct Found<'a> {
    current: Current,
    entry: &'a PmU64,
    /// The offset of the segment.
    pub segment: u64,
}

/// The location of a directory, encoded so that a search takes few instructions. Bits 0..6: the
/// number of bits by which half a hash is shifted right to get the index of its entry. Bits 6..54:
/// the offset of the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Current(u64);

impl Current {
    fn new(offset: u64, depth: u32) -> Self {
        Current(offset << 6 | u64::from(63 - depth))
    }

    /// Returns the offset of the entry for `hash`.
    #[inline(always)]
    fn entry_for(self, hash: u64) -> u64 {
        // The hash is halved first so that depth 0 is not a special case: the shift uses only the
        // low six bits of its operand.
        self.offset() + (hash >> 1).wrapping_shr(self.0 as u32) * 8
    }

    #[inline(always)]
    fn offset(self) -> u64 {
        self.0 >> 6
    }

    fn depth(self) -> u32 {
        63 - (self.0 & 63) as u32
    }
}

/// Space for a directory of twice the size, allocated before any lock is taken.
pub struct Reserved {
    offset: u64,
    depth: u32,
}

/// Proof that the directory is not being replaced.
pub type Shared<'a> = RwLockReadGuard<'a, ()>;

impl<M: Medium> Directory<M> {
    /// Writes the entries of a new directory and flushes them without a fence. Also writes the root
    /// cell, which the caller flushes together with the root block that contains it.
    pub fn create(pool: Arc<Pool<M>>, root: u64, depth: u32, segments: &[u64]) -> Result<Self> {
        let offset = pool.allocate(8 << depth)?;
        let m = pool.medium();
        let entries = m.slice::<PmU64>(offset, 1 << depth).expect("just allocated");
        entries.iter().zip(segments).for_each(|(entry, &segment)| m.store(entry, segment));
        m.flush(entries);
        let cell = m.at::<PmU64>(root).expect("the caller's root");
        m.store(cell, encode(offset, depth));
        let current = AtomicU64::new(Current::new(offset, depth).0);
        let latch = RwLock::ranked(Rank::Directory, ());
        Ok(Directory { region: pool.share_region(), pool, root, current, latch })
    }

    /// Opens the directory that the cell at offset `root` refers to.
    pub fn open(pool: Arc<Pool<M>>, root: u64) -> Result<Self> {
        let m = pool.medium();
        let cell = m.at::<PmU64>(root).expect("the caller's root");
        // An earlier process may have stored it and terminated before it was durable.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(cell);
        let word = m.load(cell);
        let (offset, depth) = decode(word);
        let fits = depth <= DEPTH_MAX && m.slice::<PmU64>(offset, 1 << depth).is_some();
        if !fits || offset == 0 || encode(offset, depth) != word {
            return Err(Error::damaged(root, format!("impossible directory {word:#x}")));
        }
        let current = AtomicU64::new(Current::new(offset, depth).0);
        let latch = RwLock::ranked(Rank::Directory, ());
        Ok(Directory { region: pool.share_region(), pool, root, current, latch })
    }

    /// Returns the entry for `hash`, which contains the offset of the segment that serves it.
    #[inline(always)]
    pub fn locate(&self, hash: u64) -> u64 {
        self.find(hash).segment
    }

    /// Finds the entry for `hash`. [`is_current`](Self::is_current) tells whether the result is
    /// still valid.
    #[inline(always)]
    pub fn find(&self, hash: u64) -> Found<'_> {
        let (m, current) = (self.region.medium(), self.current());
        // SAFETY: before a directory becomes the current one, all of its entries are checked to be
        // inside the medium (`create`, `open`, `double`, `halve`), and it has an entry for every
        // index that the shift in `entry_for` can produce.
        let entry: &PmU64 = unsafe { m.at_unchecked(current.entry_for(hash)) };
        Found { current, entry, segment: m.load(entry) }
    }

    #[inline(always)]
    fn current(&self) -> Current {
        // Acquire: pairs with the release in `replace`, so that the entries are visible.
        Current(self.current.load(Ordering::Acquire))
    }

    /// Returns whether the search that returned `found` would still return the same segment.
    #[inline(always)]
    pub fn is_current(&self, m: &M, found: &Found<'_>) -> bool {
        m.load(found.entry) == found.segment && self.current() == found.current
    }

    /// Returns the global depth.
    #[inline(always)]
    pub fn depth(&self) -> u32 {
        self.current().depth()
    }

    /// Returns the offset of the entries.
    pub fn block(&self) -> u64 {
        self.current().offset()
    }

    /// Prevents the directory from being replaced while the returned guard exists.
    pub fn share(&self) -> Shared<'_> {
        // A panic under the latch poisons the region, which every caller checks.
        self.latch.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the current entries.
    pub fn entries(&self) -> &[PmU64] {
        let current = self.current();
        self.pool
            .medium()
            .slice(current.offset(), 1 << current.depth())
            .expect("checked when it became current")
    }

    /// Returns the entries in the range of `prefix`, which must not be deeper than the directory.
    pub fn range(&self, prefix: HashPrefix, _latch: &Shared<'_>) -> &[PmU64] {
        let entries = self.entries();
        let width = entries.len() >> prefix.depth;
        let first = prefix.pattern as usize * width;
        &entries[first..first + width]
    }

    /// Returns the first entry in the range of `prefix`: the one that commits a change of the
    /// range.
    pub fn first(&self, prefix: HashPrefix, latch: &Shared<'_>) -> u64 {
        self.pool.medium().load(&self.range(prefix, latch)[0])
    }

    /// Returns the result of recovering a segment, but `Ok(None)` instead of an error if no entry
    /// refers to the segment any more. It was merged away then: another thread recovered it while
    /// the caller waited, and the merged segment was split since, so the failure is not due to
    /// damage. O(entries) if recovery failed.
    pub fn none_if_unreferenced(
        &self,
        segment: u64,
        recovered: Result<Option<HashPrefix>>,
    ) -> Result<Option<HashPrefix>> {
        let named = || {
            let (m, _latch) = (self.pool.medium(), self.share());
            self.entries().iter().any(|entry| m.load(entry) & OFFSET == segment)
        };
        if recovered.is_ok() || named() { recovered } else { Ok(None) }
    }

    /// Makes durable the entries that a recovery reads: those of `prefix` and of its sibling. An
    /// earlier process may have stored them and terminated before they were durable.
    pub fn persist_around(&self, prefix: HashPrefix, latch: &Shared<'_>) {
        let m = self.pool.medium();
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(self.range(prefix.parent().unwrap_or(prefix), latch));
    }

    /// Stores `segment` in the whole range of `prefix`. All of it is durable after the caller's
    /// next fence; the first entry is durable on return.
    pub fn point(&self, prefix: HashPrefix, segment: u64, latch: &Shared<'_>) {
        self.point_all(self.range(prefix, latch), segment);
    }

    fn point_all(&self, range: &[PmU64], segment: u64) {
        let m = self.pool.medium();
        // The commit: after a later crash, the directory refers to the new segment.
        m.store(&range[0], segment);
        m.persist(&range[0]);
        if range.len() > 1 {
            range[1..].iter().for_each(|entry| m.store(entry, segment));
            m.note(Note::Harmless(
                "late, the first entry determines what they must be, while the blocks that they \
                 refer to are not reused: \
                 `a_merge_is_durable_before_its_halves_are_retired`",
            ));
            m.flush(&range[1..]);
        }
    }

    /// Stores `segment` in the range of `upper`, the upper half of a segment. Doubles the
    /// directory, in the reserved `room`, if it is too shallow. All of it is durable after the
    /// caller's next fence. Returns `false` if the directory must be doubled and no room was
    /// reserved, which can only happen if it was halved meanwhile.
    pub fn publish(
        &self,
        upper: HashPrefix,
        segment: u64,
        room: &mut Option<Reserved>,
        guard: &Guard<'_>,
    ) -> bool {
        loop {
            {
                let latch = self.share();
                if upper.depth <= self.depth() {
                    let (m, range) = (self.pool.medium(), self.range(upper, &latch));
                    let _latch = (!m.mutant(mistakes::LATCH_RELEASED_EARLY)).then_some(latch);
                    m.note(Note::Scope("split published"));
                    self.point_all(range, segment);
                    return true;
                }
            }
            let Some(reserved) = room.take() else { return false };
            match self.double(reserved, upper, segment, guard) {
                Ok(()) => return true,
                // Another split has doubled the directory meanwhile.
                Err(reserved) => self.cancel(reserved),
            }
        }
    }

    /// Finishes a split that reassigned the range of `prefix` from the segment `old`: replaces each
    /// entry there that still refers to `old` by its deciding entry, durably. See the
    /// [module](self) for why this is always correct.
    ///
    /// `prefix_of` returns the prefix of the segment at an offset. The first entry of the range
    /// must not refer to `old`.
    ///
    /// Other threads change entries meanwhile, so an entry is only changed by a compare-and-swap
    /// from `old`, which it must not be. Entries that refer to another earlier owner are corrected
    /// by the recovery of that segment.
    pub fn finish_range(
        &self,
        prefix: HashPrefix,
        old: u64,
        prefix_of: impl Fn(u64) -> Option<HashPrefix>,
        latch: &Shared<'_>,
    ) {
        let (m, depth, range) = (self.pool.medium(), self.depth(), self.range(prefix, latch));
        // Usually there is no such entry, which can be seen without reading any segment.
        if !range.iter().any(|entry| m.load(entry) & OFFSET == old) {
            return;
        }
        m.note(Note::Scope("directory range finished"));
        let begins_at = |pattern: u64, segment: u64| {
            let first = HashPrefix { depth, pattern }.first_hash();
            prefix_of(segment).is_some_and(|prefix| prefix.first_hash() == first)
        };
        let places = prefix.pattern << (depth - prefix.depth)..;
        let (mut decides, mut right) = (&range[0], None);
        for (pattern, entry) in places.zip(range).skip(1) {
            let word = m.load(entry);
            if word & OFFSET == old {
                let right = *right.get_or_insert_with(|| {
                    let word = m.load(decides);
                    // Another split may have stored it just now. The copies must not be durable
                    // before it is.
                    m.persist(decides);
                    if !std::ptr::eq(decides, &range[0]) {
                        m.note(Note::Scope("range of several splits finished"));
                    }
                    word
                });
                if m.cas(entry, word, right).is_ok() {
                    m.flush(entry);
                }
            } else if begins_at(pattern, word & OFFSET) && !m.mutant(mistakes::FIRST_ENTRY_DECIDES)
            {
                (decides, right) = (entry, None);
            }
            if m.mutant(mistakes::NEIGHBOUR_DECIDES) {
                (decides, right) = (entry, None);
            }
        }
        m.fence();
    }

    /// Returns the number of segments: exact if no range is unfinished, else an estimate.
    /// O(entries).
    pub fn segments(&self) -> u64 {
        let (m, _latch) = (self.pool.medium(), self.share());
        let others = self.entries().windows(2);
        1 + others.filter(|pair| m.load(&pair[0]) != m.load(&pair[1])).count() as u64
    }

    /// Allocates space for a directory of depth `depth + 1`.
    pub fn reserve_double(&self, depth: u32) -> Result<Reserved> {
        let offset = self.pool.allocate(8 << (depth + 1))?;
        Ok(Reserved { offset, depth: depth + 1 })
    }

    /// Frees the reserved space.
    pub fn cancel(&self, reserved: Reserved) {
        self.pool.free_unpublished(reserved.offset);
    }

    /// Replaces the directory by one twice as large, in which the range of `prefix` (one entry) is
    /// `segment`.
    ///
    /// # Errors
    /// Returns the reserved space if the directory no longer has the depth for which the space was
    /// reserved; nothing has changed then.
    pub fn double(
        &self,
        reserved: Reserved,
        prefix: HashPrefix,
        segment: u64,
        guard: &Guard<'_>,
    ) -> Result<(), Reserved> {
        let exclusive = self.latch.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.depth() + 1 != reserved.depth {
            return Err(reserved);
        }
        let m = self.pool.medium();
        let new = m.slice::<PmU64>(reserved.offset, 1 << reserved.depth).expect("just allocated");
        m.note(Note::Scope("directory doubled"));
        for (i, entry) in self.entries().iter().enumerate() {
            let old = m.load(entry);
            m.store(&new[2 * i], old);
            m.store(&new[2 * i + 1], old);
        }
        m.note(Note::Harmless(WHOLE_BEFORE));
        m.store(&new[prefix.pattern as usize], segment);
        m.persist(new);
        let old = self.replace(reserved.offset, reserved.depth);
        drop(exclusive);
        self.retire(old, guard);
        Ok(())
    }

    /// Replaces the directory by one half as large, if no segment needs its full depth. All
    /// segments must have been recovered.
    pub fn halve(&self, guard: &Guard<'_>) -> Result<bool> {
        let depth = self.depth();
        if depth == 0 {
            return Ok(false);
        }
        let reserved = self.pool.allocate(8 << (depth - 1))?;
        let exclusive = self.latch.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let m = self.pool.medium();
        let (now, pairs) = (self.depth(), self.entries().chunks_exact(2));
        if now != depth || !pairs.clone().all(|pair| m.load(&pair[0]) == m.load(&pair[1])) {
            drop(exclusive);
            self.pool.free_unpublished(reserved);
            return Ok(false);
        }
        m.note(Note::Scope("directory halved"));
        let new = m.slice::<PmU64>(reserved, 1 << (depth - 1)).expect("just allocated");
        for (entry, pair) in new.iter().zip(pairs) {
            m.note(Note::Harmless(WHOLE_BEFORE));
            m.store(entry, m.load(&pair[0]));
        }
        m.persist(new);
        let old = self.replace(reserved, depth - 1);
        drop(exclusive);
        self.retire(old, guard);
        Ok(true)
    }

    /// Makes a complete, durable directory the current one; returns the old one.
    fn replace(&self, offset: u64, depth: u32) -> Current {
        let m = self.pool.medium();
        let cell = m.at::<PmU64>(self.root).expect("checked when opened");
        m.store(cell, encode(offset, depth));
        m.persist(cell);
        Current(self.current.swap(Current::new(offset, depth).0, Ordering::AcqRel))
    }

    fn retire(&self, old: Current, guard: &Guard<'_>) {
        self.pool.retire(old.offset(), 8 << old.depth(), guard);
    }
}

fn encode(offset: u64, depth: u32) -> u64 {
    offset | u64::from(depth) << 48
}

fn decode(word: u64) -> (u64, u32) {
    (word & OFFSET, (word >> 48) as u32 & 0xff)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use evermap_pm::region::{Identity, RegionConfig};
    use evermap_pm::sim::schedule::Schedule;
    use evermap_pm::sim::{ImageConfig, Mutation, Sim, Strategy, for_each_image};

    use super::*;
    use crate::testkit::crash_states::word_in;

    /// Creates a directory with these entries.
    fn with_entries(segments: &[u64]) -> (Sim, Directory<Sim>) {
        let sim = Sim::new(128 << 10).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 128 << 10, seed: Some(1) };
        let pool = Pool::create(sim.clone(), &config, Identity::default()).unwrap();
        let (root, depth) = (sim.offset_of(pool.root(0)), segments.len().trailing_zeros());
        let directory = Directory::create(pool, root, depth, segments).unwrap();
        (sim, directory)
    }

    /// Splits a shallow segment while the directory doubles for another one. Returns the number of
    /// schedules after which one of the new segments was not found.
    fn split_while_doubling(mistake: Option<Mutation>) -> usize {
        const ORDERS: u64 = 300;
        let [shallow, other, deep, from_shallow, from_deep] = [1, 2, 3, 4, 5].map(|at| at * 4096);
        let splits = [
            (HashPrefix { depth: 2, pattern: 1 }, from_shallow),
            (HashPrefix { depth: 3, pattern: 7 }, from_deep),
        ];
        let is_lost = |&seed: &u64| {
            let (sim, directory) = with_entries(&[shallow, shallow, other, deep]);
            sim.mutate(mistake);
            sim.set_schedule(Schedule { strategy: Strategy::Mixed, seed });
            let publish = |(upper, segment): (HashPrefix, u64)| {
                let directory = &directory;
                let publish = move || {
                    let mut room = (upper.depth > 2).then(|| directory.reserve_double(2).unwrap());
                    assert!(directory.publish(upper, segment, &mut room, &directory.pool.pin()));
                };
                Box::new(publish) as Box<dyn FnOnce() + Send>
            };
            sim.in_parallel(splits.map(publish).into());
            let latch = directory.share();
            splits.iter().any(|&(upper, segment)| directory.first(upper, &latch) != segment)
        };
        (0..ORDERS).filter(is_lost).count()
    }

    /// Entries are only changed while no thread can replace their directory.
    #[test]
    fn a_split_is_not_lost_where_the_directory_doubles() {
        assert_eq!(split_while_doubling(None), 0);
        assert!(split_while_doubling(Some(Mutation::Planted("DA-7"))) > 0);
    }

    /// A segment was split, and its upper half was split before the first split was finished. Two
    /// threads finish both splits concurrently. Returns the number of schedules after which an
    /// entry of the last half refers to another segment.
    fn finish_two_splits_at_once(mistake: Option<Mutation>) -> usize {
        const ORDERS: u64 = 300;
        let [whole, upper, last] = [1, 2, 3].map(|at| at * 4096);
        let (upper_half, last_quarter) =
            (HashPrefix { depth: 1, pattern: 1 }, HashPrefix { depth: 2, pattern: 3 });
        let prefix_of = |segment| match segment {
            _ if segment == whole => Some(HashPrefix { depth: 0, pattern: 0 }),
            _ if segment == upper => Some(upper_half),
            _ if segment == last => Some(last_quarter),
            _ => None,
        };
        let is_lost = |&seed: &u64| {
            let mut entries = [whole; 16];
            entries[8..14].fill(upper);
            entries[12] = last;
            let (sim, directory) = with_entries(&entries);
            sim.mutate(mistake);
            sim.set_schedule(Schedule { strategy: Strategy::Mixed, seed });
            let finish = |(range, old): (HashPrefix, u64)| {
                let directory = &directory;
                let finish = move || {
                    directory.finish_range(range, old, prefix_of, &directory.share());
                };
                Box::new(finish) as Box<dyn FnOnce() + Send>
            };
            sim.in_parallel([(upper_half, whole), (last_quarter, upper)].map(finish).into());
            directory.entries()[12..].iter().any(|entry| sim.load(entry) != last)
        };
        (0..ORDERS).filter(is_lost).count()
    }

    /// The entry to the left of an entry can be wrong itself, until another thread has corrected
    /// it.
    #[test]
    fn what_decides_over_an_entry_does_not_depend_on_other_recoveries() {
        assert_eq!(finish_two_splits_at_once(None), 0);
        assert!(finish_two_splits_at_once(Some(Mutation::Planted("DA-16"))) > 0);
    }

    /// A recovery reads a range of which another thread's split has stored the first entry, but not
    /// flushed it yet.
    #[test]
    fn what_a_recovery_copies_is_durable_before_the_copy() {
        let [old, new] = [4096, 8192];
        // Enough entries for the halves to be on different cache lines, and the upper half on two.
        let (sim, directory) = with_entries(&[old; 32]);
        sim.checkpoint();
        let (latch, upper) = (directory.share(), HashPrefix { depth: 1, pattern: 1 });
        let range = directory.range(upper, &latch);
        sim.store(&range[0], new);
        directory.finish_range(upper, old, |_| None, &latch);
        let places: Vec<u64> = range.iter().map(|entry| sim.offset_of(entry)).collect();
        let mut copied = 0;
        for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
            let named = |at| word_in(image, at);
            let any = places[1..].iter().any(|&at| named(at) == new);
            assert!(!any || named(places[0]) == new, "{:?}", image.point);
            copied += u32::from(any);
            ControlFlow::Continue(())
        });
        assert!(copied > 0);
    }
}
