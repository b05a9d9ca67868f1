//! The directory of an extendible hash index: which segment holds which hashes.
//!
//! ```text
//! root cell   bit 0..48 offset of the entries, bit 48..56 global depth
//! entries     2^depth words, each the offset of a segment; i-th serves hashes with top bits i
//! ```
//!
//! A segment of local depth `l` is named by `2^(depth - l)` neighbouring entries, its *range*.
//! Changing a range is committed by its first entry, which is made durable before the others are
//! touched. Doubling and halving write a new directory and are committed by the root cell.
//!
//! # Which entry decides after a crash
//!
//! A crash can leave a range unfinished, and recovery is lazy: the segments that were split from
//! one another are met in any order, split again before the others are met, and crashed again. So
//! one range can have entries of several unfinished splits. An entry *decides* if the segment that
//! it names begins there: if the least hash of the segment's prefix is the least hash of the entry.
//! **An entry belongs to the segment that the nearest deciding entry names, among itself and those
//! to its left.**
//!
//! This is right after any sequence of splits, doublings and crashes, because each of them keeps
//! two things true:
//!
//! 1. *The entry where a segment begins names it.* A split makes the first entry of the upper half
//!    durable before anything else of it is visible. The lower half stays in its place, and so
//!    begins where it began, whether or not its prefix says yet that it was split. No later split
//!    writes there, for each begins inside of the range of a segment. Doubling copies both halves
//!    of an entry from the same word.
//! 2. *Any other entry names the segment that it belongs to, or one that it belonged to earlier.*
//!    An entry is only ever given to the upper half of a split, so earlier owners begin further
//!    left than later ones, and none of them begins at this entry.
//!
//! By 1 the owner of an entry decides over it, and by 2 no entry between the two decides. An entry
//! that merely stands to the left, or first in a range, can be one that the owner has given away
//! since.
//!
//! Each segment brings in order the entries that it has given away itself
//! ([`finish_range`](Directory::finish_range)), before it is used, and so before it is split again:
//! these lie in the range of its sibling. Until then they lead to it, and a thread that is led
//! there recovers it first.
//!
//! A merge is different: the new segment begins where the lower sibling does, and is committed by
//! the first entry of the upper one. Merging waits until every segment was recovered, so no other
//! range around it is unfinished, and nothing is split there before recovery has finished the
//! merge. It is recognised by the prefix of what that entry names.
//!
//! Lookups go by a copy of the root cell in ordinary memory, which changes only once the cell is
//! durable: so no thread acts on a directory that a crash could take back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hash::FOUND_LATE;
use evermap_pm::medium::Note;
use evermap_pm::region::Region;
use evermap_pm::sync::{RwLock, RwLockReadGuard};
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

use super::hash_prefix::{DEPTH_MAX, HashPrefix};

const OFFSET: u64 = (1 << 48) - 1;
/// Why no campaign need notice that an entry of a new directory is torn.
const WHOLE_BEFORE: &str = "torn, it is made whole before anything leads to the new directory";

/// A directory: see the [module](self).
pub(crate) struct Directory<M: Medium> {
    pool: Arc<Pool<M>>,
    /// What searches need of the pool, close at hand.
    region: Arc<Region<M>>,
    /// Offset of the root cell.
    root: u64,
    /// What the root cell says, as searches want it: see [`Current`].
    current: AtomicU64,
    /// Shared by threads that change entries, exclusive for one that replaces the directory.
    latch: RwLock<()>,
}

/// Where a directory led a search.
pub struct Found<'a> {
    current: Current,
    entry: &'a PmU64,
    pub(crate) segment: u64,
}

/// A directory in a form that takes a search few instructions: `bit 0..6` how far half a hash is to
/// be shifted to be the number of its entry, `bit 6..54` offset of the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Current(u64);

impl Current {
    fn new(offset: u64, depth: u32) -> Self {
        Current(offset << 6 | u64::from(63 - depth))
    }

