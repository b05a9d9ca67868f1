//! The persistent layout of P-CLHT, which is drawn in the documentation of the types.

use evermap_pm::{Error, PmU64, Result, pod};

/// The number of pairs in a bucket.
pub const PAIRS: usize = 3;
/// The size of a bucket, bytes: a cache line.
pub const BUCKET_BYTES: u64 = 64;
/// The binary logarithm of the smallest number of home buckets.
pub const BITS_MIN: u32 = 2;
/// The binary logarithm of the largest number of home buckets that is accepted when a table is
/// read.
pub const BITS_MAX: u32 = 40;

const OFFSET: u64 = (1 << 48) - 1;
const ALL_PAIRS: u64 = (1 << PAIRS) - 1;

pod! {
    /// A key and its word.
    pub struct Pair: 16 {
        /// The key, or its hash.
        pub key: PmU64,
        /// The value, or the offset of the record.
        pub word: PmU64,
    }
}

pod! {
    /// A bucket: one cache line, which becomes durable in program order.
    ///
    /// ```text
    /// byte  0  control   see `Control`; what readers follow; never flushed for its own sake
    /// byte  8  link      see `Link`; recovery follows it; its store commits an insert or a removal
    /// byte 16  3 pairs   key, word
    /// ```
    ///
    /// A home bucket is part of a table. Overflow buckets are linked to it.
    pub struct Bucket: 64 {
        /// The lock, the version, and which pairs readers see.
        pub control: PmU64,
        /// The slots that hold pairs, and the next bucket of the chain.
        pub link: PmU64,
        /// The pairs.
        pub pairs: [Pair; PAIRS],
    }
}

pod! {
    /// The block that the root cell names.
    pub struct Root: 64 {
        /// The kind of the index and its key format.
        pub kind: PmU64,
        /// The table: see [`Table`].
        pub table: PmU64,
        /// The binary logarithm of the smallest number of home buckets that the table may shrink
        /// to.
        pub floor: PmU64,
        reserved: [PmU64; 5],
    }
}

/// A set of slots of a bucket: bit i for slot i.
pub type SlotMask = u32;

/// Returns the lowest slot that is not in `taken`, or `None` if the bucket is full.
#[inline(always)]
pub fn free_slot(taken: SlotMask) -> Option<usize> {
    let slot = taken.trailing_ones() as usize;
    (slot < PAIRS).then_some(slot)
}

/// The first word of a bucket.
///
/// ```text
/// bit  0..16  generation    low bits of the generation; any other means "not recovered"
/// bit 16      locked        home buckets: a thread changes the chain
/// bit 17      frozen        home buckets: locked for a replacement of the table; still readable
/// bit 18..21  visible       slots whose pairs readers see: those whose commit is durable
/// bit 21..24  overwritten   visible slots whose word is being replaced and may not be durable
/// bit 24..64  version       number of removals and changes of pairs
/// ```
///
/// All of it can be rebuilt from `link`, so none of it need be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control(pub u64);

impl Control {
    const LOCKED: u64 = 1 << 16;
    const FROZEN: u64 = 1 << 17;
    const VISIBLE: u32 = 18;
    const OVERWRITTEN: u32 = 21;
    const VERSION: u64 = 1 << 24;
    /// The bits that stay the same until a pair is removed or changed.
    const OF_PAIRS: u64 = !(Self::LOCKED | Self::FROZEN | ALL_PAIRS << Self::VISIBLE);

    /// Returns an unlocked word of this opener.
    #[inline(always)]
    pub fn fresh(generation: u64, visible: SlotMask) -> Self {
        Control(generation & 0xffff | u64::from(visible) << Self::VISIBLE)
    }

    /// Returns `true` if the opener `generation` wrote the word.
    #[inline(always)]
    pub fn is_of(self, generation: u64) -> bool {
        self.0 as u16 == generation as u16
    }

    /// Returns `true` if a thread holds the chain, or the chain is frozen.
    #[inline(always)]
    pub fn is_locked(self) -> bool {
        self.0 & Self::LOCKED != 0
    }

    /// Returns `true` if the table is being replaced, or has been.
    #[inline(always)]
    pub fn is_frozen(self) -> bool {
        self.0 & Self::FROZEN != 0
    }

