//! Events of what happens to a file, for the crate `tracing`, behind the feature of that name.
//! Without it these functions do nothing, and nothing is computed for them.
//!
//! No event is about one operation: what could be many in a second is summed up.

// Without the feature, what is passed is not used.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

use std::time::Duration;

use evermap_pm::Medium;

use crate::maintenance::evict::Counts;
use crate::{Evermap, Result};

/// A file was opened, or created.
#[inline]
pub(crate) fn opened<M: Medium>(db: &Evermap<M>) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: "evermap::open",
        path = db.file.origin.path.as_deref().map(tracing::field::debug),
        generation = db.file.pool.generation(),
        is_clean = db.file.clean,
        is_read_only = db.file.read_only,
        bytes = db.file.pool.region().medium().len(),
        "opened"
    );
}

/// A file was closed.
#[inline]
pub(crate) fn closed<M: Medium>(db: &Evermap<M>) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: "evermap::open",
        path = db.file.origin.path.as_deref().map(tracing::field::debug),
        "closed"
    );
}

/// The sweep after an unclean shutdown has ended.
#[inline]
pub(crate) fn swept<M: Medium>(db: &Evermap<M>, swept: &Result<()>, took: Duration) {
    #[cfg(feature = "tracing")]
    {
        let took_ms = took.as_millis() as u64;
        match swept {
            Ok(()) => {
                let records = db.default_map().len();
                tracing::info!(target: "evermap::recovery", took_ms, records, "swept");
            }
            Err(error) => {
                let error = tracing::field::display(error);
                tracing::warn!(target: "evermap::recovery", took_ms, error, "the sweep has failed");
            }
        }
    }
}

/// Records were moved out of sparse extents.
#[inline]
pub(crate) fn compacted<M: Medium>(db: &Evermap<M>, moved: u64, began: std::time::Instant) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: "evermap::compaction",
        path = db.file.origin.path.as_deref().map(tracing::field::debug),
        moved,
        took_ms = began.elapsed().as_millis() as u64,
        "compacted"
    );
}

/// What was evicted while it exists.
pub(crate) struct Evictions {
    #[cfg(feature = "tracing")]
    before: (u64, u64),
}

impl Evictions {
    #[inline]
    pub(crate) fn begin(counts: &Counts) -> Self {
        Evictions {
            #[cfg(feature = "tracing")]
            before: totals(counts),
        }
    }

    /// Reports what was evicted since. `is_direct`: by a mutation that lacked space.
    #[inline]
    pub(crate) fn end(self, counts: &Counts, is_direct: bool) {
        #[cfg(feature = "tracing")]
        {
            let (records, bytes) = totals(counts);
            let (records, bytes) = (records - self.before.0, bytes - self.before.1);
            if records > 0 {
                tracing::debug!(target: "evermap::eviction", records, bytes, is_direct, "evicted");
            }
        }
    }
}

#[cfg(feature = "tracing")]
fn totals(counts: &Counts) -> (u64, u64) {
    use std::sync::atomic::Ordering::Relaxed;
    (counts.evictions.load(Relaxed), counts.evicted_bytes.load(Relaxed))
}
