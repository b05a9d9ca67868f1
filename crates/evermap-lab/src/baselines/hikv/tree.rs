//! The ordered side: which item holds a key, in the order of keys.

use std::ops::Bound;

use evermap_index::ordered::bplus::BPlus;
use evermap_index::ordered::{Direction, OrderedIndex, Run};
use evermap_pm::Result;

use super::parts::{Parts, copy};

/// A tree of positions, or several.
#[allow(clippy::large_enum_variant)] // there is one in a store
pub(super) enum Tree {
    /// One for all keys.
    One(BPlus),
    /// One for each range.
    Parts(Parts),
}

impl Tree {
    /// Binds `key` to the position `new`, or removes it if that is 0. Returns the position before,
    /// or 0.
    pub(super) fn set(&self, key: &[u8], new: u64) -> Result<u64> {
        let change = |tree: &BPlus| match new {
            0 => tree.remove(key),
            _ => tree.upsert(key, new),
        };
        let done = match self {
            Tree::One(tree) => change(tree)?,
            Tree::Parts(parts) => parts.with(key, change)?,
        };
        Ok(done.old.unwrap_or(0))
    }

    /// Adds up to `count` keys starting at `from`, ascending, with their positions, to an empty
    /// `run`.
    pub(super) fn collect(&self, from: &[u8], count: usize, run: &mut Run) -> Result<()> {
        match self {
            Tree::One(tree) => copy(tree, Bound::Included(from), Direction::Ascending, count, run),
            Tree::Parts(parts) => parts.collect(from, count, run),
        }
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> Result<u64> {
        match self {
            Tree::One(tree) => Ok(tree.len()),
            Tree::Parts(parts) => parts.len(),
        }
    }

    /// Returns the size in bytes.
    pub(super) fn dram_bytes(&self) -> Result<u64> {
        match self {
            Tree::One(tree) => Ok(tree.stats().dram_bytes),
            Tree::Parts(parts) => parts.dram_bytes(),
        }
    }
}