    /// Returns `true` if the opener `generation` wrote the word, and the chain is not locked.
    #[inline(always)]
    pub fn is_lockable(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::LOCKED | 0xffff) == 0
    }

    /// Returns the word with the chain locked.
    #[inline(always)]
    pub fn locked(self) -> Self {
        Control(self.0 | Self::LOCKED)
    }

    /// Returns the word with the chain locked for the replacement of the table.
    #[inline(always)]
    pub fn frozen(self) -> Self {
        Control(self.0 | Self::LOCKED | Self::FROZEN)
    }

    /// Returns the word with the chain unlocked.
    #[inline(always)]
    pub fn released(self) -> Self {
        Control(self.0 & !(Self::LOCKED | Self::FROZEN))
    }

    /// Returns the slots whose pairs readers see.
    #[inline(always)]
    pub fn visible(self) -> SlotMask {
        (self.0 >> Self::VISIBLE & ALL_PAIRS) as SlotMask
    }

    /// Returns `true` if the word of the pair in `slot` is being replaced.
    #[inline(always)]
    pub fn is_overwritten(self, slot: usize) -> bool {
        self.0 >> (Self::OVERWRITTEN + slot as u32) & 1 == 1
    }

    /// Returns the word with a pair in `slot`, which was free.
    #[inline(always)]
    pub fn with(self, slot: usize) -> Self {
        Control(self.0 | 1 << (Self::VISIBLE + slot as u32))
    }

    /// Returns the word without the pair in `slot`.
    #[inline(always)]
    pub fn without(self, slot: usize) -> Self {
        Control(self.0 & !(1 << (Self::VISIBLE + slot as u32))).advanced()
    }

    /// Returns the word with the pair in `slot` being replaced, so that its readers wait.
    #[inline(always)]
    pub fn overwriting(self, slot: usize) -> Self {
        Control(self.0 | 1 << (Self::OVERWRITTEN + slot as u32))
    }

    /// Returns the word with the replacement of the pair in `slot` completed.
    #[inline(always)]
    pub fn overwritten(self, slot: usize) -> Self {
        Control(self.0 & !(1 << (Self::OVERWRITTEN + slot as u32))).advanced()
    }

    #[inline(always)]
    fn advanced(self) -> Self {
        // The version is in the highest bits, so that its carry is lost.
        Control(self.0.wrapping_add(Self::VERSION))
    }

    /// Returns `true` if no pair was removed or changed between reading this word and reading
    /// `later`. Others may have been added.
    #[inline(always)]
    pub fn has_same_pairs(self, later: Self) -> bool {
        (self.0 ^ later.0) & Self::OF_PAIRS == 0
    }
}

/// The second word of a bucket.
///
/// ```text
/// bit 0..3   taken   slots that hold pairs
/// bit 3..48  next    offset of the next bucket of the chain, a multiple of 64; 0 if there is none
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Link(pub u64);

impl Link {
    /// Returns the slots that hold pairs.
    #[inline(always)]
    pub fn taken(self) -> SlotMask {
        (self.0 & ALL_PAIRS) as SlotMask
    }

    /// Returns `true` if this is the last bucket of its chain.
    #[inline(always)]
    pub fn is_last(self) -> bool {
        self.0 <= ALL_PAIRS
    }

    /// Returns the offset of the next bucket as it is stored, for copying it. 0 if there is none.
    #[inline(always)]
    pub fn rest(self) -> u64 {
        self.0 & !ALL_PAIRS
    }

    /// Returns the offset of the next bucket, for reading it. 0 if there is none.
    ///
    /// # Errors
    /// `Damaged` if bits are set that are always clear.
    #[inline(always)]
    pub fn next(self) -> Result<u64> {
        const POSSIBLE: u64 = OFFSET & !(BUCKET_BYTES - 1);
        if self.rest() & !POSSIBLE != 0 {
            return Err(Error::damaged(self.rest() & POSSIBLE, "impossible link of a bucket"));
        }
        Ok(self.rest())
    }

    /// Returns the link with a pair in `slot`.
    #[inline(always)]
    pub fn with(self, slot: usize) -> Self {
        Link(self.0 | 1 << slot)
    }

    /// Returns the link without the pair in `slot`.
    #[inline(always)]
    pub fn without(self, slot: usize) -> Self {
        Link(self.0 & !(1 << slot))
    }

