//! Nodes, and searching in one layer.

use evermap_index::node_lock::{self, Lock};
use evermap_pm::{Error, Medium, Result};

use super::Masstree;
use super::layout::{self, Below, Classes, ENTRIES, Entry, Header, Meta, Permutation, Slice};

/// A key to search for in the layer at one depth.
#[derive(Clone, Copy)]
pub(super) struct Target<'k> {
    pub(super) key: &'k [u8],
    pub(super) depth: usize,
    pub(super) slice: Slice,
    /// Whether a node or a child whose least key is the slice can have what is searched for.
    admits_equal: bool,
}

impl<'k> Target<'k> {
    #[inline(always)]
    pub(super) fn new(key: &'k [u8], depth: usize) -> Self {
        Target { key, depth, slice: Slice::of(key, depth), admits_equal: true }
    }

    /// Returns a search for the node of a layer to which a slice belongs.
    pub(super) fn of_slice(slice: Slice, depth: usize) -> Self {
        Target { key: &[], depth, slice, admits_equal: true }
    }

    /// Returns a search for the node before the one whose least key is `slice`.
    pub(super) fn before(slice: Slice, depth: usize) -> Self {
        Target { admits_equal: false, ..Self::of_slice(slice, depth) }
    }

    /// Returns `true` if a node with this least key can have what is searched for.
    #[inline(always)]
    pub(super) fn admits(&self, low: Slice) -> bool {
        if self.admits_equal { low <= self.slice } else { low < self.slice }
    }
}

/// A node.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'m> {
    pub(super) offset: u64,
    pub(super) node: &'m layout::Node,
    meta: Meta,
}

impl<'m> NodeRef<'m> {
    /// Returns a node whose first words were written.
    pub(super) fn of(offset: u64, node: &'m layout::Node, meta: Meta) -> Self {
        NodeRef { offset, node, meta }
    }

    #[inline(always)]
    pub(super) fn header(&self) -> &'m Header {
        &self.node.header
    }

    /// Returns the level of the node: 0 for leaf nodes.
    #[inline(always)]
    pub(super) fn level(&self) -> u8 {
        self.meta.level()
    }

    /// Returns the depth of the layer.
    #[inline(always)]
    pub(super) fn depth(&self) -> usize {
        self.meta.depth()
    }

    /// Returns the least key that belongs into the node.
    #[inline(always)]
    pub(super) fn low<M: Medium>(&self, m: &M) -> Slice {
        Slice { bytes: m.load(&self.header().low), class: self.meta.low_class() }
    }

    pub(super) fn permutation<M: Medium>(&self, m: &M) -> Permutation {
        Permutation(m.load(&self.header().permutation))
    }

    /// Returns the entry at a position, which was read from the region.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn entry(&self, position: usize) -> Result<&'m Entry> {
        let entry = self.node.entries.get(position);
        entry.ok_or_else(|| Error::damaged(self.offset, "the order of a node of a tree is wrong"))
    }

    /// Returns an error that says that this node is damaged.
    #[cold]
    pub(super) fn damaged(&self, what: &'static str) -> Error {
        Error::damaged(self.offset, what)
    }
}

/// A node that this thread has locked.
pub(super) type Locked<'m> = node_lock::Locked<'m, NodeRef<'m>>;

/// Where a slice belongs in a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The number of entries before the slice; in a node that is not a leaf node, of those that the
    /// search admits.
    pub(super) rank: usize,
    /// The position and the value of the entry with the slice, in a leaf node.
    pub(super) found: Option<(usize, u64)>,
    /// The child for the slice, in a node that is not a leaf node.
    pub(super) child: u64,
    /// `true` if no entry is after the slice.
    at_end: bool,
}

impl Place {
    /// Returns what the entry that was found leads to, if the slice goes on.
    pub(super) fn below(&self, slice: Slice) -> Option<Below> {
        let (_, word) = self.found.filter(|_| slice.goes_on())?;
        Some(Below::from_word(word))
    }
}

/// Where a search in a layer ended.
pub(super) struct End<'m> {
    /// The node into which the slice belongs.
    pub(super) node: NodeRef<'m>,
    pub(super) place: Place,
    /// The last node that was found by going right: the node above does not refer to it yet.
    pub(super) passed: Option<u64>,
}

