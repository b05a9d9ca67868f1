//! Reading pages of pairs in the order of their keys.

use std::ops::Bound;

use evermap_index::ordered::leaf::{self, LeafRef, LeafState};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::{Medium, Result};

use super::BwTree;
use super::access::{End, Search};
use super::layout::Link;
use super::node::{Bounds, Entry};

/// A record, and what it said when it was read.
type Read<'m> = (LeafRef<'m>, LeafState, u64);

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Reads a page of up to `most` pairs of one node. Returns `false` if they changed meanwhile.
    pub(super) fn read_page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        page: &mut Page,
    ) -> Result<bool> {
        if direction == Direction::Ascending
            && let Some(is_unchanged) = self.ascend(from, most, page)?
        {
            return Ok(is_unchanged);
        }
        let m = self.medium();
        let search = match (direction, from) {
            (Direction::Ascending, Bound::Unbounded) => Search::at(&[]),
            (Direction::Descending, Bound::Unbounded) => Search::last(),
            (Direction::Descending, Bound::Excluded(key)) => Search::before(key),
            (_, Bound::Included(key) | Bound::Excluded(key)) => Search::at(key),
        };
        let end = self.arrive(&search, 0)?;
        let bounds = end.target().base.bounds(m);
        let entries = self.gather([&end.target().base], None, end.parts(), &bounds)?.entries;
        let mut range = 0..entries.len();
        let bound = || self.before_bound(&entries, from, direction, &bounds);
        let edge = match direction {
            Direction::Ascending => {
                range.start = bound()?;
                let left = range.clone().nth(most);
                range.end = left.unwrap_or(range.end);
                let high = (bounds.sibling != 0).then_some(bounds.high);
                left.map(|first| self.key_of(&entries[first])).transpose()?.or(high)
            }
            Direction::Descending => {
                range.end = bound()?;
                let left = range.len().checked_sub(most).filter(|&left| left > 0);
                range.start += left.unwrap_or(0);
                let low = Some(bounds.low).filter(|low| !low.is_empty());
                left.map(|_| self.key_of(&entries[range.start])).transpose()?.or(low)
            }
        };
        let records = self.read_all(entries.get(range).unwrap_or_default())?;
        if !self.is_unchanged(&end, &records) {
            return Ok(false);
        }
        page.clear();
        for (leaf, _, word) in records.iter().filter(|(_, state, _)| !state.is_removed()) {
            page.pairs.push_with(*word, |bytes| leaf.append_key(m, bytes));
        }
        if let Some(edge) = edge {
            page.continue_at(&edge);
        }
        Ok(true)
    }

    /// Returns the number of entries that are before a bound: a scan in this direction begins
    /// there.
    fn before_bound(
        &self,
        entries: &[Entry],
        from: Bound<&[u8]>,
        direction: Direction,
        bounds: &Bounds,
    ) -> Result<usize> {
        let (key, with_key) = match (from, direction) {
            (Bound::Unbounded, Direction::Ascending) => return Ok(0),
            (Bound::Unbounded, Direction::Descending) => return Ok(entries.len()),
            (Bound::Included(key), Direction::Ascending)
            | (Bound::Excluded(key), Direction::Descending) => (key, false),
            (Bound::Excluded(key), Direction::Ascending)
            | (Bound::Included(key), Direction::Descending) => (key, true),
        };
        let (position, is_present) = self.position(entries, bounds.head(key), key)?;
        Ok(position + usize::from(with_key && is_present))
    }

    /// Reads records.
    fn read_all(&self, entries: &[Entry]) -> Result<Vec<Read<'_>>> {
        let m = self.medium();
        entries.iter().for_each(|entry| leaf::prefetch(m, entry.at));
        let read = |entry: &Entry| {
            let leaf = self.record(entry.at)?;
            let (state, word) = leaf.read(m);
            Ok((leaf, state, word))
        };
        entries.iter().map(read).collect()
    }

    /// Returns `true` if what was read of a node was there at one moment: then nothing has changed
    /// since.
    fn is_unchanged(&self, end: &End<'_>, records: &[Read<'_>]) -> bool {
        let m = self.medium();
        let word = m.load(end.node.cell) & !Link::MARK;
        word == end.node.word.0 && records.iter().all(|(leaf, state, _)| leaf.state(m) == *state)
    }
}
