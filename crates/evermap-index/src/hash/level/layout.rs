//! What Level hashing keeps in the region. The pictures are in the documentation of the types.

use evermap_pm::{PmU64, pod};

/// Slots that a bucket has room for; a geometry may use fewer.
pub const SLOTS_MAX: usize = 6;
/// Slots in one cache line of a bucket, beside the tokens that declare them valid.
pub const LINE_SLOTS: usize = 3;
/// Bytes in a bucket.
pub const BUCKET_BYTES: u64 = 128;
/// Entries of a root: levels have up to `2^(SIZES - 1)` buckets.
pub const SIZES: usize = 42;

pod! {
    /// A record: 16 bytes, within one cache line.
    pub struct Slot: 16 {
        /// The key, or its hash.
        pub key: PmU64,
        /// The value, or where it is.
        pub word: PmU64,
    }
}

pod! {
    /// A bucket: two cache lines, each with three slots and the tokens of these three.
    ///
    /// ```text
    /// byte   0  version   see `Version`; never flushed
    /// byte   8  meta      see `Meta`; storing it commits what happens to slots 0 to 2
    /// byte  16  slots 0 to 2
    /// byte  64  tokens    of slots 3 to 5, one bit each; storing it commits what happens to them
    /// byte  72  reserved
    /// byte  80  slots 3 to 5
    /// ```
    ///
    /// A line persists in program order, so a slot and then its token take one flush and one fence.
    pub struct Bucket: 128 {
        /// Lock, version, and where the bucket is in its life.
        pub version: PmU64,
        /// All tokens and fingerprints: a lookup that finds nothing reads no more.
        pub meta: PmU64,
        /// Slots 0 to 2.
        pub near: [Slot; LINE_SLOTS],
        /// Tokens of slots 3 to 5: what counts for them after a crash.
        pub tokens: PmU64,
        reserved: PmU64,
        /// Slots 3 to 5.
        pub far: [Slot; LINE_SLOTS],
    }
}

const _: () = assert!(std::mem::offset_of!(Bucket, tokens) == 64);

pod! {
    /// What the root cell names.
    pub struct Root: 384 {
        /// Which index, key format and geometry this is.
        pub kind: PmU64,
        /// How the table grows: see [`Resize`](super::Resize).
        pub resize: PmU64,
        reserved: [PmU64; 4],
        /// Entry `n` names the table of the level of `2^n` buckets, 0 for none; see [`Named`].
        ///
        /// Neighbouring entries are live: two of them, or three while the lowest is being emptied. The one above
        /// may be in preparation. So each step of a growth is one store: "live" above, then 0 below.
        pub levels: [PmU64; SIZES],
    }
}

/// The part of a word that is an offset.
pub const OFFSET: u64 = (1 << 48) - 1;

/// A block that a word names, with a check, so that damage is noticed before anything is written there.
///
/// ```text
/// bit  0..48 offset
/// bit 48..64 check of the offset and the tag: what the block is for
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named(pub u64);

impl Named {
    /// Names the block at `offset`.
    pub fn new(offset: u64, tag: u64) -> Self {
        Named(offset | Self::check(offset, tag) << 48)
    }

    /// The offset, if this is a name with that tag.
    pub fn offset(self, tag: u64) -> Option<u64> {
        let offset = self.0 & OFFSET;
        (offset != 0 && self == Named::new(offset, tag)).then_some(offset)
    }

    fn check(offset: u64, tag: u64) -> u64 {
        (offset ^ tag.rotate_left(40) ^ 0x4c45_5645_4c00).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48
    }

    /// Tag of the table of a level that holds records.
    pub fn live(level: u32) -> u64 {
        u64::from(level) << 2
    }

    /// Tag of the table of a level that is still being written.
    pub fn prepared(level: u32) -> u64 {
        Self::live(level) | 1
    }

    /// Tag of a chunk of a level.
    pub fn chunk(level: u32, index: u64) -> u64 {
        (index << 8 | u64::from(level)) << 2 | 2
    }
}

/// The first word of a bucket.
///
/// ```text
/// bit  0..16  generation  low bits of the opener that wrote it; any other means "recover first"
/// bit 16      locked
/// bit 17      handed      the home of the keys that begin here is in the level above
/// bit 18      drained     emptied for good: nothing may be placed here
/// bit 32..64  version     counts changes
/// ```
///
/// All of it is worthless after a crash, so none of it is ever flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version(pub u64);

