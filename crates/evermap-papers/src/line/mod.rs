//! Line hash: extendible hashing whose buckets are single cache lines.
//!
//! The layout is in [`layout`]. An overview:
//!
//! ```text
//! root ── directory ─┬─ segment ── 256 lines of 4 records (, chain)
//!                    ├─ segment
//!                    └─ ...          the top image bits select the segment, bits 0..8 the line,
//!                                    the 52 bits between are the record's tag
//! ```
//!
//! A key is identified by its *image*: a bijective mix of its 64 bits, or the hash of a
//! variable-length key. The position of a record determines the top and the bottom bits of its
//! image, so a slot stores only the other bits (*quotienting*, after Knuth). This saves twelve bits
//! in each of four key words, which hold the metadata of the bucket: lock, version, valid bits and
//! a filter. So a line has no separate header, a lookup reads one line besides that of the
//! directory, and an insert flushes one line once.
//!
//! * **A record is in one of two lines**: its home line, or a second one that its tag determines.
//!   If both are full, an insert first tries to move a record of either line to its second line,
//!   before the segment is split.
//! * **One version per lookup**, that of the home line, as in [`dash`](evermap_index::hash::dash).
//!   A lookup reads the second line only if the filter in the home line does not exclude the key.
//! * **Splits are committed by the directory**, as in Dash-EH: no persistent word refers to a
//!   segment that is not committed.
//! * **The generation is in the directory entries**, above the offset. A lookup removes the current
//!   generation from the entry by exclusive or. The result is a valid offset only if the segment
//!   was recovered, so the bounds check that every offset needs also detects stale segments.
//! * **Keys whose images have too many equal bits** are stored in a chain, instead of doubling the
//!   directory without end.
//!
//! The code that the line hash shares with other indexes made of segments is in `hash/segmented`.

use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::sync::Arc;

use evermap_index::hash::hash_prefix::HashPrefix;
use evermap_index::hash::segmented::apply::{
    self, BucketLocked, FreeSlot, HeldBucket, Home, LockingHome, Operation, Staged, apply_slow,
    apply_to,
};
use evermap_index::hash::segmented::chain::Chain;
use evermap_index::hash::segmented::core::{Core, HasCore};
use evermap_index::hash::segmented::extendible::Extendible;
use evermap_index::hash::segmented::group;
use evermap_index::hash::segmented::index::SegmentedIndex;
use evermap_index::hash::segmented::split::Directed;
use evermap_index::hash::segmented::waiting::Waiting;
use evermap_index::hash::segmented::{Segmented, chain};
use evermap_index::index::{Action, BATCH_KEYS, Change, MutateMode};
use evermap_index::key::Quotient;
use evermap_index::record;
use evermap_pm::medium::LINE;
use evermap_pm::{Guard, Medium, Pool, Result};

mod bucket;
mod check;
pub mod layout;
mod lock;
mod rebuild;
mod recover;
mod segment;
mod stage;
mod structure;
#[cfg(test)]
mod tests;

use bucket::{
    Held, Probe, Record, find, free_slot_seen, keys_of, matching, matching_seen, try_lock, valid,
};
use layout::{Geometry, LINK_SLOTS, Line, Link, OFFSET, Segment};
use segment::{Locks, SearchResult, Spot};

/// The options of a new index.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The initial global depth: the index begins with `2^initial_depth` segments. Raised to the
    /// least depth that the geometry requires, which is 4 for 256 lines.
    pub initial_depth: u32,
}

/// A line hash over keys `K` in medium `M`, with segments of `L` lines.
///
/// See the [module](self). A segment must determine the bits of an image above the tag. So an index
/// begins with sixteen segments, for 256 lines; or, if it is `SMALL`, with one segment. Its
/// segments are *shallow* at first: their lines have three slots, and in the place of the fourth
/// hold these bits of the other three. A split after which both halves determine them frees the
/// fourth slots.
pub struct LineHash<K: Quotient, M: Medium, const L: usize = 256, const SMALL: bool = false> {
    core: Core<M>,
    map: Extendible<M>,
    /// The upper bits of directory entries whose segments this opener has recovered.
    generation_tag: u64,
    keys: PhantomData<fn(K) -> K>,
}

