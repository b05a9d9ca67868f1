//! The structures of P-Masstree in the region.

use evermap_pm::{PmU64, pod};

/// The number of entries that a node has space for.
pub const ENTRIES: usize = 15;

/// The number of bytes of a key in a slice.
pub const SLICE: usize = 8;

pod! {
    /// The block that the root cell names.
    pub struct Root: 64 {
        /// The kind of the index.
        pub kind: PmU64,
        /// The offset of the root node of the first layer.
        pub tree: PmU64,
        unused: [PmU64; 6],
    }
}

pod! {
    /// The first cache line of a node.
    ///
    /// ```text
    /// byte  0  lock         see `Lock`; never flushed
    /// byte  8  meta         see `Meta`; immutable
    /// byte 16  permutation  which entries count, and their order: see `Permutation`
    /// byte 24  classes      the classes of the keys of the entries: see `Classes`
    /// byte 32  next         offset of the next node of the level, 0 if this is the last
    /// byte 40  leftmost     the child for keys before the first entry; 0 in leaf nodes
    /// byte 48  low          the least key that belongs into the node: its bytes; immutable
    /// ```
    ///
    /// Stores to one line become durable in their order. So the classes are durable when the
    /// permutation is, and a new next node when the permutation without its entries is.
    pub struct Header: 64 {
        /// The lock, the version and the generation.
        pub lock: PmU64,
        /// The kind of the node, its level and its layer.
        pub meta: PmU64,
        /// The order of the entries. Its store commits most changes of the node.
        pub permutation: PmU64,
        /// The classes of the keys.
        pub classes: PmU64,
        /// The next node of the level.
        pub next: PmU64,
        /// The child for keys before the first entry.
        pub leftmost: PmU64,
        /// The bytes of the least key. Its class is in `meta`.
        pub low: PmU64,
        unused: PmU64,
    }
}

pod! {
    /// A slice of a key, and what it leads to.
    pub struct Entry: 16 {
        /// The bytes of the slice: see [`Slice`].
        pub key: PmU64,
        /// In a leaf node the word of the key, or for keys that go on a reference: see [`Below`].
        /// In other nodes the offset of the child for the key and those after it.
        pub value: PmU64,
    }
}

pod! {
    /// A node: five cache lines, of which an insertion flushes two.
    ///
    /// The published code has the same entries. The original Masstree has all keys before all
    /// values, so that a search reads fewer lines; an insertion would flush three.
    pub struct Node: 320 {
        /// The header.
        pub header: Header,
        /// The entries, in any order.
        pub entries: [Entry; 15],
        unused: [PmU64; 2],
    }
}

/// A part of a key: the eight bytes that a layer looks at, and how the key goes on.
///
/// The derived order is that of keys: the bytes are compared as a big-endian number, and of two
/// keys with the same bytes the shorter one comes first. Without the class, a key would be equal
/// to the same one with zeros behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slice {
    /// The bytes, big-endian, padded with zeros.
    pub bytes: u64,
    /// The number of bytes if the key ends with this slice, or 9 if it goes on.
    pub class: u8,
}

impl Slice {
    const GOES_ON: u8 = SLICE as u8 + 1;
    /// The slice before all others.
    pub const FIRST: Slice = Slice { bytes: 0, class: 0 };
    /// The slice after all others.
    pub const LAST: Slice = Slice { bytes: u64::MAX, class: Self::GOES_ON };

    /// Returns the slice of a key in the layer at this depth.
    #[inline(always)]
    pub fn of(key: &[u8], depth: usize) -> Self {
        let rest = key.get(depth * SLICE..).unwrap_or_default();
        match rest.first_chunk() {
            Some(first) => {
                let class = rest.len().min(SLICE + 1) as u8;
                Slice { bytes: u64::from_be_bytes(*first), class }
            }
            None => {
                let mut bytes = [0; SLICE];
                bytes[..rest.len()].copy_from_slice(rest);
                Slice { bytes: u64::from_be_bytes(bytes), class: rest.len() as u8 }
            }
        }
    }

    /// Returns `true` if the key has more bytes than this slice.
    #[inline(always)]
    pub fn goes_on(self) -> bool {
        self.class >= Self::GOES_ON
    }

    /// Appends the bytes of the slice to `out`.
    pub fn append_to(self, out: &mut Vec<u8>) {
        let length = usize::from(self.class).min(SLICE);
        out.extend_from_slice(&self.bytes.to_be_bytes()[..length]);
    }

