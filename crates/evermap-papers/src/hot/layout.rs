//! The structures of P-HOT in the region.

use evermap_pm::{PmU64, pod};

/// The most entries of a node.
pub const ENTRIES_MAX: usize = 32;

/// The most bits that tell the entries of a node apart: one less than there are entries.
pub const BITS_MAX: usize = ENTRIES_MAX - 1;

pod! {
    /// The block that the root cell names. Its reference is locked like those of a node.
    pub struct Root: 64 {
        /// The kind of the index.
        pub kind: PmU64,
        /// The lock, the version and the generation; see `Lock`. Never flushed.
        pub lock: PmU64,
        /// The root node, or the only leaf; see [`Child`].
        pub tree: PmU64,
        unused: [PmU64; 5],
    }
}

/// The number of words of a node before its masks.
pub(super) const HEADER: usize = 2;

/// The number of indexes of words of a key in one word of a node.
pub(super) const INDEXES: usize = 4;

/// What a node is: its second word, from which the places of all others follow.
///
/// ```text
/// word                    a node
///   0   lock              see `Lock`; never flushed
///   1   shape             see below
///   2   masks             for each word of the key that has bits of the node: which they are
///   .   indexes           of these words but the first, 16 bits each
///   .   partial keys      for each entry, 8, 16 or 32 bits each; the last one is repeated
///   .   children          for each entry: see `Child`
///
/// bit  0..20  height: one more than that of the highest child; leaves have 0
/// bit 20..26  entries: 2 to 32
/// bit 26..31  parts: the number of masks, 1 to 31
/// bit 31..33  width of a partial key: 8 bits, shifted to the left by this
/// bit 33..47  index of the first word of the key that has a mask
/// bit 48..64  "HO"
/// ```
///
/// All of a node but its lock and its children is immutable. If all bits are in one word of the
/// key, as they are for keys of eight bytes, and are up to eight, then a search reads the first
/// cache line of the node and the one of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// One more than the height of the highest child.
    pub height: u32,
    /// The number of entries.
    pub entries: usize,
    /// The number of masks.
    pub parts: usize,
    /// How far 8 is shifted for the number of bits of a partial key.
    pub width: u32,
    /// The index of the first word of a key that has a mask.
    pub first: usize,
}

impl Shape {
    const MAGIC: u64 = u64::from_le_bytes(*b"\0\0\0\0\0\0HO");
    const MAGIC_MASK: u64 = !((1 << 47) - 1);
    /// The greatest height. Bits become less significant on the way down, so none is greater than
    /// the number of bits of a key.
    pub const HEIGHT_MAX: u32 = (1 << 20) - 1;

    /// Returns the word of a node.
    pub fn word(self) -> u64 {
        Self::MAGIC
            | u64::from(self.height)
            | (self.entries as u64) << 20
            | (self.parts as u64) << 26
            | u64::from(self.width) << 31
            | (self.first as u64) << 33
    }

    /// Returns what a word means, or `None` if it is not one of a node.
    #[inline(always)]
    pub fn from_word(word: u64) -> Option<Self> {
        let field = |shift: u32, bits: u32| (word >> shift & ((1 << bits) - 1)) as usize;
        let shape = Shape {
            height: field(0, 20) as u32,
            entries: field(20, 6),
            parts: field(26, 5),
            width: field(31, 2) as u32,
            first: field(33, 14),
        };
        let fits = word & Self::MAGIC_MASK == Self::MAGIC
            && shape.height >= 1
            && (2..=ENTRIES_MAX).contains(&shape.entries)
            && shape.parts >= 1
            && shape.width <= 2;
        fits.then_some(shape)
    }

    /// Returns the `width` of partial keys of this number of bits, which is at most [`BITS_MAX`].
    pub fn width_of(bits: usize) -> u32 {
        match bits {
            0..=8 => 0,
            9..=16 => 1,
            _ => 2,
        }
    }

    /// Returns the number of bits of a partial key.
    #[inline(always)]
    pub fn key_bits(self) -> usize {
        8 << self.width
    }

    /// Returns the place of the word with the indexes of the words of a key.
    #[inline(always)]
    pub(super) fn indexes_at(self) -> usize {
        HEADER + self.parts
    }

    /// Returns the place of the first partial keys.
    #[inline(always)]
    pub(super) fn keys_at(self) -> usize {
        self.indexes_at() + (self.parts - 1).div_ceil(INDEXES)
    }

    /// Returns the place of the first child.
    #[inline(always)]
    pub(super) fn children_at(self) -> usize {
        self.keys_at() + (self.entries * self.key_bits()).div_ceil(64)
    }

    /// Returns the number of words that are used.
    #[inline(always)]
    pub(super) fn words(self) -> usize {
        self.children_at() + self.entries
    }

