//! The structures of P-BwTree in the region.

use evermap_pm::{PmU64, pod};

/// The number of ids in the first segment of the mapping table. Each segment is twice as large as
/// the one before it.
pub const FIRST_SEGMENT: u64 = 64;

/// The number of segments that a mapping table can have.
pub const SEGMENTS: usize = 26;

/// One more than the greatest id.
pub const IDS: u64 = FIRST_SEGMENT * ((1 << SEGMENTS) - 1);

pod! {
    /// The block that the root cell names.
    ///
    /// ```text
    /// byte  0  kind
    /// byte  8  tree      id of the root node; bit 63: may not be durable yet
    /// byte 16  reserve   offset of a free block of the usual size of a node, or 0
    /// byte 64  segments  offsets of the segments of the mapping table, 0 if there is none yet
    /// ```
    ///
    /// The reserve lets a node be consolidated, and so the space of removed keys be freed, when
    /// there is no other space.
    pub struct Root: 272 {
        /// The kind of the index, and the size of its nodes.
        pub kind: PmU64,
        /// The id of the root node.
        pub tree: PmU64,
        /// A block that is not in use.
        pub reserve: PmU64,
        unused: [PmU64; 5],
        /// The mapping table.
        pub segments: [PmU64; 26],
    }
}

/// The bit of [`Root::tree`] if that may not be durable yet.
pub const TREE_MARK: u64 = 1 << 63;

/// A word that names the newest part of a node: a word of the mapping table, or the first word of a
/// delta, which names what the node was before.
///
/// ```text
/// bit  0      it may not be durable yet: see `recipe::help`; only in the mapping table
/// bit  1      frozen: the node is being merged into its left neighbour; only in the mapping table
/// bit  2      new: no other node may name it yet; only in the mapping table
/// bit  3      the first delta is an intent
/// bit  4..48  the offset of the block, of which the low 4 bits are 0; all 0 if there is no node
/// bit 48..50  what the block is: see `Part`
/// bit 50..64  the number of deltas before the base node
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u64);

/// What a block of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A [base node](Base).
    Base,
    /// A [record](Record), which adds a key: the delta of an insert.
    Insert,
    /// An [`Intent`].
    Intent,
    /// Not the word of a node.
    None,
}

impl Link {
    /// The bit of a word that may not be durable yet.
    pub const MARK: u64 = 1;
    /// The bit of a node that is being merged into its left neighbour.
    pub const FROZEN: u64 = 2;
    /// The bit of a node that no other node may name yet.
    pub const NEW: u64 = 4;
    /// The greatest number of deltas.
    pub const DEPTH_MAX: u64 = (1 << 14) - 1;
    /// The bit of a node whose first delta is an intent.
    const INTENT: u64 = 8;
    const OFFSET: u64 = (1 << 48) - 16;
    const PART_SHIFT: u32 = 48;
    const DEPTH_SHIFT: u32 = 50;

    /// Returns the word of a node that is nothing but a base node.
    pub fn base(offset: u64) -> Self {
        Link(offset)
    }

    /// Returns the word of this node with one more delta.
    pub fn with(self, part: Part, offset: u64) -> Self {
        debug_assert!(self.depth() < Self::DEPTH_MAX);
        let intent = if part == Part::Intent { Self::INTENT } else { self.0 & Self::INTENT };
        let depth = self.depth() + 1;
        Link(offset | (part as u64) << Self::PART_SHIFT | depth << Self::DEPTH_SHIFT | intent)
    }

    /// Returns the word that this node had when a record was the newest of `depth` deltas.
    #[inline(always)]
    pub fn earlier(self, record: u64, depth: u64) -> Self {
        let intent = self.0 & Self::INTENT;
        let part = (Part::Insert as u64) << Self::PART_SHIFT;
        Link(record | part | depth << Self::DEPTH_SHIFT | intent)
    }

    /// Returns `true` if the first delta is an intent.
    #[inline(always)]
    pub fn has_intent(self) -> bool {
        self.0 & Self::INTENT != 0
    }

