//! Showing all parts of the tree.

use evermap_index::ordered::leaf::LeafRef;
use evermap_index::ordered::tree::{Part, Show};
use evermap_pm::{Medium, Result};

use super::Masstree;
use super::access::{Contents, NodeRef};
use super::layout::{Below, Node, SLICE};

/// Where a walk is.
pub(super) struct Way<'p> {
    /// What the keys in the node begin with: the slices of the layers above.
    pub(super) prefix: &'p [u8],
    /// The number of nodes from the root to this one.
    pub(super) height: u32,
}

/// What is called with every node, what it has, and where it is. Returns `false` to end the walk.
pub(super) type Each<'f> = dyn FnMut(&NodeRef<'_>, &Contents, &Way<'_>) -> Result<bool> + 'f;

/// What a walk has still to show.
enum Left {
    /// The layer at this depth with this root node, whose keys have this slice in the layer above,
    /// and the number of nodes above it.
    Layer { root: u64, depth: usize, slice: u64, above: u32 },
    /// The leaf node at this offset, and those to the right of it.
    Nodes { first: u64, depth: usize, height: u32 },
}

/// A walk over all nodes: see [`Masstree::each_node`].
struct Walk<'w, 'm, M: Medium> {
    tree: &'m Masstree<M>,
    each: &'w mut Each<'w>,
    /// What the keys in the current layer begin with.
    prefix: Vec<u8>,
    left: Vec<Left>,
}

impl<'m, M: Medium> Walk<'_, 'm, M> {
    fn run(mut self) -> Result<()> {
        let root = self.tree.medium().load(&self.tree.root_block()?.tree);
        self.left.push(Left::Layer { root, depth: 0, slice: 0, above: 0 });
        let mut goes_on = true;
        while let Some(next) = self.left.pop().filter(|_| goes_on) {
            goes_on = match next {
                Left::Layer { root, depth, slice, above } => {
                    if let Some(depth) = depth.checked_sub(1) {
                        self.prefix.truncate(depth * SLICE);
                        self.prefix.extend(slice.to_be_bytes());
                    }
                    self.layer(root, depth, above + 1)?
                }
                Left::Nodes { first, depth, height } => {
                    self.prefix.truncate(depth * SLICE);
                    self.leaf_node(first, depth, height)?
                }
            };
        }
        Ok(())
    }

    /// Shows the nodes of a layer that are not leaf nodes. Returns `false` to end the walk.
    fn layer(&mut self, root: u64, depth: usize, mut height: u32) -> Result<bool> {
        let mut first = self.tree.node(root, None, depth)?;
        while let Some(level) = first.level().checked_sub(1) {
            let mut below = None;
            let mut here = Some(first);
            while let Some(node) = here {
                let contents = self.tree.snapshot(&node)?.1;
                below.get_or_insert(contents.leftmost);
                if !(self.each)(&node, &contents, &Way { prefix: &self.prefix, height })? {
                    return Ok(false);
                }
                here = self.right_of(&node, &contents)?;
            }
            first = self.tree.node(below.unwrap_or_default(), Some(level), depth)?;
            height += 1;
        }
        self.left.push(Left::Nodes { first: first.offset, depth, height });
        Ok(true)
    }

    /// Shows a leaf node. Returns `false` to end the walk.
    fn leaf_node(&mut self, offset: u64, depth: usize, height: u32) -> Result<bool> {
        let _guard = self.tree.memory.pool.pin();
        let here = self.tree.node(offset, Some(0), depth)?;
        let contents = self.tree.snapshot(&here)?.1;
        if !(self.each)(&here, &contents, &Way { prefix: &self.prefix, height })? {
            return Ok(false);
        }
        if let Some(next) = self.right_of(&here, &contents)? {
            self.left.push(Left::Nodes { first: next.offset, depth, height });
        }
        let layers = contents.entries.iter().rev().filter(|entry| entry.0.goes_on());
        self.left.extend(layers.filter_map(|&(slice, word)| {
            let Below::Layer(root) = Below::from_word(word) else { return None };
            Some(Left::Layer { root, depth: depth + 1, slice: slice.bytes, above: height })
        }));
        Ok(true)
    }

    /// Returns the node to the right of one.
    fn right_of(&self, here: &NodeRef<'m>, contents: &Contents) -> Result<Option<NodeRef<'m>>> {
        if contents.next == 0 {
            return Ok(None);
        }
        let next = self.tree.node(contents.next, Some(here.level()), here.depth())?;
        self.tree.ensure_after(here, &next)?;
        Ok(Some(next))
    }
}

impl<M: Medium> Masstree<M> {
    /// Calls `each` with every node, until it returns `false`: in each layer level by level from
    /// the top, and from left to right; a layer after the leaf node that refers to it.
    ///
    /// Entries only ever move to the right, and into nodes that are new, or from a leaf node into a
    /// new layer. After each node the walk goes on to what the node referred to at that moment, so
    /// it comes to every pair that is in the tree throughout, and to none twice. Nodes are never
    /// freed, so the walk needs a guard only for the leaves.
    pub(super) fn each_node<'w>(&self, each: &'w mut Each<'w>) -> Result<()> {
        Walk { tree: self, each, prefix: Vec::new(), left: Vec::new() }.run()
    }

    /// Shows every part.
    pub(super) fn show_parts(&self, each: &mut Show<'_>) -> Result<()> {
        let m = self.medium();
        self.each_node(&mut |node, contents, way| {
            let (offset, bytes, height) = (node.offset, size_of::<Node>() as u64, way.height);
            let mut goes_on = each(Part::Node { offset, bytes, height });
            let entries = if node.level() == 0 { &contents.entries[..] } else { &[] };
            for &(slice, word) in entries {
                goes_on = goes_on
                    && match Below::from_word(word) {
                        _ if !slice.goes_on() => each(Part::Word(word)),
                        Below::Layer(_) => true,
                        Below::Leaf(leaf) => each(Part::Leaf(LeafRef::at(m, leaf)?)),
                    };
            }
            Ok(goes_on)
        })
    }
}
