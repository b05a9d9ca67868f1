//! Nodes, and searching in one of them.

use std::cmp::Ordering;

use evermap_index::node_lock::{self, Lock};
use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::{Error, Medium, Result};

use super::copies::{Copies, WHOLE};
use super::layout::{self, Header, LINE_RECORDS, Meta, NodeBlock, Record, Rest, VACANT};
use super::{FastFair, Form};

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
pub(super) struct NodeRef<'m, F: Form> {
    pub(super) offset: u64,
    pub(super) node: &'m F::Node,
    pub(super) level: u8,
}

impl<F: Form> Clone for NodeRef<'_, F> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Form> Copy for NodeRef<'_, F> {}

impl<'m, F: Form> NodeRef<'m, F> {
    /// The number of records that the node has space for.
    pub(super) const RECORDS: usize = F::Node::RECORDS;

    #[inline]
    pub(super) fn header(&self) -> &'m Header {
        self.node.header()
    }

    #[inline]
    pub(super) fn records(&self) -> &'m [Record] {
        self.node.records()
    }

    /// Returns the reference before the record at `position`.
    #[inline(always)]
    pub(super) fn left_of<M: Medium>(&self, m: &M, position: usize) -> u64 {
        m.load(&self.node.low_and_records()[position].at)
    }

    /// Returns the number of records of a node in which none is being changed, or
    /// [`RECORDS`](Self::RECORDS) if it has no end.
    #[inline(always)]
    pub(super) fn count<M: Medium>(&self, m: &M) -> usize {
        (m.load(&self.header().count) as usize).min(Self::RECORDS)
    }

    /// Sets the number of records of a node that this thread has locked.
    pub(super) fn set_count<M: Medium>(&self, m: &M, count: usize) {
        m.store_transient(&self.header().count, count as u64);
    }

    /// As [`set_count`](Self::set_count), if there were more records: makes the places of the
    /// others vacant, and forgets their copies.
    pub(super) fn end_at<M: Medium>(&self, m: &'m M, count: usize) {
        self.set_count(m, count);
        if let Some(copies) = self.copies(m) {
            copies.end_at(m, count);
        }
        let vacant = &self.records()[count..];
        vacant.iter().for_each(|record| m.store_transient(&record.prefix, VACANT));
    }

    /// Returns the number of records whose prefix is less than `prefix`.
    ///
    /// The last record of a line tells whether all of the line are less. Lowest nodes are seldom
    /// in a cache: no line behind the right one is waited for. The others mostly are, so all their
    /// lines are read, without a branch, which processors would often mispredict.
    #[inline(always)]
    pub(super) fn less<M: Medium>(&self, m: &M, prefix: u64) -> usize {
        const LAST: usize = LINE_RECORDS - 1;
        if F::PLAIN {
            return self.less_one_by_one(m, prefix);
        }
        let lines = Self::RECORDS / LINE_RECORDS;
        let less = |at: usize| usize::from(m.load(&self.records()[at].prefix) < prefix);
        let line_is_less = |line: &usize| less(line * LINE_RECORDS + LAST) == 1;
        let lines = match self.level {
            0 => (0..lines - 1).take_while(line_is_less).count(),
            _ => (0..lines - 1).map(|line| less(line * LINE_RECORDS + LAST)).sum(),
        };
        let start = lines * LINE_RECORDS;
        start + (start..start + LAST).map(less).sum::<usize>()
    }

    /// Returns the same, as the paper finds it: compares one record after the other, to the end of
    /// the node.
    #[inline]
    fn less_one_by_one<M: Medium>(&self, m: &M, prefix: u64) -> usize {
        let is_less = |record: &&Record| m.load(&record.at) != 0 && m.load(&record.prefix) < prefix;
        // The last place is for the end.
        self.records()[..Self::RECORDS - 1].iter().take_while(is_less).count()
    }
}

/// A node that this thread has locked.
pub(super) type Locked<'m, F> = node_lock::Locked<'m, NodeRef<'m, F>>;

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
pub(super) struct End<'m, F: Form> {
    /// The node into which the key belongs.
    pub(super) node: NodeRef<'m, F>,
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