impl Version {
    const LOCKED: u64 = 1 << 16;
    const HANDED: u64 = 1 << 17;
    const DRAINED: u64 = 1 << 18;
    const ONE: u64 = 1 << 32;

    /// An unlocked word at the beginning of a bucket's life.
    #[inline(always)]
    pub fn fresh(generation: u64) -> Self {
        Version(generation & 0xffff)
    }

    /// Whether the opener `generation` wrote it.
    #[inline(always)]
    pub fn is_of(self, generation: u64) -> bool {
        self.0 as u16 == generation as u16
    }

    /// Whether the opener `generation` wrote it, and no thread holds the bucket.
    #[inline(always)]
    pub fn is_readable(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::LOCKED | 0xffff) == 0
    }

    /// Whether the opener `generation` wrote it, no thread holds the bucket, and it is a home.
    #[inline(always)]
    pub fn is_home(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::HANDED | Self::LOCKED | 0xffff) == 0
    }

    /// Whether the home of the keys that begin here is in the level above.
    #[inline(always)]
    pub fn is_handed(self) -> bool {
        self.0 & Self::HANDED != 0
    }

    /// Whether nothing may be placed here any more.
    #[inline(always)]
    pub fn is_drained(self) -> bool {
        self.0 & Self::DRAINED != 0
    }

    /// The same, held.
    #[inline(always)]
    pub fn locked(self) -> Self {
        Version(self.0 | Self::LOCKED)
    }

    /// The same, free, with nothing changed.
    #[inline(always)]
    pub fn released(self) -> Self {
        Version(self.0 & !Self::LOCKED)
    }

    /// Free again, and a version later.
    #[inline(always)]
    pub fn advanced(self) -> Self {
        // The version is at the top: its carry falls off the end of the word.
        Version((self.0 & !Self::LOCKED).wrapping_add(Self::ONE))
    }

    /// The same, handed to the level above.
    pub fn handed(self) -> Self {
        Version(self.0 | Self::HANDED)
    }

    /// The same, emptied for good.
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
/// Tokens 0 to 2 persist, each together with its fingerprint; the rest is rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta(pub u64);

impl Meta {
    /// Slots that hold a record, as bits.
    #[inline(always)]
    pub fn taken(self) -> u32 {
        self.0 as u32 & 0x3f
    }

    /// Records in the bucket.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.taken().count_ones() as usize
    }

    /// The lowest free slot of the first `slots`.
    #[inline(always)]
    pub fn free_slot(self, slots: usize) -> Option<usize> {
        let slot = self.taken().trailing_ones() as usize;
        (slot < slots).then_some(slot)
    }

    /// The fingerprints, as the lower six bytes.
    #[inline(always)]
    pub fn fingerprints(self) -> u64 {
        self.0 >> 16
    }

    /// With a record of this fingerprint in `slot`.
    #[inline(always)]
    pub fn with(self, slot: usize, fingerprint: u8) -> Self {
        let shift = 16 + 8 * slot;
        Meta(self.0 & !(0xff << shift) | u64::from(fingerprint) << shift | 1 << slot)
    }

    /// Without the record in `slot`.
    #[inline(always)]
    pub fn without(self, slot: usize) -> Self {
        Meta(self.0 & !(1 << slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_fields_do_not_touch_each_other() {
        let version = Version::fresh(0xffff_1234);
        assert!(version.is_of(0x1234) && version.is_readable(0x1234) && !version.is_readable(1));
        assert!(!version.is_handed() && !version.is_drained());
        let held = version.locked();
        assert!(held.is_of(0x1234) && !held.is_readable(0x1234));
        assert_eq!(held.released(), version);
        let marked = held.handed().drained().advanced();
        assert!(marked.is_handed() && marked.is_drained() && marked.is_readable(0x1234));
        let last = Version(u64::MAX).advanced();
        assert_eq!(last.0, 0xfffe_ffff, "the version wraps and leaves the rest alone");
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
    fn names_tell_what_they_are_for() {
        let name = Named::new(4096, Named::live(7));
        assert_eq!(name.offset(Named::live(7)), Some(4096));
        for other in [Named::live(8), Named::prepared(7), Named::chunk(7, 0), Named::chunk(0, 7)] {
            assert_eq!(name.offset(other), None, "{other}");
        }
        assert_eq!(Named(0).offset(Named::live(7)), None);
        assert_eq!(Named(u64::MAX).offset(Named::live(7)), None);
    }
}
