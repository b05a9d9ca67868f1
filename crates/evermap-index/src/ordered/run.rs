//! Packed lists of pairs.

use std::ops::{Bound, Range};

use evermap_pm::{Error, ErrorKind, Result};

use super::Direction;
use super::leaf::leaf_bytes;

/// A list of pairs of keys and words, packed: 16 bytes a pair in addition to the bytes of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    bytes: Vec<u8>,
    pairs: Vec<Pair>,
}

/// The end of a key and its word, side by side, so that random access waits for one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    /// The offset at which the key ends.
    end: usize,
    word: u64,
}

impl Run {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves space for at least `pairs` more pairs with keys of 16 bytes.
    pub fn reserve(&mut self, pairs: usize) {
        self.bytes.reserve(16 * pairs);
        self.pairs.reserve(pairs);
    }

    /// Appends a pair. Amortised O(bytes of the key).
    #[inline]
    pub fn push(&mut self, key: &[u8], word: u64) {
        self.push_with(word, |bytes| bytes.extend_from_slice(key));
    }

    /// Appends a pair whose key `append_key` writes to the end of the vector that it is passed.
    #[inline]
    pub fn push_with(&mut self, word: u64, append_key: impl FnOnce(&mut Vec<u8>)) {
        append_key(&mut self.bytes);
        self.pairs.push(Pair { end: self.bytes.len(), word });
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns `true` if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the key of the pair at index `at`.
    ///
    /// # Panics
    /// If `at` is not less than [`len`](Self::len).
    #[inline]
    pub fn key(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.pairs[at - 1].end };
        &self.bytes[start..self.pairs[at].end]
    }