    /// Returns the word as a delta has it that follows.
    pub fn plain(self) -> Self {
        Link(self.0 & !(Self::MARK | Self::FROZEN | Self::NEW))
    }

    /// Returns `true` if there is no node.
    pub fn is_none(self) -> bool {
        self.0 & Self::OFFSET == 0
    }

    /// Returns the offset of the block.
    #[inline(always)]
    pub fn offset(self) -> u64 {
        self.0 & Self::OFFSET
    }

    /// Returns what the block is.
    #[inline(always)]
    pub fn part(self) -> Part {
        [Part::Base, Part::Insert, Part::Intent, Part::None]
            [(self.0 >> Self::PART_SHIFT & 3) as usize]
    }

    /// Returns the number of deltas.
    #[inline(always)]
    pub fn depth(self) -> u64 {
        self.0 >> Self::DEPTH_SHIFT
    }

    /// Returns `true` if the node is being merged into its left neighbour.
    #[inline(always)]
    pub fn is_frozen(self) -> bool {
        self.0 & Self::FROZEN != 0
    }

    /// Returns `true` if the word may be of a node that no other one names: a change was not
    /// complete, or was completed by a store that need not be durable.
    pub fn may_be_unlinked(self) -> bool {
        self.0 & (Self::FROZEN | Self::NEW) != 0
    }
}

/// The bytes of a record before its leaf.
pub const RECORD_HEADER: u64 = 16;

pod! {
    /// The first words of a record. A [`Leaf`](evermap_index::ordered::leaf::Leaf) follows, which
    /// has the key, and the word that it is bound to: in nodes that are not leaf nodes, the id of
    /// the child for the keys from this one on.
    ///
    /// ```text
    /// byte  0  next   what the node was before: see `Link`; only used while this is a delta
    /// byte  8  base   offset of the base node; only used while this is a delta
    /// byte 16  leaf
    /// ```
    ///
    /// When the node is consolidated, its base node gets a reference to the record, and `next` and
    /// `base` lose their meaning.
    pub struct Record: 16 {
        /// What the node was before the record was added.
        pub next: PmU64,
        /// The base node behind all deltas.
        pub base: PmU64,
    }
}

pod! {
    /// A delta of a node that is not a leaf node: one of its children is to be merged into the
    /// child before it. Its keys belong to that one from now on, which can be searched for them
    /// because it has a reference to its right neighbour. It directly precedes the base node.
    pub struct Intent: 16 {
        /// The word of the base node: see [`Link`].
        pub next: PmU64,
        /// The id of the child, which is not the first one of the base node.
        pub child: PmU64,
    }
}

/// The bytes of the block of an intent. It needs less, but as many as a record with a key of eight
/// bytes has: when there is no other space, there may be that of removed records.
pub const INTENT_BYTES: u64 = 48;