    /// Appends the bytes of the first key with this slice to `out`.
    pub fn append_first_to(self, out: &mut Vec<u8>) {
        self.append_to(out);
        if self.goes_on() {
            out.push(0);
        }
    }
}

/// The order of the entries of a node.
///
/// ```text
/// bits  0..4          the number n of entries that count
/// bits  4..4 + 4n     their positions, in the order of their keys
/// the other bits      the positions of the free entries; the last one is used next
/// ```
///
/// One store inserts an entry that is written already, or removes one, or all from some key on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation(pub u64);

impl Permutation {
    /// No entries. Free ones are used in the order of their positions.
    pub const EMPTY: Permutation = Permutation(0x0123_4567_89ab_cde0);

    /// Returns the order of the first `count` entries, which are in order.
    pub fn identity(count: usize) -> Self {
        let insert = |order: Permutation, rank| order.with_inserted(rank);
        (0..count.min(ENTRIES)).fold(Self::EMPTY, insert)
    }

    /// Returns the number of entries that count.
    #[inline(always)]
    pub fn len(self) -> usize {
        (self.0 & 0xf) as usize
    }

    /// Returns `true` if no entries count.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if no entry is free.
    pub fn is_full(self) -> bool {
        self.len() >= ENTRIES
    }

    /// Returns the position of the entry with this rank, which is less than [`ENTRIES`].
    #[inline(always)]
    pub fn position(self, rank: usize) -> usize {
        (self.0 >> (4 * rank + 4) & 0xf) as usize
    }

    /// Returns the position of the free entry that is used next.
    pub fn free(self) -> usize {
        self.position(ENTRIES - 1)
    }

    /// Returns the order after the free entry has got a rank, which is not beyond the last.
    pub fn with_inserted(self, rank: usize) -> Self {
        let shift = 4 * rank + 4;
        let before = self.0 & ((1 << shift) - 1);
        let after = (self.0 >> shift) << shift;
        Permutation((before + 1) | (self.free() as u64) << shift | after << 4)
    }

    /// Returns the order without the entry of this rank, which is the next free one then.
    pub fn without(self, rank: usize) -> Self {
        let shift = 4 * rank + 4;
        let before = self.0 & ((1 << shift) - 1);
        let after = (self.0 >> shift >> 4) << shift;
        Permutation((before - 1) | after | (self.position(rank) as u64) << 60)
    }

    /// Returns the order of only the first `count` entries.
    pub fn truncated(self, count: usize) -> Self {
        Permutation(self.0 & !0xf | count as u64)
    }

    /// Returns `true` if each position occurs once.
    pub fn is_valid(self) -> bool {
        let set = (0..ENTRIES).fold(0u32, |set, rank| set | 1 << self.position(rank));
        set == (1 << ENTRIES) - 1
    }
}

/// The classes of the keys of a node's entries: four bits for each, see [`Slice::class`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes(pub u64);

impl Classes {
    /// Returns the class of the key at a position.
    #[inline(always)]
    pub fn of(self, position: usize) -> u8 {
        (self.0 >> (4 * position) & 0xf) as u8
    }

    /// Returns the word with another class for a position.
    pub fn with(self, position: usize, class: u8) -> Self {
        let shift = 4 * position;
        Classes(self.0 & !(0xf << shift) | u64::from(class) << shift)
    }
}

/// What a key that goes on leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// The offset of the only leaf whose key begins like this.
    Leaf(u64),
    /// The offset of the root node of the layer that has the keys which begin like this, or of a
    /// former one.
    Layer(u64),
}

impl Below {
    /// Returns what a word means: offsets are even, and that of a layer is stored plus one.
    #[inline(always)]
    pub fn from_word(word: u64) -> Self {
        if word & 1 == 0 { Below::Leaf(word) } else { Below::Layer(word & !1) }
    }

    /// Returns the word.
    pub fn word(self) -> u64 {
        match self {
            Below::Leaf(offset) => offset,
            Below::Layer(offset) => offset | 1,
        }
    }
}

/// What a node is.
///
/// ```text
/// bit  0..8   level: 0 for leaf nodes, and one more than that of the children for others
/// bit  8..12  class of the least key
/// bit 12..16  0
/// bit 16..32  depth of the layer: the number of slices of a key before the one it looks at
/// bit 32..64  "MASS"
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta(pub u64);