    /// Where the entry for `hash` is.
    #[inline(always)]
    fn entry_for(self, hash: u64) -> u64 {
        // Half of it, so that depth 0 needs no case of its own. The shift takes the low six bits
        // alone.
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

/// Room for a directory of twice the size, taken before any lock.
pub(crate) struct Reserved {
    offset: u64,
    depth: u32,
}

/// Proof that the directory is not being replaced.
pub(crate) type Shared<'a> = RwLockReadGuard<'a, ()>;

impl<M: Medium> Directory<M> {
    /// Writes the entries of a new directory, flushed without a fence, and the root cell, which the
    /// caller flushes with the root that it is part of.
    pub(crate) fn create(
        pool: Arc<Pool<M>>,
        root: u64,
        depth: u32,
        segments: &[u64],
    ) -> Result<Self> {
        let offset = pool.allocate(8 << depth)?;
        let m = pool.medium();
        let entries = m.slice::<PmU64>(offset, 1 << depth).expect("just allocated");
        entries.iter().zip(segments).for_each(|(entry, &segment)| m.store(entry, segment));
        m.flush(entries);
        let cell = m.at::<PmU64>(root).expect("the caller's root");
        m.store(cell, encode(offset, depth));
        let current = AtomicU64::new(Current::new(offset, depth).0);
        Ok(Directory { region: pool.share_region(), pool, root, current, latch: RwLock::new(()) })
    }

    /// Opens the directory that the cell at offset `root` names.
    pub(crate) fn open(pool: Arc<Pool<M>>, root: u64) -> Result<Self> {
        let m = pool.medium();
        let cell = m.at::<PmU64>(root).expect("the caller's root");
        // The thread that stored it may have died before it was durable.
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(cell);
        let word = m.load(cell);
        let (offset, depth) = decode(word);
        let fits = depth <= DEPTH_MAX && m.slice::<PmU64>(offset, 1 << depth).is_some();
        if !fits || offset == 0 || encode(offset, depth) != word {
            return Err(Error::damaged(root, format!("impossible directory {word:#x}")));
        }
        let current = AtomicU64::new(Current::new(offset, depth).0);
        Ok(Directory { region: pool.share_region(), pool, root, current, latch: RwLock::new(()) })
    }

    /// The segment that serves `hash`.
    #[inline(always)]
    pub(crate) fn locate(&self, hash: u64) -> u64 {
        self.find(hash).segment
    }

    /// The segment that serves `hash`, with what it takes to ask again cheaply.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64) -> Found<'_> {
        let (m, current) = (self.region.medium(), self.current());
        // SAFETY: all entries of a directory are found in this medium before it becomes the current
        // one (`create`, `open`, `double`, `halve`), and there is one for each number that half a
        // hash can be shifted to.
        let entry: &PmU64 = unsafe { m.at_unchecked(current.entry_for(hash)) };
        Found { current, entry, segment: m.load(entry) }
    }

    #[inline(always)]
    fn current(&self) -> Current {
        // Acquire: pairs with the release in `replace`, so that the entries are there.
        Current(self.current.load(Ordering::Acquire))
    }

    /// Returns whether a search that began with `found` would still be led to the same segment.
    #[inline(always)]
    pub(crate) fn is_current(&self, m: &M, found: &Found<'_>) -> bool {
        m.load(found.entry) == found.segment && self.current() == found.current
    }

    /// Global depth.
    #[inline(always)]
    pub(crate) fn depth(&self) -> u32 {
        self.current().depth()
    }

    /// Offset of the entries.
    pub(crate) fn block(&self) -> u64 {
        self.current().offset()
    }

    /// Holds off replacement of the directory.
    pub(crate) fn share(&self) -> Shared<'_> {
        // A panic under the latch poisons the region, which every caller checks.
        self.latch.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn entries(&self) -> &[PmU64] {
        let current = self.current();
        self.pool
            .medium()
            .slice(current.offset(), 1 << current.depth())
            .expect("checked when it became current")
    }

    /// The entries of `prefix`'s range, which must not be deeper than the directory.
    pub(crate) fn range(&self, prefix: HashPrefix, _latch: &Shared<'_>) -> &[PmU64] {
        let entries = self.entries();
        let width = entries.len() >> prefix.depth;
        let first = prefix.pattern as usize * width;
        &entries[first..first + width]
    }

    /// The segment that the first entry of `prefix`'s range names: the one that counts.
    pub(crate) fn first(&self, prefix: HashPrefix, latch: &Shared<'_>) -> u64 {
        self.pool.medium().load(&self.range(prefix, latch)[0])
    }

    /// Returns what came of recovering a segment to a caller that was led there: `None` if that
    /// failed and no entry leads there any more. It was merged away then; another thread found that
    /// while the caller waited, and what it was merged into was split since. So it has no place,
    /// which is no damage. O(entries) where it failed.
    pub(crate) fn unless_gone(
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

    /// Makes the entries durable that a recovery goes by: those of `prefix` and of the other half
    /// that it was split from. The thread that stored them may have died before they were.
    pub(crate) fn keep_around(&self, prefix: HashPrefix, latch: &Shared<'_>) {
        let m = self.pool.medium();
        m.note(Note::Harmless(FOUND_LATE));
        m.persist(self.range(prefix.parent().unwrap_or(prefix), latch));
    }

    /// Points the whole range of `prefix` to `segment`. Durable, except that the last flush awaits
    /// the caller's fence.
    pub(crate) fn point(&self, prefix: HashPrefix, segment: u64, latch: &Shared<'_>) {
        self.point_all(self.range(prefix, latch), segment);
    }

    fn point_all(&self, range: &[PmU64], segment: u64) {
        let m = self.pool.medium();
        // The commit: from here on a crash leads to the new segment.
        m.store(&range[0], segment);
        m.persist(&range[0]);
        if range.len() > 1 {
            range[1..].iter().for_each(|entry| m.store(entry, segment));
            m.note(Note::Harmless(
                "late, the first entry tells what they should say, while blocks that they name are \
                 kept: \
                 `a_merge_is_durable_before_its_halves_are_retired`",
            ));
            m.flush(&range[1..]);
        }
    }

    /// Points the range of `upper`, the upper half of a segment, to `segment`, in a directory twice
    /// as large if this one is too shallow: `room` is for that. Durable, except that the last flush
    /// awaits the caller's fence. `false` if there is no room and it would be needed, which only a
    /// halving meanwhile can cause.
    pub(crate) fn publish(
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
                    let _latch = (!m.mutant("DA-7")).then_some(latch);
                    m.note(Note::Scope("split published"));
                    self.point_all(range, segment);
                    return true;
                }
            }
            let Some(reserved) = room.take() else { return false };
            match self.double(reserved, upper, segment, guard) {
                Ok(()) => return true,
                // Another split doubled the directory while we looked.
                Err(reserved) => self.cancel(reserved),
            }
        }
    }

    /// Finishes the split that gave the range of `prefix` to other segments than `old`: entries
    /// there that still name `old` get the word of the entry that decides over them, durably. See
    /// the [module](self) for why that is always right.
    ///
    /// `prefix_of` returns the prefix of the segment at an offset. The first entry of the range
    /// must not name `old`.
    ///
    /// Other threads change entries meanwhile, so an entry is only ever swapped from `old`, which
    /// must not be there. Entries that name another segment that has given them away are left to
    /// the recovery of that segment.
    pub(crate) fn finish_range(
        &self,
        prefix: HashPrefix,
        old: u64,
        prefix_of: impl Fn(u64) -> Option<HashPrefix>,
        latch: &Shared<'_>,
    ) {
        let (m, depth, range) = (self.pool.medium(), self.depth(), self.range(prefix, latch));
        // Nearly always nothing is left to do, and no segment need be looked at to see that.
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
                    // Another split may have stored that just now: a copy must not outlive it.
                    m.persist(decides);
                    if !std::ptr::eq(decides, &range[0]) {
                        m.note(Note::Scope("range of several splits finished"));
                    }
                    word
                });
                if m.cas(entry, word, right).is_ok() {
                    m.flush(entry);
                }
            } else if begins_at(pattern, word & OFFSET) && !m.mutant("DA-15") {
                (decides, right) = (entry, None);
            }
            if m.mutant("DA-16") {
                (decides, right) = (entry, None);
            }
        }
        m.fence();
    }

    /// Segments that the entries name, at least; exactly where no range is unfinished. O(entries).
    pub(crate) fn segments(&self) -> u64 {
        let (m, _latch) = (self.pool.medium(), self.share());
        let others = self.entries().windows(2);
        1 + others.filter(|pair| m.load(&pair[0]) != m.load(&pair[1])).count() as u64
    }

    /// Takes room for a directory of depth `depth + 1`.
    pub(crate) fn reserve_double(&self, depth: u32) -> Result<Reserved> {
        let offset = self.pool.allocate(8 << (depth + 1))?;
        Ok(Reserved { offset, depth: depth + 1 })
    }

    /// Gives the room back.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        self.pool.free_unpublished(reserved.offset);
    }

    /// Replaces the directory by one twice as large, in which the range of `prefix` (one entry) is
    /// `segment`. Gives the room back where the directory has been replaced meanwhile.
    ///
    /// # Errors
    /// The reserved room, to be used otherwise, where the directory does not have the depth it was
    /// made for.
    pub(crate) fn double(
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

    /// Replaces the directory by one half as large, if no segment needs its full depth. Everything
    /// must have been recovered.
    pub(crate) fn halve(&self, guard: &Guard<'_>) -> Result<bool> {
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
    use crate::hash::crash_states::word_in;

    /// A directory with these entries.
    fn with_entries(segments: &[u64]) -> (Sim, Directory<Sim>) {
        let sim = Sim::new(128 << 10).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 128 << 10, seed: Some(1) };
        let pool = Pool::create(sim.clone(), &config, Identity::default()).unwrap();
        let (root, depth) = (sim.offset_of(pool.root(0)), segments.len().trailing_zeros());
        let directory = Directory::create(pool, root, depth, segments).unwrap();
        (sim, directory)
    }

    /// A shallow segment is split while the directory doubles for another one. Returns in how many
    /// orders of these threads one of the new segments was not found afterwards.
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

    /// Entries are only changed while no thread can replace the directory that they are in.
    #[test]
    fn a_split_is_not_lost_where_the_directory_doubles() {
        assert_eq!(split_while_doubling(None), 0);
        assert!(split_while_doubling(Some(Mutation::Planted("DA-7"))) > 0);
    }

    /// A segment was split, its upper half was split before the first split was finished, and both
    /// splits are finished by two threads together. Returns in how many orders of these threads an
    /// entry of the last half was left to another.
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

    /// What stands to the left of an entry can be wrong itself, until another thread has seen to
    /// it.
    #[test]
    fn what_decides_over_an_entry_does_not_depend_on_other_recoveries() {
        assert_eq!(finish_two_splits_at_once(None), 0);
        assert!(finish_two_splits_at_once(Some(Mutation::Planted("DA-16"))) > 0);
    }

    /// A recovery goes on with a range of which another thread's split has stored the first entry,
    /// and not flushed it yet.
    #[test]
    fn what_a_recovery_copies_is_durable_before_the_copy() {
        let [old, new] = [4096, 8192];
        // Enough for the halves to be on different lines, and the upper one on two.
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