impl<M: Medium, F: Form> FastFair<M, F> {
    /// The most records that a node has space for besides its end.
    pub(super) const RECORDS_MAX: usize = F::Node::RECORDS - 1;

    /// Returns the node at an offset. Recovers it if no thread has used it since the index was
    /// opened.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    #[inline(always)]
    pub(super) fn node(&self, offset: u64, level: Option<u8>) -> Result<NodeRef<'_, F>> {
        let node = self.node_as_it_is(offset, level)?;
        if !Lock(self.medium().load(&node.header().lock)).is_of(self.memory.generation) {
            self.recover(&node)?;
        }
        Ok(node)
    }

    /// Returns the same without recovering it. Its least key can be read.
    #[inline(always)]
    pub(super) fn node_as_it_is(&self, offset: u64, level: Option<u8>) -> Result<NodeRef<'_, F>> {
        let m = self.medium();
        let found = m.at::<F::Node>(offset).filter(|_| offset != 0).and_then(|node| {
            let level = Meta(m.load(&node.header().meta)).level()?;
            Some(NodeRef { offset, node, level })
        });
        found
            .filter(|found| level.is_none_or(|level| found.level == level))
            .ok_or_else(|| Error::damaged(offset, "there is no such node of a tree"))
    }

    /// Returns the root node.
    #[inline(always)]
    pub(super) fn root_node(&self) -> Result<NodeRef<'_, F>> {
        self.node(self.medium().load(&self.root_block()?.tree), None)
    }

    /// Returns the result of `read`, which reads a node while no thread changes it.
    ///
    /// # Errors
    /// Those of `read`; `Poisoned` and `Damaged` if the node stays locked.
    #[inline(always)]
    pub(super) fn read<T>(&self, node: &NodeRef<'_, F>, read: impl Fn() -> Result<T>) -> Result<T> {
        Ok(node_lock::read(&self.memory.region, &node.header().lock, read)?.1)
    }

    /// Returns the lock word of a node as soon as it is not locked. Recovers the node if no thread
    /// has used it since the index was opened.
    #[inline(always)]
    pub(super) fn version(&self, node: &NodeRef<'_, F>) -> Result<Lock> {
        let lock = Lock(self.medium().load(&node.header().lock));
        if lock.is_free_of(self.memory.generation) { Ok(lock) } else { self.wait_for(node) }
    }

    /// Recovers a node, or waits until it is not locked.
    #[cold]
    fn wait_for(&self, node: &NodeRef<'_, F>) -> Result<Lock> {
        let lock = &node.header().lock;
        if !Lock(self.medium().load(lock)).is_of(self.memory.generation) {
            self.recover(node)?;
        }
        node_lock::unlocked(&self.memory.region, lock)
    }

    /// Finds the place for a key in a node that is locked or [read](Self::read).
    #[inline(always)]
    pub(super) fn place(&self, node: &NodeRef<'_, F>, search: &Search<'_>) -> Result<Place> {
        let m = self.medium();
        let first = node.less(m, search.prefix);
        let record = &node.records()[first];
        let at = m.load(&record.at);
        if m.load(&record.prefix) == search.prefix && at != 0 {
            return self.place_among_equal(node, search, first);
        }
        if first == Self::RECORDS_MAX && at != 0 {
            return Err(Self::endless(node));
        }
        Ok(Place { position: first, found: None, child: node.left_of(m, first), at_end: at == 0 })
    }

    #[cold]
    fn endless(node: &NodeRef<'_, F>) -> Error {
        Error::damaged(node.offset, "a node of a tree has no end")
    }

    /// Finds the place for a key in a node whose record at `first` is the first one with its
    /// prefix.
    fn place_among_equal(
        &self,
        node: &NodeRef<'_, F>,
        search: &Search<'_>,
        first: usize,
    ) -> Result<Place> {
        let (m, count) = (self.medium(), node.count(self.medium()));
        if count > Self::RECORDS_MAX {
            return Err(Self::endless(node));
        }
        let is_equal = |record: &Record| m.load(&record.prefix) == search.prefix;
        let behind = &node.records()[first..count.max(first)];
        let equal = match F::PLAIN {
            true => behind.iter().take_while(|record| is_equal(record)).count(),
            false => behind.partition_point(is_equal),
        };
        let (mut start, mut end) = (first, first + equal);
        let mut found = None;
        while start < end {
            let middle = start.midpoint(end);
            let at = m.load(&node.records()[middle].at);
            let order = self.compare(node, at, search.key)?;
            let goes_on = match node.level {
                0 => order == Ordering::Less,
                _ => search.admits(order),
            };
            if goes_on {
                start = middle + 1
            } else {
                end = middle
            }
            if node.level == 0 && order == Ordering::Equal {
                (start, found) = (middle, Some(at));
                break;
            }
        }
        let at_end = start == count;
        Ok(Place { position: start, found, child: node.left_of(m, start), at_end })
    }

    /// Compares the key of a record with one that has the same prefix.
    fn compare(&self, node: &NodeRef<'_, F>, at: u64, key: &[u8]) -> Result<Ordering> {
        match node.level {
            0 => Ok(LeafRef::at(self.medium(), at)?.compare(self.medium(), key)),
            level => self.compare_rest(&self.node_as_it_is(at, Some(level - 1))?, key),
        }
    }

    /// Compares the least key of a node with a key that has the same prefix.
    fn compare_rest(&self, node: &NodeRef<'_, F>, key: &[u8]) -> Result<Ordering> {
        let m = self.medium();
        match Rest::from_word(m.load(&node.header().low_rest)) {
            Rest::None => Ok(Ordering::Less),
            Rest::Length(length) => Ok(length.cmp(&key.len())),
            Rest::Leaf(leaf) => Ok(LeafRef::at(m, leaf)?.compare(m, key)),
        }
    }

    /// Compares the least key of a node with another key.
    pub(super) fn compare_low(
        &self,
        node: &NodeRef<'_, F>,
        search: &Search<'_>,
    ) -> Result<Ordering> {
        let m = self.medium();
        match m.load(&node.node.low().prefix).cmp(&search.prefix) {
            Ordering::Equal => self.compare_rest(node, search.key),
            order => Ok(order),
        }
    }

    /// Returns the least key of a node, or `None` if it is the first of its level.
    pub(super) fn low(&self, node: &NodeRef<'_, F>) -> Result<Option<Vec<u8>>> {
        let m = self.medium();
        let prefix = m.load(&node.node.low().prefix).to_be_bytes();
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
    pub(super) fn step(&self, node: &NodeRef<'_, F>, search: &Search<'_>) -> Result<Step> {
        let m = self.medium();
        let place = self.place(node, search)?;
        let is_before_next = || !F::PLAIN && search.prefix < m.load(&node.header().next_prefix);
        if !place.at_end || is_before_next() {
            return Ok(Step::Here(place));
        }
        match self.next_admits(node, search)? {
            Some(sibling) => Ok(Step::Right(sibling)),
            None => Ok(Step::Here(place)),
        }
    }

    /// Returns the offset of the next node of the level if that can have what is searched for.
    #[cold]
    fn next_admits(&self, node: &NodeRef<'_, F>, search: &Search<'_>) -> Result<Option<u64>> {
        let sibling = self.medium().load(&node.header().sibling);
        if sibling == 0 {
            return Ok(None);
        }
        let next = self.node_as_it_is(sibling, Some(node.level))?;
        Ok(search.admits(self.compare_low(&next, search)?).then_some(sibling))
    }

    /// Follows a reference to the next node of a level.
    pub(super) fn next_node(&self, node: &NodeRef<'_, F>, offset: u64) -> Result<NodeRef<'_, F>> {
        let next = self.node(offset, Some(node.level))?;
        self.ensure_after(node, &next)?;
        Ok(next)
    }

    /// Returns an error unless `next` has a greater least key than `node`. Otherwise damaged
    /// references could lead a search round and round.
    #[inline]
    pub(super) fn ensure_after(&self, node: &NodeRef<'_, F>, next: &NodeRef<'_, F>) -> Result<()> {
        let m = self.medium();
        let prefix = |node: &NodeRef<'_, F>| m.load(&node.node.low().prefix);
        let has_low = m.load(&next.header().low_rest) != Rest::None.word();
        if has_low && prefix(node) < prefix(next) { Ok(()) } else { self.compare_lows(node, next) }
    }

    /// Does the same if the prefixes do not tell.
    #[cold]
    fn compare_lows(&self, node: &NodeRef<'_, F>, next: &NodeRef<'_, F>) -> Result<()> {
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
    #[inline]
    pub(super) fn descend(&self, search: &Search<'_>, level: u8) -> Result<End<'_, F>> {
        self.descend_from(self.root_node()?, search, level)
    }

    /// Searches from a node down to a level.
    #[inline(always)]
    pub(super) fn descend_from<'m>(
        &'m self,
        mut node: NodeRef<'m, F>,
        search: &Search<'_>,
        level: u8,
    ) -> Result<End<'m, F>> {
        let mut passed = None;
        loop {
            // Not by `read`, whose closure the compiler does not inline.
            let version = self.version(&node)?;
            let step = self.step(&node, search);
            // Acquire: all words of the node have been loaded before.
            if self.medium().load(&node.header().lock) != version.0 {
                continue;
            }
            match step? {
                Step::Right(offset) => {
                    node = self.next_node(&node, offset)?;
                    passed = Some(offset);
                }
                Step::Here(place) if node.level > level => {
                    node = self.node_as_it_is(place.child, Some(node.level - 1))?;
                }
                Step::Here(place) => return Ok(End { node, place, passed }),
            }
        }
    }

    /// Returns the word that a key is bound to. The caller has a guard.
    #[inline(always)]
    pub(super) fn find(&self, search: &Search<'_>) -> Result<Option<u64>> {
        if F::PLAIN {
            return self.find_among_equal(search);
        }
        let m = self.medium();
        let end = self.descend(search, 1)?;
        let node = match end.node.level {
            0 => end.node,
            level => self.node_as_it_is(end.place.child, Some(level - 1))?,
        };
        // Which lines are needed is known too late: each would be waited for in turn.
        m.prefetch_bytes(node.offset, (size_of::<F::Node>() + size_of::<Copies>()) as u64);
        let version = self.version(&node)?;
        let position = node.less(m, search.prefix);
        let record = &node.records()[position];
        let (prefix, at) = (m.load(&record.prefix), m.load(&record.at));
        let copied = match node.copies(m) {
            Some(copies) if search.key.len() == WHOLE => copies.get(m, position),
            _ => None,
        };
        let is_here = search.prefix < m.load(&node.header().next_prefix);
        // Acquire: all words of the node have been loaded before.
        if m.load(&node.header().lock) == version.0 && is_here {
            if prefix != search.prefix {
                return Ok(None);
            }
            // It is not vacant: `VACANT` is not less than the next prefix. No other key of eight
            // bytes has the same prefix.
            if copied.is_some() {
                return Ok(copied);
            }
            // The key of a leaf is immutable.
            let leaf = LeafRef::at(m, at)?;
            if leaf.is_of(m, search.key) {
                return Ok(Some(leaf.word(m)));
            }
        }
        self.find_among_equal(search)
    }

    /// Returns the word of a key whose prefix alone does not tell where it is, or whose node
    /// another thread changes.
    #[inline(never)]
    fn find_among_equal(&self, search: &Search<'_>) -> Result<Option<u64>> {
        let (m, found) = (self.medium(), self.descend(search, 0)?.place.found);
        found.map(|leaf| Ok(LeafRef::at(m, leaf)?.word(m))).transpose()
    }

    /// Locks the node of a level into which a key belongs, beginning at one that is not after it.
    pub(super) fn lock<'m>(
        &'m self,
        mut node: NodeRef<'m, F>,
        search: &Search<'_>,
    ) -> Result<(Locked<'m, F>, Place)> {
        let m = self.medium();
        loop {
            let locked = Locked::acquire(&self.memory.region, node, &node.header().lock, false)?;
            let locked = locked.ok_or_else(|| {
                Error::damaged(node.offset, "a node of a tree says that it is not part of it")
            })?;
            match self.step(&node, search) {
                // A shift would store what is before the first record in its place: the end.
                Ok(Step::Here(_)) if m.load(&node.node.low().at) == 0 => {
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
