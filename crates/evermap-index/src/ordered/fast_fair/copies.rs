//! Copies of the words of leaves, in the nodes above them.
//!
//! A lookup of a key of eight bytes, which is all of its prefix, finds its word in the node, and
//! spares the leaf, which is another place in memory. What counts after a crash is the leaf: copies
//! are never flushed, and made again by the thread that recovers the node. They are changed under
//! the lock of the node, when the change of the leaf is durable.

use evermap_pm::{Medium, PmU64, Result, pod};

use super::FastFair;
use super::access::NodeRef;
use super::layout::{Node, RECORDS};
use crate::ordered::leaf::LeafRef;

/// The number of bytes of a key whose word is copied.
pub(super) const WHOLE: usize = 8;

pod! {
    /// What follows a leaf node in its block: the words of its records. Which of them are copied,
    /// is in the header: see [`Header::count`](super::layout::Header).
    pub struct Copies: 224 {
        words: [PmU64; RECORDS],
    }
}

/// The copies of a leaf node.
#[derive(Clone, Copy)]
pub(super) struct CopiesRef<'m> {
    node: NodeRef<'m>,
    words: &'m [PmU64; RECORDS],
}

impl CopiesRef<'_> {
    /// Returns the word of the record at `position` if it is copied.
    #[inline(always)]
    pub(super) fn get<M: Medium>(&self, m: &M, position: usize) -> Option<u64> {
        let word = m.load(&self.words[position]);
        (self.node.copied(m) >> position & 1 == 1).then_some(word)
    }

    /// Replaces the word of the record at `position`, if it is copied.
    pub(super) fn replace<M: Medium>(&self, m: &M, position: usize, word: u64) {
        m.store_transient(&self.words[position], word);
    }

    /// Makes space for a record that was inserted at `position`, and copies its word if there is
    /// one. The node has `count` records now.
    pub(super) fn insert<M: Medium>(
        &self,
        m: &M,
        position: usize,
        count: usize,
        word: Option<u64>,
    ) {
        for to in (position + 1..count).rev() {
            self.replace(m, to, m.load(&self.words[to - 1]));
        }
        self.replace(m, position, word.unwrap_or(0));
        let copied = self.node.copied(m);
        let behind = (copied & !below(position)) << 1;
        let this = u64::from(word.is_some()) << position;
        self.node.set_copied(m, copied & below(position) | this | behind);
    }

    /// Closes the gap after a record was removed at `position`. The node has `count` records now.
    pub(super) fn remove<M: Medium>(&self, m: &M, position: usize, count: usize) {
        for to in position..count {
            self.replace(m, to, m.load(&self.words[to + 1]));
        }
        let copied = self.node.copied(m);
        let behind = (copied >> 1) & !below(position);
        self.node.set_copied(m, copied & below(position) | behind);
    }

    /// Copies what another node has for its records from `first` on.
    pub(super) fn take<M: Medium>(&self, m: &M, other: &Self, first: usize) {
        for (position, from) in other.words[first..].iter().enumerate() {
            self.replace(m, position, m.load(from));
        }
        self.node.set_copied(m, other.node.copied(m) >> first);
    }
}

/// Returns the bits of the records before `position`.
pub(super) fn below(position: usize) -> u64 {
    (1 << position) - 1
}

impl<M: Medium> FastFair<M> {
    /// Returns the copies of a leaf node. Returns `None` for other nodes.
    #[inline(always)]
    pub(super) fn copies<'m>(&'m self, node: &NodeRef<'m>) -> Option<CopiesRef<'m>> {
        let at = node.offset + size_of::<Node>() as u64;
        let copies = self.medium().at::<Copies>(at).filter(|_| node.level == 0)?;
        Some(CopiesRef { node: *node, words: &copies.words })
    }

    /// Copies the words of all leaves of a node that no other thread uses. Leaves that cannot be
    /// read are left to those who look for them.
    pub(super) fn copy_words(&self, node: &NodeRef<'_>) {
        let (m, Some(copies)) = (self.medium(), self.copies(node)) else { return };
        node.set_copied(m, 0);
        for position in 0..node.count(m).min(RECORDS) {
            let word = self.whole_word(m.load(&node.records()[position].at));
            copies.insert(m, position, position + 1, word.unwrap_or_default());
        }
    }

    /// Returns the word of a leaf, once it is durable, if its key has eight bytes.
    pub(super) fn whole_word(&self, at: u64) -> Result<Option<u64>> {
        let leaf = LeafRef::at(self.medium(), at)?;
        Ok((leaf.len() == WHOLE).then(|| leaf.word(self.medium())))
    }
}
