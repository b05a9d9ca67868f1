//! Line hash: extendible hashing whose buckets are single cache lines.
//!
//! The layout is in [`layout`]; a picture of the whole:
//!
//! ```text
//! root ── directory ─┬─ segment ── 256 lines of 4 records (, chain)
//!                    ├─ segment
//!                    └─ ...          top image bits pick the segment, bits 0..8 the line,
//!                                    the 52 bits between are the record's tag
//! ```
//!
//! A key is known from its *image*, a bijective mix of its 64 bits (the hash, for variable-length keys). Where a
//! record sits implies the top and the bottom of its image, so a slot stores the rest alone (*quotienting*, after
//! Knuth), and the twelve bits that this saves in each of four key words hold all that a bucket needs: lock,
//! version, valid bits and a filter. So a line is full of records, a lookup reads one line beside the directory's,
//! and an insert flushes that line once.
//!
//! * **A record is in one of two lines**, its home or the other that its tag leads to. A full pair moves one record
//!   of either line on before the segment is split.
//! * **One version a lookup**, that of the home line, as in [`dash`](crate::hash::dash); and home lines are followed
//!   to their other line only where a filter says so.
//! * **Splits are committed by the directory**, as in Dash: no persistent word names an uncommitted segment.
//! * **The generation stamp is in the directory's entries**, above the offset. A lookup takes its own stamp away
//!   from the entry it reads anyway, and what is left is an offset only if the segment was recovered: so staleness
//!   is noticed by the check that every offset needs.
//! * **Keys whose images agree too much** go to a chain, instead of doubling the directory for ever.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::region::Region;
use evermap_pm::sync::Mutex;
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result};

use crate::hash::changes::changes_by_apply;
use crate::hash::directory::Directory;
use crate::hash::fresh::Fresh;
use crate::hash::hash_prefix::{HashPrefix, behind};
use crate::hash::patience::Patience;
use crate::hash::root;
use crate::index::{Action, Change, Index, MutateMode, Persistent, Stats, Visitor};
use crate::key::Quotient;
use crate::record;

mod bucket;
mod check;
pub mod layout;
mod rebuild;
mod recover;
mod restructure;
mod segment;
#[cfg(test)]
mod tests;

use bucket::{Held, Probe, Record, find, free_slot, keys_of, matching, try_lock, valid};
use layout::{Geometry, Header, Line, Link, OFFSET, Root, Segment};
use restructure::Split;
use segment::{Locks, Look, MakeRoom, Place, Spot};

/// HashPrefix of a new index.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Global depth to begin with: `2^depth` segments. At least the depth that the geometry implies, which is 4
    /// for 256 lines.
    pub initial_depth: u32,
}

/// A line hash over keys `K` in medium `M`, with segments of `L` lines, of which `N` slots each are used.
///
/// See the [module](self). With three slots, the fourth holds what the position of a record does not imply in so
/// small a segment: see [`Tiny`], which is for tests.
pub struct LineHash<K: Quotient, M: Medium, const L: usize = 256, const N: usize = 4> {
    pool: Arc<Pool<M>>,
    directory: Directory<M>,
    root: u64,
    /// What every operation needs of the pool, close at hand.
    region: Arc<Region<M>>,
    /// The upper bits of directory entries whose segments this opener has recovered.
    stamp: u64,
    seed: u64,
    /// Locks for recovering segments, by offset.
    recovering: Box<[Mutex<()>]>,
    segments: AtomicU64,
    splits: AtomicU64,
    merges: AtomicU64,
    recovered: AtomicU64,
    keys: PhantomData<fn(K) -> K>,
}

/// Segments so small that a handful of keys makes every structural change happen.
pub type Tiny<K, M> = LineHash<K, M, 4, 3>;

/// Keys looked up together in [`Index::get_many`].
const BATCH: usize = 32;

impl<K: Quotient, M: Medium, const L: usize, const N: usize> LineHash<K, M, L, N> {
    /// First word of the root: "LINEH", key format, geometry.
    fn kind() -> u64 {
        let geometry = (L as u64) << 4 | N as u64;
        u64::from_le_bytes(*b"LINEH\0\0\0") ^ u64::from(K::FORMAT) << 56 ^ geometry << 40
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.region.medium()
    }

