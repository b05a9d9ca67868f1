//! Changing the binding of one key.

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::lock_wait::LockWait;
use evermap_index::node_lock::LastObsolete;
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes};
use evermap_index::recipe::{self, Preparation};
use evermap_pm::{Error, Guard, Medium, Result};

use super::layout::{State, Visible};
use super::leaf::{Found, Leaf};
use super::{Form, NvTree, mistakes};
use crate::search::Search;

/// How a change in a leaf ended.
enum End {
    Done(Change),
    /// The leaf has no space for another entry.
    Full,
}

impl<M: Medium, F: Form> NvTree<M, F> {
    /// Carries out what `decide` returns for a key.
    pub(super) fn change_under(
        &self,
        key: &[u8],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (m, search) = (self.medium(), Search::at(key));
        let (mut wait, mut obsolete) = (LockWait::default(), LastObsolete::default());
        // Why there is no other leaf for one that is full.
        let mut no_space = None;
        loop {
            let leaf = self.leaf_of(&search)?;
            let Some(locked) = self.lock(leaf)? else {
                obsolete.meet(m, [&leaf.header.lock])?;
                wait.wait_at(&self.memory.region, leaf.offset)?;
                continue;
            };
            let end = match no_space.take() {
                None => self.change_leaf(&leaf, &search, mode, decide),
                Some(error) => self.change_in_place(&leaf, &search, mode, guard, error, decide),
            };
            if let End::Done(change) = locked.end(m, end)? {
                return Ok(change);
            }
            match self.make_room(&search, guard) {
                Err(error) if error.is_no_space() => {
                    no_space = Some(error);
                    self.memory.pool.epoch().flush();
                }
                made => made?,
            }
            wait.wait_at(&self.memory.region, leaf.offset)?;
        }
    }