    /// Returns the size of the block of the node in bytes: whole cache lines, so that a node is in
    /// no more of them than necessary.
    ///
    /// Their number is odd for nodes of height 1, and even for those above, which every search
    /// passes, and which are few. Blocks of other sizes put these into pages of their own, which
    /// are few too: so the processor knows where they are.
    pub fn bytes(self) -> u64 {
        let lines = (self.words() as u64 * 8).div_ceil(64);
        let is_odd = self.height == 1;
        64 * (lines + u64::from(lines.is_multiple_of(2) == is_odd))
    }
}

/// A reference to a child: a leaf or a node.
///
/// ```text
/// bit  0..1   the child is a leaf
/// bit  1..2   the word may not be durable yet: see `recipe::help`
/// bit  2..3   the leaf is dead: its key was removed when there was no space for a smaller node
/// bit  4..48  the offset, of which the low 4 bits are 0; all 0 if there is no child
/// ```
///
/// Only [`Root`] may have no child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Child(pub u64);

impl Child {
    /// No child.
    pub const NONE: Child = Child(0);
    /// The bit of a word that may not be durable yet.
    pub const MARK: u64 = 2;
    const LEAF: u64 = 1;
    const DEAD: u64 = 4;
    const OFFSET: u64 = (1 << 48) - 16;

    /// Returns a reference to a leaf.
    pub fn leaf(offset: u64) -> Self {
        Child(offset | Self::LEAF)
    }

    /// Returns a reference to a node.
    pub fn node(offset: u64) -> Self {
        Child(offset)
    }

    /// Returns a reference to the same leaf, dead.
    pub fn dead(self) -> Self {
        Child(self.0 | Self::DEAD)
    }

    /// Returns the same reference without the mark.
    #[inline(always)]
    pub fn unmarked(self) -> Self {
        Child(self.0 & !Self::MARK)
    }

    /// Returns `true` if there is no child.
    #[inline(always)]
    pub fn is_none(self) -> bool {
        self.0 & Self::OFFSET == 0
    }

    /// Returns `true` if the child is a leaf.
    #[inline(always)]
    pub fn is_leaf(self) -> bool {
        self.0 & Self::LEAF != 0
    }

    /// Returns `true` if the child is a leaf that is dead.
    #[inline(always)]
    pub fn is_dead(self) -> bool {
        self.0 & (Self::LEAF | Self::DEAD) == Self::LEAF | Self::DEAD
    }

    /// Returns the offset of the leaf or node.
    #[inline(always)]
    pub fn offset(self) -> u64 {
        self.0 & Self::OFFSET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mark of the published code was among the bits of the kind of a node, and in the low bits
    /// of values.
    #[test]
    fn a_mark_changes_nothing_else() {
        let leaf = Child::leaf(0xffff_ffff_fff0);
        for child in [leaf, leaf.dead(), Child::node(0x1230), Child::NONE] {
            let marked = Child(child.0 | Child::MARK);
            assert!(marked != child && marked.unmarked() == child);
            let parts =
                |child: Child| (child.offset(), child.is_leaf(), child.is_dead(), child.is_none());
            assert_eq!(parts(marked), parts(child));
        }
        assert_eq!((leaf.offset(), leaf.is_leaf()), (0xffff_ffff_fff0, true));
        assert_eq!((Child::node(0x1230).offset(), Child::node(0x1230).is_leaf()), (0x1230, false));
        assert!(leaf.dead().is_dead() && !leaf.is_dead() && !Child::node(0x1230).is_dead());
    }

    #[test]
    fn a_shape_is_what_it_was_made_of() {
        for entries in [2, 9, 32] {
            for parts in [1, 2, 5, 31] {
                for width in 0..3 {
                    let height = Shape::HEIGHT_MAX - entries as u32;
                    let shape = Shape { height, entries, parts, width, first: 8192 };
                    assert_eq!(Shape::from_word(shape.word()), Some(shape));
                    assert!(shape.bytes().is_multiple_of(128) && shape.bytes() <= 768);
                    assert!(shape.words() as u64 * 8 <= shape.bytes());
                }
            }
        }
        let shape = Shape { height: 1, entries: 2, parts: 1, width: 0, first: 0 };
        assert_eq!(shape.bytes(), 64, "the smallest node takes a line");
        for wrong in [0, u64::MAX, shape.word() - 1, shape.word() | 1 << 47] {
            assert_eq!(Shape::from_word(wrong), None);
        }
    }

    /// A full node whose partial keys have eight bits has them in its first line.
    #[test]
    fn a_search_reads_two_lines() {
        let shape = Shape { height: 1, entries: 32, parts: 1, width: 0, first: 0 };
        assert!(shape.children_at() * 8 <= 64);
        assert_eq!(shape.bytes(), 320);
    }
}
