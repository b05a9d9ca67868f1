//! Reading pages of pairs in the order of their keys.

use std::ops::{Bound, Range};

use evermap_index::node_lock::Seen;
use evermap_index::ordered::leaf::{self, LeafRef};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Error, Medium, Result};

use super::access::{NodeRef, Search, Step};
use super::copies::{Copies, WHOLE};
use super::{FastFair, Form};

/// The usual number of pairs in an ascending page. A descending one is a node.
pub(super) const PAGE: usize = 128;

/// The number of leaf nodes that are prefetched before a page comes to them.
const AHEAD: usize = 2;

/// Prefetches the leaf nodes to which a page will come, as the nodes above tell where they are.
struct Scout<'m, M: Medium, F: Form> {
    tree: &'m FastFair<M, F>,
    /// A node above the leaf nodes, and the position of the record of the next one. What it says
    /// is only used to prefetch, so it need not be of one moment, nor true.
    above: Option<(NodeRef<'m, F>, usize)>,
    /// The number of leaf nodes that the page may need besides those that were prefetched.
    wanted: usize,
}

impl<M: Medium, F: Form> Scout<'_, M, F> {
    /// Prefetches the next leaf node.
    #[inline]
    fn go_on(&mut self) {
        let m = self.tree.medium();
        let Some((node, position)) = &mut self.above else { return };
        let next = node.records().get(*position).map_or(0, |record| m.load_relaxed(&record.at));
        if self.wanted == 0 || next == 0 {
            // One that is below the next node is not worth another line.
            self.above = None;
            return;
        }
        prefetch_node::<M, F>(m, next);
        (*position, self.wanted) = (*position + 1, self.wanted - 1);
    }
}

/// Prefetches the part of a leaf node that is usually in use.
#[inline]
fn prefetch_node<M: Medium, F: Form>(m: &M, offset: u64) {
    let (node, copies) = (size_of::<F::Node>() as u64, size_of::<Copies>() as u64);
    if !F::PLAIN {
        m.prefetch_bytes(offset, node * 3 / 4);
        m.prefetch_bytes(offset.wrapping_add(node), copies * 3 / 4);
    }
}

