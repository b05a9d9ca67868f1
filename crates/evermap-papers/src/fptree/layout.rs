//! The structures of FPTree in the region. Inner nodes are not there.

use evermap_pm::{Medium, PmU64, Pod, Pool, pod};

/// The number of entries of a leaf: as many fingerprints share a line with the bitmap.
pub const SLOTS: usize = 56;

/// The number of words with fingerprints.
pub const FINGERPRINT_WORDS: usize = SLOTS / 8;

/// The length of the longest key that needs no block, bytes.
pub const INLINE_MAX: usize = 16;

/// The first word of the root block.
pub const KIND: u64 = u64::from_le_bytes(*b"FPTREE\0\x01");

pod! {
    /// The block that the root cell names.
    pub struct Root: 64 {
        /// The kind of the index, with the number of entries of a leaf.
        pub kind: PmU64,
        /// The offset of the first leaf, which stays the first.
        pub first: PmU64,
        unused: [PmU64; 6],
    }
}

pod! {
    /// The first line of a leaf.
    pub struct Line: 64 {
        /// One byte of the hash of each key. What is here of an entry that is not valid means
        /// nothing.
        pub fingerprints: [PmU64; FINGERPRINT_WORDS],
        /// Which entries are valid, from the lowest bit. Its store commits a change.
        pub bitmap: PmU64,
    }
}

pod! {
    /// A key.
    pub struct KeyField: 24 {
        /// Its length, bytes.
        pub length: PmU64,
        /// Its first eight bytes, and the next eight, as numbers: see
        /// [`prefix`](evermap_index::ordered::leaf::prefix). Of a key longer than [`INLINE_MAX`]
        /// the second word is the offset of a block with the whole key.
        pub words: [PmU64; 2],
    }
}

pod! {
    /// The second line of a leaf.
    pub struct Header: 64 {
        /// See [`Lock`](evermap_index::node_lock::Lock); never flushed.
        pub lock: PmU64,
        /// What the block is: see [`LeafBlock::MAGIC`]; immutable.
        pub magic: PmU64,
        /// The next leaf: see [`Link`].
        pub next: PmU64,
        /// The least key that belongs into the leaf; immutable. Empty in the first leaf.
        pub low: KeyField,
        /// What no prefix of a key of this leaf exceeds, which spares searches the next leaf:
        /// the prefix of its least key, or all ones if there is none. Less than that if the next
        /// leaf is damaged. It follows from other words: never flushed, and computed again by the
        /// thread that recovers the leaf.
        pub next_prefix: PmU64,
        unused: PmU64,
    }
}

pod! {
    /// A pair, which is never in two lines.
    pub struct Entry: 32 {
        /// The key.
        pub key: KeyField,
        /// The word that it is bound to.
        pub word: PmU64,
    }
}

pod! {
    /// A leaf: two lines and a line for two entries each.
    ///
    /// ```text
    /// byte   0  fingerprints  one byte for each entry
    /// byte  56  bitmap        which entries are valid
    /// byte  64  header        lock, next leaf, least key
    /// byte 128  entries       in any order: length of the key, its words, the word
    /// ```
    pub struct Leaf<const SLOTS: usize> {
        /// Fingerprints and bitmap.
        pub line: Line,
        /// What belongs to the leaf as a whole.
        pub header: Header,
        /// The entries.
        pub entries: [Entry; SLOTS],
    }
}

const _: () = assert!(size_of::<Leaf<SLOTS>>() == 1920);

/// A leaf with any number of entries.
pub trait LeafBlock: Pod {
    /// The number of entries that the leaf has space for, at least 4.
    const SLOTS: usize;
    /// What the leaf says it is.
    const MAGIC: u64 = u64::from_le_bytes(*b"FPLEAF\0\0") | (Self::SLOTS as u64) << 56;
    /// The bitmap of a leaf all of whose entries are valid.
    const FULL: u64 = (1 << Self::SLOTS) - 1;

    /// Returns the fingerprints and the bitmap.
    fn line(&self) -> &Line;

    /// Returns what belongs to the leaf as a whole.
    fn header(&self) -> &Header;

    /// Returns the entries.
    fn entries(&self) -> &[Entry];
}

impl<const N: usize> LeafBlock for Leaf<N> {
    const SLOTS: usize = {
        assert!(N >= 4 && N <= SLOTS);
        N
    };

    #[inline]
    fn line(&self) -> &Line {
        &self.line
    }

    #[inline]
    fn header(&self) -> &Header {
        &self.header
    }

    #[inline]
    fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// Returns the size of the block of a leaf, in bytes, which begins with a line.
pub fn leaf_bytes<M: Medium, L: LeafBlock>(pool: &Pool<M>) -> u64 {
    let bytes = size_of::<L>() as u64;
    // Very small extents have blocks of sizes of their own.
    let is_aligned = pool.block_size(bytes).is_multiple_of(64);
    if is_aligned { bytes } else { bytes.next_power_of_two() }
}

/// Returns the size of the block of a key of this length, bytes.
pub fn key_bytes(length: usize) -> u64 {
    (length as u64).next_multiple_of(8)
}

/// A reference to the next leaf.
///
/// ```text
/// bit  0      the leaf may still have entries that belong into the next one: a split is not
///             complete
/// bit  1..64  the offset of the next leaf, 0 if this is the last
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u64);

impl Link {
    const UNFINISHED: u64 = 1;

    /// Returns the reference to the new leaf of a split that is not complete.
    pub fn unfinished(offset: u64) -> Self {
        Link(offset | Self::UNFINISHED)
    }

    /// Returns `true` if a split is not complete.
    pub fn is_unfinished(self) -> bool {
        self.0 & Self::UNFINISHED != 0
    }

    /// Returns the offset of the next leaf, if there is one.
    #[inline]
    pub fn offset(self) -> Option<u64> {
        Some(self.0 & !Self::UNFINISHED).filter(|&offset| offset != 0)
    }

    /// Returns the same reference once the split is complete.
    pub fn finished(self) -> Self {
        Link(self.0 & !Self::UNFINISHED)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn an_entry_is_never_in_two_lines() {
        assert_eq!(offset_of!(Leaf<SLOTS>, entries) % 64, 0);
        assert_eq!(64 % size_of::<Entry>(), 0);
        assert_eq!(offset_of!(Leaf<SLOTS>, header), 64);
    }

    #[test]
    fn a_link_is_what_it_was_made_of() {
        let link = Link::unfinished(0x1280);
        assert!(link.is_unfinished() && !link.finished().is_unfinished());
        assert_eq!((link.offset(), link.finished()), (Some(0x1280), Link(0x1280)));
        assert_eq!((Link(0).offset(), Link::unfinished(0).offset()), (None, None));
    }

    #[test]
    fn leaves_of_other_sizes_are_told_apart() {
        assert_ne!(<Leaf<8> as LeafBlock>::MAGIC, <Leaf<SLOTS> as LeafBlock>::MAGIC);
        assert_eq!(<Leaf<8> as LeafBlock>::FULL, 0xff);
        assert_eq!(<Leaf<SLOTS> as LeafBlock>::FULL, u64::MAX >> 8);
    }
}
