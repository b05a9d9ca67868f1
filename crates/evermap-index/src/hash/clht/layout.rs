//! What P-CLHT keeps in the region. The pictures are in the documentation of the types.

use evermap_pm::{Error, PmU64, Result, pod};

/// Pairs in a bucket.
pub const PAIRS: usize = 3;
/// Bytes in a bucket: a cache line.
pub const BUCKET_BYTES: u64 = 64;
/// Fewest home buckets of a table, as a power of two.
pub const BITS_MIN: u32 = 2;
/// Most home buckets of a table that is believed, as a power of two.
pub const BITS_MAX: u32 = 40;

const OFFSET: u64 = (1 << 48) - 1;
const ALL_PAIRS: u64 = (1 << PAIRS) - 1;

pod! {
    /// A key and its word.
    pub struct Pair: 16 {
        /// The key, or its hash.
        pub key: PmU64,
        /// The value, or where it is.
        pub word: PmU64,
    }
}

pod! {
    /// A bucket: one cache line, which becomes durable in program order.
    ///
    /// ```text
    /// byte  0  control   see `Control`; what readers go by; never flushed for its own sake
    /// byte  8  link      see `Link`; what a crash goes by; storing it commits an insert or a removal
    /// byte 16  3 pairs   key, word
    /// ```
    ///
    /// A home bucket is part of a table; further ones hang behind it, by their links.
    pub struct Bucket: 64 {
        /// Lock, version, and which pairs readers see.
        pub control: PmU64,
        /// Which places hold pairs, and the next bucket of the chain.
        pub link: PmU64,
        /// The pairs.
        pub pairs: [Pair; PAIRS],
    }
}

pod! {
    /// What the root cell names.
    pub struct Root: 64 {
        /// Which index and key format this is.
        pub kind: PmU64,
        /// The table: see [`Table`].
        pub table: PmU64,
        /// Fewest home buckets that the table may shrink to, as a power of two.
        pub floor: PmU64,
        reserved: [PmU64; 5],
    }
}

/// Which places of a bucket: bit i for place i.
pub type Places = u32;

/// The lowest place that is not among `taken`.
#[inline(always)]
pub fn free_place(taken: Places) -> Option<usize> {
    let place = taken.trailing_ones() as usize;
    (place < PAIRS).then_some(place)
}

/// The first word of a bucket.
///
/// ```text
/// bit  0..16  generation    low bits of the opener that wrote it; any other means "not recovered yet"
/// bit 16      locked        home buckets: somebody changes the chain
/// bit 17      frozen        home buckets: locked because the table is being replaced; readers go on
/// bit 18..21  visible       places whose pairs readers see: those whose commit is durable
/// bit 21..24  overwritten   of these, places whose word is being replaced and may not be durable
/// bit 24..64  version       counts the times that a pair went or changed
/// ```
///
/// All of it follows from `link`, so none of it need be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control(pub u64);

impl Control {
    const LOCKED: u64 = 1 << 16;
    const FROZEN: u64 = 1 << 17;
    const VISIBLE: u32 = 18;
    const OVERWRITTEN: u32 = 21;
    const VERSION: u64 = 1 << 24;
    /// What stays the same as long as no pair goes or changes.
    const OF_PAIRS: u64 = !(Self::LOCKED | Self::FROZEN | ALL_PAIRS << Self::VISIBLE);

    /// An unlocked word of this opener.
    #[inline(always)]
    pub fn fresh(generation: u64, visible: Places) -> Self {
        Control(generation & 0xffff | u64::from(visible) << Self::VISIBLE)
    }

    /// Whether the opener `generation` wrote it.
    #[inline(always)]
    pub fn is_of(self, generation: u64) -> bool {
        self.0 as u16 == generation as u16
    }

    /// Whether somebody holds the chain, for a change or for good.
    #[inline(always)]
    pub fn is_locked(self) -> bool {
        self.0 & Self::LOCKED != 0
    }

    /// Whether the table is being replaced, or was.
    #[inline(always)]
    pub fn is_frozen(self) -> bool {
        self.0 & Self::FROZEN != 0
    }

