//! The structures of P-ART in the region.

use std::cmp::Ordering;

use evermap_pm::{PmU64, pod};

pod! {
    /// The block that the root cell names.
    pub struct Root: 64 {
        /// The kind of the index.
        pub kind: PmU64,
        /// The offset of the root node, a [`Node256`] that is never replaced.
        pub tree: PmU64,
        unused: [PmU64; 6],
    }
}

pod! {
    /// The first words of every node.
    ///
    /// ```text
    /// byte  0  lock    see `Lock`; never flushed
    /// byte  8  meta    see `Meta`; immutable
    /// byte 16  prefix  see `Prefix`; immutable
    /// byte 24  end     the child for the key that ends where the node branches; see `Child`
    /// ```
    pub struct Header: 32 {
        /// The lock, the version and the generation.
        pub lock: PmU64,
        /// The kind of the node and its level.
        pub meta: PmU64,
        /// Bytes that all keys below the node have in common.
        pub prefix: PmU64,
        /// The child for the key that ends at this level.
        pub end: PmU64,
    }
}

pod! {
    /// A node for up to 4 symbols: one cache line, so an insert into it takes one flush.
    pub struct Node4: 64 {
        /// The header.
        pub header: Header,
        /// The children, in any order.
        pub children: [PmU64; 4],
    }
}

pod! {
    /// A node for up to 16 symbols.
    pub struct Node16: 192 {
        /// The header.
        pub header: Header,
        /// The symbol of each child, one byte each. Never flushed: each child has its symbol.
        pub symbols: [PmU64; 2],
        /// The children, in any order.
        pub children: [PmU64; 16],
        unused: [PmU64; 2],
    }
}

pod! {
    /// A node for up to 48 symbols.
    pub struct Node48: 704 {
        /// The header.
        pub header: Header,
        /// For each symbol, one byte: the position of its child, from 1, or 0. Never flushed: each
        /// child has its symbol.
        pub positions: [PmU64; 32],
        /// The children, in any order.
        pub children: [PmU64; 48],
        unused: [PmU64; 4],
    }
}

pod! {
    /// A node for all symbols.
    pub struct Node256: 2112 {
        /// The header.
        pub header: Header,
        /// The children, by their symbols.
        pub children: [PmU64; 256],
        unused: [PmU64; 4],
    }
}

/// The four kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// [`Node4`]
    N4,
    /// [`Node16`]
    N16,
    /// [`Node48`]
    N48,
    /// [`Node256`]
    N256,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::N4, Kind::N16, Kind::N48, Kind::N256];

    /// Returns the smallest kind that has room for this number of symbols, which is at most 256.
    pub fn for_symbols(symbols: usize) -> Self {
        match symbols {
            0..=4 => Kind::N4,
            5..=16 => Kind::N16,
            17..=48 => Kind::N48,
            _ => Kind::N256,
        }
    }

    /// Returns the number of symbols at which a node of this kind is replaced by a smaller one:
    /// well below what that has room for, so that it is not soon replaced again.
    pub fn shrinks_at(self) -> usize {
        match self {
            Kind::N4 => 0,
            Kind::N16 => 3,
            Kind::N48 => 12,
            Kind::N256 => 37,
        }
    }

    /// Returns the size of a node in bytes.
    pub fn bytes(self) -> u64 {
        let bytes = match self {
            Kind::N4 => size_of::<Node4>(),
            Kind::N16 => size_of::<Node16>(),
            Kind::N48 => size_of::<Node48>(),
            Kind::N256 => size_of::<Node256>(),
        };
        bytes as u64
    }
}

/// A reference to a child: a leaf or a node.
///
/// ```text
/// bit  0..1   the child is a leaf
/// bit  1..2   the word may not be durable yet: see `recipe::help`
/// bit  2..4   the kind of the node
/// bit  4..48  the offset, of which the low 4 bits are 0; all 0 if there is no child
/// bit 48..56  the symbol that leads to the child
/// ```
///
/// In this word is all that recovery needs to know about a child. So its store commits a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child(pub u64);

