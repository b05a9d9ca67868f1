//! The structures of the tree in the region: the root block, and the leaves.

use evermap_pm::{Medium, PmU64, Pool, pod};

pod! {
    /// The block that the root cell names.
    pub struct Root: 64 {
        /// The kind of the index.
        pub kind: PmU64,
        /// The offset of the first leaf.
        pub head: PmU64,
        unused: [PmU64; 6],
    }
}

pod! {
    /// The first line of a leaf. The [entries](Entry) follow.
    ///
    /// ```text
    /// byte  0  lock      see `Lock`; never flushed for its own sake
    /// byte  8  meta      see `meta`; immutable
    /// byte 16  count     the number of entries: what is behind them does not exist
    /// byte 24  sibling   offset of the next leaf, 0 if this is the last
    /// byte 32  low       the least key that belongs into the leaf: its first 16 bytes; immutable
    /// byte 48  low_rest  and the rest: see `Rest`; immutable
    /// byte 56  visible   the number of entries that lookups read: see `Visible`; follows `count`
    ///                    once that is durable, and is never flushed for its own sake
    /// ```
    pub struct Header: 64 {
        /// The lock, the version and the generation.
        pub lock: PmU64,
        /// What the block is.
        pub meta: PmU64,
        /// The number of entries. Its store commits an entry.
        pub count: PmU64,
        /// The next leaf. Its store commits a split, a merge or a replacement.
        pub sibling: PmU64,
        /// The first 16 bytes of the least key.
        pub low: [PmU64; 2],
        /// The rest of the least key.
        pub low_rest: PmU64,
        /// The number of entries that lookups read.
        pub visible: PmU64,
    }
}

pod! {
    /// A key and what happened to it. Two of them fill a line, so none is in two lines.
    pub struct Entry: 32 {
        /// Whether the key is bound, and the rest of the key: see [`State`].
        pub state: PmU64,
        /// The first 16 bytes of the key, as numbers that are ordered as the bytes are, padded with
        /// zeros.
        pub key: [PmU64; 2],
        /// The word that the key is bound to.
        pub word: PmU64,
    }
}

const _: () = assert!(64 % size_of::<Entry>() == 0);

/// Returns the size in bytes of a leaf with this number of entries.
pub const fn leaf_bytes(entries: usize) -> u64 {
    (size_of::<Header>() + entries * size_of::<Entry>()) as u64
}

/// Returns the size in bytes of the block of a leaf with this number of entries, which begins with
/// a line.
pub fn block_bytes<M: Medium>(pool: &Pool<M>, entries: usize) -> u64 {
    let bytes = leaf_bytes(entries);
    // Very small extents have blocks of sizes of their own.
    let is_aligned = pool.block_size(bytes).is_multiple_of(64);
    if is_aligned { bytes } else { bytes.next_power_of_two() }
}

/// Returns the second word of a leaf with this number of entries.
pub const fn meta(entries: usize) -> u64 {
    u64::from_le_bytes(*b"NVLEAF\0\0") | (entries as u64) << 48
}

/// What the first 16 bytes of a key do not tell.
///
/// ```text
/// bit 0      0: see `State`
/// bit 1      the key is longer than 16 bytes
/// bit 2      1, so that a word of zeros is none of these
/// bit 3..64  offset of a block with the key, without its lowest bits; or else the length in bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest(pub u64);

impl Rest {
    /// There is no key: the leaf is the first one.
    pub const NONE: Rest = Rest(0);
    /// After all keys.
    pub const END: Rest = Rest(!State::LIVE);
    /// The length of the longest key that needs no block.
    pub const INLINE: usize = 16;

    const LONG: u64 = 2;
    const PRESENT: u64 = 4;
    const SHIFT: u32 = 3;

    /// Returns the rest of a key with this length, at most [`INLINE`](Self::INLINE).
    pub fn of_length(length: usize) -> Self {
        Rest((length as u64) << Self::SHIFT | Self::PRESENT)
    }

    /// Returns the rest of a key that is in the block at an offset.
    pub fn of_block(offset: u64) -> Self {
        Rest(offset | Self::LONG | Self::PRESENT)
    }

    /// Returns the offset of the block with the key, if it has one.
    pub fn block(self) -> Option<u64> {
        let is_long = self.0 & Self::LONG != 0 && self != Self::END;
        is_long.then_some(self.0 >> Self::SHIFT << Self::SHIFT)
    }

    /// Returns the length of a key that has no block.
    pub fn length(self) -> usize {
        ((self.0 >> Self::SHIFT) as usize).min(Self::INLINE)
    }
}

/// The first word of an entry: the [`Rest`] of its key, and in bit 0 whether the key is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// The state of an entry of no key.
    pub const VOID: State = State(0);

    const LIVE: u64 = 1;

    /// Returns the state of a key that is bound, or of one that is not any more.
    pub fn new(rest: Rest, live: bool) -> Self {
        State(rest.0 | u64::from(live))
    }

    /// Returns `true` if the key is bound.
    pub fn is_live(self) -> bool {
        self.0 & Self::LIVE != 0
    }

    /// Returns the rest of the key.
    pub fn rest(self) -> Rest {
        Rest(self.0 & !Self::LIVE)
    }
}

/// The number of entries that lookups read, all of which are durable.
///
/// ```text
/// bit 0..16   the number of entries
/// bit 16..64  version: odd while an entry is being changed in place, which happens only if there
///             is no space for another leaf
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible(pub u64);

impl Visible {
    const ONE: u64 = 1 << 16;

    /// Returns the word of a leaf in which nothing was changed in place.
    pub fn new(count: usize) -> Self {
        Visible(count as u64)
    }

    /// Returns the number of entries.
    pub fn count(self) -> usize {
        (self.0 & (Self::ONE - 1)) as usize
    }

    /// Returns the word after another entry was appended.
    pub fn with_count(self, count: usize) -> Self {
        Visible((self.0 & !(Self::ONE - 1)) | count as u64)
    }

    /// Returns the version.
    pub fn version(self) -> u64 {
        self.0 / Self::ONE
    }

    /// Returns the word after the beginning or the end of a change in place.
    pub fn next_version(self) -> Self {
        Visible(self.0.wrapping_add(Self::ONE))
    }

    /// Returns `true` during a change in place.
    pub fn is_changing(self) -> bool {
        self.version() % 2 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_what_it_was_made_of() {
        for length in [0, 1, 16] {
            let rest = Rest::of_length(length);
            assert_eq!((rest.block(), rest.length()), (None, length));
            assert!(State::new(rest, true).is_live() && !State::new(rest, false).is_live());
            assert_eq!(State::new(rest, true).rest(), rest);
        }
        let rest = Rest::of_block(0x1238);
        assert_eq!(State::new(rest, true).rest().block(), Some(0x1238));
        assert_eq!((Rest::NONE.block(), Rest::END.block()), (None, None));
    }

    #[test]
    fn what_is_visible_has_a_version() {
        let visible = Visible::new(7);
        assert!(!visible.is_changing() && visible.next_version().is_changing());
        let later = visible.next_version().next_version().with_count(3);
        assert_eq!((later.count(), later.version(), later.is_changing()), (3, 2, false));
    }
}