pod! {
    /// The first cache lines of a base node.
    ///
    /// ```text
    /// byte  0  meta         see `Meta`
    /// byte  8  count        number of entries; bit 32: there is space for copies
    /// byte 16  sibling      id of the next node of the level, 0 if this is the last
    /// byte 24  lengths      bytes of the least key, and of the one at which the next node begins:
    ///                       32 bits each
    /// byte 32  high_prefix  the first eight bytes of the latter
    /// byte 40  removed      how many keys were removed, roughly; never flushed
    /// byte 48  skip         number of bits that all keys of a leaf node have in common: see
    ///                       `LeafEntry`
    /// byte 56  copied_by    the generation of the opener that has made the node's copies, or
    ///                       another number if there are none; never flushed
    /// byte 64  deltas       which records are the deltas of the node, the oldest first:
    ///                       in leaf nodes, words: see `Delta`
    ///                       in others, pairs of words: the offset of the record, and its prefix
    ///                       0 if there is no such delta, or if only that can tell which comes next
    /// byte 192 entries      of leaf nodes: see `LeafEntry`; of others: see `INNER_ENTRY`
    ///          then the two keys, each padded to 8 bytes
    ///          then in some leaf nodes, from the next multiple of 16 bytes on: see `copies`
    /// ```
    ///
    /// `deltas` is a copy of what the deltas say, so that a search need not walk from each to the
    /// next. A word of it is stored once, when the delta is durable, and is never flushed: one that
    /// a crash has taken back is 0, as it was when the base node became durable. All else but
    /// `removed`, the copies, and what entries say of the base nodes of children, is immutable.
    pub struct Base: 192 {
        /// What the node is.
        pub meta: PmU64,
        /// The number of entries.
        pub count: PmU64,
        /// The id of the next node of the level.
        pub sibling: PmU64,
        /// The lengths of the least key and of the key at which the next node begins.
        pub lengths: PmU64,
        /// The prefix of the key at which the next node begins.
        pub high_prefix: PmU64,
        /// The number of keys that were removed: a hint that there is space to free.
        pub removed: PmU64,
        /// The number of bits of a key before its head.
        pub skip: PmU64,
        /// The generation of the opener that has made the copies.
        pub copied_by: PmU64,
        /// The deltas of the node.
        pub deltas: [PmU64; 16],
    }
}

/// A word of [`Base::deltas`] in a leaf node.
///
/// ```text
/// bit  4..48  the offset of the record, of which the low 4 bits are 0
/// bit 48..64  bits of the hash of its key
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta(pub u64);

impl Delta {
    const HASH_SHIFT: u32 = 48;

    /// Returns the word of a record whose key has this hash.
    pub fn new(record: u64, hash: u64) -> Self {
        Delta(record | hash >> Self::HASH_SHIFT << Self::HASH_SHIFT)
    }

    /// Returns the offset of the record.
    #[inline(always)]
    pub fn record(self) -> u64 {
        self.0 & ((1 << Self::HASH_SHIFT) - 1)
    }

    /// Returns `true` if the key of the record can have this hash.
    #[inline(always)]
    pub fn may_be_of(self, hash: u64) -> bool {
        (self.0 ^ hash) >> Self::HASH_SHIFT == 0
    }
}

/// The entry of a leaf node.
///
/// ```text
/// bit  0..44  the offset of the record in units of 16 bytes
/// bit 44..64  the head of the key
/// ```
///
/// The *head* of a key is the twenty bits that follow the first `Base::skip`, which are the same in
/// all keys that belong into the node. So heads are in the order of the keys. Few keys of a node
/// have the same head; only for these the records are compared. Behind the end of a key there are
/// zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry(pub u64);

impl LeafEntry {
    /// The number of bits before the head.
    pub const HEAD_SHIFT: u32 = 44;

    /// Returns the entry of a record.
    pub fn new(head: u64, record: u64) -> Self {
        LeafEntry(head << Self::HEAD_SHIFT | record >> 4)
    }

    /// Returns the head of the key.
    #[inline(always)]
    pub fn head(self) -> u64 {
        self.0 >> Self::HEAD_SHIFT
    }

    /// Returns the offset of the record.
    #[inline(always)]
    pub fn record(self) -> u64 {
        (self.0 & ((1 << Self::HEAD_SHIFT) - 1)) << 4
    }

    /// Returns the head of a key whose eight bytes from byte `8 * n` on are `word(n)`.
    #[inline(always)]
    pub fn head_of(word: impl Fn(usize) -> u64, skip: u64) -> u64 {
        let (at, bit) = ((skip / 64) as usize, skip as u32 % 64);
        let next =
            if bit > Self::HEAD_SHIFT { word(at.saturating_add(1)) >> (64 - bit) } else { 0 };
        (word(at) << bit | next) >> Self::HEAD_SHIFT
    }
}

/// The words of an entry of another node: the first eight bytes of the key, as a number, the offset
/// of its record, and a [`Child`]. The first entry of a level has no record: its key is the empty
/// one.
pub const INNER_ENTRY: usize = 3;

