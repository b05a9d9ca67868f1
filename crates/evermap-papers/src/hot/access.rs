//! Following references: from words to leaves and nodes, and locks of nodes.

use evermap_index::lock_wait::LockWait;
use evermap_index::node_lock::{self, LastObsolete, Lock};
use evermap_index::ordered::leaf::LeafRef;
use evermap_index::recipe;
use evermap_pm::{Error, Guard, Medium, PmU64, Result};

use super::bits::Search;
use super::layout::Child;
use super::node::Node;
use super::{Hot, mistakes};

/// The number of bytes of a node that a search asks the memory for before it reads the first ones.
pub(super) const AHEAD: u64 = 320;

/// One step of a search: to a child of a node.
#[derive(Clone, Copy)]
pub(super) struct Step<'m> {
    pub(super) node: Node<'m>,
    /// The position of the child.
    pub(super) at: usize,
    /// The reference that was there.
    pub(super) child: Child,
}

impl<'m> Step<'m> {
    pub(super) fn cell(&self) -> &'m PmU64 {
        &self.node.children[self.at]
    }
}

/// The steps of a search from the root block down to a leaf, or to no child if the tree is empty.
/// Positions in it are called depths.
pub(super) type Path<'m> = Vec<Step<'m>>;

/// Nodes of a path, from one upwards, that this thread has locked. They are released when this is
/// dropped.
pub(super) struct Held<'t, 'm, const ENTRIES: usize, M: Medium> {
    tree: &'t Hot<M, ENTRIES>,
    nodes: Vec<(Node<'m>, Lock)>,
}

impl<'m, const ENTRIES: usize, M: Medium> Held<'_, 'm, ENTRIES, M> {
    /// Locks one more node, which is above those that are held, if the node at `step` has not
    /// changed since the search. Returns `false` if it has. Only waits for the lock of a node that
    /// is higher than all that are held, so no two threads wait for each other.
    pub(super) fn lock(&mut self, step: &Step<'m>) -> Result<bool> {
        let (tree, node) = (self.tree, step.node);
        let ignores = tree.medium().mutant(mistakes::CHANGE_OBSOLETE);
        let Some(lock) = node_lock::acquire(&tree.memory.region, node.lock, ignores)? else {
            return Ok(false);
        };
        self.nodes.push((node, lock));
        let is_same = tree.child(&node, step.at) == step.child
            || tree.medium().mutant(mistakes::OVERLOOK_CHANGES);
        if !is_same {
            self.release_last();
        }
        Ok(is_same)
    }

    /// Releases the node that was locked last, which has not changed.
    pub(super) fn release_last(&mut self) {
        if let Some((node, lock)) = self.nodes.pop() {
            self.tree.medium().store_transient(node.lock, lock.unchanged().0);
        }
    }

    /// Locks a node that is below one that is held, unless another thread has locked it: that could
    /// be waiting for one of the nodes that are held. Returns `false` then.
    pub(super) fn try_lock(&mut self, node: &Node<'m>) -> bool {
        let lock = node_lock::try_acquire(self.tree.medium(), node.lock);
        self.nodes.extend(lock.map(|lock| (*node, lock)));
        lock.is_some()
    }

    /// Releases all nodes but the one that was locked first, none of which has changed.
    pub(super) fn release_all_but_first(&mut self) {
        while self.nodes.len() > 1 {
            self.release_last();
        }
    }

    /// Releases all nodes after a reference in `holder` was changed. The nodes below it, which that
    /// reference has led to, are not part of the tree any more.
    pub(super) fn changed(mut self, holder: &Node<'_>, guard: &Guard<'_>) {
        let (m, pool) = (self.tree.medium(), &self.tree.memory.pool);
        while let Some((node, lock)) = self.nodes.pop() {
            if node.height > holder.height {
                m.store_transient(node.lock, lock.unchanged().0);
            } else if node.offset == holder.offset {
                m.store_transient(node.lock, lock.changed().0);
            } else {
                m.store_transient(node.lock, lock.obsolete().0);
                pool.retire(node.offset, node.bytes(), guard);
            }
        }
    }
}

/// The attempts of an operation that other threads have kept from succeeding so far.
#[derive(Default)]
pub(super) struct Retries<'m> {
    wait: LockWait,
    obsolete: LastObsolete<'m>,
}

