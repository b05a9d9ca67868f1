//! Reading pages of pairs in the order of their keys.

use std::cmp::Ordering;
use std::ops::{Bound, Range};

use evermap_index::node_lock::Seen;
use evermap_index::ordered::leaf::{self, LeafRef};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, Result};

use super::Masstree;
use super::access::{Contents, NodeRef, Target};
use super::layout::{Below, SLICE, Slice};

/// The number of pairs in a page, and of nodes that are read for it, if no other thread changes
/// the tree meanwhile.
pub(super) const PAGE: usize = 128;

/// A walk in one direction.
struct Walk<'m, M: Medium> {
    tree: &'m Masstree<M>,
    direction: Direction,
    /// The place in each layer from the first one down.
    places: Vec<Place<'m>>,
    /// What the keys in the lowest of these layers begin with.
    prefix: Vec<u8>,
    /// The locks of all nodes that were read.
    seen: Seen<'m>,
}

/// A place in a layer.
struct Place<'m> {
    root: NodeRef<'m>,
    node: NodeRef<'m>,
    /// What the node has.
    contents: Contents,
    /// The number of entries before the place: ascending, the first that was not shown is behind
    /// it; descending, the last that was.
    edge: usize,
}

/// A node beside another one, what it has, and the least key of the greater one of the two.
type Neighbour<'m> = (NodeRef<'m>, Contents, Slice);

/// What comes next in a walk.
enum Step {
    /// The entry of a key.
    Pair(Slice, u64),
    /// Another node of the same layer. All keys on the other side of the first one with this slice
    /// were shown; in descending order it too.
    Node(Slice),
    /// Nothing.
    End,
}

/// A pair that a page will have.
enum Item {
    /// Where its key is in the buffer, and its word.
    Word(Range<usize>, u64),
    /// The offset of its leaf.
    Leaf(u64),
}

impl<'m, M: Medium> Walk<'m, M> {
    /// Begins a walk at a bound.
    fn new(tree: &'m Masstree<M>, from: Bound<&[u8]>, direction: Direction) -> Result<Self> {
        let (places, prefix, seen) = (Vec::new(), Vec::new(), Seen::default());
        let mut walk = Walk { tree, direction, places, prefix, seen };
        let root = tree.root_node()?;
        match from {
            Bound::Unbounded => walk.enter(root)?,
            Bound::Included(key) => walk.seek(root, key, true)?,
            Bound::Excluded(key) => walk.seek(root, key, false)?,
        }
        Ok(walk)
    }

    fn is_ascending(&self) -> bool {
        self.direction == Direction::Ascending
    }

    /// Enters a layer at the end at which a walk in this direction begins.
    fn enter(&mut self, root: NodeRef<'m>) -> Result<()> {
        let edge = match self.direction {
            Direction::Ascending => Slice::FIRST,
            Direction::Descending => Slice::LAST,
        };
        self.enter_at(root, &Target::of_slice(edge, root.depth()))
    }

    /// Enters a layer at the node for a slice: before its first entry, or descending, behind its
    /// last one.
    fn enter_at(&mut self, root: NodeRef<'m>, target: &Target<'_>) -> Result<()> {
        let node = self.tree.descend(root, target, 0)?.node;
        let (node, contents) = self.read(node, target)?;
        let edge = if self.is_ascending() { 0 } else { contents.entries.len() };
        self.places.push(Place { root, node, contents, edge });
        Ok(())
    }

