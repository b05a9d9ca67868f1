//! A directory as what names the segments of an index.

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evermap_pm::{Error, Guard, Pool, Result};

use super::chain::Chain;
use super::check::check_directory;
use super::core::HasCore;
use super::extendible::{Extendible, Root, root_at};
use super::map::{SegmentMap, Split};
use super::merge::merge_if_sparse;
use super::recover::{finish_structure, for_each_named};
use super::split::{Directed, split_in_proportion};
use crate::fresh::Fresh;
use crate::hash::directory::{Directory, Found};
use crate::hash::hash_prefix::HashPrefix;
use crate::{Stats, Visitor};

impl<T: Directed> SegmentMap<T> for Extendible<<T as HasCore>::Medium> {
    const NAME: [u8; 4] = *b"EH\0\0";
    const ROOT_BYTES: u64 = size_of::<Root>() as u64;
    const SEGMENTS_ARE_BLOCKS: bool = true;
    const CHAIN: Chain = Chain::Avoid;

    type Found<'a> = Found<'a>;

    #[inline(always)]
    fn rank(hash: u64) -> u64 {
        hash
    }

    fn unrank(rank: u64) -> u64 {
        rank
    }

    fn create(pool: &Arc<Pool<T::Medium>>, root: u64, depth: u32) -> Result<(Self, Vec<u64>)> {
        let (mut fresh, bytes) = (Fresh::new(pool), size_of::<T::Segment>() as u64);
        let segments: Vec<u64> =
            (0..1 << depth).map(|_| fresh.allocate_exact(bytes)).collect::<Result<_>>()?;
        let stamp = T::stamp(pool.generation());
        let entries: Vec<u64> = segments.iter().map(|offset| offset | stamp).collect();
        let cell = root + offset_of!(Root, directory) as u64;
        let directory = Directory::create(pool.clone(), cell, depth, &entries)?;
        fresh.keep();
        Ok((Extendible::new(directory, 1 << depth), segments))
    }

    fn open(pool: &Arc<Pool<T::Medium>>, root: u64) -> Result<Self> {
        root_at(pool.medium(), root)?;
        let cell = root + offset_of!(Root, directory) as u64;
        let directory = Directory::open(pool.clone(), cell)?;
        if directory.depth() < T::DEPTH_MIN {
            return Err(Error::damaged(root, "the directory is too shallow"));
        }
        // Exact once every segment was visited. Until then it may be too low, which only postpones
        // doubling.
        let estimate = (1u64 << directory.depth()).div_ceil(4);
        Ok(Extendible::new(directory, estimate))
    }

    #[inline(always)]
    fn find<'a>(&'a self, _m: &'a T::Medium, hash: u64) -> Result<(u64, Found<'a>)> {
        let found = self.directory.find(hash);
        Ok((T::offset_in(found.segment), found))
    }

    /// A segment holds all of its records as soon as the directory refers to it.
    #[inline(always)]
    fn holder<'a>(&'a self, m: &'a T::Medium, hash: u64) -> Result<(u64, Found<'a>)> {
        SegmentMap::<T>::find(self, m, hash)
    }

    #[inline(always)]
    fn is_current(&self, m: &T::Medium, _hash: u64, found: &Found<'_>) -> bool {
        self.directory.is_current(m, found)
    }

    fn depth(&self) -> u32 {
        self.directory.depth()
    }

    fn segments(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }

    fn prepare(index: &T, offset: u64, _rank: u64, _guard: &Guard<'_>) -> Result<bool> {
        index.recover(offset).map(|()| true)
    }

    fn finish_structure(
        index: &T,
        offset: u64,
        segment: &T::Segment,
        prefix: HashPrefix,
    ) -> Result<Option<HashPrefix>> {
        finish_structure(index, offset, segment, prefix)
    }

    #[cold]
    fn split(index: &T, segment: &T::Segment, hash: u64, guard: &Guard<'_>) -> Result<Split> {
        split_in_proportion(index, segment, hash, guard)
    }

    fn emptied(index: &T, segment: &T::Segment, hash: u64, guard: &Guard<'_>) -> Result<()> {
        merge_if_sparse(index, segment, hash, guard)
    }

    fn make_all_stale(index: &T) -> Result<()> {
        for_each_named(index, |offset| {
            if let Ok(segment) = index.segment(offset) {
                index.make_stale(segment);
            }
        });
        Ok(())
    }

    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.block(self.directory.block());
    }

    fn visited(&self, segments: u64) {
        self.segments.store(segments, Ordering::Relaxed);
    }

    fn complete_stats(&self, segments: u64, stats: &mut Stats) {
        stats.depth = self.directory.depth();
        stats.segments = segments;
        stats.capacity += segments * T::SLOTS as u64;
        let directory = size_of::<Root>() as u64 + (8 << stats.depth);
        stats.pm_bytes += directory + segments * size_of::<T::Segment>() as u64;
        stats.merges = self.merges.load(Ordering::Relaxed);
    }

    fn check(index: &T, found: &HashMap<u64, HashPrefix>, problems: &mut Vec<String>) {
        check_directory(index, found, problems);
    }
}
