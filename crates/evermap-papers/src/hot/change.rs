//! Changing the binding of one key.
//!
//! Every change is one store of a reference: to a leaf, or to a node that has been written and
//! flushed. The node with the reference is locked, and so are the nodes that are replaced, from the
//! lowest one up. A thread that then finds other references than it saw without the locks starts
//! again.

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes};
use evermap_index::recipe;
use evermap_pm::{Guard, Medium, Result};

use super::access::{Path, Retries, Step};
use super::bits::Search;
use super::draft::{Draft, Work};
use super::layout::Child;
use super::place::{Gap, Place};
use super::{Hot, mistakes};

/// Where an insertion begins.
enum Start {
    /// Into the node at this depth.
    Into(usize),
    /// Beside the child of the node at this depth.
    Beside(usize),
}

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// Carries out what `decide` returns for a key.
    pub(super) fn change_under(
        &self,
        key: &[u8],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let search = Search::new(key);
        let mut retries = Retries::default();
        loop {
            let path = self.descend(&search, |_| ())?;
            if let Some(change) = self.change_at(&search, &path, mode, guard, decide)? {
                return Ok(change);
            }
            // Another thread was here in the meantime.
            retries.again(self, path.iter().map(|step| step.node.lock))?;
        }
    }

    /// Does so where a search has ended. Returns `None` if anything has changed since.
    pub(super) fn change_at(
        &self,
        search: &Search<'_>,
        path: &Path<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Option<Change>> {
        let step = path.last().expect("the root block is in every path");
        match self.place(search, path)? {
            Place::Leaf(leaf) if !step.child.is_dead() => {
                self.change_leaf(search, path, leaf, guard, decide)
            }
            _ if mode == MutateMode::ExistingOnly => Ok(Some(Change::default())),
            Place::Leaf(_) | Place::Empty => self.fill(search, step, guard, decide),
            Place::Gap(gap) => self.add(search, path, &gap, guard, decide),
        }
    }

    /// Stores a reference durably. Readers who find it before it is durable make it so.
    #[track_caller]
    pub(super) fn publish(&self, step: &Step<'_>, child: Child) {
        let m = self.medium();
        if m.mutant(mistakes::LEAVE_REFERENCE_UNFLUSHED) {
            return m.store(step.cell(), child.0);
        }
        recipe::commit_marked(m, step.cell(), child.0, Child::MARK);
    }

    /// Frees a leaf that is not part of the tree any more.
    pub(super) fn retire_leaf(&self, leaf: Child, guard: &Guard<'_>) {
        // A damaged one stays, until a sweep finds that nothing refers to it.
        if let Ok(leaf) = self.leaf(leaf) {
            self.memory.pool.retire(leaf.offset, leaf.bytes(), guard);
        }
    }

    /// Binds an absent key where there is no leaf, or a dead one of that key.
    fn fill(
        &self,
        search: &Search<'_>,
        step: &Step<'_>,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Option<Change>> {
        let m = self.medium();
        let mut blocks = Fresh::new(&self.memory.pool);
        let block = blocks.allocate_fixed(leaf_bytes(search.key.len()))?;
        let mut held = self.hold();
        if !held.lock(step)? {
            return Ok(None);
        }
        let Action::Put(word) = decide(None) else { return Ok(Some(Change::default())) };
        blocks.keep();
        LeafRef::write(m, block, search.key, word);
        m.fence();
        self.publish(step, Child::leaf(block));
        held.changed(&step.node, guard);
        if step.child.is_dead() {
            self.retire_leaf(step.child, guard);
        }
        Ok(Some(Change { old: None, new: Some(word) }))
    }

    /// Binds an absent key where it differs from others.
    fn add(
        &self,
        search: &Search<'_>,
        path: &[Step<'_>],
        gap: &Gap,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Option<Change>> {
        let m = self.medium();
        let mut draft = Draft::new(self);
        let block = draft.blocks.allocate_fixed(leaf_bytes(search.key.len()))?;
        let mut held = self.hold();
        let start = Self::start(path, gap);
        let (Start::Into(lowest) | Start::Beside(lowest)) = start;
        for depth in (Self::holder(path, &start)..=lowest).rev() {
            if !held.lock(&path[depth])? {
                return Ok(None);
            }
        }
        let work = self.work(path, gap, &start, Child::leaf(block))?;
        let (depth, child) = draft.grow(path, work)?;
        let Action::Put(word) = decide(None) else { return Ok(Some(Change::default())) };
        LeafRef::write(m, block, search.key, word);
        draft.commit(&path[depth], child, held, true, guard);
        Ok(Some(Change { old: None, new: Some(word) }))
    }

    /// Chooses where an insertion begins: if possible in a node that has room.
    fn start(path: &[Step<'_>], gap: &Gap) -> Start {
        if gap.below.len() > 1 {
            return Start::Into(gap.depth);
        }
        match path.get(gap.depth + 1) {
            Some(lower) if lower.node.children.len() < ENTRIES => Start::Into(gap.depth + 1),
            // A leaf, or a node that need not be split, as all of its keys are on one side.
            _ => Start::Beside(gap.depth),
        }
    }

    /// Returns the height of the child of the node at this depth.
    fn child_height(path: &[Step<'_>], depth: usize) -> u32 {
        path.get(depth + 1).map_or(0, |lower| lower.node.height)
    }

    /// Returns the depth of the node whose reference an insertion changes. Nodes between this and
    /// the one where it begins are replaced. If leaves that are dead are removed, fewer are.
    fn holder(path: &[Step<'_>], start: &Start) -> usize {
        let takes_pair =
            |depth: usize| path[depth].node.height == Self::child_height(path, depth) + 1;
        let (mut depth, mut is_replaced) = match *start {
            Start::Into(depth) => (depth, true),
            Start::Beside(depth) => (depth, takes_pair(depth)),
        };
        // The root block is higher than any node, and so never replaced.
        while is_replaced {
            let is_full = path[depth].node.children.len() >= ENTRIES;
            depth -= 1;
            is_replaced = is_full && takes_pair(depth);
        }
        depth
    }

    fn work(&self, path: &[Step<'_>], gap: &Gap, start: &Start, leaf: Child) -> Result<Work> {
        let m = self.medium();
        Ok(match *start {
            Start::Into(depth) => {
                let mut contents = path[depth].node.contents(m)?;
                let all = 0..contents.len();
                let below = if depth == gap.depth { &gap.below } else { &all };
                contents.insert(below, gap.bit, gap.after, leaf);
                Work::Node(depth, contents)
            }
            Start::Beside(depth) => {
                let child = path[depth].child;
                let (left, right) = if gap.after { (child, leaf) } else { (leaf, child) };
                let height = Self::child_height(path, depth) + 1;
                Work::Pair(depth, (left, gap.bit, right), height)
            }
        })
    }

    /// Carries out what `decide` returns for a key that is present. Returns `None` if another
    /// thread has changed it.
    fn change_leaf(
        &self,
        search: &Search<'_>,
        path: &Path<'_>,
        leaf: LeafRef<'_>,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Option<Change>> {
        let (m, step) = (self.medium(), *path.last().expect("it has a leaf"));
        let mut held = self.hold();
        if !held.lock(&step)? {
            return Ok(None);
        }
        let old = leaf.word(m);
        let new = match decide(Some(old)) {
            Action::Keep => Some(old),
            Action::Put(word) => {
                leaf.put(m, word);
                Some(word)
            }
            Action::Remove => {
                self.remove_leaf(search, path.clone(), held, guard)?;
                return Ok(Some(Change { old: Some(old), new: None }));
            }
        };
        // A scan shows pairs of one moment, so it has to know.
        if new != Some(old) {
            held.changed(&step.node, guard);
        }
        Ok(Some(Change { old: Some(old), new }))
    }
}
