//! The structures of Dash in the region. The documentation of each type shows its layout.

use evermap_pm::{Medium, PmU64, pod};

use crate::hash::segmented::chain::Link;
use crate::hash::segmented::{SegmentHeader, SegmentLayout};

pub use crate::hash::hash_prefix::HashPrefix;
pub use crate::hash::segmented::extendible::Root;

/// The number of slots in a bucket; a geometry may use fewer.
pub const SLOTS_MAX: usize = 14;
/// The greatest number of normal buckets in a segment.
pub const BUCKETS_MAX: usize = 64;
/// The greatest number of stash buckets in a segment.
pub const STASHES_MAX: usize = 4;
/// The number of bytes in a bucket.
pub const BUCKET_BYTES: u64 = 256;
/// The number of bytes before the first bucket of a segment.
pub const HEADER_BYTES: u64 = 256;

pod! {
    /// A record: 16 bytes, within one cache line.
    pub struct Slot: 16 {
        /// The key, or its hash.
        pub key: PmU64,
        /// The value, or the offset of the record in the heap.
        pub word: PmU64,
    }
}

pod! {
    /// A bucket: a header of half a cache line, and 14 slots.
    ///
    /// ```text
    /// byte   0  version        see `Version`; never flushed
    /// byte   8  fingerprints   of slots 0 to 13, one byte each;
    /// byte  22                 then two overflow fingerprints
    /// byte  24  meta           see `Meta`; storing it commits an insert or a delete
    /// byte  32  slots 0, 1     in the same line: inserting here takes one flush
    /// byte  64  slots 2 to 13
    /// ```
    ///
    /// In a bucket of a chain, `version` is the offset of the next one.
    pub struct Bucket: 256 {
        /// The lock, the version, and the metadata that readers need first.
        pub version: PmU64,
        /// A fingerprint for each slot, and two for records in the stash.
        pub fingerprints: [PmU64; 2],
        /// Which slots hold records.
        pub meta: PmU64,
        /// The records.
        pub slots: [Slot; SLOTS_MAX],
    }
}

/// The number of slots in the header's cache line.
pub const HEADER_LINE_SLOTS: usize = 2;
const _: () = assert!(std::mem::offset_of!(Bucket, slots) + HEADER_LINE_SLOTS * 16 == 64);

pod! {
    /// The first part of a segment.
    pub struct Header: 256 {
        /// `Header::MAGIC`.
        pub magic: PmU64,
        /// The hashes that the segment serves: see [`HashPrefix`].
        pub prefix: PmU64,
        /// The generation of the opener that recovered this segment. Never flushed: for every new
        /// opener, all segments are stale.
        pub generation: PmU64,
        /// The offset of the first bucket of the chain, which is used when the stash is full; 0 if
        /// there is no chain.
        pub chain: PmU64,
        reserved: [PmU64; 28],
    }
}

/// The bit of the first word of a root block that distinguishes indexes in which fingerprints tell
/// which records are whole: see [`Header::EARLIER`].
pub const TOLD_BY_FINGERPRINTS: u64 = 1 << 63;

impl Header {
    /// The magic word of a segment in which an allocated slot holds its record whatever its
    /// fingerprint is. Such a segment gets the present magic word when it is recovered.
    pub const EARLIER: u64 = u64::from_le_bytes(*b"DASHSEG\x01");
}

impl SegmentHeader for Header {
    /// "DASHSEG" and a version byte. An allocated slot whose fingerprint is not that of its key
    /// holds no record: a crash came before both were durable.
    const MAGIC: u64 = u64::from_le_bytes(*b"DASHSEG\x02");

    fn is_magic(word: u64) -> bool {
        word == Self::MAGIC || word == Self::EARLIER
    }

    fn magic(&self) -> &PmU64 {
        &self.magic
    }

    fn prefix(&self) -> &PmU64 {
        &self.prefix
    }

    fn generation(&self) -> &PmU64 {
        &self.generation
    }
}

pod! {
    /// A segment: `B` normal buckets, then `S` stash buckets. The first stash bucket's lock guards
    /// the stash.
    pub struct Segment<const B: usize, const S: usize> {
        /// The header.
        pub header: Header,
        /// The normal buckets: a record is in its home bucket or in the one after it.
        pub normal: [Bucket; B],
        /// The stash buckets: for records whose two normal buckets are full.
        pub stash: [Bucket; S],
    }
}

const _: () = assert!(std::mem::size_of::<Segment<64, 2>>() == 256 + 66 * 256);

