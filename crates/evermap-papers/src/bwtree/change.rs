//! Changing the binding of one key.

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes};
use evermap_index::recipe;
use evermap_pm::medium::Note;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Error, Medium, PmU64, Result};

use super::access::{End, Node, Search};
use super::consolidate::Work;
use super::layout::{Link, Part, RECORD_HEADER, Record};
use super::{BwTree, mistakes};

/// The number of locks for keys.
const LOCKS: usize = 1024;

/// A node with this number of deltas takes no more keys until it is consolidated: there is no space
/// for that. Beyond it, threads that are about to add a key can still do so.
const DEPTH_LIMIT: u64 = Link::DEPTH_MAX / 2;

/// Locks in ordinary memory, one of which the thread holds that changes a key. Several keys share
/// one.
pub(super) struct KeyLocks(Box<[Mutex<()>]>);

impl KeyLocks {
    pub(super) fn new() -> Self {
        KeyLocks((0..LOCKS).map(|_| Mutex::ranked(Rank::TreeKey, ())).collect())
    }

    /// Returns the number of bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Locks a key.
    ///
    /// # Errors
    /// `Poisoned`: a thread has panicked while it held the lock.
    pub(super) fn lock_key(&self, key: &[u8]) -> Result<MutexGuard<'_, ()>> {
        match self.lock_of(key).lock() {
            Ok(lock) => Ok(lock),
            Err(poisoned) => {
                self.memory.region.ensure_sound()?;
                Ok(poisoned.into_inner())
            }
        }
    }

    /// Returns the lock of a key.
    pub(super) fn lock_of(&self, key: &[u8]) -> &Mutex<()> {
        &self.locks.0[self.hash(key) as usize % LOCKS]
    }

    /// Returns the word of a leaf, unless its key is not bound any more.
    #[inline(always)]
    pub(super) fn binding(&self, leaf: &LeafRef<'_>) -> Option<u64> {
        let (state, word) = leaf.read(self.medium());
        (!state.is_removed()).then_some(word)
    }

    /// Carries out what `decide` returns for a key, which this thread has locked. Also returns what
    /// is to be done in the structure. The caller has a guard.
    pub(super) fn change_locked(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<(Change, Vec<Work>)> {
        let search = Search::to_change(key);
        let end = self.arrive(&search, 0)?;
        if let Some(leaf) = self.find(&end, key)?
            && let Some(old) = self.binding(&leaf)
        {
            return self.change_leaf(&end, key, &leaf, old, decide);
        }
        if mode == MutateMode::ExistingOnly {
            return Ok((Change::default(), unfinished(&end)));
        }
        self.add(key, end, decide)
    }

    /// Carries out what `decide` returns for a key that is present.
    fn change_leaf(
        &self,
        end: &End<'_>,
        key: &[u8],
        leaf: &LeafRef<'_>,
        old: u64,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<(Change, Vec<Work>)> {
        let m = self.medium();
        let mut todo = unfinished(end);
        let new = match decide(Some(old)) {
            Action::Keep => Some(old),
            Action::Put(word) => {
                self.forget_copy(end, key, leaf)?;
                leaf.put(m, word);
                Some(word)
            }
            Action::Remove => {
                self.forget_copy(end, key, leaf)?;
                m.note(Note::Harmless("torn, it is one bit that means something"));
                leaf.remove(m);
                todo.extend(self.count_removed(end));
                None
            }
        };
        Ok((Change { old: Some(old), new }, todo))
    }

    /// Counts a key that was removed from a node. Returns what is to be done.
    fn count_removed(&self, end: &End<'_>) -> Option<Work> {
        let base = &end.target().base;
        let removed = base.add_removed(self.medium(), 1);
        // The fewer keys are left, the sooner: the last one takes the node with it.
        let many = (base.len() as u64 / 2).clamp(1, Self::chain(0));
        (removed >= many).then_some(Work::Consolidate(0, end.node.id))
    }

    /// Binds an absent key. Nothing but the record is needed for that, so once `decide` was called,
    /// only faster threads can make it try again.
    fn add<'m>(
        &'m self,
        key: &[u8],
        mut end: End<'m>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<(Change, Vec<Work>)> {
        let m = self.medium();
        if end.node.word.depth() >= DEPTH_LIMIT {
            return Err(Error::no_space("a node of a tree", Self::NODE_BYTES));
        }
        let mut blocks = Fresh::new(&self.memory.pool);
        let block = blocks.allocate_fixed(RECORD_HEADER + leaf_bytes(key.len()))?;
        let Action::Put(word) = decide(None) else {
            return Ok((Change::default(), unfinished(&end)));
        };
        self.write_delta(&end.node, block, key, word);
        let (search, hash) = (Search::at(key), self.hash(key));
        while !self.prepend(&end.node, Part::Insert, block, hash) {
            end = self.arrive(&search, 0)?;
            m.flush(self.follow(&end.node, block));
        }
        blocks.keep();
        let mut todo = unfinished(&end);
        if end.node.word.depth() + 1 >= Self::chain(0) {
            todo.push(Work::Consolidate(0, end.node.id));
        }
        Ok((Change { old: None, new: Some(word) }, todo))
    }

    /// Writes a record that is to be a delta of a node to a new block, and flushes it.
    #[track_caller]
    pub(super) fn write_delta(&self, node: &Node<'_>, block: u64, key: &[u8], word: u64) {
        let m = self.medium();
        self.follow(node, block);
        LeafRef::store(m, block + RECORD_HEADER, key, word);
        let words = (RECORD_HEADER + leaf_bytes(key.len())) / 8;
        m.flush(m.slice::<PmU64>(block, words).expect("just allocated"));
    }

    /// Makes the record in a new block the one before a node, to which it is not added yet.
    fn follow(&self, node: &Node<'_>, block: u64) -> &Record {
        let m = self.medium();
        let header = m.at::<Record>(block).expect("just allocated");
        m.store(&header.next, node.word.plain().0);
        m.store(&header.base, node.base.offset);
        header
    }

    /// Puts a delta that is flushed in front of a node. Returns `false` if another thread was
    /// faster. For `tag` see [`BaseRef::note_delta`](super::node::BaseRef::note_delta).
    pub(super) fn prepend(&self, node: &Node<'_>, part: Part, block: u64, tag: u64) -> bool {
        let m = self.medium();
        if !m.mutant(mistakes::PUBLISH_EARLY) {
            m.fence();
        }
        let word = node.word.with(part, block).0;
        if recipe::exchange_marked(m, node.cell, node.word.0, word, Link::MARK).is_err() {
            return false;
        }
        if part == Part::Insert {
            // Nothing else becomes this delta of this base node, as that is not used again before
            // this thread is done.
            node.base.note_delta(m, node.word.depth() as usize, block, tag);
        }
        true
    }
}

/// Returns what a search has found to be incomplete.
pub(super) fn unfinished(end: &End<'_>) -> Vec<Work> {
    let passed = end.passed.map(|(level, id)| Work::Post(level, id));
    let merge = end.unfinished.map(|(level, id)| Work::Consolidate(level, id));
    passed.into_iter().chain(merge).collect()
}