    /// Returns the link with the bucket at `next` as successor.
    #[inline(always)]
    pub fn followed_by(self, next: u64) -> Self {
        Link(self.0 & ALL_PAIRS | next)
    }
}

/// A table: `2^bits` contiguous home buckets. The low bits of a hash choose one.
///
/// ```text
/// bit  0..48  offset of the first home bucket, a multiple of 64
/// bit 48..64  bits
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    /// The offset of the first home bucket.
    pub offset: u64,
    /// The binary logarithm of the number of home buckets.
    pub bits: u32,
}

impl Table {
    /// Returns the word that stores this table.
    #[inline(always)]
    pub fn encode(self) -> u64 {
        self.offset | u64::from(self.bits) << 48
    }

    /// Decodes a stored word, which may be any word.
    #[inline(always)]
    pub fn decode(word: u64) -> Self {
        Table { offset: word & OFFSET, bits: (word >> 48) as u32 }
    }

    /// Returns `true` if such a table can exist.
    pub fn is_possible(self) -> bool {
        (BITS_MIN..=BITS_MAX).contains(&self.bits)
            && self.offset != 0
            && self.offset.is_multiple_of(BUCKET_BYTES)
    }

    /// Returns the number of home buckets.
    #[inline(always)]
    pub fn buckets(self) -> u64 {
        1 << (self.bits & 63)
    }

    /// Returns the size of all home buckets, bytes.
    pub fn bytes(self) -> u64 {
        self.buckets() * BUCKET_BYTES
    }

    /// Returns the number of the home bucket of a hash.
    #[inline(always)]
    pub fn home_of(self, hash: u64) -> u64 {
        hash & (self.buckets() - 1)
    }

    /// Returns the offset of the home bucket with this number.
    #[inline(always)]
    pub fn home(self, number: u64) -> u64 {
        self.offset + number * BUCKET_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_fields_do_not_overlap() {
        let mut control = Control::fresh(0xabc_1234, 0);
        for slot in 0..PAIRS {
            control = control.with(slot);
        }
        assert!(control.is_of(0x1234) && control.is_lockable(0x1234) && control.visible() == 7);
        let frozen = control.frozen();
        assert!(frozen.is_locked() && frozen.is_frozen() && !frozen.is_lockable(0x1234));
        assert_eq!(frozen.released(), control);
        assert!(control.has_same_pairs(frozen));
        let busy = control.locked().overwriting(1);
        assert!(busy.is_overwritten(1) && !busy.is_overwritten(0) && !busy.is_frozen());
        assert!(!control.has_same_pairs(busy));
        let done = busy.overwritten(1).released();
        assert!(!done.is_overwritten(1) && !control.has_same_pairs(done));
        assert_eq!(done.visible(), 7);
        let last = Control(u64::MAX).without(2);
        assert_eq!(last.0, 0xef_ffff, "the version wraps without changing the bits below it");
    }

    #[test]
    fn insertions_keep_the_version_and_removals_change_it() {
        let before = Control::fresh(7, 0b001);
        assert!(before.has_same_pairs(before.with(1)));
        let gone = before.without(0);
        assert!(!before.has_same_pairs(gone));
        // The slot is filled again: only the version differs from before.
        assert!(!before.has_same_pairs(gone.with(0)));
    }

    #[test]
    fn links_keep_slots_and_successor_apart() {
        let link = Link::default().with(2).followed_by(0x1_0000_0040).with(0).without(2);
        assert_eq!((link.taken(), link.next().unwrap()), (1, 0x1_0000_0040));
        assert!(!link.is_last() && link.followed_by(0).is_last());
        for bit in (3..6).chain(48..64) {
            assert!(Link(link.0 | 1 << bit).next().is_err(), "bit {bit} is never set");
        }
        assert_eq!((free_slot(0b101), free_slot(0b111)), (Some(1), None));
    }

    #[test]
    fn impossible_tables_are_refused() {
        let table = Table { offset: 0x4_0000, bits: 9 };
        assert_eq!(Table::decode(table.encode()), table);
        assert_eq!((table.home_of(u64::MAX), table.home(511)), (511, 0x4_0000 + 511 * 64));
        assert!(table.is_possible());
        for word in [0, u64::MAX, 9 << 48, 0x4_0020 | 9 << 48, 0x4_0000 | 41 << 48] {
            assert!(!Table::decode(word).is_possible(), "{word:#x}");
        }
    }
}