    /// Carries out what `decide` returns for a key that belongs into a leaf, which this thread has
    /// locked. Also returns whether the leaf has changed.
    fn change_leaf(
        &self,
        leaf: &Leaf<'_>,
        search: &Search<'_>,
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<(End, bool)> {
        let m = self.medium();
        let count = leaf.count(m)?;
        let found = leaf.newest(m, count, search)?;
        let old = found.and_then(|found| found.bound());
        if old.is_none() && mode == MutateMode::ExistingOnly {
            return Ok((End::Done(Change::default()), false));
        }
        if count == leaf.entries.len() {
            return Ok((End::Full, false));
        }
        let mut fresh = Fresh::new(&self.memory.pool);
        let block = self.block_for(search, found, &mut fresh)?;
        let new = match decide(old) {
            Action::Put(word) => Some(word),
            Action::Remove if old.is_some() => None,
            Action::Keep | Action::Remove => {
                return Ok((End::Done(Change { old, new: old }), false));
            }
        };
        fresh.keep();
        let new_block = block.filter(|_| found.is_none());
        self.append(leaf, count, search, block, new_block, new);
        Ok((End::Done(Change { old, new }), new != old))
    }

    /// Returns the block of a long key: that of its last entry, because all entries of a key have
    /// the same one, or else a new one.
    ///
    /// # Errors
    /// `NoSpace`.
    fn block_for(
        &self,
        search: &Search<'_>,
        found: Option<Found>,
        fresh: &mut Fresh<'_, M>,
    ) -> Result<Option<u64>> {
        Ok(match found {
            _ if !search.is_long() => None,
            Some(found) => found.state.rest().block(),
            None => Some(fresh.allocate_fixed(leaf_bytes(search.key.len()))?),
        })
    }

    /// Appends an entry to a leaf, which this thread has locked and which has space. A key that is
    /// long has a block, and if that is new, the key is written to it.
    fn append(
        &self,
        leaf: &Leaf<'_>,
        count: usize,
        search: &Search<'_>,
        block: Option<u64>,
        new_block: Option<u64>,
        bound: Option<u64>,
    ) {
        let m = self.medium();
        let header = leaf.header;
        if m.mutant(mistakes::COUNT_FIRST) {
            recipe::commit(m, &header.count, count as u64 + 1);
        }
        // The fence before the count is stored also orders what the caller has flushed: what the
        // word refers to.
        let mut change = Preparation::new(m, &header.count);
        if let Some(block) = new_block {
            let stored = LeafRef::store(m, block, search.key, 0);
            if !m.mutant(mistakes::LEAVE_KEY) {
                change.include(stored);
            }
        }
        leaf.write(m, count, &search.brief(block), bound);
        change.include(&leaf.entries[count]);
        change.commit(count as u64 + 1);
        let visible = Visible(m.load(&header.visible));
        m.store_transient(&header.visible, visible.with_count(count + 1).0);
    }

    /// Does the same as [`change_leaf`](Self::change_leaf) with a leaf that is full, when there is
    /// no space for another one, as `no_space` says: stores to the last entry of the key, or to one
    /// that is not needed any more.
    ///
    /// # Errors
    /// `no_space`, if all entries are needed. Those of [`change_leaf`](Self::change_leaf).
    fn change_in_place(
        &self,
        leaf: &Leaf<'_>,
        search: &Search<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        no_space: Error,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<(End, bool)> {
        let m = self.medium();
        let count = leaf.count(m)?;
        if count < leaf.entries.len() {
            // Another thread has replaced it.
            return Ok((End::Full, false));
        }
        let found = leaf.newest(m, count, search)?;
        let bound = found.and_then(|found| Some((found, found.bound()?)));
        let Some((found, old)) = bound else {
            return match mode {
                MutateMode::ExistingOnly => Ok((End::Done(Change::default()), false)),
                MutateMode::MayInsert => {
                    self.add_in_place(leaf, search, found, guard, no_space, decide)
                }
            };
        };
        let entry = &leaf.entries[found.at];
        let new = match decide(Some(old)) {
            Action::Keep => {
                return Ok((End::Done(Change { old: Some(old), new: Some(old) }), false));
            }
            Action::Put(word) => {
                self.in_place(leaf, || recipe::commit(m, &entry.word, word));
                Some(word)
            }
            Action::Remove => {
                let removed = State::new(found.state.rest(), false).0;
                self.in_place(leaf, || recipe::commit(m, &entry.state, removed));
                None
            }
        };
        Ok((End::Done(Change { old: Some(old), new }), true))
    }

    /// Binds a key that is not bound, in a full leaf, by an entry that is not needed any more.
    ///
    /// That is the last one of the key, if there is any. Otherwise it is the first one that is not
    /// the last of a bound key, and so it is also the first of its own key: without it, that key is
    /// unbound as before.
    fn add_in_place(
        &self,
        leaf: &Leaf<'_>,
        search: &Search<'_>,
        found: Option<Found>,
        guard: &Guard<'_>,
        no_space: Error,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<(End, bool)> {
        let (m, pool) = (self.medium(), &self.memory.pool);
        let items = leaf.items(m, leaf.entries.len())?;
        let is_needed = |at: &usize| items.iter().any(|item| item.is_live && item.at == *at);
        let unneeded = (0..leaf.entries.len()).find(|at| !is_needed(at));
        let Some(at) = found.map(|found| found.at).or(unneeded) else {
            return Err(no_space);
        };
        let mut fresh = Fresh::new(pool);
        let block = self.block_for(search, found, &mut fresh)?;
        let Action::Put(word) = decide(None) else {
            return Ok((End::Done(Change::default()), false));
        };
        fresh.keep();
        let entry = &leaf.entries[at];
        self.in_place(leaf, || {
            // The entry is in one line, which becomes durable in this order.
            let mut change = Preparation::new(m, &entry.state);
            if let Some(block) = block.filter(|_| found.is_none()) {
                change.include(LeafRef::store(m, block, search.key, 0));
            }
            change.store(&entry.state, State::VOID.0);
            let key = search.brief(block);
            entry.key.iter().zip(key.head).for_each(|(cell, word)| change.store(cell, word));
            change.store(&entry.word, word);
            change.commit(State::new(key.rest, true).0);
        });
        // If the entry was the last of its key, it was the only one.
        let other = items.iter().find(|item| item.at == at && found.is_none());
        if let Some(old) = other.and_then(|item| item.block) {
            pool.retire(old.offset, old.bytes(), guard);
        }
        Ok((End::Done(Change { old: None, new: Some(word) }), true))
    }

    /// Changes a full leaf, which this thread has locked, by stores that are visible before they
    /// are durable. Lookups wait, and begin again.
    fn in_place(&self, leaf: &Leaf<'_>, store: impl FnOnce()) {
        let (m, cell) = (self.medium(), &leaf.header.visible);
        let changing = Visible(m.load(cell)).next_version();
        m.store_transient(cell, changing.0);
        store();
        m.store_transient(cell, changing.next_version().0);
    }
}