/// The buckets of a segment.
pub trait Buckets: SegmentLayout<Header = Header> {
    /// Returns the normal buckets.
    fn normal(&self) -> &[Bucket];

    /// Returns the stash buckets.
    fn stash(&self) -> &[Bucket];
}

/// The geometry of an index: constants, so that what is computed from them is constant too.
pub trait Geometry: 'static {
    /// A segment with this many buckets.
    type Segment: Buckets;
    /// The number of normal buckets in a segment: a power of two, 4 to [`BUCKETS_MAX`].
    const BUCKETS: usize;
    /// The number of stash buckets in a segment: 1 to [`STASHES_MAX`].
    const STASHES: usize;
    /// The number of slots of each bucket that are used: 2 to [`SLOTS_MAX`].
    const BUCKET_SLOTS: usize;
    /// `true` for the paper's ways to look up and to change: see [`Paper`].
    const PAPER: bool = false;
}

/// The geometry with segments of `B` buckets and `S` stash buckets, using `N` slots of each: by
/// default, that of the paper.
pub enum Sizes<const B: usize = 64, const S: usize = 2, const N: usize = { SLOTS_MAX }> {}

impl<const B: usize, const S: usize, const N: usize> Geometry for Sizes<B, S, N> {
    type Segment = Segment<B, S>;

    const BUCKETS: usize = B;
    const STASHES: usize = S;
    const BUCKET_SLOTS: usize = N;
}

/// The same geometry, for an index that does what the paper describes where this project does
/// something else, to compare with (sections 4.2 to 4.4):
///
/// * a record is inserted into the emptier of its two buckets, whichever that is;
/// * a displacement moves one record, and not another one to make room for that;
/// * an insertion persists the slot and then the header, also if both are in one line;
/// * a change locks both buckets;
/// * a lookup compares the versions of both, and searches both unless it finds the key in the first
///   one, without the filter that would exclude the second one;
/// * a split leaves the records that stay where they are.
///
/// The layout is the same, so an index can be opened in either way.
pub enum Paper<const B: usize = 64, const S: usize = 2, const N: usize = { SLOTS_MAX }> {}

impl<const B: usize, const S: usize, const N: usize> Geometry for Paper<B, S, N> {
    type Segment = Segment<B, S>;

    const BUCKETS: usize = B;
    const STASHES: usize = S;
    const BUCKET_SLOTS: usize = N;
    const PAPER: bool = true;
}

impl<const B: usize, const S: usize> Buckets for Segment<B, S> {
    #[inline]
    fn normal(&self) -> &[Bucket] {
        &self.normal
    }

    #[inline]
    fn stash(&self) -> &[Bucket] {
        &self.stash
    }
}

impl<const B: usize, const S: usize> SegmentLayout for Segment<B, S> {
    type Header = Header;

    fn header(&self) -> &Header {
        &self.header
    }
}

/// In a chain, the version word is the offset of the next bucket.
impl Link for Bucket {
    fn next(&self) -> &PmU64 {
        &self.version
    }

    fn offset_in(word: u64) -> u64 {
        word
    }

    fn with_offset(_word: u64, offset: u64) -> u64 {
        offset
    }

    fn is_empty<M: Medium>(&self, m: &M) -> bool {
        Meta(m.load_relaxed(&self.meta)).count() == 0
    }

    fn clear<M: Medium>(&self, m: &M) {
        m.store(&self.version, 0);
        m.store(&self.fingerprints[0], 0);
        m.store(&self.fingerprints[1], 0);
        m.store(&self.meta, 0);
        // With the slots: what they hold must be durable before they are used.
        m.persist(self);
    }
}

/// The first word of a bucket.
///
/// ```text
/// bit  0..16  generation   low bits of the generation of the opener that wrote it: if they are
///                          not those of the current opener, the bucket is stale
/// bit 16..28  filter       for each record in the next bucket, the bit that its hash selects
/// bit 28..31  unlisted     the number of records of this bucket in the stash or chain without
///                          overflow fingerprint; 7 means "7 or more"
/// bit 31      overflowed   some record of this bucket is in the stash or chain
/// bit 32      locked
/// bit 33..64  version      counts changes
/// ```
///
/// The word need not survive a crash, so it is never flushed: recovery computes it from the slots,
/// with version 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version(pub u64);

