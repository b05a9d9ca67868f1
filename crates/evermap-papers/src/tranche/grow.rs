//! Growth and shrinking.
//!
//! The table adds a group whenever its groups are full to [`FULL`](Table::FULL), and gives one up
//! whenever they are full to [`SPARSE`](Table::SPARSE) only. Which groups that concerns is in
//! `place`. Either is done in pieces: one part of one old group moves to the new group, or back.
//! An insertion or a removal does a few pieces at most, on average as many as it causes.
//!
//! A piece is committed by one store to the root, of the new state. Before that the records of the
//! part are copied to the group to which they move, and after it the ones from which they were
//! copied are marked as dead. A crash in between leaves records in both groups. Those in the group
//! that the state does not lead to are recognised by their hashes, and recovery drops them.
//!
//! Records that a removal or a move leaves dead are replaced by new ones, so records that were
//! displaced would remain so. Therefore a piece that reads a part also returns its displaced
//! records to their homes, if these have room now. A crash leaves two equal records then, of which
//! recovery drops one.

use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

use evermap_index::lock_wait::LockWait;
use evermap_pm::{Error, Guard, Medium, Result};

use super::additions::Additions;
use super::arrays::{Arrays, Group};
use super::batch::{LINE, prefetch_word};
use super::geometry::Geometry;
use super::group::Stored;
use super::image::{Item, home};
use super::layout::{GROUP_WORD, Shape, Version};
use super::place::{Division, State};
use super::table::{Format, Locked, Table};

/// Records of a group, with the hashes of their keys.
type Records<'t> = Vec<(Stored<'t>, u64)>;

impl<F: Format, M: Medium, G: Geometry> Table<F, M, G> {
    /// What placement depends on.
    pub(super) const DIVISION: Division = Arrays::<M, G>::DIVISION;
    /// The share of the space that is taken while the table grows: at which few records of 16 bytes
    /// are displaced, and groups seldom overflow.
    pub(super) const FULL: f64 = match G::TRANCHE_BYTES {
        ..=256 => 0.78,
        257..=512 => 0.8,
        513..=4096 => 0.9,
        _ => 0.96,
    };
    /// The same for growth that a program asks for. Insertions find so much room then that they
    /// have none to do if another thread keeps asking.
    const AHEAD: f64 = Self::FULL * 127.0 / 128.0;
    /// The same at which insertions wait for each other's growth: one thread grows the table at a
    /// time, and others could fill it faster than that.
    pub(super) const OVERFULL: f64 = Self::FULL * 65.0 / 64.0;
    /// The same while it shrinks. Far enough from the other that removals and insertions in turn
    /// move nothing.
    pub(super) const SPARSE: f64 = 0.8 * Self::FULL;
    /// The number of added or removed bytes after which the fill is looked at, and a piece of work
    /// is done if it is due. A little less than what the smallest piece makes room for.
    pub(super) const PACE: u64 = {
        let pieces = (2 * Self::DIVISION.least()) << Self::DIVISION.parts;
        let pace = Self::CAPACITY * 6 / 10 / pieces;
        if pace == 0 { 1 } else { pace }
    };
    /// The number of pieces in which all that has its home in one tranche moves, or 1 if these are
    /// several tranches. A program that asks for growth has all done at once, which takes half the
    /// time if each piece would look through the same fingerprints.
    const PIECES_OF_HOME: u64 = 1 << Self::DIVISION.parts.saturating_sub(Self::DIVISION.homes);
    /// How often a part is read without a lock before it is read with one.
    const UNLOCKED_READS: usize = 4;
    /// The greatest number of pieces of work that one change does.
    const PIECES_MAX: u64 = 8;

    /// Takes part in the growth of the table, after `bytes` were added to a group, which is no
    /// longer locked.
    ///
    /// # Errors
    /// `Damaged`. If there is no space, the table just does not grow.
    #[inline(always)]
    pub(super) fn grow_after(&self, group: u64, bytes: u64, guard: &Guard<'_>) -> Result<()> {
        match self.fill.add(group, bytes, Self::PACE) {
            0 => Ok(()),
            looks => self.grow(looks, guard),
        }
    }

