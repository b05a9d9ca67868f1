//! Merging a node into its left neighbour.
//!
//! 1. The node above gets an [`Intent`]: searches for the keys of the node go to its left neighbour
//!    from then on, and from there to the node.
//! 2. The node is frozen: keys that belong there are added to the left neighbour.
//! 3. The left neighbour is consolidated, and takes over what the node has.
//! 4. The node above is consolidated, and drops the entry of the node and the intent.
//!
//! Each step is one store, and every key is found after each of them. Any thread that finds the
//! intent makes the next step. A node above that has an intent is neither split nor merged, so both
//! nodes stay below it, and the node that is merged is not its first child.

use evermap_index::fresh::Fresh;
use evermap_index::recipe;
use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, Result};

use super::access::{Node, Search};
use super::consolidate::Work;
use super::grow::ATTEMPTS;
use super::layout::{INTENT_BYTES, Intent, Link, Part};
use super::{BwTree, mistakes};

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Begins to merge a node into its left neighbour, if both fit into one node.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn merge(
        &self,
        level: u8,
        id: u64,
        guard: &Guard<'_>,
        todo: &mut Vec<Work>,
    ) -> Result<()> {
        let m = self.medium();
        for _ in 0..2 {
            let node = self.node(id, Some(level))?;
            let low = node.base.low(m);
            if node.is_frozen() || low.is_empty() || self.root_node()?.level() == level {
                return Ok(());
            }
            let above = self.arrive(&Search::at(&low), level + 1)?;
            if above.frozen.is_some() || above.node.word.part() != Part::Base {
                if !self.consolidate(level + 1, above.node.id, guard, todo)? {
                    return Ok(());
                }
                continue;
            }
            let mut children = above.node.base.entries(m);
            let position = children.position(|entry| entry.child == id);
            let Some(before) = position.and_then(|position| position.checked_sub(1)) else {
                return Ok(());
            };
            let left = self.node(above.node.base.entry(m, before).child, Some(level))?;
            let entries = |node: &Node<'_>| node.base.len() as u64 + node.word.depth();
            if entries(&left) + entries(&node) > Self::capacity(level) as u64 {
                return Ok(());
            }
            let mut blocks = Fresh::new(&self.memory.pool);
            let block = blocks.allocate_fixed(INTENT_BYTES)?;
            let intent = m.at::<Intent>(block).expect("just allocated");
            m.store(&intent.next, above.node.word.plain().0);
            m.store(&intent.child, id);
            m.flush(intent);
            if self.prepend(&above.node, Part::Intent, block, 0) {
                blocks.keep();
                todo.push(Work::Consolidate(level + 1, above.node.id));
            }
            return Ok(());
        }
        Ok(())
    }

    /// Completes the merge of a child of a node, but for the last step. Returns `false` if other
    /// threads were faster all the time.
    ///
    /// # Errors
    /// `NoSpace`, `Damaged`.
    pub(super) fn complete(
        &self,
        above: &Node<'_>,
        child: u64,
        guard: &Guard<'_>,
        todo: &mut Vec<Work>,
    ) -> Result<bool> {
        let m = self.medium();
        let damaged = || Error::damaged(above.base.offset, "a node of a tree has no such child");
        let entry = above.base.entries(m).find(|entry| entry.child == child);
        let (entry, level) = entry.zip(above.level().checked_sub(1)).ok_or_else(damaged)?;
        if m.mutant(mistakes::MERGE_EARLY) {
            return Ok(true);
        }
        if !self.freeze(level, child, guard, todo)? {
            return Ok(false);
        }
        let low = self.key_of(&entry)?;
        for _ in 0..ATTEMPTS {
            let end = self.arrive(&Search::before(&low), level)?;
            if end.frozen.is_some() {
                return Ok(false);
            }
            // If it ends elsewhere, or another node is next to it, it has taken the child over. It
            // may have been split since, even at the same key.
            let base = &end.node.base;
            if base.sibling != child || base.high(m).is_none_or(|high| high != low) {
                return Ok(true);
            }
            self.consolidate(level, end.node.id, guard, todo)?;
        }
        Ok(false)
    }

    /// Freezes a node for which there is an intent.
    pub(super) fn freeze(
        &self,
        level: u8,
        id: u64,
        guard: &Guard<'_>,
        todo: &mut Vec<Work>,
    ) -> Result<bool> {
        let (m, cell) = (self.medium(), self.cell(id)?);
        for _ in 0..ATTEMPTS {
            let word = self.word_in(cell);
            // What it had may be elsewhere already, and its blocks may be free.
            if word.is_frozen() {
                return Ok(true);
            }
            if self.node_of(id, cell, word, Some(level))?.intent.is_some() {
                if !self.consolidate(level, id, guard, todo)? {
                    return Ok(false);
                }
                continue;
            }
            let frozen = word.plain().0 | Link::FROZEN;
            m.note(Note::Harmless(
                "needed where blocks of the node are used for others before the merge is complete: \
                 `a_merge_survives_every_crash`",
            ));
            if recipe::exchange_marked(m, cell, word.0, frozen, Link::MARK).is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
