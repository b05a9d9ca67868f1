//! Recovery of the contents of a segment of Dash. The other steps of recovery, and when it happens,
//! are in `hash/segmented/recover`.
//!
//! For every new opener, all segments are stale: their version words contain an earlier generation.
//! A crash can leave
//!
//! * two copies of a record, if it interrupted a displacement: one copy is dropped;
//! * an allocated slot without its record, if it interrupted an insertion: its fingerprint is not
//!   that of what the slot holds, and it becomes free;
//! * any values in the parts of headers that are never flushed (filters, overflow fingerprints,
//!   locks): they are computed from the slots.

use evermap_pm::Medium;
use evermap_pm::medium::Note;

use super::Dash;
use super::layout::{Bucket, Buckets, Geometry, HashPrefix, Header, Version};
use crate::Key;
use crate::hash::segmented::map::SegmentMap;
use crate::hash::segmented::{SegmentHeader, SegmentLayout, chain};

/// Why the contents of a segment must be durable before it is used.
const FOUND: &str = "needed by other threads: `what_recovery_finds_is_durable_before_it_is_used`";

impl<K, M, E, G> Dash<K, M, E, G>
where
    K: Key,
    M: Medium,
    E: SegmentMap<Self>,
    G: Geometry,
{
    /// Makes the contents of a segment durable: an earlier process may have stored them and
    /// terminated before they were durable.
    pub(super) fn make_contents_durable(&self, segment: &G::Segment) {
        let m = self.medium();
        m.note(Note::Harmless(FOUND));
        m.flush(segment);
        chain::links(m, &segment.header().chain).for_each(|bucket: &Bucket| {
            m.note(Note::Harmless(FOUND));
            m.flush(bucket);
        });
        m.note(Note::Harmless(
            "needed after half a move: \
             `a_copy_that_recovery_finds_is_durable_before_the_other_is_dropped`",
        ));
        m.fence();
    }

    /// Drops the records that do not belong to the segment, computes all headers again, and marks
    /// the segment as recovered.
    pub(super) fn rebuild_contents(&self, segment: &G::Segment, prefix: HashPrefix) {
        let m = self.medium();
        m.note(Note::Scope("segment recovered"));
        let headers = self.rebuild(segment, prefix);
        m.note(Note::Harmless(
            "needed by other threads: \
             `what_recovery_drops_is_gone_before_the_segment_is_used`",
        ));
        m.fence();
        if m.load(&segment.header().magic) != Header::MAGIC {
            // All fingerprints are right and durable now, and from now on they tell which records
            // are whole.
            m.store(&segment.header().magic, Header::MAGIC);
            m.persist(&segment.header().magic);
        }
        // Until here, all version words are stale, so all other threads wait. The header is stored
        // last: as long as it is stale, a thread that finds a stale bucket waits for this recovery.
        for bucket in segment.stash() {
            m.store_transient(&bucket.version, Version::fresh(self.core.generation).0);
        }
        for (bucket, version) in segment.normal().iter().zip(&headers.versions) {
            m.store_transient(&bucket.version, version.0);
        }
        m.store_transient(&segment.header().generation, self.core.generation);
    }
}
