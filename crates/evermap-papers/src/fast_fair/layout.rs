//! The structures of FAST & FAIR in the region.

use evermap_pm::{Medium, PmU64, Pod, Pool, pod};

use super::Form;
use super::copies::Copies;
pub use evermap_index::ordered::leaf::prefix;

/// The number of records that a node has space for, in the [improved](super::Improved) form. The
/// last one is never used: a node ends with a reference that is 0.
///
/// More of them make fewer nodes, of which more stay in a cache, and longer shifts.
pub const RECORDS: usize = 44;

/// The number of records in a cache line.
pub const LINE_RECORDS: usize = 64 / size_of::<Record>();

/// The most records that a node holds, in that form.
pub const RECORDS_MAX: usize = RECORDS - 1;

pod! {
    /// The block that the root cell names.
    pub struct Root: 64 {
        /// The kind of the index.
        pub kind: PmU64,
        /// The offset of the root node.
        pub tree: PmU64,
        unused: [PmU64; 6],
    }
}

pod! {
    /// The first words of a node. [`Node`] has the layout.
    pub struct Header: 48 {
        /// The lock, the version and the generation.
        pub lock: PmU64,
        /// The kind of the node and its level.
        pub meta: PmU64,
        /// The next node of the level.
        pub sibling: PmU64,
        /// The rest of the least key.
        pub low_rest: PmU64,
        /// The number of records.
        pub count: PmU64,
        /// What no prefix of a key of this node exceeds, which spares searches the next node. Less
        /// than that if the next node is damaged.
        pub next_prefix: PmU64,
    }
}

pod! {
    /// A key and a reference: to its leaf, or to the child for it and the keys after it.
    ///
    /// A record whose reference is that of the record before does not count: it is being inserted
    /// or removed.
    pub struct Record: 16 {
        /// The first eight bytes of the key: see [`prefix`].
        pub prefix: PmU64,
        /// The offset of the leaf or the child; 0 after the last record.
        pub at: PmU64,
    }
}

pod! {
    /// A node: twelve cache lines, or eight in the paper's form. Behind a leaf node, its block has
    /// [`Copies`], but not in the paper's form.
    ///
    /// ```text
    /// byte  0  lock         see `Lock`; never flushed
    /// byte  8  meta         see `Meta`; immutable
    /// byte 16  sibling      offset of the next node of the level, 0 if this is the last
    /// byte 24  low_rest     the least key that belongs into the node: see `Rest`; immutable
    /// byte 32  count        the number of records
    /// byte 40  next_prefix  the prefix of the least key of the next node; all ones if this is the
    ///                       last node of the level
    /// byte 48  low          its prefix is that of the least key, and is immutable; its reference
    ///                       is the child for keys before the first record, and `NO_CHILD` in
    ///                       leaf nodes
    /// byte 64  records      in the order of their keys; behind the last one, the reference is 0,
    ///                       and all prefixes are `VACANT`
    /// ```
    ///
    /// The records begin with a line. If they did not, the halves of some records would be in two
    /// lines, and could become durable in any order. The count, `next_prefix` and prefixes behind
    /// the last record follow from the rest: they are never flushed, and computed again by the
    /// thread that recovers the node. In the paper's form nothing relies on the last two.
    pub struct Node<const PLACES: usize> {
        /// The header.
        pub header: Header,
        /// What is before the first record: the least key, and the child for it. And the records.
        pub low_and_records: [Record; PLACES],
    }
}

const _: () = assert!(size_of::<Node<45>>() == 768 && size_of::<Node<29>>() == 512);

/// A node of any form.
pub trait NodeBlock: Pod {
    /// The number of records that the node has space for.
    const RECORDS: usize;

    /// Returns the header.
    fn header(&self) -> &Header;

    /// Returns what is before the first record, and the records.
    fn low_and_records(&self) -> &[Record];

    /// Returns the least key's prefix and the child for keys before the first record.
    #[inline(always)]
    fn low(&self) -> &Record {
        &self.low_and_records()[0]
    }

    /// Returns the records.
    #[inline(always)]
    fn records(&self) -> &[Record] {
        &self.low_and_records()[1..]
    }
}

