//! Reading pages of short keys: those that end in the first layer, as keys of eight bytes do.
//!
//! Such a page is a walk along the leaf nodes of one layer, whose pairs are copied from the nodes
//! to the page, and from nowhere else. Where the next nodes are is in the nodes above, so they are
//! prefetched from there: a walk that learns of each node from the one before it would wait for
//! all of them, one after the other.

use std::ops::Bound;

use evermap_index::node_lock::{self, Seen};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, Result};

use super::Masstree;
use super::access::{NodeRef, Target};
use super::layout::{self, Classes, ENTRIES, Permutation, Slice};

/// The number of leaf nodes that are prefetched before a walk comes to them.
const AHEAD: usize = 4;

/// The number of pairs that a leaf node is expected to have.
const USUAL: usize = ENTRIES * 2 / 3;

/// Prefetches the leaf nodes to which a walk will come.
struct Scout<'m, M: Medium> {
    tree: &'m Masstree<M>,
    /// A node above the leaf nodes, and the rank of its next child. What it says is only used to
    /// prefetch, so it need not be of one moment, nor true.
    above: Option<(NodeRef<'m>, usize)>,
    /// The number of leaf nodes that the walk may want besides those that were prefetched.
    wanted: usize,
}

impl<'m, M: Medium> Scout<'m, M> {
    /// Prefetches the next leaf node.
    #[inline]
    fn go_on(&mut self) {
        let m = self.tree.medium();
        let Some((node, rank)) = &mut self.above else { return };
        if self.wanted == 0 {
            return;
        }
        let order = node.permutation(m);
        if *rank < order.len() {
            let child = node.node.entries.get(order.position(*rank));
            child.inspect(|child| prefetch_node(m, m.load_relaxed(&child.value)));
            (*rank, self.wanted) = (*rank + 1, self.wanted - 1);
            return;
        }
        let next = m.load(&node.header().next);
        self.above = None;
        if let Ok(node) = self.tree.node_as_it_is(next, Some(1), 0) {
            prefetch_node(m, m.load_relaxed(&node.header().leftmost));
            self.wanted -= 1;
            self.enter(node, 0);
        }
    }

    /// Goes on with the children of a node from a rank on. Prefetches the node after it, if the
    /// walk may come so far.
    #[inline]
    fn enter(&mut self, node: NodeRef<'m>, rank: usize) {
        let m = self.tree.medium();
        if node.permutation(m).len() < rank + self.wanted {
            prefetch_node(m, m.load(&node.header().next));
        }
        self.above = Some((node, rank));
    }
}

#[inline]
fn prefetch_node<M: Medium>(m: &M, offset: u64) {
    m.prefetch_bytes(offset, size_of::<layout::Node>() as u64);
}

/// What a node has added to a page.
struct Copied {
    /// The offset of the next node of the level, or 0.
    next: u64,
    /// Whether the page is full.
    is_full: bool,
}

impl<M: Medium> Masstree<M> {
    /// Reads a page of up to `most` pairs in ascending order, and returns the locks of the nodes
    /// that it has read. Returns `None` if a key goes on below the first layer: then the page is
    /// to be read in the way that expects layers.
    pub(super) fn read_short(
        &self,
        from: Bound<&[u8]>,
        most: usize,
        page: &mut Page,
    ) -> Result<Option<Seen<'_>>> {
        let m = self.medium();
        // Keys from this slice on, or beyond it, are wanted.
        let (first, is_excluded) = match from {
            Bound::Unbounded => (Slice::FIRST, false),
            Bound::Included(key) => (Slice::of(key, 0), false),
            Bound::Excluded(key) => (Slice::of(key, 0), true),
        };
        let mut seen = Seen::default();
        let (mut node, mut scout) = self.first_leaf_node(first, most)?;
        page.clear();
        page.pairs.reserve(most);
        for _ in 0..=most {
            let mark = page.pairs.len();
            let copied = loop {
                let lock = node_lock::unlocked(&self.memory.region, &node.header().lock)?;
                let copied = self.copy(&node, (first, is_excluded), most, page);
                // Acquire: all words of the node have been loaded before.
                if m.load(&node.header().lock) == lock.0 {
                    seen.add(&node.header().lock, lock);
                    break copied?;
                }
                page.pairs.truncate(mark);
            };
            let Some(copied) = copied else { return Ok(None) };
            if copied.is_full {
                page.continue_beyond_pairs(from, Direction::Ascending);
                return Ok(Some(seen));
            }
            if copied.next == 0 {
                return Ok(Some(seen));
            }
            scout.go_on();
            node = self.next_node(&node, copied.next)?;
        }
        // Many nodes have no pairs: the page ends before it is full.
        let mut edge = Vec::new();
        node.low(m).append_first_to(&mut edge);
        page.continue_at(&edge);
        Ok(Some(seen))
    }

    /// Returns the leaf node of the first layer to which a slice belongs, or one before it, and
    /// asks the memory for those after it that a page of `most` pairs may need.
    #[inline]
    fn first_leaf_node(&self, first: Slice, most: usize) -> Result<(NodeRef<'_>, Scout<'_, M>)> {
        let (target, root) = (Target::of_slice(first, 0), self.root_node()?);
        let mut scout = Scout { tree: self, above: None, wanted: most.div_ceil(USUAL) };
        if root.level() == 0 {
            return Ok((root, scout));
        }
        let end = self.descend(root, &target, 1)?;
        prefetch_node(self.medium(), end.place.child);
        scout.enter(end.node, end.place.rank);
        (0..AHEAD).for_each(|_| scout.go_on());
        Ok((self.node(end.place.child, Some(0), 0)?, scout))
    }

    /// Appends the pairs of a node from a slice on to a page, until that has `most`. Returns `None`
    /// if a key goes on. What it reads is of one moment only if the lock of the node is the same
    /// before and after.
    #[inline]
    fn copy(
        &self,
        node: &NodeRef<'_>,
        (first, is_excluded): (Slice, bool),
        most: usize,
        page: &mut Page,
    ) -> Result<Option<Copied>> {
        let (m, header) = (self.medium(), node.header());
        let (order, classes) = (Permutation(m.load(&header.permutation)), m.load(&header.classes));
        let (classes, next) = (Classes(classes), m.load(&header.next));
        let mut rank = 0;
        if page.pairs.is_empty() {
            // Only the first pairs can be before the slice.
            while rank < order.len() {
                let position = order.position(rank);
                let bytes = m.load(&node.entry(position)?.key);
                let slice = Slice { bytes, class: classes.of(position) };
                // Where the bound is among keys that go on with the same slice is not decided here.
                if slice > first || slice == first && (!is_excluded || slice.goes_on()) {
                    break;
                }
                rank += 1;
            }
        }
        while rank < order.len() {
            if page.pairs.len() == most {
                return Ok(Some(Copied { next, is_full: true }));
            }
            let position = order.position(rank);
            let (entry, class) = (node.entry(position)?, classes.of(position));
            let (bytes, word) = (m.load(&entry.key), m.load(&entry.value));
            match class {
                8 => page.pairs.push(&bytes.to_be_bytes(), word),
                9.. => return Ok(None),
                _ => page.pairs.push_with(word, |key| Slice { bytes, class }.append_to(key)),
            }
            rank += 1;
        }
        Ok(Some(Copied { next, is_full: page.pairs.len() == most && next != 0 }))
    }
}
