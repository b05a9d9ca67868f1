//! Showing all parts of the tree.

use evermap_index::ordered::tree::{Part, Show};
use evermap_pm::{Error, Medium, Result};

use super::BwTree;
use super::access::{End, Search};
use super::layout::{INTENT_BYTES, RECORD_HEADER};
use super::node::Bounds;

/// What a walk shows: the part of a node from a key on.
pub(super) struct Shown<'m> {
    pub(super) end: End<'m>,
    pub(super) bounds: Bounds,
    /// `false` if the node was made anew since the walk has begun, and its beginning was shown as
    /// part of another one.
    pub(super) is_whole: bool,
    /// The records in no order.
    pub(super) records: Vec<u64>,
}

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Calls `each` with every node, level by level from the top, and from left to right, until it
    /// returns `false`.
    ///
    /// After each node the walk goes on with a search for the key at which that ended. So it comes
    /// to every record that is in the tree throughout, and to none twice, however nodes are split
    /// and merged. If it comes to a node that begins earlier, the node was merged since, and its
    /// base node is new.
    pub(super) fn each_node(&self, each: &mut dyn FnMut(&Shown<'_>) -> Result<bool>) -> Result<()> {
        let top = {
            let _guard = self.memory.pool.pin();
            self.root_node()?.level()
        };
        for level in (0..=top).rev() {
            let mut from = Vec::new();
            loop {
                let _guard = self.memory.pool.pin();
                let shown = self.shown(&from, level)?;
                if !each(&shown)? {
                    return Ok(());
                }
                if shown.bounds.sibling == 0 {
                    break;
                }
                if shown.bounds.high <= from {
                    let offset = shown.end.target().base.offset;
                    return Err(Error::damaged(offset, "a node of a tree is not in order"));
                }
                from = shown.bounds.high;
            }
        }
        Ok(())
    }

    /// Returns the part of a node from a key on.
    fn shown(&self, from: &[u8], level: u8) -> Result<Shown<'_>> {
        let m = self.medium();
        let end = self.arrive(&Search::at(from), level)?;
        let bounds = end.target().base.bounds(m);
        let is_whole = bounds.low == from;
        let mut records = Vec::new();
        for node in end.parts() {
            for insert in self.inserts(node) {
                let (at, leaf) = insert?;
                let key = leaf.key(m);
                if *from <= *key && (bounds.sibling == 0 || key < bounds.high) {
                    records.push(at);
                }
            }
        }
        for entry in end.target().base.entries(m).filter(|entry| entry.at != 0) {
            if is_whole || self.key_of(&entry)?.as_slice() >= from {
                records.push(entry.at);
            }
        }
        Ok(Shown { end, bounds, is_whole, records })
    }

    /// Shows every part.
    pub(super) fn show_parts(&self, each: &mut Show<'_>) -> Result<()> {
        let reserve = self.medium().load(&self.root_block()?.reserve);
        let reserve = (reserve != 0).then_some((reserve, Self::NODE_BYTES));
        if !self.segments()?.chain(reserve).all(|(at, bytes)| each(Part::Block(at, bytes))) {
            return Ok(());
        }
        self.each_node(&mut |shown| {
            let node = shown.end.target();
            let mut goes_on = true;
            if shown.is_whole {
                let (offset, bytes) = (node.base.offset, node.base.bytes().max(Self::NODE_BYTES));
                let height = u32::from(node.level()) + 1;
                goes_on = each(Part::Node { offset, bytes, height })
                    && node.intent.is_none_or(|(at, _)| each(Part::Block(at, INTENT_BYTES)));
            }
            for &record in &shown.records {
                let leaf = self.record(record)?;
                goes_on = goes_on && each(Part::Block(record, RECORD_HEADER + leaf.bytes()));
                if node.level() == 0
                    && let Some(word) = self.binding(&leaf)
                {
                    goes_on = goes_on && each(Part::Word(word));
                }
            }
            Ok(goes_on)
        })
    }
}