impl Child {
    /// The bit of a word that may not be durable yet.
    pub const MARK: u64 = 2;
    const LEAF: u64 = 1;
    const KIND_SHIFT: u32 = 2;
    const OFFSET: u64 = (1 << 48) - 16;
    const SYMBOL_SHIFT: u32 = 48;
    const SYMBOL: u64 = 0xff << Self::SYMBOL_SHIFT;

    /// Returns a reference to a leaf.
    pub fn leaf(offset: u64) -> Self {
        Child(offset | Self::LEAF)
    }

    /// Returns a reference to a node.
    pub fn node(offset: u64, kind: Kind) -> Self {
        Child(offset | (kind as u64) << Self::KIND_SHIFT)
    }

    /// Returns a reference to no child, for this symbol.
    pub fn none(symbol: Option<u8>) -> Self {
        Child(0).with(symbol)
    }

    /// Returns the same reference for another symbol; `None` is the end of a key.
    pub fn with(self, symbol: Option<u8>) -> Self {
        Child(self.0 & !Self::SYMBOL | u64::from(symbol.unwrap_or(0)) << Self::SYMBOL_SHIFT)
    }

    /// Returns the symbol that leads to the child.
    #[inline(always)]
    pub fn symbol(self) -> u8 {
        (self.0 >> Self::SYMBOL_SHIFT) as u8
    }

    /// Returns `true` if there is no child.
    #[inline(always)]
    pub fn is_none(self) -> bool {
        self.0 & Self::OFFSET == 0
    }

    /// Returns `true` if the slot of this word belongs to its symbol: there is a child, or there
    /// was one whose removal may not be durable yet.
    #[inline(always)]
    pub fn occupies(self) -> bool {
        self.0 & (Self::OFFSET | Self::MARK) != 0
    }

    /// Returns `true` if the child is a leaf.
    #[inline(always)]
    pub fn is_leaf(self) -> bool {
        self.0 & Self::LEAF != 0
    }

    /// Returns the offset of the leaf or node.
    #[inline(always)]
    pub fn offset(self) -> u64 {
        self.0 & Self::OFFSET
    }

    /// Returns the kind of the node.
    #[inline(always)]
    pub fn kind(self) -> Kind {
        Kind::ALL[(self.0 >> Self::KIND_SHIFT & 3) as usize]
    }

    /// Returns `true` if both are the same child.
    #[inline(always)]
    pub fn is(self, other: Child) -> bool {
        self.offset() == other.offset()
    }
}

/// What a node is.
///
/// ```text
/// bit  0..8   kind
/// bit  8..32  "ART"
/// bit 32..64  level: the number of bytes of a key before the symbol that the node looks at
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta(pub u64);

impl Meta {
    const MAGIC: u64 = u64::from_le_bytes(*b"\0ART\0\0\0\0");

    /// Returns the word of a node.
    pub fn new(kind: Kind, level: usize) -> Self {
        Meta(kind as u64 | Self::MAGIC | (level as u64) << 32)
    }

    /// Returns `true` if the word is one of a node of this kind.
    #[inline(always)]
    pub fn is_of(self, kind: Kind) -> bool {
        self.0 as u32 == (kind as u64 | Self::MAGIC) as u32
    }

