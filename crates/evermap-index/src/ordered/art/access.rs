//! Following references: from words to leaves and nodes, and locks of nodes.

use evermap_pm::medium::Note;
use evermap_pm::{Error, Medium, PmU64, Result};

use super::Art;
use super::layout::{Child, Kind, Leaf, LeafState, Lock};
use super::node::Node;
use crate::lock_wait::LockWait;
use crate::recipe;
use crate::record::{KEY_MAX, bytes_equal};

/// A node that this thread has locked. It must be released.
#[must_use = "the node stays locked"]
pub(super) struct Locked<'m> {
    pub(super) node: Node<'m>,
    lock: Lock,
}

impl Locked<'_> {
    /// Releases the lock of a node that was not changed.
    pub(super) fn release<M: Medium>(self, m: &M) {
        m.store_transient(&self.node.header.lock, self.lock.unchanged().0);
    }

    /// Releases the lock of a node that was changed.
    pub(super) fn changed<M: Medium>(self, m: &M) {
        m.store_transient(&self.node.header.lock, self.lock.changed().0);
    }

    /// Releases the lock of a node that is not part of the tree any more.
    pub(super) fn obsolete<M: Medium>(self, m: &M) {
        m.store_transient(&self.node.header.lock, self.lock.obsolete().0);
    }
}

/// A leaf.
#[derive(Clone, Copy)]
pub(super) struct LeafRef<'m> {
    pub(super) leaf: &'m Leaf,
    pub(super) offset: u64,
    length: usize,
    /// The words of the key.
    cells: &'m [PmU64],
}

impl LeafRef<'_> {
    /// Returns the number of bytes of the block.
    pub(super) fn bytes(&self) -> u64 {
        leaf_bytes(self.length)
    }

    /// Returns `true` if this is the leaf of `key`.
    #[inline(always)]
    pub(super) fn is_of<M: Medium>(&self, m: &M, key: &[u8]) -> bool {
        self.length == key.len() && bytes_equal(m, self.cells, key)
    }

    /// Appends the key to `out`.
    pub(super) fn append_key<M: Medium>(&self, m: &M, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.length, 0);
        m.read_bytes(self.cells, &mut out[start..]);
    }

    /// Returns the key.
    pub(super) fn key<M: Medium>(&self, m: &M) -> Vec<u8> {
        let mut key = Vec::new();
        self.append_key(m, &mut key);
        key
    }

    /// Returns the number of bytes that the key and `other` begin with both.
    pub(super) fn common<M: Medium>(&self, m: &M, other: &[u8]) -> usize {
        let most = self.length.min(other.len());
        for (at, (cell, bytes)) in self.cells.iter().zip(other.chunks(8)).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let differ = m.load_relaxed(cell) ^ u64::from_le_bytes(word);
            if differ != 0 {
                return most.min(at * 8 + differ.trailing_zeros() as usize / 8);
            }
        }
        most
    }

    /// Returns the symbol that the key has at `level`, or `None` if it ends there.
    pub(super) fn symbol<M: Medium>(&self, m: &M, level: usize) -> Option<u8> {
        (level < self.length)
            .then(|| m.load_relaxed(&self.cells[level / 8]).to_le_bytes()[level % 8])
    }
}

/// Returns the size in bytes of a leaf whose key has this length.
pub(super) fn leaf_bytes(length: usize) -> u64 {
    size_of::<Leaf>() as u64 + (length as u64).next_multiple_of(8)
}

impl<M: Medium> Art<M> {
    /// Returns a child whose word was loaded from `cell`, once that is durable.
    #[inline(always)]
    pub(super) fn settled(&self, cell: &PmU64, child: Child) -> Child {
        if self.medium().mutant("AR-1") {
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
        if !Lock(m.load(&node.header.lock)).is_of(self.generation) {
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

    /// Returns the leaf that a reference names.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn leaf(&self, child: Child) -> Result<LeafRef<'_>> {
        let (m, offset) = (self.medium(), child.offset());
        let damaged = || Error::damaged(offset, "there is no such leaf of a tree");
        let leaf = m.at::<Leaf>(offset).ok_or_else(damaged)?;
        let length = LeafState(m.load_relaxed(&leaf.state)).length();
        if length > KEY_MAX {
            return Err(damaged());
        }
        let from = offset + size_of::<Leaf>() as u64;
        let cells = m.slice(from, (length as u64).div_ceil(8)).ok_or_else(damaged)?;
        Ok(LeafRef { leaf, offset, length, cells })
    }

    /// Returns the word of a leaf, once it is durable.
    #[inline(always)]
    pub(super) fn word(&self, leaf: &LeafRef<'_>) -> u64 {
        let m = self.medium();
        let state = |cell| recipe::help(m, cell, m.load(cell), LeafState::MARK);
        let mut now = state(&leaf.leaf.state);
        loop {
            // Acquire: the state is loaded again after the word.
            let word = m.load(&leaf.leaf.words[LeafState(now).current()]);
            let then = state(&leaf.leaf.state);
            if then == now {
                return word;
            }
            // The place of the word may have been used for a newer one, which is not durable.
            now = then;
        }
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

    /// Returns the first leaf below a node, or `None` if the node is empty, which only the root is.
    pub(super) fn any_leaf_below<'m>(&'m self, mut node: Node<'m>) -> Result<Option<LeafRef<'m>>> {
        loop {
            let Some((_, cell, first)) = node.first_from(self.medium(), 0) else {
                return Ok(None);
            };
            let child = self.settled(cell, first);
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
        let (m, cell) = (self.medium(), &node.header.lock);
        let mut wait = LockWait::default();
        loop {
            let found = Lock(m.load(cell));
            if found.is_obsolete() && !m.mutant("AR-4") {
                return Ok(None);
            }
            let locked = found.locked();
            if !found.is_locked() && m.cas_transient(cell, found.0, locked.0).is_ok() {
                return Ok(Some(Locked { node, lock: locked }));
            }
            wait.wait_at(&self.region, m.offset_of(cell))?;
        }
    }

    /// Recovers a node that an earlier process used: references that may not be durable are made
    /// so, and the hints are computed anew.
    #[cold]
    fn recover(&self, node: &Node<'_>) -> Result<()> {
        let (m, cell) = (self.medium(), &node.header.lock);
        let recovering = Lock::recovering(self.generation);
        let mut wait = LockWait::default();
        loop {
            let found = Lock(m.load(cell));
            if found.is_of(self.generation) {
                return Ok(());
            }
            if found != recovering && m.cas_transient(cell, found.0, recovering.0).is_ok() {
                m.note(Note::Scope("recovery of a node"));
                self.recover_contents(node);
                self.events.recovered();
                m.store_transient(cell, Lock::fresh(self.generation).0);
                return Ok(());
            }
            wait.wait_at(&self.region, m.offset_of(cell))?;
        }
    }

    fn recover_contents(&self, node: &Node<'_>) {
        let m = self.medium();
        self.settled(&node.header.end, Child(m.load(&node.header.end)));
        if m.mutant("AR-3") {
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
