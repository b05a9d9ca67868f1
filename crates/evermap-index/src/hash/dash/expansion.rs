//! What Dash-EH and Dash-LH differ in: which segment serves a hash, and how the index grows.

use std::sync::Arc;

use evermap_pm::{Guard, Medium, Pool, Result};

use super::Dash;
use super::layout::{HashPrefix, Segment};
use super::segment::Chain;
use crate::{Key, Stats, Visitor};

/// Where a search was led.
pub trait Found {
    /// Offset of the segment.
    fn segment(&self) -> u64;
}

/// How an attempt to make room in a full segment ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// It was split, by us or by someone else: try again.
    Done,
    /// It is not split now: use the chain.
    Refused,
}

/// A way to grow, with what it keeps in ordinary memory.
///
/// Segments are ordered by the *ranks* of their hashes: each serves those whose ranks have its [`HashPrefix`], and a
/// split divides it into a lower and an upper half.
pub trait Expansion<K: Key, M: Medium, const B: usize, const S: usize, const N: usize>:
    Sized + Send + Sync + 'static
{
    /// Names the kind of index on the media.
    const NAME: [u8; 8];
    /// Bytes of the root block; its first word is the kind.
    const ROOT_BYTES: u64;
    /// Whether each segment is a block of its own.
    const SEGMENTS_ARE_BLOCKS: bool;
    /// What an insert may do at first with the chain of a segment that is otherwise full.
    const CHAIN: Chain;

    /// Where a search was led, and by what.
    type Found<'a>: Found;

    /// Where a hash stands in the order of segments.
    fn rank(hash: u64) -> u64;

    /// A hash whose rank is the nearest to `rank` from below.
    fn unrank(rank: u64) -> u64;

    /// Writes what an empty index of `2^depth` segments has beside them, and flushes it without a fence. `root` is
    /// a fresh block. Answers the places of the segments too, in the order of their ranks.
    ///
    /// # Errors
    /// `NoSpace`; nothing is allocated then.
    fn create(pool: &Arc<Pool<M>>, root: u64, depth: u32) -> Result<(Self, Vec<u64>)>;

    /// Opens what `root` names.
    ///
    /// # Errors
    /// `Damaged`.
    fn open(pool: &Arc<Pool<M>>, root: u64) -> Result<Self>;

    /// The segment that serves `hash`.
    fn find<'a>(&'a self, m: &'a M, hash: u64) -> Result<Self::Found<'a>>;

    /// The segment that holds the records of `hash` now, even if another one is to serve it.
    fn holder<'a>(&'a self, m: &'a M, hash: u64) -> Result<Self::Found<'a>>;

    /// Whether a search for `hash` that was led to `found` would still be.
    fn still(&self, m: &M, hash: u64, found: &Self::Found<'_>) -> bool;

    /// Ranks that differ in their first so many bits may belong to different segments.
    fn depth(&self) -> u32;

    /// Makes the stale segment at `offset`, which serves `hash`, fit for changes. `false` if that cannot be done for
    /// lack of space: changes are then made in the segment that [holds](Self::holder) the records.
    fn prepare(
        dash: &Dash<K, M, Self, B, S, N>,
        offset: u64,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<bool>;

    /// Finishes what a crash has left half done around the stale segment at `offset`. Answers the shape that it has
    /// then; `None` if it is not in use any more.
    fn finish_structure(
        dash: &Dash<K, M, Self, B, S, N>,
        offset: u64,
        segment: &Segment<B, S>,
        shape: HashPrefix,
    ) -> Result<Option<HashPrefix>>;

    /// Makes room in the full segment at `offset`, which serves `hash`, if that is possible by splitting it.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    fn split(
        dash: &Dash<K, M, Self, B, S, N>,
        offset: u64,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<Split>;

    /// A chain has become longer.
    fn lengthened(dash: &Dash<K, M, Self, B, S, N>) -> Result<()>;

    /// A bucket of the segment at `offset`, which serves `hash`, has become empty. Not told of every one.
    fn emptied(
        dash: &Dash<K, M, Self, B, S, N>,
        offset: u64,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<()>;

    /// Makes every segment stale.
    fn make_all_stale(dash: &Dash<K, M, Self, B, S, N>) -> Result<()>;

    /// Shows the blocks that are neither the root nor segments nor chains.
    fn visit(&self, visitor: &mut dyn Visitor);

    /// A visit has seen everything: so many segments.
    fn visited(&self, segments: u64);

    /// Completes `stats`, which has what is the same for all kinds: a walk has found `segments` segments, and their
    /// chains.
    fn complete(&self, segments: u64, stats: &mut Stats);

    /// Describes what contradicts itself beside the contents of segments.
    fn check(dash: &Dash<K, M, Self, B, S, N>, problems: &mut Vec<String>);
}