impl<const PLACES: usize> NodeBlock for Node<PLACES> {
    const RECORDS: usize = PLACES - 1;

    #[inline]
    fn header(&self) -> &Header {
        &self.header
    }

    #[inline]
    fn low_and_records(&self) -> &[Record] {
        &self.low_and_records
    }
}

/// Returns the size of the block of a node of this level, in bytes, which begins with a line.
///
/// Nodes above the lowest ones, which every search passes, are few. Blocks of another size put
/// them into pages of their own, which are few too: so the processor knows where they are. In the
/// paper's form all nodes are alike.
pub fn node_bytes<M: Medium, F: Form>(pool: &Pool<M>, level: u8) -> u64 {
    let node = size_of::<F::Node>() as u64;
    let bytes = match level {
        _ if F::PLAIN => node,
        0 => (node + size_of::<Copies>() as u64).next_multiple_of(64),
        _ => node + 64,
    };
    // Very small extents have blocks of sizes of their own.
    let is_aligned = pool.block_size(bytes).is_multiple_of(64);
    if is_aligned { bytes } else { bytes.next_power_of_two() }
}

/// The prefix of what is behind the last record. No prefix is greater, so searches in a node need
/// not know where it ends.
pub const VACANT: u64 = u64::MAX;

/// What leaf nodes have as the reference before their first record. It is not 0, with which a node
/// ends, so the first record can be inserted and removed like any other.
pub const NO_CHILD: u64 = 1;

/// What the prefix of a least key does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The node is the first of its level: there is no least key.
    None,
    /// The prefix has all of the key, which has this number of bytes.
    Length(usize),
    /// The offset of a leaf with the key, of which only the key is used.
    Leaf(u64),
}

impl Rest {
    /// Returns what a word means: an offset is even, twice a length and one is odd.
    #[inline(always)]
    pub fn from_word(word: u64) -> Self {
        match word {
            0 => Rest::None,
            _ if word % 2 == 1 => Rest::Length((word >> 1).min(8) as usize),
            offset => Rest::Leaf(offset),
        }
    }

    /// Returns the word.
    pub fn word(self) -> u64 {
        match self {
            Rest::None => 0,
            Rest::Length(length) => (length as u64) << 1 | 1,
            Rest::Leaf(offset) => offset,
        }
    }
}

/// What a node is.
///
/// ```text
/// bit  0..8   level: 0 for leaf nodes, and one more than that of the children for others
/// bit  8..64  "FASTFAI"
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta(pub u64);

impl Meta {
    const MAGIC: u64 = u64::from_le_bytes(*b"\0FASTFAI");

    /// Returns the word of a node.
    pub fn new(level: u8) -> Self {
        Meta(Self::MAGIC | u64::from(level))
    }

    /// Returns the level, or `None` if the word is not one of a node.
    #[inline(always)]
    pub fn level(self) -> Option<u8> {
        (self.0 & !0xff == Self::MAGIC).then_some(self.0 as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_never_in_two_lines() {
        let start = std::mem::offset_of!(Node<45>, low_and_records) + size_of::<Record>();
        assert!(start.is_multiple_of(64) && 64_usize.is_multiple_of(size_of::<Record>()));
        assert_eq!(start + RECORDS * size_of::<Record>(), size_of::<Node<45>>());
        assert_eq!(<Node<45> as NodeBlock>::RECORDS, RECORDS);
    }

    #[test]
    fn prefixes_are_ordered_as_keys() {
        let keys: [&[u8]; 6] = [b"", b"a", b"a\0b", b"ab", b"abcdefgh", b"b"];
        assert!(keys.windows(2).all(|pair| prefix(pair[0]) < prefix(pair[1])));
        assert_eq!(prefix(b"abcdefghi"), prefix(b"abcdefgh"));
        assert_eq!(prefix(b"a\0"), prefix(b"a"));
    }

    #[test]
    fn a_rest_is_what_it_was_made_of() {
        for rest in [Rest::None, Rest::Length(1), Rest::Length(8), Rest::Leaf(0x1240)] {
            assert_eq!(Rest::from_word(rest.word()), rest);
        }
        assert_eq!((Meta::new(3).level(), Meta(7).level()), (Some(3), None));
    }
}
