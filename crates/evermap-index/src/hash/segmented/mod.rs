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
//! | [`waiting`] | waiting for a lock, and recovering the segment if it is stale |
//! | [`walk`] | visiting every segment once: scans, statistics, sweeps |
//! | [`extendible`] | a directory and the number of its segments |
//! | [`split`], [`merge`] | structure changes of indexes with a directory |
//! | [`recover`] | recovery of one segment and of its directory entries |
//! | [`chain`] | additional blocks of a segment that cannot be split |
//! | [`refusals`] | which segments these are |
//! | [`check`] | invariants |
//!
//! An index implements [`Segmented`], and those of [`BucketLocked`](apply::BucketLocked),
//! [`Recoverable`](recover::Recoverable), [`Directed`](split::Directed) and
//! [`Merging`](merge::Merging) that apply to it. The functions here are generic over these traits,
//! so each index has its own compiled copy. Lookups are not here: each index has its own.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use evermap_pm::{Error, Medium, PmU64, Pod, Result};

use super::hash_prefix::HashPrefix;
use crate::{Stats, Visitor};

pub mod apply;
pub mod chain;
pub mod check;
pub mod core;
pub mod extendible;
pub mod index;
pub mod merge;
pub mod recover;
pub mod refusals;
pub mod split;
pub mod waiting;
pub mod walk;

use self::core::Core;

/// The words that every segment header contains.
pub trait SegmentHeader: Pod {
    /// The magic word of a segment of this kind.
    const MAGIC: u64;

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

/// A hash index made of segments.
pub trait Segmented: Sized {
    /// The medium that holds the index.
    type Medium: Medium;
    /// The layout of a segment.
    type Segment: SegmentLayout;
    /// A segment that the calling thread has locked as a whole.
    type Locked<'a>
    where
        Self: 'a;

    /// Whether each segment is a separate block.
    const SEGMENTS_ARE_BLOCKS: bool = true;

    /// Returns the fields that all segmented indexes have.
    fn core(&self) -> &Core<Self::Medium>;

    /// Returns the depth of the deepest prefix that a segment can have: ranks with the same leading
    /// bits, of this number, belong to the same segment.
    fn depth(&self) -> u32;

    /// Locks the segment that holds the records of a rank. Returns `None` if the index changed
    /// while this thread waited: the caller tries again.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`, `Forked`.
    fn lock_holder(&self, rank: u64) -> Result<Option<Self::Locked<'_>>>;

    /// Returns the locked segment.
    fn segment_in<'a>(locked: &Self::Locked<'a>) -> &'a Self::Segment
    where
        Self: 'a;

    /// Releases a segment that was not changed.
    fn unlock_unchanged(&self, locked: Self::Locked<'_>);

    /// Returns whether this opener has recovered or created the segment.
    #[inline(always)]
    fn was_recovered(&self, segment: &Self::Segment) -> bool {
        self.core().medium().load_relaxed(segment.header().generation()) == self.core().generation
    }

    /// Recovers the segment at `offset`, or waits until another thread has recovered it. Afterwards
    /// it is not stale, or it is no longer in use.
    ///
    /// # Errors
    /// `Damaged` if there is no segment at `offset`, or if its prefix contradicts what leads to it;
    /// the segment stays stale then.
    fn recover(&self, offset: u64) -> Result<()>;

    /// Returns the number of segments, or an estimate. At most O(segments).
    fn segments(&self) -> u64;

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

    /// Passes to the visitor the blocks that are neither the root, nor segments, nor chain blocks.
    fn visit_structure(&self, visitor: &mut dyn Visitor);

    /// Called when a visit has seen every segment, with the number of segments.
    fn visited(&self, _segments: u64) {}

    /// Completes statistics that already contain the sums over all segments. There are `segments`
    /// segments, with `links` blocks in their chains.
    fn complete_stats(&self, segments: u64, links: u64, stats: &mut Stats);

    /// Describes the violated invariants of a segment with this prefix, which the caller has
    /// locked.
    fn check_segment(
        &self,
        segment: &Self::Segment,
        prefix: HashPrefix,
        problems: &mut Vec<String>,
    );

    /// Describes the violated invariants outside of segments. `found` maps the offset of each
    /// segment that a walk has found to its prefix.
    fn check_structure(&self, found: &HashMap<u64, HashPrefix>, problems: &mut Vec<String>);

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
    let is_segment = m.load(header.magic()) == H::MAGIC;
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
