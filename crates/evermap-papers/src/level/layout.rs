//! The persistent layout of Level hashing, which is drawn in the documentation of the types.

use evermap_pm::{PmU64, pod};

/// The number of slots in a bucket. A geometry may use fewer.
pub const SLOTS_MAX: usize = 6;
/// The number of slots in one cache line of a bucket, which also contains their tokens.
pub const LINE_SLOTS: usize = 3;
/// The size of a bucket, bytes.
pub const BUCKET_BYTES: u64 = 128;
/// The number of entries of a root: levels have up to `2^(SIZES - 1)` buckets.
pub const SIZES: usize = 42;

pod! {
    /// A slot for a record: 16 bytes, within one cache line.
    pub struct Slot: 16 {
        /// The key, or its hash.
        pub key: PmU64,
        /// The value, or the offset of the record.
        pub word: PmU64,
    }
}

pod! {
    /// A bucket: two cache lines, each with three slots and their tokens.
    ///
    /// ```text
    /// byte   0  version   see `Version`; never flushed
    /// byte   8  meta      see `Meta`; its store commits changes of slots 0 to 2
    /// byte  16  slots 0 to 2
    /// byte  64  tokens    of slots 3 to 5, one bit each; its store commits changes of these slots
    /// byte  72  stripe    see `Locking::Striped`; only used in some buckets, void after a crash
    /// byte  80  slots 3 to 5
    /// ```
    ///
    /// A line persists in program order, so storing a slot and then its token takes one flush and
    /// one fence.
    pub struct Bucket: 128 {
        /// The lock, the version, and the state of the bucket during growth.
        pub version: PmU64,
        /// All tokens and fingerprints: in most buckets a lookup reads no more.
        pub meta: PmU64,
        /// Slots 0 to 2.
        pub near: [Slot; LINE_SLOTS],
        /// The tokens of slots 3 to 5, which recovery uses.
        pub tokens: PmU64,
        /// The lock of the neighbouring buckets that share one, in the first of these.
        pub stripe: PmU64,
        /// Slots 3 to 5.
        pub far: [Slot; LINE_SLOTS],
    }
}

const _: () = assert!(std::mem::offset_of!(Bucket, tokens) == 64);

pod! {
    /// The block that the root cell names.
    pub struct Root: 384 {
        /// The kind of the index, its key format and its geometry.
        pub kind: PmU64,
        /// Bit 0: [how the table grows](super::Resize). Bit 1: [which locks](super::Locking)
        /// lookups take.
        pub options: PmU64,
        reserved: [PmU64; 4],
        /// Entry `n` names the table of the level of `2^n` buckets, or is 0 if there is none; see
        /// [`CheckedOffset`].
        ///
        /// Two neighbouring entries are live, or three while the lowest level is being emptied. The
        /// one above may be in preparation. So each step of a growth is one store: "live" above,
        /// then 0 below.
        pub levels: [PmU64; SIZES],
    }
}

/// The bits of a word that are an offset.
pub const OFFSET: u64 = (1 << 48) - 1;

/// The offset of a block with a checksum, so that damage is detected before anything is written to
/// the block.
///
/// ```text
/// bit  0..48 offset
/// bit 48..64 checksum of the offset and the tag, which says what the block is used for
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckedOffset(pub u64);

impl CheckedOffset {
    /// Encodes the offset of a block.
    pub fn new(offset: u64, tag: u64) -> Self {
        CheckedOffset(offset | Self::check(offset, tag) << 48)
    }

    /// Returns the offset, or `None` if this is no offset with that tag.
    pub fn offset(self, tag: u64) -> Option<u64> {
        let offset = self.0 & OFFSET;
        (offset != 0 && self == CheckedOffset::new(offset, tag)).then_some(offset)
    }

    fn check(offset: u64, tag: u64) -> u64 {
        (offset ^ tag.rotate_left(40) ^ 0x4c45_5645_4c00).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48
    }

    /// Returns the tag for the table of a level that holds records.
    pub fn live(level: u32) -> u64 {
        u64::from(level) << 2
    }

    /// Returns the tag for the table of a level that is being written.
    pub fn prepared(level: u32) -> u64 {
        Self::live(level) | 1
    }

    /// Returns the tag for a chunk of a level.
    pub fn chunk(level: u32, index: u64) -> u64 {
        (index << 8 | u64::from(level)) << 2 | 2
    }
}

/// The first word of a bucket.
///
/// ```text
/// bit  0..16  generation  low bits of the generation; any other means "not recovered"
/// bit 16      locked
/// bit 17      promoted    the home of the keys that begin here is in the level above
/// bit 18      drained     the bucket was emptied: nothing may be stored in it any more
/// bit 32..64  version     number of changes
/// ```
///
/// All of it is obsolete after a crash, so none of it is ever flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version(pub u64);

impl Version {
    const LOCKED: u64 = 1 << 16;
    const PROMOTED: u64 = 1 << 17;
    const DRAINED: u64 = 1 << 18;
    const ONE: u64 = 1 << 32;

    /// Returns the initial word of a bucket, unlocked.
    #[inline(always)]
    pub fn fresh(generation: u64) -> Self {
        Version(generation & 0xffff)
    }

    /// Returns `true` if the opener `generation` wrote the word.
    #[inline(always)]
    pub fn is_of(self, generation: u64) -> bool {
        self.0 as u16 == generation as u16
    }

