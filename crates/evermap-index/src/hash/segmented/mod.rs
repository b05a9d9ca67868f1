//! The code that the hash indexes made of segments share: both kinds of [Dash](crate::hash::dash),
//! the line hash and CCEH.
//!
//! A *segment* is a block of buckets with a header. It serves the hashes whose *ranks* begin with
//! its [`HashPrefix`]. The rank of a hash is the hash itself, except in linear hashing, where its
//! bits are reordered. Segments are ordered by rank, and a split divides a segment into a lower
//! half and an upper half.
//!
//! | module | contents |
//! |---|---|
//! | [`index`] | the traits of indexes, implemented for all of these |
//! | [`core`] | the fields that every index has: the pool, the locks for recovery, counters |
//! | [`apply`] | making a change, for indexes that lock buckets |
//! | [`group`] | making the changes of several keys together, for the same |
//! | [`waiting`] | waiting for a lock, and recovering the segment if it is stale |
//! | [`walk`] | visiting every segment once: scans, statistics, sweeps |
//! | [`map`] | what names segments, and brings further ones into use |
//! | [`extendible`], `directed` | a directory, and how it names segments |
//! | [`split`], [`merge`] | how segments are split and merged under a directory |
//! | [`recover`] | recovery of one segment and of its directory entries |
//! | [`chain`] | additional blocks of a segment that cannot be split |
//! | [`refusals`] | which segments these are |
//! | [`check`] | invariants |
//!
//! An index has two parts: what is inside a segment, which it implements as [`Segmented`], and, if
//! it locks buckets, as [`BucketLocked`](apply::BucketLocked); and what names segments, a
//! [`SegmentMap`]. One of these is [`Extendible`](extendible::Extendible), a directory, for which
//! the index implements [`Directed`](split::Directed). By [`SegmentedIndex`](index::SegmentedIndex)
//! it becomes an [`Index`](crate::Index). The functions here are generic over these traits, so each
//! index has its own compiled copy. Lookups are not here: each index has its own.

use std::ops::RangeInclusive;

use evermap_pm::{Error, Medium, PmU64, Pod, Result};

use super::hash_prefix::HashPrefix;

pub mod apply;
pub mod chain;
pub mod check;
pub mod core;
mod directed;
pub mod extendible;
pub mod group;
pub mod index;
pub mod map;
pub mod merge;
pub mod recover;
pub mod refusals;
pub mod split;
pub mod waiting;
pub mod walk;

use self::core::HasCore;
use self::map::SegmentMap;

/// The words that every segment header contains.
pub trait SegmentHeader: Pod {
    /// The magic word of a segment of this kind.
    const MAGIC: u64;

    /// Returns whether this is the magic word of a segment of this kind, or of an earlier version
    /// of it that can be used as it is.
    #[inline]
    fn is_magic(word: u64) -> bool {
        word == Self::MAGIC
    }

    /// Returns the word that distinguishes a segment from other data.
    fn magic(&self) -> &PmU64;

    /// Returns the word that encodes the [`HashPrefix`] of the hashes that the segment serves.
    fn prefix(&self) -> &PmU64;

    /// Returns the word with the generation of the opener that recovered the segment. It is never
    /// flushed: for every new opener, all segments are stale.
    fn generation(&self) -> &PmU64;
}

/// A segment, which begins with a header.
pub trait SegmentLayout: Pod {
    /// The layout of the header.
    type Header: SegmentHeader;

    /// Returns the header.
    fn header(&self) -> &Self::Header;
}

/// The header of the segments of an index.
pub type HeaderOf<T> = <<T as Segmented>::Segment as SegmentLayout>::Header;

/// A hash index made of segments: what is inside a segment. [`SegmentMap`] is what names them.
pub trait Segmented: HasCore {
    /// What names the segments.
    type Map: SegmentMap<Self>;
    /// The layout of a segment.
    type Segment: SegmentLayout;
    /// A segment that the calling thread has locked as a whole.
    type Locked<'a>
    where
        Self: 'a;

    /// The number of slots in a segment.
    const SLOTS: usize;
    /// The numbers of slots and of bytes in a block of a chain.
    const LINK: (usize, u64);

    /// Returns what names the segments.
    fn map(&self) -> &Self::Map;

    /// Locks the segment at `offset` as a whole. Returns `None` if it no longer holds the records
    /// of `hash`.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`, `Forked`.
    fn lock_whole(&self, offset: u64, hash: u64) -> Result<Option<Self::Locked<'_>>>;

