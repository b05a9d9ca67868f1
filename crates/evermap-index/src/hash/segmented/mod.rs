//! What hash indexes made of segments share: [Dash](crate::hash::dash) in both kinds, the
//! [line hash](crate::hash::line) and [CCEH](crate::hash::cceh).
//!
//! A *segment* is a block of buckets with a header. It serves the hashes whose *ranks* begin with
//! its [`HashPrefix`]. A rank is the hash itself, except in linear hashing, where it is a hash with
//! its bits in another order. So segments have an order, and a split divides one into a lower half
//! and an upper half.
//!
//! | module | what it has |
//! |---|---|
//! | [`core`] | what every index keeps of the pool, counters, creation and opening |
//! | [`apply`] | the steps of a change, for indexes that lock buckets |
//! | [`waiting`] | waiting for a lock, with recovery of segments that nobody has recovered |
//! | [`walk`] | visiting every segment once: scans, statistics, sweeps |
//! | [`extendible`] | a directory and the number of its segments |
//! | [`split`], [`merge`] | structure changes of indexes with a directory |
//! | [`recover`] | recovery of one segment, and of its place in a directory |
//! | [`chain`] | blocks behind a segment that cannot be split |
//! | [`check`] | invariants |
//!
//! An index implements [`Segmented`], and as many of [`BucketLocked`](apply::BucketLocked),
//! [`Recoverable`](recover::Recoverable), [`Directed`](split::Directed) and
//! [`Merging`](merge::Merging) as apply to it. The functions here are generic over these traits, so
//! each index has its own compiled copy. Lookups are not here: each index has its own.

use std::collections::HashMap;

use evermap_pm::{Error, Medium, PmU64, Pod, Result};

use super::hash_prefix::HashPrefix;
use crate::{Stats, Visitor};

pub(crate) mod apply;
pub(crate) mod chain;
pub(crate) mod check;
pub(crate) mod core;
pub(crate) mod extendible;
pub(crate) mod merge;
pub(crate) mod recover;
pub(crate) mod split;
pub(crate) mod waiting;
pub(crate) mod walk;

use self::core::Core;

/// The words that the header of every segment has.
pub(crate) trait SegmentHeader: Pod {
    /// What the magic word of a segment of this kind is.
    const MAGIC: u64;

    /// Tells a segment from other data.
    fn magic(&self) -> &PmU64;

    /// The [`HashPrefix`] of the hashes that the segment serves.
    fn prefix(&self) -> &PmU64;

    /// The generation of the opener that recovered the segment. Never flushed, so every opener
    /// begins with all segments stale.
    fn generation(&self) -> &PmU64;
}

/// A segment, which begins with a header.
pub(crate) trait SegmentLayout: Pod {
    /// The layout of the header.
    type Header: SegmentHeader;

    /// Returns the header.
    fn header(&self) -> &Self::Header;
}

/// The header of the segments of an index.
pub(crate) type HeaderOf<T> = <<T as Segmented>::Segment as SegmentLayout>::Header;

/// A hash index made of segments.
pub(crate) trait Segmented: Sized {
    /// The medium that holds the index.
    type Medium: Medium;
    /// The layout of a segment.
    type Segment: SegmentLayout;
    /// A segment that the calling thread has locked as a whole.
    type Locked<'a>
    where
        Self: 'a;

    /// Whether each segment is a block of its own.
    const SEGMENTS_ARE_BLOCKS: bool = true;

    /// Returns what all indexes of this module keep.
    fn core(&self) -> &Core<Self::Medium>;

    /// Returns how many leading bits of two ranks may decide that they belong to different
    /// segments.
    fn depth(&self) -> u32;

    /// Locks the segment that holds the records of a rank. Returns `None` if the index changed
    /// while this thread waited: try again.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`, `Forked`.
    fn lock_holder(&self, rank: u64) -> Result<Option<Self::Locked<'_>>>;

    /// Returns the segment that was locked.
    fn segment_in<'a>(locked: &Self::Locked<'a>) -> &'a Self::Segment
    where
        Self: 'a;

    /// Releases a segment in which nothing has changed.
    fn unlock_unchanged(&self, locked: Self::Locked<'_>);

    /// Returns whether this opener has recovered or created the segment.
    #[inline(always)]
    fn was_recovered(&self, segment: &Self::Segment) -> bool {
        self.core().medium().load_relaxed(segment.header().generation()) == self.core().generation
    }

    /// Recovers the segment at `offset`, or waits until another thread has. Afterwards it is fresh,
    /// or no longer in use.
    ///
    /// # Errors
    /// `Damaged` if there is no segment, or one that contradicts its place; it stays stale then.
    fn recover(&self, offset: u64) -> Result<()>;

    /// Returns slot keys and words of the records with a rank of at least `from`, in a segment with
    /// this prefix that the caller has locked.
    fn pairs_from(&self, segment: &Self::Segment, prefix: HashPrefix, from: u64)
    -> Vec<(u64, u64)>;

    /// Checks that the chain of a segment has an end, so that nothing behind it is missed.
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

    /// Shows the visitor the blocks that are neither the root nor segments nor chains.
    fn visit_structure(&self, visitor: &mut dyn Visitor);

    /// Notes that a visit has seen every segment, and how many there are.
    fn visited(&self, _segments: u64) {}

    /// Completes statistics that have the sums over all segments; `segments` were found, with
    /// `links` blocks in their chains.
    fn complete_stats(&self, segments: u64, links: u64, stats: &mut Stats);

    /// Describes what contradicts itself in a segment with this prefix, which the caller has
    /// locked.
    fn check_segment(
        &self,
        segment: &Self::Segment,
        prefix: HashPrefix,
        problems: &mut Vec<String>,
    );

    /// Describes what contradicts itself outside of segments. `found` has the prefixes of all
    /// segments that a walk has found, by offset.
    fn check_structure(&self, found: &HashMap<u64, HashPrefix>, problems: &mut Vec<String>);

    /// Returns the segment at `offset`.
    ///
    /// # Errors
    /// `Damaged` if there cannot be one.
    #[inline(always)]
    fn segment(&self, offset: u64) -> Result<&Self::Segment> {
        match self.core().medium().at(offset) {
            Some(segment) => Ok(segment),
            None => Err(no_segment(offset)),
        }
    }
}

/// Returns the prefix of the segment at `offset`. Returns `None` if there is no segment.
pub(crate) fn prefix_at<H: SegmentHeader, M: Medium>(m: &M, offset: u64) -> Option<HashPrefix> {
    let header = m.at::<H>(offset)?;
    let is_segment = m.load(header.magic()) == H::MAGIC;
    is_segment.then(|| HashPrefix::decode(m.load(header.prefix()))).flatten()
}

/// Returns the prefix of a segment. Returns `None` if it is damaged.
pub(crate) fn prefix_of<S: SegmentLayout, M: Medium>(m: &M, segment: &S) -> Option<HashPrefix> {
    HashPrefix::decode(m.load(segment.header().prefix()))
}

/// Returns the error for an offset at which there cannot be a segment.
#[cold]
pub(crate) fn no_segment(offset: u64) -> Error {
    Error::damaged(offset, "there is no segment here: it would end outside the region")
}
