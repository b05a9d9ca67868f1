//! Showing all parts of the tree.

use evermap_index::ordered::tree::{Part, Show};
use evermap_pm::{Medium, Result};

use super::access::{Node, Slots};
use super::{Form, FpTree};
use crate::search::Search;

/// What a leaf has, at one moment.
pub(super) struct Snapshot {
    /// The block of its least key, and those of its keys: their offsets, and their sizes in bytes.
    blocks: Vec<(u64, u64)>,
    words: Vec<u64>,
    /// The least key of the next leaf.
    next: Option<Vec<u8>>,
}

impl<M: Medium, F: Form> FpTree<M, F> {
    /// Returns what is in a leaf from a key on.
    fn snapshot(&self, node: &Node<'_, F>, from: &Search<'_>) -> Result<Snapshot> {
        let m = self.medium();
        let low = node.low(m)?;
        let is_new = low.compare(m, from).is_ge();
        let mut blocks = Vec::from_iter(low.block().filter(|_| is_new));
        let mut words = Vec::new();
        for slot in Slots(node.bitmap(m)) {
            let key = node.key(m, slot)?;
            if key.compare(m, from).is_ge() {
                blocks.extend(key.block());
                words.push(m.load(&node.entry(slot).word));
            }
        }
        let next = match node.next(m).offset() {
            Some(next) => Some(self.next_node(node, next)?.low(m)?.to_vec(m)),
            None => None,
        };
        Ok(Snapshot { blocks, words, next })
    }

    /// Shows every part.
    ///
    /// The walk goes on from one key to a greater one, each time by a search, and passes over what
    /// is before that key: a leaf that was taken out meanwhile has left its range to the one before
    /// it, which was shown already. So every pair is shown at most once, and so is each leaf.
    pub(super) fn show_parts(&self, each: &mut Show<'_>) -> Result<()> {
        let mut from = Vec::new();
        loop {
            let _guard = self.memory.pool.pin();
            let search = Search::at(&from);
            let read = |node: &Node<'_, F>| {
                // Otherwise it belongs into another leaf.
                match self.next_admits(node, &search)? {
                    None => self.snapshot(node, &search).map(Some),
                    Some(_) => Ok(None),
                }
            };
            let (snapshot, node, _) = self.read_at(&search, read)?;
            let Some(snapshot) = snapshot else { return Ok(()) };
            let is_new = node.low(self.medium())?.compare(self.medium(), &search).is_ge();
            let (offset, bytes) = (node.offset, self.leaf_bytes());
            if is_new && !each(Part::Node { offset, bytes, height: 1 }) {
                return Ok(());
            }
            let blocks = snapshot.blocks.into_iter();
            let mut parts = blocks
                .map(|(offset, bytes)| Part::Block(offset, bytes))
                .chain(snapshot.words.into_iter().map(Part::Word));
            if !parts.all(&mut *each) {
                return Ok(());
            }
            match snapshot.next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}
