//! Copies of the words of leaves, in the nodes above them.
//!
//! A lookup of a key of eight bytes, which is all of its prefix, finds its word in the node, and
//! spares the leaf, which is another place in memory. What counts after a crash is the leaf: copies
//! are never flushed, and made again by the thread that recovers the node. They are changed under
//! the lock of the node, when the change of the leaf is durable.

use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::{Medium, PmU64, Result, pod};

use super::access::NodeRef;
use super::layout::RECORDS;
use super::{FastFair, Form};

/// The number of bytes of a key whose word is copied.
pub(super) const WHOLE: usize = 8;

pod! {
    /// What follows a leaf node in its block: the words of its records.
    pub struct Copies: 360 {
        /// For each record, from the lowest bit, whether its key has eight bytes and its word is
        /// here.
        copied: PmU64,
        words: [PmU64; RECORDS],
    }
}

/// The copies of a leaf node.
#[derive(Clone, Copy)]
pub(super) struct CopiesRef<'m> {
    copied: &'m PmU64,
    words: &'m [PmU64; RECORDS],
}

impl CopiesRef<'_> {
    /// Returns for which records there are copies.
    #[inline(always)]
    pub(super) fn copied<M: Medium>(&self, m: &M) -> u64 {
        m.load(self.copied)
    }

    /// Sets for which records there are copies.
    fn set_copied<M: Medium>(&self, m: &M, copied: u64) {
        m.store_transient(self.copied, copied);
    }

    /// Returns the word of the record at `position` if it is copied.
    #[inline(always)]
    pub(super) fn get<M: Medium>(&self, m: &M, position: usize) -> Option<u64> {
        let word = m.load(&self.words[position]);
        (self.copied(m) >> position & 1 == 1).then_some(word)
    }

    /// Does the same for a scan, which has read for which records there are copies.
    #[inline]
    pub(super) fn get_of<M: Medium>(&self, m: &M, copied: u64, position: usize) -> Option<u64> {
        (copied >> position & 1 == 1).then(|| m.load(&self.words[position]))
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
        let copied = self.copied(m);
        let behind = (copied & !below(position)) << 1;
        let this = u64::from(word.is_some()) << position;
        self.set_copied(m, copied & below(position) | this | behind);
    }

    /// Closes the gap after a record was removed at `position`. The node has `count` records now.
    pub(super) fn remove<M: Medium>(&self, m: &M, position: usize, count: usize) {
        for to in position..count {
            self.replace(m, to, m.load(&self.words[to + 1]));
        }
        let copied = self.copied(m);
        let behind = (copied >> 1) & !below(position);
        self.set_copied(m, copied & below(position) | behind);
    }

    /// Forgets the copies of all records but the first `count` ones.
    pub(super) fn end_at<M: Medium>(&self, m: &M, count: usize) {
        self.set_copied(m, self.copied(m) & below(count));
    }

    /// Copies what another node has for its records from `first` on.
    pub(super) fn take<M: Medium>(&self, m: &M, other: &Self, first: usize) {
        for (position, from) in other.words[first..].iter().enumerate() {
            self.replace(m, position, m.load(from));
        }
        self.set_copied(m, other.copied(m) >> first);
    }
}

/// Returns the bits of the records before `position`.
fn below(position: usize) -> u64 {
    (1 << position) - 1
}

impl<'m, F: Form> NodeRef<'m, F> {
    /// Returns the copies of a leaf node. Returns `None` for other nodes, and in the paper's form.
    #[inline(always)]
    pub(super) fn copies<M: Medium>(&self, m: &'m M) -> Option<CopiesRef<'m>> {
        let at = self.offset + size_of::<F::Node>() as u64;
        let Copies { copied, words } =
            m.at::<Copies>(at).filter(|_| !F::PLAIN && self.level == 0)?;
        Some(CopiesRef { copied, words })
    }
}

impl<M: Medium, F: Form> FastFair<M, F> {
    /// Copies the words of all leaves of a node that no other thread uses. Leaves that cannot be
    /// read are left to those who look for them.
    pub(super) fn copy_words(&self, node: &NodeRef<'_, F>) {
        let m = self.medium();
        let Some(copies) = node.copies(m) else { return };
        copies.set_copied(m, 0);
        let leaves = node.records()[..node.count(m)].iter().map(|record| m.load(&record.at));
        leaves.clone().for_each(|leaf| m.prefetch(leaf));
        for (position, leaf) in leaves.enumerate() {
            let word = self.whole_word(leaf);
            copies.insert(m, position, position + 1, word.unwrap_or_default());
        }
    }

    /// Returns the word of a leaf, once it is durable, if its key has eight bytes.
    pub(super) fn whole_word(&self, at: u64) -> Result<Option<u64>> {
        let leaf = LeafRef::at(self.medium(), at)?;
        Ok((leaf.key_len() == WHOLE).then(|| leaf.word(self.medium())))
    }
}