    /// Returns `true` if the opener `generation` wrote the word, and the bucket is not locked.
    #[inline(always)]
    pub fn is_readable(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::LOCKED | 0xffff) == 0
    }

    /// Returns `true` if the opener `generation` wrote the word, the bucket is not locked, and it
    /// is a home.
    #[inline(always)]
    pub fn is_home(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::PROMOTED | Self::LOCKED | 0xffff) == 0
    }

    /// Returns `true` if the home of the keys that begin here is in the level above.
    #[inline(always)]
    pub fn is_promoted(self) -> bool {
        self.0 & Self::PROMOTED != 0
    }

    /// Returns `true` if nothing may be stored in the bucket any more.
    #[inline(always)]
    pub fn is_drained(self) -> bool {
        self.0 & Self::DRAINED != 0
    }

    /// Returns the word with the bucket locked.
    #[inline(always)]
    pub fn locked(self) -> Self {
        Version(self.0 | Self::LOCKED)
    }

    /// Returns the word with the bucket unlocked and unchanged.
    #[inline(always)]
    pub fn released(self) -> Self {
        Version(self.0 & !Self::LOCKED)
    }

    /// Returns the word with the bucket unlocked and a new version.
    #[inline(always)]
    pub fn advanced(self) -> Self {
        // The version is in the highest bits, so that its carry is lost.
        Version((self.0 & !Self::LOCKED).wrapping_add(Self::ONE))
    }

    /// Returns the word with the homes promoted to the level above.
    pub fn promoted(self) -> Self {
        Version(self.0 | Self::PROMOTED)
    }

    /// Returns the word with the bucket emptied.
    pub fn drained(self) -> Self {
        Version(self.0 | Self::DRAINED)
    }
}

/// The second word of a bucket.
///
/// ```text
/// bit  0..3   tokens of slots 0 to 2
/// bit  3..6   a copy of the tokens of slots 3 to 5
/// bit 16..64  fingerprints, one byte a slot
/// ```
///
/// Tokens 0 to 2 are persistent, each together with its fingerprint. Recovery rebuilds the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta(pub u64);

impl Meta {
    /// Returns the slots that hold a record: bit i for slot i.
    #[inline(always)]
    pub fn taken(self) -> u32 {
        self.0 as u32 & 0x3f
    }

    /// Returns the number of records in the bucket.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.taken().count_ones() as usize
    }

    /// Returns the lowest free slot among the first `slots`, or `None` if there is none.
    #[inline(always)]
    pub fn free_slot(self, slots: usize) -> Option<usize> {
        let slot = self.taken().trailing_ones() as usize;
        (slot < slots).then_some(slot)
    }

    /// Returns the fingerprints in the lower six bytes.
    #[inline(always)]
    pub fn fingerprints(self) -> u64 {
        self.0 >> 16
    }

    /// Returns the word with a record of this fingerprint in `slot`.
    #[inline(always)]
    pub fn with(self, slot: usize, fingerprint: u8) -> Self {
        let shift = 16 + 8 * slot;
        Meta(self.0 & !(0xff << shift) | u64::from(fingerprint) << shift | 1 << slot)
    }

    /// Returns the word without the record in `slot`.
    #[inline(always)]
    pub fn without(self, slot: usize) -> Self {
        Meta(self.0 & !(1 << slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_fields_do_not_overlap() {
        let version = Version::fresh(0xffff_1234);
        assert!(version.is_of(0x1234) && version.is_readable(0x1234) && !version.is_readable(1));
        assert!(!version.is_promoted() && !version.is_drained());
        let locked = version.locked();
        assert!(locked.is_of(0x1234) && !locked.is_readable(0x1234));
        assert_eq!(locked.released(), version);
        let marked = locked.promoted().drained().advanced();
        assert!(marked.is_promoted() && marked.is_drained() && marked.is_readable(0x1234));
        let last = Version(u64::MAX).advanced();
        assert_eq!(last.0, 0xfffe_ffff, "the version wraps without changing the bits below it");
    }

    #[test]
    fn slots_are_independent() {
        let full =
            (0..SLOTS_MAX).fold(Meta::default(), |meta, slot| meta.with(slot, 0xf0 | slot as u8));
        assert_eq!((full.count(), full.free_slot(SLOTS_MAX)), (6, None));
        assert_eq!(full.fingerprints(), 0xf5f4_f3f2_f1f0);
        let holed = full.without(4).without(2);
        assert_eq!(
            (holed.count(), holed.free_slot(SLOTS_MAX), holed.free_slot(2)),
            (4, Some(2), None)
        );
        assert_eq!(holed.with(2, 0xf2).with(4, 0xf4), full);
    }

    #[test]
    fn checked_offsets_depend_on_the_tag() {
        let name = CheckedOffset::new(4096, CheckedOffset::live(7));
        assert_eq!(name.offset(CheckedOffset::live(7)), Some(4096));
        for other in [
            CheckedOffset::live(8),
            CheckedOffset::prepared(7),
            CheckedOffset::chunk(7, 0),
            CheckedOffset::chunk(0, 7),
        ] {
            assert_eq!(name.offset(other), None, "{other}");
        }
        assert_eq!(CheckedOffset(0).offset(CheckedOffset::live(7)), None);
        assert_eq!(CheckedOffset(u64::MAX).offset(CheckedOffset::live(7)), None);
    }
}
