//! The invariants of the tree.

use evermap_index::node_lock::Lock;
use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::{Medium, Result};

use super::Masstree;
use super::access::{Contents, NodeRef};
use super::change::Found;
use super::layout::{Below, SLICE, Slice};
use super::walk::Way;

impl<M: Medium> Masstree<M> {
    /// Describes what is wrong. Each key has to be found.
    pub(super) fn check_parts(&self, problems: &mut Vec<String>) -> Result<()> {
        self.each_node(&mut |node, contents, way| {
            if let Err(error) = self.check_node(node, contents, way, problems) {
                problems.push(error.to_string());
            }
            Ok(true)
        })
    }

    fn check_node(
        &self,
        node: &NodeRef<'_>,
        contents: &Contents,
        way: &Way<'_>,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        let m = self.medium();
        let mut wrong = |what: &str| problems.push(format!("node {:#x}: {what}", node.offset));
        if Lock(m.load(&node.header().lock)).is_locked() {
            wrong("it is locked");
        }
        if !node.permutation(m).is_valid() {
            wrong("its permutation has a position twice, or one that does not exist");
        }
        let (low, level) = (node.low(m), node.level());
        let slices = || contents.entries.iter().map(|entry| entry.0);
        let is_first = |first: Slice| if level == 0 { low <= first } else { low < first };
        if !slices().is_sorted_by(|one, other| one < other) || !slices().next().is_none_or(is_first)
        {
            wrong("its keys are not in order");
        }
        if node.depth() > 0 && slices().next() == Some(Slice::FIRST) {
            wrong("a key ends before the layer");
        }
        if contents.next != 0 {
            let next = self.node_as_it_is(contents.next, Some(level), node.depth())?;
            if slices().next_back().is_some_and(|last| last >= next.low(m)) {
                wrong("it has keys of the next node");
            }
        }
        if level == 0 && contents.leftmost != 0 {
            wrong("a leaf node has a child");
        }
        match level.checked_sub(1) {
            Some(below) => {
                let children = std::iter::once((low, contents.leftmost));
                for (slice, child) in children.chain(contents.entries.iter().copied()) {
                    if self.node_as_it_is(child, Some(below), node.depth())?.low(m) != slice {
                        wrong("a child has another least key than its entry");
                    }
                }
                Ok(())
            }
            None => contents.entries.iter().try_for_each(|&(slice, word)| {
                if !self.is_found(way, slice, word)? {
                    wrong("a search for a key does not find it");
                }
                Ok(())
            }),
        }
    }

    /// Returns whether a search for the key of an entry finds that.
    fn is_found(&self, way: &Way<'_>, slice: Slice, word: u64) -> Result<bool> {
        let m = self.medium();
        let mut key = way.prefix.to_vec();
        slice.append_to(&mut key);
        if !slice.goes_on() {
            let found = self.find(&key)?;
            return Ok(matches!(found, Some(Found::Word(found)) if found == word));
        }
        let leaf = match Below::from_word(word) {
            Below::Leaf(leaf) => LeafRef::at(m, leaf)?,
            // Its keys are looked up when the walk comes there.
            Below::Layer(root) => {
                return Ok(self.node_as_it_is(root, None, key.len() / SLICE).is_ok());
            }
        };
        let found = self.find(&leaf.key(m))?;
        let begins = leaf.key(m).starts_with(&key);
        Ok(begins && matches!(found, Some(Found::Leaf(found)) if found.offset == leaf.offset))
    }
}