    /// The pool underneath.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    fn assemble(pool: Arc<Pool<M>>, root: u64, directory: Directory<M>, segments: u64) -> Self {
        LineHash {
            region: pool.share_region(),
            stamp: Self::stamp_of(&pool),
            seed: pool.seed(),
            recovering: (0..64).map(|_| Mutex::new(())).collect(),
            segments: AtomicU64::new(segments),
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            keys: PhantomData,
            pool,
            directory,
            root,
        }
    }

    /// The low bits of the opener's number, where directory entries hold them.
    fn stamp_of(pool: &Pool<M>) -> u64 {
        pool.generation() << OFFSET.count_ones()
    }

    fn segments(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }

    fn count_split(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    fn count_merge(&self) {
        // An estimate until everything was visited: more may be merged away than it counts.
        let less = |segments: u64| Some(segments.saturating_sub(1));
        let _ = self.segments.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.merges.fetch_add(1, Ordering::Relaxed);
    }

    fn waiting(&self) -> Waiting<'_, K, M, L, N> {
        Waiting { index: self, patience: Patience::default(), recoveries: 0 }
    }

    /// The segment that a directory entry names, if this opener has recovered it.
    #[inline(always)]
    fn fresh(&self, entry: u64) -> Option<&Segment<L>> {
        // Another stamp leaves upper bits, which no offset has.
        self.medium().at(entry ^ self.stamp)
    }

    /// The home line of an image in the segment that a directory entry names, if this opener has recovered that.
    #[inline(always)]
    fn home_in<'a>(&self, m: &'a M, entry: u64, image: u64) -> Option<&'a Line> {
        let line = std::mem::offset_of!(Segment<L>, lines) + 64 * Geometry::<L, N>::home(image);
        m.at((entry ^ self.stamp).wrapping_add(line as u64))
    }

    /// Why [`fresh`](Self::fresh) answers `None`: recovers the segment, if there is one.
    #[cold]
    fn refresh(&self, entry: u64, waiting: &mut Waiting<'_, K, M, L, N>) -> Result<()> {
        if (entry ^ self.stamp) & !OFFSET == 0 {
            return Err(no_segment(entry & OFFSET));
        }
        waiting.recover(entry & OFFSET)
    }

    /// Offset of the segment that serves an image.
    fn locate(&self, image: u64) -> u64 {
        self.directory.locate(image) & OFFSET
    }

    /// The segment at `offset`.
    ///
    /// # Errors
    /// `Damaged` if there cannot be one.
    fn segment(&self, offset: u64) -> Result<&Segment<L>> {
        self.medium().at(offset).ok_or_else(|| no_segment(offset))
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let found = self.directory.find(probe.image);
        if let Some(home) = self.home_in(m, found.segment, probe.image) {
            match segment::glance::<K, M, L, N>(m, home, probe) {
                // No need to look at the directory again: a record that moved away is cleared before its line is
                // released.
                Look::Found(word) => return Ok(Some(word)),
                // The segment may have been split between the directory and the line.
                Look::Absent if self.directory.still(m, &found) => return Ok(None),
                _ => {}
            }
        }
        let word = self.lookup_again(probe.key, probe.image)?;
        Ok(word)
    }

    /// The same with every case: records elsewhere, lines that are locked, segments that are stale or split meanwhile.
    #[inline(never)]
    fn lookup_again(&self, key: K::Ref<'_>, image: u64) -> Result<Option<u64>> {
        let (m, probe) = (self.medium(), Probe { key, image });
        let mut waiting = self.waiting();
        loop {
            let found = self.directory.find(image);
            let Some(segment) = self.fresh(found.segment) else {
                self.refresh(found.segment, &mut waiting)?;
                continue;
            };
            match self.look(segment, &probe) {
                Look::Found(word) => return Ok(Some(word)),
                Look::Absent if self.directory.still(m, &found) => return Ok(None),
                Look::Absent => {}
                Look::Unsure | Look::Again => waiting.wait(segment)?,
            }
        }
    }

    /// Tries to lock the home line of an image, in the segment that serves it.
    #[inline(always)]
    fn try_lock_home(&self, image: u64, mode: MutateMode) -> Result<LockingHome<'_, L>> {
        let m = self.medium();
        let found = self.directory.find(image);
        let Some(segment) = self.fresh(found.segment) else {
            return Ok(LockingHome::Stale(found.segment));
        };
        if mode == MutateMode::MayInsert {
            // One insert in four finds its home line full. Nothing overtakes the lock, so memory is idle meanwhile.
            segment::prefetch_line(&segment.lines[Geometry::<L, N>::other_of(image)]);
        }
        match try_lock(m, &segment.lines[Geometry::<L, N>::home(image)]) {
            // As long as one line is locked, its segment is neither split nor merged.
            Some(line) if self.directory.still(m, &found) => {
                Ok(LockingHome::Held(Home { segment, held: line }))
            }
            Some(line) => {
                line.release(m);
                Ok(LockingHome::Moved)
            }
            None => Ok(LockingHome::Busy(segment)),
        }
    }

    #[inline(always)]
    fn apply(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        mut decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.region.ensure_writable()?;
        let poison = self.region.poison_on_panic();
        let probe = Probe::new(key, self.seed);
        let operation = Operation { probe: &probe, mode, guard };
        let change = match self.try_lock_home(probe.image, operation.mode) {
            Ok(LockingHome::Held(home)) => self.apply_at_home(home, operation, &mut decide),
            Ok(_) => self.apply_anywhere(None, operation, &mut decide),
            Err(error) => Err(error),
        };
        poison.disarm();
        change
    }

    /// The common cases, in one short piece: those that concern the home line alone.
    #[inline(always)]
    fn apply_at_home(
        &self,
        home: Home<'_, L>,
        operation: Operation<'_, '_, K>,
        decide: &mut impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (m, probe) = (self.medium(), operation.probe);
        let line = home.held.line;
        let keys = keys_of(m, line);
        let tag = Geometry::<L, N>::tag(probe.image);
        if let Some((slot, word)) = find::<K, M, L, N>(m, line, matching(&keys, tag, 0), probe) {
            let place = Place { word, spot: Spot::Home(line, slot) };
            return self.apply_to(place, Locks::default(), home, operation, decide);
        }
        // Nobody moves records of this line while it is locked, so the others need not be.
        let absent = !segment::may_be_elsewhere(keys[2], tag)
            || self.find_elsewhere(home.segment, keys[2], probe).is_none();
        match (absent, operation.mode, free_slot::<N>(&keys)) {
            (true, MutateMode::ExistingOnly, _) => {
                home.held.release(m);
                Ok(Change::default())
            }
            (true, MutateMode::MayInsert, Some(slot)) => {
                let Action::Put(word) = decide(None) else {
                    home.held.release(m);
                    return Ok(Change::default());
                };
                let record = Record { image: probe.image, word };
                bucket::place::<M, L, N>(m, line, slot, record, 0);
                home.held.release_changed(m);
                Ok(Change { old: None, new: Some(word) })
            }
            _ => self.apply_anywhere(Some((home, absent)), operation, decide),
        }
    }

    /// Does what `decide` says about a record that was found, and releases the line.
    #[inline(always)]
    fn apply_to(
        &self,
        place: Place<'_>,
        locks: Locks<'_>,
        home: Home<'_, L>,
        operation: Operation<'_, '_, K>,
        decide: &mut (impl FnMut(Option<u64>) -> Action + ?Sized),
    ) -> Result<Change> {
        let m = self.medium();
        let old = Some(place.word);
        match decide(old) {
            Action::Keep => {
                locks.release(m);
                home.held.release(m);
                Ok(Change { old, new: old })
            }
            Action::Put(word) => {
                self.overwrite(place.spot, word);
                locks.release(m);
                home.held.release_changed(m);
                Ok(Change { old, new: Some(word) })
            }
            Action::Remove => {
                self.erase(place.spot);
                let emptied = Self::may_be_sparse(m, &home.held);
                locks.release(m);
                home.held.release_changed(m);
                if emptied {
                    self.merge_if_sparse(home.segment, operation.probe.image, operation.guard)?;
                }
                Ok(Change { old, new: None })
            }
        }
    }

    /// Does what `decide` says about a key, wherever its record is or is to be. The home line may be locked
    /// already, and the key known to be absent.
    #[inline(never)]
    fn apply_anywhere(
        &self,
        home: Option<(Home<'_, L>, bool)>,
        operation: Operation<'_, '_, K>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let mut chain = None;
        let change = self.apply_again(home, operation, &mut chain, decide);
        if let Some(unused) = chain {
            self.pool.free_unpublished(unused);
        }
        change
    }

    fn apply_again(
        &self,
        mut locked: Option<(Home<'_, L>, bool)>,
        operation: Operation<'_, '_, K>,
        chain: &mut Option<u64>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (m, probe) = (self.medium(), operation.probe);
        let mut waiting = self.waiting();
        loop {
            let (home, absent) = match locked.take() {
                Some(locked) => locked,
                None => match self.try_lock_home(probe.image, operation.mode)? {
                    LockingHome::Held(home) => (home, false),
                    LockingHome::Moved => continue,
                    LockingHome::Busy(segment) => {
                        waiting.wait(segment)?;
                        continue;
                    }
                    LockingHome::Stale(entry) => {
                        self.refresh(entry, &mut waiting)?;
                        continue;
                    }
                },
            };
            let (segment, line) = (home.segment, home.held.line);
            if !absent && let Some(place) = self.find_held(segment, line, probe) {
                match self.lock_for_removal(segment, place.spot) {
                    Ok(Some(locks)) => {
                        return self.apply_to(place, locks, home, operation, decide);
                    }
                    // Holding one lock, we only try others: give way, and begin again.
                    Ok(None) => {
                        home.held.release(m);
                        waiting.wait(segment)?;
                        continue;
                    }
                    Err(error) => {
                        home.held.release(m);
                        return Err(error);
                    }
                }
            }
            if operation.mode == MutateMode::ExistingOnly {
                home.held.release(m);
                return Ok(Change::default());
            }
            match self.make_room(segment, probe.image, chain) {
                Ok(MakeRoom::Room(room)) => {
                    let action = decide(None);
                    let new = if let Action::Put(word) = action { Some(word) } else { None };
                    match new {
                        Some(word) => {
                            self.place_in(line, room.spot, Record { image: probe.image, word });
                        }
                        None if room.locks.displaced() => self.settle_displacement(room.spot),
                        None => {}
                    }
                    // Changed in any case: making room may have moved a record.
                    room.locks.release(m);
                    home.held.release_changed(m);
                    return Ok(Change { old: None, new });
                }
                Ok(MakeRoom::Busy) => {
                    home.held.release(m);
                    waiting.wait(segment)?;
                }
                Ok(MakeRoom::Full) => {
                    home.held.release(m);
                    match self.split(segment, probe.image, operation.guard)? {
                        Split::Done => {}
                        Split::Refused if chain.is_some() => {}
                        Split::Refused => {
                            *chain = Some(self.pool.allocate(size_of::<Link>() as u64)?);
                        }
                    }
                }
                Err(error) => {
                    home.held.release(m);
                    return Err(error);
                }
            }
        }
    }

    /// Looks for a key whose home line is locked by the caller.
    fn find_held<'a>(
        &'a self,
        segment: &'a Segment<L>,
        line: &'a layout::Line,
        probe: &Probe<'_, K>,
    ) -> Option<Place<'a>> {
        let m = self.medium();
        let keys = keys_of(m, line);
        let matching = matching(&keys, Geometry::<L, N>::tag(probe.image), 0);
        match find::<K, M, L, N>(m, line, matching, probe) {
            Some((slot, word)) => Some(Place { word, spot: Spot::Home(line, slot) }),
            None => self.find_elsewhere(segment, keys[2], probe),
        }
    }

    /// Whether a removal left its line empty: a sign, looked at now and then, that the segment may be sparse.
    #[inline(always)]
    fn may_be_sparse(m: &M, home: &Held<'_>) -> bool {
        const ONE_IN: u64 = 128;
        let keys = keys_of(m, home.line);
        valid(&keys) == 0 && (L < 64 || (keys[0] & layout::VERSION_LOW).is_multiple_of(ONE_IN))
    }

    /// Looks up to [`BATCH`] keys up with their cache misses overlapped: first all home lines are fetched; then
    /// those lookups end that end there, and what the others need next is fetched.
    fn lookup_batch(&self, keys: &[K::Ref<'_>], out: &mut [Option<u64>]) -> Result<()> {
        let m = self.medium();
        let (mut images, mut entries) = ([0; BATCH], [0; BATCH]);
        for ((&key, image), entry) in keys.iter().zip(&mut images).zip(&mut entries) {
            *image = K::image(key, self.seed);
            *entry = self.directory.find(*image).segment;
            // A hint only: whether there is a segment is checked below.
            let line = Geometry::<L, N>::home(*image) as u64;
            m.prefetch((*entry & OFFSET) + (line + 1) * evermap_pm::medium::LINE);
        }
        let mut deferred = 0u32;
        for (at, &key) in keys.iter().enumerate() {
            let probe = Probe { key, image: images[at] };
            match self.look_at_home(entries[at], &probe)? {
                Some(answer) => out[at] = answer,
                None => deferred |= 1 << at,
            }
        }
        while deferred != 0 {
            let at = deferred.trailing_zeros() as usize % BATCH;
            deferred &= deferred - 1;
            out[at] = self.lookup(&Probe { key: keys[at], image: images[at] })?;
        }
        Ok(())
    }

    /// The answer for a key if its home line, in the segment that `entry` names, tells. If not, what will is on its
    /// way to the cache afterwards.
    #[inline(always)]
    fn look_at_home(&self, entry: u64, probe: &Probe<'_, K>) -> Result<Option<Option<u64>>> {
        let m = self.medium();
        let Some(home) = self.home_in(m, entry, probe.image) else { return Ok(None) };
        if K::WORDS_ARE_RECORDS {
            let tag = Geometry::<L, N>::tag(probe.image);
            let bits = bucket::matching_seen(&m.load_four(&home.keys), tag, 0);
            if bits != 0 {
                let slot = bits.trailing_zeros() as usize & 3;
                K::prefetch(m, m.load_relaxed(&home.words[slot]), record::HEAD);
                return Ok(None);
            }
        }
        match segment::glance::<K, M, L, N>(m, home, probe) {
            Look::Found(word) => Ok(Some(Some(word))),
            Look::Absent if self.directory.find(probe.image).segment == entry => Ok(Some(None)),
            Look::Unsure => {
                let other = Geometry::<L, N>::other_of(probe.image) as u64;
                m.prefetch((entry & OFFSET) + (other + 1) * evermap_pm::medium::LINE);
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Visits every segment once, in the order of images, with all its lines locked during `copy`; then calls
    /// `each` with what was copied, without locks but under a guard of its own. `copy` is also told the first
    /// image that was not visited before: a merge can bring records back that were. Segments that cannot be
    /// read are passed over; the first error is answered at the end.
    fn walk<T>(
        &self,
        mut copy: impl FnMut(&Segment<L>, u64) -> T,
        mut each: impl FnMut(T) -> bool,
    ) -> Result<()> {
        let mut cursor = Some(0);
        let mut result = Ok(());
        while let Some(from) = cursor {
            // A segment that is merged away while we wait for it must stay what it is.
            let _guard = self.pool.pin();
            let (copied, next) = self.step(from, &mut copy);
            cursor = next;
            match copied {
                Ok((copied, whole)) => {
                    result = result.and(whole);
                    if !each(copied) {
                        break;
                    }
                }
                Err(error) => {
                    self.region.ensure_sound()?;
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// One step of a walk, under a guard of the caller: what `copy` makes of the segment that serves the image
    /// `from`, whether that was all of the segment, and the first image behind that segment, if there is one.
    fn step<T>(
        &self,
        from: u64,
        copy: &mut impl FnMut(&Segment<L>, u64) -> T,
    ) -> (Result<(T, Result<()>)>, Option<u64>) {
        loop {
            match self.lock_serving(from) {
                // It was split or merged before we had it: look again.
                Ok(None) => {}
                Ok(Some(segment)) => {
                    let shape = HashPrefix::decode(self.medium().load(&segment.header.shape))
                        .filter(|shape| shape.covers(from));
                    let copied = shape.map(|shape| {
                        let whole = self.ensure_chain_ends(segment);
                        ((copy(segment, from), whole), shape.depth)
                    });
                    self.unlock_unchanged(segment);
                    return match copied {
                        Some((copied, depth)) => (Ok(copied), behind(from, depth)),
                        None => {
                            let what = "a directory entry names a segment of another place";
                            let error = Error::damaged(self.medium().offset_of(segment), what);
                            (Err(error), behind(from, self.directory.depth()))
                        }
                    };
                }
                Err(error) => return (Err(error), behind(from, self.directory.depth())),
            }
        }
    }

    /// Locks all lines of the segment that serves an image; `None` if another one does by then.
    fn lock_serving(&self, image: u64) -> Result<Option<&Segment<L>>> {
        let mut waiting = self.waiting();
        loop {
            let entry = self.directory.locate(image);
            match self.fresh(entry) {
                Some(segment) => {
                    return Ok(self.lock_all(segment, image)?.then_some(segment));
                }
                None => self.refresh(entry, &mut waiting)?,
            }
        }
    }

    /// The records of a segment with an image of `from` or more, the caller holding all its lines.
    fn records_from(&self, segment: &Segment<L>, from: u64) -> Vec<Record> {
        let mut records = self.all_records(segment);
        records.retain(|record| record.image >= from);
        records
    }

    /// What the callers of a walk know a record by.
    fn slot_key(&self, record: &Record) -> u64 {
        K::slot_key_of(record.image, self.seed)
    }
}

#[cold]
fn no_segment(offset: u64) -> Error {
    Error::damaged(offset, "a directory entry leads outside the region")
}

/// A mutation: for which key, and under which guard.
struct Operation<'a, 'k, K: Quotient> {
    probe: &'a Probe<'k, K>,
    mode: MutateMode,
    guard: &'a Guard<'a>,
}

impl<K: Quotient> Clone for Operation<'_, '_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Quotient> Copy for Operation<'_, '_, K> {}

/// The locked home line of a key, and the segment that it is in.
struct Home<'a, const L: usize> {
    segment: &'a Segment<L>,
    held: Held<'a>,
}

/// What an attempt to lock a home line found.
enum LockingHome<'a, const L: usize> {
    Held(Home<'a, L>),
    /// The directory was changed meanwhile: try again.
    Moved,
    /// Another thread holds it, in this segment.
    Busy(&'a Segment<L>),
    /// The segment of this directory entry was not recovered since the region was opened.
    Stale(u64),
}

/// Waits for a line that cannot be used yet, with an eye on why it may never be.
struct Waiting<'a, K: Quotient, M: Medium, const L: usize, const N: usize> {
    index: &'a LineHash<K, M, L, N>,
    patience: Patience,
    recoveries: u32,
}

impl<K: Quotient, M: Medium, const L: usize, const N: usize> Waiting<'_, K, M, L, N> {
    /// Waits for a locked line, or for the chain's lock.
    #[cold]
    fn wait(&mut self, segment: &Segment<L>) -> Result<()> {
        let offset = self.index.medium().offset_of(segment);
        self.patience.wait_at(&self.index.region, offset)
    }

    /// Recovers the segment of a stale entry.
    #[cold]
    fn recover(&mut self, offset: u64) -> Result<()> {
        const MANY: u32 = 100;
        self.recoveries += 1;
        if self.recoveries > MANY {
            let what = "a directory entry stays stale though its segment was recovered";
            return Err(Error::damaged(offset, what));
        }
        self.index.recover(offset)
    }
}

impl<K: Quotient, M: Medium, const L: usize, const N: usize> Index<K> for LineHash<K, M, L, N> {
    #[inline(always)]
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        self.lookup(&Probe::new(key, self.seed))
    }

    fn get_many(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        debug_assert!(std::ptr::eq(guard.domain(), self.pool.epoch()), "a guard of another pool");
        let out = &mut out[..keys.len()];
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            self.lookup_batch(keys, out)?;
        }
        Ok(())
    }

    changes_by_apply!();

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.walk(
            |segment, from| self.records_from(segment, from),
            |records| records.iter().all(|record| each(self.slot_key(record), record.word)),
        )
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let segment_bytes = size_of::<Segment<L>>() as u64;
        let depth = self.directory.depth();
        let mut stats = Stats { depth, pm_bytes: 64 + (8 << depth), ..Default::default() };
        self.walk(
            |segment, from| {
                (self.records_from(segment, from).len() as u64, self.chain(segment).count() as u64)
            },
            |(records, links)| {
                stats.len += records;
                stats.segments += 1;
                stats.capacity += (L * N) as u64 + links * layout::LINK_SLOTS as u64;
                stats.pm_bytes += segment_bytes + links * size_of::<Link>() as u64;
                true
            },
        )?;
        stats.dram_bytes =
            (size_of::<Self>() + self.recovering.len() * size_of::<Mutex<()>>()) as u64;
        stats.splits = self.splits.load(Ordering::Relaxed);
        stats.merges = self.merges.load(Ordering::Relaxed);
        stats.recovered = self.recovered.load(Ordering::Relaxed);
        Ok(stats)
    }
}

impl<K: Quotient, M: Medium, const L: usize, const N: usize> Persistent<M>
    for LineHash<K, M, L, N>
{
    type Config = Config;

    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        pool.region().ensure_writable()?;
        let m = pool.medium();
        let depth = config.initial_depth.max(Geometry::<L, N>::DEPTH_MIN);
        let size = size_of::<Segment<L>>() as u64;
        let stamp = Self::stamp_of(&pool);
        // Nothing below is reachable until the root cell names it, so an error or a crash forgets it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate(size_of::<Root>() as u64)?;
        let entries: Vec<u64> = (0..1 << depth)
            .map(|_| Ok(fresh.allocate_exact(size)? | stamp))
            .collect::<Result<_>>()?;
        let directory = Directory::create(
            pool.clone(),
            block + std::mem::offset_of!(Root, directory) as u64,
            depth,
            &entries,
        )?;
        fresh.keep();
        let count = entries.len() as u64;
        let index = Self::assemble(pool.clone(), block, directory, count);
        for (pattern, entry) in entries.into_iter().enumerate() {
            let shape = HashPrefix { depth, pattern: pattern as u64 };
            index.build(entry & OFFSET, shape, &rebuild::Picture::empty(), &[])?;
            index.unlock_unchanged(index.segment(entry & OFFSET)?);
        }
        let header = m.at::<Root>(block).expect("just allocated");
        m.store(&header.kind, Self::kind());
        m.flush(header);
        m.fence();
        m.store(root, block);
        m.persist(root);
        Ok(index)
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, Self::kind())
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        let block = root::block_of(&pool, root, Self::kind())?;
        pool.medium()
            .at::<Root>(block)
            .ok_or_else(|| Error::damaged(block, "the index's root ends outside the region"))?;
        let cell = block + std::mem::offset_of!(Root, directory) as u64;
        let directory = Directory::open(pool.clone(), cell)?;
        if directory.depth() < Geometry::<L, N>::DEPTH_MIN {
            return Err(Error::damaged(block, "the directory is too shallow"));
        }
        // Exact once everything has been visited; low until then, which only postpones doubling.
        let estimate = (1u64 << directory.depth()).div_ceil(4);
        let everything = pool.region().must_recover_all();
        let index = Self::assemble(pool, block, directory, estimate);
        if everything {
            // Stamps of an earlier opener could be taken for ours: make none be.
            index.unstamp_all();
        }
        Ok(index)
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.root);
        {
            // A directory that is replaced meanwhile must stay what it is while the visitor looks at it.
            let _guard = self.pool.pin();
            visitor.block(self.directory.block());
        }
        let mut segments = 0;
        let visited = self.walk(
            |segment, from| {
                (
                    self.medium().offset_of(segment),
                    self.chain_blocks(segment),
                    self.records_from(segment, from),
                )
            },
            |(offset, chain, records)| {
                segments += 1;
                visitor.block(offset);
                chain.into_iter().for_each(|block| visitor.block(block));
                records.iter().for_each(|record| visitor.word(record.word));
                true
            },
        );
        if visited.is_ok() {
            self.segments.store(segments, Ordering::Relaxed);
        }
        visited
    }

    /// The unit is a segment, `from` the least image to show.
    fn scan(
        &self,
        from: u64,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let (records, next) =
            self.step(from, &mut |segment, from| self.records_from(segment, from));
        if let Err(poisoned) = self.region.ensure_sound() {
            return (Err(poisoned), None);
        }
        let shown = records.and_then(|(records, whole)| {
            records.iter().for_each(|record| each(self.slot_key(record), record.word));
            whole
        });
        (shown, next)
    }

    fn check(&self) -> Vec<String> {
        self.check_everything()
    }
}

/// Whether a header belongs to a segment of this kind at all.
fn is_segment<M: Medium>(m: &M, header: &Header) -> bool {
    m.load(&header.magic) == Header::MAGIC
}
