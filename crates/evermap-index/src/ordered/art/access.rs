//! Following references: from words to leaves and nodes, and locks of nodes.

use evermap_pm::{Error, Medium, PmU64, Result};

use super::layout::{Child, Kind, Node48};
use super::node::Node;
use super::{Art, mistakes};
use crate::node_lock::{self, Lock};
use crate::ordered::leaf::LeafRef;
use crate::recipe;
use crate::record::KEY_MAX;

/// A node that this thread has locked.
pub(super) type Locked<'m> = node_lock::Locked<'m, Node<'m>>;

impl<M: Medium> Art<M> {
    /// Returns a child whose word was loaded from `cell`, once that is durable.
    #[inline(always)]
    pub(super) fn settled(&self, cell: &PmU64, child: Child) -> Child {
        if self.medium().mutant(mistakes::ACT_EARLY) {
            return Child(child.0 & !Child::MARK);
        }
        Child(recipe::help(self.medium(), cell, child.0, Child::MARK))
    }

    /// Returns the child of `node` for a symbol, and its cell.
    #[inline(always)]
    pub(super) fn child<'m>(
        &self,
        m: &'m M,
        node: &Node<'m>,
        symbol: Option<u8>,
    ) -> Option<(&'m PmU64, Child)> {
        let (cell, child) = node.find(m, symbol)?;
        let child = self.settled(cell, child);
        (!child.is_none()).then_some((cell, child))
    }

    /// Returns the root node.
    pub(super) fn root_node(&self) -> Result<Node<'_>> {
        self.node(Child::node(self.tree, Kind::N256), None)
    }

    /// Returns the node that a reference names, which must be below the level of its parent.
    /// Recovers it if no thread has used it since the index was opened.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    #[inline(always)]
    pub(super) fn node(&self, child: Child, above: Option<usize>) -> Result<Node<'_>> {
        let (m, node) = (self.medium(), self.node_as_it_is(child, above)?);
        if !Lock(m.load(&node.header.lock)).is_of(self.memory.generation) {
            self.recover(&node)?;
        }
        Ok(node)
    }

    /// Returns the same without recovering it.
    #[inline(always)]
    pub(super) fn node_as_it_is(&self, child: Child, above: Option<usize>) -> Result<Node<'_>> {
        let fits =
            |node: &Node<'_>| above.is_none_or(|above| node.level > above) && node.level <= KEY_MAX;
        Node::at(self.medium(), child.offset(), child.kind())
            .filter(fits)
            .ok_or_else(|| Error::damaged(child.offset(), "there is no such node of a tree"))
    }

    /// Prefetches what a walk reads of a node, if the child is one.
    #[inline]
    pub(super) fn prefetch_node(&self, child: Child) {
        let m = self.medium();
        if child.is_leaf() {
            return;
        }
        match child.kind() {
            Kind::N4 | Kind::N16 => m.prefetch_bytes(child.offset(), child.kind().bytes()),
            Kind::N48 => {
                m.prefetch(child.offset());
                // Not its positions.
                let children = child.offset() + std::mem::offset_of!(Node48, children) as u64;
                m.prefetch_bytes(children, size_of::<[PmU64; 48]>() as u64);
            }
            // The lines behind these are read one after the other.
            Kind::N256 => m.prefetch_bytes(child.offset(), 256),
        }
    }

    /// Returns the leaf that a reference names.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn leaf(&self, child: Child) -> Result<LeafRef<'_>> {
        LeafRef::at(self.medium(), child.offset())
    }

    /// Returns the child if it is a leaf, otherwise any leaf below it. All of them begin with the
    /// same bytes up to the level of the child. Returns `None` as
    /// [`any_leaf_below`](Self::any_leaf_below) does.
    pub(super) fn any_leaf(&self, child: Child) -> Result<Option<LeafRef<'_>>> {
        match child.is_leaf() {
            true => self.leaf(child).map(Some),
            false => self.any_leaf_below(self.node(child, None)?),
        }
    }

    /// Returns any leaf below a node, or `None` if the node is empty, which only the root is.
    pub(super) fn any_leaf_below<'m>(&'m self, mut node: Node<'m>) -> Result<Option<LeafRef<'m>>> {
        loop {
            let Some((_, cell, child)) = node.cells(self.medium()).next() else {
                return Ok(None);
            };
            let child = self.settled(cell, child);
            if child.is_leaf() {
                return self.leaf(child).map(Some);
            }
            node = self.node(child, Some(node.level))?;
        }
    }

    /// Locks a node. Returns `None` if it is obsolete.
    ///
    /// # Errors
    /// `Poisoned`, `Damaged`: the lock is never released.
    pub(super) fn lock<'m>(&self, node: Node<'m>) -> Result<Option<Locked<'m>>> {
        let ignores = self.medium().mutant(mistakes::CHANGE_OBSOLETE);
        Locked::acquire(&self.memory.region, node, &node.header.lock, ignores)
    }

    /// Recovers a node that an earlier process used: references that may not be durable are made
    /// so, and the hints are computed anew.
    #[cold]
    fn recover(&self, node: &Node<'_>) -> Result<()> {
        self.memory.recover(&node.header.lock, || self.recover_contents(node))
    }

    fn recover_contents(&self, node: &Node<'_>) {
        let m = self.medium();
        self.settled(&node.header.end, Child(m.load(&node.header.end)));
        if m.mutant(mistakes::KEEP_HINTS) {
            return;
        }
        node.clear_hints(m);
        for (position, cell) in node.children.iter().enumerate() {
            let child = self.settled(cell, Child(m.load(cell)));
            if !child.is_none() {
                node.hint(m, position, child.symbol());
            }
        }
    }
}
