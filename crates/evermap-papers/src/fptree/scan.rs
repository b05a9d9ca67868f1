//! Reading pages of pairs in the order of their keys.

use std::cmp::Ordering;
use std::ops::Bound;

use evermap_index::node_lock::Seen;
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, Result};

use super::access::Node;
use super::key::Stored;
use super::{Form, FpTree};
use crate::search::Search;

/// A page ends with the leaf in which it has this many pairs.
pub(super) const PAGE: usize = 64;

impl<M: Medium, F: Form> FpTree<M, F> {
    /// Reads a page of some leaves. Returns their locks, or `None` if they have changed meanwhile.
    pub(super) fn try_ascending(
        &self,
        from: Bound<&[u8]>,
        most: usize,
        page: &mut Page,
    ) -> Result<Option<Seen<'_>>> {
        let m = self.medium();
        let search = match from {
            Bound::Unbounded => Search::at(&[]),
            Bound::Included(key) | Bound::Excluded(key) => Search::at(key),
        };
        let (mut node, version) = self.reach(&search)?;
        let mut seen = Seen::default();
        seen.add(&node.header().lock, version);
        page.clear();
        loop {
            if !self.gather(&node, (from, Direction::Ascending), page, &seen)? {
                return Ok(None);
            }
            let Some(next) = node.next(m).offset() else { return Ok(Some(seen)) };
            let next = self.next_node(&node, next)?;
            if page.pairs.len() >= most {
                page.continue_at(&next.low(m)?.to_vec(m));
                return Ok(Some(seen));
            }
            seen.add(&next.header().lock, self.version(&next)?);
            node = next;
        }
    }

    /// Reads a page of one leaf. Returns its lock, or `None` if it has changed meanwhile.
    pub(super) fn try_descending(
        &self,
        from: Bound<&[u8]>,
        page: &mut Page,
    ) -> Result<Option<Seen<'_>>> {
        let m = self.medium();
        let search = match from {
            Bound::Unbounded => Search::last(),
            Bound::Included(key) => Search::at(key),
            Bound::Excluded(key) => Search::before(key),
        };
        let (node, version) = self.reach(&search)?;
        let mut seen = Seen::default();
        seen.add(&node.header().lock, version);
        page.clear();
        if !self.gather(&node, (from, Direction::Descending), page, &seen)? {
            return Ok(None);
        }
        let low = node.low(m)?.to_vec(m);
        if !low.is_empty() {
            page.continue_at(&low);
        }
        Ok(Some(seen))
    }

    /// Adds the pairs of a leaf that are beyond a bound to a page. Returns `false` if the leaf has
    /// changed meanwhile.
    fn gather(
        &self,
        node: &Node<'_, F>,
        (from, direction): (Bound<&[u8]>, Direction),
        page: &mut Page,
        seen: &Seen<'_>,
    ) -> Result<bool> {
        let m = self.medium();
        let (search, equal) = match from {
            Bound::Unbounded => (None, true),
            Bound::Included(key) => (Some(Search::at(key)), true),
            Bound::Excluded(key) => (Some(Search::at(key)), false),
        };
        let is_beyond = |key: &Stored<'_>| {
            let order = search.as_ref().map(|search| key.compare(m, search));
            match (order, direction) {
                (None, _) => true,
                (Some(Ordering::Equal), _) => equal,
                (Some(order), Direction::Ascending) => order == Ordering::Greater,
                (Some(order), Direction::Descending) => order == Ordering::Less,
            }
        };
        let entries = match self.sorted(node, is_beyond) {
            Ok(entries) => entries,
            // A key that is being stored looks like a damaged one.
            Err(_) if !seen.is_unchanged(m) => return Ok(false),
            Err(error) => return Err(error),
        };
        page.pairs.reserve(entries.len());
        for (key, slot) in entries {
            let word = m.load(&node.entry(slot).word);
            page.pairs.push_with(word, |bytes| key.append(m, bytes));
        }
        Ok(true)
    }
}