    /// Returns the level.
    #[inline(always)]
    pub fn level(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// Up to seven bytes that all keys below a node have in common: those right before its level.
///
/// ```text
/// bit  0..8   the number of bytes
/// bit  8..64  the bytes, in order
/// ```
///
/// Unlike in the paper, the bytes have a fixed place in the key, and say nothing about the node's
/// parent. So they remain true when nodes above are inserted or removed, and need not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix(pub u64);

impl Prefix {
    const MOST: usize = 7;

    /// Returns the word of a node at this level, all of whose keys begin as `key` does.
    pub fn of(key: &[u8], level: usize) -> Self {
        let count = level.min(Self::MOST);
        let mut bytes = [0; 8];
        bytes[0] = count as u8;
        bytes[1..=count].copy_from_slice(&key[level - count..level]);
        Prefix(u64::from_le_bytes(bytes))
    }

    /// Returns the number of bytes.
    #[inline(always)]
    pub fn count(self) -> usize {
        (self.0 as u8 as usize).min(Self::MOST)
    }

    /// Returns `true` unless `key`, which has at least `level` bytes, cannot be below a node at
    /// this level.
    #[inline(always)]
    pub fn admits(self, key: &[u8], level: usize) -> bool {
        let count = self.count().min(level);
        match key.first_chunk() {
            // Without a call: most keys are this long, and most levels this low.
            Some(first) if level <= 8 => {
                let key = u64::from_le_bytes(*first).checked_shr(8 * (level - count) as u32);
                let differ = self.0 >> 8 ^ key.unwrap_or(0);
                differ & ((1 << (8 * count.min(7))) - 1) == 0
            }
            _ => self.0.to_le_bytes()[1..=count] == key[level - count..level],
        }
    }

    /// Compares the last `skipped` bytes before the level of the node with `rest`, which is not
    /// longer. They are equal only if all of them are. Returns `None` if the word has not as many.
    pub fn compare(self, skipped: usize, rest: &[u8]) -> Option<Ordering> {
        let count = self.count();
        let from = count.checked_sub(skipped)?;
        let bytes = self.0.to_le_bytes();
        Some(bytes[1 + from..=count].cmp(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_what_it_was_made_of() {
        for kind in Kind::ALL {
            let child = Child::node(0x1230, kind).with(Some(0xab));
            assert_eq!((child.offset(), child.kind(), child.symbol()), (0x1230, kind, 0xab));
            assert!(!child.is_leaf() && !child.is_none() && child.occupies());
            assert!(child.is(child.with(Some(1))) && child.with(Some(1)).symbol() == 1);
        }
        let leaf = Child::leaf(0xffff_ffff_fff0);
        assert!(leaf.is_leaf() && leaf.offset() == 0xffff_ffff_fff0);
        let none = Child::none(Some(7));
        assert!(none.is_none() && !none.occupies() && Child(none.0 | Child::MARK).occupies());
    }

    #[test]
    fn a_prefix_compares_what_it_has() {
        let prefix = Prefix::of(b"0123456789", 9);
        assert_eq!(prefix.compare(3, b"678"), Some(Ordering::Equal));
        assert_eq!(prefix.compare(3, b"67"), Some(Ordering::Greater), "what is shorter is less");
        assert_eq!(prefix.compare(3, b"668"), Some(Ordering::Greater));
        assert_eq!(prefix.compare(3, b"7"), Some(Ordering::Less));
        assert_eq!(prefix.compare(0, b""), Some(Ordering::Equal));
        assert_eq!(prefix.compare(7, b"2345678"), Some(Ordering::Equal));
        assert_eq!(prefix.compare(8, b"12345678"), None, "a byte that is not stored");
        assert_eq!(Prefix(u64::MAX).compare(7, &[0xff; 7]), Some(Ordering::Equal));
    }

    #[test]
    fn a_prefix_admits_the_keys_that_have_it() {
        let key = b"0123456789";
        for level in 0..=10 {
            let prefix = Prefix::of(key, level);
            assert_eq!(prefix.count(), level.min(7));
            assert!(prefix.admits(key, level));
            if level > 0 {
                let mut other = *key;
                other[level - 1] ^= 1;
                assert!(!prefix.admits(&other, level));
            }
            if level > 7 {
                let mut other = *key;
                other[level - 8] ^= 1;
                assert!(prefix.admits(&other, level), "a byte that is not stored");
            }
        }
    }
}
