//! Recovery of what is inside a segment of Dash. When it happens, and the rest, is in
//! `hash/segmented/recover`.
//!
//! Every opener begins with all segments stale: their version words carry the number of an earlier
//! one. A crash may have interrupted
//!
//! * a displacement, which leaves two copies of a record: one is dropped;
//! * nothing in headers that are never flushed (filters, overflow fingerprints, locks): they are
//!   made from the slots.

use evermap_pm::Medium;
use evermap_pm::medium::Note;

use super::layout::{Bucket, HashPrefix, Segment, Version};
use super::{Dash, Expansion};
use crate::Key;
use crate::hash::segmented::chain;

/// Why what a segment holds must be durable before it is used.
const FOUND: &str = "needed by other threads: `what_recovery_finds_is_durable_before_it_is_used`";

impl<K, M, E, const B: usize, const S: usize, const N: usize> Dash<K, M, E, B, S, N>
where
    K: Key,
    M: Medium,
    E: Expansion<K, M, B, S, N>,
{
    /// Makes every version word of a segment stale, so that it is recovered before it is used.
    pub(super) fn make_stale(&self, segment: &Segment<B, S>) {
        let (m, earlier) = (self.medium(), self.core.generation.wrapping_sub(1));
        m.store_transient(&segment.header.generation, earlier);
        for bucket in segment.normal.iter().chain(&segment.stash) {
            m.store_transient(&bucket.version, Version::fresh(earlier).0);
        }
    }

    /// Makes durable what a segment holds: a thread may have stored it and died before it was.
    pub(super) fn make_contents_durable(&self, segment: &Segment<B, S>) {
        let m = self.medium();
        m.note(Note::Harmless(FOUND));
        m.flush(segment);
        chain::links(m, &segment.header.chain).for_each(|bucket: &Bucket| {
            m.note(Note::Harmless(FOUND));
            m.flush(bucket);
        });
        m.note(Note::Harmless(
            "needed after half a move: \
             `a_copy_that_recovery_finds_is_durable_before_the_other_is_dropped`",
        ));
        m.fence();
    }

    /// Drops the records that do not belong, makes all headers anew, and declares the segment
    /// fresh.
    pub(super) fn rebuild_contents(&self, segment: &Segment<B, S>, prefix: HashPrefix) {
        let m = self.medium();
        m.note(Note::Scope("segment recovered"));
        let headers = self.rebuild(segment, prefix);
        m.note(Note::Harmless(
            "needed by other threads: \
             `what_recovery_drops_is_gone_before_the_segment_is_used`",
        ));
        m.fence();
        // Up to here all threads wait, because every version word is stale. The header comes last:
        // as long as it is stale, a thread that meets a stale bucket waits for this one.
        for bucket in &segment.stash {
            m.store_transient(&bucket.version, Version::fresh(self.core.generation).0);
        }
        for (bucket, version) in segment.normal.iter().zip(&headers.versions) {
            m.store_transient(&bucket.version, version.0);
        }
        m.store_transient(&segment.header.generation, self.core.generation);
    }
}
