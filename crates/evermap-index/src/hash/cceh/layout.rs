//! What CCEH keeps in the region. The pictures are in the documentation of the types.

use evermap_pm::{PmU64, pod};

use crate::hash::segmented::{SegmentHeader, SegmentLayout};

pub use crate::hash::hash_prefix::HashPrefix;
pub use crate::hash::segmented::extendible::Root;

/// Records in a bucket.
pub const SLOTS: usize = 4;
/// Bytes in a bucket: a cache line.
pub const BUCKET_BYTES: u64 = 64;
/// Bytes before the first bucket of a segment.
pub const HEADER_BYTES: u64 = 64;

pod! {
    /// A place for a record: 16 bytes, within one cache line.
    ///
    /// It holds one if its key belongs there: if the key's hash is one that the segment covers, and
    /// leads to this bucket or one shortly before it. Any other key makes it free. So storing the
    /// key commits an insert, and no key is reserved: what marks a free slot is a key of some other
    /// segment, or one that moved to another segment when this one was split.
    pub struct Slot: 16 {
        /// The key, or its hash.
        pub key: PmU64,
        /// The value, or where it is. Stored before the key, in the same line.
        pub word: PmU64,
    }
}

pod! {
    /// A bucket: one cache line of slots, without a header.
    pub struct Bucket: 64 {
        /// The records.
        pub slots: [Slot; SLOTS],
    }
}

const _: () = assert!(size_of::<Bucket>() as u64 == BUCKET_BYTES);

pod! {
    /// The first line of a segment.
    pub struct Header: 64 {
        /// Lock, version and generation of the whole segment: see `lock`. Never flushed.
        pub lock: PmU64,
        /// Which hashes belong here: see [`HashPrefix`].
        pub prefix: PmU64,
        /// [`Header::MAGIC`].
        pub magic: PmU64,
        /// The opener that recovered this segment. Never flushed: every opener begins with all
        /// segments stale.
        pub generation: PmU64,
        reserved: [PmU64; 4],
    }
}

const _: () = assert!(size_of::<Header>() as u64 == HEADER_BYTES);

impl SegmentHeader for Header {
    /// "CCEHSEG" and a version byte.
    const MAGIC: u64 = u64::from_le_bytes(*b"CCEHSEG\x01");

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
    /// A segment of `B` buckets.
    pub struct Segment<const B: usize> {
        /// Lock and identity.
        pub header: Header,
        /// The records.
        pub buckets: [Bucket; B],
    }
}

const _: () = assert!(size_of::<Segment<256>>() == 64 + 16384);

impl<const B: usize> SegmentLayout for Segment<B> {
    type Header = Header;

    fn header(&self) -> &Header {
        &self.header
    }
}
