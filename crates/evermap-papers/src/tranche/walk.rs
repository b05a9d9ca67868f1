//! Walks over all records, concurrent with changes.
//!
//! The rank of a record begins with its [part](super::place::Division::part), which never changes,
//! and continues with its bit-reversed hash. The parts of a walk are smaller than those that move
//! if these would make pages of more than some thousand records. A set holds the keys that agree in
//! some low bits of their hashes, which reversed are the top bits: in each part, one range of
//! ranks. Growth divides such a range in two, and shrinking joins two of them. So the state of a
//! walk is one number, the least rank that it has not shown, and it can pause for any time. Walks
//! that show records to callers take the pages in the order of
//! [`walk_order`](evermap_index::hash::walk_order), others in that of ranks.
//!
//! The records of a part of one set are a page. A page is read again if anything has moved in the
//! set meanwhile, and after some attempts nothing may move while it is read.

use std::ops::RangeInclusive;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

use evermap_index::hash::hash_prefix::top_bits;
use evermap_index::hash::walk_order::Position;
use evermap_pm::{Medium, Result};

use super::geometry::Geometry;
use super::group::Stored;
use super::mistakes;
use super::place::{Division, State};
use super::table::{Format, Table};

/// What a part of a set contains.
pub(super) struct Page<R> {
    pub(super) records: Vec<R>,
    /// The offsets of overflow blocks. They are in the first page of a set.
    pub(super) overflows: Vec<u64>,
}

/// What a walk visits now.
#[derive(Clone, Copy)]
struct Wanted {
    part: u64,
    /// The least and the greatest reversed hash.
    least: u64,
    most: u64,
}

impl<F: Format, M: Medium, G: Geometry> Table<F, M, G> {
    /// The number of attempts to read a page while records may move.
    const ATTEMPTS: u32 = 3;
    /// The most pairs that a page should have, and how many are enough: then insertions of what a
    /// walk shows fill all groups of a smaller table at the same time.
    const PAGE_PAIRS: u64 = 4096;
    const ENOUGH_PAIRS: u64 = 256;
    /// The parts of a walk: those that move, or fractions of them.
    pub(super) const WALK: Division = {
        let mut walk = Self::DIVISION;
        loop {
            let pairs = (2 * walk.least() * Self::PAIRS) >> walk.parts;
            // Fractions of the records with one home can be chosen by the bits of a fingerprint,
            // but a reader of one reads all.
            let divides = if walk.parts < walk.homes {
                pairs > Self::ENOUGH_PAIRS
            } else {
                pairs > Self::PAGE_PAIRS && walk.parts < walk.homes + 8
            };
            if !divides {
                break walk;
            }
            walk.parts += 1;
        }
    };

    fn wanted(ranks: &RangeInclusive<u64>) -> Wanted {
        let parts = Self::WALK.parts;
        let [first, last] = [*ranks.start(), *ranks.end()];
        let part = top_bits(first, parts);
        let whole = top_bits(last, parts) != part;
        let most = if whole { u64::MAX } else { last << parts | ((1 << parts) - 1) };
        Wanted { part, least: first << parts, most }
    }

    /// Returns where the page behind the one at `here` begins.
    fn behind(here: Wanted, state: State) -> Option<u64> {
        let (parts, depth) = (Self::WALK.parts, state.depth);
        let next = top_bits(here.least, depth) + 1;
        let order = (here.part << depth) + next;
        (order >> depth >> parts == 0).then(|| order << (64 - depth - parts).min(63))
    }