impl<M: Medium, F: Form> FastFair<M, F> {
    /// Reads a page of some nodes. Returns their locks, or `None` if they have changed meanwhile.
    pub(super) fn try_ascending(
        &self,
        from: Bound<&[u8]>,
        most: usize,
        page: &mut Page,
    ) -> Result<Option<Seen<'_>>> {
        let mut seen = Seen::default();
        let read = self.ascend(from, most, page, &mut seen);
        self.if_unchanged(read, seen)
    }

    /// Returns the locks of the nodes that were read, or `None` if that has not led to a page. An
    /// error counts only if they are as they were: a node that is being changed leads anywhere.
    pub(super) fn if_unchanged<'m>(
        &self,
        read: Result<bool>,
        seen: Seen<'m>,
    ) -> Result<Option<Seen<'m>>> {
        match read {
            Ok(is_read) => Ok(is_read.then_some(seen)),
            Err(_) if !seen.is_unchanged(self.medium()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a page, and notes the locks of its nodes. Returns `false` if they have changed.
    fn ascend<'m>(
        &'m self,
        from: Bound<&[u8]>,
        most: usize,
        page: &mut Page,
        seen: &mut Seen<'m>,
    ) -> Result<bool> {
        let m = self.medium();
        let (key, excluded) = match from {
            Bound::Unbounded => (&[][..], false),
            Bound::Included(key) => (key, false),
            Bound::Excluded(key) => (key, true),
        };
        let search = Search::new(key);
        let (mut node, mut scout) = self.first_leaf_node(&search, most)?;
        page.clear();
        page.pairs.reserve(most);
        let version = self.version(&node)?;
        let (position, found) = match self.copied_position(&node, &search) {
            Some(position) => {
                seen.add(&node.header().lock, version);
                (position, true)
            }
            None => {
                node = self.descend_from(node, &search, 0)?.node;
                seen.add(&node.header().lock, self.version(&node)?);
                match self.step(&node, &search)? {
                    Step::Here(place) => (place.position, place.found.is_some()),
                    // It was split before its version was read.
                    Step::Right(_) => return Ok(false),
                }
            }
        };
        let mut start = position + usize::from(excluded && found);
        loop {
            let is_full = self.copy(&node, start..NodeRef::<F>::RECORDS, most, page)?;
            let sibling = m.load(&node.header().sibling);
            if is_full {
                page.continue_beyond_pairs(from, Direction::Ascending);
                return Ok(true);
            }
            if sibling == 0 {
                return Ok(true);
            }
            scout.go_on();
            let next = self.next_node(&node, sibling)?;
            if page.pairs.len() >= most {
                page.continue_at(&self.low(&next)?.unwrap_or_default());
                return Ok(true);
            }
            (node, start) = (next, 0);
            seen.add(&node.header().lock, self.version(&node)?);
        }
    }

    /// Returns the leaf node to which a key belongs, or one before it, and asks the memory for
    /// those after it that a page of `most` pairs may need.
    #[inline]
    fn first_leaf_node(
        &self,
        search: &Search<'_>,
        most: usize,
    ) -> Result<(NodeRef<'_, F>, Scout<'_, M, F>)> {
        let end = self.descend(search, 1)?;
        let mut scout = Scout { tree: self, above: None, wanted: most.div_ceil(F::FULL / 2) };
        if end.node.level == 0 {
            return Ok((end.node, scout));
        }
        prefetch_node::<M, F>(self.medium(), end.place.child);
        scout.above = Some((end.node, end.place.position));
        (0..AHEAD).for_each(|_| scout.go_on());
        Ok((self.node_as_it_is(end.place.child, Some(0))?, scout))
    }

    /// Returns the position of the record of a key of eight bytes, if the node has a copy of its
    /// word: then the record is that of this key, and its leaf need not be asked.
    #[inline]
    fn copied_position(&self, node: &NodeRef<'_, F>, search: &Search<'_>) -> Option<usize> {
        let m = self.medium();
        let copies = node.copies(m).filter(|_| search.key.len() == WHOLE)?;
        let position = node.less(m, search.prefix);
        let is_here = m.load(&node.records()[position].prefix) == search.prefix
            && search.prefix < m.load(&node.header().next_prefix);
        (is_here && copies.copied(m) >> position & 1 == 1).then_some(position)
    }

    /// Reads a page of one node. Returns its lock, or `None` if it has changed meanwhile.
    pub(super) fn try_descending(
        &self,
        from: Bound<&[u8]>,
        page: &mut Page,
    ) -> Result<Option<Seen<'_>>> {
        let mut seen = Seen::default();
        let read = self.descend_page(from, page, &mut seen);
        self.if_unchanged(read, seen)
    }

    /// The same as [`ascend`](Self::ascend), of one node in descending order.
    fn descend_page<'m>(
        &'m self,
        from: Bound<&[u8]>,
        page: &mut Page,
        seen: &mut Seen<'m>,
    ) -> Result<bool> {
        let (node, search) = match from {
            Bound::Unbounded => (self.last_node()?, None),
            Bound::Included(key) => {
                let search = Search::new(key);
                (self.descend(&search, 0)?.node, Some(search))
            }
            Bound::Excluded(key) => {
                let search = Search::before(key);
                (self.descend(&search, 0)?.node, Some(search))
            }
        };
        let m = self.medium();
        seen.add(&node.header().lock, self.version(&node)?);
        let end = match search {
            None => NodeRef::<F>::RECORDS,
            Some(search) => {
                let place = self.place(&node, &search)?;
                place.position + usize::from(search.after_equal && place.found.is_some())
            }
        };
        let sibling = m.load(&node.header().sibling);
        if sibling != 0 {
            // It was split before its version was read: what comes first is further to the right.
            let next = self.node_as_it_is(sibling, Some(0))?;
            let admits = |search: Search<'_>| {
                Ok::<_, Error>(search.admits(self.compare_low(&next, &search)?))
            };
            if search.map_or(Ok(true), admits)? {
                return Ok(false);
            }
        }
        let low = self.low(&node)?;
        page.clear();
        self.copy(&node, 0..end, usize::MAX, page)?;
        if let Some(low) = low {
            page.continue_at(&low);
        }
        Ok(true)
    }

    /// Returns the last node of the lowest level.
    fn last_node(&self) -> Result<NodeRef<'_, F>> {
        let m = self.medium();
        let mut node = self.root_node()?;
        loop {
            let (sibling, child) = self.read(&node, || {
                Ok((m.load(&node.header().sibling), node.left_of(m, node.count(m))))
            })?;
            node = match node.level {
                _ if sibling != 0 => self.next_node(&node, sibling)?,
                0 => return Ok(node),
                level => self.node(child, Some(level - 1))?,
            };
        }
    }

    /// Appends the pairs of some records to a page, until that has `most`. Returns whether there
    /// were more.
    #[inline]
    fn copy(
        &self,
        node: &NodeRef<'_, F>,
        positions: Range<usize>,
        most: usize,
        page: &mut Page,
    ) -> Result<bool> {
        let (m, copies) = (self.medium(), node.copies(self.medium()));
        let copied = copies.map_or(0, |copies| copies.copied(m));
        let records = &node.records()[positions.clone()];
        let missing = !copied >> positions.start;
        if missing & ((1 << records.len()) - 1) != 0 {
            // The others are in the node.
            let of_leaves = (0..).zip(records).filter(|(at, _)| missing >> at & 1 == 1);
            let leaves = of_leaves.map(|(_, record)| m.load(&record.at));
            leaves.take_while(|&at| at != 0).for_each(|leaf| leaf::prefetch(m, leaf));
        }
        for (position, record) in positions.zip(records) {
            let at = m.load(&record.at);
            if at == 0 {
                break;
            }
            if page.pairs.len() >= most {
                return Ok(true);
            }
            match copies.and_then(|copies| copies.get_of(m, copied, position)) {
                Some(word) => page.pairs.push(&m.load(&record.prefix).to_be_bytes(), word),
                None => {
                    let leaf = LeafRef::at(m, at)?;
                    page.pairs.push_with(leaf.word(m), |bytes| leaf.append_key(m, bytes));
                }
            }
        }
        Ok(false)
    }
}