/// The last word of an entry of a node that is not a leaf node.
///
/// ```text
/// bit  0..32  the id of the child
/// bit 32..64  the offset of a base node that it has had, in units of 16 bytes; 0 if none is known
/// ```
///
/// The base node is only a guess: that is read while it is found out from the newest part of the
/// child what its base node is. So it need not be right, and only its low bits are there. Writers
/// that find that it is not the one store the word again, and do not flush it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child(pub u64);

impl Child {
    /// Returns the word of a child.
    pub fn new(id: u64, base: u64) -> Self {
        Child(id & 0xffff_ffff | base >> 4 << 32)
    }

    /// Returns the id of the child.
    #[inline(always)]
    pub fn id(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    /// Returns the offset at which its base node may be.
    #[inline(always)]
    pub fn base(self) -> u64 {
        self.0 >> 32 << 4
    }
}

/// The bytes for the two keys that the usual block of a node has space for.
pub const KEY_SPACE: u64 = 64;

/// What a base node is.
///
/// ```text
/// bit  0..8   level: 0 for leaf nodes, and one more than that of the children for others
/// bit  8..64  "BWTREE"
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta(pub u64);

impl Meta {
    const MAGIC: u64 = u64::from_le_bytes(*b"\0BWTREE\0");

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

/// Returns the number of words of an entry.
#[inline(always)]
pub fn entry_words(level: u8) -> usize {
    if level == 0 { 1 } else { INNER_ENTRY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_what_it_was_made_of() {
        let base = Link::base(0xffff_ffff_fff0);
        assert_eq!((base.offset(), base.part(), base.depth()), (0xffff_ffff_fff0, Part::Base, 0));
        let flagged = Link(base.0 | Link::MARK | Link::NEW | Link::FROZEN);
        assert!(flagged.is_frozen() && flagged.may_be_unlinked() && flagged.plain() == base);
        let insert = flagged.with(Part::Insert, 0x1230).with(Part::Intent, 0x4560);
        assert_eq!((insert.offset(), insert.part(), insert.depth()), (0x4560, Part::Intent, 2));
        assert!(!insert.is_frozen() && !insert.is_none() && Link(7).is_none());
        let above = insert.with(Part::Insert, 0x7890);
        assert!(above.has_intent() && insert.has_intent() && !base.has_intent());
        assert_eq!(above.with(Part::Insert, 0x10).earlier(0x7890, 3), above);
    }

    #[test]
    fn a_delta_is_what_it_was_made_of() {
        let (record, hash) = (0xffff_ffff_fff0, 0x1234_5678_9abc_def0);
        let delta = Delta::new(record, hash);
        assert!(delta.record() == record && delta.may_be_of(hash));
        assert!(!delta.may_be_of(hash ^ 1 << 48) && !delta.may_be_of(hash ^ 1 << 63));
    }

    #[test]
    fn a_head_is_the_bits_after_those_skipped() {
        let words = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0];
        let all = u128::from(words[0]) << 64 | u128::from(words[1]);
        for skip in 0..108 {
            let head = LeafEntry::head_of(|at| words[at], skip);
            assert_eq!(u128::from(head), all << skip >> 108, "{skip}");
            let entry = LeafEntry::new(head, 0xffff_ffff_fff0);
            assert_eq!((entry.head(), entry.record()), (head, 0xffff_ffff_fff0));
        }
    }

    #[test]
    fn a_child_is_what_it_was_made_of() {
        let child = Child::new(IDS - 1, 0xf_ffff_fff0);
        assert_eq!((child.id(), child.base()), (IDS - 1, 0xf_ffff_fff0));
        assert_eq!(Child::new(7, 0xffff_0000_0000_0010).id(), 7);
    }

    #[test]
    fn a_level_is_what_it_was_made_of() {
        assert_eq!((Meta::new(3).level(), Meta(7).level()), (Some(3), None));
    }
}