    /// Does up to `looks` pieces of growth, as far as they are due, unless another thread does and
    /// is not too late.
    fn grow(&self, looks: u64, guard: &Guard<'_>) -> Result<()> {
        let waits = || self.ratio() >= Self::OVERFULL;
        self.work(looks, || self.growth_is_due(), waits, || self.advance(1, guard))
    }

    /// Returns whether the table is as full as it becomes.
    fn growth_is_due(&self) -> bool {
        self.is_full_to(Self::FULL)
    }

    fn is_full_to(&self, share: f64) -> bool {
        self.ratio() >= share || self.overfull.load(Ordering::Relaxed) > 0
    }

    /// Does up to `pieces` pieces of growth: those that insertions would do soon, and then those
    /// that complete the step in the set in which it is. Returns how many it did. Other threads can
    /// use the table between two of them.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`; then those that were done before remain so.
    pub(super) fn rehash(&self, pieces: u64) -> Result<u64> {
        self.region.ensure_writable()?;
        let poison = self.region.poison_on_panic();
        let done = self.rehash_unpoisoned(pieces);
        poison.disarm();
        done
    }

    fn rehash_unpoisoned(&self, pieces: u64) -> Result<u64> {
        let is_due = || self.arrays.state().moved > 0 || self.is_full_to(Self::AHEAD);
        let mut done = 0;
        while done < pieces {
            match self.advance_if(is_due, pieces - done)? {
                0 => break,
                more => done += more,
            }
        }
        Ok(done)
    }

    /// Does some pieces of growth if they are `due`, at most `pieces`. Returns how many.
    ///
    /// # Errors
    /// `NoSpace`; then nothing has changed. `Damaged`.
    pub(super) fn advance_if(&self, due: impl Fn() -> bool, pieces: u64) -> Result<u64> {
        // A panic under the lock poisons the region, which every caller checks.
        let _growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        if !due() {
            return Ok(0);
        }
        let home = Self::PIECES_OF_HOME;
        let begins = self.arrays.state().moved.is_multiple_of(home);
        let pieces = if begins && pieces >= home { home } else { 1 };
        // Pinned anew each time, so that what is given up can be used again.
        self.advance(pieces, &self.pool.pin())?;
        Ok(pieces)
    }

    /// Takes part in the shrinking of the table, after records were removed from groups that are no
    /// longer locked. `looks` is what [`removed`](Self::removed) has returned.
    ///
    /// # Errors
    /// `Damaged`. If there is no space, the table just does not shrink.
    #[inline(always)]
    pub(super) fn shrink_after(&self, looks: u64, guard: &Guard<'_>) -> Result<()> {
        if looks == 0 { Ok(()) } else { self.shrink(looks, guard) }
    }

    fn shrink(&self, looks: u64, guard: &Guard<'_>) -> Result<()> {
        let due = || self.ratio() < Self::SPARSE && self.can_shrink();
        self.work(looks, due, || false, || self.retreat(guard))
    }

    /// Takes note that a record was removed from a group.
    #[inline(always)]
    pub(super) fn removed(&self, group: u64, bytes: u64) -> u64 {
        self.fill.remove(group, bytes, Self::PACE)
    }