    /// Whether the opener `generation` wrote it, and nobody holds the chain.
    #[inline(always)]
    pub fn is_lockable(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::LOCKED | 0xffff) == 0
    }

    /// The same, held.
    #[inline(always)]
    pub fn locked(self) -> Self {
        Control(self.0 | Self::LOCKED)
    }

    /// The same, held for the replacement of the table.
    #[inline(always)]
    pub fn frozen(self) -> Self {
        Control(self.0 | Self::LOCKED | Self::FROZEN)
    }

    /// The same, free.
    #[inline(always)]
    pub fn released(self) -> Self {
        Control(self.0 & !(Self::LOCKED | Self::FROZEN))
    }

    /// Places whose pairs readers see.
    #[inline(always)]
    pub fn visible(self) -> Places {
        (self.0 >> Self::VISIBLE & ALL_PAIRS) as Places
    }

    /// Whether the word of the pair in `place` is being replaced.
    #[inline(always)]
    pub fn is_overwritten(self, place: usize) -> bool {
        self.0 >> (Self::OVERWRITTEN + place as u32) & 1 == 1
    }

    /// With a pair in `place`, which was free.
    #[inline(always)]
    pub fn with(self, place: usize) -> Self {
        Control(self.0 | 1 << (Self::VISIBLE + place as u32))
    }

    /// Without the pair in `place`.
    #[inline(always)]
    pub fn without(self, place: usize) -> Self {
        Control(self.0 & !(1 << (Self::VISIBLE + place as u32))).advanced()
    }

    /// With the word of the pair in `place` in between: readers that want it must wait.
    #[inline(always)]
    pub fn overwriting(self, place: usize) -> Self {
        Control(self.0 | 1 << (Self::OVERWRITTEN + place as u32))
    }

    /// With that done.
    #[inline(always)]
    pub fn overwritten(self, place: usize) -> Self {
        Control(self.0 & !(1 << (Self::OVERWRITTEN + place as u32))).advanced()
    }

    #[inline(always)]
    fn advanced(self) -> Self {
        // The version is at the top: its carry falls off the end of the word.
        Control(self.0.wrapping_add(Self::VERSION))
    }

    /// Whether no pair has gone or changed between reading this word and reading `later`. Others may have come.
    #[inline(always)]
    pub fn has_same_pairs(self, later: Self) -> bool {
        (self.0 ^ later.0) & Self::OF_PAIRS == 0
    }
}

/// The second word of a bucket.
///
/// ```text
/// bit 0..3   taken   places that hold pairs
/// bit 3..48  next    offset of the next bucket of the chain, a multiple of 64; 0: none
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Link(pub u64);

impl Link {
    /// Places that hold pairs.
    #[inline(always)]
    pub fn taken(self) -> Places {
        (self.0 & ALL_PAIRS) as Places
    }

    /// Whether the chain ends here.
    #[inline(always)]
    pub fn is_last(self) -> bool {
        self.0 <= ALL_PAIRS
    }

    /// Offset of the next bucket as it is stored, 0 for none: for passing it on.
    #[inline(always)]
    pub fn rest(self) -> u64 {
        self.0 & !ALL_PAIRS
    }

    /// Offset of the next bucket, 0 for none: for following it.
    ///
    /// # Errors
    /// `Damaged` if there are bits that are never set.
    #[inline(always)]
    pub fn next(self) -> Result<u64> {
        const POSSIBLE: u64 = OFFSET & !(BUCKET_BYTES - 1);
        if self.rest() & !POSSIBLE != 0 {
            return Err(Error::damaged(self.rest() & POSSIBLE, "impossible link of a bucket"));
        }
        Ok(self.rest())
    }

    /// With a pair in `place`.
    #[inline(always)]
    pub fn with(self, place: usize) -> Self {
        Link(self.0 | 1 << place)
    }

    /// Without the pair in `place`.
    #[inline(always)]
    pub fn without(self, place: usize) -> Self {
        Link(self.0 & !(1 << place))
    }

    /// Followed by the bucket at `next`.
    #[inline(always)]
    pub fn followed_by(self, next: u64) -> Self {
        Link(self.0 & ALL_PAIRS | next)
    }
}