    /// Returns the page that contains the first of `ranks`: calls `read` with its live records that
    /// have these ranks, one group locked at a time. Also returns where the next page begins, or
    /// `None` after the last one.
    ///
    /// # Errors
    /// `Damaged` if a group cannot be read, in addition to the others and the next page;
    /// `Poisoned`, `Forked`.
    pub(super) fn page<R>(
        &self,
        ranks: &RangeInclusive<u64>,
        mut read: impl FnMut(&Stored<'_>) -> Result<R>,
    ) -> (Result<()>, Page<R>, Option<u64>) {
        let mut page = Page { records: Vec::new(), overflows: Vec::new() };
        if let Err(unusable) = self.region.ensure_writable() {
            return (Err(unusable), page, None);
        }
        let here = Self::wanted(ranks);
        let mut growth = None;
        for attempt in 1.. {
            if attempt > Self::ATTEMPTS {
                // A panic under the lock poisons the region, which is checked below.
                growth = Some(self.growth.lock().unwrap_or_else(PoisonError::into_inner));
            }
            let state = self.arrays.state();
            let set = state.set_of(here.least.reverse_bits());
            // Acquire: the state is read after the counter, and so are the groups.
            let moves = self.moves_in(set).load(Ordering::Acquire);
            let (depth, state) = (state.depth, self.arrays.state());
            if state.depth != depth {
                continue;
            }
            page.records.clear();
            page.overflows.clear();
            let result = self.read_page(here, state, &mut page, &mut read);
            // Acquire: everything above is read before the counter is read again.
            fence(Ordering::Acquire);
            let same = self.moves_in(set).load(Ordering::Relaxed) == moves
                && self.arrays.state().depth == state.depth;
            if same || growth.is_some() || self.medium().mutant(mistakes::PAGE_NOT_CHECKED) {
                let next = Self::behind(here, state);
                return match self.region.ensure_writable() {
                    Ok(()) => (result, page, next),
                    Err(unusable) => (Err(unusable), page, None),
                };
            }
        }
        unreachable!("the last attempt succeeds")
    }

    fn read_page<R>(
        &self,
        here: Wanted,
        state: State,
        page: &mut Page<R>,
        read: &mut impl FnMut(&Stored<'_>) -> Result<R>,
    ) -> Result<()> {
        let (groups, mut result) = (self.groups(), Ok(()));
        let set = state.set_of(here.least.reverse_bits());
        for index in state.groups_of(set, Self::DIVISION) {
            let group = self.try_lock_group(index).and_then(|locked| {
                // If the group has left the table, the page is read again.
                let Some(locked) = locked else { return Ok(()) };
                if here.part == 0 {
                    page.overflows.extend(groups.overflows(locked.group)?);
                }
                let hash_of = |stored: &Stored<'_>| self.hash_of(stored);
                groups.part(locked.group, (Self::WALK, here.part), hash_of, |stored, hash| {
                    // A set that two have become may have been shown in part. Damage may have put a
                    // record into a group where no search looks for it.
                    if (here.least..=here.most).contains(&hash.reverse_bits())
                        && state.group_of(hash, Self::DIVISION) == index
                    {
                        page.records.push(read(&stored)?);
                    }
                    Ok(())
                })
            });
            result = result.and(group);
        }
        result
    }

    /// Calls `shown` with every page in the order of ranks, under a guard but without a lock, until
    /// it returns `false`. Groups that cannot be read are skipped, and the first error is returned
    /// at the end.
    pub(super) fn walk<R>(
        &self,
        mut read: impl FnMut(&Stored<'_>) -> Result<R>,
        mut shown: impl FnMut(&Page<R>) -> bool,
    ) -> Result<()> {
        let (mut from, mut result) = (Some(0), Ok(()));
        while let Some(here) = from {
            // The guard keeps what records name valid while the caller uses it.
            let _guard = self.pool.pin();
            let (done, page, next) = self.page(&(here..=u64::MAX), &mut read);
            if done.is_err() {
                self.region.ensure_writable()?;
            }
            result = result.and(done);
            if !shown(&page) {
                break;
            }
            from = next;
        }
        result
    }

    /// The same in the [order](evermap_index::hash::walk_order) for callers that may insert what
    /// they are shown, and only with records.
    pub(super) fn walk_scattered<R>(
        &self,
        mut read: impl FnMut(&Stored<'_>) -> Result<R>,
        mut shown: impl FnMut(&[R]) -> bool,
    ) -> Result<()> {
        let (mut from, mut result) =
            (Some(Position::first(self.range_bits(), Self::WALK.parts)), Ok(()));
        while let Some(here) = from {
            let _guard = self.pool.pin();
            let (done, page, next) = self.page(&here.ranks(), &mut read);
            if done.is_err() {
                self.region.ensure_writable()?;
            }
            result = result.and(done);
            if !shown(&page.records) {
                break;
            }
            from = here.after(next);
        }
        result
    }

    /// Returns the binary logarithm of the number of pages, or a little less.
    pub(super) fn range_bits(&self) -> u32 {
        self.arrays.state().depth + Self::WALK.parts
    }
}
