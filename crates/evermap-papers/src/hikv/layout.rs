//! The structures of HiKV in the region.

use evermap_pm::{PmU64, pod};

/// The first word of the root block.
pub(super) const KIND: u64 = u64::from_le_bytes(*b"HiKV 01\0");
/// The greatest number of partitions, as a power of two.
pub(super) const PARTITION_BITS_MAX: u32 = 10;
/// The number of chunks of buckets that a partition can have: each but the first doubles the
/// number of buckets.
pub(super) const CHUNKS: usize = 24;
/// The number of entries of a bucket.
pub(super) const ENTRIES: u64 = 7;
/// Set in a position and in the link of a bucket as long as that may not be durable: see
/// [`help`](evermap_index::recipe::help). Positions are even.
pub(super) const MARK: u64 = 1;

pod! {
    /// The block that the root cell names.
    pub(super) struct Root: 128 {
        /// The kind of the index.
        pub kind: PmU64,
        /// The binary logarithm of the number of partitions.
        pub partition_bits: PmU64,
        /// The number of buckets that each partition begins with.
        pub base: PmU64,
        /// The offset of as many [`Descriptor`]s as there are partitions.
        pub partitions: PmU64,
        /// The number of logs, and the offset of their [`LogHead`]s; 0 if there is no log.
        pub log_count: PmU64,
        /// See above.
        pub logs: PmU64,
        spare: [PmU64; 2],
        /// The offset of the last block of the tree's [image](super::image); the "reserved
        /// position" of the paper.
        pub image: PmU64,
        /// The number of keys in it.
        pub image_keys: PmU64,
        /// The generation of the opener that has saved it; 0 if there is none. The paper's flag of
        /// a normal shutdown.
        pub saved: PmU64,
        spare_words: [PmU64; 5],
    }
}

pod! {
    /// What a partition consists of.
    pub(super) struct Descriptor: 256 {
        /// The number of buckets in use. Its store commits a split.
        pub count: PmU64,
        spare: [PmU64; 7],
        /// The offsets of the chunks of buckets; 0 if there is none yet. The first one has as many
        /// buckets as the partition began with, each further one as many as all before it.
        pub chunks: [PmU64; CHUNKS],
    }
}

pod! {
    /// Where the item of a key is. Begins at a multiple of 16, so that it is in one line.
    pub(super) struct Entry: 16 {
        /// The hash of the key.
        pub signature: PmU64,
        /// The position of the item, or 0; with [`MARK`].
        pub position: PmU64,
    }
}

pod! {
    /// A bucket: two lines. An entry whose signature belongs to another bucket is free.
    pub(super) struct Bucket: 128 {
        /// The position of the next bucket of the chain, or 0; with [`MARK`].
        pub next: PmU64,
        spare: PmU64,
        pub entries: [Entry; ENTRIES as usize],
    }
}

/// The size of a bucket in bytes.
pub(super) const BUCKET: u64 = size_of::<Bucket>() as u64;

pod! {
    /// Where a log is, and where its newest record probably is.
    pub(super) struct LogHead: 64 {
        /// The offset of the log.
        pub start: PmU64,
        /// Its size in bytes.
        pub bytes: PmU64,
        /// The number of a record that is the newest one or the one before.
        pub number: PmU64,
        /// Where that record is, in bytes from the start of the log.
        pub at: PmU64,
        spare: [PmU64; 4],
    }
}

pod! {
    /// The first words of a block of the tree's image; then come its pairs.
    pub(super) struct ImageHead: 32 {
        /// The offset of the block with the pairs before these; 0 in the first one.
        pub before: PmU64,
        /// The number of pairs.
        pub pairs: PmU64,
        /// The number of bytes that they take.
        pub bytes: PmU64,
        /// The hash of the three words above and the pairs.
        pub check: PmU64,
    }
}

/// The size of those words in bytes.
pub(super) const IMAGE_HEAD: u64 = size_of::<ImageHead>() as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_never_in_two_lines() {
        assert_eq!(std::mem::offset_of!(Bucket, entries) % 16, 0);
        assert!(BUCKET.is_multiple_of(16));
    }
}
