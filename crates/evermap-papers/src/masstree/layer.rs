//! Making layers.
//!
//! A key that goes on after its slice has a leaf, as long as it is the only one with this slice.
//! For a second one there is a layer, a tree of the next slices of both; and if these are equal
//! too, one more layer below it, and so on. All of them are written before the store to the entry,
//! which commits the change: the first condition of [`recipe`](evermap_index::recipe). A layer
//! stays, even if all of its keys are removed.

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change};
use evermap_index::ordered::leaf::{LeafRef, leaf_bytes};
use evermap_index::recipe;
use evermap_pm::{Error, Guard, Medium, Result};

use super::access::Target;
use super::change::{Decide, Worked};
use super::layout::{Below, Entry, Node, SLICE, Slice};
use super::{Masstree, mistakes};

impl<M: Medium> Masstree<M> {
    /// Binds an absent key whose slice is that of another key, the one of the leaf `other` that
    /// `entry` refers to: makes layers for both. The node of the entry is locked.
    pub(super) fn add_layer(
        &self,
        entry: &Entry,
        target: &Target<'_>,
        other: LeafRef<'_>,
        guard: &Guard<'_>,
        decide: &mut Decide<'_>,
    ) -> Worked<Change> {
        let (m, key) = (self.medium(), target.key);
        let last = self.depth_of_difference(target, &other)?;
        let of_key = Slice::of(key, last);
        let of_other = Slice::of(&other.key(m), last);
        let mut blocks = Fresh::new(&self.memory.pool);
        let leaf = of_key.goes_on().then(|| blocks.allocate_fixed(leaf_bytes(key.len())));
        let leaf = leaf.transpose()?;
        let layers = (target.depth..last).map(|_| blocks.allocate_fixed(size_of::<Node>() as u64));
        let layers = layers.collect::<Result<Vec<u64>>>()?;
        let Action::Put(word) = decide(None) else { return Ok((Change::default(), false)) };
        blocks.keep();
        // A key that ends here has its word in the entry from now on.
        let value_of_other = match of_other.goes_on() {
            true => Below::Leaf(other.offset).word(),
            false => other.word(m),
        };
        let value = leaf.map_or(word, |leaf| Below::Leaf(leaf).word());
        let mut two = [(of_key, value), (of_other, value_of_other)];
        two.sort_by_key(|entry| entry.0);
        if let Some(leaf) = leaf {
            LeafRef::write(m, leaf, key, word);
        }
        let top = self.write_layers(target, &layers, two);
        if !m.mutant(mistakes::ENTER_LAYER_EARLY) {
            m.fence();
        }
        recipe::commit(m, &entry.value, Below::Layer(top).word());
        if !of_other.goes_on() {
            self.memory.pool.retire(other.offset, other.bytes(), guard);
        }
        Ok((Change { old: None, new: Some(word) }, true))
    }

    /// Returns the depth at which the slices of two keys differ that have the same slice where the
    /// search is.
    fn depth_of_difference(&self, target: &Target<'_>, other: &LeafRef<'_>) -> Result<usize> {
        let common = other.common(self.medium(), target.key);
        // If one of the keys is the beginning of the other, they differ at its last slice.
        let shorter = other.key_len().min(target.key.len());
        let depth = common.min(shorter.saturating_sub(1)) / SLICE;
        if depth > target.depth {
            return Ok(depth);
        }
        let what = "a leaf of a tree is below another slice than its key has";
        Err(Error::damaged(other.offset, what))
    }

    /// Writes the layers below the one where the search is to these blocks, the lowest with two
    /// keys, and flushes them. Returns the offset of the topmost.
    fn write_layers(&self, target: &Target<'_>, blocks: &[u64], two: [(Slice, u64); 2]) -> u64 {
        let mut entries = two.to_vec();
        let mut top = 0;
        for (above, &block) in blocks.iter().enumerate().rev() {
            let depth = target.depth + above;
            self.write_root(block, depth + 1, &entries);
            entries = vec![(Slice::of(target.key, depth), Below::Layer(block).word())];
            top = block;
        }
        top
    }
}
