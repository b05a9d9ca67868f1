//! Reading ascending pages: the entries of base nodes and the deltas in front of these, merged.
//!
//! A page goes on from node to node until it has what the caller has use for. Only what it shows is
//! read: the copies behind its beginning, the records of entries without copies, all of which the
//! memory is asked for together, and the few deltas.

use std::cmp::Ordering;
use std::ops::{Bound, Range};

use evermap_index::ordered::leaf::{LeafRef, LeafState, prefetch_of};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, PmU64, Result};

use super::BwTree;
use super::access::{Node, Search};
use super::copies::{Bits, CopiesRef, has};
use super::layout::{LeafEntry, Link, RECORD_HEADER};

/// The most deltas of a node that are merged here. Nodes have more only while there is no space to
/// consolidate them.
const DELTAS_MAX: usize = 24;

/// The most nodes of a page.
const NODES_MAX: usize = 8;

/// The deltas of a node from a bound on, in the order of their keys, which differ.
struct Deltas {
    /// The head of each key, as the base node has it, and the offset of the record.
    list: [(u64, u64); DELTAS_MAX],
    count: usize,
}

/// What a page has used of a node.
#[derive(Clone, Copy)]
struct Used<'m> {
    cell: &'m PmU64,
    /// The word of the node.
    word: Link,
    copies: Option<CopiesRef<'m>>,
    /// The copies that could be used when the page came to the node.
    usable: Bits,
    /// Those that were.
    used: Bits,
}

