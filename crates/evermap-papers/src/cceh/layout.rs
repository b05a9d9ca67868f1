//! The structures of CCEH in the region. The documentation of each type shows its layout.

use evermap_index::hash::segmented::{SegmentHeader, SegmentLayout};
use evermap_pm::{PmU64, pod};

pub use evermap_index::hash::hash_prefix::HashPrefix;
pub use evermap_index::hash::segmented::extendible::Root;

/// The number of slots in a bucket.
pub const SLOTS: usize = 4;
/// The number of bytes in a bucket, which is a cache line.
pub const BUCKET_BYTES: u64 = 64;
/// The number of bytes before the first bucket of a segment.
pub const HEADER_BYTES: u64 = 64;

pod! {
    /// A slot for a record: 16 bytes, within one cache line.
    ///
    /// The slot holds a record if its key belongs there: if the key's hash has the segment's prefix
    /// and selects this bucket, or one of the few buckets before it from which probing reaches this
    /// one. With any other key, the slot is free. So storing the key commits an insert, and no key
    /// is reserved: a free slot contains a key that belongs to another segment, or one that was
    /// moved to another segment when this one was split.
    pub struct Slot: 16 {
        /// The key, or its hash.
        pub key: PmU64,
        /// The value, or the offset of the record in the heap. Stored before the key, in the same
        /// line.
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
        /// The lock, the version and the generation stamp of the segment: see `lock`. Never
        /// flushed.
        pub lock: PmU64,
        /// The hashes that the segment serves: see [`HashPrefix`].
        pub prefix: PmU64,
        /// [`Header::MAGIC`].
        pub magic: PmU64,
        /// The generation of the opener that recovered this segment. Never flushed: for every new
        /// opener, all segments are stale.
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
        /// The header.
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
