//! Reading pages of pairs in the order of their keys.

use std::ops::Bound;

use evermap_index::node_lock::Seen;
use evermap_index::ordered::Page;
use evermap_index::ordered::leaf::{self, LeafRef};
use evermap_pm::{Error, Medium, Result};

use super::access::{NodeRef, Search};
use super::{FastFair, Form};

/// A page ends with the node in which it has this many pairs.
pub(super) const PAGE: usize = 64;

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
        let mut node = self.descend(&search, 0)?.node;
        let mut leaves = Vec::with_capacity(most + NodeRef::<F>::RECORDS);
        seen.add(&node.header().lock, self.version(&node)?);
        let place = self.place(&node, &search)?;
        let mut start = place.position + usize::from(excluded && place.found.is_some());
        let next = loop {
            leaves.extend(self.leaves(&node, start..NodeRef::<F>::RECORDS));
            let sibling = m.load(&node.header().sibling);
            if sibling == 0 {
                break None;
            }
            let next = self.next_node(&node, sibling)?;
            if leaves.len() >= most {
                break self.low(&next)?;
            }
            (node, start) = (next, 0);
            seen.add(&node.header().lock, self.version(&node)?);
        };
        self.fill(page, &leaves)?;
        if let Some(low) = next {
            // It was split before its version was read: the key is further to the right.
            if low.as_slice() <= key && !matches!(from, Bound::Unbounded) {
                return Ok(false);
            }
            page.continue_at(&low);
        }
        Ok(true)
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
        let leaves: Vec<_> = self.leaves(&node, 0..end).collect();
        let low = self.low(&node)?;
        self.fill(page, &leaves)?;
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

    /// Returns the offsets of the leaves of some records, and asks the memory for them.
    fn leaves<'m>(
        &'m self,
        node: &NodeRef<'m, F>,
        positions: std::ops::Range<usize>,
    ) -> impl Iterator<Item = u64> + 'm {
        let m = self.medium();
        let records = &node.records()[positions];
        let leaves = records.iter().map(|record| m.load(&record.at)).take_while(|&at| at != 0);
        leaves.inspect(|&at| leaf::prefetch(m, at))
    }

    /// Copies the pairs of leaves to a page.
    fn fill(&self, page: &mut Page, leaves: &[u64]) -> Result<()> {
        let m = self.medium();
        page.clear();
        for &leaf in leaves {
            let leaf = LeafRef::at(m, leaf)?;
            page.pairs.push_with(leaf.word(m), |bytes| leaf.append_key(m, bytes));
        }
        Ok(())
    }
}
