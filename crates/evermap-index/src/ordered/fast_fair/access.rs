//! Nodes, and searching in one of them.

use std::cmp::Ordering;

use evermap_pm::{Error, Medium, Result};

use super::FastFair;
use super::layout::{self, Header, Meta, RECORDS, Record, Rest};
use crate::node_lock::{self, Lock};
use crate::ordered::leaf::LeafRef;

/// A key to search for.
#[derive(Clone, Copy)]
pub(super) struct Search<'k> {
    pub(super) key: &'k [u8],
    pub(super) prefix: u64,
    /// Where the key itself belongs: `false` if before all records with that key.
    pub(super) after_equal: bool,
}

impl<'k> Search<'k> {
    /// Returns a search that treats nodes and children whose least key is `key` as being at or
    /// before it.
    #[inline(always)]
    pub(super) fn new(key: &'k [u8]) -> Self {
        Search { key, prefix: layout::prefix(key), after_equal: true }
    }

    /// Returns a search for what is before `key`.
    pub(super) fn before(key: &'k [u8]) -> Self {
        Search { after_equal: false, ..Self::new(key) }
    }

    /// Returns `true` if a node whose least key compares to this one like this can have what is
    /// searched for.
    #[inline(always)]
    pub(super) fn admits(&self, low: Ordering) -> bool {
        low == Ordering::Less || self.after_equal && low == Ordering::Equal
    }
}

/// A node.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'m> {
    pub(super) offset: u64,
    pub(super) node: &'m layout::Node,
    pub(super) level: u8,
}

impl<'m> NodeRef<'m> {
    pub(super) fn header(&self) -> &'m Header {
        &self.node.header
    }

    pub(super) fn records(&self) -> &'m [Record; RECORDS] {
        &self.node.records
    }

    /// Returns the reference before the record at `position`.
    pub(super) fn left_of<M: Medium>(&self, m: &M, position: usize) -> u64 {
        match position {
            0 => m.load(&self.header().leftmost),
            _ => m.load(&self.records()[position - 1].at),
        }
    }

    /// Returns the number of records of a node in which none is being changed.
    pub(super) fn count<M: Medium>(&self, m: &M) -> usize {
        let ends = |record: &Record| m.load(&record.at) == 0;
        self.records().iter().position(ends).unwrap_or(RECORDS)
    }
}

/// A node that this thread has locked.
pub(super) type Locked<'m> = node_lock::Locked<'m, NodeRef<'m>>;

/// Where a key belongs in a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The position of the first record whose key is not before the one that is searched for.
    pub(super) position: usize,
    /// The reference of the record with that key, in a leaf node.
    pub(super) found: Option<u64>,
    /// The child for the key, in a node that is not a leaf node.
    pub(super) child: u64,
    /// `true` if no record is after the key.
    at_end: bool,
}

/// Where a search ended.
pub(super) struct End<'m> {
    /// The node into which the key belongs.
    pub(super) node: NodeRef<'m>,
    pub(super) place: Place,
    /// The last node that was found by going right: the node above does not refer to it yet.
    pub(super) passed: Option<u64>,
}

/// The next step of a search.
pub(super) enum Step {
    /// To the next node of the level, which has this offset.
    Right(u64),
    /// The key belongs into this node.
    Here(Place),
}

