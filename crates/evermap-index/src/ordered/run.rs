//! Pairs packed one behind the other.

use evermap_pm::medium::prefetch;

use super::Direction;

/// Pairs of keys and words, packed: 16 bytes a pair beside the bytes of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
    words: Vec<u64>,
}

impl Run {
    /// Without pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for so many pairs more, with keys of 16 bytes.
    pub fn reserve(&mut self, pairs: usize) {
        self.bytes.reserve(16 * pairs);
        self.ends.reserve(pairs);
        self.words.reserve(pairs);
    }

    /// Adds a pair at the end. Amortised O(bytes of the key).
    pub fn push(&mut self, key: &[u8], word: u64) {
        self.push_with(word, |bytes| bytes.extend_from_slice(key));
    }

    /// Adds a pair whose key `spell` appends to what it is given.
    #[inline]
    pub fn push_with(&mut self, word: u64, spell: impl FnOnce(&mut Vec<u8>)) {
        spell(&mut self.bytes);
        self.ends.push(self.bytes.len());
        self.words.push(word);
    }

    /// Pairs.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The key at a place.
    ///
    /// # Panics
    /// If there are not so many pairs.
    #[inline]
    pub fn key(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }

    /// The word at a place.
    ///
    /// # Panics
    /// If there are not so many pairs.
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        self.words[at]
    }

    /// Asks for the word at a place, and for where its key is.
    #[inline]
    pub(super) fn prefetch_place(&self, at: usize) {
        prefetch((&raw const self.ends[at]).cast());
        prefetch((&raw const self.words[at]).cast());
    }

    /// Asks for the key at a place.
    #[inline]
    pub(super) fn prefetch_key(&self, at: usize) {
        prefetch(self.key(at).as_ptr());
    }

    /// The pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.len()).map(|at| (self.key(at), self.word(at)))
    }

    /// Forgets the pairs and keeps the room.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.words.clear();
    }

    /// The first place whose key is not `before`, which must hold for a first part of the keys.
    pub(super) fn partition_point(&self, mut before: impl FnMut(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
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
        assert_eq!(run.partition_point(|key| key < b"a\0".as_slice()), 2);
        assert_eq!(run.partition_point(|_| true), 4);
        run.clear();
        assert!(run.is_empty() && run.iter().next().is_none());
    }
}
