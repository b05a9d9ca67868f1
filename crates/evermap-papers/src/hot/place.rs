//! Where a key belongs in the tree.

use std::ops::Range;

use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::{Error, Medium, Result};

use super::Hot;
use super::access::Step;
use super::bits::Search;

/// What the search for a key has found.
pub(super) enum Place<'m> {
    /// The leaf of the key, which may be dead.
    Leaf(LeafRef<'m>),
    /// The tree is empty.
    Empty,
    /// The key is absent.
    Gap(Gap),
}

/// Where an absent key belongs.
pub(super) struct Gap {
    /// The first bit at which the key differs from those with which it has most in common.
    pub(super) bit: u32,
    /// The depth of the lowest node that has these keys and others.
    pub(super) depth: usize,
    /// The entries of that node that have these keys, and no others.
    pub(super) below: Range<usize>,
    /// Whether the key is after these keys; otherwise it is before them.
    pub(super) after: bool,
}

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// Returns where a key belongs. `path` has the steps that a search for it has taken.
    pub(super) fn place<'m>(&'m self, search: &Search<'_>, path: &[Step<'m>]) -> Result<Place<'m>> {
        let (m, last) = (self.medium(), path.last().expect("the root block is in every path"));
        if last.child.is_none() {
            return if last.node.is_root() { Ok(Place::Empty) } else { Err(last.node.damaged()) };
        }
        let leaf = self.leaf(last.child)?;
        if leaf.is_of(m, search.key) {
            return Ok(Place::Leaf(leaf));
        }
        let Some((bit, after)) = search.difference(m, &leaf) else {
            return Err(Error::damaged(leaf.offset, "the key of a leaf has no end"));
        };
        // The bits of nodes become greater on the way down.
        let is_above = |step: &Step<'_>| step.node.first_bit(m).is_none_or(|first| first < bit);
        let depth = path.iter().rposition(is_above).expect("the root block has no bits");
        let below = path[depth].node.below(m, path[depth].at, bit);
        Ok(Place::Gap(Gap { bit, depth, below, after }))
    }
}