impl<M: Medium> FastFair<M> {
    /// Returns the node at an offset. Recovers it if no thread has used it since the index was
    /// opened.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    #[inline(always)]
    pub(super) fn node(&self, offset: u64, level: Option<u8>) -> Result<NodeRef<'_>> {
        let node = self.node_as_it_is(offset, level)?;
        if !Lock(self.medium().load(&node.header().lock)).is_of(self.generation) {
            self.recover(&node)?;
        }
        Ok(node)
    }

    /// Returns the same without recovering it. Its least key can be read.
    #[inline(always)]
    pub(super) fn node_as_it_is(&self, offset: u64, level: Option<u8>) -> Result<NodeRef<'_>> {
        let m = self.medium();
        let found = m.at::<layout::Node>(offset).filter(|_| offset != 0).and_then(|node| {
            let level = Meta(m.load(&node.header.meta)).level()?;
            Some(NodeRef { offset, node, level })
        });
        found
            .filter(|found| level.is_none_or(|level| found.level == level))
            .ok_or_else(|| Error::damaged(offset, "there is no such node of a tree"))
    }

    /// Returns the root node.
    #[inline(always)]
    pub(super) fn root_node(&self) -> Result<NodeRef<'_>> {
        self.node(self.medium().load(&self.root_block()?.tree), None)
    }

    /// Returns the result of `read`, which reads a node while no thread changes it.
    ///
    /// # Errors
    /// Those of `read`; `Poisoned` and `Damaged` if the node stays locked.
    #[inline(always)]
    pub(super) fn read<T>(&self, node: &NodeRef<'_>, read: impl Fn() -> Result<T>) -> Result<T> {
        Ok(node_lock::read(&self.region, &node.header().lock, read)?.1)
    }

    /// Returns the lock word of a node as soon as it is not locked.
    #[inline(always)]
    pub(super) fn version(&self, node: &NodeRef<'_>) -> Result<Lock> {
        node_lock::unlocked(&self.region, &node.header().lock)
    }

    /// Finds the place for a key in a node that is locked or [read](Self::read).
    #[inline(always)]
    pub(super) fn place(&self, node: &NodeRef<'_>, search: &Search<'_>) -> Result<Place> {
        let m = self.medium();
        let mut child = m.load(&node.header().leftmost);
        for (position, record) in node.records().iter().enumerate() {
            let at = m.load(&record.at);
            if at == 0 {
                return Ok(Place { position, found: None, child, at_end: true });
            }
            let order = match m.load(&record.prefix).cmp(&search.prefix) {
                Ordering::Equal => self.compare(node, at, search.key)?,
                order => order,
            };
            let goes_on = match node.level {
                0 => order == Ordering::Less,
                _ => search.admits(order),
            };
            if !goes_on {
                let found = (node.level == 0 && order == Ordering::Equal).then_some(at);
                return Ok(Place { position, found, child, at_end: false });
            }
            child = at;
        }
        Err(Error::damaged(node.offset, "a node of a tree has no end"))
    }

    /// Compares the key of a record with one that has the same prefix.
    fn compare(&self, node: &NodeRef<'_>, at: u64, key: &[u8]) -> Result<Ordering> {
        match node.level {
            0 => Ok(LeafRef::at(self.medium(), at)?.compare(self.medium(), key)),
            level => self.compare_rest(&self.node_as_it_is(at, Some(level - 1))?, key),
        }
    }

    /// Compares the least key of a node with a key that has the same prefix.
    fn compare_rest(&self, node: &NodeRef<'_>, key: &[u8]) -> Result<Ordering> {
        let m = self.medium();
        match Rest::from_word(m.load(&node.header().low_rest)) {
            Rest::None => Ok(Ordering::Less),
            Rest::Length(length) => Ok(length.cmp(&key.len())),
            Rest::Leaf(leaf) => Ok(LeafRef::at(m, leaf)?.compare(m, key)),
        }
    }

    /// Compares the least key of a node with another key.
    pub(super) fn compare_low(&self, node: &NodeRef<'_>, search: &Search<'_>) -> Result<Ordering> {
        let m = self.medium();
        match m.load(&node.header().low_prefix).cmp(&search.prefix) {
            Ordering::Equal => self.compare_rest(node, search.key),
            order => Ok(order),
        }
    }

    /// Returns the least key of a node, or `None` if it is the first of its level.
    pub(super) fn low(&self, node: &NodeRef<'_>) -> Result<Option<Vec<u8>>> {
        let m = self.medium();
        let prefix = m.load(&node.header().low_prefix).to_be_bytes();
        Ok(match Rest::from_word(m.load(&node.header().low_rest)) {
            Rest::None => None,
            Rest::Length(length) => Some(prefix[..length].to_vec()),
            Rest::Leaf(leaf) => Some(LeafRef::at(m, leaf)?.key(m)),
        })
    }

    /// Returns the next step of a search that has come to a node, which is locked or
    /// [read](Self::read). The next node of the level is looked at only if no record of this one is
    /// after the key.
    #[inline(always)]
    pub(super) fn step(&self, node: &NodeRef<'_>, search: &Search<'_>) -> Result<Step> {
        let m = self.medium();
        let place = self.place(node, search)?;
        let sibling = m.load(&node.header().sibling);
        if place.at_end && place.found.is_none() && sibling != 0 {
            let next = self.node_as_it_is(sibling, Some(node.level))?;
            if search.admits(self.compare_low(&next, search)?) {
                return Ok(Step::Right(sibling));
            }
        }
        Ok(Step::Here(place))
    }

    /// Follows a reference to the next node of a level.
    pub(super) fn next_node(&self, node: &NodeRef<'_>, offset: u64) -> Result<NodeRef<'_>> {
        let next = self.node(offset, Some(node.level))?;
        self.ensure_after(node, &next)?;
        Ok(next)
    }

    /// Returns an error unless `next` has a greater least key than `node`. Otherwise damaged
    /// references could lead a search round and round.
    pub(super) fn ensure_after(&self, node: &NodeRef<'_>, next: &NodeRef<'_>) -> Result<()> {
        let low = self.low(next)?;
        let follows = low.as_deref().map(|low| self.compare_low(node, &Search::new(low)));
        match follows.transpose()? {
            Some(Ordering::Less) => Ok(()),
            _ => {
                let what = "a node of a tree is not after the one before it";
                Err(Error::damaged(next.offset, what))
            }
        }
    }

    /// Searches from the root down to a level.
    #[inline(always)]
    pub(super) fn descend(&self, search: &Search<'_>, level: u8) -> Result<End<'_>> {
        let (mut node, mut passed) = (self.root_node()?, None);
        loop {
            match self.read(&node, || self.step(&node, search))? {
                Step::Right(offset) => {
                    node = self.next_node(&node, offset)?;
                    passed = Some(offset);
                }
                Step::Here(place) if node.level > level => {
                    node = self.node(place.child, Some(node.level - 1))?;
                }
                Step::Here(place) => return Ok(End { node, place, passed }),
            }
        }
    }

    /// Locks the node of a level into which a key belongs, beginning at one that is not after it.
    pub(super) fn lock<'m>(
        &'m self,
        mut node: NodeRef<'m>,
        search: &Search<'_>,
    ) -> Result<(Locked<'m>, Place)> {
        let m = self.medium();
        loop {
            let locked = Locked::acquire(&self.region, node, &node.header().lock, false)?;
            let locked = locked.ok_or_else(|| {
                Error::damaged(node.offset, "a node of a tree says that it is not part of it")
            })?;
            match self.step(&node, search) {
                // A shift would store what is before the first record in its place: the end.
                Ok(Step::Here(_)) if m.load(&node.header().leftmost) == 0 => {
                    locked.release(m);
                    return Err(Error::damaged(node.offset, "a node of a tree has no beginning"));
                }
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
