//! Extendible hashing: a directory and the number of its segments.

use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::{Error, Guard, Medium, PmU64, Result, pod};

use crate::hash::directory::Directory;
use crate::hash::hash_prefix::DEPTH_MAX;

pod! {
    /// The block that the root cell of an index with a directory refers to.
    pub struct Root: 64 {
        /// Identifies the kind of index, the key format and the geometry.
        pub kind: PmU64,
        /// The directory: see [`hash::directory`](crate::hash::directory).
        pub directory: PmU64,
        /// The options that were chosen when the index was created; 0 if the index has none.
        pub options: PmU64,
        reserved: [PmU64; 5],
    }
}

/// A directory that doubles and halves as segments are split and merged.
pub struct Extendible<M: Medium> {
    /// The directory.
    pub directory: Directory<M>,
    /// The number of segments: an estimate until every segment was visited.
    pub(super) segments: AtomicU64,
    pub(super) merges: AtomicU64,
}

impl<M: Medium> Extendible<M> {
    pub(super) fn new(directory: Directory<M>, segments: u64) -> Self {
        Extendible { directory, segments: AtomicU64::new(segments), merges: AtomicU64::new(0) }
    }

    /// Counts a split: one segment more.
    pub fn count_split(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a merge: one segment less.
    pub fn count_merge(&self) {
        // Saturating, since the number is an estimate until every segment was visited and may be
        // too low.
        let less = |segments: u64| Some(segments.saturating_sub(1));
        let _ = self.segments.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.merges.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the directory may double: if it would then occupy at most a quarter of the
    /// bytes of the segments, which have `bytes` each, or at most `free` bytes. Without this bound,
    /// keys with equal hash prefixes would double it without end.
    pub fn may_double(&self, bytes: u64, free: u64) -> bool {
        let depth = self.directory.depth() + 1;
        let segments = self.segments.load(Ordering::Relaxed) * bytes;
        depth <= DEPTH_MAX && 8 << depth <= free.max(segments / 4)
    }

    /// Tries to halve the directory if there are so few segments that probably none of them needs
    /// the directory's full depth. The depth never falls below `least`.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn halve_if_worthwhile(&self, least: u32, guard: &Guard<'_>) -> Result<()> {
        let (depth, segments) = (self.directory.depth(), self.segments.load(Ordering::Relaxed));
        if depth > least && 8 * segments < 1 << depth {
            match self.directory.halve(guard) {
                // Halving only saves space. If there is not enough for the copy, the directory
                // stays as it is.
                Err(error) if !error.is_no_space() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the root block at `offset`.
///
/// # Errors
/// `Damaged` if the block would end outside the region.
pub fn root_at<M: Medium>(m: &M, offset: u64) -> Result<&Root> {
    m.at(offset).ok_or_else(|| Error::damaged(offset, "the index's root ends outside the region"))
}