/// A line hash that begins with one segment of 16 KiB.
pub type SmallLineHash<K, M> = LineHash<K, M, 256, true>;
/// Segments so small that a few keys cause every kind of structure change.
pub type Tiny<K, M> = LineHash<K, M, 4, true>;

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> LineHash<K, M, L, SMALL> {
    #[inline(always)]
    fn medium(&self) -> &M {
        self.core.medium()
    }

    /// Returns the pool that contains the index.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.core.pool
    }

    /// Returns the segment that a directory entry refers to. Returns `None` if this opener has not
    /// recovered it.
    #[inline(always)]
    fn fresh(&self, entry: u64) -> Option<&Segment<L>> {
        // If the generation differs, the result has bits above those of any offset.
        self.medium().at(entry ^ self.generation_tag)
    }

    /// Returns the home line of an image in the segment that a directory entry refers to. Returns
    /// `None` if this opener has not recovered the segment.
    #[inline(always)]
    fn home_in<'a>(&self, m: &'a M, entry: u64, image: u64) -> Option<&'a Line> {
        let line = offset_of!(Segment<L>, lines) + 64 * Geometry::<L, SMALL>::home(image);
        m.at((entry ^ self.generation_tag).wrapping_add(line as u64))
    }

    /// Returns the offset of the home line of an image in the segment that a directory entry refers
    /// to, whether or not there is a segment.
    #[inline]
    fn home_offset(entry: u64, image: u64) -> u64 {
        Self::line_offset(entry, Geometry::<L, SMALL>::home(image))
    }

    /// Does what [`home_offset`](Self::home_offset) does for the other line of an image.
    #[inline]
    fn other_offset(entry: u64, image: u64) -> u64 {
        Self::line_offset(entry, Geometry::<L, SMALL>::other_of(image))
    }

    #[inline]
    fn line_offset(entry: u64, line: usize) -> u64 {
        (entry & OFFSET) + offset_of!(Segment<L>, lines) as u64 + line as u64 * LINE
    }

    /// Returns the offset of the segment that serves an image.
    fn locate(&self, image: u64) -> u64 {
        self.map.directory.locate(image) & OFFSET
    }

    #[inline(always)]
    fn lookup(&self, probe: &Probe<'_, K>) -> Result<Option<u64>> {
        let m = self.medium();
        let found = self.map.directory.find(probe.image);
        if let Some(home) = self.home_in(m, found.segment, probe.image) {
            match segment::look_in_line::<K, M, L, SMALL>(m, home, probe) {
                // No need to check the directory again: a record that was moved to another segment
                // is removed before its line is released.
                SearchResult::Found(word) => return Ok(Some(word)),
                // The segment may have been split between reading the directory and the line.
                SearchResult::Absent if self.map.directory.is_current(m, &found) => {
                    return Ok(None);
                }
                _ => {}
            }
        }
        self.lookup_slow(probe.key, probe.image)
    }

    /// Looks a key up in all cases: its record may be outside of its home line, lines may be
    /// locked, and segments may be stale or split meanwhile.
    #[inline(never)]
    fn lookup_slow(&self, key: K::Ref<'_>, image: u64) -> Result<Option<u64>> {
        let (m, probe) = (self.medium(), Probe { key, image });
        let mut waiting = Waiting::default();
        loop {
            let found = self.map.directory.find(image);
            let Some(segment) = self.fresh(found.segment) else {
                waiting.recover(self, found.segment & OFFSET)?;
                continue;
            };
            match self.look(segment, &probe) {
                SearchResult::Found(word) => return Ok(Some(word)),
                SearchResult::Absent if self.map.directory.is_current(m, &found) => {
                    return Ok(None);
                }
                SearchResult::Absent => {}
                SearchResult::Unsure | SearchResult::Again => waiting.wait(self, segment)?,
            }
        }
    }

    /// Prefetches the record of an image that is in its other line, if it is there, in the segment
    /// that `entry` refers to.
    #[inline]
    fn prefetch_record_away(&self, entry: u64, image: u64) {
        let (m, tag) = (self.medium(), Geometry::<L, SMALL>::tag(image));
        let Some(segment) = self.fresh(entry) else { return };
        let home = m.load_four(&segment.lines[Geometry::<L, SMALL>::home(image)].keys);
        let is_at_home = bucket::matching_seen(&home, tag, 0) != 0;
        if is_at_home || !segment::may_be_elsewhere(home.word::<2>(), tag) {
            return;
        }
        let line = &segment.lines[Geometry::<L, SMALL>::other_of(image)];
        let bits = bucket::matching_seen(&m.load_four(&line.keys), tag, layout::FOREIGN);
        if bits != 0 {
            let slot = bits.trailing_zeros() as usize & 3;
            K::prefetch(m, m.load_relaxed(&line.words[slot]), record::HEAD);
        }
    }

    /// Looks a key up only in its home line, in the segment that `entry` refers to. If that does
    /// not decide the lookup, prefetches what it needs next, and returns `None`.
    #[inline(always)]
    fn look_at_home(&self, entry: u64, probe: &Probe<'_, K>) -> Result<Option<Option<u64>>> {
        let m = self.medium();
        let Some(home) = self.home_in(m, entry, probe.image) else { return Ok(None) };
        if K::WORDS_ARE_RECORDS {
            let tag = Geometry::<L, SMALL>::tag(probe.image);
            let bits = bucket::matching_seen(&m.load_four(&home.keys), tag, 0);
            if bits != 0 {
                let slot = bits.trailing_zeros() as usize & 3;
                K::prefetch(m, m.load_relaxed(&home.words[slot]), record::HEAD);
                return Ok(None);
            }
        }
        match segment::look_in_line::<K, M, L, SMALL>(m, home, probe) {
            SearchResult::Found(word) => Ok(Some(Some(word))),
            SearchResult::Absent if self.map.directory.find(probe.image).segment == entry => {
                Ok(Some(None))
            }
            SearchResult::Unsure => {
                m.prefetch(Self::other_offset(entry, probe.image));
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> BucketLocked
    for LineHash<K, M, L, SMALL>
{
    type Probe<'k> = Probe<'k, K>;
    type Held<'a> = Held<'a>;
    type Spot<'a> = Spot<'a>;
    type Locks<'a> = Locks<'a>;

    fn rank(probe: &Probe<'_, K>) -> u64 {
        probe.image
    }

    #[inline(always)]
    fn try_lock_home(
        &self,
        probe: &Probe<'_, K>,
        mode: MutateMode,
        _at_holder: bool,
    ) -> Result<LockingHome<'_, Self>> {
        let (m, image) = (self.medium(), probe.image);
        let found = self.map.directory.find(image);
        let Some(segment) = self.fresh(found.segment) else {
            return Ok(LockingHome::Stale(found.segment & OFFSET));
        };
        if mode == MutateMode::MayInsert {
            // One insert in four finds its home line full. Prefetched before locking: no later load
            // begins before a locked instruction is complete.
            segment::prefetch_line(&segment.lines[Geometry::<L, SMALL>::other_of(image)]);
        }
        match try_lock(m, &segment.lines[Geometry::<L, SMALL>::home(image)]) {
            // While one of its lines is locked, a segment is neither split nor merged.
            Some(held) if self.map.directory.is_current(m, &found) => {
                Ok(LockingHome::Held(Home { segment, held }))
            }
            Some(held) => {
                held.release(m);
                Ok(LockingHome::Moved)
            }
            None => Ok(LockingHome::Busy(segment)),
        }
    }

    #[inline(always)]
    fn apply_at_home<'a>(
        &'a self,
        home: Home<'a, Self>,
        operation: Operation<'_, Probe<'_, K>>,
        decide: &mut impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (m, probe) = (self.medium(), operation.probe);
        let line = home.held.line;
        let seen = m.load_four(&line.keys);
        let tag = Geometry::<L, SMALL>::tag(probe.image);
        let matching = matching_seen(&seen, tag, 0);
        if let Some((slot, word)) = find::<K, M, L, SMALL>(m, line, matching, probe) {
            let spot = Spot::Home(line, slot);
            return apply_to(self, (&spot, word), Locks::default(), home, operation, decide);
        }
        // No thread moves records of this line while it is locked, so other lines need not be
        // locked.
        let third = seen.word::<2>();
        let absent = !segment::may_be_elsewhere(third, tag)
            || self.find_elsewhere(home.segment, third, probe).is_none();
        match (absent, operation.mode, free_slot_seen(&seen)) {
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
                bucket::place::<M, L, SMALL>(m, line, slot, record, 0);
                home.held.release_changed(m);
                Ok(Change { old: None, new: Some(word) })
            }
            _ => apply_slow(self, Some((home, absent)), operation, decide),
        }
    }

    #[inline]
    fn prefetch_for_change(&self, probe: &Probe<'_, K>, _mode: MutateMode) {
        let entry = self.map.directory.find(probe.image).segment;
        self.medium().prefetch(Self::home_offset(entry, probe.image));
    }

    #[inline]
    fn stage<'a>(
        &'a self,
        home: &mut Home<'a, Self>,
        operation: Operation<'_, Probe<'_, K>>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Option<Staged<'a, Self>> {
        self.stage_in(home.segment, home.held.line, operation, decide)
    }

    fn find_held<'a>(
        &'a self,
        home: &Home<'a, Self>,
        probe: &Probe<'_, K>,
    ) -> Option<(Spot<'a>, u64)> {
        let (m, line) = (self.medium(), home.held.line);
        let keys = keys_of(m, line);
        let matching = matching(&keys, Geometry::<L, SMALL>::tag(probe.image), 0);
        match find::<K, M, L, SMALL>(m, line, matching, probe) {
            Some((slot, word)) => Some((Spot::Home(line, slot), word)),
            None => self.find_elsewhere(home.segment, keys[2], probe),
        }
    }

    fn lock_for_removal<'a>(
        &'a self,
        home: &Home<'a, Self>,
        _probe: &Probe<'_, K>,
        spot: &Spot<'a>,
    ) -> Result<Option<Locks<'a>>> {
        self.lock_beside(home.segment, *spot)
    }

    #[inline(always)]
    fn overwrite(&self, spot: &Spot<'_>, word: u64) {
        self.store_word(*spot, word);
    }

    #[inline(always)]
    fn remove(
        &self,
        _home: &mut Home<'_, Self>,
        spot: &Spot<'_>,
        _operation: Operation<'_, Probe<'_, K>>,
    ) {
        self.erase(*spot);
    }

    #[inline(always)]
    fn may_be_sparse(&self, held: &Held<'_>) -> bool {
        const ONE_IN: u64 = 128;
        let m = self.medium();
        let version = m.load_relaxed(&held.line.keys[0]) & layout::VERSION_LOW;
        (L < 64 || version.is_multiple_of(ONE_IN)) && valid(&keys_of(m, held.line)) == 0
    }

    fn find_free_slot<'a>(
        &'a self,
        home: &mut Home<'a, Self>,
        probe: &Probe<'_, K>,
        chain: &mut Chain,
    ) -> Result<FreeSlot<Spot<'a>, Locks<'a>>> {
        self.find_room(home.segment, probe.image, chain)
    }

    #[inline(always)]
    fn fill(
        &self,
        home: &mut Home<'_, Self>,
        spot: &Spot<'_>,
        locks: &Locks<'_>,
        probe: &Probe<'_, K>,
        word: Option<u64>,
    ) {
        match word {
            Some(word) => {
                self.place_in(home.held.line, *spot, Record { image: probe.image, word });
            }
            None if locks.displaced() => self.settle_displacement(*spot),
            None => {}
        }
    }

    fn allocate_link(&self) -> Result<u64> {
        self.core.pool.allocate(size_of::<Link>() as u64)
    }
}

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> HasCore
    for LineHash<K, M, L, SMALL>
{
    type Medium = M;

    #[inline(always)]
    fn core(&self) -> &Core<M> {
        &self.core
    }
}

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> Segmented
    for LineHash<K, M, L, SMALL>
{
    type Map = Extendible<M>;
    type Segment = Segment<L>;
    type Locked<'a> = &'a Segment<L>;

    const SLOTS: usize = L * 4;
    const LINK: (usize, u64) = (LINK_SLOTS, size_of::<Link>() as u64);

    #[inline(always)]
    fn map(&self) -> &Extendible<M> {
        &self.map
    }

    fn lock_whole(&self, offset: u64, image: u64) -> Result<Option<&Segment<L>>> {
        let mut waiting = Waiting::default();
        loop {
            let entry = self.map.directory.locate(image);
            if entry & OFFSET != offset {
                return Ok(None);
            }
            match self.fresh(entry) {
                Some(segment) => return Ok(self.lock_all(segment, image)?.then_some(segment)),
                None => waiting.recover(self, offset)?,
            }
        }
    }

    fn segment_in<'a>(locked: &&'a Segment<L>) -> &'a Segment<L>
    where
        Self: 'a,
    {
        locked
    }

    fn unlock_unchanged(&self, segment: &Segment<L>) {
        self.unlock_lines(&segment.lines);
    }

    fn pairs_within(
        &self,
        segment: &Segment<L>,
        _: HashPrefix,
        ranks: &RangeInclusive<u64>,
    ) -> Vec<(u64, u64)> {
        let records = self.all_records(segment).into_iter();
        records
            .filter(|record| ranks.contains(&record.image))
            .map(|record| (K::slot_key_of(record.image, self.core.seed), record.word))
            .collect()
    }

    fn ensure_chain_ends(&self, segment: &Segment<L>) -> Result<()> {
        chain::ensure_ends::<Link, M>(self.medium(), &segment.header.chain)
    }

    fn chain_blocks(&self, segment: &Segment<L>) -> Vec<u64> {
        chain::blocks::<Link, M>(self.medium(), &segment.header.chain)
    }

    fn check_segment(&self, segment: &Segment<L>, prefix: HashPrefix, problems: &mut Vec<String>) {
        self.check_contents(segment, prefix, problems);
    }

    fn make_stale(&self, segment: &Segment<L>) {
        self.medium().store_transient(&segment.header.generation, !self.core.generation);
    }

    /// Also makes them durable.
    fn finish_contents(&self, segment: &Segment<L>, prefix: HashPrefix) {
        self.rebuild(segment, prefix);
        self.medium().store_transient(&segment.header.generation, self.core.generation);
    }

    fn admit(&self, offset: u64) -> Result<()> {
        self.store_generation(offset)
    }
}