impl<'m> Retries<'m> {
    /// Waits briefly before another attempt. `locks` are those of the nodes that the last one has
    /// used.
    ///
    /// # Errors
    /// `Damaged` if one of the nodes was not part of the tree any more before the attempt began: a
    /// reference leads to it, so there could be any number of attempts. `Poisoned`.
    pub(super) fn again<const ENTRIES: usize, M: Medium>(
        &mut self,
        tree: &Hot<M, ENTRIES>,
        locks: impl Iterator<Item = &'m PmU64>,
    ) -> Result<()> {
        self.obsolete.meet(tree.medium(), locks)?;
        self.wait.wait_at(&tree.memory.region, tree.memory.root)
    }
}

impl<const ENTRIES: usize, M: Medium> Drop for Held<'_, '_, ENTRIES, M> {
    fn drop(&mut self) {
        while !self.nodes.is_empty() {
            self.release_last();
        }
    }
}

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// Returns a child of a node, once the reference is durable.
    #[inline(always)]
    pub(super) fn child(&self, node: &Node<'_>, at: usize) -> Child {
        let (m, cell) = (self.medium(), &node.children[at]);
        let word = m.load(cell);
        if m.mutant(mistakes::ACT_EARLY) {
            return Child(word).unmarked();
        }
        Child(recipe::help(m, cell, word, Child::MARK))
    }

    /// Returns the root block as a node.
    pub(super) fn root_node(&self) -> Result<Node<'_>> {
        Ok(Node::root(self.memory.root, self.root_block()?))
    }

    /// Returns the node that a reference names, which must be lower than the node above it.
    /// Recovers it if no thread has used it since the index was opened.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    #[inline(always)]
    pub(super) fn node(&self, child: Child, above: u32) -> Result<Node<'_>> {
        let (m, node) = (self.medium(), self.node_as_it_is(child, above)?);
        if !Lock(m.load(node.lock)).is_of(self.memory.generation) {
            self.recover(&node)?;
        }
        Ok(node)
    }

    /// Returns the same without recovering it.
    #[inline(always)]
    pub(super) fn node_as_it_is(&self, child: Child, above: u32) -> Result<Node<'_>> {
        Node::at(self.medium(), child.offset())
            .filter(|node| node.height < above)
            .ok_or_else(|| Error::damaged(child.offset(), "there is no such node of a tree"))
    }

    /// Returns the leaf that a reference names.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn leaf(&self, child: Child) -> Result<LeafRef<'_>> {
        LeafRef::at(self.medium(), child.offset())
    }

    /// Recovers a node that an earlier process used. Nothing but its lock needs that: the rest of a
    /// node is immutable and was durable before the node could be found, and references have marks.
    #[cold]
    pub(super) fn recover(&self, node: &Node<'_>) -> Result<()> {
        self.memory.recover(node.lock, || {})
    }

    /// Returns the leaf of a key. The caller has a guard.
    #[inline(always)]
    pub(super) fn find(&self, search: &Search<'_>) -> Result<Option<LeafRef<'_>>> {
        let m = self.medium();
        let mut node = self.root_node()?;
        loop {
            let child = self.child(&node, node.search(m, search));
            if child.is_none() || child.is_dead() {
                return Ok(None);
            }
            if child.is_leaf() {
                let leaf = self.leaf(child)?;
                return Ok(leaf.is_of(m, search.key).then_some(leaf));
            }
            m.prefetch_bytes(child.offset(), AHEAD);
            node = self.node(child, node.height)?;
        }
    }

    /// Returns the steps to the leaf to which the bits of a key lead, which may be of another key.
    /// Calls `enter` with each node before it is read.
    pub(super) fn descend<'m>(
        &'m self,
        search: &Search<'_>,
        mut enter: impl FnMut(&Node<'m>),
    ) -> Result<Path<'m>> {
        let m = self.medium();
        let mut path = Vec::with_capacity(8);
        let mut node = self.root_node()?;
        loop {
            enter(&node);
            let at = node.search(m, search);
            let child = self.child(&node, at);
            path.push(Step { node, at, child });
            if child.is_leaf() || child.is_none() {
                return Ok(path);
            }
            m.prefetch_bytes(child.offset(), AHEAD);
            node = self.node(child, node.height)?;
        }
    }

    /// Returns the locks of no nodes.
    pub(super) fn hold(&self) -> Held<'_, '_, ENTRIES, M> {
        Held { tree: self, nodes: Vec::with_capacity(4) }
    }
}