    /// Enters the layer below the current place. Its keys have this slice in the current layer.
    fn enter_below(&mut self, slice: Slice, root: u64) -> Result<NodeRef<'m>> {
        slice.append_to(&mut self.prefix);
        self.tree.node(root, None, self.prefix.len() / SLICE)
    }

    /// Reads a node, or if that is split in the meantime, the one to the right of it that can have
    /// what is searched for.
    fn read(
        &mut self,
        mut node: NodeRef<'m>,
        target: &Target<'_>,
    ) -> Result<(NodeRef<'m>, Contents)> {
        let m = self.tree.medium();
        loop {
            let (lock, contents) = self.tree.snapshot(&node)?;
            let reaches = |&(last, _): &(Slice, u64)| !target.admits(last);
            if contents.next != 0 && !contents.entries.last().is_some_and(reaches) {
                let next = self.tree.next_node(&node, contents.next)?;
                if target.admits(next.low(m)) {
                    node = next;
                    continue;
                }
            }
            self.seen.add(&node.header().lock, lock);
            return Ok((node, contents));
        }
    }

    /// Enters the layers on the way of `key`, and puts the place in the last one at it.
    fn seek(&mut self, mut root: NodeRef<'m>, key: &[u8], included: bool) -> Result<()> {
        let m = self.tree.medium();
        loop {
            let target = Target::new(key, root.depth());
            self.enter_at(root, &target)?;
            let place = self.places.last_mut().expect("just entered");
            let entries = &place.contents.entries;
            let rank = entries.partition_point(|&(slice, _)| slice < target.slice);
            let found = entries.get(rank).filter(|entry| entry.0 == target.slice);
            let order = match found.map(|&(slice, word)| (slice.goes_on(), Below::from_word(word)))
            {
                None => Ordering::Greater,
                Some((false, _)) => Ordering::Equal,
                Some((true, Below::Leaf(leaf))) => LeafRef::at(m, leaf)?.compare(m, key),
                Some((true, Below::Layer(below))) => {
                    place.edge = rank + usize::from(self.direction == Direction::Ascending);
                    root = self.enter_below(target.slice, below)?;
                    continue;
                }
            };
            // Whether the place is before the entry: then an ascending walk shows it, and a
            // descending one does not.
            let before = match order {
                Ordering::Greater => true,
                Ordering::Less => false,
                Ordering::Equal => included == (self.direction == Direction::Ascending),
            };
            place.edge = rank + usize::from(!before);
            return Ok(());
        }
    }

    /// Returns what comes next.
    fn next(&mut self) -> Result<Step> {
        let ascends = self.is_ascending();
        while let Some(place) = self.places.last_mut() {
            let at = if ascends { Some(place.edge) } else { place.edge.checked_sub(1) };
            let entry = at.and_then(|at| place.contents.entries.get(at)).copied();
            let Some((slice, word)) = entry else {
                match self.next_node()? {
                    Some(between) => return Ok(Step::Node(between)),
                    None => continue,
                }
            };
            place.edge = if ascends { place.edge + 1 } else { place.edge - 1 };
            match Below::from_word(word) {
                Below::Layer(root) if slice.goes_on() => {
                    let root = self.enter_below(slice, root)?;
                    self.enter(root)?;
                }
                _ => return Ok(Step::Pair(slice, word)),
            }
        }
        Ok(Step::End)
    }

    /// Goes on to the next node of the layer, and returns the least key of the greater one of the
    /// two. If there is none, leaves the layer and returns `None`.
    fn next_node(&mut self) -> Result<Option<Slice>> {
        let Some(Place { root, node: here, contents, .. }) = self.places.pop() else {
            return Ok(None);
        };
        let next = match self.direction {
            Direction::Ascending => self.right_of(here, contents.next)?,
            Direction::Descending => self.left_of(here, root)?,
        };
        let Some((node, contents, between)) = next else {
            self.prefix.truncate(self.prefix.len().saturating_sub(SLICE));
            return Ok(None);
        };
        let edge = if self.is_ascending() { 0 } else { contents.entries.len() };
        self.places.push(Place { root, node, contents, edge });
        Ok(Some(between))
    }

    /// Returns the node to the right of one that refers to `next`, what it has, and its least key.
    fn right_of(&mut self, here: NodeRef<'m>, next: u64) -> Result<Option<Neighbour<'m>>> {
        if next == 0 {
            return Ok(None);
        }
        let next = self.tree.next_node(&here, next)?;
        let low = next.low(self.tree.medium());
        let (node, contents) = self.read(next, &Target::of_slice(low, here.depth()))?;
        Ok(Some((node, contents, low)))
    }

    /// Returns the node to the left of one, what it has, and the least key of the one.
    fn left_of(&mut self, here: NodeRef<'m>, root: NodeRef<'m>) -> Result<Option<Neighbour<'m>>> {
        let low = here.low(self.tree.medium());
        if low == Slice::FIRST {
            return Ok(None);
        }
        let target = Target::before(low, here.depth());
        let end = self.tree.descend(root, &target, 0)?;
        let (node, contents) = self.read(end.node, &target)?;
        if contents.next != here.offset {
            return Err(here.damaged("a node of a tree is not next to the one before it"));
        }
        Ok(Some((node, contents, low)))
    }
}

impl<M: Medium> Masstree<M> {
    /// Reads a page of up to `most` pairs, and returns the locks of the nodes that it has read.
    pub(super) fn read_page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        page: &mut Page,
    ) -> Result<Seen<'_>> {
        if direction == Direction::Ascending
            && let Some(seen) = self.read_short(from, most, page)?
        {
            return Ok(seen);
        }
        let m = self.medium();
        let mut walk = Walk::new(self, from, direction)?;
        let (mut items, mut keys) = (Vec::with_capacity(most), Vec::new());
        let mut nodes = 0;
        // Where the next page begins, if it is known before the keys are.
        let mut edge = None;
        let mut ended = false;
        while items.len() < most && edge.is_none() && !ended {
            match walk.next()? {
                Step::Pair(slice, leaf) if slice.goes_on() => {
                    leaf::prefetch(m, leaf);
                    items.push(Item::Leaf(leaf));
                }
                Step::Pair(slice, word) => {
                    let start = keys.len();
                    keys.extend_from_slice(&walk.prefix);
                    slice.append_to(&mut keys);
                    items.push(Item::Word(start..keys.len(), word));
                }
                Step::Node(between) => {
                    nodes += 1;
                    // The first one can be where the page begins, in descending order.
                    edge = (nodes > most).then(|| {
                        let mut key = walk.prefix.clone();
                        between.append_first_to(&mut key);
                        key
                    });
                }
                Step::End => ended = true,
            }
        }
        match direction {
            Direction::Ascending => self.fill(page, items.iter(), &keys)?,
            Direction::Descending => self.fill(page, items.iter().rev(), &keys)?,
        }
        if ended {
            return Ok(walk.seen);
        }
        let last = page.pairs.len().saturating_sub(1);
        let edge = edge.unwrap_or_else(|| match direction {
            Direction::Ascending => [page.pairs.key(last), &[0]].concat(),
            Direction::Descending => page.pairs.key(0).to_vec(),
        });
        page.continue_at(&edge);
        Ok(walk.seen)
    }

    /// Copies pairs to a page, in this order.
    fn fill<'i>(
        &self,
        page: &mut Page,
        items: impl Iterator<Item = &'i Item>,
        keys: &[u8],
    ) -> Result<()> {
        let m = self.medium();
        page.clear();
        for item in items {
            match item {
                Item::Word(key, word) => page.pairs.push(&keys[key.clone()], *word),
                Item::Leaf(leaf) => {
                    let leaf = LeafRef::at(m, *leaf)?;
                    page.pairs.push_with(leaf.word(m), |key| leaf.append_key(m, key));
                }
            }
        }
        Ok(())
    }
}
