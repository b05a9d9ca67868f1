//! What Dash-EH and Dash-LH differ in: which segment serves a hash, and how the index grows.

use std::collections::HashMap;
use std::sync::Arc;

use evermap_pm::{Guard, Medium, Pool, Result};

use super::Dash;
use super::layout::{HashPrefix, Segment};
use crate::hash::segmented::apply::Chain;
use crate::hash::segmented::split::Split;
use crate::{Key, Stats, Visitor};

/// Where a search was led.
pub trait Found {
    /// Returns the offset of the segment.
    fn segment(&self) -> u64;
}

/// A way to grow, with what it keeps in ordinary memory.
///
/// Segments are ordered by the *ranks* of their hashes: each serves those whose ranks have its
/// [`HashPrefix`], and a split divides it into a lower and an upper half.
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

    /// Returns the position of a hash in the order of segments.
    fn rank(hash: u64) -> u64;

    /// Returns a hash whose rank is the greatest up to `rank`.
    fn unrank(rank: u64) -> u64;

    /// Writes what an empty index of `2^depth` segments has beside them, and flushes it without a
    /// fence. `root` is a new block. Also returns the offsets of the segments, in the order of
    /// their ranks.
    ///
    /// # Errors
    /// `NoSpace`; nothing is allocated then.
    fn create(pool: &Arc<Pool<M>>, root: u64, depth: u32) -> Result<(Self, Vec<u64>)>;

    /// Opens what `root` names.
    ///
    /// # Errors
    /// `Damaged`.
    fn open(pool: &Arc<Pool<M>>, root: u64) -> Result<Self>;

    /// Finds the segment that serves `hash`.
    ///
    /// # Errors
    /// `Damaged`.
    fn find<'a>(&'a self, m: &'a M, hash: u64) -> Result<Self::Found<'a>>;

    /// Finds the segment that holds the records of `hash` now, even if another one is to serve it.
    ///
    /// # Errors
    /// `Damaged`.
    fn holder<'a>(&'a self, m: &'a M, hash: u64) -> Result<Self::Found<'a>>;

    /// Returns whether a search for `hash` that was led to `found` would be led there again.
    fn is_current(&self, m: &M, hash: u64, found: &Self::Found<'_>) -> bool;

    /// Returns how many leading bits of two ranks may decide that they belong to different
    /// segments.
    fn depth(&self) -> u32;

    /// Makes the stale segment at `offset`, which serves `hash`, fit for changes. Returns `false`
    /// if that cannot be done for lack of space: changes are then made in the segment that
    /// [holds](Self::holder) the records.
    ///
    /// # Errors
    /// `Damaged`.
    fn prepare(
        dash: &Dash<K, M, Self, B, S, N>,
        offset: u64,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<bool>;

    /// Finishes what a crash has left unfinished around the stale segment at `offset`. Returns the
    /// prefix that it has then. Returns `None` if it is no longer in use.
    ///
    /// # Errors
    /// `Damaged`.
    fn finish_structure(
        dash: &Dash<K, M, Self, B, S, N>,
        offset: u64,
        segment: &Segment<B, S>,
        prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>>;

    /// Makes room in a full segment, which serves `hash`, if that is possible by splitting it.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    fn split(
        dash: &Dash<K, M, Self, B, S, N>,
        segment: &Segment<B, S>,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<Split>;

    /// Acts on a chain that has become longer.
    ///
    /// # Errors
    /// `Damaged`.
    fn lengthened(dash: &Dash<K, M, Self, B, S, N>) -> Result<()>;

    /// Acts on a segment, which serves `hash`, of which a bucket has become empty. Not called for
    /// every such bucket.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    fn emptied(
        dash: &Dash<K, M, Self, B, S, N>,
        segment: &Segment<B, S>,
        hash: u64,
        guard: &Guard<'_>,
    ) -> Result<()>;

    /// Makes every segment stale.
    ///
    /// # Errors
    /// `Damaged`.
    fn make_all_stale(dash: &Dash<K, M, Self, B, S, N>) -> Result<()>;

    /// Shows the blocks that are neither the root nor segments nor chains.
    fn visit(&self, visitor: &mut dyn Visitor);

    /// Notes that a visit has seen every segment, and how many there are.
    fn visited(&self, segments: u64);

    /// Completes `stats`, which have what chains take. A walk has found `segments` segments.
    fn complete(&self, segments: u64, stats: &mut Stats);

    /// Describes what contradicts itself outside of segments. `found` has the prefixes of all
    /// segments that a walk has found, by offset.
    fn check(
        dash: &Dash<K, M, Self, B, S, N>,
        found: &HashMap<u64, HashPrefix>,
        problems: &mut Vec<String>,
    );
}