    /// Returns the word of the pair at index `at`.
    ///
    /// # Panics
    /// If `at` is not less than [`len`](Self::len).
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        self.pairs[at].word
    }

    /// Returns the pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.len()).map(|at| (self.key(at), self.word(at)))
    }

    /// Removes all pairs and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pairs.clear();
    }

    /// Keeps the first `pairs` pairs.
    pub fn truncate(&mut self, pairs: usize) {
        self.pairs.truncate(pairs);
        self.bytes.truncate(self.pairs.last().map_or(0, |pair| pair.end));
    }

    /// Returns the number of bytes of memory that it has allocated.
    fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.pairs.capacity() * size_of::<Pair>()
    }

    /// Keeps the pairs at these ascending indices.
    fn keep(&mut self, kept: &[usize]) {
        let mut run = Run::new();
        kept.iter().for_each(|&at| run.push(self.key(at), self.word(at)));
        *self = run;
    }

    /// Returns the first index in `places` for whose key `before` is `false`. `before` must be
    /// `true` for a prefix of the range and `false` for the rest.
    pub(super) fn partition_point(
        &self,
        places: Range<usize>,
        mut before: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        let Range { start: mut low, end: mut high } = places;
        while low < high {
            let middle = low.midpoint(high);
            if before(self.key(middle)) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// The result of [`OrderedIndex::page`](super::OrderedIndex::page): some pairs, and where the next
/// page begins.
#[derive(Clone, Debug)]
pub struct Page {
    /// The pairs, in ascending order.
    pub pairs: Run,
    /// The key at which the next page begins: in ascending order the first that is still to be
    /// returned, in descending order the last one that is not.
    pub(super) edge: Vec<u8>,
    pub(super) more: bool,
    expected: Option<usize>,
    /// The number of pairs that were left out because they were not in order.
    misplaced: u64,
    /// Where something is that could not be read, and was passed over.
    unreadable: Option<u64>,
    /// Memory for a list of the places of the pairs, while a page is read. It means nothing between
    /// two pages, but need not be allocated for each.
    pub places: Vec<u64>,
    /// The bytes of the last leaf that was read: others probably have as many.
    pub leaf_bytes: u64,
}

impl Default for Page {
    fn default() -> Self {
        const KEY: usize = 24;
        Page {
            pairs: Run::new(),
            edge: Vec::new(),
            more: false,
            expected: None,
            misplaced: 0,
            unreadable: None,
            places: Vec::new(),
            leaf_bytes: leaf_bytes(KEY),
        }
    }
}

impl Page {
    /// Removes all pairs and the beginning of the next page.
    pub fn clear(&mut self) {
        self.pairs.clear();
        self.more = false;
        self.misplaced = 0;
        self.unreadable = None;
    }

    /// Makes the page one that was never used, but for the memory that it has allocated.
    pub(super) fn reset(&mut self) {
        self.clear();
        self.edge.clear();
        self.expected = None;
    }

    /// Returns the number of bytes of memory that it has allocated.
    pub(super) fn capacity_bytes(&self) -> usize {
        self.pairs.capacity_bytes()
            + self.edge.capacity()
            + size_of::<u64>() * self.places.capacity()
    }

    /// Leaves out pairs that are not beyond `from` or not in order, as few as possible, which are
    /// those of leaves that damage has led to, and then keeps the first `most` in this direction.
    pub(super) fn keep_ordered(&mut self, from: Bound<&[u8]>, direction: Direction, most: usize) {
        let pairs = &self.pairs;
        let is_within = |key: &[u8]| match (direction, from) {
            (_, Bound::Unbounded) => true,
            (Direction::Ascending, Bound::Included(from)) => key >= from,
            (Direction::Ascending, Bound::Excluded(from)) => key > from,
            (Direction::Descending, Bound::Included(from)) => key <= from,
            (Direction::Descending, Bound::Excluded(from)) => key < from,
        };
        let nearest = match direction {
            Direction::Ascending => 0,
            Direction::Descending => pairs.len().saturating_sub(1),
        };
        let in_order = (1..pairs.len()).all(|at| is_before(pairs.key(at - 1), pairs.key(at)))
            && (pairs.is_empty() || is_within(pairs.key(nearest)));
        match direction {
            _ if in_order && pairs.len() <= most => return,
            Direction::Ascending if in_order => return self.pairs.truncate(most),
            _ => {}
        }
        let mut kept = match in_order {
            true => (0..pairs.len()).collect(),
            false => {
                longest_ascending(pairs, (0..pairs.len()).filter(|&at| is_within(pairs.key(at))))
            }
        };
        self.misplaced += (pairs.len() - kept.len()) as u64;
        if kept.len() > most {
            match direction {
                Direction::Ascending => kept.truncate(most),
                Direction::Descending => drop(kept.drain(..kept.len() - most)),
            }
        }
        self.pairs.keep(&kept);
    }

    /// Returns the number of pairs that were left out because they were not in order: damage.
    pub fn misplaced(&self) -> u64 {
        self.misplaced
    }

    /// Records that something at this offset could not be read, and that the pairs below it are
    /// left out.
    pub(super) fn pass_over(&mut self, offset: u64) {
        self.unreadable.get_or_insert(offset);
    }

    /// Passes over what this error says to be damaged.
    ///
    /// # Errors
    /// Those of other kinds.
    #[cold]
    pub(super) fn pass_over_damage(&mut self, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Damaged { offset, .. } => {
                self.pass_over(*offset);
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Returns the offset of what could not be read and was passed over, if there was anything.
    pub fn unreadable(&self) -> Option<u64> {
        self.unreadable
    }

    /// Records that all other pairs are beyond `edge`: in ascending order, those with keys from
    /// `edge` on; in descending order, those with keys below `edge`.
    pub fn continue_at(&mut self, edge: &[u8]) {
        self.edge.clear();
        self.edge.extend_from_slice(edge);
        self.more = true;
    }

    /// Records that all other pairs are beyond those in the page. If there are none, the next page
    /// would be the same, beginning at `from`, which a [`Cursor`](super::Cursor) reports.
    pub fn continue_beyond_pairs(&mut self, from: Bound<&[u8]>, direction: Direction) {
        let (pairs, edge) = (&self.pairs, &mut self.edge);
        edge.clear();
        match direction {
            _ if pairs.is_empty() => match from {
                Bound::Included(from) | Bound::Excluded(from) => edge.extend_from_slice(from),
                Bound::Unbounded => {}
            },
            Direction::Ascending => {
                edge.extend_from_slice(pairs.key(pairs.len() - 1));
                // The least key that is greater.
                edge.push(0);
            }
            Direction::Descending => edge.extend_from_slice(pairs.key(0)),
        }
        self.more = true;
    }

    /// Records how many pairs the caller has use for, as far as it knows.
    pub fn expect(&mut self, pairs: usize) {
        self.expected = Some(pairs);
    }

    /// Returns the number of pairs, at least 1 and at most `usual`, that a page should have for
    /// what the caller [expects](Self::expect).
    pub fn most(&self, usual: usize) -> usize {
        self.expected.map_or(usual, |pairs| pairs.clamp(1, usual))
    }

    /// Returns the beginning of the next page, or `None` if this page is the last.
    pub fn next(&self, direction: Direction) -> Option<std::ops::Bound<&[u8]>> {
        self.more.then(|| direction.next_bound(&self.edge[..]))
    }
}

/// Returns `true` if a key is less than another one.
#[inline]
fn is_before(key: &[u8], other: &[u8]) -> bool {
    match (key.try_into(), other.try_into()) {
        // Without a call.
        (Ok(key), Ok(other)) => u64::from_be_bytes(key) < u64::from_be_bytes(other),
        _ => key < other,
    }
}

/// Returns the longest list of these indices at which keys ascend; of several, one that ends with
/// the smallest key. O(n log n).
fn longest_ascending(pairs: &Run, indices: impl Iterator<Item = usize>) -> Vec<usize> {
    // The index at which the best list of each length ends, and the one before each index.
    let (mut ends, mut before) = (Vec::<usize>::new(), vec![None; pairs.len()]);
    for at in indices {
        let length = ends.partition_point(|&end| pairs.key(end) < pairs.key(at));
        before[at] = length.checked_sub(1).map(|shorter| ends[shorter]);
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut list: Vec<_> = std::iter::successors(ends.last().copied(), |&at| before[at]).collect();
    list.reverse();
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_returned_as_they_were_pushed() {
        let mut run = Run::new();
        let pairs: [(&[u8], u64); 4] = [(b"", 1), (b"a", 2), (b"a\0", 3), (b"bcd", u64::MAX)];
        pairs.iter().for_each(|&(key, word)| run.push(key, word));
        assert!(run.iter().eq(pairs));
        assert_eq!(run.partition_point(0..4, |key| key < b"a\0".as_slice()), 2);
        assert_eq!(run.partition_point(0..4, |_| true), 4);
        run.clear();
        assert!(run.is_empty() && run.iter().next().is_none());
    }

    #[test]
    fn pairs_that_are_not_in_order_are_left_out() {
        let page = |keys: &str, from: Bound<&[u8]>, direction, most| {
            let mut page = Page::default();
            keys.bytes().for_each(|key| page.pairs.push(&[key], 0));
            page.keep_ordered(from, direction, most);
            let kept = page.pairs.iter().map(|(key, _)| char::from(key[0])).collect::<String>();
            (kept, page.misplaced())
        };
        let (up, down, any) = (Direction::Ascending, Direction::Descending, Bound::Unbounded);
        for (keys, kept, misplaced) in [
            ("abcd", "abcd", 0),
            ("azbcd", "abcd", 1),
            ("bcad", "bcd", 1),
            ("abcz", "abcz", 0),
            // The last one shows that the one before is too large.
            ("abzd", "abd", 1),
            ("za", "a", 1),
            ("aab", "ab", 1),
        ] {
            assert_eq!(page(keys, any, up, 9), (kept.to_owned(), misplaced), "{keys}");
        }
        assert_eq!(page("abzd", any, up, 2), ("ab".into(), 1));
        assert_eq!(page("abcd", any, up, 3), ("abc".into(), 0));
        assert_eq!(page("abcd", any, down, 3), ("bcd".into(), 0));
        assert_eq!(page("bcd", Bound::Excluded(b"b"), up, 9), ("cd".into(), 1));
        assert_eq!(page("bcd", Bound::Included(b"c"), down, 9), ("bc".into(), 1));
        assert_eq!(page("a", Bound::Excluded(b"b"), up, 9), ("".into(), 1));
    }
}