impl<K: Quotient, M: Medium, const L: usize, const SMALL: bool> SegmentedIndex
    for LineHash<K, M, L, SMALL>
{
    type Key = K;
    type Config = Config;

    fn kind() -> u64 {
        let geometry = (L as u64) << 4 | if SMALL { 3 } else { 4 };
        u64::from_le_bytes(*b"LINEH\0\0\0") ^ u64::from(K::FORMAT) << 56 ^ geometry << 40
    }

    fn initial_depth(config: &Config) -> Result<u32> {
        Ok(config.initial_depth.max(Geometry::<L, SMALL>::DEPTH_MIN))
    }

    fn assemble(core: Core<M>, map: Extendible<M>, _: Option<Config>) -> Result<Self> {
        let generation_tag = Self::stamp(core.generation);
        Ok(LineHash { core, map, generation_tag, keys: PhantomData })
    }

    fn write_empty(&self, offset: u64, prefix: HashPrefix) -> Result<()> {
        self.build(offset, prefix, &rebuild::SegmentBuffer::empty(prefix.depth), &[])?;
        self.unlock_unchanged(self.segment(offset)?);
        Ok(())
    }

    fn make_all_stale(&self) -> Result<()> {
        self.make_entries_stale();
        Ok(())
    }

    #[inline(always)]
    fn look_up(&self, key: K::Ref<'_>) -> Result<Option<u64>> {
        self.lookup(&Probe::new(key, self.core.seed))
    }

    /// First prefetches all home lines; then completes the lookups that their home lines decide,
    /// and prefetches what the others need next: the record that the home line leads to; or the
    /// other line, and then the record that this one leads to.
    fn look_up_batch(&self, keys: &[K::Ref<'_>], out: &mut [Option<u64>]) -> Result<()> {
        let m = self.medium();
        let (mut images, mut entries) = ([0; BATCH_KEYS], [0; BATCH_KEYS]);
        for ((&key, image), entry) in keys.iter().zip(&mut images).zip(&mut entries) {
            *image = K::image(key, self.core.seed);
            *entry = self.map.directory.find(*image).segment;
            // Only a hint: that the segment exists is checked below.
            m.prefetch(Self::home_offset(*entry, *image));
        }
        let mut deferred = 0u32;
        for (at, &key) in keys.iter().enumerate() {
            let probe = Probe { key, image: images[at] };
            match self.look_at_home(entries[at], &probe)? {
                Some(answer) => out[at] = answer,
                None => deferred |= 1 << at,
            }
        }
        if K::WORDS_ARE_RECORDS {
            for at in (0..keys.len()).filter(|at| deferred >> at & 1 == 1) {
                self.prefetch_record_away(entries[at], images[at]);
            }
        }
        while deferred != 0 {
            let at = deferred.trailing_zeros() as usize % BATCH_KEYS;
            deferred &= deferred - 1;
            out[at] = self.lookup(&Probe { key: keys[at], image: images[at] })?;
        }
        Ok(())
    }

    #[inline]
    fn prefetch_home(&self, key: K::Ref<'_>) {
        let image = K::image(key, self.core.seed);
        let entry = self.map.directory.find(image).segment;
        // Only a hint: an operation on the key checks that the segment exists.
        self.medium().prefetch(Self::home_offset(entry, image));
    }

    #[inline]
    fn prefetch_found(&self, key: K::Ref<'_>, bytes: u64) {
        if !K::WORDS_ARE_RECORDS {
            return;
        }
        let (m, image) = (self.medium(), K::image(key, self.core.seed));
        let entry = self.map.directory.find(image).segment;
        let Some(home) = self.home_in(m, entry, image) else { return };
        let (seen, tag) = (m.load_four(&home.keys), Geometry::<L, SMALL>::tag(image));
        let alike = seen.matching_upper((tag >> 32) as u32);
        if alike != 0 {
            let slot = alike.trailing_zeros() as usize & 3;
            K::prefetch(m, m.load_relaxed(&home.words[slot]), bytes);
        } else if segment::may_be_elsewhere(seen.word::<2>(), tag) {
            m.prefetch(Self::other_offset(entry, image));
        }
    }

    #[inline(always)]
    fn apply(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        apply::apply(self, &Probe::new(key, self.core.seed), mode, guard, decide)
    }

    fn apply_batch(
        &self,
        keys: &[K::Ref<'_>],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
        out: &mut [Result<Change>],
    ) {
        let probes = keys.iter().map(|&key| Probe::new(key, self.core.seed));
        group::apply_batch(self, probes, mode, guard, decide, out);
    }
}
