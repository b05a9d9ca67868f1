//! Growth by rounds.
//!
//! When the table is nearly full, a round begins: every group is split in the order of their
//! numbers, one for each few records that are added, and the next state of the table is one greater
//! in depth. A round ends when the table has grown by a thirty-second, so groups that wait for
//! their split are little fuller than the table was at the beginning. (A table that always had the
//! same load would have groups twice as full as others.) In between, nothing is split.
//!
//! A split is committed by one store to the root, of the new state; behind it in the same line is
//! the word that commits the rewriting of the old group, so one flush makes both durable. A crash
//! between the two leaves records in the old group that belong to the new one. They are recognised
//! by their hashes, and recovery drops them.

use std::sync::atomic::Ordering;

use evermap_pm::{Error, Guard, Medium, Result};

use super::image::{Image, Item};
use super::layout::{GROUP_WORD, Redo, Version};
use super::table::{Format, Locked, Table};
use crate::fresh::Fresh;

impl<F: Format, M: Medium, const T: usize, const G: usize, const C: u32> Table<F, M, T, G, C> {
    /// The share of the space at which a round begins: about the load at which few records of 16
    /// bytes are displaced.
    const TRIGGER: f64 = if T >= 4096 { 0.9 } else { 0.8 };
    /// The number of bytes of added records for which a round splits a group.
    const PACE: u64 = Self::CAPACITY / 32;

    /// Takes part in the growth of the table, after `bytes` were added to a group, which is no
    /// longer locked. Splits at most one group.
    ///
    /// # Errors
    /// `Damaged`. If there is no space, the table just does not grow.
    #[inline(always)]
    pub(super) fn grow_after(&self, group: u64, bytes: u64, guard: &Guard<'_>) -> Result<()> {
        if self.fill.add(group, bytes) && self.fill.ratio(Self::CAPACITY) >= Self::TRIGGER {
            self.round.store(true, Ordering::Relaxed);
        }
        // Relaxed: a thread that sees a round late, or its end, pays into the next one.
        if !self.round.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.debt.fetch_add(bytes, Ordering::Relaxed) + bytes < Self::PACE {
            return Ok(());
        }
        self.pay(guard)
    }

    /// Splits a group if that is due and no other thread does.
    #[cold]
    fn pay(&self, guard: &Guard<'_>) -> Result<()> {
        let Ok(_growth) = self.growth.try_lock() else { return Ok(()) };
        let due = self.debt.load(Ordering::Relaxed) >= Self::PACE;
        if !due || !self.round.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.debt.fetch_sub(Self::PACE, Ordering::Relaxed);
        match self.split_next(guard) {
            // Nothing has changed. Groups have overflow blocks until there is space.
            Err(error) if error.is_no_space() => Ok(()),
            other => other,
        }
    }

    /// Splits the next group of the round. The caller holds the lock for growth.
    pub(super) fn split_next(&self, guard: &Guard<'_>) -> Result<()> {
        let state = self.arrays.state();
        let (source, target) = (state.split, state.groups());
        self.arrays.extend_to(target)?;
        let mut locked = self.lock_group(source)?;
        self.split(&mut locked, target, guard)?;
        drop(locked);
        self.splits.fetch_add(1, Ordering::Relaxed);
        if self.arrays.state().split == 0 && self.fill.ratio(Self::CAPACITY) < Self::TRIGGER {
            self.round.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Splits a locked group into itself and the group `target`, for which there is space.
    fn split(&self, locked: &mut Locked<'_, M>, target: u64, guard: &Guard<'_>) -> Result<()> {
        let (m, source) = (self.medium(), locked.group.index);
        let next = self.arrays.state().advanced();
        let items = self.groups().items(locked.group, |stored| self.hash_of(stored))?;
        let old = self.groups().overflows(locked.group)?;
        let (moved, kept): (Vec<Item<'_>>, Vec<Item<'_>>) =
            items.into_iter().partition(|item| next.group_of(item.hash) == target);
        let mut fresh = Fresh::new(&self.pool);
        let moved_bytes: u64 = moved.iter().map(Item::bytes).sum();
        self.store_target(target, &moved, &mut fresh)?;
        let mut image = self.compose(&kept)?;
        self.store_overflows(source, &mut image, &mut fresh)?;
        let redo = self.prepare_rewriting(&image)?;
        fresh.keep();
        m.fence();
        let header = self.arrays.root();
        m.store(&header.state, next.encode());
        m.store(&header.redo, Redo::encode(source));
        m.persist(&header.redo);
        // Only now: no thread acts on a state that a crash could take back.
        self.arrays.set_state(next);
        self.fill.add_group(target, moved_bytes);
        self.fill.remove(source, moved_bytes);
        self.rewrite(locked, &image, &old, redo, guard);
        Ok(())
    }

    fn compose(&self, items: &[Item<'_>]) -> Result<Image<T, G>> {
        Image::compose(self.medium(), items)
            .ok_or_else(|| Error::no_space("the overflow blocks of a group", Self::CAPACITY))
    }

    /// Writes the new group of a split, which nothing refers to yet. Flushed, without a fence.
    fn store_target<'p>(
        &'p self,
        target: u64,
        items: &[Item<'_>],
        fresh: &mut Fresh<'p, M>,
    ) -> Result<()> {
        let m = self.medium();
        let mut image = self.compose(items)?;
        self.store_overflows(target, &mut image, fresh)?;
        let group = self.arrays.group(target)?;
        image.store(m, 0, group.words);
        m.store_transient(&group.words[GROUP_WORD], Version::fresh(self.generation).0);
        Ok(())
    }
}
