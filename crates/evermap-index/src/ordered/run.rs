//! Pairs packed one behind the other.

use std::ops::Range;

use super::Direction;

/// Pairs of keys and words, packed: 16 bytes a pair beside the bytes of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    bytes: Vec<u8>,
    pairs: Vec<Pair>,
}

/// What belongs to a key, side by side: whoever goes through pairs out of their order has one line to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    /// Where the key ends.
    end: usize,
    word: u64,
}

impl Run {
    /// Without pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for so many pairs more, with keys of 16 bytes.
    pub fn reserve(&mut self, pairs: usize) {
        self.bytes.reserve(16 * pairs);
        self.pairs.reserve(pairs);
    }

    /// Adds a pair at the end. Amortised O(bytes of the key).
    pub fn push(&mut self, key: &[u8], word: u64) {
        self.push_with(word, |bytes| bytes.extend_from_slice(key));
    }

    /// Adds a pair whose key `spell` appends to what it is given.
    #[inline]
    pub fn push_with(&mut self, word: u64, spell: impl FnOnce(&mut Vec<u8>)) {
        spell(&mut self.bytes);
        self.pairs.push(Pair { end: self.bytes.len(), word });
    }

    /// Pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The key at a place.
    ///
    /// # Panics
    /// If there are not so many pairs.
    #[inline]
    pub fn key(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.pairs[at - 1].end };
        &self.bytes[start..self.pairs[at].end]
    }

    /// The word at a place.
    ///
    /// # Panics
    /// If there are not so many pairs.
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        self.pairs[at].word
    }

    /// The pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.len()).map(|at| (self.key(at), self.word(at)))
    }

    /// Forgets the pairs and keeps the room.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pairs.clear();
    }

    /// The first of some places whose key is not `before`, which must hold for a first part of them.
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

/// What [`OrderedIndex::page`](super::OrderedIndex::page) fills: some pairs, and where to go on.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The pairs, in ascending order.
    pub pairs: Run,
    /// The key to go on at: the first not to be shown any more in descending order, the first still to be shown in
    /// ascending order.
    pub(super) edge: Vec<u8>,
    pub(super) more: bool,
}

impl Page {
    /// Without pairs, and nothing to go on with.
    pub fn clear(&mut self) {
        self.pairs.clear();
        self.more = false;
    }

    /// Notes that every pair not shown is on the far side of `edge`: there, keys from `edge` on in ascending order,
    /// keys below `edge` in descending order.
    pub fn go_on_at(&mut self, edge: &[u8]) {
        self.edge.clear();
        self.edge.extend_from_slice(edge);
        self.more = true;
    }

    /// Where the next page begins, if there is one.
    pub fn next(&self, direction: Direction) -> Option<std::ops::Bound<&[u8]>> {
        self.more.then(|| direction.on_from(&self.edge[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_back_as_they_were_put() {
        let mut run = Run::new();
        let pairs: [(&[u8], u64); 4] = [(b"", 1), (b"a", 2), (b"a\0", 3), (b"bcd", u64::MAX)];
        pairs.iter().for_each(|&(key, word)| run.push(key, word));
        assert!(run.iter().eq(pairs));
        assert_eq!(run.partition_point(0..4, |key| key < b"a\0".as_slice()), 2);
        assert_eq!(run.partition_point(0..4, |_| true), 4);
        run.clear();
        assert!(run.is_empty() && run.iter().next().is_none());
    }
}