impl Version {
    const OVERFLOWED: u64 = 1 << 31;
    const LOCKED: u64 = 1 << 32;
    const ONE: u64 = 1 << 33;
    const UNLISTED: u64 = 1 << 28;
    /// The greatest value of `unlisted`. It stays until recovery or a split counts again.
    pub const UNLISTED_MANY: u64 = 7;

    /// Returns an unlocked word for a bucket all of whose records are in it.
    pub fn fresh(generation: u64) -> Self {
        Version(generation & 0xffff)
    }

    /// Returns whether the opener with this generation wrote the word.
    #[inline(always)]
    pub fn is_of(self, generation: u64) -> bool {
        self.0 as u16 == generation as u16
    }

    /// Returns whether a thread has locked the bucket.
    #[inline(always)]
    pub fn is_locked(self) -> bool {
        self.0 & Self::LOCKED != 0
    }

    /// Returns whether the opener with this generation wrote the word, and no thread has locked the
    /// bucket.
    #[inline(always)]
    pub fn is_readable(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::LOCKED | 0xffff) == 0
    }

    /// Returns the same word, locked.
    #[inline(always)]
    pub fn locked(self) -> Self {
        Version(self.0 | Self::LOCKED)
    }

    /// Returns the same word, unlocked, with the same version.
    #[inline(always)]
    pub fn released(self) -> Self {
        Version(self.0 & !Self::LOCKED)
    }

    /// Returns the same word, unlocked, with the next version.
    #[inline(always)]
    pub fn advanced(self) -> Self {
        // The version is in the top bits, so its overflow changes no other field.
        Version((self.0 & !Self::LOCKED).wrapping_add(Self::ONE))
    }

    /// Returns the same word with the version of `before`.
    pub fn following(self, before: Self) -> Self {
        Version((self.0 % Self::ONE) | (before.0 / Self::ONE * Self::ONE))
    }

    #[inline(always)]
    fn filter_bit(hash: u64) -> u64 {
        1 << (16 + (((hash >> 14 & 0xff) * 12) >> 8))
    }

    /// Returns whether a record with this hash may be in the next bucket.
    #[inline(always)]
    pub fn may_be_next(self, hash: u64) -> bool {
        self.0 & Self::filter_bit(hash) != 0
    }

    /// Returns whether a record with this hash may be in the next bucket, the stash or the chain.
    #[inline(always)]
    pub fn may_be_elsewhere(self, hash: u64) -> bool {
        self.0 & (Self::filter_bit(hash) | Self::OVERFLOWED) != 0
    }

    /// Sets the filter bit for a record with this hash, which is in the next bucket.
    #[inline(always)]
    pub fn note_next(&mut self, hash: u64) {
        self.0 |= Self::filter_bit(hash);
    }

    /// Returns whether a record of this bucket is in the stash or chain.
    #[inline(always)]
    pub fn overflowed(self) -> bool {
        self.0 & Self::OVERFLOWED != 0
    }

    /// Sets whether a record of this bucket is in the stash or chain.
    pub fn set_overflowed(&mut self, overflowed: bool) {
        self.0 = self.0 & !Self::OVERFLOWED | if overflowed { Self::OVERFLOWED } else { 0 };
    }

    /// Returns the number of records in the stash or chain that no overflow fingerprint announces.
    #[inline(always)]
    pub fn unlisted(self) -> u64 {
        self.0 / Self::UNLISTED % 8
    }

    /// Adds one to the number of unlisted records, up to [`UNLISTED_MANY`](Self::UNLISTED_MANY).
    pub fn add_unlisted(&mut self) {
        if self.unlisted() < Self::UNLISTED_MANY {
            self.0 += Self::UNLISTED;
        }
    }

    /// Subtracts one from the number of unlisted records, unless the number is
    /// [`UNLISTED_MANY`](Self::UNLISTED_MANY), which means that it is unknown.
    pub fn drop_unlisted(&mut self) {
        if (1..Self::UNLISTED_MANY).contains(&self.unlisted()) {
            self.0 -= Self::UNLISTED;
        }
    }
}

/// The last word of a bucket's header.
///
/// ```text
/// bit  0..14  allocated    slots that hold a record
/// bit 14..28  member       slots whose record belongs to the bucket before this one
/// bit 28..32  listed       overflow fingerprints in use
/// bit 32..40  where        for each of them, 2 bits: the stash bucket
/// bit 40..44  listed member which of them announce a record of the bucket before this one
/// bit 48..64  overflow fingerprints 2 and 3 (0 and 1 are in the fingerprint words)
/// ```
///
/// Bits 0 to 27 are persistent; recovery rebuilds the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta(pub u64);