/// Where a page ended in a node.
enum Ended {
    /// There are more pairs in the node.
    Within,
    /// At the end of the node.
    Behind,
}

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Reads a page of up to `most` pairs in ascending order. Returns whether they were there at
    /// one moment, or `None` if a merge or many deltas are in the way, which are not expected here.
    pub(super) fn ascend(
        &self,
        from: Bound<&[u8]>,
        most: usize,
        page: &mut Page,
    ) -> Result<Option<bool>> {
        let mut states = std::mem::take(&mut page.places);
        states.clear();
        page.clear();
        page.pairs.reserve(most);
        let read = self.ascend_with(from, most, page, &mut states);
        page.places = states;
        read
    }

    /// Does so. `states` gets the offset of each record that was read, and its state.
    fn ascend_with(
        &self,
        from: Bound<&[u8]>,
        most: usize,
        page: &mut Page,
        states: &mut Vec<u64>,
    ) -> Result<Option<bool>> {
        let key = match from {
            Bound::Unbounded => &[][..],
            Bound::Included(key) | Bound::Excluded(key) => key,
        };
        let mut end = self.arrive(&Search::at(key), 0)?;
        let is_worth = |node: &Node<'_>, left: usize| {
            left.min(node.base.len()) >= Self::WORTH && self.lacks_copies(&node.base)
        };
        if is_worth(&end.node, most) && !end.node.base.has_copies && self.enlarge(&end.node) {
            // The node above gets to know where the new base node is.
            end = self.arrive(&Search::to_change(key), 0)?;
        }
        let mut node = end.node;
        if end.frozen.is_some() || !is_simple(&node) {
            return Ok(None);
        }
        let mut nodes = [None; NODES_MAX];
        let mut bound = from;
        for (place, slot) in nodes.iter_mut().enumerate() {
            let left = most - page.pairs.len();
            let copies = match is_worth(&node, left) && node.base.has_copies {
                true => self.make_copies(&node.base),
                false => self.copies_of(&node.base),
            };
            let usable = copies.map_or(Bits::default(), |copies| copies.bits(self.medium()));
            let (cell, word, used) = (node.cell, node.word, Bits::default());
            let here = slot.insert(Used { cell, word, copies, usable, used });
            let start = self.start(&node, here, bound)?;
            let deltas = self.ask_for(&node, here, start..start + left, page.leaf_bytes)?;
            // The next node is on its way while this one is copied.
            let is_short = node.base.len() - start + deltas.count < most - page.pairs.len();
            let next = match node.base.sibling != 0 && is_short && place + 1 < NODES_MAX {
                // One that is worth to be enlarged begins another page.
                true => Some(self.next_node(&node)?).filter(is_simple).filter(|next| {
                    next.base.has_copies || !is_worth(next, left - (node.base.len() - start))
                }),
                false => None,
            };
            let deltas = self.sorted(&node, bound, deltas)?;
            let ended = self.merge_entries(&node, here, (start, &deltas), most, page, states)?;
            match (ended, next) {
                (Ended::Within, _) => page.continue_beyond_pairs(from, Direction::Ascending),
                (Ended::Behind, Some(next)) => {
                    (node, bound) = (next, Bound::Unbounded);
                    continue;
                }
                (Ended::Behind, None) if node.base.sibling != 0 => {
                    page.continue_at(&node.base.high(self.medium()).unwrap_or_default());
                }
                (Ended::Behind, None) => {}
            }
            break;
        }
        Ok(Some(self.are_unchanged(&nodes, states)?))
    }

    /// Returns the number of entries of a base node that are before a bound.
    #[inline]
    fn start(&self, node: &Node<'_>, here: &Used<'_>, bound: Bound<&[u8]>) -> Result<usize> {
        let (m, base) = (self.medium(), &node.base);
        let (key, is_excluded) = match bound {
            Bound::Unbounded => return Ok(0),
            Bound::Included(key) => (key, false),
            Bound::Excluded(key) => (key, true),
        };
        // Few keys of a node have the same head.
        let equal = base.with_head(m, base.head(key, 0));
        let (mut start, end) = (equal.start, equal.end);
        while start < end {
            let order = match here.copy(m, start) {
                Some((copied, _)) => copied.to_be_bytes().as_slice().cmp(key),
                None => self.compare(&base.entry(m, start), key)?,
            };
            if order.is_gt() || order.is_eq() && !is_excluded {
                break;
            }
            start += 1;
        }
        Ok(start)
    }

    /// Asks the memory for all deltas of a node, and for the copies or the records of some entries,
    /// of which the last ones need not exist. Returns the deltas, the newest first.
    #[inline]
    fn ask_for(
        &self,
        node: &Node<'_>,
        here: &Used<'_>,
        positions: Range<usize>,
        bytes: u64,
    ) -> Result<Deltas> {
        let m = self.medium();
        let mut deltas = Deltas { list: [(0, 0); DELTAS_MAX], count: 0 };
        for insert in self.inserts(node).take(DELTAS_MAX) {
            deltas.list[deltas.count].1 = insert?.0;
            deltas.count += 1;
        }
        let deltas_at = deltas.list[..deltas.count].iter().map(|&(_, at)| at);
        let positions = positions.start..positions.end.min(node.base.len());
        if let Some(copies) = here.copies {
            copies.prefetch(m, positions.clone());
        }
        let without = positions.filter(|&position| !has(&here.usable, position));
        let entries_at = without.map(|position| node.base.entry(m, position).at);
        deltas_at
            .chain(entries_at)
            .for_each(|at| prefetch_of(m, at.wrapping_add(RECORD_HEADER), bytes));
        Ok(deltas)
    }

    /// Puts deltas into the order of their keys, without those before a bound, those that belong to
    /// the next node, which is being merged into this one, and those of whose keys there are newer
    /// ones.
    #[inline]
    fn sorted(&self, node: &Node<'_>, bound: Bound<&[u8]>, found: Deltas) -> Result<Deltas> {
        let (m, skip) = (self.medium(), node.base.skip);
        let mut deltas = Deltas { list: [(0, 0); DELTAS_MAX], count: 0 };
        for &(_, at) in &found.list[..found.count] {
            let leaf = self.record(at)?;
            let is_wanted = match bound {
                Bound::Unbounded => true,
                Bound::Included(key) => leaf.compare(m, key).is_ge(),
                Bound::Excluded(key) => leaf.compare(m, key).is_gt(),
            };
            if !is_wanted || self.is_beyond_end(node, &leaf) {
                continue;
            }
            let head = LeafEntry::head_of(|word| leaf.word_of_key(m, word), skip);
            let (mut place, mut is_newest) = (deltas.count, true);
            while let Some(before) = place.checked_sub(1) {
                let (other_head, other) = deltas.list[before];
                let order = match other_head.cmp(&head) {
                    Ordering::Equal => self.record(other)?.compare_leaf(m, &leaf),
                    order => order,
                };
                is_newest &= order != Ordering::Equal;
                if order != Ordering::Greater {
                    break;
                }
                place = before;
            }
            if is_newest {
                deltas.list[place..=deltas.count].rotate_right(1);
                deltas.list[place] = (head, at);
                deltas.count += 1;
            }
        }
        Ok(deltas)
    }

    /// Returns `true` if the key of a record is not before the end of a node.
    #[inline]
    fn is_beyond_end(&self, node: &Node<'_>, leaf: &LeafRef<'_>) -> bool {
        let m = self.medium();
        match leaf.prefix(m).cmp(&m.load_relaxed(&node.base.header.high_prefix)) {
            _ if node.base.sibling == 0 => false,
            Ordering::Equal => node.base.high(m).is_some_and(|high| leaf.compare(m, &high).is_ge()),
            order => order.is_gt(),
        }
    }

    /// Appends the pairs of a node to a page, from an entry and the first delta on, until the page
    /// has `most`.
    #[inline]
    fn merge_entries(
        &self,
        node: &Node<'_>,
        here: &mut Used<'_>,
        (start, deltas): (usize, &Deltas),
        most: usize,
        page: &mut Page,
        states: &mut Vec<u64>,
    ) -> Result<Ended> {
        let m = self.medium();
        let (mut position, mut deltas) = (start, deltas.list[..deltas.count].iter().peekable());
        loop {
            let entry = (position < node.base.len()).then(|| node.base.entry(m, position));
            let order = match (&entry, deltas.peek()) {
                (None, None) => return Ok(Ended::Behind),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(entry), Some(&&(head, at))) => match entry.head.cmp(&head) {
                    Ordering::Equal => self.record(entry.at)?.compare_leaf(m, &self.record(at)?),
                    order => order,
                },
            };
            if page.pairs.len() >= most {
                return Ok(Ended::Within);
            }
            if order.is_lt()
                && let Some((key, word)) = here.copy(m, position)
            {
                here.used[position / 64] |= 1 << (position % 64);
                page.pairs.push(&key.to_be_bytes(), word);
                position += 1;
                continue;
            }
            // Of two with the same key, the delta is newer.
            position += usize::from(order.is_le());
            let delta = if order.is_ge() { deltas.next() } else { None };
            let at = delta.map(|&(_, at)| at).or(entry.map(|entry| entry.at)).unwrap_or_default();
            let leaf = self.record(at)?;
            let (state, word) = leaf.read(m);
            states.extend([leaf.offset, state.0]);
            if !state.is_removed() {
                leaf.append_to(m, word, &mut page.pairs);
                page.leaf_bytes = leaf.bytes();
            }
        }
    }

    /// Returns `true` if neither the nodes nor the records have changed since they were read: then
    /// all of it was there when the last of them was.
    fn are_unchanged(&self, nodes: &[Option<Used<'_>>], states: &[u64]) -> Result<bool> {
        let m = self.medium();
        let is_same = |node: &Used<'_>| {
            let now = node.copies.map_or(Bits::default(), |copies| copies.bits(m));
            m.load(node.cell) & !Link::MARK == node.word.0
                && now.iter().zip(node.used).all(|(now, used)| now & used == used)
        };
        if !nodes.iter().flatten().all(is_same) {
            return Ok(false);
        }
        for pair in states.chunks_exact(2) {
            let leaf = LeafRef::at(m, pair[0])?;
            if leaf.state(m) != LeafState(pair[1]) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Used<'_> {
    /// Returns the copy of an entry if it may be used.
    #[inline]
    fn copy<M: Medium>(&self, m: &M, position: usize) -> Option<(u64, u64)> {
        let copies = self.copies.filter(|_| has(&self.usable, position))?;
        Some(copies.pair(m, position))
    }
}

/// Returns `true` if a node is as nodes nearly always are: no merge concerns it, and it has not
/// more deltas than usual.
fn is_simple(node: &Node<'_>) -> bool {
    !node.is_frozen() && node.word.depth() as usize <= DELTAS_MAX
}