    /// Does up to `looks` pieces of work while they are due. If another thread does such work, it
    /// is left to that, unless `waits`.
    fn work(
        &self,
        looks: u64,
        due: impl Fn() -> bool,
        waits: impl Fn() -> bool,
        piece: impl Fn() -> Result<()>,
    ) -> Result<()> {
        if !due() {
            return Ok(());
        }
        let mut lock_wait = LockWait::default();
        let _growth = loop {
            match self.growth.try_lock() {
                Ok(growth) => break growth,
                // Not for the lock itself: the thread that has it may do the work meanwhile, and
                // takes it for one piece after the other.
                Err(_) if waits() => lock_wait.wait(&self.region)?,
                Err(_) => return Ok(()),
            };
        };
        for _ in 0..looks.min(Self::PIECES_MAX) {
            if !due() {
                break;
            }
            match piece() {
                // Nothing has changed. Groups have overflow blocks until there is space.
                Err(error) if error.is_no_space() => break,
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns the share of the space that is taken.
    pub(super) fn ratio(&self) -> f64 {
        let state = self.arrays.state();
        // The new group has space for the parts that have moved to it.
        let usable = state.target() as f64 + state.share_moved(Self::DIVISION);
        self.fill.ratio(Self::CAPACITY, usable / state.count() as f64)
    }

    /// Takes note that a group has overflowed. So a table of long records, whose groups are often
    /// full before the table is, grows earlier; unless the hashes of keys are to blame, so that
    /// other groups have much space. With pairs, overflow blocks take less than that would.
    pub(super) fn note_overflow(&self) {
        if F::BYTE_STRINGS && self.ratio() >= Self::SPARSE {
            let group = self.arrays.state().groups << Self::DIVISION.parts;
            self.overfull.fetch_max(group, Ordering::Relaxed);
        }
    }

    /// Returns whether there are more groups than the table had at first: these it keeps.
    fn can_shrink(&self) -> bool {
        self.arrays.state().target() > self.arrays.least() || self.arrays.state().moved > 0
    }

    /// Does one piece of growth, or the [`PIECES_OF_HOME`](Self::PIECES_OF_HOME) of the next home:
    /// moves the next part to the new group of the step. The caller holds the lock for growth.
    ///
    /// # Errors
    /// `NoSpace`; then nothing has changed. `Damaged`.
    pub(super) fn advance(&self, pieces: u64, guard: &Guard<'_>) -> Result<()> {
        let state = self.arrays.state();
        debug_assert!(pieces == 1 || pieces == Self::PIECES_OF_HOME);
        debug_assert!(state.moved.is_multiple_of(pieces));
        let next = (0..pieces).try_fold(state, |state, _| state.advanced(Self::DIVISION));
        let next = next.ok_or_else(|| {
            Error::no_space("the greatest number of groups", Arrays::<M, G>::GROUP)
        })?;
        let (source, part) = state.next_part(Self::DIVISION);
        let part = match pieces {
            1 => (Self::DIVISION, part),
            _ => (Self::DIVISION.of_homes(), part / Self::PIECES_OF_HOME),
        };
        let moves = |hash| state.moves(hash, Self::DIVISION);
        let ahead = self.part_of_unlocked(source, part, moves)?;
        let mut new = match state.moved {
            0 => self.new_group(state.target())?,
            _ => self.lock_group(state.target())?,
        };
        let mut old = self.lock_group(source)?;
        let moved = match ahead {
            Some((version, records)) if version == old.version => Ok(records),
            _ => self.part_of(old.group, part, moves),
        };
        let moved = moved.and_then(|records| {
            self.move_part(&mut old, &mut new, (part, records), (state, next), guard)
        });
        if let Err(error) = moved {
            if state.moved == 0 && self.arrays.state() == state {
                new.leave(self.generation);
                self.groups().overflows(new.group)?.into_iter().for_each(|block| {
                    self.pool.free_unpublished(block);
                });
            }
            return Err(error);
        }
        if state.moved == 0 {
            new.version = new.version.of_new_group(self.generation);
            self.fill.add_group(new.group.index, 0);
            self.splits.fetch_add(1, Ordering::Relaxed);
        }
        // Relaxed: only a hint, of which no more is taken than there is.
        let less = |owed: u64| (owed > 0).then(|| owed.saturating_sub(pieces));
        let _ = self.overfull.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        drop(new);
        self.prefetch_later_part(next, part.0);
        // The overflow blocks that the group has needed may not be needed any more.
        let last = next.moved.is_multiple_of(1 << Self::DIVISION.parts);
        if last && self.groups().overflow(old.group, 0)?.is_some() {
            match self.compact(&mut old, guard) {
                Err(error) if !error.is_no_space() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Prefetches a share of what the pieces from `next` on will read: the next part, or, if
    /// several parts have one home, a fraction of the next home while each of these moves.
    fn prefetch_later_part(&self, next: State, division: Division) {
        let shares = 1 << division.parts.saturating_sub(division.homes);
        let later = (1..shares).try_fold(next, |state, _| state.advanced(Self::DIVISION));
        let Some(later) = later else { return };
        let (source, part) = later.next_part(Self::DIVISION);
        let homes = Self::DIVISION.homes_of(part);
        let words = |group: u64| self.arrays.group(group).map_or(&[][..], |group| group.words);
        let tranches = words(source).chunks(Shape::<G>::WORDS).skip(homes.start);
        for tranche in tranches.take(homes.len()) {
            let share = Shape::<G>::WORDS / shares;
            let first = part as usize % shares * share;
            tranche[first..][..share].iter().step_by(LINE).for_each(prefetch_word);
        }
        if later.moved > 0 {
            let tranches = words(later.target()).chunks(Shape::<G>::WORDS).skip(homes.start);
            tranches.take(homes.len()).for_each(|tranche| prefetch_word(&tranche[0]));
        }
    }

    /// Moves the last part back that has moved to the new group of the step. The caller holds the
    /// lock for growth.
    ///
    /// # Errors
    /// `NoSpace`; then nothing has changed. `Damaged`.
    pub(super) fn retreat(&self, guard: &Guard<'_>) -> Result<()> {
        let state = self.arrays.state();
        let Some(last) = state.retreated(Self::DIVISION) else { return Ok(()) };
        let (target, part) = last.next_part(Self::DIVISION);
        let part = (Self::DIVISION, part);
        let mut new = self.lock_group(last.target())?;
        let mut old = self.lock_group(target)?;
        let moves = |hash| last.old_group_of(hash, Self::DIVISION) == target;
        let records = self.part_of(new.group, part, moves)?;
        self.move_part(&mut new, &mut old, (part, records), (last, last), guard)?;
        drop(old);
        if last.moved == 0 {
            self.remove_group(new, guard)?;
        }
        Ok(())
    }

    /// Gives up a group that is not in the table any more, and that no record is in.
    fn remove_group(&self, mut locked: Locked<'_, M>, guard: &Guard<'_>) -> Result<()> {
        let index = locked.group.index;
        let overflows = self.groups().overflows(locked.group)?;
        locked.version = locked.version.advanced().of_no_group(self.generation);
        locked.changed = false;
        locked.leave(self.generation);
        drop(locked);
        self.fill.remove_group(index);
        self.merges.fetch_add(1, Ordering::Relaxed);
        for block in overflows {
            self.pool.retire(block, Arrays::<M, G>::GROUP, guard);
        }
        self.arrays.give_up(index, guard);
        Ok(())
    }

    /// Returns a new empty group behind the last one, locked. It is not in the table, and dropping
    /// it leaves it so.
    fn new_group(&self, index: u64) -> Result<Locked<'_, M>> {
        self.arrays.extend_to(index)?;
        let (m, group) = (self.medium(), self.arrays.group(index)?);
        self.store_empty(group.words);
        // Durable before the state that leads to the group, also if no record moves to it.
        m.fence();
        let cell = &group.words[GROUP_WORD];
        // Nobody else locks it: threads that come with an earlier state find that it is stale, and
        // not in the table.
        let version = Version(m.load(cell)).of_no_group(self.generation);
        m.store_transient(cell, version.of_new_group(self.generation).locked().0);
        let mut locked = Locked::new(m, group, version, G::TRANCHES);
        locked.change_new(self.generation);
        Ok(locked)
    }

    /// Moves the first ones of these records of one part from one locked group of a set to another,
    /// and commits the state `next`, which leads to them there. The others go to their homes.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`; then nothing has changed.
    fn move_part<'t>(
        &'t self,
        from: &mut Locked<'t, M>,
        to: &mut Locked<'t, M>,
        ((division, part), (moving, displaced)): ((Division, u64), (Records<'t>, Records<'t>)),
        (step, next): (State, State),
        guard: &Guard<'_>,
    ) -> Result<()> {
        let m = self.medium();
        let added = self.additions(to, &moving, guard)?;
        // Before the state is published: nobody may look for these keys where they were.
        for home in division.homes_of(part) {
            from.change(home);
            to.change(home);
        }
        moving.iter().for_each(|(stored, _)| from.change(stored.place));
        added.places().for_each(|place| to.change(place));
        if !moving.is_empty() {
            added.flush();
            m.fence();
            added.commit();
            m.fence();
        }
        let header = self.arrays.root();
        m.store(&header.state, next.encode());
        m.persist(&header.state);
        // Only now: no thread acts on a state that a crash could take back.
        self.arrays.set_state(next);
        // Before the groups are unlocked: who reads them later sees it.
        self.note_move(step);
        self.groups().kill_all(from.group, &moving)?;
        let bytes = moving.iter().map(|(stored, _)| stored.bytes()).sum();
        self.fill.transfer(from.group.index, to.group.index, bytes);
        // A group that shrinks has space.
        if to.group.index > from.group.index { self.return_home(from, displaced) } else { Ok(()) }
    }

    /// Takes note that something has moved in the set of this step.
    ///
    /// The last step of a round divides all sets. If it is taken back and made again while a page
    /// is read, the depth is what it was, and the set of the page may be the upper half of this
    /// one.
    fn note_move(&self, step: State) {
        for set in [step.set, step.set + (1 << step.depth)] {
            self.moves_in(set).fetch_add(1, Ordering::Release);
        }
    }

    /// Moves displaced records of a locked group to their homes, as far as these have room.
    fn return_home<'t>(
        &'t self,
        locked: &mut Locked<'t, M>,
        mut displaced: Records<'t>,
    ) -> Result<()> {
        if displaced.is_empty() {
            return Ok(());
        }
        let (m, groups) = (self.medium(), self.groups());
        let mut added = Additions::new(self.groups(), locked.group);
        let mut damage = Ok(());
        displaced.retain(|(stored, hash)| {
            let added = added.add(&Item::of(stored, *hash), 1);
            added.unwrap_or_else(|error| {
                damage = Err(error);
                false
            })
        });
        damage?;
        if displaced.is_empty() {
            return Ok(());
        }
        added.places().for_each(|place| locked.change(place));
        displaced.iter().for_each(|(stored, _)| locked.change(stored.place));
        added.flush();
        m.fence();
        added.commit();
        m.fence();
        groups.kill_all(locked.group, &displaced)
    }

    /// Returns the same as [`part_of`](Self::part_of) of a group that is not locked, and the
    /// version for which that is true. This takes most of the time of a piece, and other threads
    /// need not wait for it. Returns `None` if they change the group again and again.
    fn part_of_unlocked(
        &self,
        index: u64,
        part: (Division, u64),
        moves: impl Fn(u64) -> bool,
    ) -> Result<Option<(Version, (Records<'_>, Records<'_>))>> {
        let (m, group) = (self.medium(), self.arrays.group(index)?);
        let cell = &group.words[GROUP_WORD];
        let mut lock_wait = LockWait::default();
        for _ in 0..Self::UNLOCKED_READS {
            let version = Version(m.load(cell));
            if !version.is_of(self.generation) {
                break;
            }
            if !version.is_readable(self.generation) {
                lock_wait.wait_at(&self.region, m.offset_of(cell))?;
                continue;
            }
            // What cannot be read may be changing.
            let records = self.part_of(group, part, &moves).ok();
            // Acquire: everything above is read before the version is read again, and before the
            // group is locked with it.
            fence(Ordering::Acquire);
            if m.load_relaxed(cell) == version.0 {
                return Ok(records.map(|records| (version, records)));
            }
        }
        Ok(None)
    }

    /// Returns the records of a part that move, and those that stay and are not in their homes.
    fn part_of<'t>(
        &'t self,
        group: Group<'t>,
        part: (Division, u64),
        moves: impl Fn(u64) -> bool,
    ) -> Result<(Records<'t>, Records<'t>)> {
        let (mut moving, mut displaced) = (Vec::new(), Vec::new());
        let hash_of = |stored: &Stored<'_>| self.hash_of(stored);
        self.groups().part(group, part, hash_of, |stored, hash| {
            if moves(hash) {
                moving.push((stored, hash));
            } else if stored.place != home::<G>(hash) {
                displaced.push((stored, hash));
            }
            Ok(())
        })?;
        Ok((moving, displaced))
    }

    /// Adds copies of records to a locked group, without making them durable or visible.
    fn additions<'t>(
        &'t self,
        to: &mut Locked<'t, M>,
        records: &[(Stored<'t>, u64)],
        guard: &Guard<'_>,
    ) -> Result<Additions<'t, M, G>> {
        let mut compacted = false;
        loop {
            let mut added = Additions::new(self.groups(), to.group);
            let mut fits = true;
            for (stored, hash) in records {
                fits = fits && added.add(&Item::of(stored, *hash), usize::MAX)?;
            }
            if fits {
                return Ok(added);
            }
            if !compacted && self.groups().has_dead(to.group)? {
                compacted = true;
                self.compact(to, guard)?;
            } else {
                self.add_overflow(to)?;
            }
        }
    }
}