impl Meta {
    /// The number of overflow fingerprints in a bucket.
    pub const LISTED: usize = 4;
    const PERSISTENT: u64 = (1 << 28) - 1;

    /// Returns the slots that hold a record.
    #[inline(always)]
    pub fn allocated(self) -> u32 {
        self.0 as u32 & 0x3fff
    }

    /// Returns the slots whose record belongs to the bucket before this one.
    #[inline(always)]
    pub fn members(self) -> u32 {
        (self.0 >> 14) as u32 & 0x3fff
    }

    /// Returns the slots whose record belongs to this bucket.
    #[inline(always)]
    pub fn natives(self) -> u32 {
        self.allocated() & !self.members()
    }

    /// Returns the number of records in the bucket.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.allocated().count_ones() as usize
    }

    /// Returns the word with a record in `slot`.
    #[inline(always)]
    pub fn with(self, slot: usize, member: bool) -> Self {
        Meta(self.0 | 1 << slot | u64::from(member) << (14 + slot))
    }

    /// Returns the word without the record in `slot`.
    #[inline(always)]
    pub fn without(self, slot: usize) -> Self {
        Meta(self.0 & !(1 << slot | 1 << (14 + slot)))
    }

    /// Returns only the persistent bits.
    pub fn persistent(self) -> Self {
        Meta(self.0 & Self::PERSISTENT)
    }

    /// Returns whether overflow fingerprint `i` is in use.
    #[inline(always)]
    pub fn is_listed(self, i: usize) -> bool {
        self.0 >> (28 + i) & 1 != 0
    }

    /// Returns whether overflow fingerprint `i` announces a record of the bucket before this one.
    #[inline(always)]
    pub fn listed_member(self, i: usize) -> bool {
        self.0 >> (40 + i) & 1 != 0
    }

    /// Returns the stash bucket that overflow fingerprint `i` refers to.
    #[inline(always)]
    pub fn listed_where(self, i: usize) -> usize {
        (self.0 >> (32 + 2 * i) & 3) as usize
    }

    /// Returns the word with overflow fingerprint `i` announcing a record in stash bucket `place`.
    pub fn list(self, i: usize, place: usize, member: bool) -> Self {
        let cleared = self.unlist(i).0;
        Meta(
            cleared
                | 1 << (28 + i)
                | (place as u64 & 3) << (32 + 2 * i)
                | u64::from(member) << (40 + i),
        )
    }

    /// Returns the word with overflow fingerprint `i` unused.
    pub fn unlist(self, i: usize) -> Self {
        Meta(self.0 & !(1 << (28 + i) | 3 << (32 + 2 * i) | 1 << (40 + i)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_fields_do_not_touch_each_other() {
        let mut version = Version::fresh(0xffff_1234);
        assert!(version.is_of(0x1234) && !version.is_locked() && !version.overflowed());
        for hash in 0..256u64 {
            version.note_next(hash << 14);
        }
        assert_eq!(version.0, 0x0fff_1234);
        for expected in [1, 2, 3, 4, 5, 6, 7, 7, 7] {
            version.add_unlisted();
            assert_eq!(version.unlisted(), expected);
        }
        // Once saturated, the number is unknown: it must never be counted down to 0.
        version.drop_unlisted();
        assert_eq!(version.unlisted(), 7);
        version.set_overflowed(true);
        assert_eq!(version.0, 0xffff_1234);
        let held = version.locked();
        assert!(held.is_locked());
        assert_eq!(held.released(), version);
        let last = Version(u64::MAX);
        assert_eq!(
            last.advanced().0,
            0xffff_ffff,
            "the version wraps without touching the lock bit"
        );
    }

    #[test]
    fn overflow_entries_are_independent() {
        let mut meta = Meta::default().with(13, true).with(0, false);
        for i in 0..Meta::LISTED {
            meta = meta.list(i, 3 - i, i % 2 == 0);
        }
        for i in 0..Meta::LISTED {
            assert!(meta.is_listed(i));
            assert_eq!((meta.listed_where(i), meta.listed_member(i)), (3 - i, i % 2 == 0));
        }
        assert_eq!((meta.allocated(), meta.members(), meta.count()), (0x2001, 0x2000, 2));
        let cleared = (0..Meta::LISTED).fold(meta, Meta::unlist);
        assert_eq!(cleared, meta.persistent());
        assert_eq!(meta.without(13).without(0).persistent(), Meta::default());
    }
}
