//! The structures of FAST & FAIR in the region.

use evermap_pm::{PmU64, pod};

pub use crate::ordered::leaf::prefix;

/// The number of records that a node has space for. The last one is never used: a node ends with a
/// reference that is 0.
pub const RECORDS: usize = 28;

/// The most records that a node holds.
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
    /// The first cache line of a node.
    ///
    /// ```text
    /// byte  0  lock        see `Lock`; never flushed
    /// byte  8  meta        see `Meta`; immutable
    /// byte 16  sibling     offset of the next node of the level, 0 if this is the last
    /// byte 24  leftmost    the child for keys before the first record; `NO_CHILD` in leaf nodes
    /// byte 32  low_prefix  the least key that belongs into the node: its prefix
    /// byte 40  low_rest    and the rest of it: see `Rest`; both are immutable
    /// ```
    ///
    /// It takes a whole line, so that the records begin with one. If they did not, the halves of
    /// some records would be in two lines, and could become durable in any order.
    pub struct Header: 64 {
        /// The lock, the version and the generation.
        pub lock: PmU64,
        /// The kind of the node and its level.
        pub meta: PmU64,
        /// The next node of the level.
        pub sibling: PmU64,
        /// The child for keys before the first record.
        pub leftmost: PmU64,
        /// The prefix of the least key.
        pub low_prefix: PmU64,
        /// The rest of the least key.
        pub low_rest: PmU64,
        unused: [PmU64; 2],
    }
}

pod! {
    /// A key and a reference: to its leaf, or to the child for it and the keys after it.
    ///
    /// A record whose reference is that of the record before (of the header, before the first
    /// record) does not count: it is being inserted or removed.
    pub struct Record: 16 {
        /// The first eight bytes of the key: see [`prefix`].
        pub prefix: PmU64,
        /// The offset of the leaf or the child; 0 after the last record.
        pub at: PmU64,
    }
}

pod! {
    /// A node: eight cache lines.
    pub struct Node: 512 {
        /// The header.
        pub header: Header,
        /// The records, in the order of their keys.
        pub records: [Record; 28],
    }
}

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
        let start = std::mem::offset_of!(Node, records);
        assert!(start % 64 == 0 && 64 % size_of::<Record>() == 0);
        assert_eq!(start + RECORDS * size_of::<Record>(), size_of::<Node>());
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
