//! The ordered side: which item holds a key, in the order of keys.

use std::collections::BTreeMap;
use std::ops::Bound;

use evermap_index::ordered::bplus::BPlus;
use evermap_index::ordered::{Direction, OrderedIndex, Page, Run};
use evermap_pm::{ErrorKind, Result, parallel};

use super::Trees;
use super::parts::{Parts, copy};
use crate::htm::Elided;

/// A tree of positions, or several.
#[allow(clippy::large_enum_variant)] // there is one in a store
pub(super) enum Tree {
    /// One for all keys.
    One(BPlus),
    /// One that transactions use as if each were alone.
    Transactional(Elided<BTreeMap<Vec<u8>, u64>>),
    /// One for each range.
    Parts(Parts),
}

impl Tree {
    /// Creates an empty tree, or several.
    pub(super) fn new(trees: Trees) -> Self {
        match trees {
            Trees::Optimistic => Tree::One(BPlus::new()),
            Trees::Transactional => Tree::Transactional(Elided::new(BTreeMap::new())),
            Trees::Ranges => Tree::Parts(Parts::new()),
        }
    }

    /// Creates one tree of the pairs of these runs: they are sorted, and the tree is built from its
    /// leaves up.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn load(runs: &[Run], threads: usize) -> Result<Self> {
        Ok(Tree::One(BPlus::load(Default::default(), runs, threads)?))
    }

    /// Inserts the pairs of these runs one by one, with `threads` threads, as in the paper.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn insert_all(&self, runs: &[Run], threads: usize) -> Result<()> {
        let insert = |run: usize| {
            runs[run].iter().try_for_each(|(key, position)| self.set(key, position).map(drop))
        };
        parallel(threads, runs.len(), insert).into_iter().collect()
    }

    /// Binds `key` to the position `new`, or removes it if that is 0. Returns the position before,
    /// or 0.
    pub(super) fn set(&self, key: &[u8], new: u64) -> Result<u64> {
        let change = |tree: &BPlus| match new {
            0 => tree.remove(key),
            _ => tree.upsert(key, new),
        };
        let done = match self {
            Tree::One(tree) => change(tree)?,
            Tree::Transactional(tree) => {
                let old = tree.with(|tree| match new {
                    0 => tree.remove(key),
                    _ => tree.insert(key.to_vec(), new),
                });
                return Ok(old?.unwrap_or(0));
            }
            Tree::Parts(parts) => parts.with(key, change)?,
        };
        Ok(done.old.unwrap_or(0))
    }

    /// Returns the position of `key`.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        match self {
            Tree::One(tree) => tree.get(key),
            Tree::Transactional(tree) => tree.with(|tree| tree.get(key).copied()),
            Tree::Parts(parts) => parts.with(key, |tree| tree.get(key)),
        }
    }

    /// Adds up to `count` keys starting at `from`, ascending, with their positions, to an empty
    /// `run`.
    pub(super) fn collect(&self, from: &[u8], count: usize, run: &mut Run) -> Result<()> {
        match self {
            Tree::One(tree) => copy(tree, Bound::Included(from), Direction::Ascending, count, run),
            Tree::Transactional(tree) => tree.with(|tree| {
                let pairs = tree.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
                pairs.take(count).for_each(|(key, position)| run.push(key, *position));
            }),
            Tree::Parts(parts) => parts.collect(from, count, run),
        }
    }

    /// See [`OrderedIndex::page`].
    ///
    /// # Errors
    ///
    /// `Config` if the tree is another one: those have no pages.
    pub(super) fn page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        page: &mut Page,
    ) -> Result<()> {
        match self {
            Tree::One(tree) => tree.page(from, direction, page),
            Tree::Transactional(_) | Tree::Parts(_) => {
                Err(ErrorKind::Config("only the usual tree of HiKV has pages".into()).into())
            }
        }
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> Result<u64> {
        match self {
            Tree::One(tree) => Ok(tree.len()),
            Tree::Transactional(tree) => tree.with(|tree| tree.len() as u64),
            Tree::Parts(parts) => parts.len(),
        }
    }

    /// Returns the size in bytes. Of a tree for transactions: see [`Elided::bytes`].
    pub(super) fn dram_bytes(&self) -> Result<u64> {
        match self {
            Tree::One(tree) => Ok(tree.stats().dram_bytes),
            Tree::Transactional(tree) => tree.bytes(),
            Tree::Parts(parts) => parts.dram_bytes(),
        }
    }
}