/// The next step of a search.
pub(super) enum Step {
    /// To the next node of the level, which has this offset.
    Right(u64),
    /// The slice belongs into this node.
    Here(Place),
}

/// What a node has, at one moment.
pub(super) struct Contents {
    pub(super) entries: Vec<(Slice, u64)>,
    pub(super) leftmost: u64,
    pub(super) next: u64,
}

impl<M: Medium> Masstree<M> {
    /// Returns the node at an offset, which must be in the layer at this depth. Recovers it if no
    /// thread has used it since the index was opened.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    #[inline(always)]
    pub(super) fn node(&self, offset: u64, level: Option<u8>, depth: usize) -> Result<NodeRef<'_>> {
        let m = self.medium();
        // All lines of it are wanted soon.
        m.prefetch_bytes(offset, size_of::<layout::Node>() as u64);
        let node = self.node_as_it_is(offset, level, depth)?;
        if !Lock(m.load(&node.header().lock)).is_of(self.memory.generation) {
            self.recover(&node)?;
        }
        Ok(node)
    }

    /// Returns the same without recovering it. Its least key can be read.
    #[inline(always)]
    pub(super) fn node_as_it_is(
        &self,
        offset: u64,
        level: Option<u8>,
        depth: usize,
    ) -> Result<NodeRef<'_>> {
        let m = self.medium();
        let found = m.at::<layout::Node>(offset).filter(|_| offset != 0);
        let found =
            found.map(|node| NodeRef::of(offset, node, Meta(m.load_relaxed(&node.header.meta))));
        let fits = |found: &NodeRef<'_>| {
            found.meta.is_valid()
                && found.depth() == depth
                && level.is_none_or(|level| found.level() == level)
        };
        found.filter(fits).ok_or_else(|| Error::damaged(offset, "there is no such node of a tree"))
    }

    /// Returns the root node of the first layer.
    #[inline(always)]
    pub(super) fn root_node(&self) -> Result<NodeRef<'_>> {
        self.node(self.medium().load(&self.root_block()?.tree), None, 0)
    }

    /// Returns the result of `read`, which reads a node while no thread changes it.
    ///
    /// # Errors
    /// Those of `read`; `Poisoned` and `Damaged` if the node stays locked.
    #[inline(always)]
    fn read<T>(&self, node: &NodeRef<'_>, read: impl Fn() -> Result<T>) -> Result<T> {
        Ok(node_lock::read(&self.memory.region, &node.header().lock, read)?.1)
    }

    /// Returns what a node has, and its lock word at that moment.
    pub(super) fn snapshot(&self, node: &NodeRef<'_>) -> Result<(Lock, Contents)> {
        node_lock::read(&self.memory.region, &node.header().lock, || self.contents(node))
    }

    /// Returns what a node has that is locked, or [read](Self::read).
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn contents(&self, node: &NodeRef<'_>) -> Result<Contents> {
        let (m, header) = (self.medium(), node.header());
        let (order, classes) = (node.permutation(m), Classes(m.load(&header.classes)));
        let mut entries = Vec::with_capacity(ENTRIES);
        for rank in 0..order.len() {
            let position = order.position(rank);
            let entry = node.entry(position)?;
            let slice = Slice { bytes: m.load(&entry.key), class: classes.of(position) };
            entries.push((slice, m.load(&entry.value)));
        }
        Ok(Contents { entries, leftmost: m.load(&header.leftmost), next: m.load(&header.next) })
    }

    /// Finds the place for a slice in a node that is locked or [read](Self::read).
    #[inline(always)]
    pub(super) fn place(&self, node: &NodeRef<'_>, target: &Target<'_>) -> Result<Place> {
        let (m, header) = (self.medium(), node.header());
        let (order, classes) = (node.permutation(m), Classes(m.load(&header.classes)));
        let is_leaf = node.level() == 0;
        let (mut low, mut high, mut found) = (0, order.len(), None);
        while low < high {
            let middle = low.midpoint(high);
            let position = order.position(middle);
            let entry = node.entry(position)?;
            let slice = Slice { bytes: m.load(&entry.key), class: classes.of(position) };
            if is_leaf && slice == target.slice {
                found = Some((position, m.load(&entry.value)));
                (low, high) = (middle, middle);
            } else if target.admits(slice) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let child = match low.checked_sub(1) {
            _ if is_leaf => 0,
            None => m.load(&header.leftmost),
            Some(last) => m.load(&node.entry(order.position(last))?.value),
        };
        Ok(Place { rank: low, found, child, at_end: low == order.len() })
    }

    /// Returns the next step of a search that has come to a node, which is locked or
    /// [read](Self::read). The next node of the level is looked at only if no entry of this one is
    /// after the slice.
    #[inline(always)]
    fn step(&self, node: &NodeRef<'_>, target: &Target<'_>) -> Result<Step> {
        let m = self.medium();
        let place = self.place(node, target)?;
        let next = m.load(&node.header().next);
        if place.at_end && next != 0 {
            let right = self.node_as_it_is(next, Some(node.level()), node.depth())?;
            if target.admits(right.low(m)) {
                return Ok(Step::Right(next));
            }
        }
        Ok(Step::Here(place))
    }

    /// Follows a reference to the next node of a level.
    pub(super) fn next_node(&self, node: &NodeRef<'_>, offset: u64) -> Result<NodeRef<'_>> {
        let next = self.node(offset, Some(node.level()), node.depth())?;
        self.ensure_after(node, &next)?;
        Ok(next)
    }

    /// Returns an error unless `next` has a greater least key than `node`. Otherwise damaged
    /// references could lead a search round and round.
    pub(super) fn ensure_after(&self, node: &NodeRef<'_>, next: &NodeRef<'_>) -> Result<()> {
        let m = self.medium();
        if node.low(m) < next.low(m) {
            return Ok(());
        }
        Err(next.damaged("a node of a tree is not after the one before it"))
    }

    /// Searches in a layer from its root, or a former one, down to a level.
    #[inline(always)]
    pub(super) fn descend<'m>(
        &'m self,
        root: NodeRef<'m>,
        target: &Target<'_>,
        level: u8,
    ) -> Result<End<'m>> {
        let (mut node, mut passed) = (root, None);
        loop {
            match self.read(&node, || self.step(&node, target))? {
                Step::Right(offset) => {
                    node = self.next_node(&node, offset)?;
                    passed = Some(offset);
                }
                Step::Here(place) if node.level() > level => {
                    node = self.node(place.child, Some(node.level() - 1), node.depth())?;
                }
                Step::Here(place) => return Ok(End { node, place, passed }),
            }
        }
    }

    /// Returns the root node of the layer at a depth in which a key is, or a former one. There is
    /// such a layer, and layers stay.
    pub(super) fn layer_of(&self, key: &[u8], depth: usize) -> Result<NodeRef<'_>> {
        let mut root = self.root_node()?;
        for above in 0..depth {
            let target = Target::new(key, above);
            let end = self.descend(root, &target, 0)?;
            let Some(Below::Layer(offset)) = end.place.below(target.slice) else {
                return Err(end.node.damaged("a layer of a tree is not where its keys are"));
            };
            root = self.node(offset, None, above + 1)?;
        }
        Ok(root)
    }

    /// Locks one node.
    pub(super) fn lock_node<'m>(&self, node: NodeRef<'m>) -> Result<Locked<'m>> {
        let locked = Locked::acquire(&self.memory.region, node, &node.header().lock, false)?;
        locked.ok_or_else(|| node.damaged("a node of a tree says that it is not part of it"))
    }

    /// Locks the node of a level into which a slice belongs, beginning at one that is not after it.
    pub(super) fn lock<'m>(
        &'m self,
        mut node: NodeRef<'m>,
        target: &Target<'_>,
    ) -> Result<(Locked<'m>, Place)> {
        let m = self.medium();
        loop {
            let locked = self.lock_node(node)?;
            let step = match node.permutation(m).is_valid() {
                true => self.step(&node, target),
                // An insertion could overwrite an entry that counts.
                false => Err(node.damaged("the order of a node of a tree is wrong")),
            };
            match step {
                Ok(Step::Here(place)) => return Ok((locked, place)),
                Ok(Step::Right(offset)) => {
                    locked.release(m);
                    node = self.next_node(&node, offset)?;
                }
                Err(error) => {
                    locked.release(m);
                    return Err(error);
                }
            }
        }
    }
}