impl Meta {
    const MAGIC: u64 = u64::from_le_bytes(*b"\0\0\0\0MASS");

    /// Returns the word of a node.
    pub fn new(level: u8, depth: usize, low: Slice) -> Self {
        let (level, class) = (u64::from(level), u64::from(low.class));
        Meta(Self::MAGIC | (depth as u64) << 16 | class << 8 | level)
    }

    /// Returns `true` if the word is one of a node.
    #[inline(always)]
    pub fn is_valid(self) -> bool {
        self.0 >> 32 == Self::MAGIC >> 32
    }

    /// Returns the level.
    #[inline(always)]
    pub fn level(self) -> u8 {
        self.0 as u8
    }

    /// Returns the class of the least key.
    #[inline(always)]
    pub fn low_class(self) -> u8 {
        (self.0 >> 8) as u8 & 0xf
    }

    /// Returns the depth of the layer.
    #[inline(always)]
    pub fn depth(self) -> usize {
        usize::from((self.0 >> 16) as u16)
    }
}

#[cfg(test)]
mod tests {
    use evermap_index::record::KEY_MAX;

    use super::*;

    #[test]
    fn slices_are_ordered_as_keys() {
        // Every length around the border of a slice, with bytes that are padding elsewhere.
        let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
        for at in 0..9 {
            let longer = keys.iter().filter(|key| key.len() == at);
            let longer = longer.flat_map(|key| [0, 0xff].map(|byte| [&key[..], &[byte]].concat()));
            keys.extend(longer.collect::<Vec<_>>());
        }
        keys.sort();
        for pair in keys.windows(2) {
            let [one, other] = [Slice::of(&pair[0], 0), Slice::of(&pair[1], 0)];
            let both_go_on = one.goes_on() && one == other;
            assert!(one < other || both_go_on, "{pair:?}");
        }
        for key in &keys {
            let mut bytes = Vec::new();
            Slice::of(key, 0).append_to(&mut bytes);
            assert_eq!(bytes, key[..key.len().min(SLICE)]);
        }
        assert_eq!(Slice::of(b"", 0), Slice::FIRST);
        assert_eq!(Slice::of(&[0xff; 20], 1), Slice::LAST);
        assert_eq!(Slice::of(b"abcdefghij", 1), Slice::of(b"ij", 0));
    }

    #[test]
    fn a_permutation_is_a_list_of_positions() {
        assert_eq!(Permutation::identity(0), Permutation::EMPTY);
        let mut order = Permutation::EMPTY;
        let mut list = Vec::new();
        let mut random = 1u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let draw = (random >> 33) as usize;
            if list.is_empty() || list.len() < ENTRIES && draw % 16 < 9 {
                let rank = draw / 16 % (list.len() + 1);
                list.insert(rank, order.free());
                order = order.with_inserted(rank);
            } else if draw % 16 == 15 {
                list.truncate(draw / 16 % (list.len() + 1));
                order = order.truncated(list.len());
            } else {
                let rank = draw / 16 % list.len();
                order = order.without(rank);
                assert_eq!(list.remove(rank), order.free());
            }
            assert!(order.is_valid() && order.len() == list.len(), "{order:x?}");
            assert!((0..list.len()).all(|rank| order.position(rank) == list[rank]));
        }
        let full = Permutation::identity(ENTRIES);
        assert!(full.is_full() && (0..ENTRIES).all(|rank| full.position(rank) == rank));
        assert!(!Permutation(full.0 ^ 0x10).is_valid() && !Permutation(0).is_valid());
    }

    #[test]
    fn words_are_what_they_were_made_of() {
        let classes = Classes(0).with(14, 9).with(0, 3).with(14, 8);
        assert_eq!((classes.of(14), classes.of(0), classes.of(7)), (8, 3, 0));
        for below in [Below::Leaf(0x1230), Below::Layer(0x1240)] {
            assert_eq!(Below::from_word(below.word()), below);
        }
        let deepest = KEY_MAX / SLICE;
        let meta = Meta::new(7, deepest, Slice::LAST);
        assert_eq!((meta.level(), meta.depth(), meta.low_class()), (7, deepest, 9));
        assert!(meta.is_valid() && !Meta(7).is_valid());
    }
}