/// A table: `2^bits` home buckets one after the other. The low bits of a hash pick one.
///
/// ```text
/// bit  0..48  offset of the first, a multiple of 64
/// bit 48..64  bits
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    /// Where the first home bucket is.
    pub offset: u64,
    /// How many there are, as a power of two.
    pub bits: u32,
}

impl Table {
    /// As stored.
    #[inline(always)]
    pub fn encode(self) -> u64 {
        self.offset | u64::from(self.bits) << 48
    }

    /// As read, whether or not it makes sense.
    #[inline(always)]
    pub fn decode(word: u64) -> Self {
        Table { offset: word & OFFSET, bits: (word >> 48) as u32 }
    }

    /// Whether there can be such a table.
    pub fn is_possible(self) -> bool {
        (BITS_MIN..=BITS_MAX).contains(&self.bits)
            && self.offset != 0
            && self.offset.is_multiple_of(BUCKET_BYTES)
    }

    /// Home buckets.
    #[inline(always)]
    pub fn buckets(self) -> u64 {
        1 << (self.bits & 63)
    }

    /// Bytes of all home buckets.
    pub fn bytes(self) -> u64 {
        self.buckets() * BUCKET_BYTES
    }

    /// Number of the home bucket of a hash.
    #[inline(always)]
    pub fn home_of(self, hash: u64) -> u64 {
        hash & (self.buckets() - 1)
    }

    /// Offset of the home bucket with this number.
    #[inline(always)]
    pub fn home(self, number: u64) -> u64 {
        self.offset + number * BUCKET_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_fields_do_not_touch_each_other() {
        let mut control = Control::fresh(0xabc_1234, 0);
        for place in 0..PAIRS {
            control = control.with(place);
        }
        assert!(control.is_of(0x1234) && control.is_lockable(0x1234) && control.visible() == 7);
        let held = control.frozen();
        assert!(held.is_locked() && held.is_frozen() && !held.is_lockable(0x1234));
        assert_eq!(held.released(), control);
        assert!(control.has_same_pairs(held));
        let busy = control.locked().overwriting(1);
        assert!(busy.is_overwritten(1) && !busy.is_overwritten(0) && !busy.is_frozen());
        assert!(!control.has_same_pairs(busy));
        let done = busy.overwritten(1).released();
        assert!(!done.is_overwritten(1) && !control.has_same_pairs(done));
        assert_eq!(done.visible(), 7);
        let last = Control(u64::MAX).without(2);
        assert_eq!(last.0, 0xef_ffff, "the version wraps without touching what is below it");
    }

    #[test]
    fn a_pair_that_comes_disturbs_nobody_and_one_that_goes_does() {
        let before = Control::fresh(7, 0b001);
        assert!(before.has_same_pairs(before.with(1)));
        let gone = before.without(0);
        assert!(!before.has_same_pairs(gone));
        // The place is filled again: it looks as before but for the version.
        assert!(!before.has_same_pairs(gone.with(0)));
    }

    #[test]
    fn links_keep_places_and_successor_apart() {
        let link = Link::default().with(2).followed_by(0x1_0000_0040).with(0).without(2);
        assert_eq!((link.taken(), link.next().unwrap()), (1, 0x1_0000_0040));
        assert!(!link.is_last() && link.followed_by(0).is_last());
        for bit in (3..6).chain(48..64) {
            assert!(Link(link.0 | 1 << bit).next().is_err(), "bit {bit} is never set");
        }
        assert_eq!((free_place(0b101), free_place(0b111)), (Some(1), None));
    }

    #[test]
    fn tables_are_told_from_other_words() {
        let table = Table { offset: 0x4_0000, bits: 9 };
        assert_eq!(Table::decode(table.encode()), table);
        assert_eq!((table.home_of(u64::MAX), table.home(511)), (511, 0x4_0000 + 511 * 64));
        assert!(table.is_possible());
        for word in [0, u64::MAX, 9 << 48, 0x4_0020 | 9 << 48, 0x4_0000 | 41 << 48] {
            assert!(!Table::decode(word).is_possible(), "{word:#x}");
        }
    }
}