    /// Returns the locked segment.
    fn segment_in<'a>(locked: &Self::Locked<'a>) -> &'a Self::Segment
    where
        Self: 'a;

    /// Releases a segment that was not changed.
    fn unlock_unchanged(&self, locked: Self::Locked<'_>);

    /// Returns slot keys and words of the records with these ranks, in a segment with this prefix
    /// that the caller has locked.
    fn pairs_within(
        &self,
        segment: &Self::Segment,
        prefix: HashPrefix,
        ranks: &RangeInclusive<u64>,
    ) -> Vec<(u64, u64)>;

    /// Checks that the chain of a segment ends, so that none of its blocks is missed.
    ///
    /// # Errors
    /// `Damaged`.
    fn ensure_chain_ends(&self, _segment: &Self::Segment) -> Result<()> {
        Ok(())
    }

    /// Returns the offsets of the blocks in a segment's chain.
    fn chain_blocks(&self, _segment: &Self::Segment) -> Vec<u64> {
        Vec::new()
    }

    /// Describes the violated invariants of a segment with this prefix, which the caller has
    /// locked.
    fn check_segment(
        &self,
        segment: &Self::Segment,
        prefix: HashPrefix,
        problems: &mut Vec<String>,
    );

    /// Makes a segment stale, so that it is recovered before it is used.
    fn make_stale(&self, segment: &Self::Segment);

    /// Returns whether this opener has recovered the segment, and no part of it is stale.
    fn is_fresh(&self, segment: &Self::Segment) -> bool {
        self.was_recovered(segment)
    }

    /// Makes the contents of a stale segment durable, if this must happen before its structure is
    /// finished: an earlier process may have stored them and terminated before they were durable.
    fn persist_contents(&self, _segment: &Self::Segment) {}

    /// Makes a stale segment consistent, drops the records that it does not serve, and marks it as
    /// recovered, in this order.
    fn finish_contents(&self, segment: &Self::Segment, prefix: HashPrefix);

    /// Called if the segment could not be recovered.
    fn recovery_failed(&self, _segment: &Self::Segment) {}

    /// Lets other threads use the segment, which was recovered.
    ///
    /// # Errors
    /// `Damaged`.
    fn admit(&self, _offset: u64) -> Result<()> {
        Ok(())
    }

    /// Recovers the segment at `offset`, or waits until another thread has recovered it. Afterwards
    /// it is not stale, or it is no longer in use.
    ///
    /// # Errors
    /// `Damaged` if there is no segment at `offset`, or if its prefix contradicts what leads to it;
    /// the segment stays stale then.
    #[cold]
    fn recover(&self, offset: u64) -> Result<()> {
        let _one_at_a_time = self.core().begin_recovery(offset)?;
        let segment = self.segment(offset)?;
        if !self.is_fresh(segment) {
            let prefix = self.prefix_at(offset)?;
            self.persist_contents(segment);
            match Self::Map::finish_structure(self, offset, segment, prefix) {
                Ok(Some(prefix)) => self.finish_contents(segment, prefix),
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.recovery_failed(segment);
                    return Err(error);
                }
            }
            self.core().count_recovered();
        }
        self.admit(offset)
    }

    /// Returns the prefix of the segment at `offset`.
    ///
    /// # Errors
    /// `Damaged` if there is no segment at `offset`.
    fn prefix_at(&self, offset: u64) -> Result<HashPrefix> {
        prefix_at::<HeaderOf<Self>, _>(self.core().medium(), offset)
            .ok_or_else(|| Error::damaged(offset, "there is no segment where one should be"))
    }

    /// Returns whether this opener has recovered or created the segment.
    #[inline(always)]
    fn was_recovered(&self, segment: &Self::Segment) -> bool {
        self.core().medium().load_relaxed(segment.header().generation()) == self.core().generation
    }

    /// Prefetches the segment at `offset`, all of which is about to be read or written. Locking its
    /// buckets one by one would otherwise wait for one cache miss after the other, because no later
    /// load begins before a locked instruction is complete.
    #[inline]
    fn prefetch_segment(&self, offset: u64) {
        self.core().medium().prefetch_bytes(offset, size_of::<Self::Segment>() as u64);
    }

    /// Returns the segment at `offset`.
    ///
    /// # Errors
    /// `Damaged` if a segment at `offset` would end outside the region.
    #[inline(always)]
    fn segment(&self, offset: u64) -> Result<&Self::Segment> {
        match self.core().medium().at(offset) {
            Some(segment) => Ok(segment),
            None => Err(no_segment(offset)),
        }
    }
}

/// Returns the prefix of the segment at `offset`. Returns `None` if there is no segment at
/// `offset`.
pub fn prefix_at<H: SegmentHeader, M: Medium>(m: &M, offset: u64) -> Option<HashPrefix> {
    let header = m.at::<H>(offset)?;
    let is_segment = H::is_magic(m.load(header.magic()));
    is_segment.then(|| HashPrefix::decode(m.load(header.prefix()))).flatten()
}

/// Returns the prefix of a segment. Returns `None` if it is damaged.
pub fn prefix_of<S: SegmentLayout, M: Medium>(m: &M, segment: &S) -> Option<HashPrefix> {
    HashPrefix::decode(m.load(segment.header().prefix()))
}

/// Returns the error for an offset at which there cannot be a segment.
#[cold]
pub fn no_segment(offset: u64) -> Error {
    Error::damaged(offset, "there is no segment here: it would end outside the region")
}
